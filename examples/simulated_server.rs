//! A server of hyper on a simulated network, for 1,000 seeds. It is the program of the guide
//! `testing`.
//!
//! ```sh
//! cargo run --release --example simulated_server
//! ```
//!
//! To try: a shorter `IDLE`, and more seeds.

#![allow(clippy::print_stdout, reason = "it says what it has run")]

use corewheel::sim::Simulation;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{AnyHandle, TimerService};
use corewheel_http::hyper::TimedHttp;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

const IDLE: Duration = Duration::from_secs(30);

/// The server under test. In production, `S` is a `TcpStream`.
async fn serve<S>(timers: AnyHandle, socket: S) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = StreamLimits::default().write_stall(IDLE).idle(IDLE);
    let stream = TimedIo::new(socket, timers, limits);
    let answer = service_fn(|_request| async {
        let body = Full::<Bytes>::from("an answer");
        Ok::<_, hyper::Error>(Response::new(body))
    });
    let service = TimedHttp::new(answer, stream.control());
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for seed in 0..1_000 {
        let builder = TimerService::beside_runtime().shards(1).capacity(100);
        let mut sim: Simulation = Simulation::start(seed, builder, |_| |_, _| ())?;
        let timers = sim.service().handle().untyped();
        let (time, mut rng) = (sim.time(), sim.rng());
        let net = sim.net();
        let server = net.runtime(2);
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let listener = net.listen(address)?;
        let serving = server.spawn(async move { serve(timers, listener.accept().await).await });
        let clients = net.runtime(2);
        let in_clients = clients.clone();
        let client = clients.spawn(async move {
            let io = TokioIo::new(net.connect(address)?);
            let (mut sender, conn) = hyper::client::conn::http1::handshake(io).await?;
            drop(in_clients.spawn(conn));
            for _ in 0..10 {
                // The server is held up, and the client is in time.
                server.stall(Duration::from_millis(rng.u64(..50_000)));
                time.sleep(Duration::from_millis(rng.u64(..29_999))).await;
                let request =
                    Request::get("/").header("host", "a").body(Full::<Bytes>::default())?;
                let response = sender.send_request(request).await?;
                let body = response.into_body().collect().await?;
                assert_eq!(body.to_bytes(), "an answer");
            }
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        sim.run(client).map_err(|error| format!("seed {seed}: {error}"))?;
        assert!(sim.run(serving).is_ok(), "seed {seed}: the client has left");
    }
    println!("no seed has cut a client that was in time");
    Ok(())
}
