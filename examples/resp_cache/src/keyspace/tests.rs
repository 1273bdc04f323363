//! The keys of one shard, by a clock and a wall clock that the tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use corewheel::clock::ManualClock;
use corewheel::{Fired, TimerService, Timers};

use super::*;

const MILLIS: i128 = 1_000;
/// A test that takes so long has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// The keys of one shard, which turns only when a test says so.
struct Fixture {
    clock: ManualClock,
    /// By how much the wall clock was stepped, in microseconds.
    steps: Arc<AtomicI64>,
    timers: Timers<u32>,
    keys: Keyspace,
    turn: Box<dyn FnMut() -> Vec<Fired<u32>>>,
}

impl Fixture {
    fn new(capacity: u32) -> Self {
        let clock = ManualClock::new();
        // Far from the epoch, where a time that is wrongly 0 would be right.
        clock.advance(Duration::from_secs(12_345));
        let builder = TimerService::builder().shards(1).clock(&clock).capacity(capacity);
        let service = builder.start_attached_with::<u32>().unwrap();
        let attachment = service.attach(service.shards().next().unwrap()).unwrap();
        let fired = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let delivered = std::rc::Rc::clone(&fired);
        let handler = move |one: Fired<u32>, _: &Timers<u32>| delivered.borrow_mut().push(one);
        let mut shard = attachment.into_loop(handler).unwrap();
        let timers = shard.timers().clone();
        let turn = Box::new(move || {
            let _ = shard.turn();
            let _alive = &service;
            fired.take()
        });
        let steps = Arc::new(AtomicI64::new(0));
        // The wall clock goes as the monotonic one does, and is stepped beside it.
        let wall = {
            let (clock, steps, epoch) = (clock.clone(), Arc::clone(&steps), clock.now());
            Box::new(move || {
                let micros = 1_000_000_000_000 + steps.load(Ordering::Relaxed);
                UNIX_EPOCH + Duration::from_micros(micros.cast_unsigned()) + (clock.now() - epoch)
            })
        };
        let mut keys = Keyspace::new(timers.clone(), wall, Arc::default());
        keys.flags = Flags::parse(b"KEAn").unwrap();
        Self { clock, steps, timers, keys, turn }
    }

    fn set(&mut self, key: &str, ttl: Ttl) -> Result<(), WriteError> {
        self.keys.set(Key::new(key.as_bytes()), b"value", ttl)
    }

    /// A deadline that many milliseconds from now.
    fn after(&self, millis: u64, is_wall: bool) -> Ttl {
        let now = self.keys.now();
        Ttl::Set(Deadline::new(now + i128::from(millis) * MILLIS, is_wall))
    }

    fn has(&mut self, key: &str) -> bool {
        self.keys.contains(Key::new(key.as_bytes()))
    }

    fn remaining(&mut self, key: &str) -> Option<u64> {
        let deadline = self.keys.deadline(Key::new(key.as_bytes()))?.micros()?;
        u64::try_from((deadline - self.keys.now()) / MILLIS).ok()
    }

