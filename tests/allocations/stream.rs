//! A stream with its timeouts allocates nothing for a read or a write, whether it is ready or has
//! to wait, and sends its shard nothing for those that are ready.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::conn::DataRate;
use corewheel::conn::Side;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{Fired, TimerService, Timers};
use stats_alloc::Region;

use crate::ALLOCATOR;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads and writes one byte at a time, or has to wait.
struct Gate {
    waits: bool,
}

impl Gate {
    fn poll(&self) -> Poll<io::Result<()>> {
        if self.waits { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncRead for Gate {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll().map_ok(|()| buf.put_slice(b"a"))
    }
}

impl AsyncWrite for Gate {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        self.poll().map_ok(|()| 1)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll()
    }
}

/// Reads and writes. A task with a budget returns to its executor now and then, and polls again.
fn transfer<M: Side>(stream: &mut TimedIo<Gate, M>) -> bool {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut bytes = [0; 8];
    let polls = if stream.get_ref().waits { 1 } else { 2 };
    let is_read = (0..polls).any(|_| {
        let read = Pin::new(&mut *stream).poll_read(cx, &mut ReadBuf::new(&mut bytes));
        read.map(Result::unwrap).is_ready()
    });
    let is_written = (0..polls).any(|_| {
        let written = Pin::new(&mut *stream).poll_write(cx, b"a");
        written.map(Result::unwrap).is_ready()
    });
    assert_eq!(is_read, is_written);
    is_read
}

type Shard = ShardLoop<u64, fn(Fired<u64>, &Timers<u64>)>;

fn check<M: Side>(clock: &ManualClock, shard: &mut Shard, stream: &mut TimedIo<Gate, M>) {
    stream.control().begin_message();
    let mut round = |milliseconds| {
        assert!(transfer(stream));
        stream.get_mut().waits = true;
        assert!(!transfer(stream));
        clock.advance(Duration::from_millis(milliseconds));
        while shard.turn() == Turn::More {}
        assert!(!transfer(stream));
        stream.get_mut().waits = false;
    };
    (0..1_000).for_each(|_| round(7));
    let region = Region::new(ALLOCATOR);
    (0..1_000).for_each(|_| round(7));
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}

pub(crate) fn stream_allocates_nothing_for_a_read_or_a_write() {
    let clock = ManualClock::new();
    // Far from the epoch, where a time that is wrongly 0 would be right.
    clock.advance(Duration::from_secs(12_345));
    let builder = TimerService::builder().shards(1).clock(&clock);
    let service = builder.start_attached_with::<u64>().unwrap();
    let attachment = service.attach(service.shard_for(0)).unwrap();
    let handler: fn(Fired<u64>, &Timers<u64>) = |_, _| {};
    let mut shard = attachment.into_loop(handler).unwrap();
    let rate = DataRate::new(1, Duration::from_hours(1));
    let limit = Duration::from_millis(20);
    let limits = StreamLimits::default().first_byte(limit).head(Duration::from_mins(1));
    let limits = limits.read_idle(limit).write_stall(limit).idle(limit).heartbeat(limit / 4);
    let limits = limits.min_read_rate(rate).min_write_rate(rate);
    let mut stream = TimedIo::new(Gate { waits: false }, service.handle(), limits);
    check(&clock, &mut shard, &mut stream);
    // Nothing is sent for what is ready.
    let sent = service.stats().shards[0].counts;
    assert!((0..10_000).all(|_| transfer(&mut stream)));
    while shard.turn() == Turn::More {}
    let counts = service.stats().shards[0].counts;
    assert_eq!(counts.scheduled_remote, sent.scheduled_remote);
    assert_eq!(counts.requests, sent.requests);
    drop(stream);
    let gate = Gate { waits: false };
    let mut stream = TimedIo::on_shard(gate, shard.timers(), limits).unwrap();
    check(&clock, &mut shard, &mut stream);
}
