//! What a proxy needs of another server: connections with a time to connect, and with an end
//! together with the exchange whose request they carry.
//!
//! hyper does not end a connection over which a part of a request has gone while the other server
//! reads no more of it. So each connection can be cut from outside.
//!
//! Cost: an allocation for each connection.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use corewheel::{AnyHandle, Handle};
use hyper::http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::BoxError;
use crate::hyper::Exchange;

/// A connector of hyper-util's client whose connects have a time, and whose connections are
/// [cut](cut_with) with an exchange.
///
/// A connector for TLS goes around it.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_http::client::TimedConnector;
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::client::legacy::connect::HttpConnector;
/// use hyper_util::rt::TokioExecutor;
/// use std::time::Duration;
///
/// let service = TimerService::beside_runtime().start().unwrap();
/// let connector =
///     TimedConnector::new(HttpConnector::new(), service.handle(), Duration::from_secs(2));
/// let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
/// ```
///
/// # Errors
///
/// Those of the connector within, and [`TimeoutError`](corewheel::TimeoutError) if the time was up
/// or there is no timer. The error of a request has them among its sources.
#[derive(Clone, Debug)]
pub struct TimedConnector {
    connector: HttpConnector,
    timers: AnyHandle,
    time: Duration,
}

impl TimedConnector {
    /// Gives each connect of a connector a time; zero is as much as it takes.
    pub fn new<T: 'static>(connector: HttpConnector, timers: Handle<T>, time: Duration) -> Self {
        Self { connector, timers: timers.untyped(), time }
    }
}

impl Service<Uri> for TimedConnector {
    type Response = Cuttable;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Cuttable, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, timers, time) = (self.connector.call(uri), self.timers, self.time);
        Box::pin(async move {
            let connected = if time.is_zero() {
                connecting.await?
            } else {
                timers.timeout(time, connecting).await??
            };
            Ok(Cuttable { stream: connected, cut: Arc::default() })
        })
    }
}

/// Cuts the connection to the other server over which a request goes, when its exchange ends before
/// both of its bodies are complete. The socket is reset, as the other server may not read.
///
/// For a request that goes to a client over a [`TimedConnector`]; over another connector it does
/// nothing.
///
/// ```
/// use corewheel_http::client::cut_with;
/// use corewheel_http::hyper::TimedBody;
/// use hyper::Request;
/// use hyper::body::Incoming;
///
/// fn forward(mut request: Request<TimedBody<Incoming>>) -> Request<TimedBody<Incoming>> {
///     let exchange = request.body().exchange().clone();
///     cut_with(&exchange, &mut request);
///     request
/// }
/// ```
pub fn cut_with<B>(exchange: &Exchange, request: &mut Request<B>) {
    let connection = capture_connection(request);
    exchange.on_end(move || {
        if let Some(connected) = &*connection.connection_metadata() {
            let mut extras = Extensions::new();
            connected.get_extras(&mut extras);
            if let Some(cut) = extras.get::<Arc<Cut>>() {
                cut.cut();
            }
        }
    });
}

#[derive(Default, Debug)]
struct Cut {
    is_cut: AtomicBool,
    /// The task of the connection, which reads and writes.
    task: AtomicWaker,
}

impl Cut {
    fn cut(&self) {
        // Release: pairs with the load in `poll`, whose task is registered before.
        self.is_cut.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// A connection of a [`TimedConnector`].
#[derive(Debug)]
pub struct Cuttable {
    stream: TokioIo<TcpStream>,
    cut: Arc<Cut>,
}

impl Cuttable {
    /// Polls the stream. What would wait for it fails if the connection was cut.
    fn poll<V>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut TokioIo<TcpStream>>, &mut Context<'_>) -> Poll<io::Result<V>>,
    ) -> Poll<io::Result<V>> {
        let polled = poll(Pin::new(&mut self.stream), cx);
        if polled.is_pending() {
            self.cut.task.register(cx.waker());
            if self.cut.is_cut.load(Ordering::Acquire) {
                // A reset leaves nothing in the kernel for a server that does not read.
                let _ = self.stream.inner().set_zero_linger();
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        polled
    }
}

impl Read for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(cx, |stream, cx| stream.poll_read(cx, buf))
    }
}

impl Write for Cuttable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Write::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Write::poll_shutdown)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }
}

impl Connection for Cuttable {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(Arc::clone(&self.cut))
    }
}
