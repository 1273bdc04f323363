//! Callbacks that run again and again: when, how many times, and what ends them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use corewheel::{
    Fired, Jitter, MissedTickBehavior, OnPanic, Periodic, PeriodicRun, RemotePeriodic, Repeat,
    ScheduleError, ShutdownPolicy, StopOutcome, Timers, Turn,
};

use crate::support::{
    FAR, Guard, Host, Lab, PATIENCE, Running, SHARD, block_on, builder, check_law, look, ms,
    ticks_of, wait_until,
};

type Run<'a> = PeriodicRun<'a, u8>;

fn rate(period: Duration) -> Repeat {
    Repeat::at_fixed_rate(period).unwrap()
}

fn delay(delay: Duration) -> Repeat {
    Repeat::with_fixed_delay(delay).unwrap()
}

fn before(at: Instant, by: u64) -> Instant {
    at.checked_sub(ms(by)).unwrap()
}

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

/// Moves the lab's clock to a millisecond, without anything in between.
fn jump(lab: &mut Lab<u8>, start: Instant, to: u64) {
    lab.clock.advance(start + ms(to) - lab.clock.now());
    lab.settle();
}

/// Lets a callback run at the end of periods of 10 ms, by a clock that is moved to these
/// milliseconds. Returns for each run when it was due and when it came, how many periods it left
/// out and how many it was behind, and how many were left out in all.
fn seen(behavior: MissedTickBehavior, looks: &[u64]) -> (Vec<(u64, u64, u64, u64)>, u64) {
    let mut lab = lab();
    let start = lab.clock.now();
    let runs = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&runs);
    let since = move |at: Instant| at.duration_since(start).as_millis() as u64;
    let call = move |run: &mut Run<'_>| {
        assert_eq!(run.number(), noted.borrow().len() as u64);
        assert!(run.next_due().unwrap() > run.due());
        noted.borrow_mut().push((since(run.due()), since(run.now()), run.missed(), run.behind()));
    };
    let repeat = rate(ms(10)).missed_tick_behavior(behavior);
    let periodic = lab.timers().repeat(repeat, call).unwrap();
    for &at in looks {
        jump(&mut lab, start, at);
        assert_eq!(lab.timers().len(), 1, "one timer");
    }
    assert_eq!(periodic.runs(), runs.borrow().len() as u64);
    check_law(&lab.counts());
    (runs.take(), periodic.missed())
}

#[test]
fn a_burst_makes_up_for_every_period() {
    let (runs, missed) = seen(MissedTickBehavior::Burst, &[9, 10, 45, 50]);
    let expected = [(10, 10, 0, 0), (20, 45, 0, 2), (30, 45, 0, 1), (40, 45, 0, 0), (50, 50, 0, 0)];
    assert_eq!((&*runs, missed), (&expected[..], 0));
}

#[test]
fn what_is_skipped_is_counted_and_the_grid_is_kept() {
    let (runs, missed) = seen(MissedTickBehavior::Skip, &[10, 45, 49, 50, 60, 90, 95, 100]);
    let expected = [
        (10, 10, 0, 0),
        (20, 45, 2, 2),
        (50, 50, 0, 0),
        (60, 60, 0, 0),
        (70, 90, 2, 2),
        (100, 100, 0, 0),
    ];
    assert_eq!((&*runs, missed), (&expected[..], 4));
}

#[test]
fn what_is_delayed_is_counted_and_begins_anew() {
    let (runs, missed) = seen(MissedTickBehavior::Delay, &[10, 45, 54, 55, 64, 65, 100]);
    let expected =
        [(10, 10, 0, 0), (20, 45, 2, 2), (55, 55, 0, 0), (65, 65, 0, 0), (75, 100, 2, 2)];
    assert_eq!((&*runs, missed), (&expected[..], 4));
}

#[test]
fn every_behavior_counts_as_an_interval_does() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0041);
    for behavior in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip]
    {
        for _ in 0..50 {
            let mut looks: Vec<u64> = (0..40).map(|_| rng.u64(1..400)).collect();
            looks.sort_unstable();
            let (runs, missed) = seen(behavior, &looks);
            let mut interval_missed = 0;
            let (mut due, mut expected) = (10, Vec::new());
            for &now in &looks {
                while due <= now {
                    let behind = (now - due) / 10;
                    let left_out = if behavior == MissedTickBehavior::Burst { 0 } else { behind };
                    expected.push((due, now, left_out, behind));
                    interval_missed += left_out;
                    due = match behavior {
                        MissedTickBehavior::Delay if behind > 0 => now + 10,
                        _ => due + 10 * (left_out + 1),
                    };
                }
            }
            assert_eq!((runs, missed), (expected, interval_missed), "{behavior:?} {looks:?}");
        }
    }
}

#[test]
fn what_a_run_takes_is_no_part_of_a_rate_and_comes_on_top_of_a_delay() {
    let work = [0, 3, 25, 0, 1, 0, 0];
    let run_at = |repeat: Repeat| {
        let mut lab = lab();
        let (clock, start) = (lab.clock.clone(), lab.clock.now());
        let runs = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&runs);
        let call = move |run: &mut Run<'_>| {
            noted.borrow_mut().push((run.now() - start).as_millis());
            clock.advance(ms(work[run.number() as usize]));
        };
        let repeat = repeat.missed_tick_behavior(MissedTickBehavior::Skip);
        let periodic = lab.timers().repeat(repeat, call).unwrap();
        while runs.borrow().len() < work.len() {
            lab.advance(ms(1));
        }
        assert_eq!(lab.timers().len(), 1);
        let runs = runs.take();
        (runs, periodic.missed())
    };
    // The third run, of 30, is at work until 55: that of 40 comes late, that of 50 not at all.
    assert_eq!(run_at(rate(ms(10))), (vec![10, 20, 30, 56, 60, 70, 80], 1));
    assert_eq!(run_at(delay(ms(10))), (vec![10, 20, 33, 68, 78, 89, 99], 0));
}

