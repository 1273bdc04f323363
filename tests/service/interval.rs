//! Ticks for futures: when they are due, and which are missed.

use corewheel::interval::{Interval, MissedTickBehavior};

use super::*;

/// When the tick was due that an interval has now; `None` if it has none.
fn tick(interval: &mut Interval) -> Option<Instant> {
    match interval.poll_tick(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(due) => Some(due.unwrap()),
        Poll::Pending => None,
    }
}

/// Polls for ticks at the milliseconds of `looks`. Returns when each tick was due and when it was
/// seen, and how many were missed.
fn seen(behavior: MissedTickBehavior, period: u64, looks: &[u64]) -> (Vec<(u64, u64)>, u64) {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let since = |at: Instant| at.duration_since(start).as_millis() as u64;
    let mut interval = lab.timers().interval(ms(period)).unwrap();
    interval.set_missed_tick_behavior(behavior);
    let mut ticks = Vec::new();
    for at in looks {
        lab.advance(start + ms(*at) - lab.clock.now());
        // As often as there are ticks to see at once.
        for _ in 0..20 {
            ticks.extend(tick(&mut interval).map(|due| (since(due), *at)));
            lab.settle();
        }
    }
    (ticks, interval.missed())
}

#[test]
fn late_ticks_come_as_their_behavior_says() {
    use MissedTickBehavior::{Burst, Delay, Skip};
    /// The looks, when each tick was due and seen, and how many were missed.
    type Case = (MissedTickBehavior, &'static [u64], &'static [(u64, u64)], u64);
    const CASES: [Case; 4] = [
        (Burst, &[0, 35, 40, 50], &[(0, 0), (10, 35), (20, 35), (30, 35), (40, 40), (50, 50)], 0),
        (Delay, &[0, 35, 40, 45, 50, 55], &[(0, 0), (10, 35), (45, 45), (55, 55)], 2),
        // The tick of 100 is the fourth after that of 60.
        (Skip, &[0, 35, 40, 45, 50, 100], &[(0, 0), (10, 35), (40, 40), (50, 50), (60, 100)], 6),
        // Late by less than a period.
        (Delay, &[0, 19, 20, 30], &[(0, 0), (10, 19), (20, 20), (30, 30)], 0),
    ];
    // On time, none is missed.
    let looks: Vec<_> = (0..=50).collect();
    let expected: Vec<_> = (0..=50).step_by(10).map(|at| (at, at)).collect();
    for behavior in [Burst, Delay, Skip] {
        assert_eq!(seen(behavior, 10, &looks), (expected.clone(), 0), "{behavior:?}");
    }
    for (behavior, looks, ticks, missed) in CASES {
        assert_eq!(seen(behavior, 10, looks), (ticks.to_vec(), missed), "{behavior:?} {looks:?}");
    }
}

#[test]
fn period_of_a_fraction_of_ticks_does_not_drift() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let period = Duration::from_micros(3_300);
    let mut interval = lab.timers().interval(period).unwrap();
    let mut dues = Vec::new();
    for _ in 0..3_300 {
        dues.extend(tick(&mut interval));
        lab.advance(ms(1));
    }
    assert!(dues.len() >= 999);
    assert!((0..).zip(&dues).all(|(n, due)| *due == start + period * n), "{dues:?}");
}

#[test]
fn fixed_delay_begins_when_the_next_tick_is_awaited() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.handle().fixed_delay(ms(10)).unwrap();
    assert_eq!(tick(&mut interval), None);
    for due in [10, 27, 44] {
        lab.advance(start + ms(due) - lab.clock.now());
        assert_eq!(tick(&mut interval), Some(start + ms(due)));
        // The work at a tick.
        lab.advance(ms(7));
        assert_eq!(tick(&mut interval), None);
    }
    assert_eq!(interval.missed(), 0);
}

