//! The protocols between threads under the model checker, which runs every interleaving up to a
//! number of preemptions and every value that a load may return.
//!
//! A lane is here what the protocols see of an SPSC ring: a tail that is released by the push and
//! acquired by the drain, and nothing else that orders anything. A lock around it would stand in
//! for a fence that is missing.

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
use super::wake_up::{Doorbell, MailFlag, Ring};

/// Checks a model with up to three preemptions; one more takes minutes.
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
    fn has_news(&self) -> bool {
        self.tail.load(Ordering::Acquire) != self.popped
    }

    fn drain(&mut self) -> usize {
        let tail = self.tail.load(Ordering::Acquire);
        let popped = tail - self.popped;
        self.popped = tail;
        popped
    }
}

/// What an owner does between its turns, as the drivers do it.
struct Owner {
    bell: Arc<Doorbell>,
    sleeps: usize,
}

impl Owner {
    fn new(bell: &Arc<Doorbell>) -> Self {
        Self { bell: Arc::clone(bell), sleeps: 0 }
    }

    /// Sleeps until something is there or the bell rings, in the driver's steps. If neither ever
    /// comes, the model is in a deadlock, and says so.
    fn sleep(&mut self, until: Tick, has_news: impl Fn() -> bool) {
        self.sleeps += 1;
        let mut asleep = false;
        block_on(poll_fn(|cx| {
            if !asleep {
                self.bell.fall_asleep(until, cx.waker());
                if has_news() {
                    self.bell.wake_up();
                    return Poll::Ready(());
                }
                asleep = true;
            } else if !self.bell.stay_asleep(cx.waker()) {
                self.bell.wake_up();
                return Poll::Ready(());
            }
            Poll::Pending
        }));
    }

    /// Falls asleep, and is woken at once by its alarm.
    fn nap(&mut self, until: Tick) {
        self.sleeps += 1;
        block_on(poll_fn(|cx| {
            self.bell.fall_asleep(until, cx.waker());
            self.bell.wake_up();
            Poll::Ready(())
        }));
    }
}

/// Starts a sender on its own thread, which pushes once and rings; returns what the ring came to.
fn send(bell: &Arc<Doorbell>, mut lane: Producer, deadline: Tick) -> thread::JoinHandle<Ring> {
    let bell = Arc::clone(bell);
    thread::spawn(move || {
        lane.push();
        bell.ring_for(deadline)
    })
}

fn count_rung(senders: Vec<thread::JoinHandle<Ring>>) -> usize {
    senders.into_iter().filter_map(|s| s.join().ok()).filter(|ring| *ring == Ring::Rung).count()
}

#[test]
fn no_wake_up_is_lost() {
    check(|| {
        let bell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&bell);
        let senders = vec![send(&bell, producer, Tick::new(5))];
        while lane.drain() == 0 {
            owner.sleep(Tick::new(9), || lane.has_news());
        }
        assert!(count_rung(senders) <= owner.sleeps, "a sleep was woken from twice");
    });
}

#[test]
fn two_senders_wake_a_sleep_once() {
    check(|| {
        let bell = Arc::new(Doorbell::new());
        let (producers, mut lanes): (Vec<_>, Vec<_>) = [ring(), ring()].into_iter().unzip();
        let mut owner = Owner::new(&bell);
        let senders = producers.into_iter().map(|p| send(&bell, p, Tick::new(5))).collect();
        let mut drained = 0;
        loop {
            drained += lanes.iter_mut().map(Consumer::drain).sum::<usize>();
            if drained == 2 {
                break;
            }
            owner.sleep(Tick::NEVER, || lanes.iter().any(Consumer::has_news));
        }
        assert!(count_rung(senders) <= owner.sleeps, "a sleep was woken from twice");
    });
}

#[test]
fn a_sleep_that_the_alarm_ends_leaves_nothing_behind_for_the_next() {
    check(|| {
        let bell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&bell);
        let senders = vec![send(&bell, producer, Tick::new(5))];
        owner.nap(Tick::new(9));
        while lane.drain() == 0 {
            owner.sleep(Tick::NEVER, || lane.has_news());
        }
        assert!(count_rung(senders) <= owner.sleeps, "a sleep was woken from twice");
    });
}

