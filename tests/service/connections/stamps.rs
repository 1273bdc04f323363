//! A simple model of activity stamps between two readings of the clock.
//!
//! With the code it shares the 8 and 2 ms of a stamp, by which a deadline is known to the
//! nanosecond. So each stamp is also compared with the promise: it is never before the activity,
//! and not later than it by more than 10 ms and a tick, or than the next reading of the clock.

use std::collections::VecDeque;

pub(super) const MS: u64 = 1_000_000;

/// The readings of a shard's clock, and the stamps between them.
#[derive(Default)]
pub(super) struct Looks {
    /// The last reading; `None` before the shard's first connection.
    pub(super) now: Option<u64>,
    last_bound: Option<u64>,
    /// The present stamp, and the tick at which it expires.
    window: Option<(u64, u64)>,
    /// The stamps when the shard was held up, as far as the shard keeps them.
    gaps: VecDeque<u64>,
    /// Each gap is written into one block of connections; when the last block has it, the gaps from
    /// before that round are dropped.
    blocks: usize,
    next_block: usize,
    in_all: usize,
    count: usize,
    next_after: Vec<u64>,
}

/// The stamp of an activity: a known time, or a time that is valid after the next reading.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) bound: u64,
    /// The number of readings before; `None` for a known time.
    pub(super) looks: Option<usize>,
    /// The time of the activity.
    pub(super) at: u64,
}

impl Looks {
    pub(super) fn new(now: Option<u64>, blocks: usize) -> Self {
        Self { now, blocks, ..Self::default() }
    }

    /// A connection begins on the shard. The first one reads the clock.
    pub(super) fn has_connection(&mut self, now: u64) {
        self.now.get_or_insert(now);
    }

    fn extend(&mut self, now: u64, tick: u64) -> u64 {
        let expires = (now + 8 * MS).div_ceil(tick);
        let least = self.last_bound.map(|last| last + 1);
        let bound = least.into_iter().fold(expires * tick + 2 * MS, u64::max);
        self.last_bound = Some(bound);
        self.window = Some((bound, expires));
        expires
    }

    pub(super) fn stamp(&mut self, now: u64, tick: u64) -> Stamp {
        if self.window.is_none() {
            self.extend(now, tick);
        }
        let (bound, _) = self.window.unwrap();
        Stamp { bound, looks: Some(self.count), at: now }
    }

    pub(super) fn look(&mut self, now: u64, tick: u64) {
        if self.now.is_none() {
            return;
        }
        self.now = Some(now);
        self.count += 1;
        self.next_after.push(now);
        if let Some((bound, expires)) = self.window {
            if now > bound {
                self.add_gap(bound);
            }
            if expires <= now / tick {
                self.window = None;
            } else {
                self.extend(now, tick);
                self.window.as_mut().unwrap().1 = expires;
            }
        }
    }

    fn add_gap(&mut self, bound: u64) {
        self.gaps.push_back(bound);
        self.next_block += 1;
        if self.next_block >= self.blocks {
            self.gaps.drain(..self.in_all);
            (self.next_block, self.in_all) = (0, self.gaps.len());
        }
    }

    /// The stamp for a known time: the next nanosecond if the time is another stamp.
    pub(super) fn exact(&self, at: u64) -> u64 {
        let is_taken = self.gaps.contains(&at) || self.window.is_some_and(|(bound, _)| at == bound);
        at + u64::from(is_taken)
    }

    pub(super) fn is_settled(&self, stamp: Stamp) -> bool {
        stamp.looks.is_none_or(|looks| looks < self.count)
    }

    /// The time that a stamp counts as.
    pub(super) fn when(&self, stamp: Stamp, tick: u64) -> u64 {
        let next_look = stamp.looks.and_then(|looks| self.next_after.get(looks).copied());
        let or_next_look = |at: u64| next_look.map_or(at, |next| at.max(next));
        let when = or_next_look(stamp.bound);
        // Before the next reading nothing follows from the stamp.
        assert!(
            when >= stamp.at || !self.is_settled(stamp),
            "a stamp counts as earlier than its activity"
        );
        // Each turn within a tick makes it a nanosecond later.
        let most = or_next_look(stamp.at + 10 * MS + tick + 1_000);
        assert!(when <= most || stamp.looks.is_none(), "{} counts as {when}", stamp.at);
        when
    }
}
