//! A service with one shard by a manual clock, streams over both sides of its timers, and what
//! tests of streams do with them.

pub use std::fmt::Debug;
pub use std::io;
pub use std::pin::Pin;
pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicUsize, Ordering};
pub use std::task::{Context, Poll, Wake, Waker};
pub use std::time::Duration;

pub use corewheel::attach::{ShardLoop, Turn};
pub use corewheel::clock::ManualClock;
pub use corewheel::conn::{DataRate, Side};
pub use corewheel::stream::{StreamLimits, StreamTimeout, TimedIo};
pub use corewheel::{
    ConnLimits, DeadlineKind, Fired, Handle, TimerService, TimerServiceBuilder, Timers,
};
pub use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

pub use crate::{Alarm, builder, ms};
pub use crate::{both, both_sides};

/// No limit.
pub const NONE: StreamLimits = StreamLimits {
    first_byte: Duration::ZERO,
    head: Duration::ZERO,
    read_idle: Duration::ZERO,
    write_stall: Duration::ZERO,
    idle: Duration::ZERO,
    max_age: Duration::ZERO,
    max_age_jitter: Duration::ZERO,
    max_age_grace: Duration::ZERO,
    max_age_least: Duration::ZERO,
    first_byte_least: Duration::ZERO,
    read_idle_least: Duration::ZERO,
    idle_least: Duration::ZERO,
    heartbeat_phase: false,
    min_read_rate: DataRate::OFF,
    min_write_rate: DataRate::OFF,
    heartbeat: Duration::ZERO,
    request_idle: Duration::ZERO,
    unsent_max: 0,
};
/// The limit of most tests, in ticks.
pub const LIMIT: u64 = 100;
/// How many bytes the peer's side of a stream holds.
pub const ROOM: usize = 16;

/// A service with one shard, which the test drives with a manual clock. A tick is a millisecond.
pub type Lab = crate::Lab<u64>;

/// A lab with room for many streams.
pub fn lab() -> Lab {
    Lab::new(builder(1))
}

/// A side of a connection's timers.
pub trait Kind: Side + Sized {
    /// How many ticks a deadline that activity has put off may be late.
    const LATE: u64;
    /// Whether a poll finds the deadlines that have come, or a turn of the shard.
    const FINDS_IN_POLLS: bool;

    /// A stream with limits, by this side's timers.
    fn open<S>(lab: &Lab, stream: S, limits: StreamLimits) -> TimedIo<S, Self>;
}

impl Kind for Handle {
    const LATE: u64 = 0;
    const FINDS_IN_POLLS: bool = true;

    fn open<S>(lab: &Lab, stream: S, limits: StreamLimits) -> TimedIo<S> {
        TimedIo::new(stream, lab.service.handle(), limits)
    }
}

impl Kind for Timers {
    const LATE: u64 = 11;
    const FINDS_IN_POLLS: bool = false;

    fn open<S>(lab: &Lab, stream: S, limits: StreamLimits) -> TimedIo<S, Timers> {
        TimedIo::on_shard(stream, lab.timers(), limits).unwrap()
    }
}

/// Runs a test with both kinds of timers.
#[macro_export]
macro_rules! both {
    ($test:ident) => {
        $test::<$crate::stream::Handle>();
        $test::<$crate::stream::Timers>();
    };
}

/// Makes two tests of a function, one with each kind of timers.
#[macro_export]
macro_rules! both_sides {
    ($test:ident) => {
        mod $test {
            #[test]
            fn timers_of_a_handle() {
                super::$test::<$crate::stream::Handle>();
            }

            #[test]
            fn timers_of_a_shard() {
                super::$test::<$crate::stream::Timers>();
            }
        }
    };
}

/// A stream over memory.
pub type Duplex<K> = TimedIo<DuplexStream, K>;

/// A stream with its peer's side.
pub fn duplex<K: Kind>(lab: &Lab, limits: StreamLimits) -> (Duplex<K>, DuplexStream) {
    let (stream, peer) = tokio::io::duplex(ROOM);
    (K::open(lab, stream, limits), peer)
}

/// A stream with its peer's side, in a lab of its own.
pub fn open<K: Kind>(limits: StreamLimits) -> (Lab, Duplex<K>, DuplexStream) {
    let lab = lab();
    let (stream, peer) = duplex(&lab, limits);
    (lab, stream, peer)
}

