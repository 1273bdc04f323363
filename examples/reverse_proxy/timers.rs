//! The timers behind the timeouts: this crate's, tokio's, or none. All other modules are the same
//! for the three.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use corewheel::adapters::hyper::HyperTimer;
use corewheel::class::TimerClass;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamControl, StreamLimits, StreamTimeout, TimedIo};
use corewheel::{Handle, RefusedKind, TimeoutError};
use hyper::server::conn::http1;
use hyper_util::client::legacy;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;

use crate::options::{Limits, TimerKind};
use crate::spawn::Spawner;

/// Times for the heads of requests, where hyper keeps them.
pub(crate) const HEAD: TimerClass = TimerClass::new("head");
/// The deadlines of connections.
pub(crate) const CONNECTION: TimerClass = TimerClass::new("connection");
/// Times for the upstream server: to connect, and of unused connections.
pub(crate) const UPSTREAM: TimerClass = TimerClass::new("upstream");

/// The most bytes that a connection buffers in each direction. With hyper's 400 KiB, some thousands
/// of clients that do not read take gigabytes before a deadline comes.
const BUFFER_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Timers {
    Corewheel { head: Handle, connection: Handle, upstream: Handle },
    Tokio,
    None,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Timed(TimedIo<TcpStream>),
    Plain(TcpStream),
}

/// The control of a client's connection; `None` if it has no deadlines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control(pub(crate) Option<Arc<StreamControl>>);

impl Control {
    /// Whether a limit for what the client sends has ended the connection.
    pub(crate) fn is_read_late(&self) -> bool {
        use StreamTimeout::{FirstByte, Head, Idle, ReadIdle, ReadRate};
        let reached = self.0.as_ref().and_then(|control| control.limit_reached());
        matches!(reached, Some(FirstByte(_) | Head(_) | Idle(_) | ReadIdle(_) | ReadRate(_)))
    }

    /// Gives a future time, by the connection's own timer if it has one; zero stands for ever.
    pub(crate) async fn timeout<F: Future>(
        &self,
        timers: Timers,
        time: Duration,
        future: F,
    ) -> Result<F::Output, Late> {
        match &self.0 {
            Some(control) if !time.is_zero() => {
                control.timeout(time, future).await.map_err(Late::from)
            }
            _ => timers.timeout(time, future).await,
        }
    }
}

/// Why a future has no output.
#[derive(Debug)]
pub(crate) enum Late {
    /// The time was up.
    TimeUp,
    /// The timer service is full or has ended.
    NoTimer(RefusedKind),
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeUp => f.write_str("the time was up"),
            Self::NoTimer(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for Late {}

impl From<TimeoutError> for Late {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed(_) => Self::TimeUp,
            TimeoutError::NoTimer(refused) => Self::NoTimer(refused),
        }
    }
}

/// `None` for a timeout that is turned off.
fn unless_off(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

impl Timers {
    /// The timers that the command line asks for, on a service that has the classes.
    pub(crate) fn new(kind: TimerKind, handle: Handle) -> Self {
        let of_class = |class| handle.of_class(class).expect("the service has the class");
        match kind {
            TimerKind::Corewheel => Self::Corewheel {
                head: of_class(HEAD),
                connection: of_class(CONNECTION),
                upstream: of_class(UPSTREAM),
            },
            TimerKind::Tokio => Self::Tokio,
            TimerKind::None => Self::None,
        }
    }

    /// Settings of HTTP/1.1 connections. The stream of a connection has the deadlines of heads,
    /// unless the timers are tokio's.
    pub(crate) fn http1(self, limits: &Limits) -> http1::Builder {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES);
        if let Self::Tokio = self {
            builder.timer(TokioTimer::new()).header_read_timeout(unless_off(limits.header));
        } else {
            builder.header_read_timeout(None);
        }
        builder
    }

    /// Settings of connections that begin with HTTP/1.1 or HTTP/2. hyper has the deadlines of
    /// heads, as only it knows which of the two a connection is.
    pub(crate) fn http1_or_2(self, limits: &Limits, spawner: Spawner) -> auto::Builder<Spawner> {
        let mut builder = auto::Builder::new(spawner);
        builder.http1().max_buf_size(BUFFER_BYTES);
        match self {
            Self::Corewheel { head, .. } => {
                builder.http1().timer(HyperTimer::new(head));
                builder.http2().timer(HyperTimer::new(head));
            }
            Self::Tokio => {
                builder.http1().timer(TokioTimer::new());
                builder.http2().timer(TokioTimer::new());
            }
            Self::None => return builder,
        }
        builder.http1().header_read_timeout(unless_off(limits.header));
        builder
    }

    /// Settings of the client that keeps connections to the upstream server.
    pub(crate) fn client(self, limits: &Limits, spawner: Spawner) -> legacy::Builder {
        let mut builder = legacy::Client::builder(spawner);
        builder.http1_max_buf_size(BUFFER_BYTES);
        let idle = match self {
            Self::Corewheel { upstream, .. } => {
                builder.pool_timer(HyperTimer::new(upstream));
                unless_off(limits.upstream_idle)
            }
            Self::Tokio => {
                builder.pool_timer(TokioTimer::new());
                unless_off(limits.upstream_idle)
            }
            Self::None => None,
        };
        builder.pool_idle_timeout(idle);
        builder
    }

    /// A client's connection, with its deadlines if the timers are this crate's.
    pub(crate) fn stream(self, stream: TcpStream, limits: &Limits, is_http1: bool) -> Stream {
        match self {
            Self::Corewheel { connection, .. } => {
                let mut of_stream = limits.of_stream();
                if is_http1 {
                    of_stream.head = limits.header;
                }
                Stream::Timed(TimedIo::new(stream, connection, of_stream))
            }
            Self::Tokio | Self::None => Stream::Plain(stream),
        }
    }

    /// Gives a future time; zero stands for ever.
    pub(crate) async fn timeout<F: Future>(
        self,
        time: Duration,
        future: F,
    ) -> Result<F::Output, Late> {
        match self {
            Self::Corewheel { upstream, .. } if !time.is_zero() => {
                upstream.timeout(time, future).await.map_err(Late::from)
            }
            Self::Tokio if !time.is_zero() => {
                tokio::time::timeout(time, future).await.map_err(|_elapsed| Late::TimeUp)
            }
            _ => Ok(future.await),
        }
    }
}

impl Limits {
    fn of_stream(&self) -> StreamLimits {
        StreamLimits::default()
            .first_byte(self.first_byte)
            .read_idle(self.read_idle)
            .write_stall(self.write_stall)
            .idle(self.keep_alive)
            .max_age(self.max_age)
            .max_age_jitter(self.max_age_jitter)
            .min_read_rate(DataRate::new(self.read_rate, self.rate_grace))
            .min_write_rate(DataRate::new(self.write_rate, self.rate_grace))
    }
}
