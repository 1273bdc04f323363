//! One connection: an echo with a read-idle limit, a heartbeat and a greatest age. To make a server
//! of it, replace [`answer`]: while that works, the connection is not idle, and its client gets
//! PINGs.
//!
//! The deadlines are the [`ConnTimers`] of the shard that accepted the connection. Each read and
//! each write is one store; the three deadlines are one timer of the shard. When the connection
//! ends, the drop of its [`ConnTimers`] cancels them.
//!
//! Reads and writes are raced against the deadlines. A client that does not read what it is sent is
//! reset after `--write-timeout`; one that reads slowly is not.
//!
//! When the service drains, the connection is told by the event of its greatest age. It ends when
//! it has answered the request that it works on, or is cut at the end of the drain.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::pin;

use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, RefusedKind, Timers};
use futures_lite::future::{or, yield_now};
use tokio::sync::watch;

use crate::host::network::Stream;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    ClientLeft,
    ReadIdle,
    /// The client has taken nothing of what it was sent.
    Stalled,
    MaxAge,
    /// The service drains, and no request was in progress.
    Drained,
    /// The drain is over, and a request was in progress.
    Cut(Cut),
    Failed(io::Error),
    NoTimer(RefusedKind),
    ShutDown,
}

/// A request was cut.
#[derive(Debug)]
pub(crate) struct Cut;

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientLeft => f.write_str("the client left"),
            Self::ReadIdle => f.write_str("nothing was received for too long"),
            Self::Stalled => f.write_str("the client took nothing for too long"),
            Self::MaxAge => f.write_str("the connection has reached its greatest age"),
            Self::Drained => f.write_str("the server drains"),
            Self::Cut(Cut) => f.write_str("a request was cut at the end of the drain"),
            Self::Failed(error) => error.fmt(f),
            Self::NoTimer(error) => error.fmt(f),
            Self::ShutDown => f.write_str("the server is shut down"),
        }
    }
}

const BUFFER_BYTES: usize = 4_096;
const PING: &[u8] = b"PING\n";
/// How often other tasks run before a read finds what has come. Glommio's sockets take some turns.
const LOOKS_MAX: usize = 16;

/// Serves one client until it leaves, a deadline ends the connection, or the server stops and
/// drains.
pub(crate) async fn serve(
    mut stream: impl Stream,
    timers: &Timers,
    limits: ConnLimits,
    stopped: &watch::Receiver<()>,
) -> End {
    let end = match timers.connection(limits) {
        Ok(timers) => {
            let conn = Conn { timers, stopped, is_told: Cell::new(false) };
            let Err(end) = echo(&mut stream, &conn).await;
            end
        }
        Err(error) => End::NoTimer(error),
    };
    stream.close().await;
    end
}

/// The deadlines of one connection, and whether it is to end.
struct Conn<'a> {
    timers: ConnTimers,
    /// Has lost its sender when the server stops.
    stopped: &'a watch::Receiver<()>,
    /// Whether the connection ends when no request is in progress.
    is_told: Cell<bool>,
}

async fn echo(stream: &mut impl Stream, conn: &Conn<'_>) -> Result<Infallible, End> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match read(stream, &mut buffer, conn).await? {
            Some(0) => return Err(End::ClientLeft),
            Some(length) => {
                conn.timers.touch_read();
                // The client waits for the server. During the write the server waits for the
                // client, so the guard is dropped before: a client that does not read is found.
                let in_flight = conn.timers.begin_request();
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

/// Waits for the next request. A connection that is to end takes what has come already, and waits
/// for no more.
async fn read(
    stream: &mut impl Stream,
    buffer: &mut [u8],
    conn: &Conn<'_>,
) -> Result<Option<usize>, End> {
    if !conn.is_told.get() {
        let read = race(conn, stream.read(buffer)).await;
        if !conn.is_told.get() {
            return read;
        }
    }
    let nothing_comes = async {
        for _ in 0..LOOKS_MAX {
            yield_now().await;
        }
        Err(End::Drained)
    };
    let read = async { stream.read(buffer).await.map(Some).map_err(End::Failed) };
    or(read, nothing_comes).await
}

async fn write_all(stream: &mut impl Stream, mut bytes: &[u8], conn: &Conn<'_>) -> Result<(), End> {
    while !bytes.is_empty() {
        let _writing = conn.timers.begin_write();
        let length = loop {
            let raced = stream.race_write(&conn.timers, bytes).await;
            // At a heartbeat the same write goes on, and its time, too: a client that has not read
            // what it was sent before would get no PING either.
            if let Some(length) = happened(conn, raced)? {
                break length;
            }
        };
        if length == 0 {
            return Err(End::ClientLeft);
        }
        bytes = &bytes[length..];
    }
    Ok(())
}

/// Waits for a future, or for a deadline.
async fn race<T>(
    conn: &Conn<'_>,
    future: impl Future<Output = io::Result<T>>,
) -> Result<Option<T>, End> {
    happened(conn, conn.timers.race(pin!(future)).await)
}

/// What came of a read or a write; `None` when a heartbeat is due, or when the connection was told
/// to end.
fn happened<T>(conn: &Conn<'_>, raced: Raced<io::Result<T>>) -> Result<Option<T>, End> {
    match raced {
        Raced::Done(done) => done.map(Some).map_err(End::Failed),
        Raced::Closed => Err(End::ShutDown),
        Raced::Event(event) => match event.kind {
            DeadlineKind::Heartbeat => Ok(None),
            DeadlineKind::MaxAge if conn.stopped.has_changed().is_err() => {
                conn.is_told.set(true);
                Ok(None)
            }
            DeadlineKind::MaxAge => Err(End::MaxAge),
            DeadlineKind::AgeGrace => Err(End::Cut(Cut)),
            DeadlineKind::WriteTimeout => Err(End::Stalled),
            _ => Err(End::ReadIdle),
        },
    }
}
