//! Never early, on any path, to the tick.

use std::time::Duration;

use corewheel::{Fired, ResetOutcome, ShutdownPolicy, Timers, Turn, WheelKind};

use crate::support::{FAR, Host, Lab, PATIENCE, Running, SHARD, builder, ms, next, runtimes};

/// Every way to have a timer, `delay` after a moment `start_us` into the service.
type Path = fn(&Lab<u8>, Duration);

const PATHS: [(&str, Path); 10] = [
    ("schedule_to", |lab, delay| {
        let deadline = lab.timers().deadline_in(delay);
        lab.timers().schedule_to(deadline, 0).unwrap();
    }),
    ("reset_to", |lab, delay| {
        let timer = lab.timers().schedule(FAR, 0).unwrap();
        let deadline = lab.timers().deadline_at(lab.clock.now() + delay);
        assert_eq!(lab.timers().reset_to(timer, deadline), ResetOutcome::Moved);
    }),
    ("schedule", |lab, delay| {
        lab.timers().schedule(delay, 0).unwrap();
    }),
    ("schedule_at", |lab, delay| {
        lab.timers().schedule_at(lab.clock.now() + delay, 0).unwrap();
    }),
    ("schedule_on", |lab, delay| {
        lab.client().schedule_on(SHARD, delay, 0).unwrap();
    }),
    ("schedule_at_on", |lab, delay| {
        lab.client().schedule_at_on(SHARD, lab.clock.now() + delay, 0).unwrap();
    }),
    ("batch", |lab, delay| {
        lab.client().batch(SHARD).schedule(delay, 0).unwrap();
    }),
    ("batch_at", |lab, delay| {
        lab.client().batch(SHARD).schedule_at(lab.clock.now() + delay, 0).unwrap();
    }),
    ("reset", |lab, delay| {
        let timer = lab.timers().schedule(Duration::from_hours(1), 0).unwrap();
        assert_eq!(lab.timers().reset(timer, delay), ResetOutcome::Moved);
    }),
    ("reset_detached", |lab, delay| {
        let client = lab.client();
        let timer = client.schedule_on(SHARD, Duration::ZERO, 0).unwrap();
        client.reset_detached(timer, delay);
    }),
];

#[test]
fn a_timer_is_due_at_the_first_tick_that_is_not_before_its_deadline() {
    let cases = [
        (0, 0, 0),
        (0, 1, 1),
        (0, 1_000, 1),
        (0, 1_001, 2),
        (999, 1, 1),
        (999, 2, 2),
        (1, 999, 1),
        (1, 1_000, 2),
        (1_500, 255_500, 257),
        (123_456, 70_000_000, 70_124),
    ];
    for wheel in [WheelKind::Hierarchical, WheelKind::Hashed] {
        for (name, path) in PATHS {
            for (start_us, delay_us, due) in cases {
                let mut lab = Lab::new(builder(1).wheel(wheel));
                lab.advance(Duration::from_micros(start_us));
                path(&lab, Duration::from_micros(delay_us));
                check_due(&mut lab, due, &format!("{name}, {start_us} + {delay_us} us"));
            }
        }
    }
}

#[test]
fn what_is_wanted_at_once_does_not_wait_for_the_next_tick() {
    let mut lab = Lab::new(builder(1));
    lab.advance(Duration::from_micros(1_500));
    let client = lab.client();
    lab.timers().schedule(Duration::ZERO, 1).unwrap();
    client.schedule_on(SHARD, Duration::ZERO, 2).unwrap();
    let late = lab.timers().schedule(FAR, 3).unwrap();
    assert_eq!(lab.timers().reset(late, Duration::ZERO), ResetOutcome::Moved);
    lab.settle();
    let mut fired: Vec<_> = lab.fired().into_iter().map(|(n, _)| n).collect();
    fired.sort_unstable();
    assert_eq!(fired, [1, 2, 3]);
}

/// Goes from one tick that the shard names to the next, one nanosecond before it and at it.
fn check_due(lab: &mut Lab<u8>, due: u64, case: &str) {
    let epoch = lab.clock.now().checked_sub(lab.service.stats().uptime).unwrap();
    for _ in 0..100 {
        let turn = lab.turn();
        let fired = lab.fired();
        if !fired.is_empty() {
            assert_eq!(fired.len(), 1, "{case}");
            assert_eq!(fired[0].1, due, "{case}");
            return;
        }
        match turn {
            Turn::More => {}
            Turn::Next(tick) => {
                assert!(tick.index() <= due, "{case}: {tick:?} is later than {due}");
                let at = epoch + ms(tick.index());
                let left = at.saturating_duration_since(lab.clock.now());
                if left > Duration::from_nanos(1) {
                    lab.clock.advance(left.checked_sub(Duration::from_nanos(1)).unwrap());
                    let _ = lab.turn();
                    assert!(lab.fired().is_empty(), "{case}: a nanosecond early");
                    lab.clock.advance(Duration::from_nanos(1));
                } else {
                    lab.clock.advance(left);
                }
            }
            other => panic!("{case}: {other:?} with a timer pending"),
        }
    }
    panic!("{case}: it does not fire");
}

#[test]
fn an_idle_shard_names_the_next_tick_exactly() {
    let mut lab = Lab::new(builder(1));
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
    assert_eq!(lab.turn(), Turn::Idle, "what is cancelled wakes nobody");
    lab.clock.advance(Duration::from_secs(10));
    assert_eq!(lab.turn(), Turn::Idle);
    assert!(lab.fired().is_empty());
}

#[test]
fn after_a_gap_of_any_length_everything_fires_once_and_in_order() {
    for gap in [ms(1), ms(300), Duration::from_secs(100), Duration::from_hours(24 * 365 * 100)] {
        let mut lab = Lab::new(builder(1));
        for n in (0..200_u64).rev() {
            lab.timers().schedule(ms(n * n), n).unwrap();
        }
        lab.advance(gap);
        let due = (0..200).filter(|n| u128::from(n * n) <= gap.as_millis());
        assert!(lab.fired().into_iter().map(|(n, _)| n).eq(due), "{gap:?}");
        lab.advance(ms(200 * 200));
        assert_eq!(lab.counts().fired, 200, "{gap:?}");
    }
}

#[test]
fn a_tick_of_any_length_is_never_early() {
    for tick in [Duration::from_micros(100), ms(20), ms(1_000)] {
        for runtime in runtimes() {
            let (sender, fired) = std::sync::mpsc::channel();
            let host = Host::Own(runtime);
            let running = Running::start(host, builder(1).tick(tick), move |_| {
                let sender = sender.clone();
                move |one: Fired<u32>, timers: &Timers<u32>| {
                    sender.send((one.task, timers.now())).unwrap();
                }
            });
            let client = running.client();
            let mut due = Vec::new();
            for n in 0..20 {
                let delay = Duration::from_micros(u64::from(n) * 731);
                let asked = running.service.now() + delay;
                client.schedule_on(SHARD, delay, n).unwrap();
                due.push(asked);
            }
            for _ in 0..20 {
                let (n, at) = fired.recv_timeout(PATIENCE).unwrap();
                assert!(at >= due[n as usize], "{runtime:?}, {tick:?}: {n} is early");
            }
            running.end(ShutdownPolicy::Drop);
        }
    }
}