#[test]
fn a_period_that_is_no_whole_number_of_ticks_does_not_drift() {
    let mut lab = lab();
    let start = lab.clock.now();
    let period = Duration::from_micros(3_300);
    let runs = Rc::new(Cell::new(0));
    let counted = Rc::clone(&runs);
    let call = move |run: &mut Run<'_>| {
        counted.set(counted.get() + 1);
        assert_eq!(run.due(), start + period * counted.get());
        assert!(run.now() >= run.due() && run.now() < run.due() + ms(1));
    };
    lab.timers().repeat(rate(period), call).unwrap();
    for _ in 0..3_300 {
        lab.advance(ms(1));
    }
    assert_eq!((runs.get(), lab.counts().panicked), (1_000, 0));
}

#[test]
fn the_first_run_comes_when_it_was_told_to() {
    let first_runs = |repeat: &dyn Fn(Instant) -> Repeat| {
        let mut lab = lab();
        lab.advance(ms(100));
        let runs = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&runs);
        let call = move |run: &mut Run<'_>| noted.borrow_mut().push(ticks_of(run.timers()));
        lab.timers().repeat(repeat(lab.clock.now()), call).unwrap();
        lab.settle();
        for _ in 0..30 {
            lab.advance(ms(1));
        }
        runs.take()
    };
    assert_eq!(first_runs(&|_| rate(ms(20))), [120]);
    assert_eq!(first_runs(&|_| delay(ms(20))), [120]);
    assert_eq!(first_runs(&|_| rate(ms(20)).first_in(Duration::ZERO)), [100, 120]);
    assert_eq!(first_runs(&|_| rate(ms(20)).first_in(ms(5))), [105, 125]);
    assert_eq!(first_runs(&|now| rate(ms(20)).first_at(now + ms(7))), [107, 127]);
    let past = |now| rate(ms(20)).first_at(before(now, 50));
    assert_eq!(first_runs(&past), [100, 100, 100, 110, 130]);
    let skip = |now| past(now).missed_tick_behavior(MissedTickBehavior::Skip);
    assert_eq!(first_runs(&skip), [100, 110, 130]);
    assert_eq!(first_runs(&|now| delay(ms(20)).first_at(before(now, 50))), [100, 120]);
}

