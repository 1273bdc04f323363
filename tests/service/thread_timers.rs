//! Timers of futures, which stay with their thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel::class::TimerClass;
use corewheel::settings::TurnBudget;
use corewheel::{
    AnyHandle, RefusedKind, Runtime, ShutdownPolicy, Sleep, TimerService, TimerServiceBuilder,
};

use corewheel_test_support::{
    Alarm, FAR, Lab, builder, check_law, look, ms, poll, unfired, wait_until,
};

/// A thread that drives no shard and runs what it is given, and then waits.
pub(crate) struct Elsewhere {
    jobs: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Elsewhere {
    pub(crate) fn new() -> Self {
        let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let thread = thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Self { jobs: Some(sender), thread: Some(thread) }
    }

    /// Runs code there, and waits for it.
    pub(crate) fn run<O: Send + 'static>(&self, code: impl FnOnce() -> O + Send + 'static) -> O {
        let (sender, output) = mpsc::channel();
        let job = Box::new(move || sender.send(code()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        output.recv().unwrap()
    }

    /// Polls so many sleeps there, of these delays in turn.
    fn sleeps(&self, handle: AnyHandle, waker: &Waker, delays: Vec<Duration>) -> Vec<Sleep> {
        let waker = waker.clone();
        self.run(move || {
            let arm = |delay| {
                let mut sleep = handle.sleep(delay);
                assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
                sleep
            };
            delays.into_iter().map(arm).collect()
        })
    }

    /// Polls a sleep there, again after the shard has looked for room.
    pub(crate) fn settle<T: Send + 'static>(
        &self,
        lab: &mut Lab<T>,
        sleep: Sleep,
    ) -> Result<Sleep, RefusedKind> {
        let look_at = |mut sleep| {
            self.run(move || {
                let polled = look(&mut sleep);
                (sleep, polled)
            })
        };
        let (sleep, polled) = look_at(sleep);
        assert_eq!(polled, None, "the shard is asked for room first");
        lab.settle();
        let (sleep, polled) = look_at(sleep);
        polled.map_or(Ok(sleep), |done| Err(done.expect_err("it is early")))
    }

    /// Polls sleeps there, until one is refused.
    pub(crate) fn fill(&self, lab: &mut Lab<()>, handle: AnyHandle) -> Vec<Sleep> {
        let mut armed = Vec::new();
        let refused = loop {
            match self.settle(lab, handle.sleep(FAR)) {
                Ok(sleep) => armed.push(sleep),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, RefusedKind::Full);
        armed
    }

    fn sleep(&self, handle: AnyHandle, waker: &Waker, delay: Duration) -> Sleep {
        self.sleeps(handle, waker, vec![delay]).remove(0)
    }

    /// Ends the thread, and waits for its end.
    fn end(mut self) {
        self.jobs = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.jobs = None;
    }
}

/// How many clones of a waker there are besides the alarm itself and the test's.
fn kept(alarm: &Arc<Alarm>) -> usize {
    Arc::strong_count(alarm) - 2
}

/// Lets the shard sleep and wake as a driver does, until it sleeps with nothing to wake for or
/// `end` has come. Returns how often it was woken.
fn sleep_and_wake(lab: &mut Lab<()>, bell: &(Arc<Alarm>, Waker), end: Duration) -> usize {
    let (start, mut woken) = (lab.clock.now(), 0);
    let rung = bell.0.count();
    loop {
        match lab.fall_asleep(&bell.1) {
            Turn::Next(at) if at <= start + end => {
                lab.clock.advance(at.saturating_duration_since(lab.clock.now()));
                woken += 1;
            }
            _ => break,
        }
    }
    woken + (bell.0.count() - rung)
}

#[test]
fn lone_timeout_costs_at_most_three_wake_ups_and_a_short_lived_one_two() {
    for delay in [5, 15, 20, 30, 50, 100, 400, 1_000, 7_000, 11_000, 30_000, 100_000] {
        // The first look at the list of the longest timeouts comes after 6 s.
        for ends_after in [None, Some((delay / 3).min(5_999))] {
            let mut lab = Lab::<()>::at_windows(builder(1));
            let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
            let bell = Alarm::new();
            assert_eq!(sleep_and_wake(&mut lab, &bell, FAR), 0, "a shard without timers is woken");
            let (fired, waker) = Alarm::new();
            let sleep = there.sleep(handle, &waker, ms(delay));
            let mut woken = bell.0.count();
            assert_eq!(woken, 1, "a shard that sleeps is told of the first timeout");
            if let Some(after) = ends_after {
                woken += sleep_and_wake(&mut lab, &bell, ms(after));
                there.run(move || drop(sleep));
                woken += sleep_and_wake(&mut lab, &bell, FAR * 2);
                assert_eq!(fired.count(), 0);
                assert!(woken <= 2, "{woken} wake-ups for {delay} ms that end after {after} ms");
            } else {
                woken += sleep_and_wake(&mut lab, &bell, FAR * 2);
                assert_eq!(fired.count(), 1, "{delay} ms have passed");
                // It comes up once on each level of the wheel that it passes.
                let levels = usize::from(delay > 64) + usize::from(delay > 4_096);
                assert!(woken <= 3 + levels, "{woken} wake-ups for {delay} ms");
            }
            assert_eq!(sleep_and_wake(&mut lab, &bell, FAR), 0, "nothing is pending");
        }
    }
}

#[test]
fn round_timeout_that_ends_within_two_fifths_of_its_time_never_leaves_its_thread() {
    for delay in [50, 100, 200, 500, 1_000, 2_000, 5_000] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        // One is armed in each tenth of the time, so the first look finds timers of all ages.
        let mut armed = VecDeque::new();
        for _ in 0..30 {
            armed.push_back(there.sleep(handle, Waker::noop(), ms(delay)));
            lab.advance(ms(delay / 10));
            if armed.len() == 4 {
                let ended = armed.pop_front();
                there.run(move || drop(ended));
            }
        }
        there.run(move || drop(armed));
        // By then a look has counted them.
        lab.advance(ms(delay));
        let counts = lab.counts();
        assert_eq!((counts.ended_young, counts.cancelled), (30, 30), "{delay} ms");
    }
}

#[test]
fn timer_is_not_later_than_the_shard_when_its_looks_are_late() {
    for late in [5, 20, 100] {
        for delay in [3, 8, 17, 25, 61, 99, 150, 250, 1_000] {
            let mut lab = Lab::<()>::new(builder(1));
            let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
            let (fired, waker) = Alarm::new();
            let _sleep = there.sleep(handle, &waker, ms(delay));
            let _others: Vec<_> =
                [7, 33, 400].map(|other| there.sleep(handle, Waker::noop(), ms(other))).into();
            let bell = Alarm::new();
            let due = lab.clock.now() + ms(delay);
            while lab.clock.now() < due {
                let next = match lab.fall_asleep(&bell.1) {
                    Turn::Next(at) => (at + ms(late)).min(due),
                    _ => due,
                };
                lab.clock.advance(next.saturating_duration_since(lab.clock.now()).max(ms(1)));
            }
            lab.settle();
            assert_eq!(fired.count(), 1, "{delay} ms, with looks {late} ms late");
        }
    }
}

#[test]
fn old_timers_of_an_idle_thread_dropped_elsewhere_are_freed_within_a_second() {
    const COUNT: usize = 100_000;
    for ends in [false, true] {
        let mut lab = Lab::<()>::new(TimerService::builder().shards(1).capacity(1 << 18));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let (alarm, waker) = Alarm::new();
        let sleeps = there.sleeps(handle, &waker, vec![ms(3_000); COUNT]);
        // The second look at their list files them.
        lab.advance(ms(600));
        lab.advance(ms(600));
        lab.advance(ms(600));
        assert_eq!((lab.counts().pending, kept(&alarm)), (COUNT as u64, COUNT));
        let there = if ends {
            there.end();
            None
        } else {
            Some(there)
        };
        thread::spawn(move || drop(sleeps)).join().unwrap();
        let bell = Alarm::new();
        sleep_and_wake(&mut lab, &bell, ms(1_000));
        assert_eq!(kept(&alarm), 0, "wakers are kept for longer than a second");
        lab.settle();
        // The shard has their ends at its next look, which is at once.
        lab.advance(ms(1_000));
        let counts = lab.counts();
        assert_eq!((counts.pending, counts.cancelled), (0, COUNT as u64), "{ends}");
        assert_eq!(alarm.count(), 0);
        check_law(&counts);
        drop(there);
    }
}

#[test]
fn thread_itself_ends_its_timers_once_many_were_dropped_elsewhere() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    // The clock stands still, so the shard ends none of them.
    for (dropped, left) in [(255, 255), (256, 0), (300, 0)] {
        let sleeps = there.sleeps(handle, &waker, vec![FAR; dropped]);
        drop(sleeps);
        assert_eq!(kept(&alarm), dropped, "the thread does nothing meanwhile");
        let (other, other_waker) = Alarm::new();
        let sleep = there.sleep(handle, &other_waker, FAR);
        assert_eq!(kept(&alarm), left, "after {dropped}");
        there.run(move || drop(sleep));
        assert_eq!(kept(&other), 0);
        lab.advance(ms(1_000));
        assert_eq!(kept(&alarm), 0, "the shard has ended the rest");
    }
    assert_eq!((lab.counts().pending, alarm.count()), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn timers_end_in_place_wherever_they_are_dropped() {
    // Where the sleep is dropped, whether the shard has filed its timer, and whether its thread has
    // ended.
    for case in 0..8 {
        let [drops_there, is_old, has_ended] = [1, 2, 4].map(|bit| case & bit != 0);
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let (alarm, waker) = Alarm::new();
        let sleep = there.sleep(handle, &waker, ms(100));
        lab.settle();
        if is_old {
            for _ in 0..6 {
                lab.advance(ms(15));
            }
        }
        if drops_there {
            there.run(move || drop(sleep));
            assert_eq!(kept(&alarm), 0, "case {case}: the thread drops its waker at once");
            if has_ended {
                there.end();
            }
        } else {
            if has_ended {
                there.end();
            }
            drop(sleep);
        }
        lab.advance(ms(1_000));
        assert_eq!((alarm.count(), kept(&alarm)), (usize::from(false), 0), "case {case}");
        lab.advance(ms(7_000));
        let counts = lab.counts();
        assert_eq!((counts.scheduled_remote, counts.pending), (1, 0), "case {case}");
        assert_eq!(counts.cancelled + counts.fired, 1, "case {case}");
        check_law(&counts);
    }
}

#[test]
fn timers_of_a_thread_that_has_ended_fire() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    let mut sleeps = there.sleeps(handle, &waker, vec![ms(10), ms(100), ms(10_000)]);
    there.end();
    for after in [10, 90, 9_900] {
        for _ in 0..10 {
            lab.advance(ms(after / 10));
        }
    }
    assert_eq!(alarm.count(), 3);
    for sleep in &mut sleeps {
        assert_eq!(look(sleep), Some(Ok(())));
    }
    drop(sleeps);
    lab.advance(ms(1_000));
    assert_eq!(kept(&alarm), 0);
}

#[test]
fn each_policy_of_a_shutdown_gives_each_timer_one_outcome() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Return, ShutdownPolicy::Fire] {
        for has_ended in [false, true] {
            let mut lab = Lab::<()>::new(builder(1));
            let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
            let (alarm, waker) = Alarm::new();
            let old = there.sleeps(handle, &waker, vec![ms(100); 200]);
            for _ in 0..6 {
                lab.advance(ms(15));
            }
            let mut young = there.sleeps(handle, &waker, vec![ms(30_000); 200]);
            let elsewhere = young.split_off(150);
            let ended = young.split_off(100);
            there.run(move || drop(ended));
            drop(elsewhere);
            if has_ended {
                there.end();
            }
            let report = lab.end(policy);
            let counts = report.shards[0].counts;
            assert_eq!((counts.scheduled_remote, counts.pending), (400, 0), "{policy:?}");
            assert_eq!(counts.cancelled, 100, "{policy:?}: what had ended before");
            let pending = match policy {
                ShutdownPolicy::Fire => counts.fired,
                // The timers of futures have no payload to return.
                ShutdownPolicy::Return | ShutdownPolicy::Drop => counts.dropped,
            };
            assert_eq!(
                (pending, unfired(&report.shards[0].counts) + counts.fired),
                (300, 300),
                "{policy:?}"
            );
            assert_eq!((alarm.count(), kept(&alarm)), (300, 0), "{policy:?}: all are woken");
            check_law(&counts);
            for mut sleep in young.into_iter().chain(old) {
                assert_eq!(look(&mut sleep), Some(Err(RefusedKind::Closed)));
            }
        }
    }
}

