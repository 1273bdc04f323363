//! Keys that are inserted, reset and removed, alone and in groups.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::TimersExt;

use super::{Scene, keys, named};
use crate::support::{Lab, builder, check_law, ms};

#[test]
fn handler_is_called_with_key_and_value_at_the_deadline() {
    let mut scene = Scene::new();
    assert_eq!(scene.put("b", 7, 1), None);
    assert_eq!(scene.put("a", 5, 2), None);
    assert_eq!(scene.put("c", 7, 3), None);
    let at = scene.lab.clock.now();
    assert_eq!(scene.timers.insert("past".to_owned(), 4, at), Ok(None));
    assert_eq!(scene.timers.len(), 4);
    scene.lab.settle();
    assert_eq!(scene.fired(), named(&[("past", 4)]));
    scene.lab.advance(Duration::from_nanos(4_999_999));
    assert_eq!(scene.fired(), []);
    scene.lab.advance(Duration::from_nanos(1));
    assert_eq!(scene.fired(), named(&[("a", 2)]));
    scene.lab.advance(ms(2));
    assert_eq!(scene.fired(), named(&[("b", 1), ("c", 3)]));
    scene.check_empty();
}

#[test]
fn insert_of_a_known_key_keeps_one_timer_and_returns_the_entry_before() {
    let mut scene = Scene::new();
    assert_eq!(scene.put("a", 5, 1), None);
    assert_eq!(scene.put("a", 9, 2), Some(1));
    assert_eq!(scene.put("a", 7, 3), Some(2));
    assert_eq!((scene.timers.len(), scene.lab.timers().len()), (1, 1));
    assert_eq!(scene.timers.due("a"), Some(scene.lab.clock.now() + ms(7)));
    scene.lab.advance(ms(6));
    assert_eq!(scene.fired(), []);
    scene.lab.advance(ms(10));
    assert_eq!(scene.fired(), named(&[("a", 3)]));
    assert_eq!(scene.put("a", 5, 4), None, "the key is free again");
    scene.lab.advance(ms(5));
    assert_eq!(scene.fired(), named(&[("a", 4)]));
    scene.check_empty();
}

