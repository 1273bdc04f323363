//! The timers behind the timeouts: this crate's, tokio's, or none. All other modules are the same
//! for the three.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamControl, StreamLimits, StreamTimeout, TimedIo};
use corewheel::{Handle, RefusedKind, TimeoutError};
use corewheel_http::hyper::{BodyLimits, HyperTimer};
use hyper::server::conn::{http1, http2};
use hyper_util::client::legacy;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;

use crate::options::{Limits, TimerKind};
use crate::socket::ClientSocket;
use crate::spawn::Spawner;

/// The deadlines of connections and of their bodies.
pub(crate) const CONNECTION: TimerClass = TimerClass::new("connection");
/// Times for the upstream server: to connect, and of unused connections.
pub(crate) const UPSTREAM: TimerClass = TimerClass::new("upstream");

/// How long a client has for the last that the proxy sends.
pub(crate) const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// The most bytes that a connection buffers in each direction. With hyper's 400 KiB, some thousands
/// of clients that do not read take gigabytes before a deadline comes.
const BUFFER_BYTES: usize = 64 << 10;

/// The most bytes of a frame for HTTP/2 clients. A client without a window holds one for each
/// response, and takes it in the time for a stalled write.
const FRAME_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Timers {
    Corewheel { connection: Handle, upstream: Handle },
    Tokio,
    None,
}

/// A client's connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
pub(crate) enum Stream {
    Timed(TimedIo<ClientSocket>),
    Plain(ClientSocket),
}

/// The control of a client's connection; `None` if it has no deadlines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control(pub(crate) Option<Arc<StreamControl>>);

impl Control {
    /// Whether a limit for the head of a request has ended the connection.
    pub(crate) fn is_head_late(&self) -> bool {
        use StreamTimeout::{FirstByte, Head, Idle};
        matches!(self.limit_reached(), Some(FirstByte(_) | Head(_) | Idle(_)))
    }

    /// Whether a limit for what the client takes has ended the connection.
    pub(crate) fn is_write_late(&self) -> bool {
        use StreamTimeout::{WriteRate, WriteStall};
        matches!(self.limit_reached(), Some(WriteStall(_) | WriteRate(_)))
    }

    /// Whether the end of the drain has ended the connection.
    pub(crate) fn is_cut_by_drain(&self) -> bool {
        matches!(self.limit_reached(), Some(StreamTimeout::Drained))
    }

    fn limit_reached(&self) -> Option<StreamTimeout> {
        self.0.as_ref().and_then(|control| control.limit_reached())
    }

    /// Waits until the connection is to end, because it is too old, no client uses it, or the drain
    /// has come to it.
    pub(crate) async fn is_over(&self) {
        let Some(control) = &self.0 else { return std::future::pending().await };
        // Each returns an error if the stream has ended, which the connection finds out itself.
        tokio::select! {
            biased;
            Ok(()) = control.max_age_reached() => {}
            Ok(()) = control.request_idle() => {}
            else => std::future::pending().await,
        }
    }

    /// Waits until no request of a connection that is to end is in progress, and then for a time.
    pub(crate) async fn is_unused(&self) {
        let Some(control) = &self.0 else { return std::future::pending().await };
        let limits = control.timers().limits();
        control.timers().set_limits(limits.request_idle(LAST_WORDS_TIME));
        if control.request_idle().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Why a future has no output.
#[derive(Debug)]
pub(crate) enum Late {
    /// The time was up.
    TimeUp,
    /// The connection, or the timer service, has ended.
    Closed,
    /// The timer service is full.
    NoTimer(RefusedKind),
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeUp => f.write_str("the time was up"),
            Self::Closed => f.write_str("the connection has ended"),
            Self::NoTimer(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for Late {}

impl From<TimeoutError> for Late {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed => Self::TimeUp,
            TimeoutError::NoTimer(refused) if refused.is_closed() => Self::Closed,
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
            TimerKind::Corewheel => {
                Self::Corewheel { connection: of_class(CONNECTION), upstream: of_class(UPSTREAM) }
            }
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

    /// Settings of HTTP/2 connections.
    pub(crate) fn http2(spawner: Spawner) -> http2::Builder<Spawner> {
        let mut builder = http2::Builder::new(spawner);
        builder.max_send_buf_size(BUFFER_BYTES);
        builder
    }

    /// Settings of the client that keeps connections to the upstream server.
    pub(crate) fn client(
        self,
        limits: &Limits,
        has_http2: bool,
        spawner: Spawner,
    ) -> legacy::Builder {
        let mut builder = legacy::Client::builder(spawner);
        builder.http1_max_buf_size(BUFFER_BYTES);
        if has_http2 {
            builder.http1_read_buf_exact_size(FRAME_BYTES);
        }
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
    pub(crate) fn stream(self, stream: TcpStream, limits: &Limits) -> Stream {
        let stream = ClientSocket::new(stream);
        match self {
            Self::Corewheel { connection, .. } => {
                Stream::Timed(TimedIo::new(stream, connection, limits.of_stream()))
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
    /// The limits of a connection, until it is known to be one of HTTP/2. Each body has limits of
    /// its own, so that its client gets an answer.
    fn of_stream(&self) -> StreamLimits {
        StreamLimits::default()
            .first_byte(self.first_byte)
            .head(self.header)
            .write_stall(self.write_stall)
            .idle(self.keep_alive)
            .max_age(self.max_age)
            .max_age_jitter(self.max_age_jitter)
            .max_age_grace(self.max_age_grace)
            .min_write_rate(DataRate::new(self.write_rate, self.rate_grace))
    }

    /// The connection is one of HTTP/2, whose client may send without a request.
    pub(crate) fn set_http2(&self, control: &StreamControl) {
        // The preface has come, and no request is due before the time for unused connections.
        control.message_complete();
        let limits = control.timers().limits();
        let mut limits = limits.all_idle(Duration::ZERO).request_idle(self.keep_alive);
        // A response that the client does not take reaches its own limit before, and the client is
        // told.
        limits.write_timeout = limits.write_timeout.saturating_mul(2);
        limits.min_write_rate.grace = limits.min_write_rate.grace.saturating_mul(2);
        control.timers().set_limits(limits);
    }

    /// The limits of the body of a request: the client sends it, and the upstream server takes it.
    pub(crate) fn of_request(&self) -> BodyLimits {
        BodyLimits::default()
            .next_frame(self.read_idle)
            .min_frame_rate(DataRate::new(self.read_rate, self.rate_grace))
            .next_poll(self.upstream_stall)
    }

    /// The limits of the body of a response: the upstream server sends it. The socket of an HTTP/1
    /// client has the limits for what the client takes, and an HTTP/2 stream has none.
    pub(crate) fn of_response(&self, is_http2: bool) -> BodyLimits {
        let limits = BodyLimits::default().next_frame(self.upstream_stall);
        if !is_http2 {
            return limits;
        }
        let rate = DataRate::new(self.write_rate, self.rate_grace);
        limits.next_poll(self.write_stall).min_poll_rate(rate)
    }
}
