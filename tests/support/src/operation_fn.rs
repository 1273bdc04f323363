//! An operation of two closures, for tests of whatever holds operations.

use corewheel_kit::purgatory::Operation;

/// How an operation of closures ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// By an event, in time.
    Event,
    /// By its deadline.
    Deadline,
}

/// An operation of two closures: whether it is complete, and what its end does.
pub struct OperationFn {
    is_complete: Box<dyn FnMut() -> bool>,
    done: Box<dyn FnOnce(Completion)>,
}

impl OperationFn {
    /// An operation that asks the first closure, and ends by the second.
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

impl std::fmt::Debug for OperationFn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperationFn(..)")
    }
}
