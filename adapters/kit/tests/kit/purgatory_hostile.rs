//! Purgatories with operations that panic, and with keys and wakers that use the purgatory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corewheel::attach::Turn;
use corewheel_kit::purgatory::{Operation, Purgatory};

use crate::purgatory::{Keys, check_stats, operations, watch};
use corewheel_test_support::operation_fn::OperationFn;
use corewheel_test_support::{FAR, Lab, builder, check_law, ms, shared, waker_of};

/// Panics in the method of this name.
struct Bomb(&'static str, Rc<Cell<u32>>);

impl Bomb {
    fn at(&self, place: &str) {
        assert_ne!(self.0, place, "it panics");
    }
}

impl Operation for Bomb {
    fn try_complete(&mut self) -> bool {
        self.at("try");
        self.0 != "expired"
    }

    fn completed(self) {
        self.at("completed");
        self.1.set(self.1.get() + 1);
    }

    fn expired(self) {
        self.at("expired");
        self.1.set(self.1.get() + 100);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.at("drop");
        }
    }
}

#[test]
fn operation_that_panics_is_counted_and_others_end() {
    let (mut lab, purgatory) = operations::<Keys>();
    let (armed, calm) = (Rc::<Cell<bool>>::default(), Rc::<Cell<u32>>::default());
    for bomb in [true, false] {
        let (armed, calm) = (Rc::clone(&armed), Rc::clone(&calm));
        let end = move |_| {
            assert!(!bomb, "it panics when it is complete");
            calm.set(calm.get() + 1);
        };
        watch(&purgatory, FAR, ["k"], move || armed.get(), end);
    }
    armed.set(true);
    assert_eq!(purgatory.check_and_complete("k"), 2);
    assert_eq!(calm.get(), 1, "the other operation is completed");

    let purgatory = Purgatory::<Keys, Bomb>::new(lab.timers());
    let ended = Rc::new(Cell::new(0));
    for place in ["try", "completed", "expired", "drop", "nowhere"] {
        let bomb = Bomb(place, Rc::clone(&ended));
        let watch = purgatory.try_complete_else_watch(bomb, ms(1), ["k"]).unwrap();
        assert_eq!(!watch, ["try", "expired"].contains(&place), "{place}");
    }
    lab.advance(ms(1));
    let stats = purgatory.stats();
    assert_eq!((stats.expired, stats.completed_at_once, stats.accepted), (2, 3, 2));
    check_stats(stats);
    assert_eq!(ended.get(), 100 + 2, "one that panics when it is tried expires");
    assert_eq!(lab.counts().panicked, 1 + 4);
    check_law(&lab.counts());
}

/// A key whose drop uses the purgatory that held it.
#[derive(PartialEq, Eq, Hash)]
struct Nosy(u32);

type NosyPurgatory = Purgatory<Nosy, OperationFn>;

thread_local! {
    static NOSY: RefCell<Option<NosyPurgatory>> = const { RefCell::new(None) };
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Nosy {
    fn drop(&mut self) {
        LOOKS.set(LOOKS.get() + 1);
        let purgatory = NOSY.with_borrow(Option::clone);
        if let Some(purgatory) = purgatory {
            check_stats(purgatory.stats());
            purgatory.check_and_complete("nothing");
        }
    }
}

impl std::borrow::Borrow<str> for Nosy {
    fn borrow(&self) -> &'static str {
        "not this one"
    }
}

#[test]
fn keys_are_dropped_while_nothing_is_borrowed() {
    let mut lab = Lab::<()>::new(builder(1));
    let purgatory: NosyPurgatory = Purgatory::new(lab.timers());
    NOSY.set(Some(purgatory.clone()));
    let watch = |keys: [u32; 3], delay| {
        watch(&purgatory, delay, keys.map(Nosy), || false, |_| {});
    };
    watch([1, 2, 1], ms(1));
    watch([2, 3, 4], ms(2));
    assert_eq!(LOOKS.get(), 2, "the second copies of 1 and 2");
    lab.advance(ms(2));
    assert_eq!(LOOKS.get(), 6);
    watch([1, 2, 3], FAR);
    drop(purgatory.drain());
    assert_eq!(LOOKS.get(), 9);
    NOSY.take();
}

/// A key whose drop cancels all the rest, and puts another one in their place.
#[derive(PartialEq, Eq, Hash)]
struct Greedy(u32);

type GreedyPurgatory = Purgatory<Greedy, OperationFn>;

thread_local! {
    static GREEDY: RefCell<Option<GreedyPurgatory>> = const { RefCell::new(None) };
    static ENDED: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Greedy {
    fn drop(&mut self) {
        let purgatory = GREEDY.take();
        if let Some(purgatory) = purgatory {
            ENDED.set(purgatory.drain().len());
            watch(&purgatory, FAR, [Greedy(9)], || false, |_| {});
        }
    }
}

#[test]
fn key_dropped_by_a_cancel_may_cancel_the_rest() {
    for for_key in [true, false] {
        let lab = Lab::<()>::new(builder(1));
        let purgatory: GreedyPurgatory = Purgatory::new(lab.timers());
        for n in 0..4 {
            watch(&purgatory, FAR, [Greedy(n), Greedy(9)], || false, |_| {});
        }
        GREEDY.set(Some(purgatory.clone()));
        let cancelled =
            if for_key { purgatory.cancel_for_key(&Greedy(9)) } else { purgatory.drain() };
        assert_eq!((cancelled.len(), ENDED.get()), (1, 3), "each comes back once");
        let stats = purgatory.stats();
        assert_eq!((stats.delayed, stats.watched, stats.cancelled), (1, 1, 4));
        check_stats(stats);
        assert_eq!(lab.timers().len(), 1, "the operation that came meanwhile waits");
    }
}

#[test]
fn driver_woken_by_a_watch_may_check_at_once() {
    let (mut lab, purgatory) = operations::<Keys>();
    let (checks, (checked, noted)) = (purgatory.clone(), shared::<Cell<bool>>());
    let check_when_woken = waker_of(move || {
        checks.check_and_complete("k");
        noted.set(true);
    });
    assert_eq!(lab.fall_asleep(&check_when_woken), Turn::Idle);
    let (tries, count) = shared::<Cell<u32>>();
    let is_complete = move || {
        count.set(count.get() + 1);
        false
    };
    watch(&purgatory, ms(1), ["k"], is_complete, |_| {});
    assert!(checked.get());
    assert_eq!(tries.get(), 2, "the check in between is not missed");
}
