//! The memory that the timers of threads take: of threads that come and go, and of idle ones.

use std::alloc::System;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{AnyHandle, Fired, ShardId, TimerService, Timers};
use stats_alloc::Region;

use crate::ALLOCATOR;

const FAR: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_secs(2);
/// More than there may be at a time.
const SHORT_LIVED: usize = 67_000;
const IDLE: usize = 64;

/// Counts how often the driver is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Arms a timeout of each delay on this thread, and ends all of them.
fn arm_and_end(handle: AnyHandle, delays: &[Duration]) {
    for delay in delays {
        let mut timeout = pin!(handle.timeout(*delay, pending::<()>()));
        let polled = timeout.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "a timer is refused");
    }
}

/// The bytes by which more was allocated than freed; 0 if it was less.
fn net(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

/// Takes turns until the shard sleeps.
fn fall_asleep<H: FnMut(Fired<()>, &Timers<()>) + 'static>(
    shard: &mut ShardLoop<(), H>,
    waker: &Waker,
) {
    loop {
        let turn = shard.turn();
        if shard.prepare_to_sleep(turn, waker) != Turn::More {
            return;
        }
    }
}

/// The bytes that a thread takes while it does nothing, after it has armed timeouts and ended them.
fn bytes_of_an_idle_thread(handle: AnyHandle, delays: &'static [Duration]) -> usize {
    let region = Region::new(ALLOCATOR);
    let (idle, all_idle) = mpsc::channel();
    let threads: Vec<_> = (0..IDLE)
        .map(|_| {
            let (idle, (end, ends)) = (idle.clone(), mpsc::channel::<()>());
            let thread = thread::spawn(move || {
                arm_and_end(handle, delays);
                idle.send(()).unwrap();
                // Until the sender is dropped.
                let _ended = ends.recv();
            });
            (thread, end)
        })
        .collect();
    (0..IDLE).for_each(|_| all_idle.recv().unwrap());
    let bytes = net(&region) / IDLE;
    for (thread, end) in threads {
        drop(end);
        thread.join().unwrap();
    }
    bytes
}

pub(crate) fn short_lived_threads_leave_no_memory_and_an_idle_one_takes_few_kibibytes() {
    let clock = ManualClock::new();
    // Far from the epoch, where a time that is wrongly 0 would be right.
    clock.advance(Duration::from_secs(12_345));
    let service: TimerService<()> =
        TimerService::builder().shards(1).clock(&clock).start_attached_with().unwrap();
    let attachment = service.attach(ShardId::new(0)).unwrap();
    let mut shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {}).unwrap();
    let handle = service.handle().untyped();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    // The shard sleeps until this is due, which is before it acts for any of the threads.
    let mut pending = pin!(shard.timers().sleep(SOON));
    assert!(pending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    fall_asleep(&mut shard, &waker);
    let mut come_and_go = |count: usize| {
        let begin = bell.0.load(Ordering::Relaxed);
        let mut rung = begin;
        for _ in 0..count {
            thread::spawn(move || arm_and_end(handle, &[FAR])).join().unwrap();
            if bell.0.load(Ordering::Relaxed) > rung {
                rung = bell.0.load(Ordering::Relaxed);
                fall_asleep(&mut shard, &waker);
            }
        }
        rung - begin
    };
    come_and_go(1_000);
    let region = Region::new(ALLOCATOR);
    let woken = come_and_go(SHORT_LIVED);
    let left = net(&region);
    assert!(left < 4 << 20, "{SHORT_LIVED} threads that have ended leave {left} bytes");
    assert!(woken <= SHORT_LIVED / 200, "{SHORT_LIVED} threads wake the shard {woken} times");

    let without = bytes_of_an_idle_thread(handle, &[]);
    for (delays, most) in [(&[FAR][..], 6 << 10), (&[FAR, SOON, LATER], 12 << 10)] {
        let bytes = bytes_of_an_idle_thread(handle, delays).saturating_sub(without);
        assert!(bytes <= most, "an idle thread takes {bytes} bytes after {delays:?}");
    }
}
