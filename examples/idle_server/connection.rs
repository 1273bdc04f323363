//! One connection: an echo under three deadlines.
//!
//! The deadlines are the [`ConnTimers`] of the shard that the connection lives on. What it receives
//! and writes is noted by a store; the wheel, which has one entry for all three, finds out when a
//! deadline would have come. When the connection ends, dropping them cancels them.
//!
//! Reads and writes are raced against the deadlines alike, so a client that does not read what it
//! is sent cannot hold its connection open.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;

use corewheel::{ConnError, ConnLimits, ConnTimers, DeadlineKind, Raced, Timers};

/// What a connection needs of its runtime.
///
/// A future that is dropped before it is done has neither read nor written anything.
pub(crate) trait Stream {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the connection in both directions.
    async fn close(self);
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    ClientLeft,
    ReadIdle,
    MaxAge,
    Failed(io::Error),
    NoTimer(ConnError),
    ShutDown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientLeft => f.write_str("the client left"),
            Self::ReadIdle => f.write_str("nothing was received for too long"),
            Self::MaxAge => f.write_str("it was old enough"),
            Self::Failed(error) => error.fmt(f),
            Self::NoTimer(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the server is shut down"),
        }
    }
}

/// What comes next, as long as the connection goes on.
enum Next<T> {
    Done(T),
    Heartbeat,
}

const BUFFER_BYTES: usize = 4_096;

/// Serves one client until it leaves or its time is up.
pub(crate) async fn serve(mut stream: impl Stream, timers: &Timers, limits: ConnLimits) -> End {
    let end = match timers.connection(limits) {
        Ok(deadlines) => {
            let Err(end) = echo(&mut stream, &deadlines).await;
            end
        }
        Err(error) => End::NoTimer(error),
    };
    stream.close().await;
    end
}

async fn echo(stream: &mut impl Stream, deadlines: &ConnTimers) -> Result<Infallible, End> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match race(deadlines, stream.read(&mut buffer)).await? {
            Next::Done(0) => return Err(End::ClientLeft),
            Next::Done(length) => {
                deadlines.touch_read();
                write_all(stream, &buffer[..length], deadlines).await?;
            }
            Next::Heartbeat => write_all(stream, b"PING\n", deadlines).await?,
        }
    }
}

async fn write_all(
    stream: &mut impl Stream,
    mut bytes: &[u8],
    deadlines: &ConnTimers,
) -> Result<(), End> {
    while !bytes.is_empty() {
        match race(deadlines, stream.write(bytes)).await? {
            Next::Done(0) => return Err(End::ClientLeft),
            Next::Done(length) => {
                bytes = &bytes[length..];
                deadlines.touch_write();
            }
            // The client has not taken what it was sent before; a PING could not reach it either.
            Next::Heartbeat => {}
        }
    }
    Ok(())
}

/// Waits for a read or a write, or for a deadline.
///
/// A read that is done when its deadline has come is in time. Old age comes before everything, or a
/// client that never pauses would never be too old.
async fn race<T>(
    deadlines: &ConnTimers,
    io: impl Future<Output = io::Result<T>>,
) -> Result<Next<T>, End> {
    match deadlines.race(io).await {
        Raced::Done(done) => done.map(Next::Done).map_err(End::Failed),
        Raced::Event(event) => match event.kind {
            DeadlineKind::Heartbeat => Ok(Next::Heartbeat),
            DeadlineKind::MaxAge => Err(End::MaxAge),
            _ => Err(End::ReadIdle),
        },
        Raced::Closed => Err(End::ShutDown),
    }
}
