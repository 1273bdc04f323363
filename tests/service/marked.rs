//! Timers that are cancelled before their shard has received them: they are marked in their lane.

use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use corewheel::attach::Turn;
use corewheel::{CancelOutcome, Handle, ResetOutcome, SharedSleep, ShutdownPolicy};

use crate::support::{
    Alarm, FAR, Guard, Lab, SHARD, block_on, builder, check_law, look, ms, poll, wait_until,
};

/// A thread that drives no shard and runs what it is given, so that all of it has one client.
struct Elsewhere(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Elsewhere {
    fn new() -> Self {
        let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Self(sender)
    }

    /// Runs code there, and waits for it.
    fn run<O: Send + 'static>(&self, code: impl FnOnce() -> O + Send + 'static) -> O {
        let (sender, output) = mpsc::channel();
        self.0.send(Box::new(move || sender.send(code()).unwrap())).unwrap();
        output.recv().unwrap()
    }

    /// Polls a far sleep there.
    fn sleep(&self, handle: Handle, waker: &Waker) -> SharedSleep {
        let waker = waker.clone();
        self.run(move || {
            let mut sleep = handle.sleep(FAR);
            assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
            sleep
        })
    }
}

/// How many clones of a waker there are besides the alarm itself and the test's.
fn kept(alarm: &Arc<Alarm>) -> usize {
    Arc::strong_count(alarm) - 2
}

#[test]
fn sleep_dropped_before_its_shard_receives_it_sends_nothing_more() {
    for drops_there in [true, false] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle(), Elsewhere::new());
        let (alarm, waker) = Alarm::new();
        let sleep = there.sleep(handle, &waker);
        if drops_there {
            there.run(move || drop(sleep));
        } else {
            drop(sleep);
        }
        lab.settle();
        let counts = lab.counts();
        assert_eq!((counts.requests, counts.scheduled_remote, counts.cancelled), (1, 1, 1));
        assert_eq!((counts.pending, counts.pending_max, counts.stale), (0, 0, 0));
        assert_eq!((alarm.count(), kept(&alarm)), (0, 0));
        check_law(&counts);
    }
}

#[test]
fn sleep_dropped_after_its_shard_has_received_it_sends_a_cancel() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    let sleep = there.sleep(handle, &waker);
    lab.settle();
    assert_eq!(lab.counts().pending, 1);
    there.run(move || drop(sleep));
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.requests, counts.pending, counts.cancelled), (2, 0, 1));
    assert_eq!((alarm.count(), kept(&alarm)), (0, 0));
    check_law(&counts);
}

/// The lane's ring has 64 slots, so that each slot is used many times meanwhile.
#[test]
fn sleep_that_outlives_many_rounds_of_its_ring_cancels_only_itself() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let (_alarm, waker) = Alarm::new();
    let old = there.sleep(handle, &waker);
    let mut others = Vec::new();
    for round in 0..400_u64 {
        let sleep = there.sleep(handle, &waker);
        if round % 3 == 0 {
            others.push(sleep);
        } else {
            there.run(move || drop(sleep));
        }
        // The client has 16 keys at first.
        if round % 8 == 0 {
            lab.settle();
        }
    }
    there.run(move || drop(old));
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled), (others.len() as u64, 400 - 134 + 1));
    assert_eq!(counts.refused, 0);
    check_law(&counts);
    drop(others);
    lab.settle();
    assert_eq!((lab.counts().pending, lab.counts().scheduled_remote), (0, 401));
}