#[test]
fn shard_about_to_sleep_finds_the_timer_that_a_thread_has_just_armed() {
    let sleep_bell = Alarm::new().1;
    for has_timers in [true, false] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let _before = has_timers.then(|| there.sleep(handle, Waker::noop(), ms(30_000)));
        lab.settle();
        let turn = lab.turn();
        let _sleep = there.sleep(handle, Waker::noop(), ms(10));
        let next = lab.shards[0].prepare_to_sleep(turn, &sleep_bell);
        let due = lab.clock.now() + ms(10);
        let is_in_time = matches!(next, Turn::Next(at) if at <= due);
        assert!(next == Turn::More || is_in_time, "the shard sleeps past the timer: {next:?}");
    }
    // A timer that was refused has the shard look for a slot.
    let mut lab = Lab::<()>::new(TimerService::builder().shards(1).capacity(7));
    let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
    let armed = there.fill(&mut lab, handle);
    assert_eq!(armed.len(), 7);
    let turn = lab.turn();
    assert_eq!(there.run(move || look(&mut handle.sleep(FAR))), None);
    let next = lab.shards[0].prepare_to_sleep(turn, &sleep_bell);
    assert_eq!(next, Turn::More, "the shard would leave a timer that waits for room");
}

#[test]
fn wakers_that_a_turn_has_no_time_for_are_woken_by_the_next_turns_or_the_end() {
    const IDLE: TimerClass = TimerClass::new("idle");
    const COUNT: u64 = 20;
    for end in [None, Some(ShutdownPolicy::Fire)] {
        let budget = TurnBudget { time_max: Some(Duration::ZERO), ..TurnBudget::default() };
        let mut lab = Lab::<()>::new(builder(1).class(IDLE).budget(budget));
        let handle = lab.service.handle().untyped().of_class(IDLE).unwrap();
        let (there, (alarm, waker)) = (Elsewhere::new(), Alarm::new());
        let sleeps = there.sleeps(handle, &waker, vec![ms(10); COUNT as usize]);
        lab.clock.advance(ms(10));
        for woken in 1..=5 {
            assert_eq!(lab.turn(), Turn::More, "a turn has the time to wake one timer");
            assert_eq!(alarm.count(), woken);
            lab.clock.advance(ms(100));
        }
        let (counts, class) = if let Some(policy) = end {
            let report = lab.end(policy);
            (report.shards[0].counts, report.shards[0].classes[0])
        } else {
            while lab.turn() == Turn::More {
                lab.clock.advance(ms(100));
            }
            (lab.counts(), lab.service.stats().shards[0].classes[0])
        };
        assert_eq!(alarm.count(), COUNT as usize, "{end:?}");
        assert_eq!((counts.fired, counts.pending, counts.dropped), (COUNT, 0, 0), "{end:?}");
        assert_eq!((class.fired, class.pending), (COUNT, 0), "{end:?}");
        // All but the first were late, each by the time since its deadline.
        assert_eq!((counts.late, class.late), (COUNT - 1, COUNT - 1), "{end:?}");
        check_law(&counts);
        drop(sleeps);
    }
}

