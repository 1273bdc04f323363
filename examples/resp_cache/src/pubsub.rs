//! The subscribers of one core: which channels and patterns each has, and the messages that it has
//! not been sent yet.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::glob;
use crate::notify::Event;
use crate::protocol::{Proto, Reply};

/// A connection that may have subscriptions.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) proto: Cell<Proto>,
    /// Messages that its connection has not taken.
    outbox: RefCell<BytesMut>,
    /// The most bytes of the outbox.
    outbox_max: usize,
    /// Whether the outbox was full, so that messages are lost and the connection must end.
    overflowed: Cell<bool>,
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
    pub(crate) fn new(outbox_max: usize) -> Rc<Self> {
        Rc::new(Self {
            proto: Cell::new(Proto::Resp2),
            outbox: RefCell::default(),
            outbox_max,
            overflowed: Cell::new(false),
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

    /// Moves the messages behind `out`. False if the client has not read its messages, and some are
    /// lost.
    pub(crate) fn take(&self, out: &mut BytesMut) -> bool {
        let mut outbox = self.outbox.borrow_mut();
        if out.is_empty() {
            std::mem::swap(out, &mut outbox);
        } else {
            out.extend_from_slice(&outbox);
            outbox.clear();
        }
        !self.overflowed.get()
    }

    fn send(&self, pattern: Option<&Bytes>, event: &Event) {
        let mut outbox = self.outbox.borrow_mut();
        if outbox.len() + event.message.len() > self.outbox_max {
            self.overflowed.set(true);
        } else {
            let mut reply = Reply { out: &mut outbox, proto: self.proto.get() };
            if let Some(pattern) = pattern {
                reply.push(4);
                reply.bulk(b"pmessage");
                reply.bulk(pattern);
            } else {
                reply.push(3);
                reply.bulk(b"message");
            }
            reply.bulk(&event.channel);
            reply.bulk(&event.message);
        }
        self.ready.notify_one();
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

    /// Sends a message to the subscribers of its channel, and returns how many there are.
    pub(crate) fn publish(&self, event: &Event) -> i64 {
        let of_channel = self.by_name[0].get(&event.channel).map(|all| (None, all));
        let matching =
            self.by_name[1].iter().filter(|(name, _)| glob::matches(name, &event.channel));
        let all = of_channel.into_iter().chain(matching.map(|(name, all)| (Some(name), all)));
        let mut sent = 0;
        for (name, subscriber) in all.flat_map(|(name, all)| all.iter().map(move |s| (name, s))) {
            subscriber.send(name, event);
            sent += 1;
        }
        sent
    }
}
