//! Keyed timers.

mod drops;
mod entries;
mod handler;
mod histories;
mod lending;
mod shutdown;

use std::cell::RefCell;
use std::rc::Rc;

use corewheel::{Refused, TimerServiceBuilder};
use corewheel_kit::keyed::{Expired, KeyedTimers};

use corewheel_test_support::{FAR, Lab, builder, check_law, ms, shared};

/// Keys are strings, groups are numbers.
type Named = KeyedTimers<String, u32, u32>;

struct Scene {
    lab: Lab<()>,
    timers: Named,
    fired: FiredKeys<String>,
}

impl Scene {
    fn new() -> Self {
        Self::with(builder(1))
    }

    fn with(builder: TimerServiceBuilder) -> Self {
        let lab = Lab::new(builder);
        let (fired, noted) = shared::<RefCell<Vec<_>>>();
        let own = lab.timers().clone();
        let handler = move |one: Expired<u32, String>, timers: &Named| {
            assert!(one.deadline <= own.now(), "a timer is early");
            assert_eq!(timers.due(&one.key), None, "the key is free");
            noted.borrow_mut().push((one.key, one.value));
        };
        let timers = KeyedTimers::in_groups(lab.timers(), handler);
        Self { lab, timers, fired }
    }

    /// Inserts a key, and returns the value that it had before.
    fn put(&self, key: &str, delay: u64, value: u32) -> Option<u32> {
        replaced(self.timers.insert(key.to_owned(), value, ms(delay)))
    }

    fn put_in(&self, group: u32, key: &str, delay: u64, value: u32) -> Option<u32> {
        replaced(self.timers.insert_in(group, key.to_owned(), value, ms(delay)))
    }

    fn fired(&self) -> Vec<(String, u32)> {
        self.fired.take()
    }

    #[track_caller]
    fn check_empty(&mut self) {
        assert!(self.timers.is_empty());
        assert_eq!(self.lab.timers().len(), 0, "no timer is left");
        self.lab.advance(FAR);
        assert_eq!(self.fired(), []);
        check_law(&self.lab.counts());
    }
}

/// The keys that have fired, each with its value.
type FiredKeys<K> = Rc<RefCell<Vec<(K, u32)>>>;

/// Timers with numbers for keys, values and groups.
fn numbered(lab: &Lab<()>) -> (KeyedTimers<u32, u32, u32>, FiredKeys<u32>) {
    let (fired, noted) = shared::<RefCell<Vec<_>>>();
    let note = move |one: Expired<u32, u32>, _: &_| noted.borrow_mut().push((one.key, one.value));
    (KeyedTimers::in_groups(lab.timers(), note), fired)
}

/// The value of the entry that an insert has replaced.
#[track_caller]
fn replaced<K, V, R>(inserted: Result<Option<Expired<V, K>>, Refused<R>>) -> Option<V> {
    inserted.unwrap().map(|before| before.value)
}

fn named(list: &[(&str, u32)]) -> Vec<(String, u32)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

fn keys(ended: &[Expired<u32, String>]) -> Vec<&str> {
    ended.iter().map(|ended| &*ended.key).collect()
}