    fn advance(&mut self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Takes a turn, and returns how many keys the shard removed.
    fn turn(&mut self) -> usize {
        let before = self.keys.entries.len();
        for fired in (self.turn)() {
            self.keys.fired(&fired);
        }
        before - self.keys.entries.len()
    }

    fn events(&mut self) -> Vec<String> {
        let events = std::mem::take(&mut self.keys.events);
        let text = |event: &Event| String::from_utf8_lossy(&event.channel).into_owned();
        let of_events = events.iter().map(text).filter(|channel| channel.contains("keyevent"));
        of_events.map(|channel| channel.rsplit(':').next().unwrap().to_owned()).collect()
    }

    fn step_wall(&mut self, millis: i64) {
        self.steps.fetch_add(millis * 1_000, Ordering::Relaxed);
    }

    /// The bytes that are accounted for, counted anew.
    fn check_memory(&self) {
        let bytes: usize = self.keys.entries.iter().map(|(_, entry)| entry.bytes()).sum();
        assert_eq!(self.keys.memory, bytes);
        let timed = self.keys.entries.iter().filter(|(_, entry)| entry.timer.is_some());
        let (count, evictable) =
            timed.fold((0, 0), |(count, bytes), (_, entry)| (count + 1, bytes + entry.bytes()));
        assert_eq!((self.keys.timed, self.keys.evictable), (count, evictable));
        assert_eq!(self.keys.table.len(), self.keys.entries.len());
    }
}

#[test]
fn key_is_not_answered_from_its_deadline_on_even_before_the_shard_turns() {
    let mut of = Fixture::new(1_000);
    let ttl = of.after(100, false);
    of.set("k", ttl).unwrap();
    of.clock.advance(Duration::from_micros(99_999));
    assert!(of.has("k"), "it is not early by a microsecond");
    of.clock.advance(Duration::from_micros(1));
    assert!(!of.has("k"), "no turn was taken, and it is not answered");
    assert_eq!(of.events(), ["new", "expired"]);
    assert_eq!(of.timers.len(), 0, "its timer is cancelled");
    of.check_memory();
}

#[test]
fn turn_removes_the_keys_whose_time_is_over_and_no_other() {
    let mut of = Fixture::new(1_000);
    for number in 0..100 {
        let ttl = of.after(number, false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    of.set("stays", Ttl::Remove).unwrap();
    of.advance(50);
    assert_eq!(of.turn(), 51);
    of.advance(50);
    assert_eq!(of.turn(), 49);
    assert!(of.has("stays"));
    of.check_memory();
}

#[test]
fn overwritten_deadline_does_not_remove_the_key() {
    let mut of = Fixture::new(1_000);
    for ttl in [of.after(10, false), of.after(5, false), of.after(30, false)] {
        of.set("reset", ttl).unwrap();
        of.set("persistent", ttl).unwrap();
    }
    of.set("persistent", Ttl::Remove).unwrap();
    of.advance(29);
    assert_eq!(of.turn(), 0);
    assert_eq!(of.remaining("reset"), Some(1));
    of.advance(1);
    assert_eq!(of.turn(), 1);
    assert!(of.has("persistent"));
    assert_eq!(of.remaining("persistent"), None);
    of.check_memory();
}

#[test]
fn wall_clock_that_steps_forward_ends_points_in_time_and_no_lengths() {
    let mut of = Fixture::new(1_000);
    let (point, length) = (of.after(60_000, true), of.after(60_000, false));
    of.set("point", point).unwrap();
    of.set("later", of.after(90_000, true)).unwrap();
    of.set("length", length).unwrap();
    of.step_wall(60_000);
    assert!(!of.has("point"), "its time has come by the new wall time");
    assert_eq!(of.remaining("later"), Some(30_000));
    assert_eq!(of.remaining("length"), Some(60_000));
    of.advance(30_000);
    assert_eq!(of.turn(), 1, "the timer was moved too");
    assert!(of.has("length"));
}

#[test]
fn wall_clock_that_steps_back_prolongs_points_in_time_and_no_lengths() {
    let mut of = Fixture::new(1_000);
    let (point, length) = (of.after(1_000, true), of.after(1_000, false));
    of.set("point", point).unwrap();
    of.set("length", length).unwrap();
    of.step_wall(-5_000);
    of.keys.follow_wall();
    assert_eq!(of.remaining("point"), Some(6_000));
    assert_eq!(of.remaining("length"), Some(1_000));
    of.advance(1_000);
    assert_eq!(of.turn(), 1, "the length is over");
    assert!(of.has("point"));
    of.advance(5_000);
    assert_eq!(of.turn(), 1);
}

#[test]
fn wall_time_of_a_deadline_is_exact_to_the_microsecond() {
    let mut of = Fixture::new(1_000);
    let (wall, time) = of.keys.wall();
    let later = wall + 123_456_789;
    let micros = time.monotonic_of(later);
    assert_eq!(time.to_wall(micros), later);
}

#[test]
fn full_memory_evicts_the_keys_with_the_shortest_time_to_live() {
    let mut of = Fixture::new(1_000);
    for number in 0..50 {
        let ttl = of.after(1_000 + number * 300, false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    of.set("stays", Ttl::Remove).unwrap();
    of.keys.memory_max = of.keys.memory;
    let _ = of.events();
    for number in 0..10 {
        let ttl = of.after(600_000, false);
        of.set(&format!("n{number}"), ttl).unwrap();
        assert!(!of.has(&format!("k{number}")), "k{number} has the shortest time");
        of.check_memory();
    }
    assert_eq!(of.events().iter().filter(|event| *event == "evicted").count(), 10);
    assert!(of.has("stays"));
    assert!(of.has("k10"));
}

#[test]
fn full_memory_without_a_time_to_live_refuses_the_write_and_keeps_the_keys() {
    let mut of = Fixture::new(1_000);
    of.set("a", Ttl::Remove).unwrap();
    of.keys.memory_max = of.keys.memory;
    assert_eq!(of.set("b", Ttl::Remove), Err(NO_MEMORY));
    assert_eq!(of.set("a", Ttl::Remove), Ok(()), "a value of the same size needs no room");
    assert!(of.has("a"));
    assert!(!of.has("b"));
}

#[test]
fn writes_that_do_not_fit_are_refused_without_a_look_at_each_key() {
    const KEYS: usize = 100_000;
    let mut of = Fixture::new(10);
    for number in 0..KEYS {
        of.set(&format!("k{number}"), Ttl::Remove).unwrap();
    }
    of.keys.memory_max = of.keys.memory;
    // A look at each key, for each of as many writes, takes a quarter of an hour.
    let begin = Instant::now();
    for _ in 0..KEYS {
        assert_eq!(of.set("new", Ttl::Remove), Err(NO_MEMORY));
        assert!(begin.elapsed() < PATIENCE, "the refusals depend on the number of keys");
    }
}

#[test]
fn eviction_of_far_keys_goes_by_their_time_whatever_was_cancelled() {
    let mut of = Fixture::new(10_000);
    // All of them share a slot, whose first entries are stale. Those with an even number are later.
    let time_of = |number: u64| 40_000_000 + number + 10_000 * ((number + 1) % 2);
    for number in 0..2_000 {
        let ttl = of.after(time_of(number), false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    for number in 0..1_000 {
        of.set(&format!("k{number}"), Ttl::Remove).unwrap();
    }
    let mut left: Vec<u64> = (1_000..2_000).collect();
    left.sort_by_key(|number| time_of(*number));
    for number in left {
        assert!(of.keys.evict(None));
        assert!(!of.has(&format!("k{number}")), "k{number} expires first");
    }
    assert!(!of.keys.evict(None), "the others have no time to live");
    assert_eq!(of.keys.entries.len(), 1_000);
    of.check_memory();
}

#[test]
fn large_value_takes_the_room_of_as_many_keys_as_it_needs() {
    let mut of = Fixture::new(10_000);
    for number in 0..5_000 {
        let ttl = of.after(1_000_000 + number, false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    of.keys.memory_max = of.keys.memory;
    let large = vec![b'x'; of.keys.memory / 2];
    assert_eq!(of.keys.set(Key::new(b"large"), &large, Ttl::Remove), Ok(()));
    assert!(of.keys.memory <= of.keys.memory_max);
    assert!(of.has("k4999"), "the later half stays");
    of.check_memory();
}

#[test]
fn value_that_cannot_fit_is_refused_before_a_key_is_evicted() {
    let mut of = Fixture::new(10_000);
    of.set("stays", Ttl::Remove).unwrap();
    for number in 0..100 {
        let ttl = of.after(1_000_000 + number, false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    of.keys.memory_max = of.keys.memory;
    let large = vec![b'x'; of.keys.memory];
    assert_eq!(of.keys.set(Key::new(b"large"), &large, Ttl::Remove), Err(NO_MEMORY));
    assert_eq!(of.keys.entries.len(), 101);
}

#[test]
fn key_that_is_written_is_not_evicted_for_its_own_room() {
    type Write = fn(&mut Keyspace, Key<'_>, &[u8]) -> Written;
    let (large, key) = ([b'x'; 1_000], Key::new(b"first"));
    let writes: [(Write, usize); 2] = [
        (|keys, key, value| keys.set(key, value, Ttl::Keep), 1_000),
        (|keys, key, value| keys.append(key, value).map(|is_there| assert!(is_there)), 1_005),
    ];
    for (write, length) in writes {
        let mut of = Fixture::new(10_000);
        let (soon, later) = (of.after(1_000, false), of.after(1_000_000, false));
        of.set("first", soon).unwrap();
        for number in 0..100 {
            of.set(&format!("k{number}"), later).unwrap();
        }
        of.keys.memory_max = of.keys.memory;
        assert_eq!(write(&mut of.keys, key, &large), Ok(()));
        assert_eq!(of.keys.get(key).map(<[u8]>::len), Some(length), "it keeps what it had");
        assert_eq!(of.remaining("first"), Some(1_000), "it keeps its time to live");
        of.check_memory();
        of.advance(1_000);
        assert_eq!(of.turn(), 1, "its timer has the deadline again");
        // Alone, with nothing to evict.
        let mut of = Fixture::new(10);
        let soon = of.after(1_000, false);
        of.set("first", soon).unwrap();
        of.keys.memory_max = of.keys.memory;
        assert_eq!(write(&mut of.keys, key, &large), Err(NO_MEMORY));
        assert_eq!(of.remaining("first"), Some(1_000));
    }
}

#[test]
fn renamed_key_needs_no_more_room_and_no_more_timers() {
    let mut of = Fixture::new(10);
    of.keys.timers_max = 1;
    let large = [b'x'; 10_000];
    let ttl = of.after(1_000, false);
    of.keys.set(Key::new(b"a"), &large, ttl).unwrap();
    of.set("stays", Ttl::Remove).unwrap();
    of.keys.memory_max = of.keys.memory;
    let _ = of.events();
    assert_eq!(of.keys.rename(Key::new(b"a"), Key::new(b"b")), Ok(true));
    assert_eq!((of.has("a"), of.remaining("b")), (false, Some(1_000)));
    assert_eq!(of.events(), ["new"], "nothing is evicted");
    assert_eq!(of.keys.rename(Key::new(b"b"), Key::new(b"stays")), Ok(true));
    assert_eq!(of.keys.get(Key::new(b"stays")).map(<[u8]>::len), Some(10_000));
    assert_eq!(of.keys.rename(Key::new(b"none"), Key::new(b"x")), Ok(false));
    of.check_memory();
    of.keys.memory_max = of.keys.memory;
    let long = vec![b'n'; 1_000];
    assert_eq!(of.keys.rename(Key::new(b"stays"), Key::new(&long)), Err(NO_MEMORY));
    assert_eq!(of.remaining("stays"), Some(1_000), "it stays where a longer name does not fit");
    of.advance(1_000);
    assert_eq!(of.turn(), 1);
}

#[test]
fn lowered_limit_lets_writes_take_place_while_the_memory_falls() {
    let mut of = Fixture::new(10_000);
    for number in 0..8_000 {
        let ttl = of.after(1_000_000 + number, false);
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    of.keys.memory_max = of.keys.memory / 100;
    let before = of.keys.memory;
    assert_eq!(of.set("new", Ttl::Remove), Ok(()));
    assert!(of.keys.memory < before);
    assert!(of.keys.memory > of.keys.memory_max, "one write does not evict all that is too much");
    let mut steps = 0;
    while of.keys.shrink() {
        steps += 1;
    }
    assert!((5..8).contains(&steps), "{steps}");
    assert!(of.keys.memory <= of.keys.memory_max);
    assert!(of.has("new"));
    of.check_memory();
}

#[test]
fn keys_leave_the_timers_that_are_not_theirs() {
    let mut of = Fixture::new(10);
    of.keys.timers_max = 8;
    let ttl = of.after(1_000, false);
    for number in 0..8 {
        of.set(&format!("k{number}"), ttl).unwrap();
    }
    assert_eq!(of.set("one too many", ttl), Err(NO_TIMER));
    assert_eq!(of.timers.len(), 8);
    of.keys.remove(Key::new(b"k0"));
    assert_eq!(of.set("in its place", ttl), Ok(()));
}

#[test]
fn write_without_a_free_timer_is_refused_and_changes_nothing() {
    let mut of = Fixture::new(2);
    for key in ["a", "b"] {
        let ttl = of.after(1_000, false);
        of.set(key, ttl).unwrap();
    }
    of.set("plain", Ttl::Remove).unwrap();
    let ttl = of.after(1_000, false);
    assert_eq!(of.set("c", ttl), Err(NO_TIMER));
    assert!(!of.has("c"));
    assert_eq!(of.set("plain", ttl), Err(NO_TIMER));
    assert!(of.has("plain"));
    assert_eq!(of.set("a", ttl), Ok(()), "a reset needs no timer");
    of.check_memory();
}

#[test]
fn random_writes_expire_as_a_map_of_deadlines_says() {
    use std::collections::BTreeMap;
    let mut of = Fixture::new(1_000);
    let (mut model, mut seed) = (BTreeMap::new(), 0x1234_5678_9ABC_DEF1_u64);
    let mut random = |bound: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % bound
    };
    let mut now = 0;
    for _ in 0..20_000 {
        let key = format!("k{}", random(64));
        match random(6) {
            0 | 1 => {
                let time = random(2_000) + 1;
                let ttl = of.after(time, random(2) == 0);
                of.set(&key, ttl).unwrap();
                model.insert(key, Some(now + time));
            }
            2 => {
                of.set(&key, Ttl::Remove).unwrap();
                model.insert(key, None);
            }
            3 => {
                let is_removed = of.keys.remove(Key::new(key.as_bytes()));
                let known = model.remove(&key);
                assert_eq!(is_removed, known.is_some_and(|at| at.is_none_or(|at| at > now)));
            }
            4 => {
                let time = random(300);
                of.advance(time);
                now += time;
                if random(2) == 0 {
                    of.turn();
                }
            }
            _ => {
                let expected = model.get(&key).is_some_and(|at| at.is_none_or(|at| at > now));
                assert_eq!(of.has(&key), expected, "{key} at {now}");
            }
        }
        of.keys.events.clear();
    }
    of.check_memory();
}

#[test]
fn deadline_is_kept_as_far_as_milliseconds_reach() {
    let years = |count: i128| count * 365 * 86_400 * 1_000_000;
    for micros in [1, 999, years(1), years(146_000)] {
        assert_eq!(Deadline::new(micros, true).micros(), Some(micros), "to the microsecond");
    }
    for micros in [years(150_000), years(1_000_000), years(290_000_000)] {
        let kept = Deadline::new(micros, false).micros().unwrap();
        assert!((micros..micros + FAR_UNIT).contains(&kept), "{micros} is kept as {kept}");
    }
    let mut of = Fixture::new(10);
    let far = Deadline::new(i128::from(i64::MAX) * 1_000, false);
    of.set("k", Ttl::Set(far)).unwrap();
    of.set("sooner", Ttl::Set(Deadline::new(years(150_000), false))).unwrap();
    of.advance(1_000_000_000);
    assert_eq!(of.turn(), 0);
    assert!(of.has("k") && of.has("sooner"));
}
