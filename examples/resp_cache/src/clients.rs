//! The clients of all cores: how each is called, what memory it takes, and how another task of its
//! core ends it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::commands::{COMMANDS, Refusal};
use crate::gauges::{Gauge, Gauges};

/// What takes memory for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Requests that were received and not executed.
    Input,
    /// Replies that were not written.
    Output,
    /// Messages of its subscriptions that were not written.
    Messages,
    /// The commands of its transaction.
    Transaction,
    /// Requests that other cores execute, and their replies that have not taken their places.
    Remote,
    /// Its name, and those of its subscriptions.
    Names,
}
const PARTS: [Part; 6] =
    [Part::Input, Part::Output, Part::Messages, Part::Transaction, Part::Remote, Part::Names];
/// What a subscription takes beside its name.
const SUBSCRIPTION_BYTES: usize = 128;
/// The most bytes of a client's name.
const NAME_MAX: usize = 1 << 10;

/// A client, as others see it. Only its core writes the numbers.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    name: Mutex<Vec<u8>>,
    /// The version of the protocol.
    pub(crate) proto: Gauge,
    /// Subscriptions to channels and to patterns.
    subscriptions: [Gauge; 2],
    /// The command of its last request, by its place among [`COMMANDS`]; beyond them if none was.
    pub(crate) command: Gauge,
    core: usize,
    peer: Option<SocketAddr>,
    since: Instant,
    parts: [Gauge; PARTS.len()],
    /// The bytes of the names of its subscriptions.
    subscribed: Gauge,
    gauges: Arc<Gauges>,
    over: OnceLock<&'static str>,
    wake: Notify,
}

impl Client {
    /// States how many bytes a part takes now.
    pub(crate) fn account(&self, part: Part, bytes: usize) {
        let part = &self.parts[part as usize];
        let all = &self.gauges.client_memory;
        all.set(all.get() - part.get() + bytes as u64);
        part.set(bytes as u64);
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        lock(&self.name).clone()
    }

    /// Names the client; an error if it cannot have this name.
    pub(crate) fn set_name(&self, name: &[u8]) -> Result<(), Refusal> {
        if name.iter().any(|byte| !byte.is_ascii_graphic()) {
            let problem = "ERR Client names cannot contain spaces, newlines or special characters.";
            return Err(Refusal::from(problem));
        }
        if name.len() > NAME_MAX {
            let problem = format!("ERR Client names cannot have more than {NAME_MAX} bytes");
            return Err(Refusal::from(problem));
        }
        *lock(&self.name) = name.to_vec();
        self.account_names();
        Ok(())
    }

    /// Counts a subscription that the client has now, or has no more.
    pub(crate) fn count_subscription(&self, kind: usize, name: &[u8], is_new: bool) {
        let bytes = (name.len() + SUBSCRIPTION_BYTES) as u64;
        let (count, all) = (&self.subscriptions[kind], &self.subscribed);
        if is_new {
            count.add(1);
            all.add(bytes);
        } else {
            count.set(count.get() - 1);
            all.set(all.get() - bytes);
        }
        self.account_names();
    }

    fn account_names(&self) {
        let name = lock(&self.name).len();
        self.account(Part::Names, name + self.subscribed.get() as usize);
    }

    fn memory(&self) -> u64 {
        self.parts.iter().map(Gauge::get).sum()
    }

    /// Ends the connection of the client, whatever it waits for.
    pub(crate) fn end(&self, why: &'static str) {
        let _is_over_already = self.over.set(why);
        self.wake.notify_one();
    }

    /// Ends the connection of a client that does not read its messages.
    pub(crate) fn end_as_slow(&self) {
        self.gauges.clients_slow.add(1);
        self.end("too many messages waited for the client");
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Waits until the client is ended by another task, and returns why.
    pub(crate) async fn ended(&self) -> &'static str {
        loop {
            if let Some(why) = self.over.get() {
                return why;
            }
            self.wake.notified().await;
        }
    }

    /// The line of `CLIENT LIST`.
    pub(crate) fn line(&self) -> String {
        let peer = self.peer.map(|peer| peer.to_string()).unwrap_or_default();
        let name = String::from_utf8_lossy(&lock(&self.name)).into_owned();
        let [channels, patterns] = [0, 1].map(|kind| self.subscriptions[kind].get());
        let command = usize::try_from(self.command.get()).ok().and_then(|at| COMMANDS.get(at));
        let command = command.map_or("NULL", |command| command.name);
        let flags = if channels + patterns > 0 { "P" } else { "N" };
        let of = |part: Part| self.parts[part as usize].get();
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            line,
            "id={} addr={peer} name={name} age={} flags={flags} db=0 sub={channels} \
             psub={patterns} qbuf={} obl={} omem={} multi-mem={} tot-mem={} cmd={command} \
             resp={} core={}",
            self.id,
            self.since.elapsed().as_secs(),
            of(Part::Input),
            of(Part::Output),
            of(Part::Messages),
            of(Part::Transaction),
            self.memory(),
            self.proto.get(),
            self.core,
        );
        line
    }
}

/// The connected clients, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    all: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// How many clients there were.
    count: u64,
    clients: BTreeMap<u64, Arc<Client>>,
}

impl Clients {
    /// Enters a client; `None` if there are `max` already.
    pub(crate) fn enter(
        &self,
        max: u64,
        core: usize,
        peer: Option<SocketAddr>,
        gauges: &Arc<Gauges>,
    ) -> Option<Arc<Client>> {
        let mut known = lock(&self.all);
        if known.clients.len() as u64 >= max {
            return None;
        }
        known.count += 1;
        let client = Arc::new(Client {
            id: known.count,
            name: Mutex::default(),
            proto: Gauge::new(2),
            subscriptions: Default::default(),
            command: Gauge::new(u64::MAX),
            core,
            peer,
            since: Instant::now(),
            parts: Default::default(),
            subscribed: Gauge::default(),
            gauges: Arc::clone(gauges),
            over: OnceLock::new(),
            wake: Notify::new(),
        });
        known.clients.insert(client.id, Arc::clone(&client));
        Some(client)
    }

    pub(crate) fn leave(&self, client: &Client) {
        lock(&self.all).clients.remove(&client.id);
        for part in PARTS {
            client.account(part, 0);
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.all).clients.len()
    }

    /// The lines of `CLIENT LIST`.
    pub(crate) fn list(&self) -> String {
        lock(&self.all).clients.values().map(|client| client.line()).collect()
    }

    /// Ends clients of a core, those that take the most memory first, until the others take at most
    /// `max` bytes. Returns how many it has ended. O(clients).
    pub(crate) fn end_largest(&self, core: usize, max: u64) -> u64 {
        let known = lock(&self.all);
        let alive = known.clients.values().filter(|one| one.core == core && !one.is_over());
        let mut by_memory: Vec<_> = alive.map(|client| (client.memory(), client)).collect();
        by_memory.sort_by_key(|(memory, _)| *memory);
        let mut total: u64 = by_memory.iter().map(|(memory, _)| memory).sum();
        let mut ended = 0;
        while total > max
            && let Some((memory, client)) = by_memory.pop()
        {
            client.end("the clients take too much memory, and this one takes the most");
            total -= memory;
            ended += 1;
        }
        ended
    }
}

/// Nothing that holds one of these locks panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
