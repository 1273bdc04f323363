//! The handler, and what runs before a method returns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel_kit::keyed::{Expired, KeyedTimers};

use super::{numbered, replaced};
use corewheel_test_support::{Eager, FAR, Lab, builder, check_law, ms, shared, waker_of};

#[test]
fn handler_may_use_the_timers_in_every_way_and_drop_them() {
    type Mine = KeyedTimers<u32, u32, u32>;
    let mut lab = Lab::<()>::new(builder(1));
    let (kept, last) = shared::<RefCell<Option<Mine>>>();
    let (calls, count) = shared::<Cell<u32>>();
    let handler = move |one: Expired<u32, u32>, timers: &Mine| {
        count.set(count.get() + 1);
        match one.value {
            // The same key again, and another key that is due at once.
            0 => {
                assert_eq!(timers.insert(one.key, 1, ms(5)), Ok(None));
                assert_eq!(timers.insert_in(9, 100, 2, Duration::ZERO), Ok(None));
                assert!(timers.reset(&one.key, ms(6)));
                assert_eq!(replaced(timers.insert(one.key, 1, ms(6))), Some(1));
                assert_eq!(timers.insert(8, 3, ms(7)), Ok(None));
            }
            1 => {
                assert_eq!(timers.drain().len(), 1, "it is due as well");
                assert_eq!(timers.insert(7, 3, FAR), Ok(None));
                drop(last.take());
            }
            _ => assert!(timers.remove_group(&9).is_empty()),
        }
    };
    let timers: Mine = KeyedTimers::in_groups(lab.timers(), handler);
    assert_eq!(timers.insert(1, 0, ms(1)), Ok(None));
    kept.replace(Some(timers));
    lab.advance(ms(1));
    assert_eq!(calls.get(), 2, "a timer that is inserted for now fires in the next turn");
    lab.advance(ms(5));
    assert_eq!(calls.get(), 2);
    lab.advance(ms(2));
    assert_eq!(calls.get(), 3);
    assert_eq!(Rc::strong_count(&calls), 1, "the timers and their handler are gone");
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0), "their timers are gone");
    check_law(&lab.counts());
}

#[test]
fn handler_that_panics_is_counted_and_called_for_the_next_key() {
    let mut lab = Lab::<()>::new(builder(1));
    let (calm, count) = shared::<Cell<u32>>();
    let handler = move |one: Expired<u32, u32>, _: &KeyedTimers<u32, u32>| {
        assert_ne!(one.key % 2, 0, "the handler panics");
        count.set(count.get() + 1);
    };
    let timers = KeyedTimers::in_groups(lab.timers(), handler);
    (0..10).for_each(|key| assert_eq!(timers.insert(key, key, ms(1)), Ok(None)));
    lab.advance(ms(1));
    assert_eq!((calm.get(), lab.counts().panicked, timers.len()), (5, 5, 0));
    check_law(&lab.counts());
}

#[test]
fn driver_that_is_woken_by_an_insert_may_use_the_timers() {
    type Mine = KeyedTimers<u32, u32, u32>;
    let mut lab = Lab::<()>::new(builder(1));
    let timers: Mine = KeyedTimers::in_groups(lab.timers(), |_, _| {});
    let (mine, (cancelled, count)) = (timers.clone(), shared::<Cell<usize>>());
    let cancel_when_woken = waker_of(move || {
        let group = mine.remove_group(&1).len();
        if count.replace(count.get() + group) == 0 {
            assert_eq!(mine.insert_in(2, 8, 0, FAR), Ok(None));
        }
    });
    assert_eq!(lab.fall_asleep(&cancel_when_woken), Turn::Idle);
    assert_eq!(timers.insert_in(1, 5, 0, ms(1)), Ok(None));
    assert_eq!((cancelled.get(), timers.len(), lab.timers().len()), (1, 1, 1));
    assert_eq!(timers.remove_group(&2).len(), 1);
}

#[test]
fn timer_may_fire_before_its_insert_or_reset_returns() {
    let lab = Lab::<()>::new(builder(1));
    let (timers, fired) = numbered(&lab);
    let eager = Eager::fall_asleep(lab);
    assert_eq!(timers.insert_in(1, 1, 1, Duration::ZERO), Ok(None));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 1)], 0));
    assert_eq!(timers.insert_in(1, 1, 2, FAR), Ok(None));
    eager.fall_asleep_again();
    assert_eq!(replaced(timers.insert_in(2, 1, 3, Duration::ZERO)), Some(2));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 3)], 0));
    assert_eq!(timers.insert(1, 4, FAR), Ok(None));
    eager.fall_asleep_again();
    assert!(timers.reset(&1, Duration::ZERO));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 4)], 0));
    let lab = eager.into_lab();
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}
