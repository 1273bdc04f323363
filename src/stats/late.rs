//! Deliveries beyond the service's bound: how late they were, in four parts, and the last of them.
//!
//! The parts are those of the time from the deadline to the delivery, and add up to it exactly. The
//! ring of the last deliveries is stored under a version, so that no reader gets a record of which
//! a part is another's.
//!
//! Cost: nothing for a delivery within the bound. A delivery beyond it changes five numbers and
//! four histograms, and its record is stored at the end of the turn if it is among the last 64.

use super::times::{PublishedTimes, Recorder, Times};
use crate::link::sync::{AtomicU64, Ordering};
use crate::link::version::Version;
use crate::values::class::{ClassId, Classes};

/// How many late deliveries a shard keeps.
pub(crate) const RECORDS: usize = 64;

/// Lateness, or something about it, in four parts by where it arose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LatenessParts<V> {
    /// The timer came to the shard after its deadline: its sender sent it late, its deadline had
    /// passed when it was scheduled, or turns left it in its lane, since they took other requests.
    pub arrival: V,
    /// A turn was due, and the shard's thread did not begin it: the executor ran another task, or
    /// the thread waited for a processor.
    pub poll_delay: V,
    /// The handlers and callbacks of other timers took the time: those that were delivered before
    /// it in its turn, and those of the turn that went on at its deadline.
    pub handlers: V,
    /// The rest: earlier turns that had no budget left for it, and the work of turns before their
    /// first delivery.
    pub backlog: V,
}

impl<V> LatenessParts<V> {
    /// The parts in the order of the fields, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &V)> {
        let Self { arrival, poll_delay, handlers, backlog } = self;
        [
            ("arrival", arrival),
            ("poll_delay", poll_delay),
            ("handlers", handlers),
            ("backlog", backlog),
        ]
        .into_iter()
    }
}

impl LatenessParts<u64> {
    /// The sum of the parts.
    pub fn sum(&self) -> u64 {
        self.iter().map(|(_, part)| part).sum()
    }

    /// The parts in their order, as far as they add up to `most` at most.
    pub(crate) fn at_most(self, mut most: u64) -> Self {
        let mut take = |part: u64| {
            let part = part.min(most);
            most -= part;
            part
        };
        Self {
            arrival: take(self.arrival),
            poll_delay: take(self.poll_delay),
            handlers: take(self.handlers),
            backlog: take(self.backlog),
        }
    }
}

/// A delivery beyond the service's lateness bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LateDelivery {
    /// When it was delivered, in nanoseconds from the start of the service.
    pub at_ns: u64,
    /// The class of the timer; `None` if it has none.
    pub class: Option<&'static str>,
    /// How late it was delivered, in nanoseconds: the sum of the parts.
    pub lateness_ns: u64,
    /// The parts of the lateness, in nanoseconds.
    pub parts_ns: LatenessParts<u64>,
    /// Whether the turn before had used up its budget, so that the backlog is the budget's.
    pub after_budget: bool,
}

/// A late delivery as a shard writes it down.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LateRecord {
    /// When, in nanoseconds since the service's epoch.
    pub(crate) at: u64,
    pub(crate) class: ClassId,
    pub(crate) parts: LatenessParts<u64>,
    pub(crate) after_budget: bool,
}

/// The words of a record that is published.
const WORDS: usize = 6;

impl LateRecord {
    fn words(&self) -> [u64; WORDS] {
        let LatenessParts { arrival, poll_delay, handlers, backlog } = self.parts;
        let class = u64::from(self.class.bits()) << 1 | u64::from(self.after_budget);
        [self.at, class, arrival, poll_delay, handlers, backlog]
    }

    fn of_words(words: [u64; WORDS]) -> Self {
        let [at, class, arrival, poll_delay, handlers, backlog] = words;
        Self {
            at,
            class: ClassId::from_bits((class >> 1) as u8),
            parts: LatenessParts { arrival, poll_delay, handlers, backlog },
            after_budget: class & 1 == 1,
        }
    }

    pub(crate) fn named(&self, classes: &Classes) -> LateDelivery {
        LateDelivery {
            at_ns: self.at,
            class: classes.name(self.class),
            lateness_ns: self.parts.sum(),
            parts_ns: self.parts,
            after_budget: self.after_budget,
        }
    }
}

/// The late deliveries of one shard.
#[derive(Debug)]
pub(crate) struct LateLog {
    parts: LatenessParts<Recorder>,
    records: Box<[LateRecord]>,
    /// How many deliveries were late. The last of them has the place before this number.
    total: u64,
    /// How many of them were published.
    published: u64,
}

impl LateLog {
    pub(crate) fn new() -> Self {
        Self::with_places(RECORDS)
    }

    pub(super) fn with_places(places: usize) -> Self {
        let parts = LatenessParts {
            arrival: Recorder::new(),
            poll_delay: Recorder::new(),
            handlers: Recorder::new(),
            backlog: Recorder::new(),
        };
        let records = vec![LateRecord::default(); places].into_boxed_slice();
        Self { parts, records, total: 0, published: 0 }
    }

