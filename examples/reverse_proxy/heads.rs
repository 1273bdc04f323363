//! What the proxy checks in the heads of requests and responses, and what of them it forwards.

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;

use hyper::ext::Protocol;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Version};

/// Header fields that are about one connection, and not forwarded.
const OF_ONE_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    // Not in any standard, and sent by clients that take the server for a proxy of theirs.
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// The clients of the proxies before the last.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Header fields that are forwarded also where `Connection` names them: a client that takes them
/// off would let the upstream server take another host for that of the request, or another client.
const OF_THE_REQUEST: [HeaderName; 2] = [header::HOST, FORWARDED_FOR];

/// Checks the head of a request, and leaves the one host that it names in `Host`. The error is the
/// status of a request that is not forwarded.
pub(crate) fn settle<B>(request: &mut Request<B>) -> Result<(), StatusCode> {
    let is_tunnel = request.method() == Method::CONNECT && !asks_for_websocket(request);
    if is_tunnel || !is_coding_known(request.headers()) {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    if let Some(host) = host_of(request)? {
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(())
}

/// Checks the host that a request names. Returns that of its URI, if the URI has one, which takes
/// the place of `Host`.
fn host_of<B>(request: &Request<B>) -> Result<Option<HeaderValue>, StatusCode> {
    const MALFORMED: StatusCode = StatusCode::BAD_REQUEST;
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (in_header, is_repeated) = (hosts.next(), hosts.next().is_some());
    let is_wrong = |host: &HeaderValue| !host.to_str().is_ok_and(is_host);
    // Every request of HTTP/1.1 has `Host`, and one of HTTP/2 has its host in the URI.
    let is_missing = in_header.is_none() && request.version() == Version::HTTP_11;
    if is_missing || is_repeated || in_header.is_some_and(is_wrong) {
        return Err(MALFORMED);
    }
    let Some(authority) = request.uri().authority() else { return Ok(None) };
    let named = authority.as_str();
    let is_other = |host: &HeaderValue| !host.as_bytes().eq_ignore_ascii_case(named.as_bytes());
    let is_contradicted = request.version() == Version::HTTP_2 && in_header.is_some_and(is_other);
    if is_contradicted || !is_host(named) {
        return Err(MALFORMED);
    }
    HeaderValue::from_str(named).map(Some).map_err(|_| MALFORMED)
}

/// Whether this is the name or the address of a host, perhaps with a port.
fn is_host(value: &str) -> bool {
    let (host, port) = match value.rsplit_once(':') {
        // Not a colon of an address.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (value, ""),
    };
    let is_port = port.is_empty() || port.parse::<u16>().is_ok() && !port.starts_with('+');
    let is_name = |host: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !host.is_empty() && host.bytes().all(is_of_name)
    };
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_named = address.map_or(is_name(host), |address| address.parse::<Ipv6Addr>().is_ok());
    is_named && is_port
}

/// Removes the header fields that are about one connection, those included that `Connection` names.
pub(crate) fn remove_of_one_connection(headers: &mut HeaderMap) {
    // Most heads have none, which takes a tenth of the time of a search for each.
    if !headers.keys().any(|name| OF_ONE_CONNECTION.contains(name)) {
        return;
    }
    if headers.contains_key(header::CONNECTION) {
        let values = headers.get_all(header::CONNECTION).iter();
        let named: Vec<HeaderName> = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .filter(|name| !OF_THE_REQUEST.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &OF_ONE_CONNECTION {
        headers.remove(name);
    }
}

/// Whether a message has no other transfer coding than `chunked`, which hyper has taken off.
pub(crate) fn is_coding_known(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings.all(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Whether a client asks for a WebSocket. No other protocol is forwarded: over HTTP/2 without TLS,
/// a client could send requests that the proxy does not see.
pub(crate) fn asks_for_websocket<B>(request: &Request<B>) -> bool {
    if request.version() == Version::HTTP_2 {
        let protocol = request.extensions().get::<Protocol>();
        return protocol.is_some_and(|protocol| protocol.as_str() == "websocket");
    }
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && is_websocket(request.headers())
}

/// Whether a head asks for a WebSocket, or says that one begins.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let Some(protocol) = headers.get(header::UPGRADE) else { return false };
    let options = headers.get_all(header::CONNECTION).iter();
    let mut names = options.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    protocol.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes())
        && names.any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
}

/// Names the WebSocket that begins.
pub(crate) fn say_websocket(headers: &mut HeaderMap) {
    headers.insert(header::UPGRADE, WEBSOCKET);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
}

/// Asks for a WebSocket by HTTP/1.1. A client of HTTP/2 has sent no key for that.
pub(crate) fn ask_for_websocket(headers: &mut HeaderMap, version: Version) {
    say_websocket(headers);
    if version == Version::HTTP_2 {
        // 16 bytes in base64, of which the first 12 are random.
        let key = format!("{:016x}AAAAAQ==", RandomState::new().hash_one(0));
        let key = HeaderValue::from_str(&key).expect("it is of ASCII");
        headers.insert(header::SEC_WEBSOCKET_KEY, key);
    }
}
