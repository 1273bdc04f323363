//! One request: it is forwarded to the upstream server, and its response comes back.
//!
//! | answer | when |
//! |---|---|
//! | 400 | the body of the request was malformed, or ended too soon; it does not name one host |
//! | 408 | the body of the request came too slowly |
//! | 501 | the request is a CONNECT, or has another transfer coding than `chunked` |
//! | 502 | the upstream server refused the connection, or its answer was malformed |
//! | 503 | the timer service is full |
//! | 504 | the upstream server did not accept the connection, take the request or answer in time |

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewheel::stream::{StreamControl, StreamTimeout};
use corewheel::{Handle, TimeoutError};
use corewheel_http::client::{TimedConnector, cut_with};
use corewheel_http::hyper::{BodyError, Exchange, HyperTimer, TimedBody};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::begun::{Begun, begun};
use crate::heads;
use crate::options::{Options, TimerKind};
use crate::serve::{BUFFER_BYTES, unless_off};

/// The most bytes of a frame for HTTP/2 clients. A client without a window holds one for each
/// response, and takes it in the time for a stalled write.
const FRAME_BYTES: usize = 16 << 10;

type BoxError = Box<dyn Error + Send + Sync>;
/// The body of an answer: that of the upstream server, or a line about an error.
pub(crate) type Answer = Either<Begun, Full<Bytes>>;

/// The body that a client sends, with limits or without.
pub(crate) trait Asked:
    Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static
{
    /// `None` without limits.
    fn exchange(&self) -> Option<&Exchange>;
}

impl Asked for TimedBody<Incoming> {
    fn exchange(&self) -> Option<&Exchange> {
        Some(TimedBody::exchange(self))
    }
}

impl Asked for Incoming {
    fn exchange(&self) -> Option<&Exchange> {
        None
    }
}

/// Forwards requests to one upstream server.
pub(crate) struct Forwarder<B> {
    client: legacy::Client<TimedConnector, B>,
    upstream: Authority,
    /// From the end of a request to the head of its response.
    response: Duration,
    timer: TimerKind,
}

impl<B: Asked> Forwarder<B> {
    pub(crate) fn new(options: &Options, upstream: SocketAddr, timers: Handle) -> Arc<Self> {
        let (limits, timer) = (&options.limits, options.timer);
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.http1_max_buf_size(BUFFER_BYTES);
        if options.h2c {
            builder.http1_read_buf_exact_size(FRAME_BYTES);
        }
        let (mut connector, mut time) = (HttpConnector::new(), Duration::ZERO);
        connector.set_nodelay(true);
        let idle = unless_off(limits.upstream_idle).filter(|_| timer != TimerKind::None);
        builder.pool_idle_timeout(idle);
        match timer {
            TimerKind::Corewheel => {
                time = limits.connect;
                // Without a limit, no connection of the pool asks for the time.
                if idle.is_some() {
                    builder.pool_timer(HyperTimer::new(timers));
                }
            }
            TimerKind::Tokio => {
                connector.set_connect_timeout(unless_off(limits.connect));
                builder.pool_timer(TokioTimer::new());
            }
            TimerKind::None => {}
        }
        let client = builder.build(TimedConnector::new(connector, timers, time));
        let upstream = upstream.to_string().parse().expect("an address is an authority");
        let response = limits.response;
        Arc::new(Self { client, upstream, response, timer })
    }

    /// The request as the upstream server gets it.
    fn for_upstream(&self, request: Request<B>, client: IpAddr, upgrades: bool) -> Request<B> {
        let (mut head, body) = request.into_parts();
        let mut uri = Uri::default().into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.upstream.clone());
        uri.path_and_query = head.uri.path_and_query().cloned();
        // `OPTIONS *` and a URI without a path.
        if uri.path_and_query.is_none() {
            uri.path_and_query = Some(PathAndQuery::from_static("/"));
        }
        // The parts are those of valid URIs. `Host` has the host that the client has named.
        head.uri = Uri::from_parts(uri).unwrap_or_default();
        heads::remove_of_one_connection(&mut head.headers);
        if upgrades {
            heads::ask_for_websocket(&mut head.headers, head.version);
            head.method = Method::GET;
        }
        head.version = Version::HTTP_11;
        if let Ok(client) = HeaderValue::from_str(&client.to_string()) {
            head.headers.append(heads::FORWARDED_FOR, client);
        }
        Request::from_parts(head, body)
    }
}

