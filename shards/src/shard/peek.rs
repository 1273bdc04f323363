//! Which timers are pending, without handing them out.

use core::ops::Range;

use super::Shard;
use crate::key::TimerKey;
use crate::slab::Entry;
use crate::wheel::Side;

/// The best that a search has come across.
#[derive(Clone, Copy)]
struct Candidate {
    deadline: u64,
    /// Its entry will be filed anew before it comes up, and takes its place behind the others of
    /// its tick.
    displaced: bool,
    entry: Entry,
}

/// Queries.
impl<T> Shard<T> {
    /// The timer that is handed out next, if nothing is scheduled, cancelled or moved before: the
    /// first of those with the earliest deadline. `None` if nothing is pending.
    ///
    /// Nothing is moved in the wheel for it, so it looks at all timers that are filed together with
    /// the first: O(levels), and those within 256 ticks of each other where the first is more than
    /// 256 ticks away, those within 65,536 where it is more than that away, and so on; all that are
    /// rounds away on the hashed wheel. Those that are due cost nothing of the kind.
    pub fn peek(&self) -> Option<TimerKey> {
        if self.is_empty() {
            return None;
        }
        let key = |candidate: Candidate| self.slab.key(candidate.entry);
        let side = |side| self.slots.entries_of(self.slots.side(side));
        let mut ahead = None;
        let now = self.wheel.now();
        let in_hand = self.batch.iter().map(|(entry, _)| entry);
        if let Some(due) = self.first_due(in_hand.chain(side(Side::Due)), now, &mut ahead) {
            return Some(key(due));
        }
        let fresh_after = now.max(self.fresh_after);
        let fresh = self.first_due(side(Side::Fresh), fresh_after, &mut ahead);
        let fresh_next = self.first_due(side(Side::FreshNext), self.horizon, &mut ahead);
        // What was due as it came is next, but for what the wheel holds up to there.
        let (rival, limit) = match (fresh, fresh_next) {
            (Some(fresh), _) => (Some(fresh), fresh_after),
            (None, Some(fresh_next)) => (Some(fresh_next), self.horizon),
            (None, None) => (None, u64::MAX),
        };
        // Of a slot that is being walked: before what is left in it.
        for entry in side(Side::Ripe).chain(side(Side::Kept)) {
            self.offer(entry, false, &mut ahead);
        }
        self.wheel.visit(&self.slots, |slot, start| {
            if start > ahead.map_or(limit, |best| best.deadline.min(limit)) {
                return false;
            }
            for entry in self.slots.entries_of(slot) {
                if let Some(deadline) = self.slab.probe(entry) {
                    self.offer(entry, !self.wheel.files_in(slot, deadline), &mut ahead);
                }
            }
            true
        });
        ahead.filter(|best| best.deadline <= limit).or(rival).map(key)
    }

    /// The first pending timer in a range of slots, for who walks over all of them in slices. A
    /// timer's slot is its key's index, and below [`capacity`](Self::capacity). O(slots).
    pub fn pending_in(&self, slots: Range<u32>) -> Option<TimerKey> {
        self.slab.first_armed_in(slots)
    }

    /// The first of these entries whose timer is due at `now`. Those before it that are not are
    /// filed ahead when they are met.
    fn first_due(
        &self,
        entries: impl Iterator<Item = Entry>,
        now: u64,
        ahead: &mut Option<Candidate>,
    ) -> Option<Candidate> {
        for entry in entries {
            match self.slab.probe(entry) {
                Some(deadline) if deadline <= now => {
                    return Some(Candidate { deadline, displaced: false, entry });
                }
                Some(_) => self.offer(entry, true, ahead),
                None => {}
            }
        }
        None
    }

    /// Takes an entry instead of the best so far, if it comes before that.
    fn offer(&self, entry: Entry, displaced: bool, best: &mut Option<Candidate>) {
        let Some(deadline) = self.slab.probe(entry) else { return };
        let order = (deadline, displaced);
        if best.is_none_or(|best| order < (best.deadline, best.displaced)) {
            *best = Some(Candidate { deadline, displaced, entry });
        }
    }
}
