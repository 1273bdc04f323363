//! Scaled timeouts on a full shard, and with handlers and wakers that panic or use the timeouts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use corewheel::attach::Turn;
use corewheel::settings::Scale;
use corewheel::{Refused, ShutdownPolicy, Timers};
use corewheel_kit::scaled::{ScaledTimeout, ScaledTimeouts};

use crate::scaled::{
    check_empty, class_counts, known, lab, of_capacity, of_class, open, scale, timeouts,
};
use corewheel_test_support::{FAR, Guard, Lab, check_law, ms, shared, ticks_of, waker_of};

#[test]
fn refused_start_returns_the_value() {
    let mut lab = Lab::<()>::new(of_capacity(2));
    assert_eq!(lab.timers().capacity(), 2);
    let (few, _) = timeouts(&lab, 1, 5);
    // A shard that is full has room for timeouts, which need no timer of it.
    while lab.timers().schedule(FAR, ()).is_ok() {}
    few.start("a").unwrap();
    few.start("b").unwrap();
    let refused = few.start("c").unwrap_err();
    assert!(matches!(refused, Refused::Full("c")), "{refused}");
    lab.settle();
    let counts = class_counts(&lab);
    assert_eq!((counts.scheduled, counts.refused), (2, 1));
    few.drain();
    few.start("d").unwrap();
    lab.end(ShutdownPolicy::Drop);
    let refused = few.start("e").unwrap_err();
    assert!(matches!(refused, Refused::Closed("e")), "{refused}");
    assert_eq!(class_counts(&lab).refused, 1, "that was not for want of room");
}

#[test]
fn handler_may_start_reset_cancel_and_drain() {
    let mut lab = lab();
    let keys: Rc<RefCell<BTreeMap<&str, ScaledTimeout>>> = Rc::default();
    let log = Rc::new(RefCell::new(Vec::new()));
    let (known, noted) = (Rc::clone(&keys), Rc::clone(&log));
    let timers = lab.timers().clone();
    let handler = move |name: &'static str, timeouts: &ScaledTimeouts<&str>| {
        noted.borrow_mut().push(format!("{name} at {}", ticks_of(&timers)));
        let key = |name| known.borrow()[name];
        match name {
            "a" => assert_eq!(timeouts.cancel(key("b")), Some("b")),
            "c" => assert!(timeouts.reset(key("d"))),
            "e" => {
                assert!(!timeouts.reset(key("e")), "it has ended");
                timeouts.start("f").unwrap();
                timers.set_scale(scale(0.5));
            }
            "f" => {
                timers.set_scale(Scale::ONE);
                panic!("on purpose");
            }
            "d" => assert_eq!(timeouts.drain(), ["f", "g"]),
            _ => unreachable!("{name}"),
        }
    };
    let timeouts = ScaledTimeouts::new(&of_class(&lab), ms(10), ms(20), handler).unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        keys.borrow_mut().insert(name, timeouts.start(name).unwrap());
    }
    lab.advance(ms(20));
    assert_eq!(log.take(), ["a at 20", "c at 20", "e at 20"]);
    // Both were started at 20, and last for 15 by now.
    lab.advance(ms(14));
    assert_eq!(log.take(), [""; 0]);
    timeouts.start("g").unwrap();
    lab.advance(ms(1));
    assert_eq!(log.take(), ["d at 35"], "it ends all others");
    let f = timeouts.start("f").unwrap();
    lab.advance(ms(15));
    assert_eq!(log.take(), ["f at 50"]);
    assert!(!timeouts.reset(f));
    assert_eq!((lab.timers().scale(), lab.counts().panicked), (Scale::ONE, 1));
    check_empty(&mut lab, &timeouts);
}

#[test]
fn drop_of_last_clone_in_the_handler_drops_all_values() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let (last, mine) = shared::<RefCell<Option<ScaledTimeouts<Guard>>>>();
    let handler = move |_, _: &_| drop(mine.take());
    let timeouts = ScaledTimeouts::new(&of_class(&lab), ms(1), ms(2), handler).unwrap();
    (0..3).for_each(|_| assert!(timeouts.start(guard.clone()).is_ok()));
    last.replace(Some(timeouts.clone()));
    drop(timeouts);
    lab.advance(ms(2));
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
    assert!(last.borrow().is_none());
    assert_eq!((lab.timers().len(), lab.turn()), (0, Turn::Idle));
    let counts = lab.counts();
    assert_eq!((known(&lab.service), counts.panicked), ((0, 1), 0));
    check_law(&counts);
}

#[test]
fn driver_woken_by_a_start_may_start_another_set_the_scale_or_drain_at_once() {
    type Then = fn(&Timers<()>, &ScaledTimeouts<u32>);
    let rows: [(Then, &[(u32, u64)]); 3] = [
        (|_, timeouts| assert!(timeouts.start(2).is_ok()), &[(1, 60), (2, 60)]),
        (|timers, _| timers.set_scale(Scale::ZERO), &[(1, 10)]),
        (|_, timeouts| assert_eq!(timeouts.drain(), [1]), &[]),
    ];
    for (number, (then, expected)) in rows.into_iter().enumerate() {
        let (mut lab, timeouts, ends) = open(10, 60);
        let (timers, known) = (lab.timers().clone(), timeouts.clone());
        let waker = waker_of(move || then(&timers, &known));
        assert_eq!(lab.fall_asleep(&waker), Turn::Idle, "row {number}");
        timeouts.start(1).unwrap();
        assert_eq!(timeouts.len(), [2, 1, 0][number], "row {number}");
        lab.settle();
        lab.advance_ticks(70);
        assert_eq!(ends.take(), expected, "row {number}");
        check_empty(&mut lab, &timeouts);
    }
}

#[test]
fn bad_ranges_and_scales_are_refused_by_field() {
    let lab = lab();
    let build = |min, max| {
        let built = ScaledTimeouts::new(lab.timers(), ms(min), ms(max), |(), _| {});
        built.map(drop).map_err(|error| (error.field(), error.to_string()))
    };
    let (field, message) = build(6, 5).unwrap_err();
    assert_eq!(field, "min");
    assert!(message.contains("6ms") && message.contains("5ms"), "{message}");
    assert_eq!(build(0, 0).unwrap_err().0, "max");
    assert!(build(0, 1).is_ok());
    for factor in [f64::NAN, -0.01, 1.01, f64::INFINITY] {
        assert_eq!(Scale::new(factor).unwrap_err().field(), "scale");
    }
}
