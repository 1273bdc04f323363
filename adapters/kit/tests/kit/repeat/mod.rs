//! Callbacks that run again and again: when they run, and how many runs are missed.
//!
//! The model of missed runs shares with the code that behind a late run the grid is kept or begins
//! anew, which is a promise. Periods and looks are whole ticks there, so that nothing is rounded.
//! The callbacks whose periods are no whole ticks are compared with the grid alone.

mod ends;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::interval::MissedTickBehavior;
use corewheel_kit::herd::Jitter;
use corewheel_kit::repeat::{PeriodicRun, Repeat};

use corewheel_test_support::{FAR, Lab, builder, check_law, ms, shared, ticks_of};

type Run<'a> = PeriodicRun<'a, u8>;

fn rate(period: Duration) -> Repeat {
    Repeat::at_fixed_rate(period).unwrap()
}

fn delay(delay: Duration) -> Repeat {
    Repeat::with_fixed_delay(delay).unwrap()
}

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

/// A callback that counts its runs, and their number.
fn counted(
    mut call: impl FnMut(&mut Run<'_>) + 'static,
) -> (Rc<Cell<u64>>, impl FnMut(&mut Run<'_>) + 'static) {
    let (runs, counted) = shared::<Cell<u64>>();
    let call = move |run: &mut Run<'_>| {
        assert_eq!(run.number, counted.get());
        counted.set(counted.get() + 1);
        call(run);
    };
    (runs, call)
}

/// Lets a callback run at the end of periods of 10 ms, by a clock that is moved to these
/// milliseconds. Returns for each run when it was due, when it came and how many periods it left
/// out.
fn seen(behavior: MissedTickBehavior, looks: &[u64]) -> Vec<(u64, u64, u64)> {
    let mut lab = lab();
    let start = lab.clock.now();
    let (runs, noted) = shared::<RefCell<Vec<_>>>();
    let since = move |at: Instant| at.duration_since(start).as_millis() as u64;
    let call = move |run: &mut Run<'_>| {
        assert_eq!(run.number, noted.borrow().len() as u64);
        noted.borrow_mut().push((since(run.due), since(run.timers.now()), run.missed));
    };
    let repeat = rate(ms(10)).missed_tick_behavior(behavior);
    repeat.begin(lab.timers(), call).unwrap();
    for &at in looks {
        lab.advance(start + ms(at) - lab.clock.now());
        assert_eq!(lab.timers().len(), 1, "one timer");
    }
    check_law(&lab.counts());
    runs.take()
}

#[test]
fn every_missed_tick_behavior_runs_as_its_model() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0041);
    for behavior in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip]
    {
        for _ in 0..50 {
            let mut looks: Vec<u64> = (0..40).map(|_| rng.u64(1..400)).collect();
            looks.sort_unstable();
            let runs = seen(behavior, &looks);
            let (mut due, mut expected) = (10, Vec::new());
            for &now in &looks {
                while due <= now {
                    let behind = (now - due) / 10;
                    let left_out = if behavior == MissedTickBehavior::Burst { 0 } else { behind };
                    expected.push((due, now, left_out));
                    due = match behavior {
                        MissedTickBehavior::Delay if behind > 0 => now + 10,
                        _ => due + 10 * (left_out + 1),
                    };
                }
            }
            assert_eq!(runs, expected, "{behavior:?} {looks:?}");
        }
    }
}

#[test]
fn long_run_shifts_a_fixed_delay_and_not_a_fixed_rate() {
    let work = [0, 3, 25, 0, 1, 0, 0];
    let run_at = |repeat: Repeat| {
        let mut lab = lab();
        let (clock, start) = (lab.clock.clone(), lab.clock.now());
        let runs = Rc::new(RefCell::new(Vec::new()));
        let missed = Rc::new(Cell::new(0));
        let (noted, left_out) = (Rc::clone(&runs), Rc::clone(&missed));
        let call = move |run: &mut Run<'_>| {
            noted.borrow_mut().push((run.timers.now() - start).as_millis());
            left_out.set(left_out.get() + run.missed);
            clock.advance(ms(work[run.number as usize]));
        };
        let repeat = repeat.missed_tick_behavior(MissedTickBehavior::Skip);
        repeat.begin(lab.timers(), call).unwrap();
        while runs.borrow().len() < work.len() {
            lab.advance(ms(1));
        }
        assert_eq!(lab.timers().len(), 1);
        let runs = runs.take();
        (runs, missed.get())
    };
    // The third run, of 30, is at work until 55: that of 40 comes late, that of 50 not at all.
    assert_eq!(run_at(rate(ms(10))), (vec![10, 20, 30, 56, 60, 70, 80], 1));
    assert_eq!(run_at(delay(ms(10))), (vec![10, 20, 33, 68, 78, 89, 99], 0));
}

