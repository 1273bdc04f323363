//! Activity stamps: when a connection was last active, without a reading of the clock.
//!
//! Each packet stamps its connection. Reading a clock for it costs several times what the stamp
//! does. So all packets that come before the shard next reads the clock are given the same stamp: a
//! time a little later than they are, never earlier. The shard reads the clock in time, as long as
//! packets come; a shard whose connections are quiet is not woken.
//!
//! A thread that was held up reads the clock too late, and what was stamped meanwhile may have
//! happened after the stamp. Such a gap is kept, and resolved when a stamp is read. So whatever the
//! thread was doing, a stamp never counts as earlier than the activity.
//!
//! Without the gaps an idle event would come early after a stall, by as long as the thread was held
//! up: activity between the stamp's time and the late reading of the clock would count as earlier
//! than it was.
//!
//! Why not keep each gap for ever, or join gaps: on a shard that is held up all the time, joined
//! gaps would make an old stamp ever later, and an idle connection would never be idle. With each
//! gap the shard resolves some of the stamps; when all stamps are resolved, it drops the gaps from
//! before.
//!
//! Invariants: each stamp is later than the stamps before the last reading of the clock, so a gap
//! concerns only the stamps since that reading.
//!
//! Cost: one stamp in 8 ms reads the clock; each gap resolves the stamps of one connection in 256.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use corewheel_shard::{Tick, TickLength};

use super::super::moment::Moment;
use super::record::Block;
use crate::values::settings::STAMP_SPAN;

/// The part of [`STAMP_SPAN`] in which the thread may wake up, so that a wake-up alone makes no
/// gap.
const WAKE: u64 = 2_000_000;

/// So many gaps resolve all stamps once. At most twice as many are kept, and a few.
const GAPS: usize = 256;

pub(super) struct Activity {
    /// The stamp of what happens now; `None` before the first touch after a quiet time: then no
    /// stamp is valid, and the clock must be read.
    bound: Cell<Option<Moment>>,
    /// The earliest time that the next stamp may have, which is after all stamps before.
    earliest: Cell<u64>,
    /// When the shard must read the clock again.
    expires: Cell<Tick>,
    /// When the shard last read the clock.
    now: Cell<u64>,
    gaps: RefCell<Gaps>,
}

impl Activity {
    /// Of a shard that reads the clock now.
    pub(super) fn new(now: u64) -> Self {
        Self {
            bound: Cell::new(None),
            earliest: Cell::new(0),
            expires: Cell::new(Tick::NEVER),
            now: Cell::new(now),
            gaps: RefCell::default(),
        }
    }

    /// The stamp of what happens now; `None` if [`open`](Self::open) must make one first.
    #[inline]
    pub(super) fn bound(&self) -> Option<Moment> {
        self.bound.get()
    }

    /// Makes a stamp for what happens now, at `now`. Returns it, and the tick by which the shard
    /// must read the clock.
    pub(super) fn open(&self, now: u64, tick: TickLength) -> (Moment, Tick) {
        let (bound, expires) = self.extend(now, tick);
        self.expires.set(expires);
        (bound, expires)
    }

    fn extend(&self, now: u64, tick: TickLength) -> (Moment, Tick) {
        let expires = tick.ceil(now.saturating_add(STAMP_SPAN - WAKE));
        let bound = tick.start_of(expires).saturating_add(WAKE).max(self.earliest.get());
        self.earliest.set(bound.saturating_add(1));
        let bound = Moment::at(bound);
        self.bound.set(Some(bound));
        (bound, expires)
    }

    /// The shard has read the clock. True if the thread was held up: then some stamps are to be
    /// [settled](Self::settle).
    pub(super) fn advance(&self, now: u64, tick: TickLength) -> bool {
        self.now.set(now);
        let Some(bound) = self.bound.get() else { return false };
        let until = Moment::at(now);
        let is_gap = until > bound;
        if is_gap {
            self.gaps.borrow_mut().known.push_back(Gap { bound, until });
        }
        if self.expires.get() <= tick.floor(now) {
            self.bound.set(None);
            self.expires.set(Tick::NEVER);
        } else {
            let _extended = self.extend(now, tick);
        }
        is_gap
    }

    /// Resolves some of the stamps, and drops the gaps that are resolved in all stamps.
    ///
    /// O(connections / 256).
    pub(super) fn settle(&self, blocks: &[Block]) {
        let gaps = &mut *self.gaps.borrow_mut();
        let end = gaps.next_block + blocks.len().div_ceil(GAPS);
        let some = blocks.get(gaps.next_block..end.min(blocks.len())).unwrap_or_default();
        for stamp in some.iter().flat_map(|block| block.stamps()) {
            stamp.set(stamp.get().map(|at| gaps.resolve(at)));
        }
        gaps.next_block = end;
        if end >= blocks.len() {
            gaps.known.drain(..gaps.in_all);
            (gaps.next_block, gaps.in_all) = (0, gaps.known.len());
        }
    }

    /// When the shard last read the clock.
    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    /// When the shard must read the clock again; never if no stamp is valid.
    pub(super) fn expires(&self) -> Tick {
        self.expires.get()
    }

