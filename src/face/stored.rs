//! What the shard stores for each timer, and the tables beside its slots.
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

use super::callback::{Call, Callback, RemoteTask, SendCall, Task};
use super::calls::Owners;
use super::client::Client;
use super::timers::Timers;
use crate::shard::hooks::PartId;
use crate::shard::payload::{Packed, Payload};
use crate::values::migration::MoveError;

/// What the shard stores for a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<T> {
    Value(T),
    /// An index into the table of callbacks.
    Call(u32),
    /// An index into the table of owners, and a number for the owner's callback.
    Shared(u16, u32),
    /// An index into the table of sleepers.
    Sleeper(u32),
    /// A part of the shard, and an index there.
    Part(PartId, u32),
}

// Most timers hold a value, so none is to be larger for what others hold.
const _: () = assert!(size_of::<Option<Stored<NonZeroU64>>>() == 16);
const _: () = assert!(size_of::<Option<Stored<Infallible>>>() == 8);

/// The tables of a shard.
pub(crate) struct Tables<T: 'static> {
    pub(super) calls: Slab<Call<T>>,
    pub(super) owners: Owners<T>,
    pub(super) sleepers: Slab<Sleeper>,
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self { calls: Slab::new(), owners: Owners::new(), sleepers: Slab::new() }
    }
}

/// A future that waits for a timer of this core.
pub(super) enum Sleeper {
    Waiting(Waker),
    Fired,
    Closed,
}

impl<T> Tables<T> {
    /// Ends a sleep as `end` says. Returns the waker, if the future was still waiting.
    fn end_sleep(&mut self, index: u32, end: Sleeper) -> Option<Waker> {
        let sleeper = self.sleepers.get_mut(index as usize)?;
        match std::mem::replace(sleeper, end) {
            Sleeper::Waiting(waker) => Some(waker),
            Sleeper::Fired | Sleeper::Closed => None,
        }
    }
}

/// What a timer delivers that has expired.
pub(crate) enum Due<T: 'static> {
    Value(T),
    Call(Call<T>),
    /// The waker of a future; `None` if nothing waits any more.
    Wake(Option<Waker>),
}

/// Starts a future on the shard's own core.
pub(crate) type Job<T> = Box<dyn FnOnce(Timers<T>) -> LocalFuture + Send>;
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

impl<T: 'static> Payload for Stored<T> {
    type Value = T;
    type Call = SendCall<T>;
    type Tables = Tables<T>;
    type Taken = Task<T>;
    type Remote = RemoteTask<T>;
    type Due = Due<T>;
    type Job = Job<T>;
    type Outbox = Client<T>;

    #[inline]
    fn of_value(value: T) -> Self {
        Self::Value(value)
    }

    fn of_call(call: SendCall<T>, tables: &mut Tables<T>) -> Self {
        Self::Call(tables.calls.insert(Call::Send(call)) as u32)
    }

    #[inline]
    fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }

    #[inline]
    fn part(&self) -> Option<(PartId, u32)> {
        match self {
            Self::Part(part, index) => Some((*part, *index)),
            _ => None,
        }
    }

    #[inline]
    fn take_plain(self) -> Result<Task<T>, Self> {
        match self {
            Self::Value(value) => Ok(Task::Value(value)),
            other => Err(other),
        }
    }

    #[inline]
    fn take(self, tables: &mut Tables<T>, wake: impl FnOnce(Waker)) -> Task<T> {
        match self {
            Self::Value(value) => Task::Value(value),
            Self::Call(index) => Task::Callback(Callback(tables.calls.remove(index as usize))),
            Self::Shared(owner, number) => match tables.owners.take(owner, number) {
                Some(call) => Task::Callback(Callback(call)),
                None => Task::Sleep,
            },
            Self::Sleeper(index) => {
                if let Some(waker) = tables.end_sleep(index, Sleeper::Closed) {
                    wake(waker);
                }
                Task::Sleep
            }
            // The part tells its users itself.
            Self::Part(..) => Task::Sleep,
        }
    }

    #[inline]
    fn expire(self, tables: &mut Tables<T>, is_early: bool) -> Due<T> {
        match self {
            Self::Value(value) => Due::Value(value),
            Self::Call(index) => Due::Call(tables.calls.remove(index as usize)),
            Self::Shared(owner, number) => match tables.owners.take(owner, number) {
                Some(call) => Due::Call(call),
                None => Due::Wake(None),
            },
            Self::Sleeper(index) => {
                let end = if is_early { Sleeper::Closed } else { Sleeper::Fired };
                Due::Wake(tables.end_sleep(index, end))
            }
            Self::Part(..) => Due::Wake(None),
        }
    }

    fn check_travels(&self, tables: &Tables<T>) -> Result<(), MoveError> {
        match self {
            Self::Value(_) => Ok(()),
            Self::Call(index) => match tables.calls.get(*index as usize) {
                Some(Call::Send(_)) => Ok(()),
                _ => Err(MoveError::LocalCallback),
            },
            Self::Shared(..) => Err(MoveError::LocalCallback),
            Self::Sleeper(_) => Err(MoveError::Sleep),
            // The only part whose entries lie in the wheel is that of connections.
            Self::Part(..) => Err(MoveError::Connection),
        }
    }

    fn pack(self, tables: &mut Tables<T>) -> Packed<Self> {
        match self {
            Self::Value(value) => Packed::Value(value),
            Self::Call(index) => match tables.calls.remove(index as usize) {
                Call::Send(call) => Packed::Call(call),
                _ => unreachable!("a callback that cannot travel is not packed"),
            },
            Self::Shared(..) | Self::Sleeper(_) | Self::Part(..) => {
                unreachable!("a payload that cannot travel is not packed")
            }
        }
    }

    fn into_remote(task: Task<T>) -> (RemoteTask<T>, Option<Task<T>>) {
        match task {
            Task::Value(value) => (RemoteTask::Value(value), None),
            Task::Callback(Callback(Call::Send(call))) => (RemoteTask::Callback(call), None),
            Task::Callback(call) => (RemoteTask::LeftAtHome, Some(Task::Callback(call))),
            Task::Sleep => (RemoteTask::LeftAtHome, None),
        }
    }
}
