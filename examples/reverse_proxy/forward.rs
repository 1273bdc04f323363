//! One request: it is forwarded to the upstream server, and its response comes back.
//!
//! | answer | when |
//! |---|---|
//! | 400 | the body of the request was malformed, or ended too soon; it does not name one host |
//! | 408 | the body of the request came too slowly |
//! | 501 | the request asks for a tunnel, or has another transfer coding than `chunked` |
//! | 502 | the upstream server refused the connection, or its answer was malformed |
//! | 503 | the timer service is full |
//! | 504 | the upstream server did not accept the connection, take the request or answer in time |

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel::TimeoutError;
use corewheel_http::hyper::{BodyData, BodyError, Exchange, TimedBody};
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::http::Extensions;
use hyper::http::uri::{Authority, InvalidUri, PathAndQuery, Scheme};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::client::legacy::{Client, ResponseFuture};

use crate::connect::{Connector, Cut};
use crate::heads;
use crate::options::Limits;
use crate::spawn::Spawner;
use crate::timers::{Control, Late, Timers};

/// The body of an answer: that of the upstream server, or a line about an error.
pub(crate) type Answer = Either<Incoming, Full<Bytes>>;

/// The body that a client sends, with deadlines or without.
#[derive(Debug)]
pub(crate) enum Asked {
    Timed(TimedBody<Incoming>),
    Plain(Incoming),
}

/// A request on its way to the upstream server.
pub(crate) struct Sent {
    answer: ResponseFuture,
    ended: RequestEnd,
}

/// Forwards requests to one upstream server.
#[derive(Debug)]
pub(crate) struct Forwarder {
    client: Client<Connector, RequestBody>,
    upstream: Authority,
    timers: Timers,
    /// From the end of a request to the head of its response.
    response: Duration,
}

impl Forwarder {
    pub(crate) fn new(
        upstream: SocketAddr,
        timers: Timers,
        limits: &Limits,
        has_http2: bool,
        spawner: Spawner,
    ) -> Result<Self, InvalidUri> {
        let connector = Connector { upstream, timers, time: limits.connect };
        Ok(Self {
            client: timers.client(limits, has_http2, spawner).build(connector),
            upstream: upstream.to_string().parse()?,
            timers,
            response: limits.response,
        })
    }

    /// Sends a request to the upstream server. The error is the status of the answer to one that is
    /// not forwarded.
    pub(crate) fn send(
        &self,
        mut request: Request<Asked>,
        client: IpAddr,
        exchange: Option<&Exchange>,
    ) -> Result<Sent, StatusCode> {
        heads::settle(&mut request)?;
        let ended = RequestEnd::of(request.body());
        let mut request = self.for_upstream(request, client, &ended);
        if let (Some(exchange), None) = (exchange, ended.at()) {
            let connection = capture_connection(&mut request);
            exchange.on_end(move || cut(&connection));
        }
        Ok(Sent { answer: self.client.request(request), ended })
    }

