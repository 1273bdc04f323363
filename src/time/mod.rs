//! A drop-in for `tokio::time`: its names, signatures and outputs, over timers of this crate.
//!
//! ```
//! // Before: use tokio::time::{self, Duration, Instant};
//! use corewheel::time::{self, Duration, Instant};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
//! # runtime.block_on(async {
//! let mut interval = time::interval(Duration::from_millis(2));
//! let mut sleep = std::pin::pin!(time::sleep(Duration::from_millis(20)));
//! let mut ticks = 0;
//! loop {
//!     tokio::select! {
//!         _ = interval.tick() => ticks += 1,
//!         () = &mut sleep => break,
//!     }
//! }
//! assert!(ticks > 0);
//! let deadline = Instant::now() + Duration::from_millis(5);
//! let never = std::future::pending::<()>();
//! assert!(time::timeout_at(deadline, never).await.is_err());
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`sleep`], [`sleep_until`], [`timeout`], [`timeout_at`], [`interval`] and [`interval_at`] work
//! on every runtime and without one, on every thread. They are forms of
//! [`Handle`](crate::Handle)'s futures whose outputs are tokio's. A `Handle` is better where a
//! program can pass it on: its futures return an error where a shard is full, and its timers may
//! have a class.
//!
//! # The service
//!
//! The first sleep, timeout or interval of the process starts a *default service*, as
//! [`TimerService::beside_runtime`](crate::TimerService::beside_runtime) makes it: a thread for
//! each 8 cpus that the process may use, at least one, not pinned, with room for 2²⁰ timers each.
//! If it cannot start, for instance because the system refuses its threads, that call panics with
//! the reason, and the next call tries again.
//!
//! The default service ends with the process, and not before; no call shuts it down. A runtime that
//! ends drops its tasks, and their sleeps cancel their timers. [`set_service`] sets another service
//! before the first use, with a capacity or a tick of the program's choice. [`handle`] and
//! [`stats_source`] reach the service in either case.
//!
//! # Refused timers
//!
//! A sleep of tokio returns no error, so there is none where a shard is full or a service that was
//! set has ended. The sleep still waits for its deadline and is never done before: a *fallback
//! thread*, which starts when it is first needed, keeps it in an ordered map behind a lock, and
//! [`fallback_count`] counts it. A service that is gone is logged once, as
//! a warning. A sleep that is reset tries the service again at its next poll.
//! If the system refuses that thread too, the task of the sleep is polled again and again until the
//! service has room or the deadline comes.
//!
//! # What differs from `tokio::time`
//!
//! - `pause`, `advance` and `resume` are absent, and those of tokio have no effect on this module.
//!   Tests with a clock of their own use a [`ManualClock`](crate::clock::ManualClock) and a
//!   [`Handle`](crate::Handle), or the simulation.
//! - The types are this module's. An [`Instant`] converts by `into()` to and from tokio's. A
//!   function that takes a `tokio::time::Sleep`, or `tokio-stream`'s `IntervalStream`, needs
//!   tokio's own.
//! - `error::Error` is absent. No runtime is needed, so none is missed: tokio's functions panic
//!   outside of a runtime, and where the timers of the runtime are not enabled.
//! - [`Sleep`] is `Unpin`. Programs for tokio's compile unchanged.
//! - Deadlines are rounded up to a tick of the service, 1 ms unless another service is set, where
//!   tokio rounds up to its milliseconds.
//! - [`FutureExt`] is in addition: `future.timeout(when)`.

pub mod error;
mod instant;
mod interval;
mod service;
mod sleep;
mod timeout;

#[doc(no_inline)]
pub use std::time::Duration;

pub use self::instant::Instant;
pub use self::interval::{Interval, interval, interval_at};
pub use self::service::{handle, set_service, stats_source};
pub use self::sleep::{Sleep, sleep, sleep_until};
pub use self::timeout::{FutureExt, Timeout, timeout, timeout_at};
pub use crate::fallback::fallback_count;
pub use crate::kit::interval::MissedTickBehavior;
