//! Activity stamps: when a connection last did something, without a reading of the clock.
//!
//! A connection notes each packet. Reading a clock for it costs several times what the note does,
//! so the note is a moment up to which everything counts that happens before the shard next looks
//! at the clock: a little later than it is, never earlier. The shard sees to it that it does look,
//! for as long as a connection notes anything; a shard whose connections are quiet is not woken.
//!
//! A thread that was held up looks too late, and what was noted meanwhile may have happened after
//! the moment that it was given. Such a gap is kept, and read into the notes when they are looked
//! at. So whatever the thread was doing, a note is never taken for older than it is.
//!
//! Without the gaps an idle event would come early after a stall, by as long as the thread was held
//! up: what a connection did between the stamp's time and the late look would count as earlier than
//! it was.
//!
//! Gaps are not kept for ever, nor are they joined, which would make what was noted long ago ever
//! younger, on a shard that is held up all the time, and an idle connection never idle. With each
//! gap some of the notes are looked through and the gaps written into them; when all have been, the
//! gaps from before go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use corewheel_shard::{Tick, TickLength};

use super::record::Block;

/// How much later a note may be taken to be than it is, but for a tick and what holds the thread
/// up, in nanoseconds.
const SPAN: u64 = 10_000_000;
/// How much of it is left for a thread to wake up in, so that this alone is no gap.
const WAKE: u64 = 2_000_000;

/// There is no such moment: it must be asked for.
const UNKNOWN: u64 = u64::MAX;

/// With so many gaps all notes are looked through once; twice as many are kept at most, and a few.
const GAPS: usize = 256;

pub(crate) struct Activity {
    /// Up to when notes count that are made now.
    bound: Cell<u64>,
    /// What it was last. Each is later than the one before, so that a gap concerns those notes only
    /// which were made since the clock was looked at.
    last: Cell<u64>,
    /// When the shard must look at the clock again.
    expires: Cell<Tick>,
    /// When it last did.
    now: Cell<u64>,
    gaps: RefCell<Gaps>,
    /// The end of the last of them.
    gap_until: Cell<u64>,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            bound: Cell::new(UNKNOWN),
            last: Cell::new(0),
            expires: Cell::new(Tick::NEVER),
            now: Cell::new(0),
            gaps: RefCell::default(),
            gap_until: Cell::new(0),
        }
    }

    /// The moment to note; `None` if it must be [opened](Self::open) first.
    #[inline]
    pub(crate) fn bound(&self) -> Option<u64> {
        let bound = self.bound.get();
        (bound != UNKNOWN).then_some(bound)
    }

    /// It is `now`, and something is to be noted. Returns the moment to note, and until when the
    /// shard must look at the clock.
    pub(super) fn open(&self, now: u64, tick: TickLength) -> (u64, Tick) {
        let expires = self.extend(now, tick);
        self.expires.set(expires);
        (self.bound.get(), expires)
    }

    fn extend(&self, now: u64, tick: TickLength) -> Tick {
        let expires = tick.ceil(now.saturating_add(SPAN - WAKE));
        let bound = tick.start_of(expires).saturating_add(WAKE).max(self.last.get() + 1);
        // Before the end of time, which is what nobody has noted.
        let bound = bound.min(UNKNOWN - 2);
        self.last.set(bound);
        self.bound.set(bound);
        expires
    }

    /// The shard has looked at the clock. True if it was held up: then some notes are to be
    /// [looked through](Self::settle).
    pub(super) fn look(&self, now: u64, tick: TickLength) -> bool {
        self.now.set(now);
        let bound = self.bound.get();
        if bound == UNKNOWN {
            return false;
        }
        let is_gap = now > bound;
        if is_gap {
            self.gaps.borrow_mut().known.push_back(Gap { bound, until: now });
            self.gap_until.set(now);
        }
        if self.expires.get() <= tick.floor(now) {
            self.bound.set(UNKNOWN);
            self.expires.set(Tick::NEVER);
        } else {
            let _expires = self.extend(now, tick);
        }
        is_gap
    }

    /// Writes the gaps into some of the notes, and forgets those that are in all notes.
    ///
    /// O(connections / 256).
    pub(super) fn settle(&self, blocks: &[Block]) {
        let gaps = &mut *self.gaps.borrow_mut();
        let end = gaps.next_block + blocks.len().div_ceil(GAPS);
        let some = blocks.get(gaps.next_block..end.min(blocks.len())).unwrap_or_default();
        for record in some.iter().flat_map(|block| block.iter()) {
            record.read.set(gaps.resolve(record.read.get()));
            record.written.set(gaps.resolve(record.written.get()));
        }
        gaps.next_block = end;
        if end >= blocks.len() {
            gaps.known.drain(..gaps.in_all);
            (gaps.next_block, gaps.in_all) = (0, gaps.known.len());
        }
    }

    /// When the shard last looked at the clock.
    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    /// When it must look again, if anything was noted.
    pub(super) fn expires(&self) -> Tick {
        self.expires.get()
    }

    /// Whether a moment is no earlier than what was noted before, and both are what they say. False
    /// where that is not to be seen at a glance.
    #[inline]
    pub(super) fn is_plainly_next(&self, at: u64, noted: u64) -> bool {
        let bound = self.bound.get();
        noted <= at && self.gap_until.get() < at && noted != bound && at != bound
    }

    /// What to note for a moment that is known, and not later than now: this one, or the next if
    /// this one stands for what happened before the shard looked at the clock. Of those that do,
    /// each is milliseconds after the one before, and shards have the same ones.
    #[inline]
    pub(super) fn exact(&self, at: u64) -> u64 {
        let is_taken = self.bound.get() == at || self.resolve(at) != at;
        if is_taken { at.saturating_add(1) } else { at }
    }

    /// The moment before which that was which was noted.
    pub(super) fn resolve(&self, noted: u64) -> u64 {
        self.gaps.borrow().resolve(noted)
    }
}