/// What a poll of a stream returns.
pub type Polled<V> = Poll<io::Result<V>>;

/// Polls a read of up to 4 bytes. Returns the bytes.
pub fn read_with<S: AsyncRead + Unpin>(stream: &mut S, waker: &Waker) -> Polled<Vec<u8>> {
    let mut bytes = [0; 4];
    let mut buf = ReadBuf::new(&mut bytes);
    let polled = Pin::new(stream).poll_read(&mut Context::from_waker(waker), &mut buf);
    polled.map_ok(|()| buf.filled().to_vec())
}

/// Polls a read with a waker that does nothing.
pub fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Polled<Vec<u8>> {
    read_with(stream, Waker::noop())
}

/// Polls a write.
pub fn write_with<S: AsyncWrite + Unpin>(
    stream: &mut S,
    bytes: &[u8],
    waker: &Waker,
) -> Polled<usize> {
    Pin::new(stream).poll_write(&mut Context::from_waker(waker), bytes)
}

/// Polls a write with a waker that does nothing.
pub fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Polled<usize> {
    write_with(stream, bytes, Waker::noop())
}

/// Polls a flush.
pub fn flush<S: AsyncWrite + Unpin>(stream: &mut S) -> Polled<()> {
    Pin::new(stream).poll_flush(&mut Context::from_waker(Waker::noop()))
}

/// Polls the end of the writes.
pub fn shutdown<S: AsyncWrite + Unpin>(stream: &mut S) -> Polled<()> {
    Pin::new(stream).poll_shutdown(&mut Context::from_waker(Waker::noop()))
}

/// The value of something that is ready.
#[track_caller]
pub fn ready<V: Debug>(polled: Polled<V>) -> V {
    match polled {
        Poll::Ready(value) => value.unwrap(),
        Poll::Pending => panic!("it must wait"),
    }
}

/// The peer sends bytes, and a read returns them.
#[track_caller]
pub fn receive<S: AsyncRead + Unpin>(stream: &mut S, peer: &mut DuplexStream, bytes: &[u8]) {
    ready(write(peer, bytes));
    assert_eq!(ready(read(stream)), bytes);
}

/// Writes as much as the peer's side holds, and then a byte that waits.
#[track_caller]
pub fn fill<S: AsyncWrite + Unpin>(stream: &mut S) {
    assert_eq!(ready(write(stream, &[7; ROOM])), ROOM);
    assert!(write(stream, b"a").is_pending());
}

/// The peer reads 4 bytes of a stream that is full, which accepts 4 others.
#[track_caller]
pub fn take<S: AsyncWrite + Unpin>(peer: &mut DuplexStream, stream: &mut S) {
    assert_eq!(ready(read(peer)).len(), 4);
    assert_eq!(ready(write(stream, b"aaaa")), 4);
}

/// The limit that something has ended with; `None` if it waits.
#[track_caller]
pub fn timeout<V: Debug>(polled: Polled<V>) -> Option<StreamTimeout> {
    match polled {
        Poll::Ready(result) => Some(limit_of(&result.unwrap_err())),
        Poll::Pending => None,
    }
}

/// The limit of an error.
#[track_caller]
pub fn limit_of(error: &io::Error) -> StreamTimeout {
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    *error.get_ref().unwrap().downcast_ref().unwrap()
}

/// Polls until it ends, once in each tick. Returns after how many ticks that was, and the limit.
#[track_caller]
pub fn ends<V: Debug>(lab: &mut Lab, mut poll: impl FnMut() -> Polled<V>) -> (u64, StreamTimeout) {
    for ticks in 0..10_000 {
        if let Some(timeout) = timeout(poll()) {
            return (ticks, timeout);
        }
        lab.advance(ms(1));
    }
    panic!("no limit was reached");
}

/// Checks that a wait ends a number of ticks from now, and not before.
#[track_caller]
pub fn check_ends<K: Kind, V: Debug>(
    lab: &mut Lab,
    after: u64,
    expected: StreamTimeout,
    poll: impl FnMut() -> Polled<V>,
) {
    let (ticks, timeout) = ends(lab, poll);
    assert_eq!(timeout, expected);
    assert!((after..=after + K::LATE).contains(&ticks), "{timeout} after {ticks} ticks");
}
