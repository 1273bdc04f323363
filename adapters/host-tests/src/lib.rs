//! The tests that a host of shards passes, by one call: [`check`].
//!
//! ```
//! use corewheel::Runtime;
//! use corewheel_host_tests::{NoSockets, check};
//!
//! // Plain threads have no executor, so tests of futures and sockets are left out.
//! check(Runtime::Thread, NoSockets);
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
//! wait for [`PATIENCE`], and the panic says for what.
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
use std::thread::{self, JoinHandle};
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
/// use corewheel_host_tests::{Sockets, check};
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
/// check(Runtime::Tokio, OfTokio);
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

/// For a host without sockets: the tests of sockets are left out.
#[derive(Clone, Copy, Debug)]
pub struct NoSockets;

impl Sockets for NoSockets {
    type Stream = ();

    async fn connect(self, _address: SocketAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn read(self, _stream: &mut (), _most: usize) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn race_write(
        self,
        _stream: &mut (),
        _conn: &ConnTimers,
        _bytes: Vec<u8>,
    ) -> Raced<io::Result<()>> {
        Raced::Closed
    }
}

/// Tests a host, whose engine this is, for some seconds. Futures and sockets are tested if it
/// [has an executor](Engine::has_executor).
///
/// # Panics
///
/// The host does not do what it must, with a sentence that says what. The threads of the shard that
/// was tested are left as they are.
pub fn check<S: Sockets>(engine: impl Engine, sockets: S) {
    check_within(engine, sockets, PATIENCE);
}

/// Tests a host as [`check`] does, with another patience than [`PATIENCE`]: to see that a host
/// fails.
///
/// # Panics
///
/// As `check` does.
pub fn check_within<S: Sockets>(engine: impl Engine, sockets: S, patience: Duration) {
    let bed = Arc::new(Bed::new(Arc::new(engine), patience));
    let has_sockets = bed.has_executor() && size_of::<S::Stream>() > 0;
    // It waits for most of its time. A host that fails another test may never end it.
    let slow = has_sockets.then(|| {
        let bed = Arc::clone(&bed);
        thread::spawn(move || sockets::slow_reader(&bed, sockets))
    });
    times::check(&bed);
    wakes::check(&bed);
    floods::check(&bed);
    if bed.has_executor() {
        futures::check(&bed);
    }
    if has_sockets {
        sockets::check(&bed, sockets);
    }
    if let Some(Err(panic)) = slow.map(JoinHandle::join) {
        resume_unwind(panic);
    }
}

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
