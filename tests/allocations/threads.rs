//! The memory that the timers of threads take: of threads that come and go, and of idle ones.

use std::alloc::System;
use std::future::pending;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use corewheel::{AnyHandle, TimerService};
use corewheel_test_support::{Alarm, Lab, ms, poll_with};
use stats_alloc::Region;

use crate::{AGE, ALLOCATOR};

const FAR: Duration = Duration::from_secs(30);
const SOON: Duration = ms(20);
const LATER: Duration = Duration::from_secs(2);
/// More than there may be at a time.
const SHORT_LIVED: usize = 67_000;
const IDLE: usize = 64;

/// Arms a timeout of each delay on this thread, and ends all of them.
fn arm_and_end(handle: AnyHandle, delays: &[Duration]) {
    for delay in delays {
        let mut timeout = pin!(handle.timeout(*delay, pending::<()>()));
        assert!(poll_with(timeout.as_mut(), Waker::noop()).is_pending(), "a timer is refused");
    }
}

/// The bytes by which more was allocated than freed; 0 if it was less.
fn net(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
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
    let mut lab: Lab = Lab::aged(TimerService::builder().shards(1), AGE);
    let handle = lab.service.handle().untyped();
    let (alarm, waker) = Alarm::new();
    // The shard sleeps until this is due, which is before it acts for any of the threads.
    let mut pending = pin!(lab.timers().sleep(SOON));
    assert!(poll_with(pending.as_mut(), Waker::noop()).is_pending());
    let _ = lab.fall_asleep(&waker);
    let mut come_and_go = |count: usize| {
        let begin = alarm.count();
        let mut rung = begin;
        for _ in 0..count {
            thread::spawn(move || arm_and_end(handle, &[FAR])).join().unwrap();
            if alarm.count() > rung {
                rung = alarm.count();
                let _ = lab.fall_asleep(&waker);
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
