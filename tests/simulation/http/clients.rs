//! The clients: hyper's own, and such as fall silent.

use std::time::Duration;

use corewheel::sim::net::{Runtime, Stream};
use fastrand::Rng;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::seen::Seen;
use super::servers::InRuntime;
use super::{REQUESTS_MAX, World};
use crate::sockets::one_of;

/// A client's way to send a request.
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn new(
        stream: Stream,
        is_http2: bool,
        runtime: &Runtime,
        rng: &mut Rng,
    ) -> hyper::Result<Self> {
        let io = TokioIo::new(stream);
        if is_http2 {
            let mut client = http2::Builder::new(InRuntime(runtime.clone()));
            let window = one_of(rng, &[1_000, 65_535]);
            let (sender, conn) = client.initial_stream_window_size(window).handshake(io).await?;
            drop(runtime.spawn(conn));
            Ok(Self::Http2(sender))
        } else {
            let (sender, conn) = http1::handshake(io).await?;
            drop(runtime.spawn(conn));
            Ok(Self::Http1(sender))
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// Asks and takes the responses, as fast as they come or steadily.
pub(crate) async fn honest(
    world: &World,
    seen: &Seen,
    stream: Stream,
    runtime: &Runtime,
    mut rng: Rng,
) {
    let mut sender = match Sender::new(stream, seen.is_http2, runtime, &mut rng).await {
        Ok(sender) => sender,
        Err(error) => return seen.is_cut(world, 0, &error),
    };
    for _ in 0..rng.u64(1..=REQUESTS_MAX) {
        let had = seen.requests();
        let asked = ask(world, seen, &mut sender, &mut rng).await;
        if let Err(error) = asked {
            return seen.is_cut(world, had, &error);
        }
    }
}

async fn ask(world: &World, seen: &Seen, sender: &mut Sender, rng: &mut Rng) -> hyper::Result<()> {
    let limit = seen.limits.limit;
    // Most requests are short, so that there are many of them.
    let length = match rng.u8(..24) {
        0 => 60_003,
        1..4 => 5_001,
        4..11 => 100,
        11..18 => 1,
        _ => 0,
    };
    let body = vec![b'a'; one_of(rng, &[0, 0, 1, 1, 1, 3_000])];
    let request = Request::post(format!("/{length}")).header("host", "a");
    let request = request.body(Full::from(body)).expect("the request is valid");
    seen.ask(world);
    let mut body = sender.send(request).await?.into_body();
    let (mut received, is_slow) = (0, rng.bool());
    while let Some(frame) = body.frame().await {
        received += frame?.data_ref().map_or(0, Bytes::len);
        if is_slow {
            world.time.sleep(limit / 40).await;
        }
    }
    if received != length {
        world.violate(format!("{received} bytes of {length} came"));
    }
    world.answered.set(world.answered.get() + 1);
    // Before the idle time is over, which begins when the server's socket has accepted all. What a
    // slow client takes from there is idle time already.
    let longest = limit.saturating_sub(Duration::from_millis(1));
    let random = longest.mul_f64(rng.f64());
    let pause = one_of(rng, &[longest, random]);
    if !is_slow {
        world.time.sleep(one_of(rng, &[Duration::ZERO, pause])).await;
    }
    Ok(())
}

/// Sends a part of a request, or nothing, and waits.
pub(crate) async fn silent(world: &World, seen: &Seen, mut stream: Stream, mut rng: Rng) {
    let part = &b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabc"[..];
    // Often a part of the body.
    let random = rng.usize(..part.len());
    let length = one_of(&mut rng, &[random, part.len() - 1]);
    let sent = stream.write_all(&part[..length]).await;
    seen.fall_silent(world);
    if sent.is_ok() {
        while stream.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {}
    }
}

/// Sends a request of HTTP/1, and does not take the response.
pub(crate) async fn stuck(world: &World, seen: &Seen, mut stream: Stream) {
    let sent = stream.write_all(b"GET /60003 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    seen.fall_silent(world);
    while sent.is_ok() && !seen.is_over() {
        world.time.sleep(seen.limits.limit).await;
    }
}