#[test]
fn timers_of_several_threads_and_values_that_are_due_together_all_fire() {
    let mut lab = Lab::<u32>::new(builder(1));
    let (handle, (alarm, waker)) = (lab.service.handle().untyped(), Alarm::new());
    let threads = [Elsewhere::new(), Elsewhere::new()];
    let mut sleeps = Vec::new();
    for round in 0..50 {
        for there in &threads {
            sleeps.extend(there.sleeps(handle, &waker, vec![ms(40); 3]));
        }
        lab.timers().schedule(ms(40), round).unwrap();
    }
    // Some are reset to later while they are young, and once they are old.
    let mut number = 0;
    let every_fifth = sleeps.extract_if(.., |_| {
        number += 1;
        number % 5 == 0
    });
    let mut later: Vec<_> = every_fifth.collect();
    later[..30].iter_mut().for_each(|sleep| sleep.reset(ms(60)));
    lab.advance(ms(20));
    later[30..].iter_mut().for_each(|sleep| sleep.reset(ms(40)));
    lab.advance(ms(20));
    assert_eq!((alarm.count(), lab.fired().len()), (240, 50));
    lab.advance(ms(20));
    assert_eq!(alarm.count(), 300);
    assert_eq!(lab.counts().pending, 0);
}

#[test]
fn counts_include_young_timers_before_a_look_and_after_it() {
    const IDLE: TimerClass = TimerClass::new("idle");
    let mut lab = Lab::<()>::new(builder(1).class(IDLE));
    let handle = lab.service.handle().untyped();
    let of_class = handle.of_class(IDLE).unwrap();
    let there = Elsewhere::new();
    let mut sleeps = there.sleeps(of_class, Waker::noop(), vec![ms(100); 30]);
    let plain = there.sleeps(handle, Waker::noop(), vec![ms(100); 10]);
    let ended = sleeps.split_off(20);
    there.run(move || drop(ended));
    for until_look in [0, 50] {
        lab.advance(ms(until_look));
        let counts = lab.counts();
        assert_eq!((counts.scheduled_remote, counts.pending, counts.cancelled), (40, 30, 10));
        assert_eq!(counts.ended_young, 10);
        check_law(&counts);
        let class = lab.service.stats().shards[0].classes[0];
        assert_eq!((class.scheduled, class.pending, class.cancelled), (30, 20, 10));
    }
    lab.advance(ms(50));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.fired), (0, 30));
    check_law(&counts);
    let class = lab.service.stats().shards[0].classes[0];
    assert_eq!((class.pending, class.fired), (0, 20));
    drop((sleeps, plain));
    // One that ends young, and one that the shard has filed.
    let young = there.sleeps(of_class, Waker::noop(), vec![ms(100)]);
    there.run(move || drop(young));
    assert_eq!(lab.counts().ended_young, 11, "before a look");
    let old = there.sleeps(of_class, Waker::noop(), vec![ms(100)]);
    lab.advance(ms(97));
    drop(old);
    lab.advance(ms(2_000));
    let counts = lab.counts();
    assert_eq!((counts.ended_young, counts.cancelled), (11, 12));
}