#[test]
fn a_period_of_zero_is_refused_and_one_without_end_is_not() {
    let error = Repeat::at_fixed_rate(Duration::ZERO).unwrap_err();
    assert!(error.field() == "period" && error.to_string().contains("0ns"), "{error}");
    assert_eq!(Repeat::with_fixed_delay(Duration::ZERO).unwrap_err().field(), "delay");
    let mut lab = lab();
    for repeat in [rate(Duration::MAX), delay(Duration::MAX)] {
        let at_once = repeat.clone().first_in(Duration::ZERO);
        for (repeat, runs) in [(repeat, 0), (at_once, 1)] {
            let jitter = Jitter::up_to(Duration::MAX, 1);
            for repeat in [repeat.clone().slack(Duration::MAX), repeat.clone().jitter(jitter)] {
                drop(lab.timers().repeat(repeat, |_: &mut Run<'_>| {}).unwrap());
            }
            let periodic = lab.timers().repeat(repeat, |_: &mut Run<'_>| {}).unwrap();
            lab.advance(FAR);
            assert_eq!((periodic.runs(), periodic.is_over()), (runs, false));
        }
    }
    lab.advance(FAR * 24 * 365 * 100);
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn one_may_end_itself_and_is_dropped_then() {
    for repeat in [rate(ms(5)), delay(ms(5))] {
        let mut lab = lab();
        let (guard, dropped) = Guard::new();
        let own: Rc<RefCell<Option<Periodic<u8>>>> = Rc::default();
        let known = Rc::clone(&own);
        let call = move |run: &mut Run<'_>| {
            let _held = &guard;
            if run.number() == 2 {
                assert_eq!(run.timers().len(), 1, "the next is armed already");
                run.stop();
                let outcome = known.borrow().as_ref().unwrap().stop();
                assert_eq!(outcome, StopOutcome::LastRun);
            }
        };
        let periodic = lab.timers().repeat(repeat, call).unwrap();
        own.replace(Some(periodic.clone()));
        for ticks in 1..=40 {
            lab.advance(ms(1));
            assert_eq!(periodic.is_over(), ticks >= 15);
        }
        assert_eq!((periodic.runs(), periodic.next_due()), (3, None));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert_eq!(periodic.stop(), StopOutcome::AlreadyOver);
        assert_eq!((lab.counts().panicked, lab.counts().pending), (0, 0));
        check_law(&lab.counts());
    }
}

#[test]
fn one_that_is_stopped_while_it_waits_is_dropped_at_once() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let call = move |_: &mut Run<'_>| drop(guard.clone());
    let periodic = lab.timers().repeat(rate(ms(5)), call).unwrap();
    let other = periodic.clone();
    lab.advance(ms(12));
    let ran = dropped.load(Ordering::SeqCst);
    assert_eq!(periodic.stop(), StopOutcome::Stopped);
    assert_eq!(dropped.load(Ordering::SeqCst), ran + 1);
    assert_eq!(lab.timers().len(), 0);
    assert_eq!((other.stop(), other.is_over()), (StopOutcome::AlreadyOver, true));
    lab.advance(FAR);
    assert_eq!(periodic.runs(), 2);
    check_law(&lab.counts());
}

#[test]
fn one_that_is_due_can_still_be_stopped_by_another_of_the_same_tick() {
    // Before it and after it in the same turn, each stops the other: the first one wins.
    let mut lab = lab();
    let both: Rc<RefCell<Vec<Periodic<u8>>>> = Rc::default();
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    for other in [1, 0] {
        let (known, noted) = (Rc::clone(&both), Rc::clone(&outcomes));
        let call = move |_: &mut Run<'_>| {
            let outcome = known.borrow()[other].stop();
            noted.borrow_mut().push((other, outcome));
        };
        both.borrow_mut().push(lab.timers().repeat(rate(ms(5)), call).unwrap());
    }
    lab.timers().schedule(ms(5), 1).unwrap();
    lab.advance(ms(20));
    for _ in 0..20 {
        lab.advance(ms(1));
    }
    let outcomes = outcomes.take();
    assert_eq!(outcomes[0], (1, StopOutcome::Stopped));
    assert!(outcomes[1..].iter().all(|outcome| *outcome == (1, StopOutcome::AlreadyOver)));
    assert_eq!(both.borrow()[1].runs(), 0);
    assert_eq!(lab.fired().len(), 1);
    both.borrow_mut().clear();
}

#[test]
fn one_may_schedule_cancel_and_begin_others() {
    let mut lab = lab();
    let call = |run: &mut Run<'_>| {
        let timers = run.timers().clone();
        let doomed = timers.schedule(ms(1), 1).unwrap();
        assert!(timers.cancel(doomed).won());
        timers.schedule(Duration::ZERO, 2).unwrap();
        if run.number() == 0 {
            let child = |run: &mut Run<'_>| run.stop();
            timers.repeat(rate(ms(1)), child).unwrap();
        }
        drop(timers.sleep(ms(3)));
    };
    let periodic = lab.timers().repeat(rate(ms(10)), call).unwrap();
    for _ in 0..35 {
        lab.advance(ms(1));
    }
    assert_eq!((periodic.runs(), lab.counts().panicked), (3, 0));
    assert_eq!(lab.fired().into_iter().map(|(_, at)| at).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(lab.timers().len(), 1);
}

#[test]
fn a_waker_that_stops_another_one_finds_nothing_borrowed() {
    struct Stops(std::thread::ThreadId);
    thread_local! {
        static VICTIM: RefCell<Option<Periodic<u8>>> = const { RefCell::new(None) };
    }
    impl std::task::Wake for Stops {
        fn wake(self: Arc<Self>) {
            assert_eq!(std::thread::current().id(), self.0);
            let victim = VICTIM.take();
            if let Some(victim) = victim {
                assert_eq!(victim.stop(), StopOutcome::Stopped);
            }
        }
    }
    let mut lab = lab();
    let mut sleep = lab.timers().sleep(ms(5));
    let waker = std::task::Waker::from(Arc::new(Stops(std::thread::current().id())));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(Future::poll(std::pin::Pin::new(&mut sleep), &mut context).is_pending());
    let victim = lab.timers().repeat(rate(ms(5)), |_: &mut Run<'_>| {}).unwrap();
    VICTIM.set(Some(victim.clone()));
    lab.advance(ms(5));
    assert_eq!((victim.runs(), victim.is_over(), lab.counts().panicked), (0, true, 0));
    assert_eq!(look(&mut sleep), Some(Ok(())));
}

#[test]
fn a_panic_is_counted_and_by_policy_it_goes_on_or_ends() {
    for repeat in [rate(ms(5)), delay(ms(5))] {
        for (policy, runs) in [(OnPanic::GoOn, 6), (OnPanic::End, 2)] {
            let mut lab = lab();
            let call = |run: &mut Run<'_>| assert_ne!(run.number() % 3, 1, "every third panics");
            let periodic = lab.timers().repeat(repeat.clone().on_panic(policy), call).unwrap();
            lab.timers().schedule(ms(10), 7).unwrap();
            for _ in 0..30 {
                lab.advance(ms(1));
            }
            let panics = u64::from(policy == OnPanic::GoOn) + 1;
            assert_eq!((periodic.runs(), periodic.panicked()), (runs, panics), "{policy:?}");
            assert_eq!(lab.counts().panicked, panics);
            assert_eq!(periodic.is_over(), policy == OnPanic::End);
            assert_eq!(lab.fired().len(), 1, "the others fire");
            check_law(&lab.counts());
        }
    }
    // And told from outside, and from inside.
    let mut lab = lab();
    let outside = lab.timers().repeat(rate(ms(1)), |_: &mut Run<'_>| panic!("each time")).unwrap();
    let inside = |run: &mut Run<'_>| {
        if run.number() == 1 {
            run.set_on_panic(OnPanic::End);
        }
        panic!("each time");
    };
    let inside = lab.timers().repeat(rate(ms(1)), inside).unwrap();
    for _ in 0..5 {
        lab.advance(ms(1));
    }
    outside.set_on_panic(OnPanic::End);
    lab.advance(ms(1));
    assert_eq!((outside.is_over(), outside.panicked()), (true, 6));
    assert_eq!((inside.is_over(), inside.panicked()), (true, 2));
}

#[test]
fn what_it_holds_may_panic_when_it_is_dropped() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("it is dropped");
        }
    }
    let mut lab = lab();
    let with_bomb = |repeat: Repeat, ends: bool| {
        let bomb = Bomb;
        let call = move |run: &mut Run<'_>| {
            let _held = &bomb;
            if ends {
                run.stop();
            }
        };
        lab.timers().repeat(repeat, call).unwrap()
    };
    with_bomb(rate(ms(1)), true);
    let stopped = with_bomb(rate(ms(50)), false);
    with_bomb(rate(ms(50)), false);
    lab.advance(ms(1));
    assert_eq!(lab.counts().panicked, 1, "at its own end");
    assert_eq!(stopped.stop(), StopOutcome::Stopped);
    lab.settle();
    assert_eq!(lab.counts().panicked, 2, "by a stop");
    let report = lab.end(ShutdownPolicy::Return);
    assert_eq!((report.unfired, report.counts.pending), (1, 0));
    assert_eq!(lab.counts().panicked, 3, "by a shutdown");
}