    pub(crate) fn push(&mut self, record: LateRecord) {
        let LatenessParts { arrival, poll_delay, handlers, backlog } = record.parts;
        self.parts.arrival.record(arrival);
        self.parts.poll_delay.record(poll_delay);
        self.parts.handlers.record(handlers);
        self.parts.backlog.record(backlog);
        let places = self.records.len() as u64;
        self.records[(self.total % places) as usize] = record;
        self.total += 1;
    }
}

/// Where a shard publishes its late deliveries.
#[derive(Debug)]
pub(crate) struct PublishedLate {
    parts: LatenessParts<PublishedTimes>,
    ring: PublishedRing,
}

impl PublishedLate {
    pub(super) fn new() -> Self {
        let parts = LatenessParts {
            arrival: PublishedTimes::new(),
            poll_delay: PublishedTimes::new(),
            handlers: PublishedTimes::new(),
            backlog: PublishedTimes::new(),
        };
        Self { parts, ring: PublishedRing::new(RECORDS) }
    }

    /// Stores the deliveries of a turn.
    #[inline]
    pub(super) fn store(&self, log: &mut LateLog) {
        if log.total != log.published {
            self.store_new(log);
        }
    }

    #[inline(never)]
    fn store_new(&self, log: &mut LateLog) {
        self.ring.store(log);
        self.parts.arrival.store(&mut log.parts.arrival);
        self.parts.poll_delay.store(&mut log.parts.poll_delay);
        self.parts.handlers.store(&mut log.parts.handlers);
        self.parts.backlog.store(&mut log.parts.backlog);
    }

    /// The parts of all late deliveries, and the last of them, the latest first.
    pub(super) fn load(&self) -> (LatenessParts<Times>, Vec<LateRecord>) {
        let parts = LatenessParts {
            arrival: self.parts.arrival.load(),
            poll_delay: self.parts.poll_delay.load(),
            handlers: self.parts.handlers.load(),
            backlog: self.parts.backlog.load(),
        };
        (parts, self.ring.load())
    }
}

/// The last late deliveries, each at the place of its number modulo the places.
#[derive(Debug)]
pub(super) struct PublishedRing {
    version: Version,
    total: AtomicU64,
    records: Box<[[AtomicU64; WORDS]]>,
}

impl PublishedRing {
    pub(super) fn new(places: usize) -> Self {
        let record = |_| std::array::from_fn(|_| AtomicU64::new(0));
        let records = (0..places).map(record).collect();
        Self { version: Version::new(), total: AtomicU64::new(0), records }
    }

    /// Stores the records that were not published.
    pub(super) fn store(&self, log: &mut LateLog) {
        let places = self.records.len() as u64;
        let first = log.published.max(log.total.saturating_sub(places));
        self.version.store(|| {
            for number in first..log.total {
                let place = (number % places) as usize;
                for (word, value) in self.records[place].iter().zip(log.records[place].words()) {
                    // Relaxed: the version orders it.
                    word.store(value, Ordering::Relaxed);
                }
            }
            self.total.store(log.total, Ordering::Relaxed);
        });
        log.published = log.total;
    }

    pub(super) fn load(&self) -> Vec<LateRecord> {
        let places = self.records.len();
        let mut records = Vec::with_capacity(places);
        self.version.load(|| {
            records.clear();
            let total = self.total.load(Ordering::Relaxed);
            for number in (total.saturating_sub(places as u64)..total).rev() {
                let words = &self.records[(number % places as u64) as usize];
                let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
                records.push(LateRecord::of_words(words));
            }
        });
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64) -> LateRecord {
        let parts = LatenessParts { arrival: at, poll_delay: 2 * at, handlers: 3, backlog: 4 };
        LateRecord { at, class: ClassId::from_bits(7), parts, after_budget: at.is_multiple_of(2) }
    }

    #[test]
    fn late_log_publishes_the_last_records_with_the_latest_first() {
        let (published, mut log) = (PublishedLate::new(), LateLog::new());
        let read = || {
            let (parts, records) = published.load();
            let at: Vec<_> = records.iter().map(|record| record.at).collect();
            (parts.arrival.count, at)
        };
        assert_eq!(read(), (0, Vec::new()));
        for at in 0..3 {
            log.push(record(at));
        }
        published.store(&mut log);
        assert_eq!(read(), (3, vec![2, 1, 0]));
        for at in 3..200 {
            log.push(record(at));
            if at % 50 == 0 {
                published.store(&mut log);
            }
        }
        published.store(&mut log);
        assert_eq!(read(), (200, (136..200).rev().collect()));
        for read in published.load().1 {
            assert_eq!(read.words(), record(read.at).words());
            let delivery = read.named(&Classes::default());
            assert_eq!(delivery.lateness_ns, 3 * read.at + 7);
        }
    }
}
