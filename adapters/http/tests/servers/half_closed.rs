//! Clients of HTTP/1 that close their own side after a request.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use corewheel::TimerService;
use corewheel_http::axum::serve;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::axum_told::FAR;
use crate::http::{Dropped, PATIENCE, beside_runtime, connect, get, ms, read_until};

const WORK: Duration = ms(500);
/// More than a socket takes at once.
const LONG: usize = 16 << 20;

struct Server {
    address: SocketAddr,
    dropped: Receiver<Instant>,
    _running: (Runtime, TimerService),
}

impl Server {
    fn start(half_close: Duration) -> Self {
        let (service, runtime, listener, address) = beside_runtime(Builder::enable_all);
        let timers = service.handle();
        let (drops, dropped) = mpsc::channel();
        let work = async move |body: Body| {
            tokio::time::sleep(WORK).await;
            let length = body.collect().await.unwrap().to_bytes().len();
            [length.to_string().as_bytes(), &vec![b'x'; LONG]].concat()
        };
        let never = async move || {
            let _dropped = Dropped(drops.clone());
            std::future::pending::<()>().await;
        };
        let app = Router::new().route("/work", any(work)).route("/never", any(never));
        runtime
            .spawn(async move { serve(listener, app).timers(timers).half_close(half_close).await });
        Self { address, dropped, _running: (runtime, service) }
    }

    /// A client that closes its side after what it sends.
    fn ask(&self, request: &str) -> TcpStream {
        let mut client = connect(self.address);
        client.write_all(request.as_bytes()).unwrap();
        thread::sleep(ms(50));
        client.shutdown(Shutdown::Write).unwrap();
        client
    }
}

const GET: &str = "GET /work HTTP/1.1\r\nhost: test\r\n\r\n";
const POST: &str = "POST /work HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbody";
const NEVER: &str = "GET /never HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn client_that_has_closed_its_side_gets_its_responses_within_the_time() {
    let server = Server::start(FAR);
    for (requests, lengths) in [(GET, "0"), (POST, "4"), (&[GET, POST].concat(), "04")] {
        let begin = Instant::now();
        let mut answer = Vec::new();
        server.ask(requests).read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let bodies = answer.split("\r\n\r\n").skip(1).map(|body| &body[..1]);
        assert_eq!(bodies.collect::<String>(), lengths);
        let count = answer.bytes().filter(|byte| *byte == b'x').count();
        assert!(count >= lengths.len() * LONG, "{count} bytes");
        assert!(begin.elapsed() >= WORK);
    }
}

#[test]
fn handler_whose_client_has_closed_its_side_is_dropped_after_the_time() {
    for (time, sent) in [(Duration::ZERO, NEVER), (WORK, NEVER), (WORK, &[NEVER, GET].concat())] {
        let server = Server::start(time);
        let begin = Instant::now();
        let mut client = server.ask(sent);
        let dropped = server.dropped.recv_timeout(PATIENCE).expect("the handler works on");
        assert!(dropped - begin >= time);
        assert_eq!(read_until(&mut client, b"\0"), "");
    }
}

#[test]
fn client_that_closes_its_side_between_requests_is_closed() {
    let server = Server::start(FAR);
    assert_eq!(read_until(&mut server.ask(""), b"\0"), "");
    assert_eq!(read_until(&mut server.ask("GET / HT"), b"\0"), "");
}

/// Reads the answer to a request, and what comes behind it when the client has sent the rest.
fn answers(address: SocketAddr, [first, rest]: [&str; 2]) -> String {
    let mut client = connect(address);
    client.write_all(&[&get("/"), first.as_bytes()].concat()).unwrap();
    let answer = read_until(&mut client, b"\r\n\r\nok");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    client.write_all(rest.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    read_until(&mut client, b"\0")
}

/// hyper parses a head when its first piece is there, and then not until its empty line has come.
#[test]
fn bytes_that_are_no_head_are_refused_in_one_piece_alone_as_by_hyper_itself() {
    const PIECES: [([&str; 2], bool); 3] = [
        (["Content-Length: 1\r\n", ""], true),
        (["Content", "-Length: 1\r\n"], false),
        (["Content", "-Length: 1\r\n\r\n"], true),
    ];
    let (service, runtime, ours, address) = beside_runtime(Builder::enable_all);
    let timers = service.handle();
    let plain = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let addresses = [address, plain.local_addr().unwrap()];
    let app = Router::new().route("/", any(async || "ok"));
    runtime.spawn(async move { serve(ours, app).timers(timers).half_close(FAR).await });
    runtime.spawn(async move {
        let answer = async |_| Ok::<_, Infallible>(Response::new("ok".to_owned()));
        while let Ok((socket, _)) = plain.accept().await {
            let mut http1 = http1::Builder::new();
            let service = service_fn(answer);
            let serving = http1.half_close(true).serve_connection(TokioIo::new(socket), service);
            tokio::spawn(serving);
        }
    });
    for (pieces, is_refused) in PIECES {
        for address in addresses {
            let rest = answers(address, pieces);
            assert_eq!(
                rest.starts_with("HTTP/1.1 400 Bad Request"),
                is_refused,
                "{pieces:?}: {rest}"
            );
            assert!(is_refused || rest.is_empty(), "{pieces:?}: {rest}");
        }
    }
}
