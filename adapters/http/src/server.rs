//! A server of hyper whose connections and requests have timeouts, and whose loop is its own.
//!
//! A [`Server`] says how connections are served. The loop that accepts them is the user's, and so
//! is the service, which has each request with its [`Exchange`](crate::hyper::Exchange): a proxy
//! ends its connection to another server with that. An app of axum has
//! [`axum::serve`](crate::axum::serve), which is such a loop.
//!
//! Why not hyper-util's builder over streams with timeouts: a limit tells the client before it
//! cuts, by a `GOAWAY`, by `Connection: close`, or by a `408`.
//!
//! Cost: that of a [`TimedHttp`](crate::hyper::TimedHttp).

mod closing;
mod connection;

#[cfg(unix)]
use std::any::Any;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use corewheel::conn::{DataRate, UNSENT_MAX};
use corewheel::fallback::InfallibleSleep;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{AnyHandle, Handle};
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use self::closing::Terms;
use crate::hyper::{BodyLimits, HyperTimer};
#[cfg(feature = "rustls")]
use crate::tls::TlsIo;

type BoxError = Box<dyn Error + Send + Sync>;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How connections are served: HTTP/1 and HTTP/2, with upgrades, and with a limit for each state.
///
/// Its limits, with their defaults, and what a client is told are those of
/// [`axum::Serve`](crate::axum::Serve), which is made of this. All connections of a server share
/// one.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_http::hyper::TimedBody;
/// use corewheel_http::server::Server;
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use std::convert::Infallible;
/// use std::future::pending;
/// use std::sync::Arc;
///
/// async fn hello(_: Request<TimedBody<Incoming>>) -> Result<Response<Full<Bytes>>, Infallible> {
///     Ok(Response::new(Full::from("hello")))
/// }
///
/// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let timers = TimerService::beside_runtime().start().unwrap();
/// let server = Arc::new(Server::new(timers.handle()));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let mut client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
/// # client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
/// // In a server, a loop.
/// let (socket, _address) = listener.accept().await?;
/// tokio::spawn(async move {
///     let stream = server.stream(socket);
///     server.serve(stream, service_fn(hello), pending()).await;
/// });
/// # let mut answer = String::new();
/// # client.read_to_string(&mut answer).await?;
/// # assert!(answer.ends_with("hello"), "{answer}");
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Server {
    /// `None` for those of the default service.
    timers: Option<AnyHandle>,
    stream: StreamLimits,
    request: BodyLimits,
    response: BodyLimits,
    /// `None` for those of HTTP/1.
    http2_response: Option<BodyLimits>,
    close_time: Duration,
    half_close: Duration,
    hyper: auto::Builder<TokioExecutor>,
}

/// With the timers of [`time::handle`](corewheel::time::handle), those of the process.
impl Default for Server {
    fn default() -> Self {
        let mut hyper = auto::Builder::new(TokioExecutor::new());
        // The stream has the deadlines of heads.
        hyper.http1().header_read_timeout(None);
        // Its end is found by the stream.
        hyper.http1().half_close(true);
        // For WebSockets over HTTP/2, as in `axum::serve`.
        hyper.http2().enable_connect_protocol();
        let stream = StreamLimits::default()
            .first_byte(seconds(10))
            .head(seconds(10))
            .write_stall(seconds(30))
            .unsent_max(UNSENT_MAX)
            .idle(seconds(60))
            .max_age_grace(seconds(30));
        let rate = DataRate::new(240, seconds(5));
        Self {
            timers: None,
            stream,
            request: BodyLimits::NONE.next_frame(seconds(20)).min_frame_rate(rate),
            response: BodyLimits::NONE,
            http2_response: None,
            close_time: seconds(5),
            half_close: Duration::ZERO,
            hyper,
        }
    }
}

