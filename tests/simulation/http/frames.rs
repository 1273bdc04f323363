//! A client of HTTP/2 that writes its frames itself, so that no library gives a window for it. It
//! takes what the server sends at once.

use std::rc::Rc;
use std::time::Duration;

use corewheel::sim::net::Stream;
use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::responses::{Asked, Seen, World};
use crate::judge::one_of;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a client gives in the end: enough for all of its responses.
const ENOUGH: u32 = 1 << 28;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Takes what the server sends, at once.
pub(super) async fn receive(world: Rc<World>, seen: Rc<Seen>, mut stream: ReadHalf<Stream>) {
    let (mut head, mut left, mut of) = (Vec::new(), 0, None);
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        let mut read = &bytes[..count];
        while !read.is_empty() {
            if left == 0 {
                head.push(read[0]);
                read = &read[1..];
                if let [high, middle, low, kind, flags, one, two, three, four] = head[..] {
                    left = u32::from_be_bytes([0, high, middle, low]) as usize;
                    of = Some((kind, flags, u32::from_be_bytes([one, two, three, four])));
                    head.clear();
                }
            }
            let part = left.min(read.len());
            (left, read) = (left - part, &read[part..]);
            let Some((kind, flags, number)) = of else { continue };
            let mut responses = seen.responses.borrow_mut();
            let asked = responses.get_mut(&number).filter(|asked| !asked.is_over());
            if let (DATA, Some(asked)) = (kind, asked) {
                asked.received += part;
                if part > 0 {
                    seen.takes(&world);
                }
                if left == 0 && flags & END_STREAM != 0 {
                    asked.over_at = Some(world.now());
                    world.count("responses", 1);
                    let length: usize = asked.frames.iter().sum();
                    if asked.received != length {
                        world.violate(format!("stream {number} ends too early: {asked:?}"));
                    }
                }
            }
            of = of.filter(|_| left > 0);
        }
    }
}

/// The frames that a client sends.
pub(super) struct Client {
    world: Rc<World>,
    seen: Rc<Seen>,
    stream: WriteHalf<Stream>,
    rng: Rng,
    /// The number of the next stream.
    next: u32,
}

impl Client {
    pub(super) fn new(
        world: Rc<World>,
        seen: Rc<Seen>,
        stream: WriteHalf<Stream>,
        rng: Rng,
    ) -> Self {
        Self { world, seen, stream, rng, next: 1 }
    }

    /// Errors show as an end of the connection.
    async fn send(&mut self, bytes: &[u8]) {
        drop(self.stream.write_all(bytes).await);
    }

    async fn ask(&mut self) {
        let longest = self.seen.stall.as_micros() as u64 / 2;
        let (rng, stream) = (&mut self.rng, self.next);
        let frame_max = one_of(rng, &[1, 10, 1_000, 60_000]);
        let frames = (0..rng.usize(1..4)).map(|_| rng.usize(1..=frame_max)).collect();
        let random = rng.u64(..longest);
        let path = format!("/{stream}/{}", one_of(rng, &[0, 0, random]));
        // GET, http, the path and the host, by the static table of HPACK.
        let mut head = vec![0x82, 0x86, 0x04, path.len() as u8];
        head.extend(path.as_bytes());
        head.extend([0x01, 1, b'a']);
        self.next += 2;
        self.seen.responses.borrow_mut().insert(stream, Asked { frames, ..Asked::default() });
        self.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &head)).await;
    }

    /// A stream whose response has not come whole, or that of the connection.
    fn any_stream(&mut self, has_connection: bool) -> Option<u32> {
        let responses = self.seen.responses.borrow();
        let open =
            responses.iter().filter(|(_, asked)| !asked.is_over()).map(|(stream, _)| *stream);
        let all: Vec<_> = open.chain(has_connection.then_some(0)).collect();
        self.rng.choice(all)
    }

    async fn give(&mut self, stream: u32, bytes: u32) {
        self.seen.gives(&self.world);
        self.world.count("windows given", 1);
        self.send(&frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())).await;
    }

    /// A number of frames of any kind, which the server receives at once.
    async fn act(&mut self) {
        for _ in 0..self.rng.u8(1..4) {
            match self.rng.u8(..10) {
                0..=5 => {
                    let Some(stream) = self.any_stream(true) else { continue };
                    let bytes = one_of(&mut self.rng, &[1, 1, 1, 7, 500, 5_000]);
                    self.give(stream, bytes).await;
                }
                6..=7 => {
                    let Some(stream) = self.any_stream(false) else { continue };
                    self.seen.reset_at.set(self.world.now());
                    if let Some(asked) = self.seen.responses.borrow_mut().get_mut(&stream) {
                        // The server knows of it when it is not held up.
                        asked.over_at = Some(self.world.now().max(self.world.held_until()));
                    }
                    self.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())).await;
                }
                _ => self.ask().await,
            }
        }
    }

    pub(super) async fn run(mut self) {
        let window: u32 = one_of(&mut self.rng, &[0, 1, 1, 10, 1_000, ENOUGH]);
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        self.send(&[PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()).await;
        for _ in 0..self.rng.u8(1..4) {
            self.ask().await;
        }
        let (stall, time) = (self.seen.stall, self.world.time.clone());
        for _ in 0..self.rng.u8(..12) {
            // Most pauses are shorter than a stall, and two of them are mostly longer.
            let random = stall.mul_f64(self.rng.f64());
            let longest = stall.saturating_sub(Duration::from_millis(1));
            let pause =
                one_of(&mut self.rng, &[random, random, longest, Duration::ZERO, 2 * stall]);
            time.sleep(pause).await;
            self.act().await;
        }
        let has_enough = self.rng.u8(..4) > 0;
        if has_enough {
            let open: Vec<_> = self.seen.responses.borrow().keys().copied().collect();
            for stream in [0].into_iter().chain(open) {
                self.give(stream, ENOUGH).await;
            }
        }
        // The responses come, or the server cuts the client.
        let (world, seen, given) = (&self.world, &self.seen, self.world.now());
        let is_done = || seen.responses.borrow().values().all(Asked::is_over);
        let is_late = || world.now() > given.max(world.held_until()) + 4 * stall;
        while !is_done() && !seen.is_over() && !is_late() {
            time.sleep(stall).await;
        }
        if has_enough && !is_done() && !seen.is_over() {
            world.violate(format!("responses do not come: {seen:?}"));
        }
        seen.is_closed.set(true);
        drop(self.stream.shutdown().await);
    }
}
