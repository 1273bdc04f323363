//! What the frames of an HTTP/2 connection say: which streams are open, for how long the server's
//! own window keeps its client from sending, and when the client gives the server a window.
//!
//! A library says none of that. hyper drops the response to a CONNECT when the tunnel begins, and
//! hands the tunnel to its owner. It returns a window when a body is consumed, and a client that
//! waits for one looks like a client that sends too slowly. A window that a client gives to a
//! response which it then resets lets no byte of a response go.
//!
//! Why not the streams of the library: no call of hyper names the stream of a request.
//!
//! Invariants: a stream is open from its first head until both sides have ended it, or a side has
//! reset it. The window is that of the connection, as the client knows it.
//!
//! Cost: a branch for each read and write of another protocol. Under HTTP/2, some 50 instructions
//! for each frame (callgrind, x86-64), and some 100 bytes for the connection with 8 for each open
//! stream.

use std::mem;

use crate::conn::Direction;
use crate::link::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// With these bytes a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The window of a connection, before a side adds to it.
const WINDOW: i64 = 65_535;
/// How many open streams are known. A server allows fewer.
const STREAMS_MAX: usize = 1 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;

/// The head of a frame.
struct Frame {
    kind: u8,
    flags: u8,
    /// How long its payload is.
    length: u32,
    stream: u32,
    /// What a `WINDOW_UPDATE` adds.
    increment: u32,
}

impl Frame {
    /// The frame that begins with these bytes. `None` if they have a part of its head only, or of
    /// the payload of a `WINDOW_UPDATE`.
    #[inline]
    fn of(bytes: &[u8]) -> Option<Self> {
        let [high, middle, low, kind, flags, stream @ ..] = *bytes.first_chunk::<9>()?;
        let number = |bytes| u32::from_be_bytes(bytes) & (u32::MAX >> 1);
        let update = if kind == WINDOW_UPDATE { *bytes[9..].first_chunk()? } else { [0; 4] };
        let length = u32::from_be_bytes([0, high, middle, low]);
        Some(Self { kind, flags, length, stream: number(stream), increment: number(update) })
    }
}

/// The frames of one direction.
#[derive(Default)]
struct Frames {
    /// What has come of a frame whose head ends in a later call.
    part: [u8; 13],
    /// How long that is.
    known: usize,
    /// How many bytes of the payload of the present frame are to come.
    left: usize,
    /// Whether that is data.
    is_data: bool,
}

impl Frames {
    /// Takes the next bytes. Returns the next frame whose head they complete, and how many of them
    /// were taken.
    #[inline]
    fn next(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        let skipped = self.left.min(bytes.len());
        self.left -= skipped;
        let rest = &bytes[skipped..];
        if rest.is_empty() {
            return (skipped, None);
        }
        let frame = if self.known == 0 { Frame::of(rest) } else { None };
        let Some(frame) = frame else {
            let (taken, frame) = self.next_in_parts(rest);
            return (skipped + taken, frame);
        };
        self.begin(&frame, 9);
        (skipped + 9, Some(frame))
    }

    /// As `next`, for a head that comes in more than one call.
    #[cold]
    fn next_in_parts(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        for (at, byte) in bytes.iter().enumerate() {
            self.part[self.known] = *byte;
            self.known += 1;
            if let Some(frame) = Frame::of(&self.part[..self.known]) {
                let taken = mem::take(&mut self.known);
                self.begin(&frame, taken);
                return (at + 1, Some(frame));
            }
        }
        (bytes.len(), None)
    }

    /// So many bytes of a frame were taken.
    fn begin(&mut self, frame: &Frame, taken: usize) {
        self.left = (frame.length as usize + 9).saturating_sub(taken);
        self.is_data = frame.kind == DATA;
    }
}

/// Which side has ended a stream, as bits.
const BY_CLIENT: u8 = 1;
const BY_SERVER: u8 = 2;

#[derive(Default)]
pub(super) struct Connection {
    /// Those that were read, and those that were written.
    frames: [Frames; 2],
    /// The streams that are open, by their numbers, and who has ended them.
    streams: Vec<(u32, u8)>,
    /// The number of the last stream that was opened.
    last: u32,
    /// How much the client may send.
    window: i64,
    /// Whether the bytes that were read last have a `WINDOW_UPDATE`.
    gives: bool,
}

impl Connection {
    fn open(&mut self, stream: u32) {
        if stream > self.last && stream % 2 == 1 {
            self.last = stream;
            if self.streams.len() < STREAMS_MAX {
                self.streams.push((stream, 0));
            }
        }
    }

    /// A side has ended a stream, or has reset it, if the bits are both.
    fn end(&mut self, stream: u32, by: u8) {
        let Ok(at) = self.streams.binary_search_by_key(&stream, |(known, _)| *known) else {
            return;
        };
        self.streams[at].1 |= by;
        if self.streams[at].1 == BY_CLIENT | BY_SERVER {
            self.streams.remove(at);
        }
    }

