//! Cancels that no caller waits for: a shard that sleeps drops the payload within a second, and
//! many such cancels share a wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::sim::Thread;
use corewheel::{CancelOutcome, Fired, Handle, ShutdownPolicy, TimerId, Timers};

use corewheel_test_support::{
    Alarm, FAR, Guard, Host, Lab, Running, SHARD, builder, check_law, ms, wait_until,
};

const SECOND: Duration = Duration::from_secs(1);
/// Later than the timer until which the shards of these tests sleep.
const LATER: Duration = Duration::from_hours(2);

/// A shard that sleeps for an hour, and a client whose lane has keys.
struct Asleep {
    lab: Lab<Option<Guard>>,
    client: Thread<Option<Guard>>,
    alarm: Arc<Alarm>,
    waker: Waker,
}

impl Asleep {
    /// `prepare` runs before the shard sleeps.
    fn after<R>(
        prepare: impl FnOnce(&mut Lab<Option<Guard>>, Handle<Option<Guard>>) -> R,
    ) -> (Self, R) {
        // Elsewhere a window of the wheel may begin soon, in which the timers are filed again.
        let mut lab = Lab::at_windows(builder(1).capacity(1 << 16));
        let client = lab.client();
        client.on(SHARD).schedule(LATER, None).unwrap();
        lab.settle();
        let prepared = prepare(&mut lab, *client);
        lab.settle();
        lab.timers().schedule(FAR, None).unwrap();
        let (alarm, waker) = Alarm::new();
        let mut asleep = Self { lab, client, alarm, waker };
        asleep.sleeps_long();
        (asleep, prepared)
    }

    /// Takes turns until the shard sleeps for more than a second, and fails if it takes them at a
    /// moment of its own before.
    fn sleeps_long(&mut self) {
        let slept = self.lab.fall_asleep(&self.waker);
        let long = self.lab.clock.now() + 10 * SECOND;
        assert!(matches!(slept, Turn::Next(at) if at > long), "{slept:?}");
    }

    fn count(&self) -> usize {
        self.alarm.count()
    }
}

fn count(dropped: &AtomicUsize) -> usize {
    dropped.load(Ordering::SeqCst)
}

/// Each way to cancel without a reply wakes a shard that sleeps for an hour, which drops the
/// payload at once and then takes one more turn, a second later.
#[track_caller]
fn check(what: &str, cancel: impl FnOnce(Handle<Option<Guard>>, TimerId)) {
    let (guard, dropped) = Guard::new();
    let (mut asleep, timer) =
        Asleep::after(|_, client| client.on(SHARD).schedule(LATER, Some(guard)).unwrap());
    let begin = asleep.lab.clock.now();
    cancel(*asleep.client, timer);
    assert_eq!((asleep.count(), count(&dropped)), (1, 0), "{what}");
    let waker = asleep.waker.clone();
    assert_eq!(asleep.lab.fall_asleep(&waker), Turn::Next(begin + SECOND), "{what}");
    assert_eq!(count(&dropped), 1, "{what}");
    asleep.lab.clock.advance(SECOND);
    asleep.sleeps_long();
    assert_eq!((asleep.count(), asleep.lab.counts().pending), (1, 2), "{what}");
    check_law(&asleep.lab.counts());
}

#[test]
fn cancel_without_a_reply_frees_the_payload_of_a_sleeping_shard() {
    check("a cancel", |client, timer| client.cancel_detached(timer));
}

#[test]
fn timer_cancelled_in_its_lane_is_freed_by_a_sleeping_shard() {
    let (guard, dropped) = Guard::new();
    let (mut asleep, ()) = Asleep::after(|_, _| ());
    let timer = asleep.client.on(SHARD).schedule(LATER, Some(guard)).unwrap();
    assert_eq!(asleep.count(), 0, "the timer may wait");
    asleep.client.cancel_detached(timer);
    assert_eq!((asleep.count(), count(&dropped)), (1, 0));
    let waker = asleep.waker.clone();
    let begin = asleep.lab.clock.now();
    assert_eq!(asleep.lab.fall_asleep(&waker), Turn::Next(begin + SECOND));
    assert_eq!(count(&dropped), 1);
    assert_eq!(asleep.lab.counts().requests, 2, "the cancel is no message");
}

#[test]
fn cancel_between_a_turn_and_the_sleep_frees_the_payload() {
    for is_marked in [false, true] {
        let (guard, dropped) = Guard::new();
        let mut guard = Some(guard);
        let (mut asleep, early) = Asleep::after(|_, client| {
            let mut schedule = || client.on(SHARD).schedule(LATER, guard.take()).unwrap();
            (!is_marked).then(&mut schedule)
        });
        let after = asleep.lab.turn();
        let late = || asleep.client.on(SHARD).schedule(LATER, guard.take()).unwrap();
        asleep.client.cancel_detached(early.unwrap_or_else(late));
        let waker = asleep.waker.clone();
        let sleep = asleep.lab.shards[0].prepare_to_sleep(after, &waker);
        assert_eq!(sleep, Turn::More, "marked: {is_marked}");
        assert_eq!(count(&dropped), 0);
        let _next = asleep.lab.fall_asleep(&waker);
        assert_eq!((count(&dropped), asleep.count()), (1, 0), "marked: {is_marked}");
    }
}

