//! The sockets of each runtime, as the example servers use them.
//!
//! The examples include this module by its path. To make a server of your own, copy it with the
//! runtime that you want.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use corewheel::ConnTimers;
use corewheel::conn::Raced;

#[cfg(feature = "compio")]
pub(crate) mod on_compio;
#[cfg(target_os = "linux")]
pub(crate) mod on_glommio;
pub(crate) mod on_tokio;

/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// A runtime's sockets and tasks.
pub(crate) trait Network: 'static {
    type Listener: 'static;
    type Stream: Stream + 'static;

    /// Listens with `SO_REUSEPORT`, so that every shard can. What the system has for a slow client
    /// is bound.
    fn bind(address: SocketAddr) -> io::Result<Self::Listener>;
    /// Where a listener listens.
    fn address(listener: &Self::Listener) -> io::Result<SocketAddr>;
    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;
    async fn connect(address: SocketAddr) -> io::Result<Self::Stream>;
    /// Starts a task on this core.
    fn spawn(task: impl Future<Output = ()> + 'static);
}

/// A connection's socket.
///
/// A `read` or `write` that is dropped before it is done has neither read nor written a byte.
pub(crate) trait Stream {
    /// The address of the peer, unless the connection has ended.
    fn peer(&self) -> Option<SocketAddr>;
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Writes, or waits for the next event of the connection. The limits of writing are judged by
    /// what the peer has acknowledged.
    async fn race_write(&mut self, conn: &ConnTimers, bytes: &[u8]) -> Raced<io::Result<usize>>;
    /// Ends the connection in both directions.
    async fn close(self);
}