#[test]
fn what_a_short_sleep_need_not_know_is_seen_before_a_long_one() {
    check(|| {
        let bell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&bell);
        // The sender may read that the owner sleeps until 5, and save the bell, when it sleeps
        // until 9 already.
        let senders = vec![send(&bell, producer, Tick::new(7))];
        owner.nap(Tick::new(5));
        while lane.drain() == 0 {
            owner.sleep(Tick::new(9), || lane.has_news());
        }
        assert!(count_rung(senders) <= 1, "only the long sleep is woken from");
    });
}

#[test]
fn what_is_not_needed_before_the_sleep_ends_does_not_ring() {
    check(|| {
        let bell = Arc::new(Doorbell::new());
        let (producer, mut lane) = ring();
        let mut owner = Owner::new(&bell);
        let sender = send(&bell, producer, Tick::new(9));
        owner.nap(Tick::new(9));
        owner.nap(Tick::new(8));
        assert_eq!(bell.ring(), Ring::Saved, "the owner is awake again");
        assert_eq!(sender.join().unwrap(), Ring::Saved);
        assert_eq!(lane.drain(), 1);
    });
}

/// As many senders leave a message each in a mailbox, set its flag and end.
fn check_mail_flag(senders: usize, preemptions_max: usize) {
    check_within(preemptions_max, move || {
        let bell = Arc::new(Doorbell::new());
        let flag = Arc::new(MailFlag::new());
        let messages = Arc::new(Mutex::new(0));
        let mut owner = Owner::new(&bell);
        for _ in 0..senders {
            let (bell, flag) = (Arc::clone(&bell), Arc::clone(&flag));
            let messages = Arc::clone(&messages);
            thread::spawn(move || {
                *messages.lock().unwrap() += 1;
                flag.set(&bell);
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

/// A lane's client, as far as closing goes.
struct Client {
    bell: Arc<Doorbell>,
    gate: Arc<Gate<Consumer>>,
    lane: Producer,
}

impl Client {
    /// Sends as many requests with one fence; returns how many came back.
    fn send(&mut self, requests: usize) -> usize {
        for _ in 0..requests {
            self.lane.push();
        }
        self.bell.ring_for(Tick::ZERO);
        if !self.gate.is_closed() {
            return 0;
        }
        let mut lane = loop {
            match self.gate.take() {
                Some(lane) => break lane,
                None => thread::yield_now(),
            }
        };
        let back = lane.drain();
        self.gate.hand_back(lane);
        back
    }
}

/// A client sends batches of these sizes while the owner takes a turn and closes the lane.
fn check_closing(batches: &'static [usize], turns: usize) {
    check(move || {
        let bell = Arc::new(Doorbell::new());
        let gate = Arc::new(Gate::new());
        let (producer, mut lane) = ring();
        let mut client = Client { bell, gate: Arc::clone(&gate), lane: producer };
        let client = thread::spawn(move || {
            let mut back = 0;
            for batch in batches {
                back += client.send(*batch);
            }
            back
        });
        let mut accepted = 0;
        for _ in 0..turns {
            accepted += lane.drain();
        }
        gate.close();
        accepted += lane.drain();
        gate.hand_back(lane);
        let back = client.join().unwrap();
        assert_eq!(
            accepted + back,
            batches.iter().sum::<usize>(),
            "each request is either accepted, {accepted} of them, or comes back, {back} of them"
        );
    });
}

#[test]
fn a_request_to_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(&[1], 0);
}

#[test]
fn two_requests_to_a_closing_lane_are_accepted_or_come_back() {
    check_closing(&[1, 1], 1);
}

#[test]
fn a_batch_to_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(&[2, 1], 1);
}

/// A lane with a ring of two, as [`super::lane`] fills and drains it.
struct Narrow {
    gate: Gate<()>,
    /// What the ring holds; `tail` and `head` order it.
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

    /// The client's push, with its own count of those onto the ring.
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

    /// The owner's drain by a budget of one, with its own count of those off the ring.
    fn drain(&self, popped: &mut usize, requests: &mut Vec<usize>) {
        let overflows = !self.overflow.is_empty();
        requests.extend(self.pop(popped));
        if overflows && self.tail.load(Ordering::Acquire) == *popped {
            requests.extend(self.overflow.take());
        }
    }

    fn waits(&self, popped: usize) -> bool {
        self.tail.load(Ordering::Acquire) != popped || !self.overflow.is_empty()
    }
}

#[test]
fn an_overflow_keeps_the_order_and_is_not_slept_over() {
    check(|| {
        let (bell, lane) = (Arc::new(Doorbell::new()), Arc::new(Narrow::new()));
        let mut owner = Owner::new(&bell);
        let client_lane = Arc::clone(&lane);
        thread::spawn(move || {
            let mut pushed = 0;
            for request in 1..=4 {
                client_lane.push(&mut pushed, request);
            }
            bell.ring_for(Tick::ZERO);
        });
        let (mut popped, mut accepted) = (0, Vec::new());
        loop {
            lane.drain(&mut popped, &mut accepted);
            if accepted.len() == 4 {
                break;
            }
            owner.sleep(Tick::NEVER, || lane.waits(popped));
        }
        assert_eq!(accepted, [1, 2, 3, 4], "requests are accepted in the order they were sent in");
    });
}

#[test]
fn an_overflow_of_a_closing_lane_is_accepted_or_comes_back() {
    check(|| {
        let (bell, lane) = (Doorbell::new(), Arc::new(Narrow::new()));
        let client_lane = Arc::clone(&lane);
        let client = thread::spawn(move || {
            let lane = client_lane;
            let (mut pushed, mut back) = (0, Vec::new());
            for request in 1..=3 {
                lane.push(&mut pushed, request);
                bell.ring_for(Tick::ZERO);
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
        while lane.waits(popped) {
            lane.drain(&mut popped, &mut requests);
        }
        lane.gate.hand_back(());
        requests.extend(client.join().unwrap());
        assert_eq!(requests, [1, 2, 3], "what is not accepted comes back, once and in order");
    });
}

/// What a stop was told is so, whenever it comes, and what was done before is seen.
#[test]
fn a_stop_tells_the_truth() {
    check(|| {
        let brake = Arc::new(StopFlag::new());
        let (began, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let shard = {
            let (brake, began, ended) = (brake.clone(), began.clone(), ended.clone());
            thread::spawn(move || {
                for generation in [1, 3] {
                    let generation = NonZeroU32::new(generation).unwrap();
                    if !brake.begin() {
                        break;
                    }
                    began.fetch_add(1, Ordering::Relaxed);
                    ended.fetch_add(1, Ordering::Relaxed);
                    if !brake.rest(7, generation) {
                        break;
                    }
                }
                brake.end();
            })
        };
        let found = brake.stop();
        let (runs, done) = (began.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
        match found {
            Stop::Waited(timer) => {
                // Whether it waited for the first timer, or for which of the others.
                let waited = timer.map_or(0, |(_, of)| of.get().div_ceil(2) as usize);
                assert_eq!((runs, done), (waited, waited));
                shard.join().unwrap();
                assert_eq!(began.load(Ordering::Relaxed), waited, "it does not run any more");
            }
            Stop::Runs => {
                shard.join().unwrap();
                assert!(began.load(Ordering::Relaxed) <= runs + 1);
            }
            Stop::Over => assert_eq!((runs, done), (2, 2)),
        }
        assert_ne!(brake.stop(), Stop::Waited(None));
    });
}

/// Who finds a callback over sees all that it has done, also where it has ended by itself.
#[test]
fn what_is_over_has_been_seen_to_its_end() {
    for asks in [false, true] {
        check(move || {
            let (brake, done) = (Arc::new(StopFlag::new()), Arc::new(AtomicUsize::new(0)));
            let elsewhere = {
                let (brake, done) = (brake.clone(), done.clone());
                thread::spawn(move || {
                    let over = if asks { brake.is_over() } else { brake.stop() == Stop::Over };
                    assert!(!over || done.load(Ordering::Relaxed) == 1);
                })
            };
            if brake.begin() {
                done.fetch_add(1, Ordering::Relaxed);
                brake.end();
            }
            elsewhere.join().unwrap();
            assert_eq!(brake.stop(), Stop::Over);
        });
    }
}

/// The writer stores two values that are the same; no reader sees two that differ, nor an older one
/// than it has seen before.
#[test]
fn values_of_one_version_are_read_together() {
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
                assert_eq!(first, second, "values of two versions are read");
                assert!(first >= seen, "a reader goes back in time");
                seen = first;
            }
        }
        writer.join().unwrap();
        assert_eq!(version.try_load(&mut load), Some([2, 2]), "nothing is stored any more");
    });
}
