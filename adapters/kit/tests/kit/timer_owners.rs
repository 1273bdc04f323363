//! Containers that own many timers of a shard. Each handler is called only for its own timers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corewheel::{ShutdownPolicy, Timers};
use corewheel_kit::keyed::{Expired, KeyedTimers};
use corewheel_kit::purgatory::{Operation, Purgatory};

use corewheel_test_support::{Lab, builder, check_law, ms};

type Numbered = KeyedTimers<u32, u32>;
type Expiries = Rc<RefCell<Vec<(&'static str, u32)>>>;

fn numbered(timers: &Timers<()>, name: &'static str, expiries: &Expiries) -> Numbered {
    let expiries = Rc::clone(expiries);
    let record = move |timer: Expired<u32, u32>, _: &Numbered| {
        expiries.borrow_mut().push((name, timer.key));
    };
    KeyedTimers::new(timers, record)
}

/// An operation that records its expiry.
struct RecordsExpiry(Expiries);

impl Operation for RecordsExpiry {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn completed(self) {}

    fn expired(self) {
        self.0.borrow_mut().push(("operation", 0));
    }
}

fn put(timers: &Numbered, key: u32, delay: u64) {
    assert_eq!(timers.insert(key, key, ms(delay)), Ok(None));
}

#[test]
fn drop_of_an_owner_ends_its_timers_and_no_other_timers() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let expiries = Expiries::default();
    let other = numbered(lab.timers(), "other", &expiries);
    put(&other, 7, 5);
    for round in 0..3 {
        let first = numbered(lab.timers(), "first", &expiries);
        (0..3).for_each(|key| put(&first, key, 5));
        drop(first);
        assert_eq!(lab.timers().len(), 1, "round {round}: its timers are still pending");
    }
    let second = numbered(lab.timers(), "second", &expiries);
    put(&second, 1, 5);
    let purgatory = Purgatory::<u32, RecordsExpiry>::new(lab.timers());
    let watch = purgatory.try_complete_else_watch(RecordsExpiry(Rc::clone(&expiries)), ms(5), [1]);
    assert!(matches!(watch, Ok(false)));
    lab.advance(ms(10));
    assert_eq!(*expiries.borrow(), [("other", 7), ("second", 1), ("operation", 0)]);
    check_law(&lab.counts());
}

#[test]
fn owner_dropped_by_its_handler_can_be_replaced_by_another_owner() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let expiries = Expiries::default();
    let (held, next) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    let handler = {
        let (held, next, expiries) = (Rc::clone(&held), Rc::clone(&next), Rc::clone(&expiries));
        let own = lab.timers().clone();
        move |timer: Expired<u32, u32>, _: &Numbered| {
            expiries.borrow_mut().push(("first", timer.key));
            drop::<Option<Numbered>>(held.take());
            let another = numbered(&own, "next", &expiries);
            (0..4).for_each(|key| put(&another, key, 0));
            next.set(Some(another));
        }
    };
    let first: Numbered = KeyedTimers::new(lab.timers(), handler);
    (0..4).for_each(|key| put(&first, key, 5));
    held.set(Some(first));
    lab.advance(ms(5));
    lab.settle();
    assert_eq!(Rc::strong_count(&held), 1, "the drop also ends the three timers that were due");
    let called = [("first", 0), ("next", 0), ("next", 1), ("next", 2), ("next", 3)];
    assert_eq!(*expiries.borrow(), called);
    assert_eq!(lab.timers().len(), 0);
    check_law(&lab.counts());
}

#[test]
fn drop_of_an_owner_before_or_after_shutdown_ends_its_timers_by_the_policy() {
    for policy in [ShutdownPolicy::Fire, ShutdownPolicy::Return, ShutdownPolicy::Drop] {
        let mut lab: Lab<()> = Lab::new(builder(1));
        let (timers, expiries) = (lab.timers().clone(), Expiries::default());
        let before = numbered(lab.timers(), "before", &expiries);
        let after = numbered(lab.timers(), "after", &expiries);
        (0..4).for_each(|key| put(&before, key, 5));
        (0..3).for_each(|key| put(&after, key, 5));
        drop(before);
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        let returned = if policy == ShutdownPolicy::Return { 3 } else { 0 };
        assert_eq!(report.returned.len(), returned, "{policy:?}");
        let called = [("after", 0), ("after", 1), ("after", 2)];
        assert_eq!(*expiries.borrow(), if fires { &called[..] } else { &[] }, "{policy:?}");
        assert_eq!(after.len(), if fires { 0 } else { 3 }, "{policy:?}");
        let late = numbered(&timers, "late", &expiries);
        assert!(late.insert(1, 1, ms(1)).is_err(), "{policy:?}");
        drop((after, late));
        check_law(&lab.counts());
    }
}

#[test]
fn handler_of_an_owner_beyond_65_536_others_is_called_for_its_timers() {
    const OWNERS: u32 = (1 << 16) + 8;
    let mut lab: Lab<()> = Lab::new(builder(1));
    let expiries = Expiries::default();
    let mut all: Vec<_> = (0..OWNERS).map(|_| numbered(lab.timers(), "one", &expiries)).collect();
    for number in [0, 1, (1 << 16) - 1, 1 << 16, OWNERS - 2, OWNERS - 1] {
        put(&all[number as usize], number, 5);
        put(&all[number as usize], number + 1, 9);
    }
    assert!(all[OWNERS as usize - 1].remove(&OWNERS).is_some());
    drop(all.remove(OWNERS as usize - 2));
    drop(all.remove(1));
    lab.advance(ms(5));
    let called = [0, (1 << 16) - 1, 1 << 16, OWNERS - 1].map(|number| ("one", number));
    assert_eq!(*expiries.borrow(), called);
    drop(all);
    assert_eq!(lab.timers().len(), 0);
    check_law(&lab.counts());
}
