//! What the tests of several packages share: a service whose shards a test drives by a manual
//! clock, the hosts of a shard, wakers that count, streams over both sides of their timers, and
//! seeds.

#![allow(missing_debug_implementations, reason = "no test shows a helper")]

#[cfg(unix)]
pub mod child;
mod elsewhere;
#[cfg(target_os = "linux")]
pub mod held;
#[cfg(target_os = "linux")]
mod hosts;
mod lab;
mod log;
pub mod operation_fn;
pub mod seeds;
pub mod sockets;
pub mod stream;
mod wakers;

use std::time::Duration;

use corewheel::{ShardId, ShutdownPolicy};

pub use self::elsewhere::Elsewhere;
#[cfg(target_os = "linux")]
pub use self::hosts::{Host, Running, block_on_tokio, glommio_works, runtimes};
pub use self::lab::{
    BoxedHandler, Eager, Guard, Lab, OnDrop, builder, check_law, key_of, nanos_of, next, shared,
    slot_of, ticks_of, unfired, values_of,
};
pub use self::log::logged;
pub use self::wakers::{
    Alarm, block_on, look, poll, poll_with, wait_for, wait_until, waker_of, waker_that,
    within_patience,
};

/// How long a test waits for an expected event before it fails. Far longer than the event takes, so
/// that no test fails because the machine is busy.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// A delay that is longer than any test runs.
pub const FAR: Duration = Duration::from_hours(1);
/// The first shard.
pub const SHARD: ShardId = ShardId::new(0);
/// The second shard.
pub const OTHER: ShardId = ShardId::new(1);

/// Each policy of a shutdown.
pub const POLICIES: [ShutdownPolicy; 3] =
    [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];

/// So many milliseconds.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