impl Server {
    /// A server with the default limits; see [`timers`](Self::timers).
    pub fn new<T: 'static>(timers: Handle<T>) -> Self {
        Self::default().timers(timers)
    }

    /// Sets whose shards have the timers. With [`Handle::of_class`] the statistics count the timers
    /// for a class.
    #[must_use]
    pub fn timers<T: 'static>(mut self, timers: Handle<T>) -> Self {
        self.timers = Some(timers.untyped());
        self.hyper.http2().timer(HyperTimer::new(timers));
        self
    }

    pub(crate) fn handle(&self) -> AnyHandle {
        self.timers.unwrap_or_else(corewheel::time::handle)
    }

    /// Changes the limits of connections, beginning from those that the server has. A limit that is
    /// zero is off.
    ///
    /// [`idle`](StreamLimits::idle) and [`request_idle`](StreamLimits::request_idle) are one limit
    /// here, the shorter of the two.
    #[must_use]
    pub fn limits(mut self, change: impl FnOnce(StreamLimits) -> StreamLimits) -> Self {
        self.stream = change(self.stream);
        self
    }

    /// Changes the limits of the bodies of requests, beginning from those that the server has. With
    /// [`BodyLimits::NONE`], a client that stops in the middle of a body is idle, and is cut.
    #[must_use]
    pub fn request(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.request = change(self.request);
        self
    }

    /// Changes the limits of the bodies of responses: off unless this is called, as a stream of
    /// events may rest for long.
    #[must_use]
    pub fn response(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.response = change(self.response);
        self
    }

    /// Changes the limits of the bodies of HTTP/2 responses, beginning from those of
    /// [`response`](Self::response), which then hold for HTTP/1 alone.
    ///
    /// A limit for the next poll or for the least rate of polls is that of a client which does not
    /// take a response, while it may take others: it is told by a `GOAWAY`. The limits of writes of
    /// the connection are twice as long then.
    #[must_use]
    pub fn http2_response(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.http2_response = Some(change(self.http2_response.unwrap_or(self.response)));
        self
    }

    /// Sets for how long a connection is closed, 5 seconds by default: the time that the client has
    /// to take what lies in the system's send buffer. Zero closes each socket at once.
    #[must_use]
    pub fn close_time(mut self, close_time: Duration) -> Self {
        self.close_time = close_time;
        self
    }

    /// Sets for how long a client of HTTP/1 is answered that has closed its own side, as `nc` and
    /// some health checks do after their request. It is taken to have left after that time.
    ///
    /// Zero, the default, takes each such client to have left at once, and the future of its
    /// handler is dropped: browsers leave in the same way. With a time, the handlers of clients
    /// that have left work on for as long.
    #[must_use]
    pub fn half_close(mut self, time: Duration) -> Self {
        self.half_close = time;
        self
    }

    /// Finds clients of HTTP/2 that are gone without a word, such as one whose network has ended,
    /// while a response goes on: a stream of events, or one of gRPC. Off by default.
    ///
    /// A client that has sent nothing for `interval` is sent a PING. If it does not answer that
    /// within `timeout`, its connection is closed, and its handlers are dropped. An answer that lay
    /// in the socket in time is in time, also where the runtime was held up, as with
    /// [`HyperTimer`](HyperTimer#deadlines). An answer does not keep an idle connection. A client
    /// of HTTP/1 is sent nothing.
    ///
    /// Costs a timer for each connection of HTTP/2.
    #[must_use]
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.hyper.http2().keep_alive_interval(interval).keep_alive_timeout(timeout);
        self
    }

    /// Changes hyper's settings, such as the sizes of its buffers. With
    /// [`http1_only`](auto::Builder::http1_only) a client of HTTP/2 is cut.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel_http::server::Server;
    ///
    /// let timers = TimerService::beside_runtime().start().unwrap();
    /// let server = Server::new(timers.handle()).hyper(|mut hyper| {
    ///     hyper.http1().max_buf_size(64 << 10);
    ///     hyper.http1_only()
    /// });
    /// ```
    #[must_use]
    pub fn hyper(
        mut self,
        change: impl FnOnce(auto::Builder<TokioExecutor>) -> auto::Builder<TokioExecutor>,
    ) -> Self {
        self.hyper = change(self.hyper);
        self
    }

    fn terms(&self) -> Terms {
        let windows = self.http2_response.unwrap_or_default();
        Terms {
            timers: self.handle(),
            has_http2: self.hyper.is_http2_available(),
            limits_windows: !windows.next_poll.is_zero()
                || windows.min_poll_rate.bytes_per_second > 0,
            half_close: self.half_close,
        }
    }

    /// The stream of a socket that was accepted, with the limits of connections, for
    /// [`serve`](Self::serve).
    ///
    /// A `TcpStream` of tokio is asked what its client has acknowledged, also below a `TlsIo`.
    /// Where it is below a stream of another library is told by [`TimedIo::with_socket`].
    pub fn stream<I: AsyncRead + AsyncWrite + 'static>(&self, socket: I) -> TimedIo<I> {
        let StreamLimits { idle, request_idle, .. } = self.stream;
        let limits = [idle, request_idle].into_iter().filter(|limit| !limit.is_zero());
        // Until the stream is known to be one of HTTP/2.
        let idle = limits.min().unwrap_or_default();
        let limits = self.stream.idle(idle).request_idle(Duration::ZERO);
        let stream = TimedIo::new(socket, self.handle(), limits);
        #[cfg(unix)]
        let stream = stream.with_socket(socket_of);
        stream
    }
}

/// How long an acceptor waits after a failed attempt.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Accepts a connection of a loop that goes on after an error.
///
/// # Errors
///
/// Those of the listener, after a wait of a tenth of a second: most likely all file descriptors are
/// in use, and a connection must end first. A client that has left before it was accepted is none.
pub async fn accept<T: 'static>(
    listener: &TcpListener,
    timers: Handle<T>,
) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                InfallibleSleep::after(timers.untyped(), BACK_OFF).await;
                return Err(error);
            }
            accepted => return accepted,
        }
    }
}

/// The socket of a stream that is one, or has one below its TLS.
#[cfg(unix)]
fn socket_of<I: 'static>(stream: &I) -> Option<BorrowedFd<'_>> {
    let stream: &dyn Any = stream;
    #[cfg(feature = "rustls")]
    if let Some(tls) = stream.downcast_ref::<TlsIo<TcpStream>>() {
        return tls.get_ref().map(AsFd::as_fd);
    }
    stream.downcast_ref::<TcpStream>().map(AsFd::as_fd)
}

debug_fields!([] Server, |it|
    stream: it.stream, request: it.request, response: it.response, close_time: it.close_time,
    half_close: it.half_close
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_named_stay_as_they_are() {
        let default = Server::default();
        let server = Server::default()
            .limits(|limits| limits.head(seconds(5)))
            .request(|limits| limits.next_frame(seconds(9)));
        assert_eq!(server.stream, default.stream.head(seconds(5)));
        assert_eq!(server.request, default.request.next_frame(seconds(9)));
        assert!(server.request.min_frame_rate.bytes_per_second > 0);
        assert_eq!(server.clone().request(|_| BodyLimits::NONE).request, BodyLimits::default());
        let server = server.response(|limits| limits.next_frame(seconds(7)));
        let server = server.http2_response(|limits| limits.next_poll(seconds(3)));
        let expected = BodyLimits::NONE.next_frame(seconds(7)).next_poll(seconds(3));
        assert_eq!(server.http2_response, Some(expected));
    }
}