#[test]
fn a_plan_goes_on_until_it_says_so() {
    let mut lab = lab();
    let start = lab.clock.now();
    // A backoff: 10, 30, 70.
    let mut wait = ms(10);
    let next = move |at: Instant| {
        wait *= 2;
        (wait <= ms(40)).then(|| at + wait)
    };
    let runs = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&runs);
    let call = move |run: &mut Run<'_>| {
        noted.borrow_mut().push(((run.now() - start).as_millis(), run.next_due().is_some()));
        assert_eq!(run.due(), run.now());
    };
    let periodic = lab.timers().repeat_by_plan(start + ms(10), next, call).unwrap();
    assert_eq!(periodic.next_due(), Some(start + ms(10)));
    for _ in 0..200 {
        lab.advance(ms(1));
        assert!(lab.timers().len() <= 1);
    }
    assert_eq!(runs.take(), [(10, true), (30, true), (70, false)]);
    assert_eq!((periodic.is_over(), lab.timers().len()), (true, 0));
    assert_eq!(lab.counts().panicked, 0);
    check_law(&lab.counts());
}

#[test]
fn a_plan_that_names_what_has_passed_comes_in_the_next_turn() {
    let mut lab = lab();
    lab.advance(ms(100));
    let now = lab.clock.now();
    let next = move |at: Instant| Some(before(at, 1));
    let call = |run: &mut Run<'_>| {
        if run.number() == 9 {
            run.stop();
        }
    };
    let periodic = lab.timers().repeat_by_plan(now, next, call).unwrap();
    for turn in 1..=10 {
        let left = lab.turn();
        assert_eq!(periodic.runs(), turn);
        assert_eq!(left == Turn::More, turn < 10, "{left:?}");
    }
    assert!(periodic.is_over());
}

#[test]
fn a_plan_that_panics_is_over_after_the_run_that_was_due() {
    let mut lab = lab();
    let now = lab.clock.now();
    let next = |_: Instant| -> Option<Instant> { panic!("no plan") };
    let periodic = lab.timers().repeat_by_plan(now + ms(1), next, |_: &mut Run<'_>| {}).unwrap();
    lab.advance(ms(9));
    assert_eq!((periodic.runs(), periodic.panicked(), periodic.is_over()), (1, 1, true));
    assert_eq!((lab.counts().panicked, lab.counts().pending), (1, 0));
}

#[test]
fn it_has_room_for_its_next_run_however_full_the_shard_is() {
    for kind in 0..3 {
        let mut lab = Lab::<u8>::new(builder(1).capacity(4));
        let fill = |timers: &Timers<u8>| while timers.schedule(FAR, 0).is_ok() {};
        let call = move |run: &mut Run<'_>| fill(run.timers());
        let start = lab.clock.now();
        let timers = lab.timers().clone();
        let periodic = match kind {
            0 => timers.repeat(rate(ms(5)), call),
            1 => timers.repeat(delay(ms(5)), call),
            _ => {
                let again = timers.clone();
                let next = move |at: Instant| {
                    fill(&again);
                    Some(at + ms(5))
                };
                timers.repeat_by_plan(start + ms(5), next, call)
            }
        };
        let periodic = periodic.unwrap();
        for _ in 0..50 {
            lab.advance(ms(1));
        }
        assert_eq!((periodic.runs(), timers.len()), (10, 4));
        match timers.repeat(rate(ms(1)), |_: &mut Run<'_>| {}) {
            Err(ScheduleError::Full(mut call)) => {
                // It is the callback that was handed over.
                let _: &mut dyn FnMut(&mut Run<'_>) = &mut call;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(periodic.stop(), StopOutcome::Stopped);
    }
}

#[test]
fn a_refused_one_comes_back_whole() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(1));
    let timers = lab.timers().clone();
    timers.schedule(FAR, 0).unwrap();
    for closed in [false, true] {
        let (guard, dropped) = Guard::new();
        let call = move |_: &mut Run<'_>| drop(guard.clone());
        match (closed, timers.repeat(rate(ms(1)), call)) {
            (false, Err(ScheduleError::Full(call))) | (true, Err(ScheduleError::Closed(call))) => {
                assert_eq!(dropped.load(Ordering::SeqCst), 0);
                drop(call);
                assert_eq!(dropped.load(Ordering::SeqCst), 1);
            }
            (_, other) => panic!("{other:?}"),
        }
        if !closed {
            let _ = lab.end(ShutdownPolicy::Drop);
        }
    }
}

#[test]
fn jitter_puts_single_runs_off_and_the_grid_stays() {
    let runs = |seed| {
        let mut lab = lab();
        let start = lab.clock.now();
        let late = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&late);
        let call = move |run: &mut Run<'_>| {
            let n = run.number() as u32 + 1;
            assert_eq!(run.due(), start + ms(10) * n);
            assert!(run.now() >= run.due(), "early");
            noted.borrow_mut().push((run.now() - run.due()).as_millis());
        };
        let repeat = rate(ms(10)).jitter(Jitter::up_to(ms(8), seed));
        let repeat = repeat.missed_tick_behavior(MissedTickBehavior::Skip);
        let periodic = lab.timers().repeat(repeat, call).unwrap();
        for _ in 0..2_000 {
            lab.advance(ms(1));
        }
        assert_eq!((periodic.missed(), lab.counts().panicked), (0, 0));
        late.take()
    };
    let late = runs(1);
    assert!((198..=200).contains(&late.len()));
    assert!((1..=8).all(|late_by| late.contains(&late_by)), "{late:?}");
    assert!(late.iter().all(|late_by| (1..=8).contains(late_by)), "{late:?}");
    assert_eq!(late, runs(1));
    assert_ne!(late, runs(2));
}

