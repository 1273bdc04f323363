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
use std::fmt;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use corewheel::conn::{DataRate, UNSENT_MAX};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{AnyHandle, Handle};
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::TcpStream;

use self::closing::Terms;
use crate::hyper::{BodyLimits, HyperTimer};
#[cfg(feature = "rustls")]
use crate::tls::TlsIo;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How connections are served: HTTP/1 and HTTP/2, with upgrades, and with a limit for each state.
///
/// All connections of a server share one. It has the loop of [`axum::serve`](crate::axum::serve),
/// which makes it with an app, or a loop of the program's own:
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
///
/// # Limits
///
/// All of these are on, unless the server sets others:
///
/// | state | limit | the client is told |
/// |---|---|---|
/// | nothing has come, or the handshake of TLS goes on | `first_byte`, 10 s | – |
/// | a head comes | `head`, 10 s | `408`; of HTTP/2, nothing |
/// | the body of a request comes | `next_frame`, 20 s; `min_frame_rate`, 240 bytes/s | `408` |
/// | no request is in progress | `idle`, 60 s | `GOAWAY`; of HTTP/1, the close |
/// | the client does not take its response | `write_stall`, 30 s | – |
/// | the connection is too old | `max_age`, off | `GOAWAY`, or `Connection: close` |
/// | it was told that, and goes on | `max_age_grace`, 30 s | – |
///
/// The system holds 256 KiB for a client that takes its response slowly, and what that client's own
/// system has taken ([`unsent_max`](StreamLimits::unsent_max), on Linux), in place of up to 4 MB.
///
/// The bodies of requests have the limits of [`request`](Self::request), and all else those of
/// [`limits`](Self::limits). No limit but `max_age_grace` ends a connection while a handler works,
/// or a response is on its way to a client that takes it, however long that takes. A client takes
/// it whose kernel acknowledges some of it within each `write_stall`, see
/// [`with_socket`](TimedIo::with_socket); where the stream is no `TcpStream`, and no socket was
/// named, for which the stream accepts some of it.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use corewheel::TimerService;
/// use corewheel_http::axum::serve;
/// use std::time::Duration;
/// use tokio::net::TcpListener;
///
/// async fn run(listener: TcpListener, app: Router) -> Result<(), Box<dyn std::error::Error>> {
///     let service = TimerService::beside_runtime().start()?;
///     let seconds = Duration::from_secs;
///     serve(listener, app)
///         .timers(service.handle())
///         .limits(|limits| limits.head(seconds(5)).idle(seconds(30)).write_stall(seconds(20)))
///         .request(|limits| limits.next_frame(seconds(10)))
///         .await?;
///     Ok(())
/// }
/// ```
///
/// A connection is idle while no request is in progress, whatever its client sends: PINGs do not
/// keep it. A client of HTTP/2 that is gone without a word while it has a response is found by
/// [`keep_alive`](Self::keep_alive). After an upgrade of HTTP/1 or a success to CONNECT, as of a
/// WebSocket, `idle` counts from the last byte of such a tunnel. A connection that was told to end
/// has its tunnels until both sides have ended them, or until `max_age_grace`.
///
/// A [drain](corewheel::TimerService::drain) of the service tells each connection as its greatest
/// age does, and [`close_idlest`](corewheel::TimerService::close_idlest) does as well. A connection
/// that begins in a drain has one request.
///
/// The body of a request ends with an error where the client has sent too little of it in time. If
/// the handler answers with an error then, as axum's extractors do, the client receives `408`. Time
/// in which another request of its HTTP/2 connection has used up the server's window does not
/// count, up to a minute. A client whose response has begun has no such limit, as in a stream of
/// gRPC in both directions: it is in progress until the response ends.
///
/// A client of HTTP/1 that closes its own side has left, unless
/// [`half_close`](Self::half_close) is set.
///
/// # The close
///
/// A socket that is closed while bytes lie unread in it, or to which bytes come after that, is
/// reset, and the client loses what it has not received. So the server shuts its side down first,
/// and reads and forgets what the client still sends, until the client closes its side too, for
/// [`close_time`](Self::close_time) at most. A client to which nothing was sent is closed at once.
///
/// A client that reaches `write_stall` or `min_write_rate` is reset instead, so that the system
/// frees what it keeps for that client. This is so for a `TcpStream`, for one below a `TlsListener`
/// of this package, and for a socket that was named. A stream of another type is
/// closed at once, and the system keeps what the client has not taken until it gives that client
/// up.
///
/// # When there is no timer
///
/// A connection for whose timer its shard has no room serves what is ready at once, and is closed
/// where it would wait: see [`TimedIo`](TimedIo#when-there-is-no-timer).
#[derive(Clone)]
#[must_use = "a server does nothing unless its loop runs"]
pub struct Server<A = ()> {
    pub(crate) settings: Settings,
    /// What a server of `axum::serve` serves.
    pub(crate) app: A,
}

#[derive(Clone)]
pub(crate) struct Settings {
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

impl Default for Settings {
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

/// With the timers of [`time::handle`](corewheel::time::handle), those of the process.
impl Default for Server {
    fn default() -> Self {
        Self { settings: Settings::default(), app: () }
    }
}

impl Server {
    /// A server with the default limits; see [`timers`](Self::timers).
    pub fn new<T: 'static>(timers: Handle<T>) -> Self {
        Self::default().timers(timers)
    }
}

impl<A> Server<A> {
    /// Sets whose shards have the timers: those of [`time::handle`](corewheel::time::handle), the
    /// default service of the process, unless this is called. With [`Handle::of_class`] the
    /// statistics count the timers for a class.
    pub fn timers<T: 'static>(mut self, timers: Handle<T>) -> Self {
        self.settings.timers = Some(timers.untyped());
        self.settings.hyper.http2().timer(HyperTimer::new(timers));
        self
    }