    /// Takes a frame. True if it has data.
    fn take(&mut self, frame: &Frame, by: u8) -> bool {
        let Frame { kind, stream, length, .. } = *frame;
        match kind {
            HEADERS if by == BY_CLIENT => self.open(stream),
            DATA if by == BY_CLIENT => self.window -= i64::from(length),
            WINDOW_UPDATE if by == BY_SERVER && stream == 0 => {
                self.window += i64::from(frame.increment);
            }
            WINDOW_UPDATE if by == BY_CLIENT => self.gives = true,
            RST_STREAM => self.end(stream, BY_CLIENT | BY_SERVER),
            _ => {}
        }
        if kind <= HEADERS && frame.flags & END_STREAM != 0 {
            self.end(stream, by);
        }
        kind == DATA && length > 0
    }
}

/// What a stream knows of the protocol that it carries.
pub(super) enum Protocol {
    /// So many bytes have come of what begins a connection of HTTP/2.
    Begins(usize),
    Other,
    Http2(Box<Connection>),
}

impl Protocol {
    pub(super) const NEW: Self = Self::Begins(0);

    /// `None` before it is known.
    pub(super) fn is_known(&self) -> Option<bool> {
        match self {
            Self::Begins(_) => None,
            Self::Other => Some(false),
            Self::Http2(_) => Some(true),
        }
    }

    /// Whether the client gives a window with the bytes that were read last.
    #[inline]
    pub(super) fn gives_window(&self) -> bool {
        matches!(self, Self::Http2(connection) if connection.gives)
    }

    /// These bytes were read or written. True if they are of a tunnel's connection and have data.
    #[inline]
    pub(super) fn moved(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        known: &Streams,
        now: impl Fn() -> u64,
    ) -> bool {
        match self {
            Self::Http2(connection) => connection.moved(direction, bytes, known, now),
            Self::Begins(_) if direction == Direction::Read => self.begins(bytes, known, now),
            _ => false,
        }
    }

    #[cold]
    fn begins(&mut self, bytes: &[u8], streams: &Streams, now: impl Fn() -> u64) -> bool {
        let Self::Begins(known) = self else { return false };
        let part = bytes.len().min(PREFACE.len() - *known);
        if bytes[..part] != PREFACE[*known..*known + part] {
            *self = Self::Other;
            return false;
        }
        *known += part;
        if *known == PREFACE.len() {
            let connection = Connection { window: WINDOW, ..Connection::default() };
            *self = Self::Http2(Box::new(connection));
        }
        part < bytes.len() && self.moved(Direction::Read, &bytes[part..], streams, now)
    }
}

impl Connection {
    /// A side has sent these bytes. True if they are of a tunnel's connection and have data.
    fn moved(
        &mut self,
        direction: Direction,
        mut bytes: &[u8],
        known: &Streams,
        now: impl Fn() -> u64,
    ) -> bool {
        let by = if direction == Direction::Read { BY_CLIENT } else { BY_SERVER };
        let (was_shut, mut has_data) = (self.window <= 0, false);
        self.gives &= by == BY_SERVER;
        while !bytes.is_empty() {
            let frames = &mut self.frames[direction as usize];
            // A part of the payload of a DATA frame that has begun before.
            has_data |= frames.left > 0 && frames.is_data;
            let (taken, frame) = frames.next(bytes);
            bytes = &bytes[taken..];
            if let Some(frame) = frame {
                has_data |= self.take(&frame, by);
            }
        }
        let is_shut = self.window <= 0;
        if is_shut != was_shut {
            let until = if is_shut { SHUT } else { now() };
            known.shut_until.store(until, Ordering::Relaxed);
        }
        known.set_open(self.streams.len()) && has_data
    }
}

/// What other tasks than that of the stream know of the streams of an HTTP/2 connection.
#[derive(Default)]
pub(super) struct Streams {
    /// How many are open. Relaxed, as the flags: they carry no other data.
    open: AtomicU32,
    /// Whether one of them may be a tunnel.
    has_tunnel: AtomicBool,
    /// Until when the window was last shut, in nanoseconds: `SHUT` while it is, 0 if it never was.
    shut_until: AtomicU64,
}

/// The window is shut.
const SHUT: u64 = u64::MAX;

