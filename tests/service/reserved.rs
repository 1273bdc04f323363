//! Sleeps of handles on a shard whose last keys other clients hold.

use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use corewheel::attach::Turn;
use corewheel::{Client, Handle, RefusedKind, SharedSleep, TimerHandle};

use crate::support::{Alarm, FAR, Lab, SHARD, builder, check_law, ms, next};

type Polled = Poll<Result<(), RefusedKind>>;
type Job = (SharedSleep, Waker, mpsc::Sender<(SharedSleep, Polled)>);

/// A thread that drives no shard and polls sleeps for the test.
struct OtherThread {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl OtherThread {
    fn start() -> Self {
        let (jobs, polls) = mpsc::channel::<Job>();
        let thread = std::thread::spawn(move || {
            for (mut sleep, waker, reply) in polls {
                let mut cx = Context::from_waker(&waker);
                let polled = std::pin::Pin::new(&mut sleep).poll(&mut cx);
                drop(waker);
                reply.send((sleep, polled)).unwrap();
            }
        });
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    fn poll(&self, sleep: SharedSleep, waker: &Waker) -> (SharedSleep, Polled) {
        let (reply, polled) = mpsc::channel();
        self.jobs.as_ref().unwrap().send((sleep, waker.clone(), reply)).unwrap();
        polled.recv().unwrap()
    }
}

impl Drop for OtherThread {
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A shard whose last slot is the key of a client.
struct Scene {
    lab: Lab<u32>,
    busy: Client<u32>,
    timer: TimerHandle,
    other: OtherThread,
    handle: Handle,
}

impl Scene {
    fn new() -> Self {
        let mut lab = Lab::new(builder(1).capacity(32));
        let busy = lab.client();
        let timer = busy.shard(SHARD).schedule(FAR, 1).unwrap();
        lab.settle();
        while lab.timers().schedule(FAR, 0).is_ok() {
            busy.reset_detached(timer, FAR);
            lab.settle();
        }
        let counts = lab.counts();
        assert_eq!((counts.pending, counts.granted), (31, 1), "one key is left");
        let handle = lab.service.handle();
        Self { lab, busy, timer, other: OtherThread::start(), handle }
    }

    /// Takes a turn in which the client uses its lane.
    fn turn_with_used_key(&mut self) {
        let _next = self.turn_and_next();
    }

