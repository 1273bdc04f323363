//! The deadlines of connections that have come, and the connections that have ended, by the kind of
//! the deadline, on all threads of a service.
//!
//! Why not counts of a shard: the deadlines of a connection whose tasks go from thread to thread
//! come on the thread of its task, and no shard takes part.
//!
//! Invariants: the names are those of the table of kinds, which lies above this room and comes when
//! the service starts. So a reader knows each kind before its first count.
//!
//! Cost: one atomic addition for each deadline that has come and for each connection that has
//! ended. Nothing else counts here.

use std::sync::OnceLock;

use crossbeam_utils::atomic::AtomicCell;

/// The deadlines of connections of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeadlineStats {
    /// The text of the [kind](crate::DeadlineKind). All custom deadlines are one.
    pub kind: &'static str,
    /// How many events of this kind a task or a callback has taken. An event that was withdrawn, as
    /// the connection was active meanwhile, is not one of them.
    pub count: u64,
    /// How many connections were closed after such an event, the last that was taken. An event of
    /// an idle kind counts if the connection was not active since. Heartbeats and custom deadlines
    /// end no connection here: only their owner knows what they are for.
    pub ended: u64,
}

/// At most so many kinds are counted: kinds are bits of 32 elsewhere.
const KINDS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Set when the service starts.
    names: OnceLock<&'static [&'static str]>,
    counts: [AtomicCell<u64>; KINDS_MAX],
    /// The connections that have ended, by the kind of the deadline.
    ended: [AtomicCell<u64>; KINDS_MAX],
    /// Those that have ended without a deadline.
    closed: AtomicCell<u64>,
}

impl Tally {
    /// Names the kinds. The first names stay.
    pub(crate) fn name(&self, kinds: &'static [&'static str]) {
        let _named = self.names.set(kinds);
    }

    /// Counts a deadline of a kind.
    pub(crate) fn count(&self, kind: usize) {
        if let Some(count) = self.counts.get(kind) {
            count.fetch_add(1);
        }
    }

    /// Counts a connection that has ended, by a deadline of a kind that was counted, or without
    /// one.
    pub(crate) fn count_end(&self, kind: Option<usize>) {
        let count = kind.and_then(|kind| self.ended.get(kind)).unwrap_or(&self.closed);
        count.fetch_add(1);
    }

    /// How many connections have ended without a deadline.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load()
    }

    /// The kinds in order, also those that have not been counted.
    pub(crate) fn read(&self) -> Vec<DeadlineStats> {
        let names = self.names.get().copied().unwrap_or_default();
        let counts = self.counts.iter().zip(&self.ended);
        let of_name =
            |(kind, (count, ended)): (&&'static str, (&AtomicCell<u64>, &AtomicCell<u64>))| {
                let [count, ended] = [count, ended].map(AtomicCell::load);
                DeadlineStats { kind, count, ended }
            };
        names.iter().zip(counts).map(of_name).collect()
    }
}
