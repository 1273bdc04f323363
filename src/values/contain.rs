//! Runs the callbacks of the user, and drops the values of the user, so that a panic ends here.
//!
//! A panic that meets another one, in a `Drop` that runs while the thread unwinds, aborts the
//! process. So several values are never dropped in one go: each is dropped alone, under
//! `catch_unwind`, as [`drop_each`] does it. Why not leave that to the collection that holds them:
//! a `Vec` goes on with the next value when one has panicked, but it is unwinding by then.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::handle::ShardId;

/// Runs a callback, waker or `Drop` of the user's. Returns false if it panicked.
pub(crate) fn contain(shard: ShardId, run: impl FnOnce()) -> bool {
    let Some(message) = catch(run) else { return true };
    tracing::error!(shard = shard.number(), message, "a timer's task panicked");
    false
}

/// Drops values one at a time; each that panics is logged. For a place where no shard is known that
/// would count it.
pub(crate) fn drop_each<V>(values: impl IntoIterator<Item = V>) {
    each(values, drop);
}

/// Runs a closure with each value, and logs each panic.
pub(crate) fn each<V>(values: impl IntoIterator<Item = V>, mut run: impl FnMut(V)) {
    for value in values {
        if let Some(message) = catch(|| run(value)) {
            tracing::error!(message, "a value panicked when it was dropped or woken");
        }
    }
}

/// Runs something of a library's that may panic. The error is the panic's message.
#[allow(dead_code, reason = "only some executors may panic while they are made")]
pub(crate) fn attempt<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let mut result = None;
    let message = catch(|| result = Some(run()));
    result.ok_or_else(|| message.unwrap_or_default())
}

/// Returns the message if a closure panics.
fn catch(run: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(run)).err()?;
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a message)")
        .to_owned();
    // The payload may panic when it is dropped, and so may the payload of that panic.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    Some(message)
}

/// A value that is dropped under `catch_unwind`, for one that lies beside another.
pub(crate) struct Contained<V>(Option<V>);

impl<V> Contained<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut V {
        self.0.as_mut().expect("the value is there until it is dropped")
    }
}

impl<V> Drop for Contained<V> {
    fn drop(&mut self) {
        drop_each(self.0.take());
    }
}

/// Values that are dropped one at a time if their holder is dropped with them.
pub(crate) struct Each<V>(pub(crate) Vec<V>);

impl<V> Each<V> {
    /// Gives the values away.
    pub(crate) fn take(&mut self) -> Vec<V> {
        std::mem::take(&mut self.0)
    }
}

impl<V> Drop for Each<V> {
    fn drop(&mut self) {
        drop_each(self.take());
    }
}
