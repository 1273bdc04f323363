//! Resets of the timers of a thread.

use super::{Pair, TICK, nanos};

#[test]
fn reset_that_is_repeated_keeps_a_timer_young() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(30_000).unwrap();
    for _ in 0..100_000 {
        pair.now += 1;
        pair.reset(id, 30_000);
        pair.turn();
    }
    assert_eq!(pair.young(), 1, "it was filed");
}

#[test]
fn reset_of_a_filed_timer_asks_for_an_act_only_if_it_is_earlier() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(50).unwrap();
    let before = pair.thread_timers.act_by();
    let reset = |pair: &mut Pair, after| {
        let (name, now) = (pair.pending[&id].0, nanos(pair.now));
        let deadline = nanos(pair.now + after);
        pair.pending.insert(id, (name, pair.now + after));
        pair.thread_timers.reset(name, deadline, || now, || now).unwrap()
    };
    assert_eq!(reset(&mut pair, 60), None, "the keeper is told of a later deadline");
    assert_eq!(pair.thread_timers.act_by(), before);
    assert_eq!(reset(&mut pair, 3), Some(nanos(pair.now + 3)));
    assert_eq!(pair.thread_timers.act_by(), nanos(pair.now + 3));
    pair.now += 3;
    assert_eq!(pair.turn(), [id]);
}

#[test]
fn reset_of_a_young_timer_to_earlier_asks_for_an_earlier_act() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(30_000).unwrap();
    let before = pair.thread_timers.act_by();
    for after in [10_000, 100, 5] {
        pair.reset(id, after);
        assert!(pair.thread_timers.act_by() <= nanos(pair.now + after), "{after}");
    }
    assert!(pair.thread_timers.act_by() < before);
    pair.now += 5;
    assert_eq!(pair.turn(), [id]);
}

#[test]
fn timer_reset_to_later_stays_in_its_list_and_fires_once_at_its_last_deadline() {
    // Young ones of several kinds, and those of ticks and coarse levels.
    for (after, aged, later) in [
        (30_000, 0, 31_000),
        (30_000, 0, 90_000),
        (200, 0, 260),
        (50, 0, 60),
        (30_000, 20_000, 40_000),
    ] {
        let mut pair = Pair::new(1 << 20);
        let id = pair.arm(after).unwrap();
        pair.now += aged;
        pair.turn();
        let place = |pair: &Pair| pair.thread_timers.lock().place_of(pair.pending[&id].0);
        let (before, act_by) = (place(&pair), pair.thread_timers.act_by());
        for step in 0..3 {
            pair.reset(id, later + step);
            assert_eq!((place(&pair), pair.thread_timers.act_by()), (before, act_by), "{after}");
        }
        let end = pair.now + later + 2;
        while pair.now < end {
            assert_eq!(pair.turn(), [], "{after} fires early");
            pair.now = pair.thread_timers.act_by().div_ceil(TICK).clamp(pair.now + 1, end);
        }
        assert_eq!((pair.turn(), pair.thread_timers.pending()), (vec![id], 0), "{after}");
    }
}

#[test]
fn timer_reset_to_later_and_then_to_earlier_fires_once_at_the_earlier_deadline() {
    for (after, later) in [(30_000, 90_000), (200, 260), (50, 60)] {
        for earlier in [3, 40, 100, 220, 20_000] {
            let mut pair = Pair::new(1 << 20);
            let id = pair.arm(after).unwrap();
            pair.reset(id, later);
            pair.reset(id, earlier.min(later - 1));
            let due = pair.pending[&id].1;
            assert!(pair.thread_timers.act_by() <= nanos(due), "no act for {earlier}");
            while pair.now < due {
                assert_eq!(pair.turn(), [], "{earlier} fires early");
                pair.now = pair.thread_timers.act_by().div_ceil(TICK).clamp(pair.now + 1, due);
            }
            assert_eq!((pair.turn(), pair.thread_timers.pending()), (vec![id], 0), "{earlier}");
        }
    }
}

#[test]
fn timer_reset_to_later_and_then_to_earlier_is_filed_as_one_that_was_not_reset() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(30_000).unwrap();
    pair.reset(id, 90_000);
    pair.reset(id, 29_000);
    // The look that was planned for it, and the look that files what was put there after that.
    for young in [1, 0] {
        pair.now = pair.thread_timers.act_by().div_ceil(TICK);
        assert_eq!(pair.turn(), []);
        assert_eq!(pair.young(), young, "at {}", pair.now);
    }
}
