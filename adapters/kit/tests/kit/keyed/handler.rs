//! The handler, and what runs before a method returns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel::{Fired, ShutdownPolicy, Timers};
use corewheel_kit::keyed::{Expired, KeyedTimers};

use super::replaced;
use corewheel_test_support::{
    FAR, Host, Lab, PATIENCE, Running, SHARD, builder, check_law, ms, wait_until,
};

#[test]
fn handler_may_use_the_timers_in_every_way_and_drop_them() {
    type Mine = KeyedTimers<u32, u32, u32>;
    let mut lab = Lab::<()>::new(builder(1));
    let kept: Rc<RefCell<Option<Mine>>> = Rc::default();
    let (last, calls) = (Rc::clone(&kept), Rc::new(Cell::new(0)));
    let count = Rc::clone(&calls);
    let handler = move |one: Expired<u32, u32>, timers: &Mine| {
        count.set(count.get() + 1);
        match one.value {
            // The same key again, and another key that is due at once.
            0 => {
                assert_eq!(timers.insert(one.key, 1, ms(5)), Ok(None));
                assert_eq!(timers.insert_in(9, 100, 2, Duration::ZERO), Ok(None));
                assert!(timers.reset(&one.key, ms(6)));
                assert_eq!(replaced(timers.insert(one.key, 1, ms(6))), Some(1));
            }
            1 => {
                drop(timers.drain());
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
    lab.advance(ms(1));
    assert_eq!(calls.get(), 3);
    assert_eq!(Rc::strong_count(&calls), 1, "the timers and their handler are gone");
    assert_eq!(lab.timers().len(), 0, "their timers are gone");
    assert_eq!(lab.counts().panicked, 0);
    check_law(&lab.counts());
}

#[test]
fn handler_that_panics_is_counted_and_called_for_the_next_key() {
    let mut lab = Lab::<()>::new(builder(1));
    let calm = Rc::new(Cell::new(0));
    let count = Rc::clone(&calm);
    let handler = move |one: Expired<u32, u32>, _: &KeyedTimers<u32, u32>| {
        assert_ne!(one.key % 2, 0, "the handler panics");
        count.set(count.get() + 1);
    };
    let timers = KeyedTimers::in_groups(lab.timers(), handler);
    for key in 0..10 {
        assert_eq!(timers.insert(key, key, ms(1)), Ok(None));
    }
    lab.advance(ms(1));
    assert_eq!((calm.get(), lab.counts().panicked, timers.len()), (5, 5, 0));
    check_law(&lab.counts());
}

#[test]
fn driver_that_is_woken_by_an_insert_may_use_the_timers() {
    type Mine = KeyedTimers<u32, u32, u32>;
    thread_local! {
        static SLEEPING: RefCell<Option<Mine>> = const { RefCell::new(None) };
        static CANCELLED: Cell<usize> = const { Cell::new(0) };
    }
    struct CancelWhenWoken;
    impl std::task::Wake for CancelWhenWoken {
        fn wake(self: std::sync::Arc<Self>) {
            let Some(timers) = SLEEPING.take() else { return };
            CANCELLED.set(CANCELLED.get() + timers.remove_group(&1).len());
            assert_eq!(timers.insert_in(2, 8, 0, FAR), Ok(None));
        }
    }
    let mut lab = Lab::<()>::new(builder(1));
    let timers: Mine = KeyedTimers::in_groups(lab.timers(), |_, _| {});
    SLEEPING.set(Some(timers.clone()));
    let waker = std::sync::Arc::new(CancelWhenWoken).into();
    let turn = lab.turn();
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::Idle);
    assert_eq!(timers.insert_in(1, 5, 0, ms(1)), Ok(None));
    assert_eq!((CANCELLED.get(), timers.len(), lab.timers().len()), (1, 1, 1));
    assert_eq!(timers.remove_group(&2).len(), 1);
}

#[test]
fn keys_fire_on_every_host() {
    type Mine = KeyedTimers<&'static str, u32, u32>;
    thread_local! {
        static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
    }
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let client = running.client();
        let (sender, fired) = mpsc::channel();
        let start = running.service.now();
        let fill = move |timers: &Timers<()>| {
            let own = timers.clone();
            let mine: Mine = KeyedTimers::in_groups(timers, move |one, _: &Mine| {
                sender.send((one.key, one.value, own.now())).unwrap();
            });
            // The sooner one first, as the machine may be busy between two of them.
            for (key, delay, value) in [("soon", 10, 2), ("late", 30, 1), ("moved", 5, 3)] {
                assert_eq!(mine.insert(key, value, ms(delay)), Ok(None));
            }
            for key in ["x", "y"] {
                assert_eq!(mine.insert_in(1, key, 0, ms(1)), Ok(None));
            }
            assert!(mine.reset("moved", ms(50)));
            assert_eq!(mine.remove_group(&1).len(), 2);
            MINE.set(Some(mine));
        };
        client.on(SHARD).schedule_fn(Duration::ZERO, fill).unwrap();
        for (key, value, delay) in [("soon", 2, 10), ("late", 1, 30), ("moved", 3, 50)] {
            let (known, held, at) = fired.recv_timeout(PATIENCE).unwrap();
            assert_eq!((known, held), (key, value), "{host:?}");
            assert!(at >= start + ms(delay), "{host:?}: {key} is early");
        }
        let end = |_: &Timers<()>| assert!(MINE.take().unwrap().is_empty());
        client.on(SHARD).schedule_fn(Duration::ZERO, end).unwrap();
        wait_until("no timer is left", || running.service.stats().shards[0].counts.pending == 0);
        let report = running.end(ShutdownPolicy::Drop);
        check_law(&report.shards[0].counts);
        assert_eq!(report.shards[0].counts.panicked, 0, "{host:?}");
    }
}

thread_local! {
    static EAGER: RefCell<Option<Lab<()>>> = const { RefCell::new(None) };
}

/// The waker of a loop that takes its turns as soon as it is woken.
struct Eager;

impl std::task::Wake for Eager {
    fn wake(self: std::sync::Arc<Self>) {
        let Some(mut lab) = EAGER.take() else { return };
        lab.settle();
        EAGER.set(Some(lab));
    }
}

#[test]
fn timer_may_fire_before_its_insert_or_reset_returns() {
    let lab = Lab::<()>::new(builder(1));
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let timers = KeyedTimers::<u32, u32, u32>::in_groups(lab.timers(), move |one, _| {
        noted.borrow_mut().push((one.key, one.value));
    });
    EAGER.set(Some(lab));
    let waker = std::sync::Arc::new(Eager).into();
    let fall_asleep = || {
        let mut lab = EAGER.take().unwrap();
        let turn = lab.turn();
        assert_ne!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
        EAGER.set(Some(lab));
    };
    fall_asleep();
    assert_eq!(timers.insert_in(1, 1, 1, Duration::ZERO), Ok(None));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 1)], 0));
    assert_eq!(timers.insert_in(1, 1, 2, FAR), Ok(None));
    fall_asleep();
    assert_eq!(replaced(timers.insert_in(2, 1, 3, Duration::ZERO)), Some(2));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 3)], 0));
    assert_eq!(timers.insert(1, 4, FAR), Ok(None));
    fall_asleep();
    assert!(timers.reset(&1, Duration::ZERO));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 4)], 0));
    let lab = EAGER.take().unwrap();
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}
