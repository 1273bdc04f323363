//! What do the timeouts of a stream cost?
//!
//! A byte is read or written, in streams in random order, with the real clock. The streams are
//! memory, so no system call is measured: each is ready at once, or waits in its first poll and is
//! ready in the second. The other rows are the bare stream, and what a byte costs where the server
//! tells the timers of it itself: a touch of the connection, and an addition to a transfer.
//!
//! Beside a runtime (`shared`) another thread drives the shard. On a shard's own thread the shard
//! takes a turn for every thousand bytes, and a task polls again after every 8 results that were
//! ready at once. The limits are so long that none is reached.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::hint::black_box;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use corewheel::attach::ShardLoop;
use corewheel::conn::{DataRate, Side};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{ConnLimits, ConnTimers, Fired, TimerService, Timers};
use corewheel_bench::{Payload, pin_to_one_core, random_order};
use criterion::criterion_main;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const STREAMS: [usize; 2] = [1_000, 100_000];
const BYTES: u64 = 1_000;

type Deliver = fn(Fired<Payload>, &Timers<Payload>);

/// A shard in this loop.
struct Home {
    shard: ShardLoop<Payload, Deliver>,
    // The drop of the service closes the shard.
    _service: TimerService<Payload>,
}

fn home() -> Home {
    let builder = TimerService::builder().shards(1).capacity(1 << 18);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    let shard = service.shards().next().expect("it has one");
    let deliver: Deliver = |_, _| unreachable!("nothing is due");
    let attachment = service.attach(shard).expect("it is free");
    Home { shard: attachment.into_loop(deliver).expect("there is memory"), _service: service }
}

fn limits() -> StreamLimits {
    let rate = DataRate::new(64, Duration::from_hours(1));
    StreamLimits::default()
        .first_byte(Duration::from_mins(10))
        .read_idle(Duration::from_mins(30))
        .write_stall(Duration::from_mins(20))
        .idle(Duration::from_mins(40))
        .max_age(Duration::from_hours(12))
        .min_read_rate(rate)
        .min_write_rate(rate)
}

/// The limits of a server that tells the timers of each byte itself.
fn limits_of_conn() -> ConnLimits {
    let StreamLimits { read_idle, idle, max_age, min_read_rate, .. } = limits();
    ConnLimits { read_idle, all_idle: idle, max_age, min_read_rate, ..ConnLimits::default() }
}

/// A stream in which each read gives a byte, and each write takes one.
#[derive(Default)]
struct Memory {
    /// Whether the first poll for a byte waits.
    waits: bool,
    was_polled: bool,
}

