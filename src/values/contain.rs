//! Functions that run callbacks of the user and drop values of the user, and catch their panics.
//!
//! If a `Drop` panics while the thread unwinds from another panic, the process aborts. So
//! [`drop_each`] drops each of several values alone, under `catch_unwind`. Why not drop the
//! collection that holds them: when a value of a `Vec` panics, the `Vec` drops the other values
//! while it unwinds, and a second panic aborts the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ids::ShardId;

/// Runs a callback, waker or `Drop` of the user, and logs a panic. Returns false if it panicked.
pub(crate) fn contain(shard: ShardId, run: impl FnOnce()) -> bool {
    let Some(message) = catch(run) else { return true };
    log_callback(shard, &message);
    false
}

#[cold]
fn log_callback(shard: ShardId, message: &str) {
    tracing::error!(
        name: "callback-panicked",
        target: "corewheel::panic",
        shard = shard.number(), message, "a callback, waker or drop panicked"
    );
}

/// Drops values one at a time, and logs each panic. For code that knows no shard to count the
/// panics.
pub(crate) fn drop_each<V>(values: impl IntoIterator<Item = V>) {
    each(values, drop);
}

/// Calls `run` with each value, and logs each panic.
pub(crate) fn each<V>(values: impl IntoIterator<Item = V>, mut run: impl FnMut(V)) {
    for value in values {
        if let Some(message) = catch(|| run(value)) {
            log_value(&message);
        }
    }
}

#[cold]
fn log_value(message: &str) {
    tracing::error!(
        name: "value-panicked",
        target: "corewheel::panic",
        message, "a value panicked when it was dropped or woken"
    );
}

/// Runs code of a library that may panic. The error is the panic's message.
pub(crate) fn attempt<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let mut result = None;
    let message = catch(|| result = Some(run()));
    result.ok_or_else(|| message.unwrap_or_default())
}

/// Runs a closure. Returns the panic's message if it panics, else `None`.
fn catch(run: impl FnOnce()) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => None,
        Err(payload) => Some(message_of(payload)),
    }
}

/// Drops the payload of a panic, and returns its message.
#[cold]
fn message_of(payload: Box<dyn Any + Send>) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a message)")
        .to_owned();
    // The panic's payload may panic when it is dropped, and so may the payload of that panic.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    message
}

/// A value that is dropped under `catch_unwind`, for a field beside other values of the user.
pub(crate) struct Contained<V>(Option<V>);

impl<V> Contained<V> {
    pub(crate) fn new(value: V) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut V {
        self.0.as_mut().expect("the value is there until it is taken or dropped")
    }

    /// Gives the value away.
    pub(crate) fn take(&mut self) -> Option<V> {
        self.0.take()
    }
}

impl<V> Drop for Contained<V> {
    fn drop(&mut self) {
        drop_each(self.0.take());
    }
}

/// Values that are dropped one at a time, each under `catch_unwind`.
pub(crate) struct Each<V>(pub(crate) Vec<V>);

impl<V> Each<V> {
    /// Takes the values out.
    pub(crate) fn take(&mut self) -> Vec<V> {
        std::mem::take(&mut self.0)
    }
}

impl<V> Drop for Each<V> {
    fn drop(&mut self) {
        drop_each(self.take());
    }
}