    /// Takes a turn in which the client uses its lane, and returns when the next one is due.
    fn turn_and_next(&mut self) -> Turn {
        self.busy.reset_detached(self.timer, FAR);
        self.lab.turn()
    }
}

#[test]
fn sleep_waits_until_the_next_tick_for_a_key_used_in_this_one() {
    let mut scene = Scene::new();
    let (woken, waker) = Alarm::new();
    let (sleep, polled) = scene.other.poll(scene.handle.sleep(FAR), &waker);
    assert_eq!(polled, Poll::Pending);
    scene.turn_with_used_key();
    assert_eq!(woken.count(), 1, "the sleep finds out that it gets no key");
    let (sleep, polled) = scene.other.poll(sleep, &waker);
    assert_eq!(polled, Poll::Pending);
    let turn = scene.turn_and_next();
    // The shard has a time for the next attempt, and may sleep until then.
    assert_eq!(turn, next(1));
    assert_eq!(scene.lab.shards[0].prepare_to_sleep(turn, Waker::noop()), next(1));
    // A client with a value is refused at once.
    let fresh = scene.lab.client();
    assert_eq!(fresh.shard(SHARD).schedule(FAR, 2).unwrap_err().kind(), RefusedKind::Busy);
    scene.turn_with_used_key();
    let refused = fresh.shard(SHARD).schedule(FAR, 2).unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Reserved { keys: 1, clients: 1 });
    drop(fresh);
    scene.turn_with_used_key();
    assert_eq!(woken.count(), 1, "the sleep is woken in vain");
    scene.lab.advance(ms(1));
    assert_eq!(woken.count(), 2);
    let (sleep, polled) = scene.other.poll(sleep, &waker);
    assert_eq!(polled, Poll::Pending);
    scene.lab.settle();
    let counts = scene.lab.counts();
    assert_eq!((counts.pending, counts.granted), (32, 0), "the sleep has the last slot");
    drop(sleep);
    check_law(&counts);
}

#[test]
fn sleep_that_waits_for_a_key_is_woken_when_it_is_reset_to_earlier() {
    let mut scene = Scene::new();
    let (woken, waker) = Alarm::new();
    let (sleep, _) = scene.other.poll(scene.handle.sleep(FAR), &waker);
    scene.turn_with_used_key();
    let (mut sleep, polled) = scene.other.poll(sleep, &waker);
    assert_eq!(polled, Poll::Pending);
    scene.turn_with_used_key();
    assert_eq!(woken.count(), 1, "the lane holds the waker until the next tick");
    let reset = std::thread::spawn(move || {
        sleep.reset(ms(0));
        sleep
    });
    let sleep = reset.join().unwrap();
    scene.turn_with_used_key();
    assert_eq!(woken.count(), 2, "the sleep is over in this tick");
    let (_, polled) = scene.other.poll(sleep, &waker);
    assert_eq!(polled, Poll::Ready(Ok(())));
}

#[test]
fn sleep_returns_reserved_after_four_ticks_in_which_the_keys_were_used() {
    // The clock leaps between the turns of the shard; the shard tries no less often.
    for leap in [1, 1_000] {
        let mut scene = Scene::new();
        let (woken, waker) = Alarm::new();
        let (mut sleep, mut polled) = scene.other.poll(scene.handle.sleep(FAR), &waker);
        for ticks in 1..=4 {
            assert_eq!(polled, Poll::Pending, "after {ticks} ticks");
            scene.turn_with_used_key();
            assert_eq!(woken.count(), ticks, "the sleep is woken once in a tick");
            (sleep, polled) = scene.other.poll(sleep, &waker);
            if polled.is_pending() {
                // A poll that no waker has caused changes nothing.
                (sleep, polled) = scene.other.poll(sleep, &waker);
                scene.turn_with_used_key();
                assert_eq!(woken.count(), ticks, "the sleep is woken in vain");
                scene.lab.clock.advance(ms(leap));
            }
        }
        assert_eq!(polled, Poll::Ready(Err(RefusedKind::Reserved { keys: 1, clients: 1 })));
        // It begins to wait again, and the key comes back when it is not used.
        (sleep, polled) = scene.other.poll(sleep, &waker);
        assert_eq!(polled, Poll::Pending);
        scene.lab.settle();
        scene.lab.advance(ms(1));
        (sleep, polled) = scene.other.poll(sleep, &waker);
        assert_eq!(polled, Poll::Pending);
        scene.lab.settle();
        assert_eq!(scene.lab.counts().pending, 32);
        drop(sleep);
    }
}

/// A shard with used keys, and a sleep that is polled when it is woken. Asserts that the sleep is
/// done at its deadline. The first turn is in tick `first`.
fn check_done_at_deadline(deadline: u64, first: u64) {
    let mut scene = Scene::new();
    let (woken, waker) = Alarm::new();
    let (mut sleep, mut polled) = scene.other.poll(scene.handle.sleep(ms(deadline)), &waker);
    scene.lab.clock.advance(ms(first));
    let mut seen = 0;
    for tick in first..=deadline.max(first) {
        assert_eq!(polled, Poll::Pending, "before tick {tick}");
        for _ in 0..3 {
            scene.turn_with_used_key();
            if woken.count() > seen && polled.is_pending() {
                seen = woken.count();
                (sleep, polled) = scene.other.poll(sleep, &waker);
            }
        }
        if tick < deadline {
            scene.lab.clock.advance(ms(1));
        }
    }
    assert_eq!(polled, Poll::Ready(Ok(())), "a deadline of {deadline}, turns from {first} on");
    drop(sleep);
    // No attempt follows where no sleep waits.
    scene.lab.clock.advance(ms(1));
    let turn = scene.turn_and_next();
    assert!(matches!(turn, Turn::Next(at) if at > scene.lab.clock.now() + ms(1)), "{turn:?}");
    drop((waker, scene));
    assert_eq!(Arc::strong_count(&woken), 1, "a waker is left");
}

#[test]
fn sleep_that_waits_for_a_key_is_done_at_its_deadline() {
    for deadline in 1..=3 {
        for first in 0..=deadline + 1 {
            check_done_at_deadline(deadline, first);
        }
    }
}
