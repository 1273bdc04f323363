//! The deadlines of connections that have come, and the connections that have ended, by the kind of
//! the deadline.
//!
//! Why not counts of a shard's thread: the deadlines of a connection whose tasks go from thread to
//! thread come on the thread of its task, and no shard takes part. Such a connection counts with
//! the shard of the thread that has opened it. Why not one tally for all shards: each connection
//! that ends would take the cache line from the core that has counted before.
//!
//! Cost: one atomic addition for each deadline that has come and for each connection that has
//! ended, and two more where that was a limit of writing. Nothing else counts here.

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
    /// For a limit of writing: how many bytes the peers had acknowledged whose connections have
    /// reached it, each since its connection began. A connection whose socket does not say both
    /// this and what is left adds to neither; see [`PeerSocket`](crate::conn::PeerSocket).
    pub acknowledged_bytes: u64,
    /// How many bytes these peers had not acknowledged of what the system had accepted.
    pub left_bytes: u64,
}

/// At most so many kinds are counted: kinds are bits of 32 elsewhere.
const KINDS_MAX: usize = 32;

/// The deadlines of the connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    kinds: [OfKind; KINDS_MAX],
    /// The connections that have ended without a deadline.
    closed: AtomicCell<u64>,
}

/// The deadlines of one kind.
#[derive(Debug, Default)]
struct OfKind {
    count: AtomicCell<u64>,
    /// The connections that have ended by one of them.
    ended: AtomicCell<u64>,
    /// The bytes that the peers of connections had acknowledged when they have reached a limit of
    /// writing, and those that were left.
    acknowledged: AtomicCell<u64>,
    left: AtomicCell<u64>,
}

impl Tally {
    /// Counts a deadline of a kind.
    pub(crate) fn count(&self, kind: usize) {
        if let Some(of) = self.kinds.get(kind) {
            of.count.fetch_add(1);
        }
    }

    /// Counts the bytes that the peer of a connection has acknowledged, which has reached a limit
    /// of a kind, and those that are left.
    pub(crate) fn count_bytes(&self, kind: usize, acknowledged: u64, left: u64) {
        if let Some(of) = self.kinds.get(kind) {
            of.acknowledged.fetch_add(acknowledged);
            of.left.fetch_add(left);
        }
    }

    /// Counts a connection that has ended, by a deadline of a kind that was counted, or without
    /// one.
    pub(crate) fn count_end(&self, kind: Option<usize>) {
        let of = kind.and_then(|kind| self.kinds.get(kind));
        let count = of.map_or(&self.closed, |of| &of.ended);
        count.fetch_add(1);
    }

    /// How many connections have ended without a deadline.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load()
    }

    /// The kinds of these names in order, also those that have not been counted.
    pub(crate) fn sum<'a>(
        names: &[&'static str],
        tallies: impl Iterator<Item = &'a Self> + Clone,
    ) -> Vec<DeadlineStats> {
        let sum = |kind: usize, read: fn(&OfKind) -> &AtomicCell<u64>| {
            tallies.clone().map(|tally| read(&tally.kinds[kind]).load()).sum()
        };
        let of_name = |(kind, name): (usize, &&'static str)| DeadlineStats {
            kind: name,
            count: sum(kind, |of| &of.count),
            ended: sum(kind, |of| &of.ended),
            acknowledged_bytes: sum(kind, |of| &of.acknowledged),
            left_bytes: sum(kind, |of| &of.left),
        };
        names.iter().enumerate().map(of_name).collect()
    }
}
