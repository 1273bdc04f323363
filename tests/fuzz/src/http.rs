//! Heads and bodies of HTTP for a `Server` of `corewheel-http`, which answers with the length of a
//! body.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use arbtest::arbitrary::{Result, Unstructured};
use corewheel::TimerService;
use corewheel_http::hyper::TimedBody;
use corewheel_http::server;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::session::{Reply, check_agree, cut, input, talk};

const WORDS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x00\x00\x08\x01\x05\x00\x00\x00\x01\x82\x86\x84\x01\x04test",
    b"\x00\x00\x08\x01\x04\x00\x00\x00\x03\x83\x86\x84\x01\x04test",
    b"\x00\x00\x05\x00\x01\x00\x00\x00\x03hello",
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
    b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"Host: a\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Upgrade: h2c\r\n",
    b"5\r\nhello\r\n",
    b"ffffffffffffffff\r\n",
];
const SIGNS: &[&[u8]] = &[
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"/",
    b"0\r\n\r\n",
    b"hello",
    b": ",
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
];

pub(crate) struct Server {
    address: SocketAddr,
    _runtime: Runtime,
    _timers: TimerService,
}

impl Server {
    pub(crate) fn start() -> Self {
        let timers = TimerService::beside_runtime().start().expect("plain threads run everywhere");
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_io().build().expect("there are threads");
        // The client closes its side behind its requests, and has its answers all the same.
        let server = server::Server::new(timers.handle()).half_close(Duration::from_secs(5));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        runtime.spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let server = server.clone();
                tokio::spawn(async move {
                    let stream = server.stream(socket);
                    server.serve(stream, service_fn(answer), pending::<()>()).await;
                });
            }
        });
        Self { address, _runtime: runtime, _timers: timers }
    }

    pub(crate) fn check(&self, bytes: &mut Unstructured) -> Result<()> {
        let sent = input(bytes, [WORDS, SIGNS], 16)?;
        let whole = without_dates(talk(self.address, &[&sent]));
        let cut = without_dates(talk(self.address, &cut(bytes, &sent)?));
        // Where a client speaks HTTP/2, the order of frames follows from the pieces.
        if whole.bytes.starts_with(b"HTTP/1") && cut.bytes.starts_with(b"HTTP/1") {
            // hyper looks at a head as soon as it has begun, and then not until its empty line has
            // come. So a head that is none is refused in one piece, and is only incomplete if the
            // client ends behind a first piece of it that may still become a head.
            check_agree(&sent, &without_refusal(&whole), &without_refusal(&cut));
        }
        Ok(())
    }
}

/// Leaves out the dates, which depend on the time.
fn without_dates(mut reply: Reply) -> Reply {
    const DATE: &[u8] = b"date: ";
    // As long as a date of HTTP always is, with the end of its line.
    const LENGTH: usize = DATE.len() + 29 + 2;
    let mut at = 0;
    while at + DATE.len() <= reply.bytes.len() {
        if reply.bytes[at..].starts_with(DATE) {
            reply.bytes.drain(at..(at + LENGTH).min(reply.bytes.len()));
        } else {
            at += 1;
        }
    }
    reply
}

/// Leaves out the last answer where hyper has refused a head by it.
fn without_refusal(reply: &Reply) -> Reply {
    let mut reply = reply.clone();
    let refusal = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    if reply.bytes.ends_with(refusal) {
        reply.bytes.truncate(reply.bytes.len() - refusal.len());
    }
    reply
}

/// Answers with the length of the body.
async fn answer(
    request: Request<TimedBody<Incoming>>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let (status, said) = match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
        Err(_) => (StatusCode::BAD_REQUEST, "the body is none".to_owned()),
    };
    Ok(Response::builder().status(status).body(said.into()).expect("it is valid"))
}
