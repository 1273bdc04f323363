//! Keys that are inserted, reset and removed, alone and in groups.

use std::cell::Cell;
use std::time::Duration;

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::keyed::KeyedTimers;

use super::{Scene, keys};
use corewheel_test_support::{Lab, builder, check_law, ms, shared};

#[test]
fn delay_that_does_not_fit_never_fires() {
    let mut scene = Scene::new();
    assert_eq!(scene.timers.insert("a".to_owned(), 1, Duration::MAX), Ok(None));
    assert!(scene.timers.reset("a", Duration::MAX));
    assert!(scene.timers.due("a").is_some());
    scene.lab.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(scene.fired(), []);
    assert_eq!(keys(&scene.timers.drain()), ["a"]);
    scene.check_empty();
}

#[test]
fn due_key_can_be_removed_before_it_is_delivered() {
    let mut lab = Lab::<()>::new(builder(1));
    let (fired, count) = shared::<Cell<u32>>();
    let timers = KeyedTimers::<u32, (), u8>::in_groups(lab.timers(), move |_, timers| {
        count.set(count.get() + 1);
        assert_eq!(timers.remove_group(&1).len(), 9, "the other keys are due as well");
    });
    for key in 0..10 {
        assert_eq!(timers.insert_in(1, key, (), ms(5)), Ok(None));
    }
    lab.advance(ms(5));
    assert_eq!((fired.get(), timers.len(), lab.timers().len()), (1, 0, 0));
}

#[test]
fn insert_without_room_returns_key_and_value_and_changes_nothing() {
    let mut scene = Scene::with(builder(1).capacity(2));
    let _ = scene.put_in(1, "a", 5, 1);
    let _ = scene.put("b", 9, 2);
    let c = || "c".to_owned();
    assert_eq!(scene.timers.insert(c(), 3, ms(1)), Err(Refused::Full((c(), 3))));
    assert_eq!(scene.timers.insert_in(7, c(), 3, ms(1)), Err(Refused::Full((7, c(), 3))));
    assert_eq!(scene.timers.remove_group(&7), []);
    assert_eq!(scene.put("b", 5, 4), Some(2), "the key has a place already");
    drop(scene.timers.drain());
    // The shard is full.
    let timers = scene.lab.timers().clone();
    while timers.schedule(ms(10), ()).is_ok() {}
    let at = scene.lab.clock.now();
    assert_eq!(scene.timers.insert_in(7, c(), 3, at), Err(Refused::Full((7, c(), 3))));
    assert!(scene.timers.is_empty());
    scene.lab.advance(ms(10));
    scene.check_empty();
    // The shard is closed.
    let _ = scene.put("d", 5, 1);
    let report = scene.lab.end(ShutdownPolicy::Drop);
    check_law(&report.shards[0].counts);
    for key in ["c", "d"] {
        let refused = scene.timers.insert(key.to_owned(), 3, ms(1));
        assert_eq!(refused, Err(Refused::Closed((key.to_owned(), 3))));
    }
    assert_eq!(scene.timers.remove("d").unwrap().value, 1);
}
