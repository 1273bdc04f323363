//! The timers of one core of [corewheel](https://docs.rs/corewheel): a timing wheel, a generational
//! slab of timers and counters, owned by a [`Shard`].
//!
//! The crate is sans-IO: it has no clock, no thread, no atomic and no async. Time is an argument,
//! and `#![no_std]` lets the compiler check this. Use the crate directly to put a timing wheel into
//! your own loop around `poll` or `epoll`: the loop passes [`Shard::next_deadline`] as the timeout,
//! and after the wait calls [`Shard::advance`] and [`Shard::pop_expired`]. Use `corewheel` for the
//! service with threads, lanes between cores and a clock. [`TickLength`] converts between
//! nanoseconds and the ticks that a shard counts in. A [`List`] keeps values in another order.
//!
//! A shard calls no payload, and drops payloads only when it is dropped itself, as a `Vec` drops
//! its elements: if the `Drop` of one payload panics, the others are dropped while the thread
//! unwinds, and a second panic aborts the process. A caller with payloads whose `Drop` may panic
//! takes them out one at a time with [`Shard::drain`] and drops each under `catch_unwind`, as
//! `corewheel` does.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod counters;
mod key;
mod list;
mod outcome;
mod shard;
mod slab;
mod tick;
mod wheel;

pub use config::{ConfigError, ShardConfig, WheelKind};
pub use counters::Counters;
pub use key::TimerKey;
pub use list::List;
pub use outcome::{ArmOutcome, Budget, CancelOutcome, Expired, Full, ResetOutcome};
pub use shard::Shard;
pub use tick::{Tick, TickLength};
