//! Deliveries beyond the service's bound: how late they were, in four parts, and the last of them.
//!
//! The parts are those of the time from the deadline to the delivery, and add up to it exactly. The
//! last deliveries lie under a lock, which the shard takes at the end of a turn that was late.
//!
//! Cost: nothing for a delivery within the bound. A delivery beyond it changes four histograms and
//! is written down, and is stored at the end of the turn if it is among the last 64.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::times::{PublishedTimes, Recorder, Times};
use crate::values::class::{ClassId, Classes};

/// How many late deliveries a shard keeps.
const RECORDS: usize = 64;

/// The names of the parts, in the order of [`LatenessParts`].
const NAMES: [&str; 4] = ["arrival", "poll_delay", "handlers", "backlog"];

/// Lateness in four parts by where it arose, in nanoseconds:
/// [`ShardStats::late_parts`](super::ShardStats::late_parts) says what each is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LatenessParts {
    pub(crate) arrival: u64,
    pub(crate) poll_delay: u64,
    pub(crate) handlers: u64,
    pub(crate) backlog: u64,
}

impl LatenessParts {
    fn in_order(self) -> [u64; 4] {
        [self.arrival, self.poll_delay, self.handlers, self.backlog]
    }

    /// The sum of the parts.
    pub(crate) fn sum(self) -> u64 {
        self.in_order().into_iter().sum()
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
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LateDelivery {
    /// When it was delivered, in nanoseconds from the start of the service.
    pub at_ns: u64,
    /// The class of the timer; `None` if it has none.
    pub class: Option<&'static str>,
    /// How late it was delivered, in nanoseconds: the sum of the parts.
    pub lateness_ns: u64,
    /// The parts of the lateness by their names, those of
    /// [`late_parts`](super::ShardStats::late_parts), in nanoseconds.
    pub parts_ns: BTreeMap<&'static str, u64>,
    /// Whether the turn before had used up its budget, so that the backlog is the budget's.
    pub after_budget: bool,
}

/// A late delivery as a shard writes it down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LateRecord {
    /// When, in nanoseconds since the service's epoch.
    pub(crate) at: u64,
    pub(crate) class: ClassId,
    pub(crate) parts: LatenessParts,
    pub(crate) after_budget: bool,
}

impl LateRecord {
    pub(crate) fn named(&self, classes: &Classes) -> LateDelivery {
        LateDelivery {
            at_ns: self.at,
            class: classes.name(self.class),
            lateness_ns: self.parts.sum(),
            parts_ns: NAMES.into_iter().zip(self.parts.in_order()).collect(),
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
        for (recorder, nanos) in self.parts.iter_mut().zip(record.parts.in_order()) {
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

    /// The histograms by the names of the parts, and the last records, the latest first.
    pub(super) fn load(&self) -> (BTreeMap<&'static str, Times>, Vec<LateRecord>) {
        let parts = NAMES.into_iter().zip(self.parts.iter().map(PublishedTimes::load)).collect();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let records = last.iter().rev().copied().collect();
        (parts, records)
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
            (parts["arrival"].count, at)
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
