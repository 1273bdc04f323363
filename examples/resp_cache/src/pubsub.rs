//! The subscribers of one core: which channels and patterns each has, and the messages that it has
//! not been sent yet.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::clients::{Client, Part};
use crate::glob;
use crate::notify::Event;
use crate::protocol::{Proto, Reply};

/// A connection that may have subscriptions.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) client: Arc<Client>,
    pub(crate) proto: Cell<Proto>,
    /// Messages that its connection has not taken, each with the pattern that it matches. They
    /// share their bytes with those of other subscribers.
    outbox: RefCell<VecDeque<(Option<Bytes>, Event)>>,
    /// The bytes of the outbox.
    waiting: Cell<usize>,
    /// Whether it has messages.
    pub(crate) ready: Notify,
    names: RefCell<[BTreeSet<Bytes>; 2]>,
}

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

impl Subscriber {
    pub(crate) fn new(client: Arc<Client>) -> Rc<Self> {
        Rc::new(Self {
            client,
            proto: Cell::new(Proto::Resp2),
            outbox: RefCell::default(),
            waiting: Cell::new(0),
            ready: Notify::new(),
            names: RefCell::default(),
        })
    }

    /// How many subscriptions it has.
    pub(crate) fn count(&self) -> usize {
        self.names.borrow().iter().map(BTreeSet::len).sum()
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<Bytes> {
        self.names.borrow()[kind as usize].iter().cloned().collect()
    }

    /// Writes messages behind `out` until there are `enough` bytes. The others stay, and count
    /// towards the limit of the client.
    pub(crate) fn take(&self, out: &mut BytesMut, enough: usize) {
        let mut outbox = self.outbox.borrow_mut();
        let mut reply = Reply { out, proto: self.proto.get() };
        while reply.out.len() < enough
            && let Some((pattern, event)) = outbox.pop_front()
        {
            self.hold(self.waiting.get() - size(pattern.as_ref(), &event));
            if let Some(pattern) = pattern {
                reply.push(4);
                reply.bulk(b"pmessage");
                reply.bulk(&pattern);
            } else {
                reply.push(3);
                reply.bulk(b"message");
            }
            reply.bulk(&event.channel);
            reply.bulk(&event.message);
        }
        if outbox.is_empty() {
            *outbox = VecDeque::new();
        } else {
            self.ready.notify_one();
        }
    }

    /// Adds a message. A client that has not read more bytes of them than `max` ends, and its
    /// messages are dropped.
    fn send(&self, pattern: Option<&Bytes>, event: &Event, max: usize) {
        if self.client.is_over() {
            return;
        }
        let waiting = self.waiting.get() + size(pattern, event);
        if waiting > max {
            self.client.end_as_slow();
            self.outbox.take();
            self.hold(0);
        } else {
            self.outbox.borrow_mut().push_back((pattern.cloned(), event.clone()));
            self.hold(waiting);
        }
        self.ready.notify_one();
    }

    fn hold(&self, waiting: usize) {
        self.waiting.set(waiting);
        self.client.account(Part::Messages, waiting);
    }
}

/// What a message takes in an outbox.
fn size(pattern: Option<&Bytes>, event: &Event) -> usize {
    pattern.map_or(0, Bytes::len) + event.bytes() + size_of::<Option<Bytes>>()
}

/// Events of one core that wait to be sent to another.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    waiting: RefCell<VecDeque<Event>>,
    /// Their bytes.
    bytes: Cell<usize>,
    /// Whether there are events.
    pub(crate) ready: Notify,
}

impl Outgoing {
    /// The most bytes of events that wait.
    const BYTES_MAX: usize = 64 << 20;
    /// The most events of one message, and about the most bytes.
    const SENT_MAX: usize = 1 << 10;
    const SENT_BYTES: usize = 256 << 10;

    /// Adds as many events as there is room for, and returns how many are dropped.
    pub(crate) fn push(&self, events: &[Event]) -> u64 {
        let (mut waiting, mut dropped) = (self.waiting.borrow_mut(), 0);
        for event in events {
            let bytes = self.bytes.get() + event.bytes();
            if bytes > Self::BYTES_MAX {
                dropped += 1;
            } else {
                waiting.push_back(event.clone());
                self.bytes.set(bytes);
            }
        }
        self.ready.notify_one();
        dropped
    }

    /// The first events, for one message; `None` if there are none.
    pub(crate) fn take(&self) -> Option<Vec<Event>> {
        let (mut waiting, mut taken) = (self.waiting.borrow_mut(), 0);
        let first = waiting.iter().take(Self::SENT_MAX);
        let count = first.take_while(|event| {
            let is_first = taken == 0;
            taken += event.bytes();
            is_first || taken <= Self::SENT_BYTES
        });
        let count = count.count();
        let events: Vec<_> = waiting.drain(..count).collect();
        self.bytes.set(self.bytes.get() - events.iter().map(Event::bytes).sum::<usize>());
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        (!events.is_empty()).then_some(events)
    }
}

/// The subscriptions of one core.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_name: [BTreeMap<Bytes, Vec<Rc<Subscriber>>>; 2],
    /// How many clients have subscriptions.
    pub(crate) subscribers: u64,
}

impl Registry {
    pub(crate) fn subscribe(&mut self, subscriber: &Rc<Subscriber>, kind: Kind, name: &[u8]) {
        let name = Bytes::copy_from_slice(name);
        let is_first = subscriber.count() == 0;
        if subscriber.names.borrow_mut()[kind as usize].insert(name.clone()) {
            subscriber.client.count_subscription(kind as usize, &name, true);
            let named = &mut self.by_name[kind as usize];
            named.entry(name).or_default().push(Rc::clone(subscriber));
            self.subscribers += u64::from(is_first);
        }
    }

    pub(crate) fn unsubscribe(&mut self, subscriber: &Rc<Subscriber>, kind: Kind, name: &[u8]) {
        if !subscriber.names.borrow_mut()[kind as usize].remove(name) {
            return;
        }
        self.subscribers -= u64::from(subscriber.count() == 0);
        subscriber.client.count_subscription(kind as usize, name, false);
        let named = &mut self.by_name[kind as usize];
        if let Some(all) = named.get_mut(name) {
            all.retain(|other| !Rc::ptr_eq(other, subscriber));
            if all.is_empty() {
                named.remove(name);
            }
        }
    }

    pub(crate) fn leave(&mut self, subscriber: &Rc<Subscriber>) {
        for kind in [Kind::Channel, Kind::Pattern] {
            for name in subscriber.names(kind) {
                self.unsubscribe(subscriber, kind, &name);
            }
        }
    }

    /// Sends a message to the subscribers of its channel, and returns how many there are. For none
    /// of them may more than `max` bytes wait.
    pub(crate) fn publish(&self, event: &Event, max: usize) -> i64 {
        let of_channel = self.by_name[0].get(&event.channel).map(|all| (None, all));
        let matching =
            self.by_name[1].iter().filter(|(name, _)| glob::matches(name, &event.channel));
        let all = of_channel.into_iter().chain(matching.map(|(name, all)| (Some(name), all)));
        let mut sent = 0;
        for (name, subscriber) in all.flat_map(|(name, all)| all.iter().map(move |s| (name, s))) {
            subscriber.send(name, event, max);
            sent += 1;
        }
        sent
    }
}
