//! What one core of [corewheel](https://docs.rs/corewheel) owns: a timing wheel, a generational
//! slab of timers, what is due, and counters.
//!
//! Everything here is sans-IO. There is no clock, no thread, no atomic and no async in this crate;
//! time is an argument, and the compiler keeps the promise by leaving `std` out. Use it directly to
//! put a timing wheel into a loop of your own around `poll` or `epoll`:
//! [`Shard::next_deadline`] goes in as the timeout, [`Shard::advance`] and [`Shard::pop_expired`]
//! come out. Use `corewheel` for the service with threads, lanes between cores and a clock.
//!
//! A [`Shard`] is the place to begin.
//!
//! No task runs here, and a task is dropped only with its shard, as a `Vec` drops what it holds: if
//! one panics in its `Drop`, the others are dropped while the thread unwinds, and a second panic
//! aborts the process. A caller whose tasks may panic there takes them out with [`Shard::drain`],
//! which hands them out one at a time, and drops each under `catch_unwind`, as `corewheel` does.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod config;
mod counters;
mod key;
mod outcome;
mod shard;
mod slab;
mod tick;
mod wheel;

pub use config::{ConfigError, ShardConfig, WheelKind};
pub use counters::Counters;
pub use key::TimerKey;
pub use outcome::{ArmOutcome, Budget, CancelOutcome, Expired, Full, ResetOutcome};
pub use shard::{Drain, Shard};
pub use tick::{Tick, TickLength};
