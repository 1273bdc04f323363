//! The futures of a shard in a loop of its own, which other threads spawn and wake.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use super::{drive, service, shard_id};
use crate::ShutdownPolicy;
use crate::link::loom_tests::check_within;
use crate::values::error::ReplyError;

/// Another thread spawns a future while the loop is about to sleep: the future runs.
#[test]
fn future_spawned_while_the_loop_falls_asleep_runs() {
    check_within(2, || {
        let (service, mut shard) = service();
        let worker = thread::spawn(move || {
            let spawned = service.spawn_on(shard_id(), |_| async { 7 }).unwrap();
            let output = block_on(spawned);
            drop(service.begin_shutdown(ShutdownPolicy::Drop).unwrap());
            output
        });
        drive(&mut shard);
        assert_eq!(worker.join().unwrap(), Ok(7));
    });
}

/// Waits for an event of another thread, which it starts in its first poll.
struct WaitsForThread {
    event: Arc<AtomicBool>,
    is_begun: bool,
    polls: Rc<Cell<u32>>,
}

impl Future for WaitsForThread {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls.set(self.polls.get() + 1);
        if !self.is_begun {
            self.is_begun = true;
            let (event, waker) = (Arc::clone(&self.event), cx.waker().clone());
            thread::spawn(move || {
                // Relaxed: the wake-up orders it.
                event.store(true, Ordering::Relaxed);
                waker.wake();
            });
        }
        if self.event.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Another thread wakes a future that is being polled, or is pending since: it is polled again, and
/// sees the event.
#[test]
fn future_woken_while_it_is_polled_is_polled_again() {
    check_within(2, || {
        let (service, mut shard) = service();
        let event = Arc::new(AtomicBool::new(false));
        let spawned = service.spawn_on(shard_id(), move |_| async move {
            let polls = Rc::new(Cell::new(0));
            let is_begun = false;
            WaitsForThread { event, is_begun, polls: Rc::clone(&polls) }.await;
            polls.get()
        });
        let mut spawned = spawned.unwrap();
        let ender = thread::spawn(move || {
            let polls = block_on(&mut spawned);
            drop(service.begin_shutdown(ShutdownPolicy::Drop).unwrap());
            polls
        });
        drive(&mut shard);
        let polls = ender.join().unwrap().expect("it is done before the shutdown");
        assert!((1..=2).contains(&polls), "{polls} polls for one wake-up");
    });
}

/// What a future that never ends shares with the model.
#[derive(Default)]
struct Seen {
    waker: Mutex<Option<Waker>>,
    polls: AtomicUsize,
    drops: AtomicUsize,
}

impl Seen {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> [usize; 2] {
        [&self.polls, &self.drops].map(|count| count.load(Ordering::Relaxed))
    }
}

struct NeverEnds {
    seen: Arc<Seen>,
    /// It belongs to the loop's thread.
    here: thread::ThreadId,
}

impl Future for NeverEnds {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        assert_eq!(self.here, thread::current().id(), "a future is polled on its shard's thread");
        self.seen.polls.fetch_add(1, Ordering::Relaxed);
        *self.seen.waker() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for NeverEnds {
    fn drop(&mut self) {
        assert_eq!(self.here, thread::current().id(), "a future is dropped on its shard's thread");
        self.seen.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// How the loop ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Another thread shuts the service down.
    Service,
    /// The loop shuts its shard down.
    Shard,
    /// The loop is dropped.
    Dropped,
}

fn check_end(end: End) {
    check_within(2, move || {
        let (service, mut shard) = service();
        let seen = Arc::new(Seen::default());
        let spawned = service.spawn_on(shard_id(), {
            let (seen, here) = (Arc::clone(&seen), thread::current().id());
            move |_| NeverEnds { seen, here }
        });
        while seen.counts() == [0, 0] {
            let _next = shard.turn();
        }
        let waker = seen.waker().take().expect("it was polled once");
        waker.wake_by_ref();
        waker.wake_by_ref();
        let _next = shard.turn();
        assert_eq!(seen.counts(), [2, 0], "two wake-ups before a poll are one");
        let worker = thread::spawn(move || {
            waker.wake_by_ref();
            waker
        });
        match end {
            End::Service => {
                let report = service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
                drive(&mut shard);
                drop((shard, block_on(report)));
            }
            End::Shard => drop(shard.shutdown(ShutdownPolicy::Return)),
            End::Dropped => drop(shard),
        }
        let at_end = seen.counts();
        assert_eq!(at_end[1], 1, "the loop has dropped its future");
        // It may come after the end.
        worker.join().unwrap().wake();
        assert_eq!(block_on(spawned.unwrap()), Err(ReplyError::Closed));
        assert_eq!(seen.counts(), at_end, "a future that was dropped is touched");
        // The waker that the future has left is the last that refers to it.
        drop(seen.waker().take());
        assert_eq!(Arc::strong_count(&seen), 1, "the future was dropped, and is kept");
    });
}

#[test]
fn future_woken_while_its_service_ends_is_dropped_once() {
    check_end(End::Service);
}

#[test]
fn future_woken_while_its_loop_ends_is_dropped_once() {
    check_end(End::Shard);
}

#[test]
fn future_woken_while_its_loop_is_dropped_is_dropped_once() {
    check_end(End::Dropped);
}
