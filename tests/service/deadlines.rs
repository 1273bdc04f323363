//! Deadlines: every method schedules to the exact tick, and no timer is early.

use corewheel::When;

use super::*;

/// A method that makes a timer fire after `delay`.
type Path = fn(&Lab<u8>, Duration) -> TimerId;

/// Makes a timer fire later than the test ends, and then resets it.
fn reset_by(lab: &Lab<u8>, deadline: impl When) -> TimerId {
    let timer = lab.timers().schedule(FAR, 0).unwrap();
    assert_eq!(lab.timers().reset(timer, deadline), ResetOutcome::Reset);
    timer
}

const PATHS: [(&str, Path); 8] = [
    ("schedule_to", |lab, delay| lab.timers().schedule(lab.timers().deadline(delay), 0).unwrap()),
    ("reset_to", |lab, delay| reset_by(lab, lab.timers().deadline(lab.clock.now() + delay))),
    ("schedule", |lab, delay| lab.timers().schedule(delay, 0).unwrap()),
    ("schedule_at", |lab, delay| lab.timers().schedule(lab.clock.now() + delay, 0).unwrap()),
    ("schedule_on", |lab, delay| lab.client().on(SHARD).schedule(delay, 0).unwrap()),
    ("schedule_at_on", |lab, delay| {
        lab.client().on(SHARD).schedule(lab.clock.now() + delay, 0).unwrap()
    }),
    ("reset", |lab, delay| reset_by(lab, delay)),
    ("reset_detached", |lab, delay| {
        let client = lab.client();
        let timer = client.on(SHARD).schedule(Duration::ZERO, 0).unwrap();
        client.reset_detached(timer, delay);
        timer
    }),
];

#[test]
fn timer_fires_at_the_first_tick_that_is_not_before_its_deadline() {
    let cases = [
        (0, 0, 0),
        (0, 1_000, 1),
        (0, 1_000_000, 1),
        (0, 1_000_001, 2),
        (999, 1_000, 1),
        (999, 1_001, 2),
        (1, 999_000, 1),
        (1, 1_000_000, 2),
        (1_500, 255_500_000, 257),
        (123_456, 70_000_000_000, 70_124),
    ];
    for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
        for (name, path) in PATHS {
            for (start_us, delay_ns, due) in cases {
                let mut lab = Lab::at_windows(builder(1).wheel(wheel));
                let begun = lab.clock.now();
                lab.advance(Duration::from_micros(start_us));
                path(&lab, Duration::from_nanos(delay_ns));
                check_due(&mut lab, begun, due, &format!("{name}, {start_us} us + {delay_ns} ns"));
            }
        }
    }
}

#[test]
fn timer_with_zero_delay_fires_before_the_next_tick() {
    let mut lab = Lab::new(builder(1));
    lab.advance(Duration::from_micros(1_500));
    let client = lab.client();
    lab.timers().schedule(Duration::ZERO, 1).unwrap();
    client.on(SHARD).schedule(Duration::ZERO, 2).unwrap();
    let late = lab.timers().schedule(FAR, 3).unwrap();
    assert_eq!(lab.timers().reset(late, Duration::ZERO), ResetOutcome::Reset);
    lab.settle();
    assert_eq!(sorted(lab.values()), [1, 2, 3]);
}

/// Checks that the only timer fires at the tick `due`, counted from `begun`. Advances the clock to
/// one nanosecond before each tick at which the shard wants a turn, and then to that tick.
fn check_due(lab: &mut Lab<u8>, begun: Instant, due: u64, case: &str) {
    for _ in 0..100 {
        let turn = lab.turn();
        let fired = lab.fired();
        if !fired.is_empty() {
            return assert_eq!(fired, [(0, due)], "{case}");
        }
        match turn {
            Turn::More => {}
            Turn::Next(at) => {
                assert!(at <= begun + ms(due), "{case}: {at:?} is later than {due}");
                let nanosecond = Duration::from_nanos(1);
                let left = at.saturating_duration_since(lab.clock.now());
                if left > nanosecond {
                    lab.clock.advance(left.saturating_sub(nanosecond));
                    let _ = lab.turn();
                    assert!(lab.fired().is_empty(), "{case}: a nanosecond early");
                }
                lab.clock.advance(left.min(nanosecond));
            }
            other => panic!("{case}: {other:?} with a timer pending"),
        }
    }
    panic!("{case}: the timer does not fire");
}

