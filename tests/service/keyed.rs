//! Timers that are known by keys, alone and in groups.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::{
    Expired, Fired, InsertError, Inserted, KeyedTimers, LoopSleep, ShutdownPolicy, Timers,
    WeakKeyedTimers,
};
use fastrand::Rng;

use crate::support::{
    FAR, Host, Lab, PATIENCE, Running, SHARD, builder, check_law, ms, ticks_of, wait_until,
};

/// By strings, in groups with numbers.
type Named = KeyedTimers<String, u32, u32, ()>;

struct Scene {
    lab: Lab<()>,
    timers: Named,
    fired: Rc<RefCell<Vec<(String, u32)>>>,
}

impl Scene {
    fn new() -> Self {
        Self::with(builder(1), 1_000)
    }

    fn with(builder: corewheel::TimerServiceBuilder, capacity: u32) -> Self {
        let lab = Lab::new(builder);
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let handler = move |one: Expired<u32, String>, timers: &Named| {
            assert!(one.deadline <= timers.timers().now(), "it is early");
            assert!(!timers.contains(&one.key), "its key is free");
            noted.borrow_mut().push((one.key, one.value));
        };
        let timers = KeyedTimers::with_capacity(lab.timers(), capacity, handler).unwrap();
        Self { lab, timers, fired }
    }

    fn put(&self, key: &str, delay: u64, value: u32) -> Inserted<u32> {
        self.timers.schedule(key.to_owned(), ms(delay), value).unwrap()
    }

    fn put_in(&self, group: u32, key: &str, delay: u64, value: u32) -> Inserted<u32> {
        self.timers.schedule_in(group, key.to_owned(), ms(delay), value).unwrap()
    }

    fn fired(&self) -> Vec<(String, u32)> {
        self.fired.take()
    }

    #[track_caller]
    fn check_empty(&mut self) {
        assert_eq!((self.timers.len(), self.timers.groups()), (0, 0));
        assert!(self.timers.is_empty());
        assert_eq!(self.lab.timers().len(), 0, "no timer is left");
        self.lab.advance(FAR);
        assert_eq!(self.fired(), []);
        check_law(&self.lab.counts());
    }
}

fn named(list: &[(&str, u32)]) -> Vec<(String, u32)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

fn keys(ended: &[Expired<u32, String>]) -> Vec<&str> {
    ended.iter().map(|ended| &*ended.key).collect()
}