#[test]
fn slack_lets_runs_of_different_periods_share_a_tick() {
    let distinct = |slack| {
        let mut lab = lab();
        let start = lab.clock.now();
        let ticks = Rc::new(RefCell::new(Vec::new()));
        for period in [97, 101, 103, 107, 109, 113] {
            let noted = Rc::clone(&ticks);
            let call = move |run: &mut Run<'_>| {
                assert!(run.now() >= run.due() && run.now() <= run.due() + slack);
                assert_eq!((run.due() - start).as_millis() % period, 0);
                noted.borrow_mut().push(ticks_of(run.timers()));
            };
            lab.timers().repeat(rate(ms(period as u64)).slack(slack), call).unwrap();
        }
        for _ in 0..1_000 {
            lab.advance(ms(1));
        }
        assert_eq!(lab.counts().panicked, 0);
        let mut ticks = ticks.take();
        let runs = ticks.len();
        ticks.dedup();
        (runs, ticks.len())
    };
    let (runs, ticks) = distinct(Duration::ZERO);
    assert!(ticks > runs * 9 / 10, "{ticks} of {runs}");
    let (runs, ticks) = distinct(ms(60));
    assert!(ticks <= 1_000 / 32 + 1 && runs > 40, "{ticks} of {runs}");
}

#[test]
fn a_shutdown_runs_it_once_more_or_not_at_all_and_drops_it() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let (guard, dropped) = Guard::new();
        let runs = Rc::new(Cell::new(0));
        let handles: Vec<_> = [rate(ms(50)), delay(ms(50))]
            .into_iter()
            .map(|repeat| {
                let (guard, counted) = (guard.clone(), Rc::clone(&runs));
                let call = move |run: &mut Run<'_>| {
                    let _held = &guard;
                    counted.set(counted.get() + 1);
                    assert_eq!(run.next_due(), None, "it is the last");
                };
                lab.timers().repeat(repeat, call).unwrap()
            })
            .collect();
        drop(guard);
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        assert_eq!(runs.get(), if fires { 2 } else { 0 }, "{policy:?}");
        assert_eq!(dropped.load(Ordering::SeqCst), 3, "{policy:?}");
        assert_eq!((report.counts.pending, report.counts.panicked), (0, 0));
        for handle in handles {
            assert!(handle.is_over());
            assert_eq!(handle.stop(), StopOutcome::AlreadyOver);
        }
    }
}

