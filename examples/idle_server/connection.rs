//! One connection: an echo under three deadlines.
//!
//! Each deadline is a [`Sleep`] of the shard that the connection lives on. What the connection does
//! resets one of them to a later moment, which is one store into the timer; the wheel finds out
//! when the old moment comes. When the connection ends, dropping them cancels them.
//!
//! Reads and writes are raced against the deadlines alike, so a client that does not read what it
//! is sent cannot hold its connection open.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::{Sleep, SleepError, Timers};

/// What a connection needs of its runtime.
///
/// A future that is dropped before it is done has neither read nor written anything.
pub(crate) trait Stream {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Ends the connection in both directions.
    async fn close(self);
}

/// How long a connection may do nothing, and how old it may become; none for as long as it likes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) read_idle: Option<Duration>,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    ClientLeft,
    ReadIdle,
    MaxAge,
    Failed(io::Error),
    NoTimer(SleepError),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientLeft => f.write_str("the client left"),
            Self::ReadIdle => f.write_str("nothing was received for too long"),
            Self::MaxAge => f.write_str("it was old enough"),
            Self::Failed(error) => error.fmt(f),
            Self::NoTimer(error) => error.fmt(f),
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
pub(crate) async fn serve(mut stream: impl Stream, timers: &Timers, limits: Limits) -> End {
    let mut deadlines = Deadlines::new(timers, limits);
    let Err(end) = echo(&mut stream, &mut deadlines).await;
    stream.close().await;
    end
}

async fn echo(stream: &mut impl Stream, deadlines: &mut Deadlines) -> Result<Infallible, End> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match deadlines.race(stream.read(&mut buffer)).await? {
            Next::Done(0) => return Err(End::ClientLeft),
            Next::Done(length) => {
                deadlines.received();
                write_all(stream, &buffer[..length], deadlines).await?;
            }
            Next::Heartbeat => write_all(stream, b"PING\n", deadlines).await?,
        }
    }
}

async fn write_all(
    stream: &mut impl Stream,
    mut bytes: &[u8],
    deadlines: &mut Deadlines,
) -> Result<(), End> {
    while !bytes.is_empty() {
        match deadlines.race(stream.write(bytes)).await? {
            Next::Done(0) => return Err(End::ClientLeft),
            Next::Done(length) => {
                bytes = &bytes[length..];
                deadlines.written();
            }
            // The client has not taken what it was sent before; a PING could not reach it either.
            Next::Heartbeat => deadlines.written(),
        }
    }
    Ok(())
}

/// The timers of a connection.
#[derive(Debug)]
struct Deadlines {
    limits: Limits,
    read_idle: Option<Sleep<Infallible>>,
    heartbeat: Option<Sleep<Infallible>>,
    max_age: Option<Sleep<Infallible>>,
}

impl Deadlines {
    fn new(timers: &Timers, limits: Limits) -> Self {
        let sleep = |limit: Option<Duration>| limit.map(|limit| timers.sleep(limit));
        Self {
            limits,
            read_idle: sleep(limits.read_idle),
            heartbeat: sleep(limits.heartbeat),
            max_age: sleep(limits.max_age),
        }
    }

    /// Something was received.
    fn received(&mut self) {
        restart(&mut self.read_idle, self.limits.read_idle);
    }

    /// Something was written.
    fn written(&mut self) {
        restart(&mut self.heartbeat, self.limits.heartbeat);
    }

    /// Waits for a read or a write, or for a deadline.
    ///
    /// A read that is done when its deadline has come is in time. Old age comes before everything,
    /// or a client that never pauses would never be too old.
    async fn race<T>(&mut self, io: impl Future<Output = io::Result<T>>) -> Result<Next<T>, End> {
        let mut io = pin!(io);
        poll_fn(|cx| {
            if let Poll::Ready(due) = poll_deadline(&mut self.max_age, cx) {
                return Poll::Ready(Err(due.map_or_else(End::NoTimer, |()| End::MaxAge)));
            }
            if let Poll::Ready(done) = io.as_mut().poll(cx) {
                return Poll::Ready(done.map(Next::Done).map_err(End::Failed));
            }
            if let Poll::Ready(due) = poll_deadline(&mut self.read_idle, cx) {
                return Poll::Ready(Err(due.map_or_else(End::NoTimer, |()| End::ReadIdle)));
            }
            poll_deadline(&mut self.heartbeat, cx)
                .map(|due| due.map(|()| Next::Heartbeat).map_err(End::NoTimer))
        })
        .await
    }
}

/// Puts a deadline off. While its timer is pending that is one store; after it has fired, it is a
/// new timer.
fn restart(deadline: &mut Option<Sleep<Infallible>>, limit: Option<Duration>) {
    if let (Some(deadline), Some(limit)) = (deadline, limit) {
        deadline.reset(limit);
    }
}

fn poll_deadline(
    deadline: &mut Option<Sleep<Infallible>>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), SleepError>> {
    deadline.as_mut().map_or(Poll::Pending, |deadline| Pin::new(deadline).poll(cx))
}
