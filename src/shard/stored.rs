//! The payload as a shard stores it in the slot of its timer, and the table beside the slots.
//!
//! A value of the user's type lies in the slot: no allocation and no dynamic call, on this core or
//! from another. A callback is boxed once and lies in a table; the slot holds an index then, so
//! that a slot for an 8-byte value stays within 32 bytes.

use std::convert::Infallible;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;

use slab::Slab;

use super::callback::{Call, Payload as Carried, SendCall};
use super::part::PartId;
use super::timers::Timers;

/// A payload, as the slot of its timer holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<T> {
    Value(T),
    /// An index into the table of callbacks.
    Call(u32),
    /// A part of the shard, and an index there.
    Part(PartId, u32),
}

// Most timers carry a value, so the other variants must not make the slot larger.
const _: () = assert!(size_of::<Option<Stored<NonZeroU64>>>() == 16);
const _: () = assert!(size_of::<Option<Stored<Infallible>>>() == 8);

/// The callbacks of a shard that wait for a timer of their own.
pub(crate) type Calls<T> = Slab<Call<T>>;

/// The payload of a timer that has ended, before it is known where it goes.
pub(crate) type Taken<T> = Carried<T, Call<T>>;

/// The payload of a timer that does not fire, for another thread.
pub(crate) type Remote<T> = Carried<T, SendCall<T>>;

/// Starts a future on the shard's own core.
pub(crate) type Job<T> = Box<dyn FnOnce(Timers<T>) -> LocalFuture + Send>;
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

impl<T: 'static> Stored<T> {
    pub(super) fn of_call(call: SendCall<T>, calls: &mut Calls<T>) -> Self {
        Self::Call(calls.insert(Call::Send(call)) as u32)
    }

    /// The value; `None` if the payload is in the table.
    #[inline]
    pub(super) fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Takes a payload that uses no table. `Err` with any other payload.
    #[inline]
    pub(super) fn take_plain(self) -> Result<Taken<T>, Self> {
        match self {
            Self::Value(value) => Ok(Carried::Value(value)),
            other => Err(other),
        }
    }

    /// Takes the payload of a timer that has ended out of the table.
    #[inline]
    pub(super) fn take(self, calls: &mut Calls<T>) -> Taken<T> {
        match self {
            Self::Value(value) => Carried::Value(value),
            Self::Call(index) => Carried::Callback(calls.remove(index as usize)),
            // The part tells its users itself.
            Self::Part(..) => Carried::Local,
        }
    }
}

/// Makes a payload ready for another thread. Also returns the part of it that must be dropped
/// on this thread.
pub(super) fn into_remote<T>(taken: Taken<T>) -> (Remote<T>, Option<Taken<T>>) {
    match taken {
        Carried::Value(value) => (Carried::Value(value), None),
        Carried::Callback(Call::Send(call)) => (Carried::Callback(call), None),
        Carried::Callback(call) => (Carried::Local, Some(Carried::Callback(call))),
        Carried::Local => (Carried::Local, None),
    }
}