    /// The stamp for a known time that is not in the future: that time, or the next nanosecond if
    /// the time is the stamp of what happened before a reading of the clock. Such stamps are
    /// milliseconds apart. Shards have the same ones.
    #[inline]
    pub(super) fn exact(&self, at: Moment) -> Moment {
        let is_taken = self.bound.get() == Some(at) || self.resolve(at) != at;
        if is_taken { Moment::at(at.nanos().saturating_add(1)) } else { at }
    }

    /// The time before which the activity happened that was given this stamp.
    pub(super) fn resolve(&self, stamp: Moment) -> Moment {
        self.gaps.borrow().resolve(stamp)
    }
}

/// The activity with the stamp `bound` happened before `until`, when the shard next read the clock.
#[derive(Clone, Copy, Debug)]
struct Gap {
    bound: Moment,
    until: Moment,
}

/// Gaps in order. Each begins after the end of the one before, so no later gap concerns a stamp
/// that is resolved.
#[derive(Debug, Default)]
struct Gaps {
    known: VecDeque<Gap>,
    /// The block whose stamps are resolved next.
    next_block: usize,
    /// How many of the first gaps will be resolved in all stamps when the last block is.
    in_all: usize,
}

impl Gaps {
    #[inline]
    fn resolve(&self, stamp: Moment) -> Moment {
        match self.known.binary_search_by_key(&stamp, |gap| gap.bound) {
            Ok(found) => self.known[found].until,
            Err(_) => stamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Records;
    use super::*;
    use fastrand::Rng;
    use std::num::NonZeroU64;

    const MS: u64 = 1_000_000;

    fn tick() -> TickLength {
        TickLength::from_nanos(NonZeroU64::new(MS).unwrap())
    }

    #[test]
    fn stamp_is_never_before_the_activity_and_little_after_it() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let mut now = 0;
        let activity = Activity::new(now);
        // Each stamp, the time of the activity, and when the clock was read next.
        let mut stamps: Vec<(Moment, u64, Option<u64>)> = Vec::new();
        for _ in 0..20_000 {
            let pause = if rng.u32(..40) == 0 { 200 * MS } else { 2 * MS };
            now += rng.u64(..pause);
            if rng.bool() {
                activity.advance(now, tick());
                for stamp in stamps.iter_mut().rev().take_while(|stamp| stamp.2.is_none()) {
                    stamp.2 = Some(now);
                }
            } else {
                let bound = activity.bound().unwrap_or_else(|| activity.open(now, tick()).0);
                stamps.push((bound, now, None));
            }
        }
        activity.advance(now, tick());
        for (bound, at, next_reading) in stamps {
            let next_reading = next_reading.unwrap_or(now);
            let resolved = activity.resolve(bound).nanos();
            assert!(resolved >= at, "seed {seed}: {at} counts as {resolved}");
            let most = next_reading.max(at + 11 * MS);
            assert!(resolved <= most, "seed {seed}: {at} counts as {resolved}");
        }
    }

    #[test]
    fn gap_is_dropped_when_all_stamps_are_resolved_and_not_before() {
        let seed = fastrand::u64(..);
        let mut rng = Rng::with_seed(seed);
        let mut now = 0;
        let activity = Activity::new(now);
        let mut blocks = vec![Records::new()];
        // For each block, the time of the last read, and the latest time that it may count as.
        let mut read = vec![None];
        for round in 0..5_000 {
            if round % 7 == 0 && blocks.len() < 600 {
                blocks.push(Records::new());
                read.push(None);
            }
            let until = now + rng.u64(13..40) * MS;
            for _ in 0..3 {
                now = rng.u64(now..until);
                let block = rng.usize(..blocks.len());
                let bound = activity.bound().unwrap_or_else(|| activity.open(now, tick()).0);
                blocks[block].record(block as u32).stamps[0].set(Some(bound));
                read[block] = Some((now, until));
            }
            now = until;
            if activity.advance(now, tick()) {
                activity.settle(&blocks);
            }
            let kept = activity.gaps.borrow().known.len();
            assert!(kept <= 2 * GAPS + 2, "seed {seed}: {kept} gaps are kept");
            for (block, read) in read.iter().enumerate() {
                let stamp = blocks[block].record(block as u32).stamps[0].get();
                let resolved = stamp.map(|stamp| activity.resolve(stamp).nanos());
                let fits = match (read, resolved) {
                    (Some((at, most)), Some(it)) => {
                        (*at..=*most.max(&(at + 11 * MS))).contains(&it)
                    }
                    (read, resolved) => read.is_none() && resolved.is_none(),
                };
                assert!(fits, "seed {seed}, {round}: {read:?} counts as {resolved:?}");
            }
        }
    }

    #[test]
    fn clock_is_read_only_while_connections_are_stamped() {
        let activity = Activity::new(0);
        activity.advance(5 * MS, tick());
        assert_eq!((activity.bound(), activity.expires()), (None, Tick::NEVER));
        let (bound, expires) = activity.open(5 * MS, tick());
        assert_eq!((bound, expires), (Moment::at(15 * MS), Tick::new(13)));
        activity.advance(8 * MS, tick());
        let bound = Some(Moment::at(18 * MS));
        assert_eq!((activity.bound(), activity.expires()), (bound, Tick::new(13)));
        activity.advance(13 * MS, tick());
        assert_eq!((activity.bound(), activity.expires()), (None, Tick::NEVER));
    }
}
