//! Shards of [`corewheel`] on compio runtimes.
//!
//! ```
//! use corewheel::{ShutdownPolicy, TimerService};
//! use corewheel_compio::Compio;
//! use std::time::Duration;
//!
//! let service = TimerService::builder().shards(1).runtime(Compio).start()?;
//! let slept = service.spawn_on(service.shard_for(0), |timers| async move {
//!     // Sockets and files of compio may be used here.
//!     timers.sleep(Duration::from_millis(5)).await
//! })?;
//! slept.wait()??;
//! service.shutdown(ShutdownPolicy::Drop)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Compio`] starts a pinned runtime for each shard.
//! - [`AttachCompio`] drives a shard in a runtime that is there already.
//!
//! # Streams
//!
//! A stream of compio reads into a buffer that the kernel owns meanwhile, and
//! [`TimedIo`](https://docs.rs/corewheel/latest/corewheel/stream/struct.TimedIo.html) lends its
//! buffers for one poll. So a stream goes under `TimedIo` by compio's own `AsyncStream`, which has
//! buffers of its own, and tokio-util's `compat`, with the feature `tokio` of `corewheel`. A read
//! costs a copy more. [`ConnTimers::race`](corewheel::ConnTimers::race) needs neither.
#![forbid(unsafe_code)]

mod host;

pub use self::host::{AttachCompio, Compio};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