#[test]
fn borrowed_key_resets_and_removes_its_entry() {
    let mut scene = Scene::new();
    let start = scene.lab.clock.now();
    let _ = scene.put("a", 5, 1);
    let _ = scene.put("b", 5, 2);
    assert!(scene.timers.reset("a", ms(20)));
    assert!(scene.timers.reset("b", start + ms(3)));
    assert!(!scene.timers.reset("c", ms(20)) && !scene.timers.contains("c"));
    assert_eq!((scene.timers.due("c"), scene.timers.remove("c")), (None, None));
    scene.lab.advance(ms(19));
    assert_eq!(scene.fired(), named(&[("b", 2)]));
    let ended = scene.timers.remove("a").unwrap();
    assert_eq!((&*ended.key, ended.value, ended.deadline), ("a", 1, start + ms(20)));
    assert_eq!(scene.timers.remove("a"), None);
    scene.check_empty();
}

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
    let fired = Rc::new(Cell::new(0));
    let count = Rc::clone(&fired);
    let timers = lab.timers().keyed_in_groups::<u32, (), u8>(move |_, timers| {
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
fn remove_group_takes_its_keys_in_order_and_leaves_the_others() {
    let mut scene = Scene::new();
    for (number, key) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        assert_eq!(scene.put_in(1, key, 50 - number as u64, 1), None);
    }
    assert_eq!(scene.put_in(2, "f", 30, 2), None);
    assert_eq!(scene.put("g", 30, 3), None);
    assert_eq!((scene.timers.group_len(&1), scene.timers.groups()), (5, 2));
    // A key is removed, one is reset, one joins another group, one leaves, one is inserted again.
    assert_eq!(scene.timers.remove("c").unwrap().value, 1);
    assert!(scene.timers.reset("d", ms(90)));
    assert_eq!(scene.put_in(2, "a", 20, 4), Some(1));
    assert_eq!(scene.put("e", 20, 5), Some(1));
    assert_eq!(scene.put_in(1, "b", 20, 6), Some(1));
    let _ = scene.put_in(1, "h", 20, 7);
    let ended = scene.timers.remove_group(&1);
    assert_eq!(keys(&ended), ["b", "d", "h"]);
    assert_eq!(ended[1].deadline, scene.lab.clock.now() + ms(90));
    assert_eq!((scene.timers.group_len(&1), scene.timers.groups()), (0, 1));
    assert_eq!(scene.timers.remove_group(&1), []);
    assert_eq!(scene.timers.remove_group(&9), []);
    assert_eq!((scene.timers.len(), scene.lab.timers().len()), (4, 4));
    scene.lab.advance(ms(20));
    assert_eq!(scene.fired(), named(&[("a", 4), ("e", 5)]));
    assert_eq!(scene.timers.group_len(&2), 1, "a key that has fired has left its group");
    scene.lab.advance(ms(10));
    assert_eq!(scene.fired(), named(&[("f", 2), ("g", 3)]));
    scene.check_empty();
}

#[test]
fn insert_without_room_returns_key_and_value_and_changes_nothing() {
    let mut scene = Scene::with(builder(1).capacity(64), 2);
    assert_eq!(scene.timers.capacity(), 2);
    let _ = scene.put_in(1, "a", 5, 1);
    let _ = scene.put("b", 9, 2);
    let refused = scene.timers.insert("c".to_owned(), 3, ms(1));
    assert_eq!(refused, Err(Refused::Full(("c".to_owned(), 3))));
    let refused = scene.timers.insert_in(7, "c".to_owned(), 3, ms(1));
    assert_eq!(refused, Err(Refused::Full((7, "c".to_owned(), 3))));
    assert_eq!(scene.timers.groups(), 1);
    assert_eq!(scene.put("b", 5, 4), Some(2), "the key has a place already");
    scene.timers.clear();
    // The shard is full.
    let timers = scene.lab.timers().clone();
    while timers.schedule(ms(10), ()).is_ok() {}
    let at = scene.lab.clock.now();
    let refused = scene.timers.insert_in(7, "c".to_owned(), 3, at);
    assert_eq!(refused, Err(Refused::Full((7, "c".to_owned(), 3))));
    assert_eq!((scene.timers.len(), scene.timers.groups()), (0, 0));
    scene.lab.advance(ms(10));
    scene.check_empty();
    // The shard is closed.
    let _ = scene.put("d", 5, 1);
    let report = scene.lab.end(ShutdownPolicy::Drop);
    check_law(&report.counts);
    for key in ["c", "d"] {
        let refused = scene.timers.insert(key.to_owned(), 3, ms(1));
        assert_eq!(refused, Err(Refused::Closed((key.to_owned(), 3))));
    }
    assert_eq!(scene.timers.remove("d").unwrap().value, 1);
}

#[test]
fn capacity_out_of_range_is_refused_by_name() {
    let lab = Lab::<()>::new(builder(1));
    for capacity in [0, (1 << 30) + 1, u32::MAX] {
        let keyed = lab.timers().keyed_in_groups_with_capacity::<u8, u8, u8>(capacity, |_, _| {});
        let error = keyed.unwrap_err();
        assert_eq!(error.field(), "capacity");
        let message = error.to_string();
        assert!(message.contains(&capacity.to_string()), "{message}");
        assert!(message.contains("between 1 and"), "{message}");
    }
}

#[test]
fn capacity_without_memory_is_refused() {
    type Huge = [u64; 1 << 20];
    let lab = Lab::<()>::new(builder(1));
    let keyed = lab.timers().keyed_with_capacity::<u8, Huge>(1 << 30, |_, _| {});
    let error = keyed.unwrap_err();
    assert_eq!(error.field(), "capacity");
    assert!(error.to_string().contains("memory"), "{error}");
}