#[test]
fn the_handler_is_given_key_and_value_when_the_time_has_come() {
    let mut scene = Scene::new();
    assert_eq!(scene.put("b", 7, 1), Inserted::New);
    assert_eq!(scene.put("a", 5, 2), Inserted::New);
    assert_eq!(scene.put("c", 7, 3), Inserted::New);
    let at = scene.lab.clock.now();
    assert_eq!(scene.timers.schedule_at("past".to_owned(), at, 4), Ok(Inserted::New));
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
fn a_key_that_is_scheduled_again_keeps_one_timer_and_returns_what_it_held() {
    let mut scene = Scene::new();
    assert_eq!(scene.put("a", 5, 1), Inserted::New);
    assert_eq!(scene.put("a", 9, 2), Inserted::Replaced(1));
    assert_eq!(scene.put("a", 7, 3), Inserted::Replaced(2));
    assert_eq!((scene.timers.len(), scene.lab.timers().len()), (1, 1));
    assert_eq!(scene.timers.deadline("a"), Some(scene.lab.clock.now() + ms(7)));
    scene.lab.advance(ms(6));
    assert_eq!(scene.fired(), []);
    scene.lab.advance(ms(10));
    assert_eq!(scene.fired(), named(&[("a", 3)]));
    assert_eq!(scene.put("a", 5, 4), Inserted::New, "it is free again");
    scene.lab.advance(ms(5));
    assert_eq!(scene.fired(), named(&[("a", 4)]));
    scene.check_empty();
}

#[test]
fn a_key_moves_and_ends_its_timer_by_what_it_can_be_borrowed_as() {
    let mut scene = Scene::new();
    let start = scene.lab.clock.now();
    let _ = scene.put("a", 5, 1);
    let _ = scene.put("b", 5, 2);
    assert!(scene.timers.reset("a", ms(20)));
    assert!(scene.timers.reset_at("b", start + ms(3)));
    assert!(!scene.timers.reset("c", ms(20)) && !scene.timers.contains("c"));
    assert_eq!((scene.timers.deadline("c"), scene.timers.cancel("c")), (None, None));
    scene.lab.advance(ms(19));
    assert_eq!(scene.fired(), named(&[("b", 2)]));
    let ended = scene.timers.cancel("a").unwrap();
    assert_eq!((&*ended.key, ended.value, ended.deadline), ("a", 1, start + ms(20)));
    assert_eq!(scene.timers.cancel("a"), None);
    scene.check_empty();
}

#[test]
fn a_delay_that_does_not_fit_means_never_and_does_not_panic() {
    let mut scene = Scene::new();
    assert_eq!(scene.timers.schedule("a".to_owned(), Duration::MAX, 1), Ok(Inserted::New));
    assert!(scene.timers.reset("a", Duration::MAX));
    assert!(scene.timers.deadline("a").is_some());
    scene.lab.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(scene.fired(), []);
    assert_eq!(keys(&scene.timers.drain()), ["a"]);
    scene.check_empty();
}

#[test]
fn one_that_is_due_and_not_delivered_can_still_be_cancelled() {
    let lab = Lab::<()>::new(builder(1));
    let fired = Rc::new(Cell::new(0));
    let count = Rc::clone(&fired);
    let timers: KeyedTimers<u32, (), u8, ()> = KeyedTimers::new(
        lab.timers(),
        move |_: Expired<(), u32>, timers: &KeyedTimers<u32, (), u8, ()>| {
            count.set(count.get() + 1);
            assert_eq!(timers.cancel_group(&1).len(), 9, "the others are due as well");
        },
    );
    for key in 0..10 {
        assert_eq!(timers.schedule_in(1, key, ms(5), ()), Ok(Inserted::New));
    }
    let mut lab = lab;
    lab.advance(ms(5));
    assert_eq!((fired.get(), timers.len(), lab.timers().len()), (1, 0, 0));
}

#[test]
fn a_group_ends_at_once_in_the_order_in_which_its_keys_came_and_others_stay() {
    let mut scene = Scene::new();
    for (number, key) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        assert_eq!(scene.put_in(1, key, 50 - number as u64, 1), Inserted::New);
    }
    assert_eq!(scene.put_in(2, "f", 30, 2), Inserted::New);
    assert_eq!(scene.put("g", 30, 3), Inserted::New);
    assert_eq!((scene.timers.group_len(&1), scene.timers.groups()), (5, 2));
    // One is cancelled, one moves, one goes to another group, one leaves, one comes again.
    assert_eq!(scene.timers.cancel("c").unwrap().value, 1);
    assert!(scene.timers.reset("d", ms(90)));
    assert_eq!(scene.put_in(2, "a", 20, 4), Inserted::Replaced(1));
    assert_eq!(scene.put("e", 20, 5), Inserted::Replaced(1));
    assert_eq!(scene.put_in(1, "b", 20, 6), Inserted::Replaced(1));
    let _ = scene.put_in(1, "h", 20, 7);
    let ended = scene.timers.cancel_group(&1);
    assert_eq!(keys(&ended), ["b", "d", "h"]);
    assert_eq!(ended[1].deadline, scene.lab.clock.now() + ms(90));
    assert_eq!((scene.timers.group_len(&1), scene.timers.groups()), (0, 1));
    assert_eq!(scene.timers.cancel_group(&1), []);
    assert_eq!(scene.timers.cancel_group(&9), []);
    assert_eq!((scene.timers.len(), scene.lab.timers().len()), (4, 4));
    scene.lab.advance(ms(20));
    assert_eq!(scene.fired(), named(&[("a", 4), ("e", 5)]));
    assert_eq!(scene.timers.group_len(&2), 1, "what has fired is in no group");
    scene.lab.advance(ms(10));
    assert_eq!(scene.fired(), named(&[("f", 2), ("g", 3)]));
    scene.check_empty();
}

