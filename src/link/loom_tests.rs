//! Tests of the protocols between threads under the model checker, which runs every interleaving up
//! to a number of preemptions, with every value that a load may return.
//!
//! The models reduce an SPSC ring to a tail that the push releases and the owner acquires. Nothing
//! else in these rings orders memory, since a lock would hide a missing fence.

mod mailbox_tests;

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::task::Poll;

use corewheel_shard::Tick;
use loom::future::block_on;
use loom::sync::atomic::AtomicUsize;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::gate::Gate;
use super::overflow::Overflow;
use super::stop_flag::{Stop, StopFlag};
use super::sync::Ordering;
use super::version::Version;
use super::wake_up::{Doorbell, MailFlag, WakeUp};

/// Checks a model with up to three preemptions; four take minutes.
fn check(run: impl Fn() + Sync + Send + 'static) {
    check_within(3, run);
}

fn check_within(preemptions_max: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(run);
}

/// The client's end of a ring.
struct Producer {
    tail: Arc<AtomicUsize>,
    pushed: usize,
}

/// The owner's end of a ring.
struct Consumer {
    tail: Arc<AtomicUsize>,
    popped: usize,
}

fn ring() -> (Producer, Consumer) {
    let tail = Arc::new(AtomicUsize::new(0));
    (Producer { tail: Arc::clone(&tail), pushed: 0 }, Consumer { tail, popped: 0 })
}

impl Producer {
    fn push(&mut self) {
        self.pushed += 1;
        self.tail.store(self.pushed, Ordering::Release);
    }
}

impl Consumer {
    fn has_requests(&self) -> bool {
        self.tail.load(Ordering::Acquire) != self.popped
    }

