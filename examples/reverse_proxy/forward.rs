//! One request: it is forwarded to the upstream server, and its response comes back.
//!
//! | answer | when |
//! |---|---|
//! | 400 | the body of the request was malformed, or ended too soon |
//! | 408 | the body of the request came too slowly |
//! | 501 | the request asks for a tunnel |
//! | 502 | the upstream server refused the connection, or its answer was malformed |
//! | 503 | the timer service is full |
//! | 504 | the upstream server did not accept the connection or answer in time |

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::adapters::hyper::RequestBody as TimedBody;
use http_body_util::{Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, InvalidUri, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::Client;

use crate::connect::Connector;
use crate::options::Limits;
use crate::spawn::Spawner;
use crate::timers::{Control, Late, Timers};

/// The body of an answer: that of the upstream server, or a line about an error.
pub(crate) type Answer = Either<Incoming, Full<Bytes>>;
/// The body that a client sends, with the deadlines of its connection or without.
pub(crate) type ClientBody = Either<TimedBody<Incoming>, Incoming>;

/// Header fields that are about one connection, and not forwarded.
const OF_ONE_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Forwards requests to one upstream server.
#[derive(Debug)]
pub(crate) struct Forwarder {
    client: Client<Connector, RequestBody>,
    upstream: Authority,
    timers: Timers,
    /// From the head of a request to the head of its response.
    response: Duration,
}

impl Forwarder {
    pub(crate) fn new(
        upstream: SocketAddr,
        timers: Timers,
        limits: &Limits,
        spawner: Spawner,
    ) -> Result<Self, InvalidUri> {
        let connector = Connector { upstream, timers, time: limits.connect };
        Ok(Self {
            client: timers.client(limits, spawner).build(connector),
            upstream: upstream.to_string().parse()?,
            timers,
            response: limits.response,
        })
    }

    /// The answer to a request.
    pub(crate) async fn forward(
        &self,
        request: Request<ClientBody>,
        client: IpAddr,
        control: &Control,
    ) -> Response<Answer> {
        if request.method() == Method::CONNECT {
            return refusal(StatusCode::NOT_IMPLEMENTED);
        }
        let has_ended = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        let request = self.for_upstream(request, client, &has_ended);
        let answer = self.client.request(request);
        match control.timeout(self.timers, self.response, answer).await {
            Ok(Ok(mut response)) => {
                remove_of_one_connection(response.headers_mut());
                *response.version_mut() = Version::HTTP_11;
                response.map(Either::Left)
            }
            Ok(Err(error)) => {
                let status = status_of(&error);
                tracing::debug!(%client, %status, error = %Chain(&error), "a request failed");
                refusal(status)
            }
            Err(Late::TimeUp) if !has_ended.load(Ordering::Relaxed) => {
                tracing::debug!(%client, "the body of a request came too slowly");
                refusal(StatusCode::REQUEST_TIMEOUT)
            }
            Err(late @ Late::TimeUp) => {
                tracing::debug!(%client, error = %late, "the upstream server did not answer");
                refusal(StatusCode::GATEWAY_TIMEOUT)
            }
            Err(late @ Late::NoTimer(_)) => {
                tracing::warn!(%client, error = %late, "a request was refused");
                refusal(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// The request as the upstream server gets it.
    fn for_upstream(
        &self,
        request: Request<ClientBody>,
        client: IpAddr,
        has_ended: &Arc<AtomicBool>,
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
        // The parts are those of valid URIs. An HTTP/2 client names the host in the URI only.
        if !head.headers.contains_key(header::HOST)
            && let Some(host) = head.uri.authority()
            && let Ok(host) = HeaderValue::from_str(host.as_str())
        {
            head.headers.insert(header::HOST, host);
        }
        head.uri = Uri::from_parts(uri).unwrap_or_default();
        head.version = Version::HTTP_11;
        remove_of_one_connection(&mut head.headers);
        if let Ok(client) = HeaderValue::from_str(&client.to_string()) {
            head.headers.append(FORWARDED_FOR, client);
        }
        Request::from_parts(head, RequestBody { body, has_ended: Arc::clone(has_ended) })
    }
}

/// Removes the header fields that are about one connection, those included that `Connection` names.
fn remove_of_one_connection(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let values = headers.get_all(header::CONNECTION).iter();
        let named: Vec<HeaderName> = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &OF_ONE_CONNECTION {
        headers.remove(name);
    }
}

/// An answer of the proxy's own, with a line of text.
fn refusal(status: StatusCode) -> Response<Answer> {
    let line = Bytes::from(format!("{status}\n"));
    let mut response = Response::new(Either::Right(Full::new(line)));
    *response.status_mut() = status;
    if matches!(status, StatusCode::BAD_REQUEST | StatusCode::REQUEST_TIMEOUT) {
        // The rest of the request may still come.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
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

/// The body of a request on its way to the upstream server. Its errors are told from errors of the
/// upstream server.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: ClientBody,
    /// Set when the client has sent all of the body.
    has_ended: Arc<AtomicBool>,
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
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let is_last = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            _ => false,
        };
        if is_last {
            // Relaxed: the flag carries no other data.
            self.has_ended.store(true, Ordering::Relaxed);
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(RequestBodyError)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