#[test]
fn what_does_not_fit_comes_back_and_changes_nothing() {
    let mut scene = Scene::with(builder(1).capacity(64), 2);
    assert_eq!(scene.timers.capacity(), 2);
    let _ = scene.put_in(1, "a", 5, 1);
    let _ = scene.put("b", 9, 2);
    let refused = scene.timers.schedule("c".to_owned(), ms(1), 3);
    assert_eq!(refused, Err(InsertError::Full(("c".to_owned(), 3))));
    let refused = scene.timers.schedule_in(7, "c".to_owned(), ms(1), 3);
    assert_eq!(refused, Err(InsertError::Full((7, "c".to_owned(), 3))));
    assert_eq!(scene.timers.groups(), 1);
    assert_eq!(scene.put("b", 5, 4), Inserted::Replaced(2), "it has a place already");
    scene.timers.clear();
    // No timer to be had.
    let timers = scene.lab.timers().clone();
    while timers.schedule(ms(10), ()).is_ok() {}
    let at = scene.lab.clock.now();
    let refused = scene.timers.schedule_in_at(7, "c".to_owned(), at, 3);
    assert_eq!(refused, Err(InsertError::Full((7, "c".to_owned(), 3))));
    assert_eq!((scene.timers.len(), scene.timers.groups()), (0, 0));
    scene.lab.advance(ms(10));
    scene.check_empty();
    // Closed.
    let _ = scene.put("d", 5, 1);
    let report = scene.lab.end(ShutdownPolicy::Drop);
    check_law(&report.counts);
    for key in ["c", "d"] {
        let refused = scene.timers.schedule(key.to_owned(), ms(1), 3);
        assert_eq!(refused, Err(InsertError::Closed((key.to_owned(), 3))));
    }
    assert_eq!(scene.timers.cancel("d").unwrap().value, 1);
}

#[test]
fn a_capacity_that_makes_no_sense_is_refused_by_its_name() {
    let lab = Lab::<()>::new(builder(1));
    for capacity in [0, (1 << 30) + 1, u32::MAX] {
        let handler = |_: Expired<u8, u8>, _: &KeyedTimers<u8, u8, u8, ()>| {};
        let error = KeyedTimers::with_capacity(lab.timers(), capacity, handler).unwrap_err();
        assert_eq!(error.field(), "capacity");
        let message = error.to_string();
        assert!(message.contains(&capacity.to_string()), "{message}");
        assert!(message.contains("between 1 and"), "{message}");
    }
}

