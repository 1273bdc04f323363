//! The client: a purgatory of what it waits for.
//!
//! Each attempt has a number of its own, goes over one of the connections, and watches its number
//! for as long as a timeout. An answer checks the number that it carries: if an attempt watches it,
//! that one is complete, and if none does, the answer is late. An attempt that expires is followed
//! by another one, up to a limit. Whichever comes first, answer or deadline, the purgatory sees to
//! it that an attempt has one end.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use corewheel::{Operation, Purgatory, PurgatoryStats, Timers, Watch};
use tokio::sync::Notify;

use crate::connection::{self, Network, Outbox};

/// How long an attempt waits for its answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);
/// How often a request is sent before the client gives up.
const ATTEMPTS_MAX: u32 = 3;
/// How many requests are in flight at once.
const WINDOW: u32 = 256;
/// What the client sends last over each connection.
pub(crate) const BYE: u64 = u64::MAX;

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) timed_out: u64,
    pub(crate) attempts: u64,
    pub(crate) retried: u64,
    /// Answers for which nobody waited any more.
    pub(crate) late: u64,
    pub(crate) purgatory: PurgatoryStats,
}

struct Client {
    in_flight: Purgatory<u64, Attempt>,
    outboxes: Vec<Rc<Outbox>>,
    counts: Cell<Counts>,
    /// Requests that are still to be made.
    left: Cell<u32>,
    /// Requests that have not ended.
    open: Cell<u32>,
    /// The answer that has just come.
    answer: Cell<Option<u64>>,
    /// Connections that are closed, and why if not by their end.
    closed: Cell<usize>,
    failed: RefCell<Option<io::Error>>,
    changed: Notify,
}

/// A request that was sent and waits for its answer.
struct Attempt {
    number: u64,
    /// The how-manieth of its request, from 1.
    nth: u32,
    /// It waits in what the client owns, so it must not own the client.
    client: Weak<Client>,
}

impl Operation for Attempt {
    fn try_complete(&mut self) -> bool {
        let client = self.client.upgrade();
        client.is_some_and(|client| client.answer.get() == Some(self.number))
    }

    fn completed(self) {
        let Some(client) = self.client.upgrade() else { return };
        client.count(|counts| counts.answered += 1);
        client.end_one();
    }

    fn expired(self) {
        let Some(client) = self.client.upgrade() else { return };
        if self.nth < ATTEMPTS_MAX {
            client.count(|counts| counts.retried += 1);
            client.send(self.nth + 1);
        } else {
            client.count(|counts| counts.timed_out += 1);
            client.end_one();
        }
    }
}

/// Makes so many requests and waits until each has ended, and until the server has sent what it
/// owed.
pub(crate) async fn ask<N: Network>(
    timers: &Timers,
    address: SocketAddr,
    connections: usize,
    requests: u32,
) -> io::Result<Counts> {
    let client = Rc::new(Client {
        in_flight: Purgatory::new(timers),
        outboxes: (0..connections).map(|_| Rc::default()).collect(),
        counts: Cell::default(),
        left: Cell::new(requests),
        open: Cell::new(0),
        answer: Cell::new(None),
        closed: Cell::new(0),
        failed: RefCell::default(),
        changed: Notify::new(),
    });
    for outbox in &client.outboxes {
        let stream = N::connect(address).await?;
        let (client, outbox) = (Rc::clone(&client), Rc::clone(outbox));
        N::spawn(async move {
            let end = connection::run(stream, &outbox, |answer| client.receive(answer)).await;
            client.closed.set(client.closed.get() + 1);
            if let Err(error) = end {
                *client.failed.borrow_mut() = Some(error);
            }
            client.changed.notify_one();
        });
    }
    client.fill();
    client.until(|client| client.open.get() == 0 && client.left.get() == 0).await?;
    for outbox in &client.outboxes {
        outbox.send(BYE);
    }
    client.until(|client| client.closed.get() == client.outboxes.len()).await?;
    Ok(Counts { purgatory: client.in_flight.stats(), ..client.counts.get() })
}

impl Client {
    /// Makes requests until as many as may be are in flight.
    fn fill(self: &Rc<Self>) {
        while self.open.get() < WINDOW && self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            self.open.set(self.open.get() + 1);
            self.send(1);
        }
    }

    fn send(self: &Rc<Self>, nth: u32) {
        let number = self.counts.get().attempts;
        let operation = Attempt { number, nth, client: Rc::downgrade(self) };
        match self.in_flight.try_complete_else_watch(operation, TIMEOUT, [number]) {
            Ok(Watch::Watched(_)) => {
                self.count(|counts| counts.attempts += 1);
                self.outboxes[number as usize % self.outboxes.len()].send(number);
            }
            Ok(Watch::Completed) => unreachable!("nobody answers what was not sent"),
            Err(refused) => {
                let error = io::Error::other(refused.to_string());
                *self.failed.borrow_mut() = Some(error);
                self.changed.notify_one();
            }
        }
    }

    fn receive(&self, answer: u64) {
        self.answer.set(Some(answer));
        if self.in_flight.check_and_complete(&answer) == 0 {
            self.count(|counts| counts.late += 1);
        }
        self.answer.set(None);
    }

    fn end_one(self: &Rc<Self>) {
        self.open.set(self.open.get() - 1);
        self.fill();
        self.changed.notify_one();
    }

    /// Waits until something is so, or until a connection has failed.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) -> io::Result<()> {
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if is_so(self) {
                return Ok(());
            }
            if self.closed.get() == self.outboxes.len() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.changed.notified().await;
        }
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}
