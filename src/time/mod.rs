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
//! The start blocks that call for some milliseconds, in which it starts the threads. The time of
//! that sleep or interval begins afterwards. A deadline that the caller has computed before, as for
//! [`sleep_until`], does not wait for it. To have the service started by then, call [`handle`]
//! early in `main`.
//!
//! After a `fork`, the child has none of the service's threads: see
//! [`guide::choosing`](crate::guide::choosing).
//!
//! The default service ends with the process, and not before; no call shuts it down. A runtime that
//! ends drops its tasks, and their sleeps cancel their timers. [`set_service`] sets another service
//! before the first use, with a capacity or a tick of the program's choice. [`handle`] and
//! [`stats`] reach the service in either case.
//!
//! # Refused timers
//!
//! A sleep of tokio returns no error, so there is none where a shard is full or a service that was
//! set has ended. The sleep still waits for its deadline and is never done before: a *fallback
//! thread*, which starts when it is first needed, keeps it in an ordered map behind a lock, and
//! [`InfallibleSleep::fallback_count`] counts it. A service that is gone is logged once, as a
//! warning. A sleep that is reset tries the service again at its next poll.
//! If the system refuses that thread too, the task of the sleep is polled again and again until the
//! service has room or the deadline comes.
//!
//! [`InfallibleSleep::fallback_count`]: crate::fallback::InfallibleSleep::fallback_count
//!
//! # Tests with paused time
//!
//! With the feature `test-util`, which is for development dependencies, this module follows tokio's
//! clock in every current-thread runtime, and so in that of `#[tokio::test]`. It turns on tokio's
//! feature of that name.
//!
//! ```toml
//! [dev-dependencies]
//! # A checkout of the repository; "0.1" when it is on crates.io.
//! corewheel = { path = "path/to/corewheel", features = ["test-util"] }
//! ```
//!
//! Then tokio's functions `pause`, `advance` and `resume` are exported here too. A paused clock
//! moves on when no task can run, to the earliest timer, of this module or of tokio's. So a test
//! that mixes the two modules has one time, and an hour passes at once:
//!
//! ```
//! use corewheel::time::{self, Duration, Instant};
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() {
//!     let begin = Instant::now();
//!     let slow = tokio::time::sleep(Duration::from_secs(3_600));
//!     assert!(time::timeout(Duration::from_millis(100), slow).await.is_err());
//!     let slow = time::sleep(Duration::from_secs(3_600));
//!     assert!(tokio::time::timeout(Duration::from_millis(100), slow).await.is_err());
//!     assert_eq!(begin.elapsed(), Duration::from_millis(200));
//!
//!     let task = tokio::spawn(time::sleep(Duration::from_secs(58)));
//!     tokio::task::yield_now().await;
//!     time::advance(Duration::from_secs(58)).await;
//!     task.await.unwrap();
//!     assert_eq!(tokio::time::Instant::now(), Instant::now());
//! }
//! ```
//!
//! - [`Instant::now`] reads the clock of the runtime that the calling thread is in. It does so
//!   without the feature, too, where another package turns on tokio's; sleeps then do not.
//! - Until a runtime's clock is first paused, the service has a timer for each sleep, as in
//!   production, and tokio has another one. So tests in real time still test the service. From
//!   then on only tokio has a timer.
//! - In a runtime without timers, sleeps go by the service as without the feature; tokio prints a
//!   panic that this module catches, once for each such runtime. If the clock of such a runtime
//!   was paused, a sleep panics as that of tokio does.
//! - On multi-thread runtimes, whose clock cannot be paused, and without a runtime, time is the
//!   system's.
//!
//! The package `corewheel-http` follows tokio's clock as well, with hyper's timer, the layer of
//! tower and each [`InfallibleSleep`](crate::fallback::InfallibleSleep). A service with a
//! [`ManualClock`](crate::clock::ManualClock) does not. Everything else goes by the clock of its
//! service, also in a runtime whose clock is paused: the futures of
//! [`handle`] and of every other [`Handle`](crate::Handle), and with them connections, streams and
//! quinn, and a [`Deadline`](crate::Deadline). Tests of those have a `ManualClock` or the
//! simulation, the module `sim`.
//!
//! A build without the feature contains none of this.
//!
//! # What differs from `tokio::time`
//!
//! - Without the feature `test-util`, `pause`, `advance` and `resume` are absent, and those of
//!   tokio have no effect on this module.
//! - [`Sleep`], [`Timeout`] and [`Interval`] are this module's; [`Instant`] is tokio's. A function
//!   that takes a `tokio::time::Sleep`, or `tokio-stream`'s `IntervalStream`, needs tokio's own.
//! - `error::Error` is absent. No runtime is needed, so none is missed: tokio's functions panic
//!   outside of a runtime, and where the timers of the runtime are not enabled.
//! - [`Sleep`] is `Unpin`. Programs for tokio's compile unchanged.
//! - Deadlines are rounded up to a tick of the service, 1 ms unless another service is set, where
//!   tokio rounds up to its milliseconds.
//! - A timeout whose deadline has passed lets the runtime look at its sockets before the time is
//!   up, see [`corewheel::Timeout`](crate::Timeout#in-time). So a single poll, as by
//!   `now_or_never`, may be pending where that of tokio is not. While tokio's clock is paused, it
//!   is that of tokio.
//! - The first `poll_tick` of an [`interval`] may be ready at once. That of tokio is pending, and
//!   its task is woken within a millisecond.
//! - Sleeps that are due in the same tick end in no particular order.
//! - On 64-bit processors, without `test-util`, a [`Sleep`] has 64 bytes and an [`Interval`] 88. An
//!   `Interval` of tokio has 32, and a box for its sleep.

pub mod error;
mod interval;
mod service;
mod sleep;
mod timeout;

#[doc(no_inline)]
pub use std::time::Duration;
#[doc(no_inline)]
pub use tokio::time::Instant;

pub use self::interval::{Interval, interval, interval_at};
pub use self::service::{handle, set_service, stats};
pub use self::sleep::{Sleep, sleep, sleep_until};
pub use self::timeout::{Timeout, timeout, timeout_at};
pub use crate::kit::interval::MissedTickBehavior;
#[cfg(feature = "test-util")]
#[doc(no_inline)]
pub use tokio::time::{advance, pause, resume};