#[test]
fn marked_timers_give_their_keys_back() {
    // Few keys: a key that is lost is missed soon.
    let mut lab = Lab::<()>::new(builder(1).capacity(40));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let (_alarm, waker) = Alarm::new();
    let (mut armed, mut granted) = (0, 0);
    for _ in 0..2_000 {
        let mut sleep = handle.sleep(FAR);
        let polled = waker.clone();
        there.run(move || drop((poll(&mut sleep, &polled), sleep)));
        lab.settle();
        (armed, granted) = (lab.counts().scheduled_remote, lab.counts().granted);
    }
    assert!(armed > 1_900 && granted <= 40, "{:?}", lab.counts());
    // The client gives its keys back when its thread ends.
    drop(there);
    wait_until("the lane is closed", || {
        lab.settle();
        lab.counts().lanes == 0
    });
    let all: Vec<_> = (0..40).map(|_| lab.timers().schedule(FAR, ())).collect();
    assert!(all.iter().all(Result::is_ok), "a slot is lost: {:?}", lab.counts());
    check_law(&lab.counts());
}

#[test]
fn burst_beside_the_ring_is_marked_without_a_message() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    // The client is granted more keys as it uses them. The last burst is larger than the ring.
    for _ in 0..12 {
        let before = lab.counts();
        let sleeps: Vec<_> = (0..900).map(|_| there.sleep(handle, &waker)).collect();
        drop(sleeps);
        lab.settle();
        let counts = lab.counts();
        let armed = counts.scheduled_remote - before.scheduled_remote;
        assert_eq!(counts.cancelled - before.cancelled, armed);
        assert_eq!(counts.requests - before.requests, armed, "a cancel is a message");
        assert_eq!((counts.pending, kept(&alarm)), (0, 0));
        check_law(&counts);
    }
    let before = lab.counts();
    drop((0..900).map(|_| there.sleep(handle, &waker)).collect::<Vec<_>>());
    lab.settle();
    assert_eq!(lab.counts().requests - before.requests, 900);
}

#[test]
fn another_waker_of_a_timer_in_its_lane_takes_its_place_there() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let ((old, first), (new, second)) = (Alarm::new(), Alarm::new());
    let mut sleep = there.sleep(handle, &first);
    let waker = second.clone();
    let sleep = there.run(move || {
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep
    });
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.requests, counts.pending, counts.cancelled), (2, 1, 1));
    assert_eq!((kept(&old), kept(&new)), (0, 1));
    lab.advance(FAR);
    assert_eq!((old.count(), new.count()), (0, 1));
    drop(sleep);
}

#[test]
fn waker_of_a_dropped_sleep_is_kept_for_a_second_at_most() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    drop(there.sleep(handle, &waker));
    let (shard, bell) = Alarm::new();
    let sleeps_until = |turn| match turn {
        Turn::Next(at) => at,
        other => panic!("the shard looks for requests again, and does not wait: {other:?}"),
    };
    let until = sleeps_until(lab.fall_asleep(&bell));
    assert_eq!(until - lab.timers().now(), ms(1_000));
    // Others that come meanwhile do not wake the shard, and are received at its next look.
    lab.clock.advance(ms(999));
    for _ in 0..3 {
        drop(there.sleep(handle, &waker));
    }
    assert_eq!((shard.count(), kept(&alarm)), (0, 3));
    lab.advance(ms(1));
    assert_eq!(kept(&alarm), 0);
    // A shard to which none came sleeps for as long as it may, and the next one wakes it.
    sleeps_until(lab.fall_asleep(&bell));
    lab.advance(ms(1_000));
    assert_eq!(lab.fall_asleep(&bell), Turn::Idle);
    drop(there.sleep(handle, &waker));
    assert_eq!(shard.count(), 1, "a shard that sleeps for ever keeps a waker for ever");
    lab.settle();
    assert_eq!((alarm.count(), kept(&alarm)), (0, 0));
}

#[test]
fn marked_timers_of_a_service_that_ends_are_cancelled_under_each_policy() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Return, ShutdownPolicy::Fire] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle(), Elsewhere::new());
        let (alarm, waker) = Alarm::new();
        let (dropped, waits) = (there.sleep(handle, &waker), there.sleep(handle, &waker));
        drop(dropped);
        lab.end(policy);
        let counts = lab.counts();
        assert_eq!((counts.scheduled_remote, counts.cancelled), (2, 1), "{policy:?}");
        assert_eq!((alarm.count(), kept(&alarm)), (1, 0), "{policy:?}: the other one is woken");
        check_law(&counts);
        drop(waits);
    }
}