#[test]
fn a_capacity_for_which_there_is_no_memory_is_refused() {
    type Huge = KeyedTimers<u8, [u64; 1 << 20], u8, ()>;
    let lab = Lab::<()>::new(builder(1));
    let error = Huge::with_capacity(lab.timers(), 1 << 30, |_, _| {}).unwrap_err();
    assert_eq!(error.field(), "capacity");
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn the_handler_may_use_the_timers_in_all_ways_and_drop_them() {
    type Mine = KeyedTimers<u32, u32, u32, ()>;
    let mut lab = Lab::<()>::new(builder(1));
    let kept: Rc<RefCell<Option<Mine>>> = Rc::default();
    let (last, calls) = (Rc::clone(&kept), Rc::new(Cell::new(0)));
    let count = Rc::clone(&calls);
    let handler = move |one: Expired<u32, u32>, timers: &Mine| {
        count.set(count.get() + 1);
        match one.value {
            // Again under the same key, and at once under another.
            0 => {
                assert_eq!(timers.schedule(one.key, ms(5), 1), Ok(Inserted::New));
                assert_eq!(timers.schedule_in(9, 100, Duration::ZERO, 2), Ok(Inserted::New));
                assert!(timers.reset(&one.key, ms(6)));
                assert_eq!(timers.schedule(one.key, ms(6), 1), Ok(Inserted::Replaced(1)));
            }
            1 => {
                timers.clear();
                assert_eq!(timers.schedule(7, FAR, 3), Ok(Inserted::New));
                drop(last.take());
            }
            _ => assert_eq!(timers.group_len(&9), 0),
        }
    };
    let timers: Mine = KeyedTimers::new(lab.timers(), handler);
    let weak = timers.downgrade();
    assert_eq!(timers.schedule(1, ms(1), 0), Ok(Inserted::New));
    kept.replace(Some(timers));
    lab.advance(ms(1));
    assert_eq!(calls.get(), 2, "what is scheduled for now fires in the next turn");
    lab.advance(ms(5));
    assert_eq!(calls.get(), 2);
    lab.advance(ms(1));
    assert_eq!(calls.get(), 3);
    assert!(weak.clone().upgrade().is_none());
    assert_eq!(lab.timers().len(), 0, "and their timers are gone with them");
    assert_eq!(lab.counts().panicked, 0);
    check_law(&lab.counts());
}

#[test]
fn a_handler_that_panics_is_counted_and_called_for_the_next() {
    let mut lab = Lab::<()>::new(builder(1));
    let calm = Rc::new(Cell::new(0));
    let count = Rc::clone(&calm);
    let handler = move |one: Expired<u32, u32>, _: &KeyedTimers<u32, u32, (), ()>| {
        assert_ne!(one.key % 2, 0, "it panics");
        count.set(count.get() + 1);
    };
    let timers = KeyedTimers::new(lab.timers(), handler);
    for key in 0..10 {
        assert_eq!(timers.schedule(key, ms(1), key), Ok(Inserted::New));
    }
    lab.advance(ms(1));
    assert_eq!((calm.get(), lab.counts().panicked, timers.len()), (5, 5, 0));
    check_law(&lab.counts());
}

/// A key, value or name whose drop uses the timers that held it, and which is never cloned.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Nosy(u32);

type NosyTimers = KeyedTimers<Nosy, Nosy, Nosy, ()>;

thread_local! {
    static NOSY: RefCell<Option<WeakKeyedTimers<Nosy, Nosy, Nosy, ()>>> =
        const { RefCell::new(None) };
    static DROPS: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Nosy {
    fn drop(&mut self) {
        DROPS.set(DROPS.get() + 1);
        assert!(self.0 != 66, "it panics");
        let timers = NOSY.with_borrow(|weak| weak.as_ref().and_then(WeakKeyedTimers::upgrade));
        if let Some(timers) = timers {
            let looked_for = std::mem::ManuallyDrop::new(Nosy(1_000));
            assert!(!timers.contains(&*looked_for));
            assert_eq!(timers.cancel_group(&*looked_for), []);
            assert!(timers.len() < 100 && timers.groups() < 100);
        }
    }
}

#[test]
fn keys_values_and_names_are_dropped_while_nothing_is_borrowed() {
    let mut lab = Lab::<()>::new(builder(1));
    let timers: NosyTimers = KeyedTimers::new(lab.timers(), |one: Expired<Nosy, Nosy>, _: &_| {
        drop(one);
    });
    NOSY.set(Some(timers.downgrade()));
    DROPS.set(0);
    let drops = || DROPS.replace(0);
    let put = |group, key, delay| {
        let put = timers.schedule_in(Nosy(group), Nosy(key), ms(delay), Nosy(0));
        assert!(put.is_ok());
    };
    put(1, 1, 5);
    assert_eq!(drops(), 0, "all of them are kept");
    put(1, 2, 5);
    assert_eq!(drops(), 1, "the name is there already");
    put(2, 2, 5);
    assert_eq!(drops(), 2, "the key and the old value");
    put(2, 1, 5);
    assert_eq!(drops(), 4, "the first group is gone, the second is there");
    lab.advance(ms(5));
    assert_eq!(drops(), 5, "two keys, two values and the name of their group");
    put(1, 1, 5);
    put(1, 66, 5);
    put(3, 3, 5);
    put(66, 4, 5);
    assert_eq!(drops(), 1);
    let before = lab.counts().panicked;
    drop(timers);
    assert_eq!(drops(), 11, "four keys, four values, three names; one of each panics");
    assert_eq!(lab.timers().len(), 0);
    lab.settle();
    assert_eq!(lab.counts().panicked, before + 2);
    check_law(&lab.counts());
}

#[test]
fn a_driver_that_is_woken_by_a_new_timer_may_use_the_timers_at_once() {
    type Mine = KeyedTimers<u32, u32, u32, ()>;
    thread_local! {
        static SLEEPING: RefCell<Option<Mine>> = const { RefCell::new(None) };
        static CANCELLED: Cell<usize> = const { Cell::new(0) };
    }
    struct CancelWhenWoken;
    impl std::task::Wake for CancelWhenWoken {
        fn wake(self: std::sync::Arc<Self>) {
            let Some(timers) = SLEEPING.take() else { return };
            CANCELLED.set(CANCELLED.get() + timers.cancel_group(&1).len());
            assert_eq!(timers.schedule_in(2, 8, FAR, 0), Ok(Inserted::New));
        }
    }
    let mut lab = Lab::<()>::new(builder(1));
    let timers: Mine = KeyedTimers::new(lab.timers(), |_: Expired<u32, u32>, _: &_| {});
    SLEEPING.set(Some(timers.clone()));
    let waker = std::sync::Arc::new(CancelWhenWoken).into();
    let turn = lab.turn();
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), LoopSleep::UntilWoken);
    assert_eq!(timers.schedule_in(1, 5, ms(1), 0), Ok(Inserted::New));
    assert_eq!((CANCELLED.get(), timers.len(), timers.group_len(&2)), (1, 1, 1));
    assert_eq!(lab.timers().len(), 1);
}