#[test]
fn period_of_a_fraction_of_ticks_does_not_drift() {
    let mut lab = lab();
    let start = lab.clock.now();
    let period = Duration::from_micros(3_300);
    let (runs, counted) = shared::<Cell<u32>>();
    let call = move |run: &mut Run<'_>| {
        counted.set(counted.get() + 1);
        assert_eq!(run.due, start + period * counted.get());
        assert!(run.timers.now() >= run.due && run.timers.now() < run.due + ms(1));
    };
    rate(period).begin(lab.timers(), call).unwrap();
    lab.advance_ticks(3_300);
    assert_eq!((runs.get(), lab.counts().panicked), (1_000, 0));
}

#[test]
fn first_run_comes_when_first_says() {
    let first_runs = |repeat: Repeat| {
        let mut lab = lab();
        lab.advance(ms(100));
        let (runs, noted) = shared::<RefCell<Vec<_>>>();
        let call = move |run: &mut Run<'_>| noted.borrow_mut().push(ticks_of(run.timers));
        repeat.begin(lab.timers(), call).unwrap();
        lab.settle();
        lab.advance_ticks(30);
        runs.take()
    };
    assert_eq!(first_runs(rate(ms(20))), [120]);
    assert_eq!(first_runs(delay(ms(20))), [120]);
    assert_eq!(first_runs(rate(ms(20)).first(Duration::ZERO)), [100, 120]);
    assert_eq!(first_runs(rate(ms(20)).first(ms(5))), [105, 125]);
    assert_eq!(first_runs(delay(ms(20)).first(ms(5))), [105, 125]);
}

#[test]
fn period_of_zero_is_refused_and_longest_period_never_ends() {
    let error = Repeat::at_fixed_rate(Duration::ZERO).unwrap_err();
    assert!(error.field() == "period" && error.to_string().contains("0ns"), "{error}");
    assert_eq!(Repeat::with_fixed_delay(Duration::ZERO).unwrap_err().field(), "delay");
    let mut lab = Lab::<u8>::at_windows(builder(1));
    for repeat in [rate(Duration::MAX), delay(Duration::MAX)] {
        let at_once = repeat.clone().first(Duration::ZERO);
        for (repeat, runs) in [(repeat, 0), (at_once, 1)] {
            let jitter = Jitter::random(Duration::MAX, 1);
            drop(repeat.clone().jitter(jitter).begin(lab.timers(), |_| {}).unwrap());
            let (ran, call) = counted(|_| {});
            let periodic = repeat.begin(lab.timers(), call).unwrap();
            lab.advance(FAR);
            assert_eq!((ran.get(), periodic.is_over()), (runs, false));
        }
    }
    lab.advance(FAR * 24 * 365 * 100);
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn plan_runs_until_it_returns_none() {
    let mut lab = lab();
    let start = lab.clock.now();
    // A backoff: 10, 30, 70.
    let mut wait = ms(10);
    let next = move |at: Instant| {
        wait *= 2;
        (wait <= ms(40)).then(|| at + wait)
    };
    let (runs, noted) = shared::<RefCell<Vec<_>>>();
    let call = move |run: &mut Run<'_>| {
        noted.borrow_mut().push((run.due - start).as_millis());
        assert_eq!(run.due, run.timers.now());
    };
    let periodic = Repeat::by_plan(lab.timers(), start + ms(10), next, call).unwrap();
    for _ in 0..200 {
        lab.advance(ms(1));
        assert!(lab.timers().len() <= 1);
    }
    assert_eq!(runs.take(), [10, 30, 70]);
    assert_eq!((periodic.is_over(), lab.timers().len()), (true, 0));
    assert_eq!(lab.counts().panicked, 0);
    check_law(&lab.counts());
}