#[test]
fn value_cancelled_in_its_lane_is_dropped_by_the_next_turn() {
    let mut lab = Lab::<Guard>::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let timer = client.shard(SHARD).schedule(FAR, guard).unwrap();
    client.cancel_detached(timer);
    client.cancel_detached(timer);
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 0);
    lab.settle();
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    let counts = lab.counts();
    // The second cancel is a message, for a timer that is gone.
    assert_eq!((counts.requests, counts.cancelled, counts.stale), (2, 1, 1));
    check_law(&counts);
}

#[test]
fn callback_cancelled_in_its_lane_does_not_run() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let call = move |_: &_| panic!("{guard:?} is cancelled");
    let timer = client.shard(SHARD).schedule_fn(ms(5), call).unwrap();
    client.cancel_detached(timer);
    lab.settle();
    lab.advance(ms(5));
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!((lab.counts().requests, lab.counts().cancelled), (1, 1));
    check_law(&lab.counts());
}

#[test]
fn batch_whose_timers_are_cancelled_in_the_lane_sends_no_cancels() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.shard(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    let mut batch = client.shard(SHARD).batch();
    let timers: Vec<_> = (1..=40).map(|n| batch.schedule(FAR, n).unwrap()).collect();
    batch.send().unwrap();
    for timer in timers {
        client.cancel_detached(timer);
    }
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.requests, counts.pending, counts.cancelled), (41, 1, 40));
    check_law(&counts);
}

/// A caller that asks gets the truth and the payload, whatever is cancelled without asking.
#[test]
fn cancel_that_asks_before_a_detached_one_gets_the_payload() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    let timer = client.shard(SHARD).schedule(FAR, 7).unwrap();
    let reset = client.reset(timer, FAR * 2);
    let asked = client.cancel(timer);
    client.cancel_detached(timer);
    lab.settle();
    assert_eq!(block_on(reset), Ok(ResetOutcome::Reset));
    match block_on(asked) {
        Ok(CancelOutcome::Cancelled { payload, .. }) => assert_eq!(payload.into_value(), Some(7)),
        other => panic!("{other:?}"),
    }
    check_law(&lab.counts());
}

/// Another client asks for the outcome before the timer has come, and the first one cancels the
/// timer where it lies.
#[test]
fn cancel_that_overtook_a_marked_timer_gets_its_payload() {
    let mut lab = Lab::new(builder(1));
    let (early, client) = (lab.client(), lab.client());
    early.shard(SHARD).schedule(FAR, 0).unwrap();
    client.shard(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    let timer = client.shard(SHARD).schedule(FAR, 7).unwrap();
    let asked = early.cancel(timer);
    client.cancel_detached(timer);
    lab.settle();
    match block_on(asked) {
        Ok(CancelOutcome::Cancelled { payload, .. }) => assert_eq!(payload.into_value(), Some(7)),
        other => panic!("{other:?}"),
    }
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled, counts.scheduled_remote), (2, 1, 3));
    check_law(&counts);
}

#[test]
fn sleep_reset_after_its_timer_was_due_in_the_lane_is_scheduled_once_more() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle(), Elsewhere::new());
    let mut sleep = there.run(move || {
        let mut sleep = handle.sleep(ms(5));
        assert_eq!(look(&mut sleep), None);
        sleep.reset(ms(50));
        sleep
    });
    // The shard is late: it has not received the first timer when the task polls again.
    lab.clock.advance(ms(10));
    let (woken, waker) = Alarm::new();
    let sleep = there.run(move || {
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep
    });
    lab.settle();
    assert_eq!((lab.counts().pending, lab.counts().cancelled, woken.count()), (1, 1, 0));
    lab.advance(ms(40));
    assert_eq!(woken.count(), 1);
    drop(sleep);
}