#[test]
fn the_last_clone_that_is_dropped_drops_what_is_held_and_the_timers() {
    let scene = Scene::new();
    let _ = scene.put_in(1, "a", 5, 1);
    let Scene { mut lab, timers, fired } = scene;
    let (weak, clone) = (timers.downgrade(), timers.clone());
    drop(timers);
    assert_eq!(weak.upgrade().unwrap().len(), 1);
    drop(clone);
    assert!(weak.upgrade().is_none());
    assert_eq!((lab.timers().len(), Rc::strong_count(&fired)), (0, 1));
    lab.advance(ms(5));
    assert_eq!((lab.counts().fired, lab.counts().cancelled), (0, 1));
    check_law(&lab.counts());
}

#[test]
fn at_the_end_timers_fire_or_stay_by_the_policy() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = Lab::<()>::new(builder(1));
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let handler = move |one: Expired<u32, u32>, timers: &KeyedTimers<u32, u32, u32, ()>| {
            let again = timers.schedule(one.key, ms(1), 0);
            assert_eq!(again, Err(InsertError::Closed((one.key, 0))));
            noted.borrow_mut().push(one.key);
        };
        let timers = KeyedTimers::new(lab.timers(), handler);
        assert_eq!(timers.schedule_in(1, 1, FAR, 0), Ok(Inserted::New));
        assert_eq!(timers.schedule_in(1, 2, ms(5), 0), Ok(Inserted::New));
        let report = lab.end(policy);
        check_law(&report.counts);
        if policy == ShutdownPolicy::Fire {
            assert_eq!((fired.take(), timers.len()), (vec![2, 1], 0));
            continue;
        }
        assert_eq!((report.unfired, timers.len()), (2, 2), "{policy:?}");
        assert!(!timers.reset(&1, ms(1)), "{policy:?}: it will not fire any more");
        drop(report);
        let drained = timers.drain();
        assert_eq!(drained.iter().map(|one| one.key).collect::<Vec<_>>(), [2, 1], "{policy:?}");
    }
}

/// What the model knows of a key.
#[derive(Clone, Copy)]
struct Known {
    value: u32,
    due: u64,
    group: Option<u32>,
    /// The how-manieth to join its group.
    joined: u32,
}

/// Takes out of the model what is due, and compares it with what has fired.
#[track_caller]
fn check_fired(model: &mut BTreeMap<u32, Known>, fired: &[(u64, u32, u32)], end: u64, at: &str) {
    let due: BTreeMap<_, _> = model.extract_if(.., |_, known| known.due <= end).collect();
    assert_eq!(fired.len(), due.len(), "{at}");
    for (when, key, value) in fired {
        let known = due.get(key).map(|known| known.value);
        assert_eq!((*when, known), (end, Some(*value)), "{at}: {key}");
    }
    assert!(fired.is_sorted_by_key(|(_, key, _)| due[key].due), "{at}: out of order");
}

