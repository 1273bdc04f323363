//! A stream with its timeouts allocates nothing for a read or a write, whether it is ready or has
//! to wait, and sends its shard nothing for those that are ready.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::TimerService;
use corewheel::conn::{DataRate, Side};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel_test_support::{Lab, ms};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{AGE, check_allocates_nothing};

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

fn check<M: Side>(lab: &mut Lab, stream: &mut TimedIo<Gate, M>) {
    stream.control().begin_message();
    let mut round = |_| {
        assert!(transfer(stream));
        stream.get_mut().waits = true;
        assert!(!transfer(stream));
        lab.clock.advance(ms(7));
        lab.settle();
        assert!(!transfer(stream));
        stream.get_mut().waits = false;
    };
    (0..1_000).for_each(&mut round);
    check_allocates_nothing(|| (0..1_000).for_each(&mut round));
}

pub(crate) fn stream_allocates_nothing_for_a_read_or_a_write() {
    let mut lab: Lab = Lab::aged(TimerService::builder().shards(1), AGE);
    let rate = DataRate::new(1, Duration::from_hours(1));
    let limit = ms(20);
    let limits = StreamLimits::default().first_byte(limit).head(Duration::from_mins(1));
    let limits = limits.read_idle(limit).write_stall(limit).idle(limit).heartbeat(limit / 4);
    let limits = limits.min_read_rate(rate).min_write_rate(rate);
    let mut stream = TimedIo::new(Gate { waits: false }, lab.service.handle(), limits);
    check(&mut lab, &mut stream);
    // Nothing is sent for what is ready.
    let sent = lab.service.stats().shards[0].counts;
    assert!((0..10_000).all(|_| transfer(&mut stream)));
    lab.settle();
    let counts = lab.service.stats().shards[0].counts;
    assert_eq!(counts.scheduled_remote, sent.scheduled_remote);
    assert_eq!(counts.requests, sent.requests);
    drop(stream);
    let mut stream = TimedIo::on_shard(Gate { waits: false }, lab.timers(), limits).unwrap();
    check(&mut lab, &mut stream);
}