    pub(crate) fn handle(&self) -> AnyHandle {
        self.settings.timers.unwrap_or_else(corewheel::time::handle)
    }

    /// Changes the limits of connections, beginning from those that the server has. A limit that is
    /// zero is off.
    ///
    /// [`idle`](StreamLimits::idle) and [`request_idle`](StreamLimits::request_idle) are one limit
    /// here, the shorter of the two.
    pub fn limits(mut self, change: impl FnOnce(StreamLimits) -> StreamLimits) -> Self {
        self.settings.stream = change(self.settings.stream);
        self
    }

    /// Changes the limits of the bodies of requests, beginning from those that the server has. With
    /// [`BodyLimits::NONE`], a client that stops in the middle of a body is idle, and is cut.
    pub fn request(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.settings.request = change(self.settings.request);
        self
    }

    /// Changes the limits of the bodies of responses: off unless this is called, as a stream of
    /// events may rest for long.
    pub fn response(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.settings.response = change(self.settings.response);
        self
    }

    /// Changes the limits of the bodies of HTTP/2 responses, beginning from those of
    /// [`response`](Self::response), which then hold for HTTP/1 alone.
    ///
    /// A limit for the next poll or for the least rate of polls is that of a client which does not
    /// take a response, while it may take others: it is told by a `GOAWAY`. The limits of writes of
    /// the connection are twice as long then.
    pub fn http2_response(mut self, change: impl FnOnce(BodyLimits) -> BodyLimits) -> Self {
        self.settings.http2_response =
            Some(change(self.settings.http2_response.unwrap_or(self.settings.response)));
        self
    }

    /// Sets for how long a connection is closed, 5 seconds by default: the time that the client has
    /// to take what lies in the system's send buffer. Zero closes each socket at once.
    pub fn close_time(mut self, close_time: Duration) -> Self {
        self.settings.close_time = close_time;
        self
    }

    /// Sets for how long a client of HTTP/1 is answered that has closed its own side, as `nc` and
    /// some health checks do after their request. It is taken to have left after that time.
    ///
    /// Zero, the default, takes each such client to have left at once, and the future of its
    /// handler is dropped: browsers leave in the same way. With a time, the handlers of clients
    /// that have left work on for as long.
    pub fn half_close(mut self, time: Duration) -> Self {
        self.settings.half_close = time;
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
    pub fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.settings.hyper.http2().keep_alive_interval(interval).keep_alive_timeout(timeout);
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
    pub fn hyper(
        mut self,
        change: impl FnOnce(auto::Builder<TokioExecutor>) -> auto::Builder<TokioExecutor>,
    ) -> Self {
        self.settings.hyper = change(self.settings.hyper);
        self
    }
}

/// For a loop of the program's own.
impl Server {
    fn terms(&self) -> Terms {
        let windows = self.settings.http2_response.unwrap_or_default();
        Terms {
            timers: self.handle(),
            has_http2: self.settings.hyper.is_http2_available(),
            limits_windows: !windows.next_poll.is_zero()
                || windows.min_poll_rate.bytes_per_second > 0,
            half_close: self.settings.half_close,
        }
    }

    /// The stream of a socket that was accepted, with the limits of connections, for
    /// [`serve`](Self::serve).
    ///
    /// A `TcpStream` of tokio is asked what its client has acknowledged, also below a `TlsIo`.
    /// Where it is below a stream of another library is told by [`TimedIo::with_socket`].
    pub fn stream<I: AsyncRead + AsyncWrite + 'static>(&self, socket: I) -> TimedIo<I> {
        let StreamLimits { idle, request_idle, .. } = self.settings.stream;
        let limits = [idle, request_idle].into_iter().filter(|limit| !limit.is_zero());
        // Until the stream is known to be one of HTTP/2.
        let idle = limits.min().unwrap_or_default();
        let limits = self.settings.stream.idle(idle).request_idle(Duration::ZERO);
        let stream = TimedIo::new(socket, self.handle(), limits);
        #[cfg(unix)]
        let stream = stream.with_socket(socket_of);
        stream
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

debug_fields!([A: fmt::Debug] Server<A>, |it|
    stream: it.settings.stream, request: it.settings.request, response: it.settings.response,
    close_time: it.settings.close_time, half_close: it.settings.half_close, app: it.app
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
        assert_eq!(server.settings.stream, default.settings.stream.head(seconds(5)));
        assert_eq!(server.settings.request, default.settings.request.next_frame(seconds(9)));
        assert!(server.settings.request.min_frame_rate.bytes_per_second > 0);
        assert_eq!(
            server.clone().request(|_| BodyLimits::NONE).settings.request,
            BodyLimits::default()
        );
        let server = server.response(|limits| limits.next_frame(seconds(7)));
        let server = server.http2_response(|limits| limits.next_poll(seconds(3)));
        let expected = BodyLimits::NONE.next_frame(seconds(7)).next_poll(seconds(3));
        assert_eq!(server.settings.http2_response, Some(expected));
    }
}
