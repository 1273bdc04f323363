//! Servers on a simulated network, each with one given history: the driver of the server is held
//! while its client sends the rest of a body in time, or waits for a window of HTTP/2.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use corewheel::AnyHandle;
use corewheel::sim::net::Stream;
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel_http::hyper::{BodyLimits, TimedBody, TimedHttp};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2 as client2;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::clients::Parts;
use super::servers::{Failed, InRuntime};
use crate::judge::{given, pair};

const LIMIT: Duration = Duration::from_millis(200);
/// The window of a connection of HTTP/2 that begins.
const WINDOW: u32 = 65_535;

/// What a client is answered whose body comes in two parts. The second one is in time, and the
/// server's driver does not look before that is over.
fn answer_of<S: Future<Output = ()> + 'static>(
    seed: u64,
    serve: impl FnOnce(Stream, AnyHandle) -> S + 'static,
) -> io::Result<String> {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle().untyped(), sim.time());
    let net = sim.net();
    let server = net.runtime(2);
    let (listener, mut peer) = pair(&net, 80);
    drop(server.spawn(async move { serve(listener.accept().await, timers).await }));
    let client = sim.spawn(async move {
        let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 6\r\n\r\n";
        peer.write_all(format!("{head}abc").as_bytes()).await?;
        time.sleep(LIMIT / 2).await;
        server.hold_driver(LIMIT);
        peer.write_all(b"def").await?;
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await?;
        Ok(answer)
    });
    sim.run(client)
}

fn stream_of(stream: Stream, timers: AnyHandle) -> (TokioIo<TimedIo<Stream>>, StreamControl) {
    let stream = TimedIo::new(stream, timers, StreamLimits::default().idle(10 * LIMIT));
    let control = stream.control();
    (TokioIo::new(stream), control)
}

fn check(answer: impl Fn(u64) -> io::Result<String>) {
    for seed in 0..50 {
        let answer = answer(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let is_whole = answer.starts_with("HTTP/1.1 200") && answer.ends_with("abcdef");
        assert!(is_whole, "seed {seed}: {answer}");
    }
}

async fn echo(request: Request<TimedBody<Incoming>>) -> Result<Response<Full<Bytes>>, Failed> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

#[test]
fn body_that_came_while_the_driver_was_held_is_not_cut() {
    check(|seed| {
        answer_of(seed, |stream, timers| async move {
            let (io, control) = stream_of(stream, timers);
            let service = TimedHttp::new(service_fn(echo), control)
                .request(BodyLimits::default().next_frame(LIMIT));
            drop(http1::Builder::new().serve_connection(io, service).await);
        })
    });
}

#[test]
fn router_of_axum_serves_a_simulated_client_as_the_service_of_hyper() {
    check(|seed| {
        answer_of(seed, |stream, timers| async move {
            let (io, control) = stream_of(stream, timers);
            let router = Router::new().route("/", post(async |body: Bytes| body));
            let service = TimedHttp::new(TowerToHyperService::new(router), control)
                .request(BodyLimits::default().next_frame(LIMIT));
            drop(http1::Builder::new().serve_connection(io, service).await);
        })
    });
}

/// The history of a connection of HTTP/2 with two requests.
#[derive(Clone, Copy)]
struct Waits {
    /// When the first request is sent, whose body uses up the server's window for the connection.
    first_sent: Duration,
    /// How long its handler does not read that body.
    reads_after: Duration,
    /// When the driver of the server is held, and for how long.
    held: (Duration, Duration),
}

/// Checks that the second of two requests is answered whose client waits for the server's window.
fn check_waits(waits: Waits) {
    for seed in 0..50 {
        let answer = second_answer(seed, waits);
        let answer = answer.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        assert_eq!(answer, "3", "seed {seed}");
    }
}

fn second_answer(seed: u64, waits: Waits) -> hyper::Result<Bytes> {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle().untyped(), sim.time());
    let net = sim.net();
    let server = net.runtime(2).events_max(1);
    let clients = net.runtime(2);
    let (listener, peer) = pair(&net, 80);
    let (runtime, of_handler) = (InRuntime(server.clone()), time.clone());
    drop(server.spawn(async move {
        let (io, control) = stream_of(listener.accept().await, timers);
        let service = service_fn(move |request: Request<TimedBody<Incoming>>| {
            let time = of_handler.clone();
            async move {
                if request.uri().path() == "/first" {
                    time.sleep(waits.reads_after).await;
                }
                let length = request.into_body().collect().await?.to_bytes().len();
                Ok::<_, Failed>(Response::new(Full::new(Bytes::from(length.to_string()))))
            }
        });
        let service =
            TimedHttp::new(service, control).request(BodyLimits::default().next_frame(LIMIT));
        let mut builder = http2::Builder::new(runtime);
        builder.initial_connection_window_size(WINDOW).initial_stream_window_size(WINDOW);
        drop(builder.serve_connection(io, service).await);
    }));
    let runtime = InRuntime(clients.clone());
    let client = clients.spawn(async move {
        let (mut sender, conn) = client2::handshake(runtime.clone(), TokioIo::new(peer)).await?;
        drop(runtime.0.spawn(conn));
        let at = |moment| Some(Box::pin(time.sleep(moment)) as _);
        let request = |path, body| Request::post(format!("http://a/{path}")).body(body).unwrap();
        let empty = Bytes::new;
        // Its head comes before the server is held, and its body would come in time.
        let body = Parts { parts: [empty(), Bytes::from_static(b"end")], pause: at(LIMIT / 2) };
        let second = sender.send_request(request("second", body));
        let body = Parts { parts: [vec![b'a'; WINDOW as usize].into(), empty()], pause: None };
        let first = sender.send_request(request("first", body));
        let second = runtime.0.spawn(second);
        let (held_from, held_for) = waits.held;
        let hold = time.sleep(held_from);
        drop(runtime.0.spawn(async move {
            hold.await;
            server.hold_driver(held_for);
        }));
        time.sleep(waits.first_sent).await;
        drop(runtime.0.spawn(first));
        let answer = second.await?;
        Ok(answer.into_body().collect().await?.to_bytes())
    });
    sim.run(client)
}

#[test]
fn body_that_came_after_a_window_while_the_driver_was_held_is_not_cut() {
    // The limit is judged when the window is shut. The window opens, the body comes, and the time
    // is up that counts from then, all before the driver looks.
    check_waits(Waits {
        first_sent: Duration::ZERO,
        reads_after: LIMIT + LIMIT / 2,
        held: (LIMIT / 4, 3 * LIMIT),
    });
}
