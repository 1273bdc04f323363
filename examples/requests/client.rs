//! The client, which keeps its attempts in a purgatory.
//!
//! Each attempt has a number of its own, goes over one of the connections, and watches its number
//! until its timeout. An answer checks the number that it carries: it completes the attempt that
//! watches this number, or it is late if no attempt does. An attempt that expires is followed by
//! another attempt, up to a limit. Each attempt ends once, by its answer or by its deadline.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use corewheel::Timers;
use corewheel_kit::purgatory::{Operation, Purgatory, PurgatoryStats};
use tokio::sync::Notify;

use crate::connection::{self, Outbox};
use crate::network::Network;

/// How long an attempt waits for its answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(50);
/// How often a request is sent before the client gives up.
const ATTEMPTS_MAX: u32 = 3;
/// How many requests are in flight at once.
const WINDOW: u32 = 256;
/// The last number that the client sends over each connection.
pub(crate) const BYE: u64 = u64::MAX;

/// How the requests ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) answered: u64,
    pub(crate) timed_out: u64,
    pub(crate) attempts: u64,
    pub(crate) retried: u64,
    /// Answers to attempts that had expired.
    pub(crate) late: u64,
    pub(crate) purgatory: PurgatoryStats,
}

struct Client {
    in_flight: Purgatory<u64, Attempt>,
    outboxes: Vec<Rc<Outbox>>,
    counts: RefCell<Counts>,
    /// Requests that are not sent yet.
    left: Cell<u32>,
    /// Requests that are sent and have not ended.
    open: Cell<u32>,
    /// The answer that has just come.
    answer: Cell<Option<u64>>,
    /// How many connections are closed.
    closed: Cell<usize>,
    /// Why a connection or a request has failed.
    failed: RefCell<Option<io::Error>>,
    changed: Notify,
}

/// A request that was sent and waits for its answer.
struct Attempt {
    number: u64,
    /// Which attempt of its request it is, from 1.
    nth: u32,
    /// Weak, as the client owns the purgatory that holds the attempt.
    client: Weak<Client>,
}

impl Operation for Attempt {
    fn try_complete(&mut self) -> bool {
        let client = self.client.upgrade();
        client.is_some_and(|client| client.answer.get() == Some(self.number))
    }

    fn completed(self) {
        let Some(client) = self.client.upgrade() else { return };
        client.counts.borrow_mut().answered += 1;
        client.end_one();
    }

    fn expired(self) {
        let Some(client) = self.client.upgrade() else { return };
        if self.nth < ATTEMPTS_MAX {
            client.counts.borrow_mut().retried += 1;
            client.send(self.nth + 1);
        } else {
            client.counts.borrow_mut().timed_out += 1;
            client.end_one();
        }
    }
}

/// Makes so many requests, waits until each has ended, and until the server has closed all
/// connections.
pub(crate) async fn ask<N: Network>(
    timers: &Timers,
    address: SocketAddr,
    connections: usize,
    requests: u32,
) -> io::Result<Counts> {
    let client = Rc::new(Client {
        in_flight: Purgatory::new(timers),
        outboxes: (0..connections).map(|_| Rc::default()).collect(),
        counts: RefCell::default(),
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
    Ok(Counts { purgatory: client.in_flight.stats(), ..client.counts.take() })
}

impl Client {
    /// Makes requests until the window is full.
    fn fill(self: &Rc<Self>) {
        while self.open.get() < WINDOW && self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            self.open.set(self.open.get() + 1);
            self.send(1);
        }
    }

    fn send(self: &Rc<Self>, nth: u32) {
        let number = self.counts.borrow().attempts;
        let operation = Attempt { number, nth, client: Rc::downgrade(self) };
        match self.in_flight.try_complete_else_watch(operation, TIMEOUT, [number]) {
            Ok(_watched) => {
                self.counts.borrow_mut().attempts += 1;
                self.outboxes[number as usize % self.outboxes.len()].send(number);
            }
            Err(refused) => {
                *self.failed.borrow_mut() = Some(io::Error::other(refused.kind()));
                self.changed.notify_one();
            }
        }
    }

    fn receive(&self, answer: u64) {
        self.answer.set(Some(answer));
        if self.in_flight.check_and_complete(&answer) == 0 {
            self.counts.borrow_mut().late += 1;
        }
        self.answer.set(None);
    }

    fn end_one(self: &Rc<Self>) {
        self.open.set(self.open.get() - 1);
        self.fill();
        self.changed.notify_one();
    }

    /// Waits until a condition holds, or until something has failed.
    async fn until(&self, holds: impl Fn(&Self) -> bool) -> io::Result<()> {
        loop {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if holds(self) {
                return Ok(());
            }
            if self.closed.get() == self.outboxes.len() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.changed.notified().await;
        }
    }
}
