//! Tests of the protocols between threads under the model checker, which runs every interleaving up
//! to a number of preemptions, with every value that a load may return.
//!
//! The models run the code that the service runs. Only the atomics, locks and rings below it are
//! those of the model checker, see [`super::sync`]. Each model writes to the standard error how
//! many executions it had.
//!
//! The script `.ci/weaken` weakens each atomic and each fence, one at a time, and runs the models;
//! `weakenings.md` beside this file is its result. `mutations.md` says which test fails without
//! which step of the timers of threads.

mod lane_tests;
mod mailbox_tests;
mod marks_tests;
mod owners_tests;
pub(crate) mod ring;
mod thread_timers_tests;
mod woken_tests;

use std::future::poll_fn;
use std::io::Write as _;
use std::sync::atomic::AtomicU64;
use std::task::Poll;

use corewheel_shard::Tick;
use loom::future::block_on;
use loom::sync::atomic::AtomicUsize;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::sync::{Consumer, Ordering, Producer, RingBuffer};
use super::version::Version;
use super::wake_up::{Doorbell, MailFlag, WakeUp};

/// When the models begin, in ticks or nanoseconds: far from 0, where a time that is wrongly 0 would
/// be right. Each execution of a model has the same, as the model checker asks.
pub(crate) const BEGIN: u64 = 100_000_000_000_000_000;

/// A tick after the beginning.
const fn tick(after: u64) -> Tick {
    Tick::new(BEGIN + after)
}

/// Checks a model with up to three preemptions.
pub(crate) fn check(run: impl Fn() + Sync + Send + 'static) {
    check_within(3, run);
}

pub(crate) fn check_within(preemptions_max: usize, run: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.max_branches = 10_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        run();
    });
    let executions = executions.load(Ordering::Relaxed);
    let thread = std::thread::current();
    let model = thread.name().unwrap_or("a model");
    // Not by `eprintln`, which the test harness keeps to itself.
    let _ = writeln!(std::io::stderr(), "{model}: {executions} executions");
}

/// The owner of a shard between its turns, as the drivers implement it.
struct Owner {
    doorbell: Arc<Doorbell>,
    sleeps: usize,
}

impl Owner {
    fn new(doorbell: &Arc<Doorbell>) -> Self {
        Self { doorbell: Arc::clone(doorbell), sleeps: 0 }
    }

    /// Sleeps in the driver's steps until there are requests or a sender wakes the owner. If
    /// neither happens, the model checker reports a deadlock.
    fn sleep(&mut self, until: Tick, mut has_requests: impl FnMut() -> bool) {
        self.sleeps += 1;
        let mut asleep = false;
        block_on(poll_fn(|cx| {
            if !asleep {
                self.doorbell.fall_asleep(until, cx.waker());
                if has_requests() {
                    self.doorbell.set_awake();
                    return Poll::Ready(());
                }
                asleep = true;
            } else if !self.doorbell.stay_asleep(cx.waker()) {
                self.doorbell.set_awake();
                return Poll::Ready(());
            }
            Poll::Pending
        }));
    }

    /// Falls asleep, and wakes at once by the owner's own alarm.
    fn sleep_until_alarm(&mut self, until: Tick) {
        self.sleeps += 1;
        block_on(poll_fn(|cx| {
            self.doorbell.fall_asleep(until, cx.waker());
            self.doorbell.set_awake();
            Poll::Ready(())
        }));
    }
}

/// A ring with enough room.
fn ring() -> (Producer<u32>, Consumer<u32>) {
    RingBuffer::new(4)
}

/// Takes all requests out of a ring, and returns how many there were.
fn receive(lane: &mut Consumer<u32>) -> usize {
    std::iter::from_fn(|| lane.pop().ok()).count()
}

/// Starts a thread that pushes one request, wakes the owner if need be, and returns whether it did.
fn send(
    doorbell: &Arc<Doorbell>,
    mut lane: Producer<u32>,
    deadline: Tick,
) -> thread::JoinHandle<WakeUp> {
    let doorbell = Arc::clone(doorbell);
    thread::spawn(move || {
        assert!(lane.push(7).is_ok(), "the ring has room");
        let wake_up = doorbell.wake_for(|| deadline);
        // The ring's end lives on, since the owner would see that it is dropped.
        std::mem::forget(lane);
        wake_up
    })
}

fn count_wake_ups(senders: Vec<thread::JoinHandle<WakeUp>>) -> usize {
    senders
        .into_iter()
        .filter_map(|s| s.join().ok())
        .filter(|wake_up| *wake_up == WakeUp::Made)
        .count()
}