#[test]
fn plan_of_a_past_instant_runs_in_the_next_turn() {
    let mut lab = lab();
    lab.advance(ms(100));
    let now = lab.clock.now();
    let next = move |at: Instant| at.checked_sub(ms(1));
    let (runs, call) = counted(|run| {
        if run.number == 9 {
            run.stop();
        }
    });
    let periodic = Repeat::by_plan(lab.timers(), now, next, call).unwrap();
    for turn in 1..=10 {
        let left = lab.turn();
        assert_eq!(runs.get(), turn);
        assert_eq!(left == Turn::More, turn < 10, "{left:?}");
    }
    assert!(periodic.is_over());
}

#[test]
fn jitter_delays_single_runs_and_keeps_the_grid() {
    let runs = |seed| {
        let mut lab = lab();
        let start = lab.clock.now();
        let (late, noted) = shared::<RefCell<Vec<_>>>();
        let call = move |run: &mut Run<'_>| {
            let n = run.number as u32 + 1;
            assert_eq!((run.due, run.missed), (start + ms(10) * n, 0));
            assert!(run.timers.now() >= run.due, "early");
            noted.borrow_mut().push((run.timers.now() - run.due).as_millis());
        };
        let repeat = rate(ms(10)).jitter(Jitter::random(ms(8), seed));
        let repeat = repeat.missed_tick_behavior(MissedTickBehavior::Skip);
        repeat.begin(lab.timers(), call).unwrap();
        lab.advance_ticks(2_000);
        assert_eq!(lab.counts().panicked, 0);
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
fn late_runs_by_any_cause_run_or_count_every_period_once() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0043);
    let behaviors = [MissedTickBehavior::Burst, MissedTickBehavior::Skip];
    for round in 0..200 {
        let behavior = behaviors[round % 2];
        let mut lab = lab();
        let (clock, start) = (lab.clock.clone(), lab.clock.now());
        let period = Duration::from_micros(rng.u64(300..30_000));
        let jitter = Duration::from_micros(rng.u64(0..40_000));
        let mut works = rng.fork();
        let mut due = start + period;
        let call = move |run: &mut Run<'_>| {
            assert_eq!(run.due, due, "the grid is kept");
            assert!(run.timers.now() >= due, "early");
            assert!(behavior == MissedTickBehavior::Skip || run.missed == 0);
            due += period * (run.missed as u32 + 1);
            if works.u8(0..8) == 0 {
                clock.advance(Duration::from_micros(works.u64(0..100_000)));
            }
        };
        let repeat = rate(period).missed_tick_behavior(behavior);
        let repeat = repeat.jitter(Jitter::random(jitter, rng.u64(..)));
        repeat.begin(lab.timers(), call).unwrap();
        for _ in 0..50 {
            lab.clock.advance(Duration::from_micros(rng.u64(0..50_000)));
            for _ in 0..20 {
                let _ = lab.turn();
            }
            assert_eq!(lab.timers().len(), 1);
        }
        assert_eq!(lab.counts().panicked, 0, "round {round}");
    }
}

#[test]
fn closures_without_annotations_are_inferred() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let at = timers.now() + ms(1);
    let (sender, runs) = mpsc::channel();
    let send = |name: &'static str| (sender.clone(), name);
    let (own, name) = send("repeat");
    rate(ms(1))
        .begin(&timers, move |run| {
            let fired = run.timers.schedule(Duration::ZERO, 1).is_ok();
            own.send((name, fired)).unwrap();
            run.stop();
        })
        .unwrap();
    let (own, name) = send("plan");
    Repeat::by_plan(&timers, at, |_| None, move |run| own.send((name, run.number == 0)).unwrap())
        .unwrap();
    lab.advance(ms(2));
    drop(sender);
    let mut runs: Vec<_> = runs.try_iter().collect();
    runs.sort_unstable();
    assert_eq!(runs, ["plan", "repeat"].map(|name| (name, true)));
}
