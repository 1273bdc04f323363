//! `serve` of this package over real sockets: idle connections and slow clients are cut, and no
//! request that the server works on is, nor in a graceful shutdown.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::handler::{Handler, HandlerWithoutStateExt};
use axum::routing::get as on_get;
use axum::serve::{ListenerExt, TapIo};
use corewheel::conn::DataRate;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::{IncomingStream, serve};
use corewheel_test_support::stream::NONE as OFF;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::axum_told::half;
use crate::http::{
    DATA, RST_STREAM, beside_runtime, check_at_once, connect, get, head, ms, read_until, rest_of,
};
use crate::on_its_way::clients::{Client, Version};
use crate::served::{Http2, PARTS, Server};

/// Each limit: shorter than a handler works that comes to an end by itself.
const LIMIT: Duration = ms(1_000);
const RATE: DataRate = DataRate::new(1_000, LIMIT);

const ALL: StreamLimits =
    OFF.first_byte(LIMIT).head(LIMIT).idle(LIMIT).read_idle(LIMIT).min_read_rate(RATE);

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
        let server = Server::of(limits);
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
    let server = Server::of(ALL);
    // The second request is there before the first is answered.
    let mut client = server.send(&get("/late").repeat(2));
    for _ in 0..2 {
        assert!(read_until(&mut client, b"worked").starts_with("HTTP/1.1 200"));
    }
    client.write_all(&get("/slow")).unwrap();
    let answer = read_until(&mut client, b"0\r\n\r\n");
    assert_eq!(answer.matches("part").count(), PARTS as usize, "{answer:?}");
    let mut http2 = Http2::connect(server.address);
    // They end at different times.
    for (stream, path) in [(1, "/"), (3, "/panic"), (5, "/late"), (7, "/slow")] {
        http2.send(&head(stream, path, false));
    }
    let (mut bodies, mut reset) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    // The connection is idle when the last has ended.
    while let Some((kind, _, stream, payload)) = http2.next() {
        match kind {
            DATA => bodies.entry(stream).or_default().extend(payload),
            RST_STREAM => reset.push(stream),
            _ => {}
        }
    }
    let slow = b"part".repeat(PARTS as usize);
    assert_eq!(bodies, [(1, b"hello".to_vec()), (5, b"worked".to_vec()), (7, slow)].into());
    assert_eq!(reset, [3]);
    drop(http2);
    assert_eq!(rest_of(client), "");
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
        let server = Server::of(OFF.head(LIMIT).idle(idle));
        let (first, second) = sent.as_bytes().split_at(parted);
        let mut client = server.send(first);
        thread::sleep(LIMIT / 2);
        let begin = Instant::now();
        client.write_all(second).unwrap();
        assert!(read_until(&mut client, body.as_bytes()).starts_with("HTTP/1.1 200"));
        let told = rest_of(client);
        assert_eq!(told.starts_with("HTTP/1.1 408 "), !told.is_empty(), "{told:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        assert_eq!(server.stop(), [(end, 1)]);
    });
}

#[test]
fn http2_client_that_gives_no_window_is_cut() {
    let server = Server::of(OFF.write_stall(LIMIT));
    let mut client = Client::connect(server.address, Version::Http2, 1);
    let begin = Instant::now();
    client.get(1, "/long");
    client.wait_for_end();
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    assert_eq!(server.stop(), [("write timeout", 1)]);
}

#[test]
fn graceful_shutdown_waits_for_a_request_that_takes_longer_than_each_limit() {
    let server = Server::of(ALL);
    let client = server.send(&get("/late"));
    let idle = server.greet();
    server.wait_for_work();
    thread::scope(|scope| {
        scope.spawn(|| {
            let answer = rest_of(client);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
            assert!(answer.ends_with("worked"), "{answer:?}");
        });
        scope.spawn(|| assert_eq!(rest_of(idle), ""));
        server.stop();
    });
}

/// Serves a client. Returns its address and what it is answered.
fn answer_of<F: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>>(
    serve: impl FnOnce(TcpListener) -> F,
) -> (String, String) {
    let (_service, runtime, listener, address) = beside_runtime(Builder::enable_all);
    runtime.spawn(serve(listener).into_future());
    let mut client = connect(address);
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    (client.local_addr().unwrap().to_string(), rest_of(client))
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
    let (_, answer) = answer_of(|listener| serve(listener, app));
    assert!(answer.ends_with("late: true 60s 30s"), "{answer:?}");
}

/// What a server knows of a connection, as its own type.
#[derive(Clone)]
struct Known(SocketAddr);

type Tapped = TapIo<TcpListener, fn(&mut TcpStream)>;

impl Connected<IncomingStream<'_, Tapped>> for Known {
    fn connect_info(stream: IncomingStream<'_, Tapped>) -> Self {
        assert_eq!(stream.io().peer_addr().unwrap(), *stream.remote_addr());
        Self(SocketAddr::connect_info(stream))
    }
}

#[test]
fn handler_is_given_the_address_of_its_client_and_what_the_server_knows_of_it() {
    let whom = |ConnectInfo(Known(peer)): ConnectInfo<Known>| async move { peer.to_string() };
    let app = Router::new().route("/", on_get(whom));
    let app = app.into_make_service_with_connect_info::<Known>();
    let tap: fn(&mut TcpStream) = |stream| stream.set_nodelay(true).unwrap();
    let (own, answer) = answer_of(|listener| serve(listener.tap_io(tap), app));
    assert!(answer.ends_with(&own), "{answer:?}, {own}");
}

#[test]
fn server_takes_whatever_that_of_axum_takes() {
    async fn hello() -> &'static str {
        "hello"
    }
    let router = || Router::new().route("/", on_get(hello));
    let is_hello = |(_, answer): (String, String)| assert!(answer.ends_with("hello"), "{answer:?}");
    is_hello(answer_of(|listener| {
        serve(listener, router()).with_graceful_shutdown(std::future::pending())
    }));
    is_hello(answer_of(|listener| serve(listener, on_get(hello))));
    is_hello(answer_of(|listener| serve(listener, hello.with_state(()))));
    // These make the same services by code of axum, which the compiler takes as well.
    let _ = |[one, two, three]: [TcpListener; 3]| {
        let with_info = router().into_make_service_with_connect_info::<SocketAddr>();
        [
            serve(one, with_info).into_future(),
            serve(two, router().into_make_service()).into_future(),
            serve(three, hello.into_make_service()).into_future(),
        ]
    };
}