    /// The answer to a request that was sent, or not.
    pub(crate) async fn answer(
        &self,
        sent: Result<Sent, StatusCode>,
        client: IpAddr,
        exchange: Option<&Exchange>,
        control: &Control,
    ) -> Response<Answer> {
        let Sent { answer, ended } = match sent {
            Ok(sent) => sent,
            Err(status) => return refusal(status),
        };
        // A request without a body has no limit that could end its exchange before the answer.
        let may_end = ended.at().is_none();
        let answered = match exchange {
            Some(exchange) if may_end => {
                tokio::select! {
                    biased;
                    answered = self.in_time(answer, &ended, control) => answered,
                    () = exchange.ended() => Err(Late::TimeUp),
                }
            }
            Some(_) => self.in_time(answer, &ended, control).await,
            None => self.timers.timeout(self.response, answer).await,
        };
        let reached = || exchange.and_then(Exchange::request_limit_reached);
        let late = match answered {
            Ok(Ok(response)) => return returned(response),
            Ok(Err(_)) if reached().is_some() => Late::TimeUp,
            Ok(Err(error)) => {
                let status = status_of(&error);
                tracing::debug!(%client, %status, error = %Chain(&error), "a request failed");
                return refusal(status);
            }
            Err(late) => late,
        };
        let by_client = match reached() {
            Some(timeout) => is_of_producer(timeout),
            None => exchange.is_none() && ended.at().is_none(),
        };
        match late {
            Late::TimeUp if by_client => {
                tracing::debug!(%client, "the body of a request came too slowly");
                refusal(StatusCode::REQUEST_TIMEOUT)
            }
            Late::TimeUp => {
                tracing::debug!(%client, error = %late, "the upstream server did not answer");
                let mut answer = refusal(StatusCode::GATEWAY_TIMEOUT);
                if ended.at().is_none() {
                    close(&mut answer);
                }
                answer
            }
            Late::Closed => {
                tracing::debug!(%client, "the connection has ended before the answer");
                refusal(StatusCode::SERVICE_UNAVAILABLE)
            }
            Late::NoTimer(_) => {
                tracing::warn!(%client, error = %late, "a request was refused");
                refusal(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// Waits for an answer, which has a time from the end of the request on. A body that does not
    /// end has limits of its own.
    async fn in_time<F: Future>(
        &self,
        answer: F,
        ended: &RequestEnd,
        control: &Control,
    ) -> Result<F::Output, Late> {
        let mut answer = pin!(answer);
        let mut left = self.response;
        let Some(control) = control.0.as_ref().filter(|_| !left.is_zero()) else {
            return Ok(answer.await);
        };
        loop {
            match control.timeout(left, answer.as_mut()).await {
                Ok(answer) => return Ok(answer),
                Err(TimeoutError::Elapsed) => {}
                Err(error) => return Err(error.into()),
            }
            // A body that has ended meanwhile has left the rest of the time to the answer.
            left = match ended.at() {
                Some(at) => self.response.saturating_sub(at.elapsed()),
                None => self.response,
            };
            if left.is_zero() {
                return Err(Late::TimeUp);
            }
        }
    }

    /// The request as the upstream server gets it.
    fn for_upstream(
        &self,
        request: Request<Asked>,
        client: IpAddr,
        ended: &RequestEnd,
    ) -> Request<RequestBody> {
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
        head.version = Version::HTTP_11;
        heads::remove_of_one_connection(&mut head.headers);
        if let Ok(client) = HeaderValue::from_str(&client.to_string()) {
            head.headers.append(heads::FORWARDED_FOR, client);
        }
        Request::from_parts(head, RequestBody { body, ended: ended.clone() })
    }
}

/// When the client has sent all of a request.
#[derive(Clone, Debug)]
enum RequestEnd {
    /// With its head, at the beginning of the time for its answer.
    WithHead(Instant),
    /// Not set before the end.
    WithBody(Arc<OnceLock<Instant>>),
}

impl RequestEnd {
    fn of(body: &Asked) -> Self {
        if body.is_end_stream() {
            return Self::WithHead(Instant::now());
        }
        Self::WithBody(Arc::default())
    }

    /// `None` if a part of the request is missing.
    fn at(&self) -> Option<Instant> {
        match self {
            Self::WithHead(at) => Some(*at),
            Self::WithBody(at) => at.get().copied(),
        }
    }

    fn is_now(&self) {
        if let Self::WithBody(at) = self {
            let _ = at.set(Instant::now());
        }
    }
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

/// The response of the upstream server as the client gets it.
fn returned(mut response: Response<Incoming>) -> Response<Answer> {
    if !heads::is_coding_known(response.headers()) {
        return refusal(StatusCode::BAD_GATEWAY);
    }
    heads::remove_of_one_connection(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    response.map(Either::Left)
}

/// Cuts the connection over which a part of a request has gone.
fn cut(connection: &CaptureConnection) {
    if let Some(connected) = &*connection.connection_metadata() {
        let mut extras = Extensions::new();
        connected.get_extras(&mut extras);
        if let Some(cut) = extras.get::<Cut>() {
            cut.cut();
        }
    }
}

/// Whether a limit of the body of a request is that of the client, which sends it.
fn is_of_producer(timeout: BodyError) -> bool {
    matches!(timeout, BodyError::NextFrame(_) | BodyError::FrameRate(_))
}

/// The status that says why there is no answer of the upstream server.
fn status_of(error: &(dyn Error + 'static)) -> StatusCode {
    let mut is_of_client = false;
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let found = causes.find_map(|cause| {
        is_of_client |= cause.is::<RequestBodyError>();
        let failed = cause.downcast_ref::<io::Error>()?;
        let late = failed.get_ref().and_then(|inner| inner.downcast_ref::<Late>());
        match (failed.kind(), late) {
            (_, Some(Late::NoTimer(_))) => Some(StatusCode::SERVICE_UNAVAILABLE),
            (io::ErrorKind::TimedOut, _) if is_of_client => Some(StatusCode::REQUEST_TIMEOUT),
            (io::ErrorKind::TimedOut, _) => Some(StatusCode::GATEWAY_TIMEOUT),
            _ => None,
        }
    });
    let other = if is_of_client { StatusCode::BAD_REQUEST } else { StatusCode::BAD_GATEWAY };
    found.unwrap_or(other)
}

/// An error with its causes, in a line.
struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut causes = std::iter::successors(self.0.source(), |&error| error.source());
        causes.try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl Asked {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Timed(body) => body.is_end_stream(),
            Self::Plain(body) => body.is_end_stream(),
        }
    }
}

/// The body of a request on its way to the upstream server. Its errors are told from errors of the
/// upstream server.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Asked,
    ended: RequestEnd,
}

/// The client has failed to send its body.
#[derive(Debug)]
pub(crate) struct RequestBodyError(Box<dyn Error + Send + Sync>);

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body of the request: {}", self.0)
    }
}

impl Error for RequestBodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let polled = match &mut self.body {
            Asked::Timed(body) => {
                Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(BodyData::into_inner))
            }
            Asked::Plain(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        };
        let is_last = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            _ => false,
        };
        if is_last {
            self.ended.is_now();
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(RequestBodyError)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Asked::Timed(body) => body.size_hint(),
            Asked::Plain(body) => body.size_hint(),
        }
    }
}