#[test]
fn it_runs_on_every_host_and_never_early() {
    for host in Host::all() {
        let handler = |_| |_: Fired<u8>, _: &Timers<u8>| {};
        let running = Running::start(host, builder(1), handler);
        let client = running.client();
        let (sender, runs) = mpsc::channel();
        let begin = move |timers: &Timers<u8>| {
            for (n, repeat) in [rate(ms(3)), delay(ms(3))].into_iter().enumerate() {
                let sender = sender.clone();
                let call = move |run: &mut Run<'_>| {
                    let early = run.now() < run.due() || run.timers().now() < run.due();
                    if run.number() == 4 {
                        run.stop();
                    }
                    sender.send((n, run.number(), early)).unwrap();
                };
                timers.repeat(repeat, call).unwrap();
            }
        };
        client.schedule_fn_on(SHARD, Duration::ZERO, begin).unwrap();
        let mut seen: Vec<_> = (0..10).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(runs.recv_timeout(PATIENCE).is_err(), "all are over, and dropped");
        seen.sort_unstable();
        let expected = (0..2).flat_map(|n| (0..5).map(move |run| (n, run, false)));
        assert!(seen.into_iter().eq(expected), "{host:?}");
        let _ = running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn one_from_elsewhere_runs_until_it_is_stopped_with_the_truth() {
    for host in Host::all() {
        let handler = |_| |_: Fired<u8>, _: &Timers<u8>| {};
        let running = Running::start(host, builder(1), handler);
        let client = running.client();
        let runs = Arc::new(AtomicU64::new(0));
        let (guard, dropped) = Guard::new();
        let counted = Arc::clone(&runs);
        let call = move |_: &mut Run<'_>| {
            let _held = &guard;
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let periodic = client.repeat_on(SHARD, rate(ms(1)), call).unwrap();
        assert_eq!(periodic.shard(), SHARD);
        wait_until("it runs", || runs.load(Ordering::SeqCst) >= 5);
        let outcome = periodic.stop(&client);
        assert_ne!(outcome, StopOutcome::AlreadyOver);
        let ran = runs.load(Ordering::SeqCst);
        std::thread::sleep(ms(20));
        let more = runs.load(Ordering::SeqCst) - ran;
        assert!(more <= u64::from(outcome == StopOutcome::LastRun), "{host:?} {outcome:?}");
        assert!(periodic.is_over());
        assert_eq!(periodic.stop(&client), StopOutcome::AlreadyOver);
        // The shard sleeps on, and drops it when it next comes by.
        client.schedule_on(SHARD, Duration::ZERO, 1).unwrap();
        wait_until("it is dropped", || dropped.load(Ordering::SeqCst) == 1);
        let _ = running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn one_from_elsewhere_keeps_its_moments_and_leaves_nothing_behind() {
    let mut lab = lab();
    let client = lab.client();
    let start = lab.clock.now();
    let (sender, runs) = mpsc::channel();
    let note =
        move |run: &mut Run<'_>| ((run.due() - start).as_millis(), run.number(), run.missed());
    // The way to the shard is part of the first period.
    let other = sender.clone();
    let repeat = rate(ms(10)).missed_tick_behavior(MissedTickBehavior::Skip);
    let periodic =
        client.repeat_on(SHARD, repeat, move |run: &mut Run<'_>| sender.send(note(run)).unwrap());
    let periodic = periodic.unwrap();
    for at in [4, 10, 45, 50] {
        jump(&mut lab, start, at);
    }
    assert!(runs.try_iter().eq([(10, 0, 0), (20, 1, 2), (50, 2, 0)]));
    assert_eq!(lab.timers().len(), 1);
    assert_eq!(periodic.stop(&client), StopOutcome::Stopped);
    lab.settle();
    assert_eq!(lab.timers().len(), 0);
    // One by a plan, stopped before its first run, and one that comes to its end.
    let next = move |at: Instant| (at < start + ms(80)).then(|| at + ms(10));
    let call = move |run: &mut Run<'_>| other.send(note(run)).unwrap();
    let early = client.repeat_by_plan_on(SHARD, start + ms(60), next, call.clone()).unwrap();
    assert_eq!(early.stop(&client), StopOutcome::Stopped);
    assert_eq!(early.stop(&client), StopOutcome::AlreadyOver);
    let planned = client.repeat_by_plan_on(SHARD, start + ms(70), next, call).unwrap();
    for at in 51..120 {
        jump(&mut lab, start, at);
    }
    assert!(runs.try_iter().eq([(70, 0, 0), (80, 1, 0)]));
    assert!(planned.is_over());
    assert!(runs.try_recv().is_err());
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn a_stop_from_elsewhere_is_exact_however_it_falls() {
    for round in 0..200_u64 {
        let running =
            Running::start(Host::LoopAttached, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let client = running.client();
        let (began, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (begins, ends) = (Arc::clone(&began), Arc::clone(&ended));
        let call = move |_: &mut Run<'_>| {
            begins.fetch_add(1, Ordering::SeqCst);
            std::thread::yield_now();
            ends.fetch_add(1, Ordering::SeqCst);
        };
        // Always behind, so that it runs in every turn.
        let repeat = rate(Duration::from_nanos(1)).first_in(Duration::ZERO);
        let periodic = client.repeat_on(SHARD, repeat, call).unwrap();
        let enough = round % 20;
        wait_until("it runs", || began.load(Ordering::SeqCst) >= enough);
        match periodic.stop(&client) {
            StopOutcome::Stopped => {
                let ran = ended.load(Ordering::SeqCst);
                assert_eq!(began.load(Ordering::SeqCst), ran, "it is not running");
                std::thread::yield_now();
                assert_eq!(began.load(Ordering::SeqCst), ran, "it does not run again");
            }
            StopOutcome::LastRun => {}
            StopOutcome::AlreadyOver => panic!("nobody else stops it"),
        }
        assert_ne!(periodic.stop(&client), StopOutcome::Stopped);
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert!(report.shards[0].counts.pending == 0 && periodic.is_over());
    }
}

#[test]
fn one_from_elsewhere_ends_with_its_shard() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let client = lab.client();
        let (guard, dropped) = Guard::new();
        let call = move |_: &mut Run<'_>| drop(guard.clone());
        let known = client.repeat_on(SHARD, rate(ms(10)).first_in(ms(1)), call.clone()).unwrap();
        let sent = client.repeat_on(SHARD, rate(ms(10)), call).unwrap();
        lab.advance(ms(1));
        drop(lab.end(policy));
        assert!(known.is_over() && sent.is_over(), "{policy:?}");
        let fires = usize::from(policy == ShutdownPolicy::Fire);
        assert_eq!(dropped.load(Ordering::SeqCst), 3 + 2 * fires, "{policy:?}");
        let refused = client.repeat_on(SHARD, rate(ms(10)), |_: &mut Run<'_>| {});
        assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    }
}

#[test]
fn every_period_is_run_or_counted_once_whatever_makes_runs_late() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0043);
    let behaviors = [MissedTickBehavior::Burst, MissedTickBehavior::Skip];
    for round in 0..200 {
        let behavior = behaviors[round % 2];
        let mut lab = lab();
        let (clock, start) = (lab.clock.clone(), lab.clock.now());
        let period = Duration::from_micros(rng.u64(300..30_000));
        let (jitter, slack) = (Duration::from_micros(rng.u64(0..40_000)), ms(rng.u64(0..40)));
        let sum = Rc::new(Cell::new(0));
        let (missed, mut works) = (Rc::clone(&sum), rng.fork());
        let mut due = start + period;
        let call = move |run: &mut Run<'_>| {
            assert_eq!(run.due(), due, "the grid is kept");
            assert!(run.now() >= due, "early");
            assert!(behavior == MissedTickBehavior::Skip || run.missed() == 0);
            due += period * (run.missed() as u32 + 1);
            assert_eq!(run.next_due(), Some(due));
            missed.set(missed.get() + run.missed());
            if works.u8(0..8) == 0 {
                clock.advance(Duration::from_micros(works.u64(0..100_000)));
            }
        };
        let repeat = rate(period).missed_tick_behavior(behavior).slack(slack);
        let repeat = repeat.jitter(Jitter::up_to(jitter, rng.u64(..)));
        let periodic = lab.timers().repeat(repeat, call).unwrap();
        for _ in 0..50 {
            lab.clock.advance(Duration::from_micros(rng.u64(0..50_000)));
            for _ in 0..20 {
                let _ = lab.turn();
            }
            assert_eq!(lab.timers().len(), 1);
        }
        assert_eq!((periodic.missed(), lab.counts().panicked), (sum.get(), 0), "round {round}");
        let runs = periodic.runs() + periodic.missed();
        assert_eq!(periodic.next_due(), Some(start + period * (runs as u32 + 1)));
    }
}

#[test]
fn a_first_run_before_all_time_counts_what_it_missed_without_overflow() {
    let mut lab = lab();
    let mut long_ago = lab.clock.now();
    for power in (0..63).rev() {
        long_ago = long_ago.checked_sub(Duration::from_secs(1 << power)).unwrap_or(long_ago);
    }
    let call = |_: &mut Run<'_>| {};
    for behavior in [MissedTickBehavior::Skip, MissedTickBehavior::Delay] {
        let repeat = rate(Duration::from_nanos(1)).first_at(long_ago);
        let repeat = repeat.missed_tick_behavior(behavior);
        let periodic = lab.timers().repeat(repeat, call).unwrap();
        let _ = lab.turn();
        assert_eq!((periodic.runs(), periodic.missed()), (1, u64::MAX), "{behavior:?}");
        lab.clock.advance(ms(1));
        let _ = lab.turn();
        assert_eq!((periodic.runs(), periodic.missed()), (2, u64::MAX), "{behavior:?}");
        assert_eq!(periodic.stop(), StopOutcome::Stopped);
    }
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn one_may_shut_its_service_down() {
    for host in Host::all() {
        for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
            let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
            let (guard, dropped) = Guard::new();
            let (sender, reports) = mpsc::channel();
            let service = Arc::downgrade(&running.service);
            let runs = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&runs);
            let call = move |_: &mut Run<'_>| {
                let _held = &guard;
                if counted.fetch_add(1, Ordering::SeqCst) == 2
                    && let Some(service) = service.upgrade()
                {
                    sender.send(service.begin_shutdown(policy).unwrap()).unwrap();
                }
            };
            let periodic = running.client().repeat_on(SHARD, rate(ms(2)), call).unwrap();
            let report = block_on(reports.recv_timeout(PATIENCE).unwrap());
            let last = u64::from(policy == ShutdownPolicy::Fire);
            assert_eq!(runs.load(Ordering::SeqCst), 3 + last, "{host:?} {policy:?}");
            assert!(periodic.is_over() && report.dead.is_empty());
            drop(report);
            assert_eq!(dropped.load(Ordering::SeqCst), 1, "{host:?} {policy:?}");
            running.stop();
        }
    }
}

