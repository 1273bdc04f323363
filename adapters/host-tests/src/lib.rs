//! The tests that a host of shards passes: [`check`], and [`check_sockets`] where its runtime has
//! sockets.
//!
//! ```
//! use corewheel::Runtime;
//! use corewheel_host_tests::{PATIENCE, check};
//!
//! // Plain threads have no executor, so tests of futures are left out.
//! check(Runtime::Thread, PATIENCE);
//! ```
//!
//! What is tested:
//!
//! - No timer is early: values, callbacks, sleeps and resets, of the shard's own thread and others.
//! - Other threads wake a shard that sleeps: with nothing to do, past a later deadline, and many
//!   threads at once.
//! - Under a flood of requests, of tasks that are always ready, and of a peer that sends without a
//!   pause, timers fire and other tasks run.
//! - After a stall of the thread, sockets are read before a connection is idle.
//! - A client that reads slowly is kept by a limit of writing, and one that stops is reset.
//! - Futures run, and are dropped when the shard ends, on its thread.
//! - A shard that is shut down ends.
//!
//! What a shard does by itself on any host, such as the order of its timers and the policies of a
//! shutdown, the tests of `corewheel` have.
//!
//! No test asserts how soon something happens. A host that does not do what it must lets a test
//! wait for its patience, and the panic says for what.
#![forbid(unsafe_code)]

mod bed;
mod floods;
mod futures;
mod sockets;
mod times;
mod wakes;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewheel::ConnTimers;
use corewheel::conn::Raced;
use corewheel::host::Engine;

use self::bed::Bed;

/// How long a test waits for what a host must do. Far longer than that takes, so that no test fails
/// because the machine is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The sockets of the runtime that is tested. Its methods are called in futures on a shard.
///
/// ```no_run
/// use corewheel::conn::Raced;
/// use corewheel::{ConnTimers, Runtime};
/// use corewheel_host_tests::{PATIENCE, Sockets, check_sockets};
/// use std::io;
/// use std::net::SocketAddr;
/// use std::pin::pin;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio::net::TcpStream;
///
/// #[derive(Clone, Copy)]
/// struct OfTokio;
///
/// impl Sockets for OfTokio {
///     type Stream = TcpStream;
///
///     async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
///         TcpStream::connect(address).await
///     }
///
///     async fn read(self, stream: &mut TcpStream, most: usize) -> io::Result<usize> {
///         stream.read(&mut vec![0; most]).await
///     }
///
///     async fn race_write(
///         self,
///         stream: &mut TcpStream,
///         conn: &ConnTimers,
///         bytes: Vec<u8>,
///     ) -> Raced<io::Result<()>> {
///         let (reader, mut writer) = stream.split();
///         conn.race_write(reader.as_ref(), pin!(writer.write_all(&bytes))).await
///     }
/// }
///
/// check_sockets(Runtime::Tokio, OfTokio, PATIENCE);
/// ```
pub trait Sockets: Copy + Send + 'static {
    /// A socket that is connected.
    type Stream: 'static;

    /// Connects to an address of this machine.
    fn connect(self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Waits until something can be read, and reads at most this many bytes. Returns how many; zero
    /// at the end of the stream.
    fn read(
        self,
        stream: &mut Self::Stream,
        most: usize,
    ) -> impl Future<Output = io::Result<usize>>;

    /// Writes all of these bytes, or until the next event of a connection, by
    /// [`ConnTimers::race_write`] with the stream's socket.
    fn race_write(
        self,
        stream: &mut Self::Stream,
        conn: &ConnTimers,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Raced<io::Result<()>>>;
}

/// Tests a host, whose engine this is, for some seconds, but for its sockets. Futures are tested if
/// it [has an executor](Engine::has_executor). A test waits for as long as `patience` says for what
/// the host must do: for [`PATIENCE`], or for less to see that a host fails.
///
/// # Panics
///
/// The host does not do what it must, with a sentence that says what. The threads of the shard that
/// was tested are left as they are.
pub fn check(engine: impl Engine, patience: Duration) {
    let bed = Bed::new(Arc::new(engine), patience);
    times::check(&bed);
    wakes::check(&bed);
    floods::check(&bed);
    if bed.has_executor() {
        futures::check(&bed);
    }
}

/// Tests the sockets of a host that has an executor, as [`check`] tests the rest.
///
/// # Panics
///
/// As `check` does.
pub fn check_sockets<S: Sockets>(engine: impl Engine, sockets: S, patience: Duration) {
    let bed = Arc::new(Bed::new(Arc::new(engine), patience));
    let beside = Arc::clone(&bed);
    // It waits for most of its time. A host that fails another test may never end it.
    let slow = thread::spawn(move || sockets::slow_reader(&beside, sockets));
    sockets::check(&bed, sockets);
    if let Err(panic) = slow.join() {
        resume_unwind(panic);
    }
}

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
