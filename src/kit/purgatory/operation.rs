//! What waits in a purgatory: operations, as types or as closures.

use std::fmt;

/// Something that is to be done when it can be done, or given up when its time is up.
///
/// Exactly one of [`completed`](Self::completed) and [`expired`](Self::expired) is called, unless
/// the operation is cancelled and handed back, or its purgatory is dropped with it.
///
/// Nothing is borrowed while any of the three runs: they may watch, check, cancel and drop whatever
/// they like, the purgatory that they wait in included. One that panics is counted by the shard and
/// harms nobody else; an operation that panics when it is tried is taken as not complete.
///
/// An operation that holds its own [`Purgatory`](crate::Purgatory) keeps it alive for as long as it
/// waits there; let it hold a [`WeakPurgatory`](crate::WeakPurgatory).
pub trait Operation: 'static {
    /// Looks whether it can be completed now, and does what that takes. Called when it comes to the
    /// purgatory, and each time that one of its keys is checked, until it says yes.
    fn try_complete(&mut self) -> bool;

    /// It is complete. Called once, right after it has said so, when it is in no list any more.
    fn completed(self);

    /// Its time is up. Called once, in the turn in which its timer fires; it is not tried again
    /// before.
    fn expired(self);
}

/// How an operation of closures ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completion {
    /// By an event: it was tried and complete.
    Event,
    /// By its deadline.
    Deadline,
}

/// An operation made of two closures, for a purgatory that holds operations of many kinds. Both are
/// boxed.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use corewheel::{Completion, Operation, OperationFn};
///
/// let acknowledged = Rc::new(Cell::new(0));
/// let seen = Rc::clone(&acknowledged);
/// let mut write = OperationFn::new(
///     move || seen.get() >= 2,
///     |how| assert_eq!(how, Completion::Event),
/// );
/// assert!(!write.try_complete());
/// acknowledged.set(2);
/// assert!(write.try_complete());
/// write.completed();
/// ```
pub struct OperationFn {
    is_complete: Box<dyn FnMut() -> bool>,
    done: Box<dyn FnOnce(Completion)>,
}

impl OperationFn {
    /// With what looks whether it is complete, and what is called once at its end.
    pub fn new(
        is_complete: impl FnMut() -> bool + 'static,
        done: impl FnOnce(Completion) + 'static,
    ) -> Self {
        Self { is_complete: Box::new(is_complete), done: Box::new(done) }
    }
}

impl Operation for OperationFn {
    fn try_complete(&mut self) -> bool {
        (self.is_complete)()
    }

    fn completed(self) {
        (self.done)(Completion::Event);
    }

    fn expired(self) {
        (self.done)(Completion::Deadline);
    }
}

impl fmt::Debug for OperationFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperationFn(..)")
    }
}
