//! Deliveries beyond the service's bound: how late they were, in four parts, and the last of them.
//!
//! The parts are those of the time from the deadline to the delivery, and add up to it exactly. The
//! last deliveries lie under a lock, which the shard takes at the end of a turn that was late.
//!
//! Cost: nothing for a delivery within the bound. A delivery beyond it changes four histograms and
//! is written down, and is stored at the end of the turn if it is among the last 64.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::times::{PublishedTimes, Recorder, Times};
use crate::values::class::{ClassId, Classes};

/// How many late deliveries a shard keeps.
const RECORDS: usize = 64;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LateRecord {
    /// When, in nanoseconds since the service's epoch.
    pub(crate) at: u64,
    pub(crate) class: ClassId,
    pub(crate) parts: LatenessParts<u64>,
    pub(crate) after_budget: bool,
}

impl LateRecord {
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

/// The late deliveries of a shard, with the histograms of all.
#[derive(Debug)]
pub(crate) struct LateLog {
    /// In the order of [`LatenessParts`].
    parts: [Recorder; 4],
    /// The last of them, at most [`RECORDS`], the latest last.
    last: VecDeque<LateRecord>,
    /// Whether one has come since they were published.
    is_new: bool,
}

impl LateLog {
    pub(crate) fn new() -> Self {
        let parts = std::array::from_fn(|_| Recorder::new());
        Self { parts, last: VecDeque::with_capacity(RECORDS), is_new: false }
    }

    pub(crate) fn push(&mut self, record: LateRecord) {
        let LatenessParts { arrival, poll_delay, handlers, backlog } = record.parts;
        let parts = [arrival, poll_delay, handlers, backlog];
        for (recorder, nanos) in self.parts.iter_mut().zip(parts) {
            recorder.record(nanos);
        }
        if self.last.len() == RECORDS {
            self.last.pop_front();
        }
        self.last.push_back(record);
        self.is_new = true;
    }
}

/// Where a shard publishes its late deliveries.
#[derive(Debug)]
pub(crate) struct PublishedLate {
    /// In the order of [`LatenessParts`].
    parts: [PublishedTimes; 4],
    /// The latest last.
    last: Mutex<VecDeque<LateRecord>>,
}

impl PublishedLate {
    pub(super) fn new() -> Self {
        let parts = std::array::from_fn(|_| PublishedTimes::new());
        Self { parts, last: Mutex::new(VecDeque::with_capacity(RECORDS)) }
    }

    /// A turn is over. Most turns have no late delivery, and take no lock.
    #[inline]
    pub(super) fn store(&self, log: &mut LateLog) {
        if std::mem::take(&mut log.is_new) {
            self.store_new(log);
        }
    }

    #[inline(never)]
    fn store_new(&self, log: &mut LateLog) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&log.last);
        for (published, recorder) in self.parts.iter().zip(&mut log.parts) {
            published.store(recorder);
        }
    }

    /// The histograms, and the last records, the latest first.
    pub(super) fn load(&self) -> (LatenessParts<Times>, Vec<LateRecord>) {
        let [arrival, poll_delay, handlers, backlog] =
            self.parts.each_ref().map(PublishedTimes::load);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let records = last.iter().rev().copied().collect();
        (LatenessParts { arrival, poll_delay, handlers, backlog }, records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64) -> LateRecord {
        let parts = LatenessParts { arrival: at, poll_delay: 2 * at, handlers: 3, backlog: 4 };
        LateRecord { at, class: ClassId::from_bits(7), parts, after_budget: at % 2 == 0 }
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
            assert_eq!(read, record(read.at));
            let delivery = read.named(&Classes::default());
            assert_eq!(delivery.lateness_ns, 3 * read.at + 7);
        }
    }
}