    fn receive(&mut self) -> usize {
        let tail = self.tail.load(Ordering::Acquire);
        let popped = tail - self.popped;
        self.popped = tail;
        popped
    }
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
    fn sleep(&mut self, until: Tick, has_requests: impl Fn() -> bool) {
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

/// Starts a thread that pushes one request, wakes the owner if need be, and returns whether it did.
fn send(
    doorbell: &Arc<Doorbell>,
    mut lane: Producer,
    deadline: Tick,
) -> thread::JoinHandle<WakeUp> {
    let doorbell = Arc::clone(doorbell);
    thread::spawn(move || {
        lane.push();
        doorbell.wake_for(deadline)
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
        let senders = vec![send(&doorbell, producer, Tick::new(5))];
        while lane.receive() == 0 {
            owner.sleep(Tick::new(9), || lane.has_requests());
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
        let senders = producers.into_iter().map(|p| send(&doorbell, p, Tick::new(5))).collect();
        let mut received = 0;
        loop {
            received += lanes.iter_mut().map(Consumer::receive).sum::<usize>();
            if received == 2 {
                break;
            }
            owner.sleep(Tick::NEVER, || lanes.iter().any(Consumer::has_requests));
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
        let senders = vec![send(&doorbell, producer, Tick::new(5))];
        owner.sleep_until_alarm(Tick::new(9));
        while lane.receive() == 0 {
            owner.sleep(Tick::NEVER, || lane.has_requests());
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
        let senders = vec![send(&doorbell, producer, Tick::new(7))];
        owner.sleep_until_alarm(Tick::new(5));
        while lane.receive() == 0 {
            owner.sleep(Tick::new(9), || lane.has_requests());
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
        let sender = send(&doorbell, producer, Tick::new(9));
        owner.sleep_until_alarm(Tick::new(9));
        owner.sleep_until_alarm(Tick::new(8));
        assert_eq!(doorbell.wake(), WakeUp::Saved, "the owner is awake again");
        assert_eq!(sender.join().unwrap(), WakeUp::Saved);
        assert_eq!(lane.receive(), 1);
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

/// A lane's client, reduced to the protocol of closing.
struct Client {
    doorbell: Arc<Doorbell>,
    gate: Arc<Gate<Consumer>>,
    lane: Producer,
}

impl Client {
    /// Sends `requests` requests with one fence, and returns how many came back.
    fn send(&mut self, requests: usize) -> usize {
        for _ in 0..requests {
            self.lane.push();
        }
        self.doorbell.wake_for(Tick::ZERO);
        if !self.gate.is_closed() {
            return 0;
        }
        let mut lane = loop {
            match self.gate.take() {
                Some(lane) => break lane,
                None => thread::yield_now(),
            }
        };
        let back = lane.receive();
        self.gate.hand_back(lane);
        back
    }
}

/// A client sends batches of these sizes while the owner takes turns and closes the lane.
fn check_closing(batches: &'static [usize], turns: usize) {
    check(move || {
        let doorbell = Arc::new(Doorbell::new());
        let gate = Arc::new(Gate::new());
        let (producer, mut lane) = ring();
        let mut client = Client { doorbell, gate: Arc::clone(&gate), lane: producer };
        let client = thread::spawn(move || {
            let mut back = 0;
            for batch in batches {
                back += client.send(*batch);
            }
            back
        });
        let mut accepted = 0;
        for _ in 0..turns {
            accepted += lane.receive();
        }
        gate.close();
        accepted += lane.receive();
        gate.hand_back(lane);
        let back = client.join().unwrap();
        assert_eq!(
            accepted + back,
            batches.iter().sum::<usize>(),
            "{accepted} requests are accepted and {back} come back"
        );
    });
}

#[test]
fn request_to_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(&[1], 0);
}

#[test]
fn two_requests_to_a_closing_lane_are_accepted_or_come_back() {
    check_closing(&[1, 1], 1);
}

#[test]
fn batch_to_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(&[2, 1], 1);
}

/// A lane with a ring of two requests, in the steps of [`super::lane`].
struct Narrow {
    gate: Gate<()>,
    /// The requests in the ring; `tail` and `head` order the accesses.
    slots: [AtomicUsize; 2],
    tail: AtomicUsize,
    head: AtomicUsize,
    overflow: Overflow<usize>,
}

impl Narrow {
    fn new() -> Self {
        Self {
            gate: Gate::new(),
            slots: [AtomicUsize::new(0), AtomicUsize::new(0)],
            tail: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            overflow: Overflow::new(),
        }
    }

    /// The client's push; `pushed` is its count of requests pushed onto the ring.
    fn push(&self, pushed: &mut usize, request: usize) {
        if self.overflow.is_empty() && *pushed - self.head.load(Ordering::Acquire) < 2 {
            self.slots[*pushed % 2].store(request, Ordering::Relaxed);
            *pushed += 1;
            self.tail.store(*pushed, Ordering::Release);
        } else {
            self.overflow.append([request]);
        }
    }

    fn pop(&self, popped: &mut usize) -> Option<usize> {
        if self.tail.load(Ordering::Acquire) == *popped {
            return None;
        }
        let request = self.slots[*popped % 2].load(Ordering::Relaxed);
        *popped += 1;
        self.head.store(*popped, Ordering::Release);
        Some(request)
    }

    /// The owner receives one request from the ring; `popped` is its count of these.
    fn receive(&self, popped: &mut usize, requests: &mut Vec<usize>) {
        let overflows = !self.overflow.is_empty();
        requests.extend(self.pop(popped));
        if overflows && self.tail.load(Ordering::Acquire) == *popped {
            requests.extend(self.overflow.take());
        }
    }

    fn has_requests(&self, popped: usize) -> bool {
        self.tail.load(Ordering::Acquire) != popped || !self.overflow.is_empty()
    }
}

#[test]
fn overflow_keeps_the_order_of_requests_and_wakes_the_owner() {
    check(|| {
        let (doorbell, lane) = (Arc::new(Doorbell::new()), Arc::new(Narrow::new()));
        let mut owner = Owner::new(&doorbell);
        let client_lane = Arc::clone(&lane);
        thread::spawn(move || {
            let mut pushed = 0;
            for request in 1..=4 {
                client_lane.push(&mut pushed, request);
            }
            doorbell.wake_for(Tick::ZERO);
        });
        let (mut popped, mut accepted) = (0, Vec::new());
        loop {
            lane.receive(&mut popped, &mut accepted);
            if accepted.len() == 4 {
                break;
            }
            owner.sleep(Tick::NEVER, || lane.has_requests(popped));
        }
        assert_eq!(accepted, [1, 2, 3, 4], "requests are accepted in the order of sending");
    });
}

#[test]
fn overflow_of_a_closing_lane_is_accepted_or_comes_back() {
    check(|| {
        let (doorbell, lane) = (Doorbell::new(), Arc::new(Narrow::new()));
        let client_lane = Arc::clone(&lane);
        let client = thread::spawn(move || {
            let lane = client_lane;
            let (mut pushed, mut back) = (0, Vec::new());
            for request in 1..=3 {
                lane.push(&mut pushed, request);
                doorbell.wake_for(Tick::ZERO);
                if lane.gate.is_closed() {
                    while lane.gate.take().is_none() {
                        thread::yield_now();
                    }
                    let mut popped = lane.head.load(Ordering::Relaxed);
                    while let Some(request) = lane.pop(&mut popped) {
                        back.push(request);
                    }
                    lane.gate.hand_back(());
                    back.extend(lane.overflow.take());
                }
            }
            back
        });
        let (mut popped, mut requests) = (0, Vec::new());
        lane.gate.close();
        while lane.has_requests(popped) {
            lane.receive(&mut popped, &mut requests);
        }
        lane.gate.hand_back(());
        requests.extend(client.join().unwrap());
        assert_eq!(requests, [1, 2, 3], "each request is accepted or comes back, in order");
    });
}

/// The result of a stop is true at any moment, and the stopping thread sees the runs before it.
#[test]
fn stop_at_any_moment_returns_the_state_of_the_callback() {
    check(|| {
        let flag = Arc::new(StopFlag::new());
        let (began, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let shard = {
            let (flag, began, ended) = (flag.clone(), began.clone(), ended.clone());
            thread::spawn(move || {
                for generation in [1, 3] {
                    let generation = NonZeroU32::new(generation).unwrap();
                    if !flag.begin() {
                        break;
                    }
                    began.fetch_add(1, Ordering::Relaxed);
                    ended.fetch_add(1, Ordering::Relaxed);
                    if !flag.rest(7, generation) {
                        break;
                    }
                }
                flag.end();
            })
        };
        let found = flag.stop();
        let (runs, done) = (began.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
        match found {
            Stop::Waited(timer) => {
                // How many runs there were before the timer for which the callback waited.
                let waited = timer.map_or(0, |(_, of)| of.get().div_ceil(2) as usize);
                assert_eq!((runs, done), (waited, waited));
                shard.join().unwrap();
                assert_eq!(
                    began.load(Ordering::Relaxed),
                    waited,
                    "the callback does not run again"
                );
            }
            Stop::Runs => {
                shard.join().unwrap();
                assert!(began.load(Ordering::Relaxed) <= runs + 1);
            }
            Stop::Over => assert_eq!((runs, done), (2, 2)),
        }
        assert_ne!(flag.stop(), Stop::Waited(None));
    });
}

/// A thread that finds a callback over sees all of its writes, even if the callback ended itself.
#[test]
fn thread_that_finds_a_callback_over_sees_its_writes() {
    for asks in [false, true] {
        check(move || {
            let (flag, done) = (Arc::new(StopFlag::new()), Arc::new(AtomicUsize::new(0)));
            let elsewhere = {
                let (flag, done) = (flag.clone(), done.clone());
                thread::spawn(move || {
                    let over = if asks { flag.is_over() } else { flag.stop() == Stop::Over };
                    assert!(!over || done.load(Ordering::Relaxed) == 1);
                })
            };
            if flag.begin() {
                done.fetch_add(1, Ordering::Relaxed);
                flag.end();
            }
            elsewhere.join().unwrap();
            assert_eq!(flag.stop(), Stop::Over);
        });
    }
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