impl Memory {
    fn poll(&mut self) -> Poll<()> {
        self.was_polled = self.waits && !self.was_polled;
        if self.was_polled { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl AsyncRead for Memory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll().map(|()| {
            buf.put_slice(b"x");
            Ok(())
        })
    }
}

impl AsyncWrite for Memory {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll().map(|()| Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A stream with or without timeouts.
trait Wire: AsyncRead + AsyncWrite + Unpin {
    fn memory(&mut self) -> &mut Memory;

    /// Reads a byte, and polls again until it has come.
    #[inline]
    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut byte = [0];
        loop {
            let mut buf = ReadBuf::new(&mut byte);
            if let Poll::Ready(read) = Pin::new(&mut *self).poll_read(cx, &mut buf) {
                return read;
            }
        }
    }

    /// Writes a byte, and polls again until it is taken.
    #[inline]
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        loop {
            if let Poll::Ready(written) = Pin::new(&mut *self).poll_write(cx, b"x") {
                return written;
            }
        }
    }
}

impl Wire for Memory {
    fn memory(&mut self) -> &mut Memory {
        self
    }
}

impl<M: Side> Wire for TimedIo<Memory, M> {
    fn memory(&mut self) -> &mut Memory {
        self.get_mut()
    }
}

/// The rows of streams of a kind; only those of reads, if the reads are parts of a message that has
/// a least rate. Every stream has read and written before, and has waited for both.
fn rows<S: Wire>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    kind: &str,
    is_measured: bool,
    mut streams: Vec<S>,
    mut after_bytes: impl FnMut(),
) {
    let cx = &mut Context::from_waker(Waker::noop());
    for stream in &mut streams {
        loop {
            *stream.memory() = Memory { waits: true, was_polled: false };
            match stream.read(cx).and_then(|()| stream.write(cx)) {
                Ok(_) => break,
                // A lane that is full has room a moment later.
                Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}"),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    for (waits, end) in [(false, ""), (true, " that waits")] {
        for stream in &mut streams {
            *stream.memory() = Memory { waits, was_polled: false };
        }
        let count = streams.len();
        let mut next = random_order(count);
        let name = format!("read{end}, {kind}");
        group.bench_function(BenchmarkId::new(name, count), |bencher| {
            bencher.iter(|| {
                for _ in 0..BYTES {
                    black_box(&mut streams[next()]).read(cx).expect("no limit is reached");
                }
                after_bytes();
            });
        });
        if is_measured {
            continue;
        }
        let mut next = random_order(count);
        let name = format!("write{end}, {kind}");
        group.bench_function(BenchmarkId::new(name, count), |bencher| {
            bencher.iter(|| {
                for _ in 0..BYTES {
                    black_box(&mut streams[next()]).write(cx).expect("no limit is reached");
                }
                after_bytes();
            });
        });
    }
}

/// The row of what a server does for each byte, by the number of the connection.
fn row(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    count: usize,
    note: impl Fn(usize),
    mut after_bytes: impl FnMut(),
) {
    let mut next = random_order(count);
    group.bench_function(BenchmarkId::new(name, count), |bencher| {
        bencher.iter(|| {
            for _ in 0..BYTES {
                note(black_box(next()));
            }
            after_bytes();
        });
    });
}

fn bytes(criterion: &mut Criterion) {
    // The shard's thread starts before this one is pinned, so it takes no time from it.
    let service = TimerService::beside_runtime().start().expect("it starts");
    let handle = service.handle();
    pin_to_one_core();
    let mut group = criterion.benchmark_group("a thousand bytes");
    group.throughput(Throughput::Elements(BYTES)).sample_size(30);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for count in STREAMS {
        let bare = (0..count).map(|_| Memory::default()).collect();
        rows(&mut group, "bare", false, bare, || {});

        for (kind, is_measured) in [("shared", false), ("shared, measured", true)] {
            let stream = |_| {
                let stream = TimedIo::new(Memory::default(), handle, limits());
                if is_measured {
                    stream.control().begin_message();
                }
                stream
            };
            rows(&mut group, kind, is_measured, (0..count).map(stream).collect(), || {});
        }
        for (kind, is_measured) in [("on a shard", false), ("on a shard, measured", true)] {
            let mut home = home();
            let timers = home.shard.timers().clone();
            let stream = |_| {
                let stream = TimedIo::on_shard(Memory::default(), &timers, limits());
                let stream = stream.expect("there is room");
                if is_measured {
                    stream.control().begin_message();
                }
                stream
            };
            rows(&mut group, kind, is_measured, (0..count).map(stream).collect(), || {
                let _ = black_box(home.shard.turn());
            });
        }

        let shared: Vec<_> = (0..count).map(|_| handle.connection(limits_of_conn())).collect();
        row(&mut group, "touch_read, shared", count, |n| shared[n].touch_read(), || {});
        let transfers: Vec<_> = shared.iter().map(ConnTimers::begin_measured_read).collect();
        row(&mut group, "InProgress::add, shared", count, |n| transfers[n].add(1), || {});

        let mut home = home();
        let timers = home.shard.timers().clone();
        let conn = |_| timers.connection(limits_of_conn()).expect("there is room");
        let conns: Vec<_> = (0..count).map(conn).collect();
        let mut turn = || {
            let _ = black_box(home.shard.turn());
        };
        row(&mut group, "touch_read, on a shard", count, |n| conns[n].touch_read(), &mut turn);
        let transfers: Vec<_> = conns.iter().map(ConnTimers::begin_measured_read).collect();
        row(&mut group, "InProgress::add", count, |n| transfers[n].add(1), &mut turn);
    }
    group.finish();
}

criterion_group!(benches, bytes);
criterion_main!(benches);
