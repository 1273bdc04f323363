//! Values that are lent to a closure, and closures that do what they must not.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use corewheel_kit::keyed::KeyedTimers;

use super::{Scene, named, numbered};
use corewheel_test_support::{Eager, FAR, Lab, POLICIES, builder, check_law, ms, shared};

/// The message of a panic in `run`.
#[track_caller]
fn panic_of<R>(run: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else { panic!("it does not panic") };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap()
}

#[test]
fn with_lends_the_value_where_it_lies() {
    let mut scene = Scene::new();
    let _ = scene.put("a", 5, 1);
    let due = scene.timers.due("a");
    let before = scene.timers.with("a", |value| std::mem::replace(value, 7));
    assert_eq!((before, scene.timers.due("a")), (Some(1), due), "the deadline stays");
    assert_eq!(scene.timers.with("b", |_| panic!("there is no such key")), None::<()>);
    scene.lab.advance(ms(5));
    assert_eq!(scene.fired(), named(&[("a", 7)]));
    assert_eq!(scene.timers.with("a", |value| *value), None);
    scene.check_empty();
}

#[test]
fn values_need_not_be_clone_and_are_lent_within_the_handler() {
    struct Plain(u32);
    let mut lab = Lab::<()>::new(builder(1));
    let (sum, noted) = shared::<Cell<u32>>();
    let timers = KeyedTimers::<u32, Plain>::new(lab.timers(), move |expired, timers| {
        let other = timers.with(&2, |value| value.0).unwrap_or_default();
        timers.with(&2, |value| value.0 += 1);
        noted.set(noted.get() + expired.value.0 + other);
    });
    assert!(timers.insert(1, Plain(10), ms(1)).is_ok());
    assert!(timers.insert(2, Plain(100), ms(2)).is_ok());
    lab.advance(ms(1));
    assert_eq!(sum.get(), 110);
    lab.advance(ms(1));
    assert_eq!((sum.get(), lab.counts().panicked), (211, 0));
}

