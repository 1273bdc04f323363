//! Sleeps that return no error: where the service has no timer, a thread keeps the deadline.
//!
//! The interfaces of tokio, hyper and quinn have sleeps whose output is `()`. Such a sleep must
//! neither be done early nor be forgotten when a shard is full or has ended. [`InfallibleSleep`] is
//! one for an adapter of the program's own.
//!
//! Invariants: a sleep is done when its deadline has come by the clock of the service, and not
//! before. A sleep that is pending is known to a shard, or to the fallback thread, or its task is
//! polled again at once.
//!
//! Cost: a sleep that its shard has room for costs what a [`Sleep`](crate::Sleep) does, and 16
//! bytes. Of the others, the *fallback thread* of the process keeps the deadlines in an ordered map
//! behind a lock. [`InfallibleSleep::fallback_count`] counts them; a server that sees the count
//! grow gives its shards more [capacity](crate::TimerServiceBuilder::capacity).

mod infallible;
mod thread;
#[cfg(feature = "test-util")]
mod tokio_clock;

pub use self::infallible::InfallibleSleep;
#[cfg(feature = "tokio")]
pub(crate) use self::infallible::{Moment, due_after, now};