/// The shard's own thread cancels a timer of another thread that lies in its lane.
#[test]
fn timer_in_its_lane_that_its_shard_cancels_is_freed_within_a_second() {
    for is_asleep in [false, true] {
        let (guard, dropped) = Guard::new();
        let (mut asleep, ()) = Asleep::after(|_, _| ());
        let waker = asleep.waker.clone();
        let after = if is_asleep { Turn::Idle } else { asleep.lab.turn() };
        let timer = asleep.client.on(SHARD).schedule(LATER, Some(guard)).unwrap();
        let outcome = asleep.lab.timers().cancel(timer);
        assert!(matches!(outcome, CancelOutcome::Overtook));
        let end = asleep.lab.clock.now() + SECOND;
        if is_asleep {
            assert_eq!(asleep.count(), 1);
        } else {
            let sleep = asleep.lab.shards[0].prepare_to_sleep(after, &waker);
            assert_eq!(sleep, Turn::Next(end));
            asleep.lab.clock.advance(SECOND);
        }
        let _next = asleep.lab.turn();
        assert_eq!(count(&dropped), 1, "asleep: {is_asleep}");
    }
}

/// Cancels, one in each millisecond, against a driver that sleeps as it is told to. Returns how
/// often the shard was woken, and how many turns it took.
fn cancel_one_by_one(number: usize) -> (usize, usize) {
    let (mut asleep, (timers, dropped)) = Asleep::after(|lab, client| {
        let mut all = (Vec::new(), Vec::new());
        for _ in 0..number {
            let (guard, dropped) = Guard::new();
            all.0.push(client.on(SHARD).schedule(LATER, Some(guard)).unwrap());
            all.1.push(dropped);
            lab.settle();
        }
        all
    });
    let waker = asleep.waker.clone();
    let (mut woken, mut turns) = (0, 0);
    let mut until = None;
    for sent in 0..number + 2_000 {
        if let Some(timer) = timers.get(sent) {
            asleep.client.cancel_detached(*timer);
        }
        let now = asleep.lab.clock.now();
        if asleep.count() > woken || until.is_some_and(|at| at <= now) {
            woken = asleep.count();
            turns += 1;
            until = match asleep.lab.fall_asleep(&waker) {
                Turn::Next(at) => Some(at),
                turn => panic!("{turn:?}"),
            };
        }
        if let Some(past) = sent.checked_sub(1_000).filter(|past| *past < number) {
            assert_eq!(count(&dropped[past]), 1, "timer {past} is not freed within a second");
        }
        asleep.lab.clock.advance(ms(1));
    }
    assert_eq!(asleep.lab.counts().pending, 2);
    check_law(&asleep.lab.counts());
    asleep.sleeps_long();
    (asleep.count(), turns)
}

#[test]
fn cancels_of_a_second_share_a_wake_up() {
    assert_eq!(cancel_one_by_one(1), (1, 2), "a turn for the cancel, and one a second later");
    // They fit into the lane.
    assert_eq!(cancel_one_by_one(40), (1, 3));
    // A lane that is full wakes the shard three times, and is larger then.
    let (woken, turns) = cancel_one_by_one(5_000);
    assert!(woken <= 4 && turns <= 14, "{woken} wake-ups and {turns} turns for 5,000 cancels");
}

#[test]
fn sleeping_shards_of_all_hosts_free_what_is_cancelled() {
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<Guard>, _: &Timers<Guard>| {});
        let shard = running.service.handle().on(SHARD);
        let schedule = |guard: Guard| {
            let mut guard = guard;
            loop {
                match shard.schedule(LATER, guard) {
                    Ok(timer) => break timer,
                    Err(refused) => guard = refused.into_value(),
                }
                std::thread::yield_now();
            }
        };
        let (guard, dropped) = Guard::new();
        let timer = schedule(guard);
        // The shard has received the timer, and sleeps.
        assert!(corewheel_test_support::block_on(shard.remaining(timer)).unwrap().is_some());
        shard.cancel_detached(timer);
        wait_until("the payload of a cancelled timer is dropped", || count(&dropped) == 1);
        let (guard, dropped) = Guard::new();
        shard.cancel_detached(schedule(guard));
        wait_until("the payload of a marked timer is dropped", || count(&dropped) == 1);
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn thousand_cancels_of_real_threads_make_few_wake_ups() {
    for host in Host::all() {
        let running = Running::start(host, builder(1).capacity(1 << 16), |_| {
            |_: Fired<Guard>, _: &Timers<Guard>| {}
        });
        let shard = running.service.handle().on(SHARD);
        let (mut timers, mut all) = (Vec::new(), Vec::new());
        while timers.len() < 1_000 {
            let (guard, dropped) = Guard::new();
            match shard.schedule(LATER, guard) {
                Ok(timer) => {
                    timers.push(timer);
                    all.push(dropped);
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        let last = *timers.last().unwrap();
        assert!(corewheel_test_support::block_on(shard.remaining(last)).unwrap().is_some());
        let made = || running.service.stats().shards[0].counts.wakeups_made;
        let (before, begin) = (made(), Instant::now());
        for timer in timers {
            shard.cancel_detached(timer);
            std::thread::sleep(Duration::from_micros(100));
        }
        wait_until("all payloads are dropped", || all.iter().all(|dropped| count(dropped) == 1));
        let (made, seconds) = (made() - before, begin.elapsed().as_secs());
        // Three times the lane is full, and grows.
        assert!(made <= 4 + seconds, "{host:?}: {made} wake-ups in {seconds} s");
        running.end(ShutdownPolicy::Drop);
    }
}