#[test]
fn a_shard_that_dies_ends_and_drops_what_runs_periodically() {
    let mut lab = lab();
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let own: Rc<RefCell<Option<Periodic<u8>>>> = Rc::default();
    let (held, known) = (guard.clone(), Rc::clone(&own));
    // A circle: the shard holds the callback, and this the shard.
    let call = move |_: &mut Run<'_>| drop((held.clone(), known.borrow().clone()));
    let local = lab.timers().repeat(rate(ms(5)), call).unwrap();
    own.replace(Some(local.clone()));
    let call = move |_: &mut Run<'_>| drop(guard.clone());
    let started = client.repeat_on(SHARD, rate(ms(5)), call.clone()).unwrap();
    lab.advance(ms(5));
    let sent = client.repeat_on(SHARD, rate(ms(5)), call).unwrap();
    let before = dropped.load(Ordering::SeqCst);
    drop(lab.shards.remove(0));
    assert!(local.is_over() && started.is_over() && sent.is_over());
    assert_eq!(dropped.load(Ordering::SeqCst), before + 3);
    for remote in [started, sent] {
        assert_eq!(remote.stop(&client), StopOutcome::AlreadyOver);
    }
    assert_eq!(local.stop(), StopOutcome::AlreadyOver);
}

#[test]
fn of_many_that_stop_one_from_elsewhere_one_stops_it() {
    for round in 0..100 {
        let running = Running::start(Host::Own(corewheel::Runtime::Thread), builder(1), |_| {
            |_: Fired<u8>, _: &Timers<u8>| {}
        });
        let client = running.client();
        // Half of them are stopped while they wait for long, the others while they run on and on.
        let repeat = if round % 2 == 0 { rate(FAR) } else { rate(ms(1)).first_in(Duration::ZERO) };
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let call = move |_: &mut Run<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let periodic = client.repeat_on(SHARD, repeat, call).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (periodic, client) = (periodic.clone(), running.client());
                std::thread::spawn(move || periodic.stop(&client))
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|stops| stops.join().unwrap()).collect();
        let stopped = outcomes.iter().filter(|found| **found == StopOutcome::Stopped).count();
        let last = outcomes.contains(&StopOutcome::LastRun);
        assert!(stopped <= 1 && (stopped == 1) != last, "{outcomes:?}");
        wait_until("it is over", || periodic.is_over());
        let ran = runs.load(Ordering::SeqCst);
        let report = running.end(ShutdownPolicy::Fire);
        assert_eq!((runs.load(Ordering::SeqCst), report.shards[0].counts.pending), (ran, 0));
    }
}