#[test]
fn any_history_is_that_of_a_plain_map() {
    type Mine = KeyedTimers<u32, u32, u32, ()>;
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let mut lab = Lab::<()>::new(builder(1));
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let handler = move |one: Expired<u32, u32>, timers: &Mine| {
            let at = ticks_of(timers.timers());
            noted.borrow_mut().push((at, one.key, one.value));
        };
        let timers: Mine = KeyedTimers::with_capacity(lab.timers(), 25, handler).unwrap();
        let mut model: BTreeMap<u32, Known> = BTreeMap::new();
        let mut joins = 0;
        for step in 0..600 {
            let at = format!("seed {seed}, step {step}");
            let now = ticks_of(lab.timers());
            let key = rng.u32(..30);
            let delay = if rng.bool() { rng.u64(..20) } else { rng.u64(..2_000) };
            let due = now + delay;
            match rng.u32(..12) {
                0..4 => {
                    let group = rng.bool().then(|| rng.u32(..4));
                    let put = match group {
                        Some(group) => timers
                            .schedule_in(group, key, ms(delay), step)
                            .map_err(|refused| matches!(refused, InsertError::Full(_))),
                        None => timers
                            .schedule(key, ms(delay), step)
                            .map_err(|refused| matches!(refused, InsertError::Full(_))),
                    };
                    let before = model.get(&key).copied();
                    if before.is_none() && model.len() == 25 {
                        assert_eq!(put, Err(true), "{at}");
                    } else {
                        let expected =
                            before.map_or(Inserted::New, |known| Inserted::Replaced(known.value));
                        assert_eq!(put, Ok(expected), "{at}");
                        joins += 1;
                        let stays = before.filter(|known| known.group == group);
                        let joined = stays.map_or(joins, |known| known.joined);
                        model.insert(key, Known { value: step, due, group, joined });
                    }
                }
                4 | 5 => {
                    assert_eq!(timers.reset(&key, ms(delay)), model.contains_key(&key), "{at}");
                    if let Some(known) = model.get_mut(&key) {
                        known.due = due;
                    }
                }
                6 | 7 => {
                    let ended = timers.cancel(&key).map(|one| (one.key, one.value));
                    let known = model.remove(&key).map(|known| (key, known.value));
                    assert_eq!(ended, known, "{at}");
                }
                8 => {
                    let group = rng.u32(..4);
                    let ended = timers.cancel_group(&group);
                    let ended: Vec<_> = ended.iter().map(|one| (one.key, one.value)).collect();
                    let mut members: Vec<_> = model
                        .extract_if(.., |_, known| known.group == Some(group))
                        .map(|(key, known)| (known.joined, key, known.value))
                        .collect();
                    members.sort_unstable();
                    let members: Vec<_> =
                        members.into_iter().map(|(_, key, value)| (key, value)).collect();
                    assert_eq!(ended, members, "{at}");
                }
                _ => {
                    lab.advance(ms(rng.u64(1..40)));
                    let end = ticks_of(lab.timers());
                    check_fired(&mut model, &fired.take(), end, &at);
                }
            }
            assert_eq!(fired.take(), [], "{at}: something fires when no time has passed");
            assert_eq!((timers.len(), lab.timers().len()), (model.len(), model.len()), "{at}");
            for group in 0..4 {
                let len = model.values().filter(|known| known.group == Some(group)).count();
                assert_eq!(timers.group_len(&group), len, "{at}");
            }
            for key in 0..30 {
                let due = timers.deadline(&key).map(|due| due + ms(ticks_of(lab.timers())));
                let expected = model.get(&key).map(|known| lab.clock.now() + ms(known.due));
                assert_eq!(due, expected, "{at}");
            }
        }
        timers.clear();
        assert_eq!((timers.groups(), lab.timers().len()), (0, 0));
        lab.advance(FAR);
        check_law(&lab.counts());
    }
}