impl Streams {
    /// A stream has become a tunnel.
    pub(super) fn begin_tunnel(&self) {
        self.has_tunnel.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_tunnel(&self) -> bool {
        self.has_tunnel.load(Ordering::Relaxed) && self.open.load(Ordering::Relaxed) > 0
    }

    /// Returns whether one may be a tunnel.
    fn set_open(&self, count: usize) -> bool {
        let has_tunnel = self.has_tunnel.load(Ordering::Relaxed);
        self.open.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        if has_tunnel && count == 0 {
            self.has_tunnel.store(false, Ordering::Relaxed);
        }
        has_tunnel
    }

    /// Until when the window was last shut, in nanoseconds, which is now if it is; `None` if it
    /// never was.
    pub(super) fn shut_until(&self, now: impl FnOnce() -> u64) -> Option<u64> {
        match self.shut_until.load(Ordering::Relaxed) {
            0 => None,
            SHUT => Some(now()),
            until => Some(until),
        }
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [0, length[0], length[1], kind, flags, 0, 0, 0, stream];
        [&head[..], payload].concat()
    }

    /// What is known after these bytes of both sides, in parts of a length: whether there is a
    /// tunnel, and whether data of one has come.
    fn known(length: usize, sides: &[(u8, Vec<u8>)], streams: &Streams) -> (bool, bool) {
        let (mut http2, mut has_data) = (Protocol::NEW, false);
        let mut time = 0;
        for (by, bytes) in sides {
            time += 10;
            for part in bytes.chunks(length) {
                let by_client = *by == BY_CLIENT;
                let direction = if by_client { Direction::Read } else { Direction::Write };
                has_data |= http2.moved(direction, part, streams, || time);
                // In a connection, when the stream is open.
                streams.begin_tunnel();
            }
        }
        (streams.has_tunnel(), has_data)
    }

    #[test]
    fn window_update_in_any_parts_is_taken_once() {
        for length in 1..14 {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            let update = frame(WINDOW_UPDATE, 0, 3, &7_u32.to_be_bytes());
            for mut part in [&update[..], &frame(DATA, 0, 1, b"data")].concat().chunks(length) {
                while !part.is_empty() {
                    let (taken, frame) = frames.next(part);
                    assert!(taken > 0, "in parts of {length}");
                    part = &part[taken..];
                    found.extend(frame.map(|frame| (frame.kind, frame.stream, frame.increment)));
                }
            }
            assert_eq!(found[0], (WINDOW_UPDATE, 3, 7), "in parts of {length}");
            assert_eq!((found.len(), found[1].0, found[1].1), (2, DATA, 1));
        }
    }

    #[test]
    fn streams_are_open_until_both_sides_end_them_wherever_reads_part_frames() {
        let check = |sides: &[(u8, Vec<u8>)], expected: (bool, bool)| {
            for length in 1..40 {
                let streams = Streams::default();
                assert_eq!(known(length, sides, &streams), expected, "in parts of {length}");
            }
        };
        let begin = |frames: &[Vec<u8>]| (BY_CLIENT, [PREFACE, &frames.concat()].concat());
        let (open, data) = (frame(HEADERS, 4, 1, b"head"), frame(DATA, 0, 1, b"data"));
        let (ends, is_reset) = (frame(DATA, END_STREAM, 1, b""), frame(RST_STREAM, 0, 1, b"code"));
        let answer = frame(HEADERS, 4, 1, b"answer");
        check(&[begin(&[])], (false, false));
        check(&[begin(std::slice::from_ref(&open)), (BY_SERVER, answer.clone())], (true, false));
        check(&[begin(&[open.clone(), data.clone()])], (true, true));
        check(
            &[begin(std::slice::from_ref(&open)), (BY_SERVER, [&answer[..], &data].concat())],
            (true, true),
        );
        check(&[begin(&[open.clone(), ends.clone()])], (true, false));
        check(&[begin(&[open.clone(), ends.clone()]), (BY_SERVER, ends.clone())], (false, false));
        check(&[begin(std::slice::from_ref(&open)), (BY_SERVER, is_reset.clone())], (false, false));
        check(&[begin(&[open.clone(), is_reset])], (false, false));
        // Frames after the end of a stream open no other one.
        check(
            &[begin(std::slice::from_ref(&open)), (BY_SERVER, ends.clone()), (BY_CLIENT, ends)],
            (false, false),
        );
        let second = frame(HEADERS, 4 | END_STREAM, 3, b"head");
        check(&[begin(&[open, second.clone()]), (BY_SERVER, second)], (true, false));
        // Another protocol, which begins in the same way.
        check(&[(BY_CLIENT, [&PREFACE[..20], b"GET / HTTP/1.1"].concat())], (false, false));
    }

    #[test]
    fn window_is_shut_from_its_last_byte_until_the_server_adds_to_it() {
        let streams = Streams::default();
        let part = frame(DATA, 0, 1, &[0; 13_107]);
        let sides = [
            (BY_CLIENT, [PREFACE, &frame(HEADERS, 4, 1, b"head"), &part.repeat(4)].concat()),
            (BY_CLIENT, part.clone()),
            // Of a stream.
            (BY_SERVER, frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9])),
            (BY_SERVER, frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9])),
            (BY_CLIENT, frame(DATA, 0, 1, &[0; 8])),
        ];
        // Shut from 20 to 40.
        known(7, &sides, &streams);
        assert_eq!(streams.shut_until(|| 90), Some(40));
        known(usize::MAX, &sides[..3], &streams);
        assert_eq!(streams.shut_until(|| 50), Some(50));
    }
}
