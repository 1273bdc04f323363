//! A service with one shard by a manual clock, streams over both sides of its timers, and what
//! tests of streams do with them.

pub(crate) use std::fmt::Debug;
pub(crate) use std::io;
pub(crate) use std::pin::Pin;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::task::{Context, Poll, Wake, Waker};
pub(crate) use std::time::Duration;

pub(crate) use corewheel::attach::{ShardLoop, Turn};
pub(crate) use corewheel::clock::ManualClock;
pub(crate) use corewheel::conn::{DataRate, Side};
pub(crate) use corewheel::stream::{StreamLimits, StreamTimeout, TimedIo};
pub(crate) use corewheel::{
    ConnLimits, DeadlineKind, Fired, Handle, TimerService, TimerServiceBuilder, Timers,
};
pub(crate) use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use crate::seeds;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const NONE: StreamLimits = StreamLimits {
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
pub(crate) const LIMIT: u64 = 100;
/// How many bytes the peer's side of a stream holds.
pub(crate) const ROOM: usize = 16;

/// The handler of timers with values, of which there are none.
pub(crate) type Ignore = fn(Fired<u64>, &Timers<u64>);

/// A service with one shard, which the test drives with a manual clock. A tick is a millisecond.
pub(crate) struct Lab {
    pub(crate) clock: ManualClock,
    pub(crate) service: TimerService<u64>,
    pub(crate) shard: ShardLoop<u64, Ignore>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(TimerService::builder().shards(1))
    }

    pub(crate) fn with(builder: TimerServiceBuilder) -> Self {
        let clock = seeds::clock();
        let service = builder.clock(&clock).start_attached_with::<u64>().unwrap();
        let attachment = service.attach(service.shard_for(0)).unwrap();
        let handler: Ignore = |_, _| {};
        let mut lab = Self { clock, shard: attachment.into_loop(handler).unwrap(), service };
        // The service has run for a while.
        lab.clock.advance(Duration::from_secs(seeds::rng().u64(..3_600 * 24)));
        lab.settle();
        lab
    }

    pub(crate) fn settle(&mut self) {
        while self.shard.turn() == Turn::More {}
    }

    /// Lets some milliseconds pass, one at a time.
    pub(crate) fn advance(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.clock.advance(ms(1));
            self.settle();
        }
    }
}

/// A side of a connection's timers.
pub(crate) trait Kind: Side + Sized {
    /// How many ticks a deadline that activity has put off may be late.
    const LATE: u64;
    /// Whether a poll finds the deadlines that have come, or a turn of the shard.
    const FINDS_IN_POLLS: bool;

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
        TimedIo::on_shard(stream, lab.shard.timers(), limits).unwrap()
    }
}

/// Runs a test with both kinds of timers.
macro_rules! both {
    ($test:ident) => {
        $test::<Handle>();
        $test::<Timers>();
    };
}
pub(crate) use both;

pub(crate) type Duplex<K> = TimedIo<DuplexStream, K>;

/// A stream with its peer's side.
pub(crate) fn duplex<K: Kind>(lab: &Lab, limits: StreamLimits) -> (Duplex<K>, DuplexStream) {
    let (stream, peer) = tokio::io::duplex(ROOM);
    (K::open(lab, stream, limits), peer)
}

/// A waker that counts how often it is woken.
#[derive(Default)]
pub(crate) struct Alarm(AtomicUsize);

impl Alarm {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), Waker::from(alarm))
    }

    /// Whether it was woken since the last call.
    pub(crate) fn rang(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) > 0
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) type Polled<V> = Poll<io::Result<V>>;

/// Polls a read of up to 4 bytes. Returns the bytes.
pub(crate) fn read_with<S: AsyncRead + Unpin>(stream: &mut S, waker: &Waker) -> Polled<Vec<u8>> {
    let mut bytes = [0; 4];
    let mut buf = ReadBuf::new(&mut bytes);
    let polled = Pin::new(stream).poll_read(&mut Context::from_waker(waker), &mut buf);
    polled.map_ok(|()| buf.filled().to_vec())
}

pub(crate) fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Polled<Vec<u8>> {
    read_with(stream, Waker::noop())
}

pub(crate) fn write_with<S: AsyncWrite + Unpin>(
    stream: &mut S,
    bytes: &[u8],
    waker: &Waker,
) -> Polled<usize> {
    Pin::new(stream).poll_write(&mut Context::from_waker(waker), bytes)
}

pub(crate) fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Polled<usize> {
    write_with(stream, bytes, Waker::noop())
}

pub(crate) fn flush<S: AsyncWrite + Unpin>(stream: &mut S) -> Polled<()> {
    Pin::new(stream).poll_flush(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn shutdown<S: AsyncWrite + Unpin>(stream: &mut S) -> Polled<()> {
    Pin::new(stream).poll_shutdown(&mut Context::from_waker(Waker::noop()))
}

/// The value of something that is ready.
#[track_caller]
pub(crate) fn ready<V: Debug>(polled: Polled<V>) -> V {
    match polled {
        Poll::Ready(value) => value.unwrap(),
        Poll::Pending => panic!("it must wait"),
    }
}

/// The limit that something has ended with; `None` if it waits.
#[track_caller]
pub(crate) fn timeout<V: Debug>(polled: Polled<V>) -> Option<StreamTimeout> {
    let Poll::Ready(result) = polled else { return None };
    let error = result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    Some(*error.get_ref().unwrap().downcast_ref().unwrap())
}

/// Polls until it ends, once in each tick. Returns after how many ticks that was, and the limit.
#[track_caller]
pub(crate) fn ends<V: Debug>(
    lab: &mut Lab,
    mut poll: impl FnMut() -> Polled<V>,
) -> (u64, StreamTimeout) {
    for ticks in 0..10_000 {
        if let Some(timeout) = timeout(poll()) {
            return (ticks, timeout);
        }
        lab.advance(1);
    }
    panic!("no limit was reached");
}

/// Checks that a wait ends a number of ticks from now, and not before.
#[track_caller]
pub(crate) fn check_ends<K: Kind, V: Debug>(
    lab: &mut Lab,
    after: u64,
    expected: StreamTimeout,
    poll: impl FnMut() -> Polled<V>,
) {
    let (ticks, timeout) = ends(lab, poll);
    assert_eq!(timeout, expected);
    assert!((after..=after + K::LATE).contains(&ticks), "{timeout} after {ticks} ticks");
}
