//! The keys of one shard, by a clock that the tests move.

use corewheel::TimerService;
use corewheel::clock::ManualClock;

use super::*;

/// A test that takes so long has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// The keys of one shard, which turns only when a test says so.
struct Fixture {
    clock: ManualClock,
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
        let mut keys = Keyspace::new(timers.clone(), Arc::default());
        keys.flags = Flags::parse("Exe").unwrap();
        Self { clock, timers, keys, turn }
    }

    /// Sets a key, for so many milliseconds.
    fn set(&mut self, key: &str, millis: impl Into<Option<u64>>) -> Written {
        let deadline = |millis| Ttl::Set(self.keys.now() + Duration::from_millis(millis));
        let ttl = millis.into().map_or(Ttl::Remove, deadline);
        self.keys.set(Key::new(key.as_bytes()), b"value", ttl)
    }

    /// Sets keys `k0`, `k1` and so on, for as many milliseconds as the function says.
    fn fill<M: Into<Option<u64>>>(&mut self, count: u64, millis: impl Fn(u64) -> M) {
        for number in 0..count {
            self.set(&format!("k{number}"), millis(number)).unwrap();
        }
    }

    fn has(&mut self, key: &str) -> bool {
        self.keys.contains(Key::new(key.as_bytes()))
    }

    fn remaining(&mut self, key: &str) -> Option<u64> {
        let Some(Ttl::Set(deadline)) = self.keys.ttl(Key::new(key.as_bytes())) else { return None };
        Some((deadline - self.keys.now()).as_millis() as u64)
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
        let name = |event: Event| String::from_utf8_lossy(&event.channel[15..]).into_owned();
        events.into_iter().map(name).collect()
    }

    /// The bytes that are accounted for, counted anew.
    fn check_memory(&self) {
        let bytes: usize = self.keys.entries.iter().map(|(_, entry)| entry.bytes()).sum();
        assert_eq!(self.keys.memory, bytes);
        let timed = self.keys.entries.iter().filter(|(_, entry)| entry.timer.is_some());
        let timed: Vec<usize> = timed.map(|(_, entry)| entry.bytes()).collect();
        assert_eq!((self.keys.timed, self.keys.evictable), (timed.len(), timed.iter().sum()));
        assert_eq!(self.keys.table.len(), self.keys.entries.len());
    }
}

#[test]
fn key_is_not_answered_from_its_deadline_on_even_before_the_shard_turns() {
    let mut of = Fixture::new(1_000);
    of.set("k", 100).unwrap();
    of.clock.advance(Duration::from_micros(99_999));
    assert!(of.has("k"), "it is not early by a microsecond");
    of.clock.advance(Duration::from_micros(1));
    assert!(!of.has("k"), "no turn was taken, and it is not answered");
    assert_eq!(of.events(), ["expired"]);
    assert_eq!(of.timers.len(), 0, "its timer is cancelled");
    of.check_memory();
}

#[test]
fn writes_that_do_not_fit_are_refused_without_a_look_at_each_key() {
    const KEYS: u64 = 100_000;
    let mut of = Fixture::new(10);
    of.fill(KEYS, |_| None);
    of.keys.memory_max = of.keys.memory;
    // A look at each key, for each of as many writes, takes a quarter of an hour.
    let begin = Instant::now();
    for _ in 0..KEYS {
        assert_eq!(of.set("new", None), Err(NO_MEMORY));
        assert!(begin.elapsed() < PATIENCE, "the refusals depend on the number of keys");
    }
}

#[test]
fn full_memory_evicts_the_keys_with_the_shortest_time_to_live() {
    let mut of = Fixture::new(1_000);
    of.fill(50, |number| 60_000 - number * 300);
    of.set("stays", None).unwrap();
    of.keys.memory_max = of.keys.memory;
    for number in 0..10 {
        of.set(&format!("n{number}"), 600_000).unwrap();
        assert!(!of.has(&format!("k{}", 49 - number)), "it has the shortest time");
    }
    assert_eq!(of.events(), ["evicted"; 10]);
    assert_eq!((of.has("stays"), of.has("k39")), (true, true));
    of.check_memory();
}

