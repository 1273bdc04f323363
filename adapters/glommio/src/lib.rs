//! Shards of [`corewheel`] on glommio executors, on Linux with `io_uring`.
//!
//! ```
//! use corewheel::{ShutdownPolicy, TimerService};
//! use corewheel_glommio::Runtime;
//! use std::time::Duration;
//!
//! // Glommio where `io_uring` works, else tokio.
//! let builder = TimerService::builder().shards(1).runtime(Runtime::GlommioOrTokio);
//! let service = builder.start()?;
//! println!("{:?}: {}", service.runtime(), service.runtime_reason());
//! let slept = service.spawn_on(service.shard_for(0), |timers| async move {
//!     // A socket or a file of the runtime that was chosen may be used here.
//!     timers.sleep(Duration::from_millis(5)).await
//! })?;
//! slept.wait()??;
//! service.shutdown(ShutdownPolicy::Drop)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Runtime`] starts a pinned executor for each shard, or falls back to tokio or plain threads.
//! - [`attach`] drives a shard in an executor that is there already.
//! - [`schedule_fn_into`] runs a callback in another task queue of the shard's executor.
//! - [`SocketOf`] names the socket of a stream, so that a limit of a write cuts no slow reader.
//!
//! The crate uses `glommio-ng`, the release that glommio's community maintains: glommio 0.9.0, of
//! 2024, compiles neither with the kernel headers nor with the C library of 2026. Types of the two
//! crates do not unify. A program that makes executors of its own takes them from the same crate:
//!
//! ```toml
//! glommio = { package = "glommio-ng", version = "0.12", default-features = false }
//! ```
//!
//! On other systems than Linux the crate has [`Runtime`] alone, which finds that glommio cannot
//! work there.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod attach;
#[cfg(target_os = "linux")]
mod host;
mod runtime;
#[cfg(target_os = "linux")]
mod socket_of;
#[cfg(target_os = "linux")]
mod task_queue;
#[cfg(target_os = "linux")]
mod wake_again;

#[cfg(target_os = "linux")]
pub use self::attach::attach;
pub use self::runtime::Runtime;
#[cfg(target_os = "linux")]
pub use self::socket_of::SocketOf;
#[cfg(target_os = "linux")]
pub use self::task_queue::schedule_fn_into;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