#[test]
fn one_from_elsewhere_may_be_stopped_by_itself_and_its_plan_may_panic() {
    let mut lab = lab();
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let own: Arc<Mutex<Option<RemotePeriodic>>> = Arc::default();
    let (known, held) = (Arc::clone(&own), guard.clone());
    let call = move |run: &mut Run<'_>| {
        let _held = &held;
        let known = known.lock().unwrap();
        let known = known.as_ref().unwrap();
        if run.number() == 1 {
            assert_eq!(known.stop(run.timers().client()), StopOutcome::LastRun);
            assert_eq!(known.stop(run.timers().client()), StopOutcome::LastRun);
            assert!(!known.is_over(), "it is still running");
        }
    };
    let periodic = client.repeat_on(SHARD, rate(ms(5)), call).unwrap();
    own.lock().unwrap().replace(periodic.clone());
    for _ in 0..30 {
        lab.advance(ms(1));
    }
    assert_eq!((dropped.load(Ordering::SeqCst), lab.timers().len()), (1, 0));
    assert_eq!(periodic.stop(&client), StopOutcome::AlreadyOver);
    // With a plan that throws, a callback that throws, and a capture that throws.
    let next = |_: Instant| -> Option<Instant> { panic!("no plan") };
    let call = move |_: &mut Run<'_>| {
        let _held = &guard;
        panic!("each time");
    };
    let at = client.now() + ms(5);
    let planned = client.repeat_by_plan_on(SHARD, at, next, call).unwrap();
    for _ in 0..9 {
        lab.advance(ms(1));
    }
    assert!(planned.is_over());
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    assert_eq!((lab.counts().panicked, lab.timers().len()), (2, 0));
}

#[test]
fn one_whose_drop_begins_others_and_stops_itself_finds_nothing_borrowed() {
    struct Begins(Timers<u8>, Rc<RefCell<Option<Periodic<u8>>>>, Rc<Cell<u32>>);
    impl Drop for Begins {
        fn drop(&mut self) {
            if let Some(own) = self.1.take() {
                assert_eq!(own.stop(), StopOutcome::AlreadyOver);
            }
            let begun = self.0.repeat(rate(ms(1)), |run: &mut Run<'_>| run.stop());
            let _ = self.0.schedule(ms(1), 1);
            self.2.set(self.2.get() + 1 + u32::from(begun.is_ok()));
        }
    }
    for way in 0..4 {
        let mut lab = lab();
        let timers = lab.timers().clone();
        let (own, drops) = (Rc::default(), Rc::new(Cell::new(0)));
        let held = Begins(timers.clone(), Rc::clone(&own), Rc::clone(&drops));
        let call = move |run: &mut Run<'_>| {
            let _held = &held;
            match way {
                0 => run.stop(),
                1 => panic!("each time"),
                _ => {}
            }
        };
        let repeat = rate(ms(5)).on_panic(OnPanic::End);
        let periodic = timers.repeat(repeat, call).unwrap();
        own.replace(Some(periodic.clone()));
        lab.advance(ms(5));
        match way {
            2 => assert_eq!(periodic.stop(), StopOutcome::Stopped),
            3 => drop(lab.end(ShutdownPolicy::Drop)),
            _ => {}
        }
        assert!(periodic.is_over());
        assert_eq!(drops.get(), if way == 3 { 1 } else { 2 }, "{way}");
        if way < 3 {
            lab.advance(ms(9));
            assert_eq!((timers.len(), lab.counts().panicked), (0, u64::from(way == 1)), "{way}");
        }
    }
}

#[test]
fn a_refused_one_from_elsewhere_comes_back_and_begins_where_it_is_run() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(1));
    let timers = lab.timers().clone();
    let filler = timers.schedule(FAR, 0).unwrap();
    let client = lab.client();
    lab.settle();
    let (guard, dropped) = Guard::new();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let call = move |run: &mut Run<'_>| {
        let _held = &guard;
        counted.fetch_add(1, Ordering::SeqCst);
        if run.number() == 3 {
            run.stop();
        }
    };
    let refused = client.repeat_on(SHARD, rate(ms(5)), call);
    let Err(ScheduleError::Full(begin)) = refused else { panic!("there is no room") };
    assert_eq!((runs.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (0, 0));
    assert!(timers.cancel(filler).won());
    begin(&timers);
    assert_eq!((runs.load(Ordering::SeqCst), timers.len()), (1, 1));
    for _ in 0..40 {
        lab.advance(ms(1));
    }
    assert_eq!((runs.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (4, 1));
    assert_eq!((timers.len(), lab.counts().panicked), (0, 0));
}
