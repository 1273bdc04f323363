//! `serve` of this package over real sockets: idle connections and slow clients are cut, and no
//! request that the server works on is, nor in a graceful shutdown.

use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::handler::{Handler, HandlerWithoutStateExt};
use axum::routing::get as on_get;
use axum::serve::ListenerExt;
use corewheel::conn::DataRate;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::{IncomingStream, serve};
use corewheel_http::hyper::BodyLimits;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::axum_told::{LONG, OFF, PARTS, Server, half};
use crate::http::{
    PATIENCE, ask, beside_runtime, check_at_once, connect, connect_http2, get, ms, read_until,
    wait_until,
};
use crate::on_its_way::clients::{Client, VERSIONS, Version};

/// Each limit: shorter than a handler works that comes to an end by itself.
const LIMIT: Duration = ms(1_000);
const RATE: DataRate = DataRate::new(1_000, LIMIT);

const ALL: StreamLimits =
    OFF.first_byte(LIMIT).head(LIMIT).idle(LIMIT).read_idle(LIMIT).min_read_rate(RATE);

/// A server for which a client that stops in a body is idle.
fn start(limits: StreamLimits) -> Server {
    Server::start(limits, BodyLimits::NONE)
}

#[test]
fn connection_that_is_idle_or_whose_head_or_body_is_slow_is_cut() {
    let cases = [
        (OFF.first_byte(LIMIT), Vec::new(), "handshake"),
        (OFF.idle(LIMIT), get("/"), "all idle"),
        (OFF.head(LIMIT), b"GET / HT".to_vec(), "request"),
        (OFF.idle(LIMIT), half("/post"), "all idle"),
        (OFF.min_read_rate(RATE), half("/post"), "read rate"),
    ];
    check_at_once(cases, |(limits, sent, limit)| {
        let server = start(limits);
        let begin = Instant::now();
        let answer = server.answer_to(&sent);
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        let is_request = sent.ends_with(b"\r\n\r\n");
        assert_eq!(answer.starts_with("HTTP/1.1 200"), is_request, "{answer:?}");
        let stats = server.service.stats();
        let came = stats.deadlines.iter().filter(|of| of.count > 0).map(|of| of.kind);
        assert_eq!(came.collect::<Vec<_>>(), [limit]);
        server.stop();
    });
}

#[test]
fn handlers_and_responses_that_take_longer_than_each_limit_are_not_cut() {
    let server = start(ALL);
    // The second request is there before the first is answered.
    let mut client = server.send(&get("/late").repeat(2));
    for _ in 0..2 {
        assert!(read_until(&mut client, b"worked").starts_with("HTTP/1.1 200"));
    }
    client.write_all(&get("/slow")).unwrap();
    let answer = read_until(&mut client, b"0\r\n\r\n");
    assert_eq!(answer.matches("part").count(), PARTS as usize, "{answer:?}");
    server.runtime.block_on(async {
        let client = connect_http2(server.address).await;
        // They end at different times.
        let (at_once, panicked, late, slow) = tokio::join!(
            ask(client.clone(), "/"),
            ask(client.clone(), "/panic"),
            ask(client.clone(), "/late"),
            ask(client.clone(), "/slow"),
        );
        assert_eq!(at_once.unwrap(), "hello");
        assert!(panicked.is_err());
        assert_eq!(late.unwrap(), "worked");
        assert_eq!(slow.unwrap().len(), PARTS as usize * b"part".len());
        // The connection is idle when the last has ended.
        tokio::task::block_in_place(|| wait_until(|| client.is_closed()));
    });
    assert_eq!(read_until(&mut client, b"\0"), "");
    // Both idle limits are due at the same time.
    let ended = server.stop();
    let idle: u64 = ended.iter().filter(|of| of.0.ends_with("idle")).map(|of| of.1).sum();
    assert_eq!(idle, 2, "{ended:?}");
}

