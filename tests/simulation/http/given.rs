//! Servers of HTTP/1 on a simulated network, each with one given history: the driver of the server
//! is held while its client sends the rest of a body in time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use corewheel::sim::Simulation;
use corewheel::sim::net::{NetOptions, RuntimeOptions, Stream};
use corewheel::stream::{StreamControl, StreamLimits, TimedIo};
use corewheel::{AnyHandle, TimerService};
use corewheel_http::hyper::{BodyLimits, TimedBody, TimedHttp};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::servers::Failed;

const LIMIT: Duration = Duration::from_millis(200);
/// What a client is answered whose body comes in two parts. The second one is in time, and the
/// server's driver does not look before that is over.
fn answer_of<S: Future<Output = ()> + 'static>(
    seed: u64,
    serve: impl FnOnce(Stream, AnyHandle) -> S + 'static,
) -> io::Result<String> {
    let builder = TimerService::beside_runtime().shards(1).capacity(100);
    let mut sim: Simulation = Simulation::start(seed, builder, |_| |_, _| ()).unwrap();
    let (timers, time) = (sim.service().handle().untyped(), sim.time());
    let net = sim.net(NetOptions::default());
    let server = net.runtime(RuntimeOptions::default());
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let (listener, mut peer) = (net.listen(address).unwrap(), net.connect(address).unwrap());
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
