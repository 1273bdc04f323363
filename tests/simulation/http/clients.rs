//! The clients: hyper's own, and such as fall silent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use corewheel::sim::net::{Runtime, Stream};
use fastrand::Rng;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::seen::Seen;
use super::servers::InRuntime;
use super::{BODY_RATE, REQUESTS_MAX, World};
use crate::judge::one_of;

/// The body of a request, in two parts with a pause between them, or in one.
pub(super) struct Parts {
    pub(super) parts: [Bytes; 2],
    pub(super) pause: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { parts: [first, second], pause } = &mut *self;
        if first.is_empty()
            && let Some(waits) = pause
        {
            ready!(waits.as_mut().poll(cx));
            *pause = None;
        }
        let part = if first.is_empty() { second } else { first };
        let part = std::mem::take(part);
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(|part| part.len() as u64).sum())
    }
}

/// A client's way to send a request.
pub(super) enum Sender<B> {
    Http1(http1::SendRequest<B>),
    Http2(http2::SendRequest<B>),
}

impl<B> Sender<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Unpin + 'static,
{
    /// `window` is that of the streams of HTTP/2, `None` for a connection of HTTP/1.
    pub(super) async fn new(
        stream: Stream,
        window: Option<u32>,
        runtime: &Runtime,
    ) -> hyper::Result<Self> {
        let io = TokioIo::new(stream);
        if let Some(window) = window {
            let mut client = http2::Builder::new(InRuntime(runtime.clone()));
            let (sender, conn) = client.initial_stream_window_size(window).handshake(io).await?;
            drop(runtime.spawn(conn));
            Ok(Self::Http2(sender))
        } else {
            let (sender, conn) = http1::handshake(io).await?;
            drop(runtime.spawn(conn.with_upgrades()));
            Ok(Self::Http1(sender))
        }
    }

    pub(super) async fn send(&mut self, request: Request<B>) -> hyper::Result<Response<Incoming>> {
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
    let window = seen.is_http2.then(|| one_of(&mut rng, &[1_000, 65_535]));
    let mut sender = match Sender::new(stream, window, runtime).await {
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

async fn ask(
    world: &World,
    seen: &Seen,
    sender: &mut Sender<Parts>,
    rng: &mut Rng,
) -> hyper::Result<()> {
    let limit = seen.limits.limit;
    // Most requests are short, so that there are many of them.
    let length = match rng.u8(..24) {
        0 => 60_003,
        1..4 => 5_001,
        4..11 => 100,
        11..18 => 1,
        _ => 0,
    };
    let body = Bytes::from(vec![b'a'; one_of(rng, &[0, 0, 1, 1, 1, 3_000])]);
    // Longer than the idle time. A request that has a time would not come to its end.
    let is_long = seen.is_patient();
    let pauses = seen.limits.request > 2 * limit && rng.u8(..if is_long { 4 } else { 3 }) == 0;
    // Or up to the time of a frame, which the second part comes in.
    let shorter = limit.saturating_sub(Duration::from_millis(1));
    let random = shorter.mul_f64(rng.f64());
    let shorter = one_of(rng, &[shorter, random]);
    let pause = if is_long { limit.mul_f64(1.25 + rng.f64()) } else { shorter };
    let body = Parts {
        parts: [body, if pauses { Bytes::from_static(b"end") } else { Bytes::new() }],
        pause: pauses.then(|| Box::pin(world.time.sleep(pause)) as _),
    };
    seen.pauses.set(pauses);
    let request = Request::post(format!("/{length}")).header("host", "a");
    let request = request.body(body).expect("the request is valid");
    seen.ask(world);
    let response = sender.send(request).await?;
    let is_late = response.status() == StatusCode::GATEWAY_TIMEOUT;
    let mut body = response.into_body();
    let (mut received, is_slow) = (0, rng.bool());
    while let Some(frame) = body.frame().await {
        received += frame?.data_ref().map_or(0, Bytes::len);
        if is_slow {
            world.time.sleep(limit / 40).await;
        }
    }
    if received != length && !is_late {
        world.violate(format!("{received} bytes of {length} came"));
    }
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

/// Sends the body of a request of HTTP/1 steadily, at twice the least rate or at a quarter of it.
pub(crate) async fn trickling(world: &World, seen: &Seen, mut stream: Stream, mut rng: Rng) {
    // Small buffers do not take what is sent while the server is held up.
    let is_slow = !seen.is_patient() && (rng.bool() || !world.has_large_buffers());
    let (part, pause, parts) = if is_slow {
        (1, Duration::from_millis(4_000 / BODY_RATE), 10_000)
    } else {
        let pause = seen.limits.limit / 40;
        let part = (u128::from(2 * BODY_RATE) * pause.as_nanos()).div_ceil(1_000_000_000);
        (part.max(1) as usize, pause, 80)
    };
    let head = format!("POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", part * parts);
    let (before, mut sent) = (seen.requests(), stream.write_all(head.as_bytes()).await);
    if is_slow {
        seen.fall_silent(world);
        seen.is_slow.set(true);
    }
    for _ in 0..parts {
        if sent.is_err() {
            break;
        }
        sent = stream.write_all(&vec![b'a'; part]).await;
        world.time.sleep(pause).await;
    }
    let mut answer = [0; 12];
    let read = stream.read_exact(&mut answer).await;
    if is_slow {
        return;
    }
    match read {
        Err(error) => seen.is_cut(world, before, &error),
        Ok(_) if answer != *b"HTTP/1.1 200" && answer != *b"HTTP/1.1 504" => {
            world.violate(format!("{seen:?}: a steady client gets {answer:?}"));
        }
        Ok(_) => {}
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