#[test]
fn http1_head_that_comes_with_the_body_before_it_is_cut_as_a_slow_head() {
    let head = "POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 8\r\n\r\n";
    let body = "bo\r\n\r\ndy";
    let (whole, with_more) = (&[head, body].concat(), &[head, body, "GET"].concat());
    // All in one read, the body in another one, and a part of it.
    let parted = [0, head.len(), whole.len() - 3].into_iter();
    // Of the second, no byte is behind the body.
    let cases = parted.flat_map(|parted| {
        [(parted, with_more, Duration::ZERO, "request"), (parted, whole, 2 * LIMIT, "all idle")]
    });
    check_at_once(cases, |(parted, sent, idle, end)| {
        let server = start(OFF.head(LIMIT).idle(idle));
        let (first, second) = sent.as_bytes().split_at(parted);
        let mut client = server.send(first);
        thread::sleep(LIMIT / 2);
        let begin = Instant::now();
        client.write_all(second).unwrap();
        assert!(read_until(&mut client, body.as_bytes()).starts_with("HTTP/1.1 200"));
        let told = read_until(&mut client, b"\0");
        assert_eq!(told.starts_with("HTTP/1.1 408 "), !told.is_empty(), "{told:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        assert_eq!(server.stop(), [(end, 1)]);
    });
}

#[test]
fn client_that_takes_a_long_response_slowly_is_not_idle() {
    // A client of HTTP/2 has a window for all of it, or for a part.
    let cases = VERSIONS.map(|version| (version, None));
    check_at_once(
        cases.into_iter().chain([(Version::Http2, Some(40_000))]),
        |(version, window)| {
            let server = start(OFF.idle(ms(200)).write_stall(PATIENCE));
            let mut client = Client::connect(server.address, version, window.unwrap_or(32 << 20));
            client.get(1, "/long");
            if let Some(window) = window {
                for _ in 0..LONG / window as usize {
                    client.read_data(window as usize);
                    thread::sleep(ms(400));
                    client.give_window(1, window);
                }
                client.read_data(LONG % window as usize);
            } else {
                client.read_steadily(LONG, &format!("{version:?}"));
            }
            client.wait_for_end();
            server.stop();
        },
    );
}

#[test]
fn http2_client_that_gives_no_window_is_cut() {
    let server = start(OFF.write_stall(LIMIT));
    let mut client = Client::connect(server.address, Version::Http2, 1);
    let begin = Instant::now();
    client.get(1, "/long");
    client.wait_for_end();
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    assert_eq!(server.stop(), [("write timeout", 1)]);
}

#[test]
fn graceful_shutdown_waits_for_a_request_that_takes_longer_than_each_limit() {
    let server = start(ALL);
    let mut client = server.send(&get("/late"));
    let mut idle = server.greet();
    server.wait_for_work();
    thread::scope(|scope| {
        scope.spawn(|| {
            let answer = read_until(&mut client, b"\0");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
            assert!(answer.ends_with("worked"), "{answer:?}");
        });
        server.stop();
    });
    assert_eq!(read_until(&mut idle, b"\0"), "");
}

/// The answer to a client of a server.
fn answer_of<F: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>>(
    serve: impl FnOnce(TcpListener) -> F,
) -> (String, String) {
    let (_service, runtime, listener, address) = beside_runtime(Builder::enable_all);
    runtime.spawn(serve(listener).into_future());
    let mut client = connect(address);
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let own = client.local_addr().unwrap().to_string();
    (read_until(&mut client, b"\0"), own)
}

#[test]
fn handler_is_given_the_control_of_its_connection_which_has_limits_without_settings() {
    // A server without settings has limits.
    let late = |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
        let late = control.timeout(ms(20), std::future::pending::<()>()).await;
        let limits = control.timers().limits();
        let is_elapsed = late.unwrap_err().is_elapsed();
        format!("late: {is_elapsed} {:?} {:?}", limits.all_idle, limits.write_timeout)
    };
    let app = Router::new().route("/", on_get(late));
    let app = app.into_make_service_with_connect_info::<StreamControl>();
    let (answer, _) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with("late: true 60s 30s"), "{answer:?}");
}

#[test]
fn handler_is_given_the_address_of_its_client() {
    let whom = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
    let app = Router::new().route("/", on_get(whom));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let (answer, own) = answer_of(|listener| serve(listener, app.clone()));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
    let tap = |stream: &mut tokio::net::TcpStream| stream.set_nodelay(true).unwrap();
    let (answer, own) = answer_of(|listener| serve(listener.tap_io(tap), app));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
}

/// What a server knows of a connection, as its own type.
#[derive(Clone)]
struct Known(String);

impl Connected<IncomingStream<'_, TcpListener>> for Known {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        let of_socket = stream.io().peer_addr().unwrap();
        assert_eq!(of_socket, *stream.remote_addr());
        assert_eq!(StreamControl::connect_info(stream).limit_reached(), None);
        Self(of_socket.to_string())
    }
}

#[test]
fn server_takes_whatever_that_of_axum_takes() {
    async fn hello() -> &'static str {
        "hello"
    }
    let router = || Router::new().route("/", on_get(hello));
    let is_hello = |(answer, _): (String, String)| assert!(answer.ends_with("hello"), "{answer:?}");
    is_hello(answer_of(|listener| serve(listener, router())));
    is_hello(answer_of(|listener| serve(listener, router().into_make_service())));
    is_hello(answer_of(|listener| serve(listener, on_get(hello))));
    is_hello(answer_of(|listener| serve(listener, hello.with_state(()))));
    is_hello(answer_of(|listener| serve(listener, hello.into_make_service())));
    is_hello(answer_of(|listener| {
        serve(listener, router()).with_graceful_shutdown(std::future::pending())
    }));
    let known = |ConnectInfo(Known(peer)): ConnectInfo<Known>| async move { peer };
    let app = Router::new().route("/", on_get(known));
    let app = app.into_make_service_with_connect_info::<Known>();
    let (answer, own) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
}
