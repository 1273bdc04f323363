//! Jitter spreads timers, and slack lets them share ticks. No timer is early or later than allowed:
//! the bounds are those of the documentation, and how a deadline is chosen within them is not
//! restated.

use std::collections::BTreeSet;

use corewheel_kit::herd::Jitter;

use super::*;

#[test]
fn deadlines_with_slack_share_few_ticks_within_the_slack() {
    let mut wakes = Vec::new();
    for slack in [Duration::ZERO, Duration::from_micros(999), ms(100)] {
        let mut lab = Lab::<u64>::new(builder(1));
        lab.advance(ms(12_345));
        let mut rng = Rng::with_seed(0x0C0D_E5EE_D000_0042);
        for n in 0..500 {
            // The delay is not a whole number of ticks.
            let delay = Duration::from_micros(rng.u64(1..1_000_000));
            let value = delay.as_micros() as u64;
            let deadline = match n % 2 {
                0 => lab.handle().deadline_with_slack(delay, slack),
                _ => lab.handle().deadline_with_slack(lab.clock.now() + delay, slack),
            };
            lab.timers().schedule(deadline, value).unwrap();
        }
        let mut ticks = BTreeSet::new();
        lab.advance_ticks(1_200);
        for (value, at) in lab.fired() {
            let earliest = Duration::from_micros(12_345_000 + value);
            assert!(ms(at) >= earliest, "early");
            assert!(ms(at) <= earliest + slack.max(ms(1)), "late");
            ticks.insert(at);
        }
        assert_eq!(lab.counts().pending, 0);
        wakes.push(ticks.len());
    }
    assert!(wakes[0] > 350 && wakes[0] == wakes[1], "{wakes:?}");
    // With this slack timers share the ticks that are multiples of 64.
    assert!(wakes[2] <= 1_100 / 64 + 1, "{wakes:?}");
}

#[test]
fn slack_does_not_change_deadlines_that_are_due_or_never_due() {
    let mut lab = Lab::<u8>::at_windows(builder(1));
    let epoch = lab.clock.now();
    lab.advance(ms(1_001));
    let (timers, handle) = (lab.timers().clone(), lab.handle());
    let (now, slack) = (lab.clock.now(), Duration::from_secs(5));
    let due = handle.deadline_with_slack(Duration::ZERO, Duration::ZERO);
    assert_eq!(due, timers.deadline(Duration::ZERO));
    let never = timers.deadline(Duration::MAX);
    assert_eq!(handle.deadline_with_slack(Duration::MAX, slack), never);
    assert_eq!(handle.deadline_with_slack(never, slack), never);
    assert!(handle.deadline_with_slack(ms(1), Duration::MAX) < never, "it is due at some time");
    // Timers with the same slack share a tick wherever in the slack they are due.
    let first = handle.deadline_with_slack(now + ms(20), slack);
    let second = handle.deadline_with_slack(now + ms(2_000), slack);
    assert_eq!((first, first), (second, timers.deadline(epoch + ms(4_096))));
}

#[test]
fn clone_of_a_jitter_returns_the_same_later_times() {
    let mut jitter = Jitter::random(FAR, 3);
    let _later = jitter.after(Duration::ZERO);
    let mut other = jitter.clone();
    assert!((0..100).all(|_| jitter.after(Duration::ZERO) == other.after(Duration::ZERO)));
}

#[test]
fn random_jitter_makes_no_timer_early() {
    let mut lab = Lab::<u64>::new(builder(1));
    let mut jitter = Jitter::random(ms(50), 7);
    for _ in 0..300 {
        let delay = jitter.after(ms(20));
        lab.timers().schedule(delay, delay.as_nanos() as u64).unwrap();
    }
    let mut ticks = BTreeSet::new();
    lab.advance_ticks(100);
    for (delay, at) in lab.fired() {
        assert_eq!(at, delay.div_ceil(1_000_000));
        assert!((20..=70).contains(&at));
        ticks.insert(at);
    }
    assert!(ticks.len() > 40, "{ticks:?}");
    assert_eq!(lab.counts().pending, 0);
}