/// What was noted with this moment may have happened up to `until`, when the shard next looked.
#[derive(Clone, Copy, Debug)]
struct Gap {
    bound: u64,
    until: u64,
}

/// Gaps in order, each after the one before: so what a gap was written into is in none that comes
/// later.
#[derive(Debug, Default)]
struct Gaps {
    known: VecDeque<Gap>,
    /// Notes are looked through from here on.
    next_block: usize,
    /// How many of the first gaps all notes will have been looked through for when this ends.
    in_all: usize,
}

impl Gaps {
    #[inline]
    fn resolve(&self, noted: u64) -> u64 {
        match self.known.binary_search_by_key(&noted, |gap| gap.bound) {
            Ok(found) => self.known[found].until,
            Err(_) => noted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::new_block;
    use super::*;
    use fastrand::Rng;
    use std::num::NonZeroU64;

    const MS: u64 = 1_000_000;

    fn tick() -> TickLength {
        TickLength::from_nanos(NonZeroU64::new(MS).unwrap())
    }

    #[test]
    fn a_note_is_never_older_than_what_it_stands_for_and_little_younger() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let recent = Activity::new();
        let mut now = 0;
        // What was noted, when that was, and when the clock was looked at next.
        let mut notes: Vec<(u64, u64, Option<u64>)> = Vec::new();
        for _ in 0..20_000 {
            let pause = if rng.u32(..40) == 0 { 200 * MS } else { 2 * MS };
            now += rng.u64(..pause);
            if rng.bool() {
                recent.look(now, tick());
                for note in notes.iter_mut().rev().take_while(|note| note.2.is_none()) {
                    note.2 = Some(now);
                }
            } else {
                let bound = recent.bound().unwrap_or_else(|| recent.open(now, tick()).0);
                notes.push((bound, now, None));
            }
        }
        recent.look(now, tick());
        for (bound, at, looked) in notes {
            let looked = looked.unwrap_or(now);
            let resolved = recent.resolve(bound);
            assert!(resolved >= at, "seed {seed}: {at} is taken for {resolved}");
            let most = looked.max(at + 11 * MS);
            assert!(resolved <= most, "seed {seed}: {at} is taken for {resolved}");
        }
    }

    #[test]
    fn gaps_are_forgotten_when_they_are_in_all_notes_and_not_before() {
        let seed = fastrand::u64(..);
        let mut rng = Rng::with_seed(seed);
        let recent = Activity::new();
        let mut blocks = vec![new_block()];
        // When something was last read, by block, and the latest that it may be taken for.
        let mut read = vec![(0, 0)];
        let mut now = 0;
        for round in 0..5_000 {
            if round % 7 == 0 && blocks.len() < 600 {
                blocks.push(new_block());
                read.push((0, 0));
            }
            let until = now + rng.u64(13..40) * MS;
            for _ in 0..3 {
                now = rng.u64(now..until);
                let block = rng.usize(..blocks.len());
                let bound = recent.bound().unwrap_or_else(|| recent.open(now, tick()).0);
                blocks[block][block % 64].read.set(bound);
                read[block] = (now, until);
            }
            now = until;
            if recent.look(now, tick()) {
                recent.settle(&blocks);
            }
            let kept = recent.gaps.borrow().known.len();
            assert!(kept <= 2 * GAPS + 2, "seed {seed}: {kept} gaps are kept");
            for (block, (at, most)) in read.iter().enumerate() {
                let resolved = recent.resolve(blocks[block][block % 64].read.get());
                let fits = (*at..=*most.max(&(at + 11 * MS))).contains(&resolved);
                assert!(fits, "seed {seed}, {round}: {at} is taken for {resolved}, not {most}");
            }
        }
    }

    #[test]
    fn nobody_must_look_where_nothing_is_noted() {
        let recent = Activity::new();
        recent.look(5 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (None, Tick::NEVER));
        let (bound, expires) = recent.open(5 * MS, tick());
        assert_eq!((bound, expires), (15 * MS, Tick::new(13)));
        recent.look(8 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (Some(18 * MS), Tick::new(13)));
        recent.look(13 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (None, Tick::NEVER));
    }
}