/// A connection of a client.
pub(crate) struct Client<B> {
    address: IpAddr,
    /// `None` without limits.
    control: Option<StreamControl>,
    open: mpsc::Sender<()>,
    is_http2: AtomicBool,
    forwarder: Arc<Forwarder<B>>,
}

/// A request on its way to the upstream server.
pub(crate) struct Sent {
    answer: ResponseFuture,
    exchange: Option<Exchange>,
    has_body: bool,
    /// What the client asks for a WebSocket over, and the version of HTTP of that.
    websocket: Option<(OnUpgrade, Version)>,
}

impl<B: Asked> Client<B> {
    pub(crate) fn new(
        address: IpAddr,
        control: Option<StreamControl>,
        open: mpsc::Sender<()>,
        forwarder: &Arc<Forwarder<B>>,
    ) -> Arc<Self> {
        let (is_http2, forwarder) = (AtomicBool::new(false), Arc::clone(forwarder));
        Arc::new(Self { address, control, open, is_http2, forwarder })
    }

    /// The connection of a client has ended, or its tunnel. A request of HTTP/2 tells by itself
    /// that it was cut. Here one is in progress, as a connection without any has ended when told.
    pub(crate) fn has_ended(&self) {
        if !self.is_http2.load(Ordering::Relaxed) {
            self.request_ended();
        }
    }

    /// Tells whether the end of the drain has cut a request.
    fn request_ended(&self) {
        let control = self.control.as_ref();
        if control.and_then(StreamControl::limit_reached) == Some(StreamTimeout::Drained) {
            // The receiver is gone when the process is about to end.
            let _ = self.open.send(());
        }
    }