#[test]
fn reset_and_reset_at_restart_the_grid() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let at = |due| Some(start + ms(due));
    let mut interval = lab.handle().interval_at(start + ms(50), ms(20)).unwrap();
    let mut due_at = |interval: &mut Interval, due: u64| {
        assert_eq!(tick(interval), None);
        lab.advance(start + ms(due - 1) - lab.clock.now());
        assert_eq!(tick(interval), None, "not before {due}");
        lab.advance(ms(1));
        assert_eq!(tick(interval), at(due));
    };
    due_at(&mut interval, 50);
    interval.reset();
    due_at(&mut interval, 70);
    interval.reset_at(ms(5));
    due_at(&mut interval, 75);
    interval.reset_at(start + ms(200));
    due_at(&mut interval, 200);
    due_at(&mut interval, 220);
    interval.reset_at(Duration::ZERO);
    assert_eq!([tick(&mut interval), tick(&mut interval)], [at(220), None]);
    interval.reset_at(lab.timers().deadline(ms(6)));
    lab.advance(ms(6));
    assert_eq!(tick(&mut interval), at(226));
    // An instant that has passed is the beginning of the grid all the same.
    interval.reset_at(start + ms(170));
    let seen = [(); 4].map(|()| tick(&mut interval));
    assert_eq!(seen, [at(170), at(190), at(210), None], "the next is due at 230");
    lab.advance(ms(4));
    assert_eq!(tick(&mut interval), at(230));
}

#[test]
fn longest_period_and_delay_are_accepted() {
    let mut lab = Lab::<u8>::new(builder(1));
    let mut interval = lab.timers().interval(Duration::MAX).unwrap();
    assert!(tick(&mut interval).is_some());
    lab.advance(ms(1));
    assert_eq!(tick(&mut interval), None);
    assert_eq!(tick(&mut lab.handle().fixed_delay(Duration::MAX).unwrap()), None);
}

#[test]
fn interval_that_begins_before_the_epoch_keeps_the_grid_of_its_first_tick() {
    let lab = Lab::<u8>::new(builder(1));
    let first = lab.clock.now().checked_sub(ms(7)).unwrap();
    let mut interval = lab.handle().interval_at(first, ms(5)).unwrap();
    let seen = [(); 3].map(|()| tick(&mut interval));
    assert_eq!(seen, [Some(first), Some(first + ms(5)), None]);
}

#[test]
fn reset_of_a_fixed_delay_forgets_the_tick_before() {
    let mut lab = Lab::<u8>::new(builder(1));
    let start = lab.clock.now();
    let mut interval = lab.handle().fixed_delay(ms(10)).unwrap();
    lab.advance(ms(10));
    assert!(tick(&mut interval).is_some());
    interval.reset_at(ms(3));
    lab.advance(ms(3));
    assert_eq!(tick(&mut interval), Some(start + ms(13)));
    interval.reset();
    lab.advance(ms(9));
    assert_eq!(tick(&mut interval), None);
    lab.advance(ms(1));
    assert_eq!(tick(&mut interval), Some(start + ms(23)));
}

#[test]
fn dropped_interval_frees_its_timer() {
    let mut lab = Lab::<u8>::new(builder(1));
    let mut interval = lab.timers().interval(ms(10)).unwrap();
    assert!(tick(&mut interval).is_some());
    assert_eq!(lab.timers().len(), 0, "it takes a timer when there is something to wait for");
    assert_eq!(tick(&mut interval), None);
    assert_eq!(lab.timers().len(), 1);
    drop(interval);
    assert_eq!(lab.timers().len(), 0);
    assert_ne!(lab.turn(), Turn::More);
}

#[test]
fn ticks_come_on_every_executor_and_end_with_the_shard() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let ticks = running.service.spawn_on(SHARD, |timers| async move {
            let start = timers.now();
            let mut interval = timers.interval(ms(3)).unwrap();
            for n in 0..5 {
                let due = interval.tick().await.unwrap();
                assert!(timers.now() >= due, "early");
                assert!(due >= start + ms(3) * n);
            }
        });
        assert_eq!(ticks.unwrap().wait(), Ok(()), "{host:?}");
        let waiting = running.service.spawn_on(SHARD, |timers| async move {
            let mut interval = timers.handle().interval_at(PATIENCE, PATIENCE).unwrap();
            assert_eq!(interval.tick().await, Err(RefusedKind::Closed));
        });
        let waiting = waiting.unwrap();
        running.end(ShutdownPolicy::Drop);
        // The future has seen it, or was dropped with its executor.
        let _ = waiting.wait();
    }
}