#[test]
fn eviction_of_far_keys_goes_by_their_time_whatever_was_cancelled() {
    let mut of = Fixture::new(10_000);
    // All of them share a slot, whose first entries are stale. Those with an even number are later.
    let time_of = |number: u64| 40_000_000 + number + 10_000 * ((number + 1) % 2);
    of.fill(2_000, time_of);
    of.fill(1_000, |_| None);
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
    of.fill(5_000, |number| 1_000_000 + number);
    of.keys.memory_max = of.keys.memory;
    let large = vec![b'x'; of.keys.memory / 2];
    assert_eq!(of.keys.set(Key::new(b"large"), &large, Ttl::Remove), Ok(()));
    assert!(of.keys.memory <= of.keys.memory_max);
    assert!(of.has("k4999"), "the later half stays");
    of.check_memory();
}

#[test]
fn write_without_a_free_timer_is_refused_and_changes_nothing() {
    let mut of = Fixture::new(2);
    of.fill(2, |_| 1_000);
    of.set("plain", None).unwrap();
    assert_eq!([of.set("c", 1_000), of.set("plain", 1_000)], [Err(NO_TIMER); 2]);
    assert_eq!((of.has("c"), of.has("plain")), (false, true));
    assert_eq!(of.set("k0", 1_000), Ok(()), "a reset needs no timer");
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
        let deadline: Option<&Option<u64>> = model.get(&key);
        let is_known = deadline.is_some_and(|at| at.is_none_or(|at| at > now));
        match random(6) {
            0..=2 => {
                let time = (random(3) > 0).then(|| random(2_000) + 1);
                of.set(&key, time).unwrap();
                model.insert(key, time.map(|time| now + time));
            }
            3 => {
                assert_eq!(of.keys.remove(Key::new(key.as_bytes())), is_known, "{key} at {now}");
                model.remove(&key);
            }
            4 => {
                let time = random(300);
                of.clock.advance(Duration::from_millis(time));
                now += time;
                if random(2) == 0 {
                    of.turn();
                }
            }
            _ => assert_eq!(of.has(&key), is_known, "{key} at {now}"),
        }
        of.keys.events.clear();
    }
    of.check_memory();
}

#[test]
fn key_that_is_written_is_not_evicted_for_its_own_room() {
    let (large, key) = ([b'x'; 1_000], Key::new(b"first"));
    // Among others that can be evicted, and alone.
    for others in [100, 0] {
        let mut of = Fixture::new(10_000);
        of.set("first", 1_000).unwrap();
        of.fill(others, |_| 1_000_000);
        of.keys.memory_max = of.keys.memory;
        let (outcome, length) = if others > 0 { (Ok(()), 1_000) } else { (Err(NO_MEMORY), 5) };
        assert_eq!(of.keys.set(key, &large, Ttl::Keep), outcome);
        assert_eq!(of.keys.get(key).map(<[u8]>::len), Some(length), "it keeps what it had");
        assert_eq!(of.remaining("first"), Some(1_000), "it keeps its time to live");
        assert!(of.keys.memory <= of.keys.memory_max);
        of.check_memory();
        of.clock.advance(Duration::from_secs(1));
        assert_eq!(of.turn(), 1, "its timer has the deadline again");
    }
}

#[test]
fn time_to_live_reaches_as_far_as_its_milliseconds() {
    let mut of = Fixture::new(10);
    of.set("far", i64::MAX.cast_unsigned()).unwrap();
    of.set("sooner", 1 << 60).unwrap();
    of.clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(of.turn(), 0);
    assert_eq!(of.remaining("far"), Some(i64::MAX.cast_unsigned() - 1_000_000_000));
    // Nor is it later than the deadline that a key has while others make room for it.
    of.keys.memory_max = of.keys.memory;
    assert_eq!(of.keys.set(Key::new(b"sooner"), &[b'x'; 100], Ttl::Keep), Ok(()));
    assert_eq!((of.has("far"), of.has("sooner")), (false, true));
}
