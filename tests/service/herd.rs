//! What keeps timers apart, and what brings them together: never early, and no later than was said.

use std::collections::BTreeSet;
use std::time::Duration;

use corewheel::{Jitter, Spread};

use crate::support::{FAR, Lab, builder, ms};

#[test]
fn slack_brings_timers_into_few_ticks_never_early_and_never_beyond_it() {
    let mut wakes = Vec::new();
    for slack in [Duration::ZERO, Duration::from_micros(999), ms(100)] {
        let mut lab = Lab::<u64>::new(builder(1));
        lab.advance(ms(12_345));
        let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0042);
        for n in 0..500 {
            // A part of a tick is in it too.
            let delay = Duration::from_micros(rng.u64(1..1_000_000));
            let task = delay.as_micros() as u64;
            let deadline = if n % 2 == 0 {
                lab.timers().deadline_with_slack(delay, slack)
            } else {
                lab.timers().deadline_at_with_slack(lab.clock.now() + delay, slack)
            };
            lab.timers().schedule_to(deadline, task).unwrap();
        }
        let mut ticks = BTreeSet::new();
        for _ in 0..1_200 {
            lab.advance(ms(1));
            for (task, at) in lab.fired() {
                let earliest = Duration::from_micros(12_345_000 + task);
                assert!(ms(at) >= earliest, "early");
                assert!(ms(at) <= earliest + slack.max(ms(1)), "late");
                ticks.insert(at);
            }
        }
        assert_eq!(lab.counts().pending, 0);
        wakes.push(ticks.len());
    }
    assert!(wakes[0] > 350 && wakes[0] == wakes[1], "{wakes:?}");
    // One tick in 64 at least is round enough for each.
    assert!(wakes[2] <= 1_100 / 64 + 1, "{wakes:?}");
}

#[test]
fn slack_leaves_what_is_due_and_what_is_never_due_alone() {
    let mut lab = Lab::<u8>::new(builder(1));
    let epoch = lab.clock.now();
    lab.advance(ms(1_001));
    let timers = lab.timers().clone();
    let (now, slack) = (lab.clock.now(), Duration::from_secs(5));
    let due = timers.deadline_with_slack(Duration::ZERO, Duration::ZERO);
    assert_eq!(due, timers.deadline_in(Duration::ZERO));
    let never = timers.deadline_in(Duration::MAX);
    assert_eq!(timers.deadline_with_slack(Duration::MAX, slack), never);
    assert_eq!(timers.later(never, slack), never);
    assert!(timers.deadline_with_slack(ms(1), Duration::MAX) < never, "it is due at some time");
    // Whoever agrees on a slack comes together, wherever in it they are.
    let one = timers.deadline_at_with_slack(now + ms(20), slack);
    let other = timers.deadline_at_with_slack(now + ms(2_000), slack);
    assert_eq!((one, one), (other, timers.deadline_at(epoch + ms(4_096))));
}

#[test]
fn a_deadline_can_be_put_off_by_a_part_of_a_tick_and_is_never_early() {
    let mut lab = Lab::<u8>::new(builder(1));
    let timers = lab.timers().clone();
    let deadline = timers.deadline_in(ms(10));
    assert_eq!(timers.later(deadline, Duration::ZERO), deadline);
    let part = timers.later(deadline, Duration::from_nanos(1));
    assert_eq!(part, timers.deadline_in(ms(11)));
    timers.schedule_to(timers.later(deadline, ms(4)), 1).unwrap();
    timers.schedule_to(part, 2).unwrap();
    for _ in 0..20 {
        lab.advance(ms(1));
    }
    assert_eq!(lab.fired(), [(2, 11), (1, 14)]);
}

#[test]
fn a_mass_expiry_is_spread_evenly_over_its_window() {
    let (count, window) = (10_000, 1_000);
    let mut lab = Lab::<u32>::new(builder(1));
    let deadline = lab.timers().deadline_in(FAR + ms(1));
    let timers: Vec<_> =
        (0..count).map(|n| lab.timers().schedule_to(deadline, n).unwrap()).collect();
    // They are all there; now they are moved apart.
    for (timer, by) in timers.into_iter().zip(Spread::over(ms(window))) {
        let _ = lab.timers().reset_to(timer, lab.timers().later(deadline, by));
    }
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
    let mut most = 0;
    for _ in 0..=window + 1 {
        lab.advance(ms(1));
        most = most.max(lab.fired().len());
    }
    assert_eq!((lab.counts().fired, lab.counts().pending), (u64::from(count), 0));
    assert!((10..=13).contains(&most), "{most} in one tick, where 10 is even");
}

#[test]
fn jitter_never_makes_a_timer_early() {
    let mut lab = Lab::<u64>::new(builder(1));
    let mut jitter = Jitter::up_to(ms(50), 7);
    for _ in 0..300 {
        let delay = jitter.after(ms(20));
        lab.timers().schedule(delay, delay.as_nanos() as u64).unwrap();
    }
    let mut ticks = BTreeSet::new();
    for _ in 0..100 {
        lab.advance(ms(1));
        for (delay, at) in lab.fired() {
            assert_eq!(at, delay.div_ceil(1_000_000));
            assert!((20..=70).contains(&at));
            ticks.insert(at);
        }
    }
    assert!(ticks.len() > 40, "{ticks:?}");
    assert_eq!(lab.counts().pending, 0);
}
