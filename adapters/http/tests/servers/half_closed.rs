//! Clients of HTTP/1 that close their own side after a request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::any;
use corewheel_http::axum::serve;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::http::{beside_runtime, connect, get, ms, read_until, rest_of};
use crate::served::{FAR, LIMIT, MUCH, Server, Settings, UNLIMITED};

fn start(half_close: Duration) -> Server {
    Server::with(Settings { half_close, ..UNLIMITED })
}

/// A client that closes its side after what it sends.
fn ask(server: &Server, request: &str) -> TcpStream {
    let client = server.send(request.as_bytes());
    thread::sleep(ms(50));
    client.shutdown(Shutdown::Write).unwrap();
    client
}

const GET: &str = "GET /count HTTP/1.1\r\nhost: test\r\n\r\n";
const POST: &str = "POST /count HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nbody";
const NEVER: &str = "GET /never HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn client_that_has_closed_its_side_gets_its_responses_within_the_time() {
    let server = start(FAR);
    for (requests, lengths) in [(GET, "0"), (POST, "4"), (&[GET, POST].concat(), "04")] {
        let begin = Instant::now();
        let mut answer = Vec::new();
        ask(&server, requests).read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let bodies = answer.split("\r\n\r\n").skip(1).map(|body| &body[..1]);
        assert_eq!(bodies.collect::<String>(), lengths);
        let count = answer.bytes().filter(|byte| *byte == b'x').count();
        assert!(count >= lengths.len() * MUCH, "{count} bytes");
        assert!(begin.elapsed() >= LIMIT);
    }
}

#[test]
fn handler_whose_client_has_closed_its_side_is_dropped_after_the_time() {
    for (time, sent) in [(Duration::ZERO, NEVER), (LIMIT, NEVER), (LIMIT, &[NEVER, GET].concat())] {
        let server = start(time);
        let begin = Instant::now();
        let client = ask(&server, sent);
        assert!(server.wait_for_drop() - begin >= time);
        assert_eq!(rest_of(client), "");
    }
}

#[test]
fn client_that_closes_its_side_between_requests_is_closed() {
    let server = start(FAR);
    assert_eq!(rest_of(ask(&server, "")), "");
    assert_eq!(rest_of(ask(&server, "GET / HT")), "");
}

/// Reads the answer to a request, and what comes behind it when the client has sent the rest.
fn answers(address: SocketAddr, [first, rest]: [&str; 2]) -> String {
    let mut client = connect(address);
    client.write_all(&[&get("/"), first.as_bytes()].concat()).unwrap();
    let answer = read_until(&mut client, b"\r\n\r\nok");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    client.write_all(rest.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    rest_of(client)
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
    runtime.spawn(serve(ours, app.clone()).timers(timers).half_close(FAR).into_future());
    runtime.spawn(async move {
        let mut hyper = auto::Builder::new(TokioExecutor::new()).http1_only();
        hyper.http1().half_close(true);
        while let Ok((socket, _)) = plain.accept().await {
            let (hyper, app) = (hyper.clone(), TowerToHyperService::new(app.clone()));
            tokio::spawn(async move { hyper.serve_connection(TokioIo::new(socket), app).await });
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
