//! One connection: an echo with a read-idle limit, a heartbeat and a greatest age. To make a server
//! of it, replace [`answer`]: while that works, the connection is not idle, and its client gets
//! PINGs.
//!
//! The deadlines are the [`ConnTimers`] of the shard that accepted the connection. Each read and
//! each write is one store; the three deadlines are one timer of the shard. When the connection
//! ends, the drop of its [`ConnTimers`] cancels them.
//!
//! Reads and writes are raced against the deadlines alike, so a client that does not read what it
//! is sent cannot hold its connection open.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::pin;

use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, RefusedKind, Timers};

/// A connection's socket on either runtime.
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
    NoTimer(RefusedKind),
    ShutDown,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientLeft => f.write_str("the client left"),
            Self::ReadIdle => f.write_str("nothing was received for too long"),
            Self::MaxAge => f.write_str("the connection has reached its greatest age"),
            Self::Failed(error) => error.fmt(f),
            Self::NoTimer(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the server is shut down"),
        }
    }
}

const BUFFER_BYTES: usize = 4_096;
const PING: &[u8] = b"PING\n";

/// Serves one client until it leaves or a deadline ends the connection.
pub(crate) async fn serve(mut stream: impl Stream, timers: &Timers, limits: ConnLimits) -> End {
    let end = match timers.connection(limits) {
        Ok(conn) => {
            let Err(end) = echo(&mut stream, &conn).await;
            end
        }
        Err(error) => End::NoTimer(error),
    };
    stream.close().await;
    end
}

async fn echo(stream: &mut impl Stream, conn: &ConnTimers) -> Result<Infallible, End> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match race(conn, stream.read(&mut buffer)).await? {
            Some(0) => return Err(End::ClientLeft),
            Some(length) => {
                conn.touch_read();
                // The client waits for the server. During the write the server waits for the
                // client, so the guard is dropped before: a client that does not read is found.
                let in_flight = conn.begin_request();
                let mut work = pin!(answer(&buffer[..length]));
                let reply = loop {
                    match race(conn, &mut work).await? {
                        Some(reply) => break reply,
                        None => write_all(stream, PING, conn).await?,
                    }
                };
                drop(in_flight);
                write_all(stream, reply, conn).await?;
            }
            None => write_all(stream, PING, conn).await?,
        }
    }
}

/// Works on what has come, for as long as it takes. An echo needs no time.
fn answer(request: &[u8]) -> impl Future<Output = io::Result<&[u8]>> {
    ready(Ok(request))
}

async fn write_all(
    stream: &mut impl Stream,
    mut bytes: &[u8],
    conn: &ConnTimers,
) -> Result<(), End> {
    while !bytes.is_empty() {
        match race(conn, stream.write(bytes)).await? {
            Some(0) => return Err(End::ClientLeft),
            Some(length) => {
                bytes = &bytes[length..];
                conn.touch_write();
            }
            // The client has not read what it was sent before; a PING could not reach it either.
            None => {}
        }
    }
    Ok(())
}

/// Waits for a read or a write, or for a deadline; `None` when a heartbeat is due.
async fn race<T>(
    conn: &ConnTimers,
    io: impl Future<Output = io::Result<T>>,
) -> Result<Option<T>, End> {
    match conn.race(io).await {
        Raced::Done(done) => done.map(Some).map_err(End::Failed),
        Raced::Closed => Err(End::ShutDown),
        Raced::Event(event) => match event.kind {
            DeadlineKind::Heartbeat => Ok(None),
            DeadlineKind::MaxAge => Err(End::MaxAge),
            _ => Err(End::ReadIdle),
        },
    }
}