#[test]
fn timer_past_the_capacity_is_refused_as_full_once_the_shard_has_looked() {
    for capacity in [1, 7, 100, 5_000] {
        let mut lab = Lab::<()>::new(TimerService::builder().shards(1).capacity(capacity));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let armed = there.fill(&mut lab, handle);
        // Some slots are reserved for clients, which the shard's own timers may take.
        let granted = lab.counts().granted as usize;
        assert_eq!(armed.len() + granted, capacity as usize, "a capacity of {capacity}");
        let schedule = |_| lab.timers().schedule(FAR, ());
        let mut timers: Vec<_> = (0..granted).map(schedule).collect();
        assert!(lab.timers().schedule(FAR, ()).is_err(), "the slots are lent");
        there.run(move || drop(armed));
        // The credit that is not used comes back when the shard needs it.
        timers.extend((granted..capacity as usize).map(schedule));
        assert!(timers.iter().all(Result::is_ok), "a capacity of {capacity}");
        let refused = there.settle(&mut lab, handle.sleep(FAR)).err();
        assert_eq!(refused, Some(RefusedKind::Full), "a capacity of {capacity}");
        lab.settle();
        check_law(&lab.counts());
    }
}

#[test]
fn forgotten_futures_cost_a_slot_each_and_no_other_timer() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    let forgotten = there.sleeps(handle, &waker, vec![ms(50); 100]);
    forgotten.into_iter().for_each(std::mem::forget);
    let mut sleep = there.sleep(handle, &waker, ms(60));
    there.end();
    for _ in 0..10 {
        lab.advance(ms(10));
    }
    assert_eq!((alarm.count(), kept(&alarm)), (101, 0), "all have fired");
    assert_eq!(look(&mut sleep), Some(Ok(())));
    assert_eq!(lab.counts().pending, 0);
}

