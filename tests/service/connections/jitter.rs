//! The random part of a connection's greatest age.

use std::collections::BTreeSet;

use super::*;

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
        all[0].push(later(&lab.clock, Timers::open(&lab, limits).deadline(MaxAge)));
        all[1].push(later(&lab.clock, Handle::open(&lab, limits).deadline(MaxAge)));
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
            let different: BTreeSet<_> = seen.iter().collect();
            assert!(different.len() > 9_900, "{apart}: {}", different.len());
        }
    }
}

#[test]
fn ages_of_connections_that_begin_at_once_are_spread() {
    for seen in jitters(Duration::from_secs(10), 256, Duration::ZERO) {
        let early = seen.iter().filter(|jitter| **jitter < 5_000_000_000).count();
        assert!((90..166).contains(&early), "{early} of 256 are in the first half");
        let different = seen.iter().collect::<BTreeSet<_>>().len();
        assert!(different > 250, "{different}");
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

#[test]
fn jitter_that_does_not_fit_makes_no_age_earlier() {
    let lab = lab();
    for age in [AGE, Duration::MAX] {
        let limits = NONE.max_age(age).max_age_jitter(Duration::MAX);
        for _ in 0..100 {
            on_both!(|S| {
                let due = S::open(&lab, limits).deadline(MaxAge);
                assert!(due.is_none_or(|due| age == AGE && due >= lab.clock.now() + AGE));
            });
        }
    }
}
