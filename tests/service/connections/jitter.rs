//! The random part of a connection's greatest age.

use std::time::Instant;

use corewheel::clock::ManualClock;

use super::*;
use corewheel_test_support::seeds;

const AGE: Duration = ms(100);

/// By how much the greatest age of connections is later, in nanoseconds: of connections of a shard,
/// and of tasks on any thread.
fn jitters(longest: Duration, count: usize, apart: Duration) -> [Vec<u64>; 2] {
    let lab = lab();
    let limits = NONE.max_age(AGE).max_age_jitter(longest);
    let later = |clock: &ManualClock, due: Option<Instant>| {
        let jitter = due.unwrap().checked_duration_since(clock.now() + AGE);
        jitter.expect("it is not early").as_nanos() as u64
    };
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let here = lab.timers().connection(limits).unwrap();
        let shared = shared::connect(&lab, limits);
        all[0].push(later(&lab.clock, here.deadline(MaxAge)));
        all[1].push(later(&lab.clock, shared.deadline(MaxAge)));
        lab.clock.advance(apart);
    }
    all
}

#[test]
fn ages_of_connections_that_begin_one_after_another_are_spread_evenly() {
    const WIDTH: u64 = 10_000_000_000;
    for apart in [1, 1_000, 1_000_000, 1_048_576] {
        for seen in jitters(Duration::from_nanos(WIDTH), 10_000, Duration::from_nanos(apart)) {
            let mut parts = [0; 10];
            for jitter in &seen {
                parts[(jitter * 10 / (WIDTH + 1)) as usize] += 1;
            }
            assert!(parts.iter().all(|count| (850..1_150).contains(count)), "{apart}: {parts:?}");
            let mut different = seen.clone();
            different.sort_unstable();
            different.dedup();
            assert!(different.len() > 9_900, "{apart}: {}", different.len());
        }
    }
}

#[test]
fn ages_of_connections_that_begin_at_once_are_spread() {
    for mut seen in jitters(Duration::from_secs(10), 256, Duration::ZERO) {
        let early = seen.iter().filter(|jitter| **jitter < 5_000_000_000).count();
        assert!((90..166).contains(&early), "{early} of 256 are in the first half");
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 250, "{}", seen.len());
    }
}

#[test]
fn jitter_is_from_zero_up_to_and_including_the_longest() {
    for seen in jitters(Duration::from_nanos(2), 1_000, Duration::from_nanos(777)) {
        let counts = [0, 1, 2].map(|jitter| seen.iter().filter(|seen| **seen == jitter).count());
        assert!(counts.iter().all(|count| *count > 250), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), 1_000);
    }
    for seen in jitters(Duration::ZERO, 100, Duration::from_nanos(777)) {
        assert_eq!(seen, [0; 100]);
    }
}

#[test]
fn same_beginnings_give_the_same_ages() {
    let once = || {
        seeds::note(seeds::of_process());
        jitters(Duration::from_secs(1), 300, Duration::from_nanos(100))
    };
    assert_eq!(once(), once());
}

/// A connection of each kind with one limit and its jitter.
fn both(lab: &Lab<u8>, limits: ConnLimits) -> (ConnTimers, ConnTimers<Handle>) {
    (lab.timers().connection(limits).unwrap(), shared::connect(lab, limits))
}

#[test]
fn age_with_its_jitter_comes_once_at_its_deadline_and_not_a_tick_before() {
    let mut lab = lab();
    let epoch = lab.clock.now();
    let (here, shared) = both(&lab, NONE.max_age(AGE).max_age_jitter(AGE));
    // Both are the first, and began at one time.
    let due = here.deadline(MaxAge).unwrap();
    assert_eq!(shared.deadline(MaxAge), Some(due));
    let tick = (due - epoch).as_nanos().div_ceil(1_000_000) as u64;
    assert!((100..=200).contains(&tick));
    lab.advance(ms(tick - 1));
    assert_eq!((event(&here), shared::event(&shared)), (None, None));
    lab.advance(ms(1));
    let old = Some((MaxAge, true));
    assert_eq!((event(&here), shared::event(&shared)), (old, old));
    assert_eq!(run(&mut lab, &here, 300), []);
    assert_eq!(shared::event(&shared), None);
}

#[test]
fn connection_keeps_its_part_of_the_jitter_when_its_limits_change() {
    let mut lab = lab();
    let limits = NONE.max_age(AGE).max_age_jitter(Duration::from_secs(1));
    let (here, shared) = both(&lab, limits);
    let began = lab.clock.now();
    let later = |due: Option<Instant>, age: Duration| {
        due.unwrap().checked_duration_since(began + age).unwrap().as_nanos() as u64
    };
    let first = later(here.deadline(MaxAge), AGE);
    lab.advance(ms(3));
    let set = |limits: ConnLimits| {
        here.set_limits(limits);
        shared.set_limits(limits);
        assert_eq!(here.deadline(MaxAge), shared.deadline(MaxAge));
        later(here.deadline(MaxAge), limits.max_age)
    };
    assert_eq!(set(NONE.max_age(AGE)), 0);
    assert!(set(limits.max_age_jitter(Duration::from_secs(2))).abs_diff(2 * first) <= 2);
    assert!(set(limits.max_age_jitter(ms(10))).abs_diff(first / 100) <= 1);
    assert_eq!(set(limits.max_age(ms(700))), first, "the age itself has no part in it");
    assert_eq!(set(limits), first);
    // Without an age, there is nothing to be later.
    here.set_limits(NONE.max_age_jitter(AGE));
    assert_eq!(here.deadline(MaxAge), None);
    // An age that is armed has no jitter.
    here.set_limits(limits);
    here.arm(MaxAge, ms(5)).unwrap();
    assert_eq!(here.deadline(MaxAge), Some(lab.clock.now() + ms(5)));
}

#[test]
fn jitter_that_does_not_fit_makes_no_age_earlier() {
    let lab = lab();
    for age in [AGE, Duration::MAX] {
        let limits = NONE.max_age(age).max_age_jitter(Duration::MAX);
        for _ in 0..100 {
            let (here, shared) = both(&lab, limits);
            for due in [here.deadline(MaxAge), shared.deadline(MaxAge)] {
                assert!(due.is_none_or(|due| age == AGE && due >= lab.clock.now() + AGE));
            }
        }
    }
}

#[test]
fn adopted_connection_keeps_its_greatest_age() {
    let mut lab = lab_with(builder(2));
    // On the other shard, another connection began at the same time.
    for _ in 0..7 {
        lab.clock.advance(Duration::from_nanos(97));
        let limits = NONE.max_age(AGE).max_age_jitter(Duration::from_secs(1));
        let conn = lab.timers().connection(limits).unwrap();
        let other = lab.shards[1].timers().connection(limits).unwrap();
        let due = conn.deadline(MaxAge);
        lab.advance(ms(1));
        let adopted = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
        assert_eq!(adopted.deadline(MaxAge), due);
        drop(other);
    }
}