/// A waker that uses the service where it is woken and where it is dropped.
struct Busy {
    handle: AnyHandle,
    sleeps: Mutex<Vec<Sleep>>,
}

impl Busy {
    /// Polls and drops sleeps, those of other threads included.
    fn work(&self) {
        let mut sleep = self.handle.sleep(FAR);
        let _closed = look(&mut sleep);
        sleep.reset(ms(5));
        drop(sleep);
        let sleeps = std::mem::take(&mut *self.sleeps.lock().unwrap());
        for mut sleep in sleeps {
            let _done = poll(&mut sleep, &Waker::from(Alarm::new().0));
        }
    }
}

impl Wake for Busy {
    fn wake(self: Arc<Self>) {
        self.work();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.work();
    }
}

#[test]
fn waker_that_polls_and_drops_sleeps_inline_finds_nothing_locked() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let busy = move |others: Vec<Sleep>| {
            Waker::from(Arc::new(Busy { handle, sleeps: Mutex::new(others) }))
        };
        let others = |there: &Elsewhere| there.sleeps(handle, Waker::noop(), vec![ms(70), FAR]);
        // The waker is dropped with the sleep, there and here.
        for drops_there in [true, false] {
            let mut sleeps = Vec::new();
            for _ in 0..300 {
                let waker = busy(others(&there));
                sleeps.push(there.sleep(handle, &waker, FAR));
            }
            if drops_there {
                there.run(move || drop(sleeps));
            } else {
                drop(sleeps);
                // The thread ends them when it next polls a sleep.
                drop(there.sleep(handle, Waker::noop(), FAR));
            }
        }
        // It is replaced by another one, while the timer is young and when it is old.
        let mut sleep = there.sleep(handle, &busy(others(&there)), ms(100));
        for _ in 0..3 {
            let waker = busy(others(&there));
            sleep = there.run(move || {
                assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
                sleep
            });
            lab.advance(ms(20));
        }
        // The shard wakes it, and drops it after a second, and wakes it at its end.
        let fires = there.sleep(handle, &busy(others(&there)), ms(10));
        drop(there.sleep(handle, &busy(others(&there)), FAR));
        lab.advance(ms(10));
        lab.advance(ms(1_000));
        let ends = there.sleep(handle, &busy(others(&there)), FAR);
        lab.end(policy);
        drop((fires, ends, sleep));
        there.end();
    }
}