#[test]
fn method_that_is_called_by_a_closure_panics_and_changes_nothing() {
    type Call = (&'static str, fn(&KeyedTimers<u32, u32, u32>));
    let calls: [Call; 10] = [
        ("insert", |timers| _ = timers.insert(9, 9, FAR)),
        ("insert of a known key", |timers| _ = timers.insert(1, 9, FAR)),
        ("insert_in", |timers| _ = timers.insert_in(9, 1, 9, FAR)),
        ("reset", |timers| assert!(timers.reset(&1, FAR))),
        ("remove", |timers| _ = timers.remove(&1)),
        ("remove_group", |timers| _ = timers.remove_group(&1)),
        ("drain", |timers| _ = timers.drain()),
        ("with", |timers| _ = timers.with(&1, |value| *value = 9)),
        ("due", |timers| _ = timers.due(&1)),
        ("len", |timers| assert_eq!(timers.len(), 2)),
    ];
    let mut lab = Lab::<()>::new(builder(1));
    let (timers, fired) = numbered(&lab);
    assert_eq!(timers.insert_in(1, 1, 10, ms(5)), Ok(None));
    assert_eq!(timers.insert(2, 20, ms(6)), Ok(None));
    let now = lab.clock.now();
    for (name, call) in calls {
        let message = panic_of(|| timers.with(&1, |_| call(&timers)));
        assert!(message.contains("lent"), "{name}: {message}");
        // A closure that catches the panic goes on with its value.
        let value = timers.with(&2, |value| {
            let message = panic_of(|| call(&timers));
            assert!(message.contains("lent"), "{name}: {message}");
            *value
        });
        assert_eq!(value, Some(20), "{name}");
        assert_eq!((timers.len(), lab.timers().len()), (2, 2), "{name}");
        assert_eq!(timers.due(&1), Some(now + ms(5)), "{name}");
    }
    let text = timers.with(&1, |_| format!("{timers:?}")).unwrap();
    assert_eq!(text, "KeyedTimers { .. }");
    lab.advance(ms(6));
    assert_eq!(fired.take(), [(1, 10), (2, 20)]);
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn closure_that_panics_leaves_its_value_and_its_timer() {
    let mut scene = Scene::new();
    let _ = scene.put("a", 5, 1);
    let message = panic_of(|| {
        scene.timers.with("a", |value| {
            *value = 2;
            panic!("a closure panics");
        })
    });
    assert_eq!(message, "a closure panics");
    assert_eq!(scene.timers.with("a", |value| *value), Some(2));
    assert!(scene.timers.reset("a", ms(3)));
    scene.lab.advance(ms(3));
    assert_eq!(scene.fired(), named(&[("a", 2)]));
    scene.check_empty();
}

#[test]
fn closure_may_use_other_timers_of_the_shard() {
    let mut lab = Lab::<()>::new(builder(1));
    let first = KeyedTimers::<u32, u32>::new(lab.timers(), |_, _| {});
    let second = KeyedTimers::<u32, u32>::new(lab.timers(), |_, _| {});
    assert_eq!(first.insert(1, 10, FAR), Ok(None));
    let timers = lab.timers().clone();
    first.with(&1, |value| {
        assert_eq!(second.insert(1, *value, ms(1)), Ok(None));
        assert!(timers.schedule(ms(1), ()).is_ok());
        assert_eq!(second.with(&1, |copy| *copy), Some(*value));
    });
    lab.advance(ms(1));
    assert_eq!((first.len(), second.len(), lab.fired().len()), (1, 0, 1));
}

#[test]
fn hash_or_eq_that_uses_the_timers_panics_and_changes_nothing() {
    thread_local! {
        static TIMERS: RefCell<Option<KeyedTimers<Rude, u32>>> = const { RefCell::new(None) };
    }
    #[derive(Debug)]
    struct Rude(u32);
    impl PartialEq for Rude {
        fn eq(&self, other: &Self) -> bool {
            if other.0 != self.0 || self.0 == 66 {
                let timers = TIMERS.with_borrow(Clone::clone).unwrap();
                assert!(!timers.is_empty());
            }
            self.0 == other.0
        }
    }
    impl Eq for Rude {}
    impl std::hash::Hash for Rude {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            state.write_u8(0);
        }
    }
    let lab = Lab::<()>::new(builder(1));
    let timers = KeyedTimers::<Rude, u32>::new(lab.timers(), |_, _| {});
    TIMERS.set(Some(timers.clone()));
    assert_eq!(timers.insert(Rude(1), 1, FAR), Ok(None));
    let calls: [fn(&KeyedTimers<Rude, u32>); 3] = [
        |timers| _ = timers.insert(Rude(66), 2, FAR),
        |timers| _ = timers.remove(&Rude(66)),
        |timers| _ = timers.with(&Rude(66), |value| *value),
    ];
    for call in calls {
        assert!(panic_of(|| call(&timers)).contains("lent"));
        assert_eq!((timers.len(), lab.timers().len()), (1, 1));
    }
    assert!(timers.remove(&Rude(1)).is_some());
    TIMERS.take();
}

#[test]
fn timer_that_expires_while_a_value_is_lent_fires_after_it() {
    for panics in [false, true] {
        let Scene { lab, timers, fired } = Scene::with(builder(1).capacity(64));
        let (shard, clock) = (lab.timers().clone(), lab.clock.clone());
        for (key, delay) in [("a", 5), ("b", 5), ("c", 6), ("d", 500)] {
            assert_eq!(timers.insert(key.to_owned(), 1, ms(delay)), Ok(None));
        }
        let eager = Eager::fall_asleep(lab);
        let start = clock.now();
        clock.advance(ms(6));
        let visit = |value: &mut u32| {
            // Earlier than what the driver sleeps for, so it is woken and takes its turns at once.
            assert!(shard.schedule(start, ()).is_ok());
            // The timers of three keys, and the one that was just scheduled.
            assert_eq!(eager.counts().fired, 4);
            assert!(fired.borrow().is_empty(), "no handler runs while a value is lent");
            *value = 2;
            assert!(!panics, "a closure panics");
            while shard.schedule(FAR, ()).is_ok() {}
        };
        if panics {
            assert_eq!(panic_of(|| timers.with("a", visit)), "a closure panics");
        } else {
            assert_eq!(timers.with("a", visit), Some(()));
        }
        let mut lab = eager.into_lab();
        assert_eq!(fired.take(), named(&[("a", 2), ("b", 1), ("c", 1)]));
        lab.settle();
        assert_eq!((timers.len(), lab.counts().panicked), (1, 0));
        check_law(&lab.counts());
    }
}

#[test]
fn shutdown_while_a_value_is_lent_keeps_the_entries() {
    for policy in POLICIES {
        let Scene { mut lab, timers, fired } = Scene::new();
        assert_eq!(timers.insert("a".to_owned(), 1, ms(5)), Ok(None));
        assert_eq!(timers.insert("b".to_owned(), 2, FAR), Ok(None));
        let report = timers.with("a", |_| lab.end(policy)).unwrap();
        check_law(&report.shards[0].counts);
        let counts = report.shards[0].counts;
        assert_eq!((counts.panicked, counts.pending), (0, 0), "{policy:?}");
        drop(report);
        assert_eq!(fired.take(), [], "{policy:?}");
        assert!(!timers.reset("a", ms(1)), "{policy:?}");
        let left: Vec<_> = timers.drain().into_iter().map(|entry| entry.value).collect();
        assert_eq!(left, [1, 2], "{policy:?}");
    }
}
