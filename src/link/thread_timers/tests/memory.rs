//! The memory of the timers of a thread, and the work that it takes under the lock.

use std::task::Waker;

use super::super::slots::Slot;
use super::Pair;

/// The bytes of a timeout around nothing.
const TIMEOUT: f64 = 48.0;

#[test]
fn memory_of_timers_is_freed_when_they_are_over_and_little_is_left() {
    let mut pair = Pair::new(1 << 20);
    let mut ids: Vec<_> = (0..100_000).map(|_| pair.arm(30_000).unwrap()).collect();
    let allocated = |pair: &Pair| pair.thread_timers.lock().allocated();
    let [of_lists, of_slots, slots] = allocated(&pair);
    assert!((100_000..=125_000).contains(&of_lists) && slots == 100_000, "{of_lists}, {slots}");
    assert!((100_000..=100_256).contains(&of_slots), "there is memory for {of_slots} slots");
    fastrand::Rng::with_seed(1).shuffle(&mut ids);
    for id in ids {
        pair.end(id);
    }
    let [of_lists, of_slots, _] = allocated(&pair);
    assert!(of_lists <= 64 && of_slots <= 768, "there is memory for {of_lists}, {of_slots}");
    pair.thread_timers.check_invariants();
    // Those that fire together leave as little.
    for _ in 0..50_000 {
        pair.arm(30).unwrap();
    }
    pair.now += 30;
    assert_eq!(pair.turn().len(), 50_000);
    let [of_lists, of_slots, _] = allocated(&pair);
    assert!(of_lists <= 1_024 && of_slots <= 768, "there is memory for {of_lists}, {of_slots}");
}

#[test]
fn end_of_a_timer_moves_64_others_at_most_and_the_gaps_are_closed_all_the_same() {
    const COUNT: usize = 1_500;
    let mut pair = Pair::new(1 << 20);
    let mut ids: Vec<_> = (0..COUNT).map(|_| pair.arm(30_000).unwrap()).collect();
    // The first and the last stay, so that no gap lies at an end of the list.
    fastrand::Rng::with_seed(1).shuffle(&mut ids[1..COUNT - 1]);
    let (mut moved, mut longest) = (0, 0);
    for ended in 1..COUNT - 1 {
        let places = |pair: &Pair| {
            let mut timers = pair.thread_timers.lock();
            let names = ids[ended + 1..].iter().map(|id| pair.pending[id].0);
            names.map(|name| timers.place_of(name)).collect::<Vec<_>>()
        };
        let before = places(&pair);
        pair.end(ids[ended]);
        let changed = before.iter().zip(places(&pair)).filter(|(was, is)| **was != *is).count();
        longest = changed.max(longest);
        moved += changed;
        pair.thread_timers.check_invariants();
    }
    assert!((1..=64).contains(&longest), "{longest} timers were moved by an end");
    assert!(moved > COUNT / 2, "{moved}");
    let [of_lists, ..] = pair.thread_timers.lock().allocated();
    assert!(of_lists <= 256, "two timers have a list of {of_lists}");
}

#[test]
fn memory_is_freed_after_the_lock_and_links_of_classes_stay_where_they_are() {
    let mut pair = Pair::new(1 << 20);
    let first = pair.arm_class(30_000, 1).unwrap();
    let at = |pair: &Pair| pair.thread_timers.lock().classes.address_of(0);
    let before = at(&pair);
    let mut ids: Vec<_> = (0..50_000).map(|_| pair.arm_class(30_000, 1).unwrap()).collect();
    assert_eq!(at(&pair), before, "the links were copied under the lock");
    while let Some(id) = ids.pop() {
        pair.end(id);
    }
    let of_slots = |pair: &Pair| pair.thread_timers.lock().allocated()[1];
    let (last, _) = pair.pending.remove(&first).unwrap();
    let held = of_slots(&pair);
    pair.thread_timers.lock().end(&pair.thread_timers.numbers, last).unwrap();
    assert_eq!(of_slots(&pair), held, "slots were freed under the lock");
    assert!(held > 50_000 && at(&pair) == before);
    // Whatever takes the lock for an end frees them.
    let id = pair.arm_class(30_000, 1).unwrap();
    pair.end(id);
    assert!(of_slots(&pair) <= 768);
    assert_eq!(at(&pair), None, "the links stay");
    pair.thread_timers.check_invariants();
}

#[test]
fn pending_timeout_takes_112_bytes_at_most_young_and_filed() {
    // The worst count: the block of the numbers that was made last is nearly unused.
    let count = (32 << 10) - 32 + 1;
    for (after, filed) in [(30_000, 0), (30_000, 20_000), (50, 0)] {
        let mut pair = Pair::new(1 << 20);
        for _ in 0..count {
            pair.arm_class(after, 0).unwrap();
        }
        pair.now += filed;
        pair.turn();
        let [of_lists, of_slots, _] = pair.thread_timers.lock().allocated();
        let numbers = pair.thread_timers.numbers.allocated();
        let bytes = of_lists * 4 + of_slots * size_of::<Slot<Waker>>() + numbers * 8;
        let each = TIMEOUT + bytes as f64 / f64::from(count);
        assert!(each <= 112.0, "{each} bytes");
    }
}