    /// Sends a request to the upstream server. The error is the status of the answer to one that is
    /// not forwarded.
    pub(crate) fn send(self: &Arc<Self>, mut request: Request<B>) -> Result<Sent, StatusCode> {
        let (exchange, version) = (request.body().exchange().cloned(), request.version());
        if version == Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
            if let Some(exchange) = &exchange {
                let client = Arc::clone(self);
                exchange.on_end(move || client.request_ended());
            }
        }
        heads::settle(&mut request)?;
        let upgrades = heads::asks_for_websocket(&request);
        let websocket = upgrades.then(|| (hyper::upgrade::on(&mut request), version));
        let has_body = !request.body().is_end_stream();
        let mut request = self.forwarder.for_upstream(request, self.address, upgrades);
        if let (Some(exchange), true) = (&exchange, has_body) {
            cut_with(exchange, &mut request);
        }
        let answer = self.forwarder.client.request(request);
        Ok(Sent { answer, exchange, has_body, websocket })
    }

    /// The answer to a request that was sent, or not.
    pub(crate) async fn answer(
        self: Arc<Self>,
        sent: Result<Sent, StatusCode>,
    ) -> Response<Answer> {
        let Sent { answer, exchange, has_body, websocket } = match sent {
            Ok(sent) => sent,
            Err(status) => return refusal(status),
        };
        let (time, timer) = (self.forwarder.response, self.forwarder.timer);
        let answered = match (&exchange, &self.control) {
            (Some(exchange), Some(control)) => exchange.in_time(control, time, answer).await,
            _ if time.is_zero() || timer == TimerKind::None => Ok(answer.await),
            _ => tokio::time::timeout(time, answer).await.map_err(|_| TimeoutError::Elapsed),
        };
        let error: BoxError = match answered {
            Ok(Ok(response)) => return self.returned(response, websocket).await,
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        };
        // tokio's time for the answer does not know when the body has ended.
        let status = if exchange.is_none() && has_body && error.is::<TimeoutError>() {
            StatusCode::REQUEST_TIMEOUT
        } else {
            status_of(&*error, exchange.as_ref())
        };
        tracing::debug!(client = %self.address, %status, ?error, "a request has no answer");
        let mut answer = refusal(status);
        if exchange.is_some_and(|exchange| !exchange.is_request_complete()) {
            close(&mut answer);
        }
        answer
    }

    /// The response of the upstream server as the client gets it.
    async fn returned(
        self: Arc<Self>,
        mut response: Response<Incoming>,
        websocket: Option<(OnUpgrade, Version)>,
    ) -> Response<Answer> {
        let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let is_of_connect = websocket.as_ref().is_some_and(|asked| asked.1 == Version::HTTP_2);
        let is_wanted = websocket.is_some() && heads::is_websocket(response.headers());
        // A success would be a tunnel for a client of HTTP/2.
        let is_wrong = is_upgrade && !is_wanted || is_of_connect && response.status().is_success();
        if !heads::is_coding_known(response.headers()) || is_wrong {
            return refusal(StatusCode::BAD_GATEWAY);
        }
        *response.version_mut() = Version::HTTP_11;
        if let Some((client, _)) = websocket.filter(|_| is_upgrade) {
            heads::remove_of_one_connection(response.headers_mut());
            let upstream = hyper::upgrade::on(&mut response);
            if is_of_connect {
                *response.status_mut() = StatusCode::OK;
                response.headers_mut().remove(header::SEC_WEBSOCKET_ACCEPT);
            } else {
                heads::say_websocket(response.headers_mut());
            }
            tokio::spawn(self.tunnel(client, upstream));
            return response.map(|_| Either::Right(Full::default()));
        }
        match begun(response).await {
            Ok(mut response) => {
                heads::remove_of_one_connection(response.headers_mut());
                response.map(Either::Left)
            }
            Err(_) => refusal(StatusCode::BAD_GATEWAY),
        }
    }

    /// Copies between a client and the upstream server until both have ended, or one has failed.
    /// The limits are those of the client's connection.
    async fn tunnel(self: Arc<Self>, client: OnUpgrade, upstream: OnUpgrade) {
        let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        if tokio::io::copy_bidirectional(&mut client, &mut upstream).await.is_err() {
            self.has_ended();
        }
    }
}

/// The status that says to a client why its request has no answer of the other server: `408` or
/// `400` if the body of the request was too slow or has failed, `504` if the other server was too
/// slow, `503` if there is no timer, and else `502`.
///
/// `error` is that of a client over a `TimedConnector`, or the `TimeoutError` of
/// `Exchange::in_time`. A request whose body has no limits has no exchange.
fn status_of(error: &(dyn Error + 'static), exchange: Option<&Exchange>) -> StatusCode {
    use BodyError::{FrameRate, NextFrame};
    match exchange.and_then(Exchange::request_limit_reached) {
        Some(NextFrame(_) | FrameRate(_)) => return StatusCode::REQUEST_TIMEOUT,
        Some(_) => return StatusCode::GATEWAY_TIMEOUT,
        None => {}
    }
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let found = causes.find_map(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        match cause.downcast_ref::<TimeoutError>() {
            Some(TimeoutError::NoTimer(_)) => return Some(StatusCode::SERVICE_UNAVAILABLE),
            None if io != Some(io::ErrorKind::TimedOut) => {}
            _ => return Some(StatusCode::GATEWAY_TIMEOUT),
        }
        let is_of_body = cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user);
        is_of_body.then_some(StatusCode::BAD_REQUEST)
    });
    found.unwrap_or(StatusCode::BAD_GATEWAY)
}

/// An answer of the proxy's own, with a line of text.
fn refusal(status: StatusCode) -> Response<Answer> {
    let line = Bytes::from(format!("{status}\n"));
    let mut response = Response::new(Either::Right(Full::new(line)));
    *response.status_mut() = status;
    if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED {
        close(&mut response);
    }
    response
}

/// Ends the connection with an answer, as the rest of the request may still come.
fn close(response: &mut Response<Answer>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}
