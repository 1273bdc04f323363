//! Those who have many timers on one shard: each is called for its own, whoever came before it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corewheel::{
    Expired, KeyedTimers, Operation, Purgatory, ShutdownPolicy, Timers, Watch, WeakKeyedTimers,
};

use crate::support::{Lab, builder, check_law, ms};

type Numbered = KeyedTimers<u32, u32, (), ()>;
type Noted = Rc<RefCell<Vec<(&'static str, u32)>>>;

fn numbered(timers: &Timers<()>, name: &'static str, noted: &Noted) -> Numbered {
    let noted = Rc::clone(noted);
    let note = move |one: Expired<u32, u32>, _: &Numbered| noted.borrow_mut().push((name, one.key));
    KeyedTimers::with_capacity(timers, 16, note).unwrap()
}

/// Notes that it has expired.
struct Note(Noted);

impl Operation for Note {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn completed(self) {}

    fn expired(self) {
        self.0.borrow_mut().push(("operation", 0));
    }
}

fn put(timers: &Numbered, key: u32, delay: u64) {
    let _new = timers.schedule(key, ms(delay), key).unwrap();
}

#[test]
fn one_that_is_dropped_takes_its_timers_along_and_the_next_has_its_own() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let noted = Noted::default();
    let other = numbered(lab.timers(), "other", &noted);
    put(&other, 7, 5);
    for round in 0..3 {
        let first = numbered(lab.timers(), "first", &noted);
        (0..3).for_each(|key| put(&first, key, 5));
        drop(first);
        assert_eq!(lab.timers().len(), 1, "round {round}: they are gone with it");
    }
    let second = numbered(lab.timers(), "second", &noted);
    put(&second, 1, 5);
    let purgatory: Purgatory<u32, Note, ()> = Purgatory::new(lab.timers());
    let watch = purgatory.try_complete_else_watch(Note(Rc::clone(&noted)), ms(5), [1]);
    assert!(matches!(watch, Ok(Watch::Watched(_))));
    lab.advance(ms(10));
    assert_eq!(*noted.borrow(), [("other", 7), ("second", 1), ("operation", 0)]);
    check_law(&lab.counts());
}

#[test]
fn one_whose_handler_drops_it_may_be_followed_at_once_by_another() {
    let mut lab: Lab<()> = Lab::new(builder(1));
    let noted = Noted::default();
    let (held, next) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    let handler = {
        let (held, next, noted) = (Rc::clone(&held), Rc::clone(&next), Rc::clone(&noted));
        move |one: Expired<u32, u32>, timers: &Numbered| {
            noted.borrow_mut().push(("first", one.key));
            drop::<Option<Numbered>>(held.take());
            let another = numbered(timers.timers(), "next", &noted);
            (0..4).for_each(|key| put(&another, key, 0));
            next.set(Some(another));
        }
    };
    let first: Numbered = KeyedTimers::with_capacity(lab.timers(), 16, handler).unwrap();
    (0..4).for_each(|key| put(&first, key, 5));
    let weak: WeakKeyedTimers<u32, u32, (), ()> = first.downgrade();
    held.set(Some(first));
    lab.advance(ms(5));
    lab.settle();
    assert!(weak.upgrade().is_none(), "it is gone, with the three that were due as well");
    let called = [("first", 0), ("next", 0), ("next", 1), ("next", 2), ("next", 3)];
    assert_eq!(*noted.borrow(), called);
    assert_eq!(lab.timers().len(), 0);
    check_law(&lab.counts());
}

#[test]
fn one_that_is_dropped_before_or_after_the_end_of_its_shard_ends_by_the_policy() {
    for policy in [ShutdownPolicy::Fire, ShutdownPolicy::Return, ShutdownPolicy::Drop] {
        let mut lab: Lab<()> = Lab::new(builder(1));
        let (timers, noted) = (lab.timers().clone(), Noted::default());
        let before = numbered(lab.timers(), "before", &noted);
        let after = numbered(lab.timers(), "after", &noted);
        (0..4).for_each(|key| put(&before, key, 5));
        (0..3).for_each(|key| put(&after, key, 5));
        drop(before);
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        let returned = if policy == ShutdownPolicy::Return { 3 } else { 0 };
        assert_eq!(report.returned.len(), returned, "{policy:?}");
        let called = [("after", 0), ("after", 1), ("after", 2)];
        assert_eq!(*noted.borrow(), if fires { &called[..] } else { &[] }, "{policy:?}");
        assert_eq!(after.len(), if fires { 0 } else { 3 }, "{policy:?}");
        let late = numbered(&timers, "late", &noted);
        assert!(late.schedule(1, ms(1), 1).is_err(), "{policy:?}");
        drop((after, late));
        check_law(&lab.counts());
    }
}

#[test]
fn one_that_comes_after_65_536_others_is_called_for_its_timers_too() {
    const OWNERS: u32 = (1 << 16) + 8;
    let mut lab: Lab<()> = Lab::new(builder(1));
    let noted = Noted::default();
    let mut all: Vec<_> = (0..OWNERS).map(|_| numbered(lab.timers(), "one", &noted)).collect();
    for number in [0, 1, (1 << 16) - 1, 1 << 16, OWNERS - 2, OWNERS - 1] {
        put(&all[number as usize], number, 5);
        put(&all[number as usize], number + 1, 9);
    }
    assert!(all[OWNERS as usize - 1].cancel(&OWNERS).is_some());
    drop(all.remove(OWNERS as usize - 2));
    drop(all.remove(1));
    lab.advance(ms(5));
    let called = [0, (1 << 16) - 1, 1 << 16, OWNERS - 1].map(|number| ("one", number));
    assert_eq!(*noted.borrow(), called);
    drop(all);
    assert_eq!(lab.timers().len(), 0);
    check_law(&lab.counts());
}