#[test]
fn sleeps_dropped_by_the_last_destructors_of_a_thread_are_freed() {
    struct Last(RefCell<Vec<Sleep>>);
    thread_local! {
        // Made before the table of services of its thread, so it is dropped after that.
        static LAST: Last = const { Last(RefCell::new(Vec::new())) };
    }
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, other) = (lab.service.handle().untyped(), Elsewhere::new());
    let (alarm, waker) = Alarm::new();
    let of_other = other.sleep(handle, &waker, FAR);
    let own_waker = waker.clone();
    thread::spawn(move || {
        LAST.with(|last| assert!(last.0.borrow().is_empty()));
        let mut sleep = handle.sleep(FAR);
        assert_eq!(poll(&mut sleep, &own_waker), Poll::Pending);
        LAST.with(|last| *last.0.borrow_mut() = vec![sleep, of_other]);
    })
    .join()
    .unwrap();
    lab.advance(ms(1_000));
    assert_eq!((alarm.count(), kept(&alarm)), (0, 0));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled), (0, 2));
    check_law(&counts);
}

#[test]
fn two_million_timeouts_of_many_tasks_are_never_refused() {
    let each = if cfg!(debug_assertions) { 200_000 } else { 2_000_000 };
    for tasks in [100, 10_000] {
        let service = TimerService::beside_runtime().start().unwrap();
        let handle = service.handle();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(4).build().unwrap();
        runtime.block_on(async {
            let run = move || async move {
                for _ in 0..each / tasks {
                    let ended = handle.timeout(Duration::from_secs(30), tokio::task::yield_now());
                    assert!(ended.await.is_ok(), "a timeout is refused");
                }
            };
            let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(run())).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        let counts = report.shards[0].counts;
        assert_eq!((counts.refused, counts.requests, counts.returned), (0, 0, 0));
        assert_eq!(counts.scheduled_remote, counts.cancelled);
        assert_eq!(counts.scheduled_remote, each);
    }
}

fn beside() -> TimerServiceBuilder {
    TimerService::builder().shards(1).runtime(Runtime::Thread)
}

#[test]
fn runtime_that_ends_frees_the_timers_of_its_tasks() {
    let service = beside().start().unwrap();
    let handle = service.handle();
    for _ in 0..3 {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(3).build().unwrap();
        let tasks: Vec<_> = (0..1_000).map(|_| runtime.spawn(handle.sleep(FAR))).collect();
        wait_until("the timers are pending", || {
            runtime.block_on(handle.sleep(ms(1))).unwrap();
            tasks.iter().all(|task| !task.is_finished())
        });
        drop(runtime);
    }
    wait_until("all timers have ended", || service.stats().shards[0].counts.pending == 0);
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

/// A waker that panics where it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics");
    }
}

