//! The payload as a shard stores it in the slot of its timer, and the tables beside the slots.
//!
//! A value of the user's type lies in the slot: no allocation and no dynamic call, on this core or
//! from another. A callback is boxed once and lies in a table, and so does the waker of a future;
//! the slot holds an index then, so that a slot for an 8-byte value stays within 32 bytes.

use std::convert::Infallible;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::Waker;

use slab::Slab;

use super::callback::{Call, Payload as Carried, SendCall};
use super::parts::PartId;
use super::timers::Timers;

/// A payload, as the slot of its timer holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<T> {
    Value(T),
    /// An index into the table of callbacks.
    Call(u32),
    /// An index into the table of sleepers.
    Sleeper(u32),
    /// The numbers of a nursery and of its slot, where the waker of a future lies.
    Slot(u16, u32),
    /// A part of the shard, and an index there.
    Part(PartId, u32),
}

// Most timers carry a value, so the other variants must not make the slot larger.
const _: () = assert!(size_of::<Option<Stored<NonZeroU64>>>() == 16);
const _: () = assert!(size_of::<Option<Stored<Infallible>>>() == 8);

/// The tables of a shard.
pub(crate) struct Tables<T: 'static> {
    pub(super) calls: Slab<Call<T>>,
    /// Futures of this core.
    pub(super) sleepers: Slab<Sleeper>,
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self { calls: Slab::new(), sleepers: Slab::new() }
    }
}

/// A future that waits for a timer of this core.
pub(super) enum Sleeper {
    Waiting(Waker),
    Fired,
    Closed,
}

impl<T> Tables<T> {
    /// How many callbacks wait for a timer of their own.
    #[cfg(feature = "sim")]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a future waits for its timer.
    #[inline]
    pub(super) fn is_waiting(&self, index: u32) -> bool {
        matches!(self.sleepers.get(index as usize), Some(Sleeper::Waiting(_)))
    }

    /// Ends a sleep as `end` says. Returns the waker, if the future was still waiting.
    fn end_sleep(&mut self, index: u32, end: Sleeper) -> Option<Waker> {
        let sleeper = self.sleepers.get_mut(index as usize)?;
        match std::mem::replace(sleeper, end) {
            Sleeper::Waiting(waker) => Some(waker),
            Sleeper::Fired | Sleeper::Closed => None,
        }
    }
}

/// The payload of a timer that does not fire, before it is known where it goes.
pub(crate) type Taken<T> = Carried<T, Call<T>>;

/// The payload of a timer that has expired, to be delivered.
pub(crate) enum Due<T: 'static> {
    Value(T),
    Call(Call<T>),
    /// The waker of a future; `None` if nothing waits any more.
    Wake(Option<Waker>),
}

/// The payload of a timer that does not fire, for another thread.
pub(crate) type Remote<T> = Carried<T, SendCall<T>>;

/// Starts a future on the shard's own core.
pub(crate) type Job<T> = Box<dyn FnOnce(Timers<T>) -> LocalFuture + Send>;
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

impl<T: 'static> Stored<T> {
    pub(super) fn of_call(call: SendCall<T>, tables: &mut Tables<T>) -> Self {
        Self::Call(tables.calls.insert(Call::Send(call)) as u32)
    }

    /// The value; `None` if the payload is in the tables.
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

    /// Takes the payload of a timer that will not fire out of the tables. Calls `wake` with the
    /// waker of a future that waits for the timer, if there is one.
    #[inline]
    pub(super) fn take(self, tables: &mut Tables<T>, wake: impl FnOnce(Waker)) -> Taken<T> {
        match self {
            Self::Value(value) => Carried::Value(value),
            Self::Call(index) => Carried::Callback(tables.calls.remove(index as usize)),
            Self::Sleeper(index) => {
                if let Some(waker) = tables.end_sleep(index, Sleeper::Closed) {
                    wake(waker);
                }
                Carried::Local
            }
            // The shard wakes the future, and the part tells its users itself.
            Self::Slot(..) | Self::Part(..) => Carried::Local,
        }
    }

    /// Takes the payload of an expired timer out of the tables. `is_early` if a shutdown fires the
    /// timer before its deadline.
    #[inline]
    pub(super) fn expire(self, tables: &mut Tables<T>, is_early: bool) -> Due<T> {
        match self {
            Self::Value(value) => Due::Value(value),
            Self::Call(index) => Due::Call(tables.calls.remove(index as usize)),
            Self::Sleeper(index) => {
                let end = if is_early { Sleeper::Closed } else { Sleeper::Fired };
                Due::Wake(tables.end_sleep(index, end))
            }
            Self::Slot(..) | Self::Part(..) => Due::Wake(None),
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