#[test]
fn timers_fire_by_their_keys_wherever_a_shard_runs() {
    type Mine = KeyedTimers<&'static str, u32, u32, ()>;
    thread_local! {
        static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
    }
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let client = running.client();
        let (sender, fired) = mpsc::channel();
        let start = running.service.now();
        let fill = move |timers: &Timers<()>| {
            let mine: Mine = KeyedTimers::new(timers, move |one, timers: &Mine| {
                let one: Expired<u32, &str> = one;
                sender.send((one.key, one.value, timers.timers().now())).unwrap();
            });
            for (key, delay, value) in [("late", 30, 1), ("soon", 10, 2), ("moved", 5, 3)] {
                assert_eq!(mine.schedule(key, ms(delay), value), Ok(Inserted::New));
            }
            for key in ["x", "y"] {
                assert_eq!(mine.schedule_in(1, key, ms(1), 0), Ok(Inserted::New));
            }
            assert!(mine.reset("moved", ms(50)));
            assert_eq!(mine.cancel_group(&1).len(), 2);
            MINE.set(Some(mine));
        };
        client.schedule_fn_on(SHARD, Duration::ZERO, fill).unwrap();
        for (key, value, delay) in [("soon", 2, 10), ("late", 1, 30), ("moved", 3, 50)] {
            let (known, held, at) = fired.recv_timeout(PATIENCE).unwrap();
            assert_eq!((known, held), (key, value), "{host:?}");
            assert!(at >= start + ms(delay), "{host:?}: {key} is early");
        }
        let end = |_: &Timers<()>| assert!(MINE.take().unwrap().is_empty());
        client.schedule_fn_on(SHARD, Duration::ZERO, end).unwrap();
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
fn a_timer_may_fire_before_the_method_returns_that_schedules_or_moves_it() {
    let lab = Lab::<()>::new(builder(1));
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let timers: KeyedTimers<u32, u32, u32, ()> =
        KeyedTimers::new(lab.timers(), move |one: Expired<u32, u32>, _: &_| {
            noted.borrow_mut().push((one.key, one.value));
        });
    EAGER.set(Some(lab));
    let waker = std::sync::Arc::new(Eager).into();
    let fall_asleep = || {
        let mut lab = EAGER.take().unwrap();
        let turn = lab.turn();
        assert_ne!(lab.shards[0].prepare_to_sleep(turn, &waker), LoopSleep::No);
        EAGER.set(Some(lab));
    };
    fall_asleep();
    assert_eq!(timers.schedule_in(1, 1, Duration::ZERO, 1), Ok(Inserted::New));
    assert_eq!((fired.take(), timers.len(), timers.groups()), (vec![(1, 1)], 0, 0));
    assert_eq!(timers.schedule_in(1, 1, FAR, 2), Ok(Inserted::New));
    fall_asleep();
    assert_eq!(timers.schedule_in(2, 1, Duration::ZERO, 3), Ok(Inserted::Replaced(2)));
    assert_eq!((fired.take(), timers.len(), timers.groups()), (vec![(1, 3)], 0, 0));
    assert_eq!(timers.schedule(1, FAR, 4), Ok(Inserted::New));
    fall_asleep();
    assert!(timers.reset(&1, Duration::ZERO));
    assert_eq!((fired.take(), timers.len()), (vec![(1, 4)], 0));
    let lab = EAGER.take().unwrap();
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn a_shard_that_dies_leaves_keys_and_values_and_takes_no_more() {
    let mut scene = Scene::new();
    let _ = scene.put_in(1, "a", 5, 1);
    let _ = scene.put("b", 5, 2);
    drop(scene.lab.shards.remove(0));
    assert!(!scene.timers.reset("a", ms(1)));
    let refused = scene.timers.schedule("b".to_owned(), ms(1), 3);
    assert_eq!(refused, Err(InsertError::Closed(("b".to_owned(), 3))));
    assert_eq!(keys(&scene.timers.cancel_group(&1)), ["a"]);
    assert_eq!(keys(&scene.timers.drain()), ["b"]);
    assert_eq!(scene.fired(), []);
}