#[test]
fn waker_that_panics_harms_no_other_waker_of_its_tick() {
    let mut lab = Lab::<()>::new(builder(1));
    let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
    let ((alarm, waker), panics) = (Alarm::new(), Waker::from(Arc::new(Panics)));
    let mut sleeps = Vec::new();
    for _ in 0..100 {
        sleeps.push(there.sleep(handle, &panics, ms(10)));
        sleeps.push(there.sleep(handle, &waker, ms(10)));
    }
    lab.advance(ms(10));
    let counts = lab.counts();
    assert_eq!((alarm.count(), counts.panicked, counts.fired), (100, 100, 200));
    assert!(sleeps.iter_mut().all(|sleep| look(sleep) == Some(Ok(()))));
    check_law(&counts);
}

#[test]
fn ticks_of_one_thread_fire_in_order_after_a_stall_of_any_length() {
    struct Noted(u64, Arc<Mutex<Vec<u64>>>);
    impl Wake for Noted {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    for stall in [7, 50, 5_000, 400_000] {
        let mut lab = Lab::<()>::new(builder(1));
        let (handle, there) = (lab.service.handle().untyped(), Elsewhere::new());
        let (order, start) = (Arc::new(Mutex::new(Vec::new())), lab.clock.now());
        let mut sleeps = Vec::new();
        for round in 0..40 {
            for delay in [3, 40, 63, 64, 65, 130, 1_000, 4_200, 30_000, 300_000] {
                let due = lab.clock.now() + ms(delay) - start;
                let noted = Noted(due.as_millis() as u64, Arc::clone(&order));
                sleeps.push(there.sleep(handle, &Waker::from(Arc::new(noted)), ms(delay)));
            }
            lab.advance(ms(round));
        }
        for _ in 0..=400_000 / stall {
            lab.advance(ms(stall));
        }
        let order = order.lock().unwrap();
        assert_eq!(order.len(), sleeps.len(), "stalls of {stall} ms");
        assert!(order.is_sorted(), "stalls of {stall} ms: {order:?}");
    }
}

#[test]
fn oldest_future_of_a_class_is_known_before_any_turn_and_after_it() {
    const IDLE: TimerClass = TimerClass::new("idle");
    let mut lab = Lab::<()>::new(builder(1).class(IDLE));
    let (timers, there) = (lab.timers().of_class(IDLE).unwrap(), Elsewhere::new());
    let handle = lab.service.handle().untyped().of_class(IDLE).unwrap();
    let oldest = |lab: &Lab<()>| lab.service.stats().shards[0].classes[0].oldest;
    assert_eq!(oldest(&lab), None);
    let first = there.sleep(handle, Waker::noop(), FAR);
    lab.clock.advance(ms(20));
    let mut second = timers.sleep(FAR);
    assert_eq!(look(&mut second), None);
    assert_eq!(oldest(&lab), Some(ms(20)));
    lab.advance(ms(10_000));
    assert_eq!(oldest(&lab), Some(ms(10_020)));
    there.run(move || drop(first));
    assert_eq!(oldest(&lab), Some(ms(10_000)));
    drop(second);
    assert_eq!(oldest(&lab), None);
}

#[test]
fn sleep_of_a_shards_own_thread_may_end_and_be_polled_on_another_one() {
    let mut lab = Lab::<()>::new(builder(1));
    let there = Elsewhere::new();
    let (alarm, waker) = Alarm::new();
    let mut sleeps: Vec<_> = [FAR, ms(10), ms(10)].map(|after| lab.timers().sleep(after)).into();
    assert!(sleeps.iter_mut().all(|sleep| poll(sleep, &waker).is_pending()));
    let [ended, fired, mut polled] = [0, 1, 2].map(|_| sleeps.remove(0));
    there.run(move || drop(ended));
    lab.advance(ms(10));
    assert_eq!(alarm.count(), 2);
    assert_eq!(there.run(move || look(&mut polled)), Some(Ok(())));
    there.run(move || drop(fired));
    lab.advance(ms(1_000));
    assert_eq!((kept(&alarm), lab.counts().pending, lab.counts().cancelled), (0, 0, 1));
}
