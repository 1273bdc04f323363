//! A client as the other tasks of its core see it: what memory it takes, its subscriptions and the
//! messages that wait for it, and how another task ends its connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::core::Gauges;
use crate::glob;
use crate::notify::Event;
use crate::protocol::{Proto, Reply};

/// What takes memory for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Requests that were received and not executed.
    Input,
    /// Replies that were not written.
    Output,
    /// Messages of its subscriptions that were not written.
    Messages,
    /// Requests that other cores execute, and their replies that have not taken their places.
    Remote,
    /// The names of its subscriptions.
    Names,
}
/// What a subscription takes beside its name.
const SUBSCRIPTION_BYTES: usize = 128;

/// Whether a subscription is to a channel or to a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Channel,
    Pattern,
}

impl Kind {
    /// The kind of what a command of this name subscribes to.
    pub(crate) fn of(command: &str) -> Self {
        if command.starts_with('p') { Self::Pattern } else { Self::Channel }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    gauges: Arc<Gauges>,
    parts: [Cell<usize>; 5],
    names: RefCell<[BTreeSet<Bytes>; 2]>,
    /// Messages that its connection has not taken, each with the pattern that it matches. They
    /// share their bytes with those of other clients.
    outbox: RefCell<VecDeque<(Option<Bytes>, Event)>>,
    over: Cell<Option<&'static str>>,
    wake: Notify,
}

impl Client {
    pub(crate) fn new(id: u64, gauges: &Arc<Gauges>) -> Self {
        Self {
            id,
            gauges: Arc::clone(gauges),
            parts: Default::default(),
            names: RefCell::default(),
            outbox: RefCell::default(),
            over: Cell::new(None),
            wake: Notify::new(),
        }
    }

    /// States how many bytes a part takes now.
    pub(crate) fn account(&self, part: Part, bytes: usize) {
        let before = self.parts[part as usize].replace(bytes);
        let all = &self.gauges.client_memory;
        all.set(all.get() - before as u64 + bytes as u64);
    }

    fn part(&self, part: Part) -> usize {
        self.parts[part as usize].get()
    }

    pub(crate) fn memory(&self) -> usize {
        self.parts.iter().map(Cell::get).sum()
    }

    /// Ends the connection of a client that is not over, whatever it waits for.
    pub(crate) fn end(&self, why: &'static str) {
        self.over.set(Some(why));
        self.gauges.clients_evicted.add(1);
        self.wake.notify_one();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Waits until another task ends the client, and says why; with `messages`, also until there
    /// are some.
    pub(crate) async fn woken(&self, messages: bool) -> Result<(), &'static str> {
        loop {
            match self.over.get() {
                Some(why) => return Err(why),
                None if messages && !self.outbox.borrow().is_empty() => return Ok(()),
                None => self.wake.notified().await,
            }
        }
    }

    /// How many subscriptions it has.
    pub(crate) fn subscriptions(&self) -> usize {
        self.names.borrow().iter().map(BTreeSet::len).sum()
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<Bytes> {
        self.names.borrow()[kind as usize].iter().cloned().collect()
    }

    pub(crate) fn subscribe(&self, kind: Kind, name: &[u8]) {
        if self.names.borrow_mut()[kind as usize].insert(Bytes::copy_from_slice(name)) {
            let bytes = self.part(Part::Names) + name.len() + SUBSCRIPTION_BYTES;
            self.account(Part::Names, bytes);
        }
    }

    pub(crate) fn unsubscribe(&self, kind: Kind, name: &[u8]) {
        if self.names.borrow_mut()[kind as usize].remove(name) {
            let bytes = self.part(Part::Names) - name.len() - SUBSCRIPTION_BYTES;
            self.account(Part::Names, bytes);
        }
    }

    /// Adds a message for each subscription that it matches. A client that has not read more bytes
    /// of messages than `max` is ended, and its messages are dropped.
    pub(crate) fn send(&self, event: &Event, max: usize) {
        let names = self.names.borrow();
        let channel = names[0].get(&event.channel).map(|_| None);
        let patterns = names[1].iter().filter(|name| glob::matches(name, &event.channel)).map(Some);
        for pattern in channel.into_iter().chain(patterns).filter(|_| !self.is_over()) {
            let waiting = self.part(Part::Messages) + size(pattern, event);
            if waiting > max {
                self.end("too many messages waited for the client");
                self.outbox.take();
                self.account(Part::Messages, 0);
            } else {
                self.outbox.borrow_mut().push_back((pattern.cloned(), event.clone()));
                self.account(Part::Messages, waiting);
            }
            self.wake.notify_one();
        }
    }

    /// Writes messages behind `out` until there are `enough` bytes. The others stay, and count
    /// towards the limit of the client.
    pub(crate) fn take_messages(&self, out: &mut BytesMut, proto: Proto, enough: usize) {
        let mut outbox = self.outbox.borrow_mut();
        let mut reply = Reply { out, proto };
        while reply.out.len() < enough
            && let Some((pattern, event)) = outbox.pop_front()
        {
            let waiting = self.part(Part::Messages) - size(pattern.as_ref(), &event);
            self.account(Part::Messages, waiting);
            let kind: &[u8] = if pattern.is_some() { b"pmessage" } else { b"message" };
            let parts =
                [Some(kind), pattern.as_deref(), Some(&event.channel), Some(&event.message)];
            reply.push(parts.iter().flatten().count());
            parts.into_iter().flatten().for_each(|part| reply.bulk(part));
        }
        if outbox.is_empty() {
            *outbox = VecDeque::new();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let all = &self.gauges.client_memory;
        all.set(all.get() - self.memory() as u64);
    }
}

/// What a message takes in an outbox.
fn size(pattern: Option<&Bytes>, event: &Event) -> usize {
    pattern.map_or(0, Bytes::len) + event.bytes() + size_of::<Option<Bytes>>()
}