#[test]
fn request_with_an_earlier_deadline_wakes_a_sleeping_owner() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&doorbell);
        let senders = vec![send(&doorbell, producer, tick(5))];
        while receive(&mut lane) == 0 {
            owner.sleep(tick(9), || !lane.is_empty());
        }
        assert!(count_wake_ups(senders) <= owner.sleeps, "one sleep has two wake-ups");
    });
}

#[test]
fn requests_of_two_senders_end_one_sleep_with_one_wake_up() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (producers, mut lanes): (Vec<_>, Vec<_>) = [ring(), ring()].into_iter().unzip();
        let mut owner = Owner::new(&doorbell);
        let senders = producers.into_iter().map(|p| send(&doorbell, p, tick(5))).collect();
        let mut received = 0;
        loop {
            received += lanes.iter_mut().map(receive).sum::<usize>();
            if received == 2 {
                break;
            }
            owner.sleep(Tick::NEVER, || lanes.iter().any(|lane| !lane.is_empty()));
        }
        assert!(count_wake_ups(senders) <= owner.sleeps, "one sleep has two wake-ups");
    });
}

#[test]
fn request_sent_as_the_alarm_ends_a_sleep_is_received() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&doorbell);
        let senders = vec![send(&doorbell, producer, tick(5))];
        owner.sleep_until_alarm(tick(9));
        while receive(&mut lane) == 0 {
            owner.sleep(Tick::NEVER, || !lane.is_empty());
        }
        assert!(count_wake_ups(senders) <= owner.sleeps, "one sleep has two wake-ups");
    });
}

#[test]
fn request_too_late_for_a_short_sleep_is_received_before_a_long_one() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&doorbell);
        // The sender may read that the owner sleeps until 5 and save the wake-up, though the owner
        // already sleeps until 9.
        let senders = vec![send(&doorbell, producer, tick(7))];
        owner.sleep_until_alarm(tick(5));
        while receive(&mut lane) == 0 {
            owner.sleep(tick(9), || !lane.is_empty());
        }
        assert!(count_wake_ups(senders) <= 1, "the request wakes only the long sleep");
    });
}

#[test]
fn request_due_when_the_sleep_ends_makes_no_wake_up() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&doorbell);
        let sender = send(&doorbell, producer, tick(9));
        owner.sleep_until_alarm(tick(9));
        owner.sleep_until_alarm(tick(8));
        assert_eq!(doorbell.wake(), WakeUp::Saved, "the owner is awake again");
        assert_eq!(sender.join().unwrap(), WakeUp::Saved);
        assert_eq!(receive(&mut lane), 1);
    });
}

/// Each of `senders` threads leaves a message in a mailbox, sets the flag and ends.
fn check_mail_flag(senders: usize, preemptions_max: usize) {
    check_within(preemptions_max, move || {
        let doorbell = Arc::new(Doorbell::new());
        let flag = Arc::new(MailFlag::new());
        let messages = Arc::new(Mutex::new(0));
        let mut owner = Owner::new(&doorbell);
        for _ in 0..senders {
            let (doorbell, flag) = (Arc::clone(&doorbell), Arc::clone(&flag));
            let messages = Arc::clone(&messages);
            thread::spawn(move || {
                *messages.lock().unwrap() += 1;
                flag.set(&doorbell);
            });
        }
        let mut taken = 0;
        loop {
            if flag.take() {
                taken += std::mem::take(&mut *messages.lock().unwrap());
            }
            if taken == senders {
                break;
            }
            owner.sleep(Tick::NEVER, || flag.is_set());
        }
    });
}

#[test]
fn mail_flag_set_by_one_sender_is_seen_by_the_owner() {
    check_mail_flag(1, 3);
}

#[test]
fn mail_flag_set_by_two_senders_is_seen_by_the_owner() {
    check_mail_flag(2, 2);
}

/// The writer stores two equal values. No reader sees two values that differ, or an older value
/// than it has seen before.
#[test]
fn values_stored_together_are_loaded_together() {
    check(|| {
        let version = Arc::new(Version::new());
        let values = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let writer = {
            let (version, values) = (Arc::clone(&version), Arc::clone(&values));
            thread::spawn(move || {
                for round in 1..=2 {
                    version.store(|| {
                        values.iter().for_each(|value| value.store(round, Ordering::Relaxed));
                    });
                }
            })
        };
        let mut load = || [0, 1].map(|at: usize| values[at].load(Ordering::Relaxed));
        let mut seen = 0;
        for _ in 0..2 {
            if let Some([first, second]) = version.try_load(&mut load) {
                assert_eq!(first, second, "the values are of two versions");
                assert!(first >= seen, "the values are older than those read before");
                seen = first;
            }
        }
        writer.join().unwrap();
        assert_eq!(version.try_load(&mut load), Some([2, 2]), "the last values are loaded");
    });
}
