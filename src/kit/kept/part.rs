//! The values that are kept on one shard, and the commands that have come for them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::Shared;
use super::room::Permit;
use crate::face::part::{Part, PartHandle, PartSender, Wants};
use crate::face::task::ResultSender;
use crate::face::timers::Timers;

/// A sender for the result of a command. The command is dropped before it has run only if its shard
/// has ended.
pub(super) type Sender<R> = ResultSender<R, fn() -> bool>;

/// What has come from a handle: a command, or that no handle is left for a value.
type Received = Box<dyn FnOnce(&KeptPart)>;

/// The values of a shard. The part holds the shard until the shard ends and drops its parts.
pub(super) struct KeptPart {
    shard: PartHandle,
    values: RefCell<Slab<Rc<dyn Any>>>,
    /// What has come and has not run, oldest first.
    received: RefCell<VecDeque<Received>>,
}

impl KeptPart {
    /// The values of a shard.
    pub(super) fn of<T: Send + 'static>(timers: &Timers<T>) -> Rc<Self> {
        timers.shared_part(|shard| Self {
            shard,
            values: RefCell::default(),
            received: RefCell::default(),
        })
    }

    /// Keeps a value, and returns its place.
    pub(super) fn keep(&self, value: Rc<dyn Any>) -> usize {
        self.values.borrow_mut().insert(value)
    }

    /// Sends messages to this part.
    pub(super) fn sender(&self) -> PartSender<Self> {
        self.shard.sender()
    }

    /// A command has come, or the release of a value.
    pub(super) fn accept(&self, received: impl FnOnce(&Self) + 'static) {
        self.received.borrow_mut().push_back(Box::new(received));
    }

    /// Drops the value in a place, for which no handle is left.
    pub(super) fn release(&self, place: usize) {
        let value = self.values.borrow_mut().try_remove(place);
        self.shard.drop_each(value);
    }

    /// Runs what has come first. False if nothing has.
    fn run_next(&self) -> bool {
        let Some(next) = self.received.borrow_mut().pop_front() else { return false };
        next(self);
        true
    }
}

impl Part for KeptPart {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        if self.received.borrow().is_empty() { Wants::Nothing } else { Wants::Delivery }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        self.run_next();
    }

    /// Commands that were accepted run before the timers are taken out. No more come, since the
    /// shard is closed.
    fn closing(&self) {
        while self.run_next() {}
    }

    fn closed(&self, _is_dead: bool) {
        // Dropping a command replies to its caller, and dropping a value runs code of the user.
        self.shard.drop_each(self.received.take());
        self.shard.drop_each(self.values.take().into_iter().map(|(_, value)| value));
    }
}

/// A command that calls a closure once.
pub(super) struct Run<C, F, R> {
    /// Keeps the value until the command has run.
    pub(super) to: Arc<Shared>,
    pub(super) permit: Permit,
    pub(super) call: F,
    pub(super) sender: Sender<R>,
    pub(super) value: PhantomData<fn(&C)>,
}

impl<C: 'static, R: 'static, F: FnOnce(&C) -> R> Run<C, F, R> {
    pub(super) fn run(self, part: &KeptPart) {
        let Self { to, permit, call, sender, .. } = self;
        let Some(value) = part.values.borrow().get(to.place).map(Rc::clone) else { return };
        let value = value.downcast_ref().expect("the handles of a value name its type");
        sender.run(
            |run| part.shard.contain(run),
            || {
                let result = call(value);
                // A caller that has the result finds the room free.
                drop(permit);
                Ok(result)
            },
        );
    }
}
