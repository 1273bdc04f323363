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
//! [`Compio`] starts a pinned runtime for each shard.
//!
//! # Streams
//!
//! A stream of compio reads into a buffer that the kernel owns meanwhile, and
//! [`TimedIo`](https://docs.rs/corewheel/latest/corewheel/stream/struct.TimedIo.html) lends its
//! buffers for one poll. So a stream goes under `TimedIo` by compio's own `AsyncStream`, which has
//! buffers of its own, and tokio-util's `compat`, with the feature `tokio` of `corewheel`. A read
//! costs a copy more.
//!
//! [`ConnTimers::race`](corewheel::ConnTimers::race) needs neither. The read is pinned and lent to
//! each race, as its drop would lose what the kernel has put into its buffer. A write is lent to
//! [`race_write`](corewheel::ConnTimers::race_write) with its stream, which is asked what the peer
//! has acknowledged when a limit of the write has passed:
//!
//! ```
//! use compio::BufResult;
//! use compio::io::{AsyncRead, AsyncWriteExt};
//! use compio::net::TcpStream;
//! use corewheel::conn::{ConnTimers, Raced};
//! use corewheel::DeadlineKind;
//! use std::io;
//! use std::pin::pin;
//!
//! /// Echoes, and tells a peer that is quiet that the server lives.
//! async fn echo(stream: TcpStream, conn: ConnTimers) -> io::Result<()> {
//!     let (mut reader, mut writer) = (&stream, &stream);
//!     let mut buffer = Vec::with_capacity(4096);
//!     loop {
//!         let mut read = pin!(reader.read(buffer));
//!         let BufResult(read, filled) = loop {
//!             match conn.race(read.as_mut()).await {
//!                 Raced::Done(done) => break done,
//!                 Raced::Event(event) if event.kind == DeadlineKind::Heartbeat => {
//!                     writer.write_all("PING").await.0?;
//!                     conn.touch_write();
//!                 }
//!                 Raced::Event(_) | Raced::Closed => return Ok(()),
//!             }
//!         };
//!         if read? == 0 {
//!             return Ok(());
//!         }
//!         conn.touch_read();
//!         let _writing = conn.begin_write();
//!         let mut write = pin!(writer.write_all(filled));
//!         let BufResult(written, mut back) = loop {
//!             match conn.race_write(&stream, write.as_mut()).await {
//!                 Raced::Done(done) => break done,
//!                 Raced::Event(event) if event.kind == DeadlineKind::Heartbeat => {}
//!                 Raced::Event(_) | Raced::Closed => return Ok(()),
//!             }
//!         };
//!         written?;
//!         back.clear();
//!         buffer = back;
//!     }
//! }
//! ```
#![forbid(unsafe_code)]

mod host;

pub use self::host::Compio;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