#[test]
fn turn_of_an_idle_shard_returns_the_next_deadline_exactly() {
    let mut lab = Lab::at_windows(builder(1));
    assert_eq!(lab.turn(), Turn::Idle);
    lab.timers().schedule(ms(3), 1).unwrap();
    let later = lab.timers().schedule(ms(200), 2).unwrap();
    assert_eq!(lab.turn(), next(3));
    lab.clock.advance(ms(2));
    assert_eq!(lab.turn(), next(3));
    lab.clock.advance(ms(1));
    assert_eq!(lab.turn(), next(200));
    assert_eq!(lab.fired(), [(1, 3)]);
    let _ = lab.timers().reset(later, ms(4));
    assert_eq!(lab.turn(), next(7));
    assert!(lab.timers().cancel(later).won());
    assert_eq!(lab.turn(), Turn::Idle, "a cancelled timer wants no turn");
    lab.clock.advance(Duration::from_secs(10));
    assert_eq!(lab.turn(), Turn::Idle);
    assert!(lab.fired().is_empty());
}

#[test]
fn timers_after_a_gap_of_any_length_fire_once_and_in_order() {
    for gap in [ms(1), ms(300), Duration::from_secs(100), Duration::from_hours(24 * 365 * 100)] {
        let mut lab = Lab::new(builder(1));
        for n in (0..200_u64).rev() {
            lab.timers().schedule(ms(n * n), n).unwrap();
        }
        lab.advance(gap);
        let due = (0..200).filter(|n| u128::from(n * n) <= gap.as_millis());
        assert!(lab.values().into_iter().eq(due), "{gap:?}");
        lab.advance(ms(200 * 200));
        assert_eq!(lab.counts().fired, 200, "{gap:?}");
    }
}

#[test]
fn timer_for_a_past_instant_fires_in_the_next_turn() {
    let mut lab = Lab::new(builder(1));
    let epoch = lab.clock.now();
    lab.advance(ms(100));
    let past = [epoch, epoch + ms(50), epoch + ms(100)];
    for (n, at) in past.into_iter().enumerate() {
        lab.timers().schedule(at, n).unwrap();
        lab.client().on(SHARD).schedule(at, n).unwrap();
    }
    let before_epoch = epoch.checked_sub(Duration::from_secs(9)).unwrap_or(epoch);
    lab.timers().schedule(before_epoch, 3).unwrap();
    let _ = lab.turn();
    let fired = lab.fired();
    assert_eq!(fired.len(), 7);
    assert!(fired.iter().all(|&(_, at)| at == 100));
}

#[test]
fn timer_with_a_delay_that_does_not_fit_never_fires() {
    let mut lab = Lab::at_windows(builder(1));
    let client = lab.client();
    let here = lab.timers().schedule(Duration::MAX, 1).unwrap();
    let there = client.on(SHARD).schedule(Duration::MAX, 2).unwrap();
    let timer = lab.timers().schedule(ms(5), 3).unwrap();
    assert_eq!(lab.timers().reset(timer, Duration::MAX), ResetOutcome::Reset);
    let mut sleep = lab.timers().sleep(Duration::MAX);
    assert!(look(&mut sleep).is_none());
    assert!(sleep.deadline() > Some(lab.clock.now()));
    for _ in 0..20 {
        lab.advance(Duration::from_hours(24 * 365 * 20));
    }
    assert!(lab.fired().is_empty());
    assert_eq!(lab.counts().pending, 4);
    let long = Duration::from_hours(24 * 365 * 100);
    let outcome = lab.timers().cancel(here);
    assert!(matches!(outcome, CancelOutcome::Cancelled { remaining, .. } if remaining > long));
    assert_eq!(lab.timers().reset(there, ms(1)), ResetOutcome::Reset);
    lab.advance(ms(2));
    assert_eq!(lab.fired().len(), 1);
}

#[test]
fn timer_with_a_delay_that_does_not_fit_never_fires_on_any_runtime() {
    for host in Host::all() {
        let (running, fired) = Running::<u8>::sending(host, builder(1));
        let client = running.client();
        let never = client.on(SHARD).schedule(Duration::MAX, 1).unwrap();
        client.on(SHARD).schedule(ms(5), 2).unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok(2), "{host:?}");
        assert!(client.cancel(never).wait().unwrap().won(), "{host:?}");
    }
}
