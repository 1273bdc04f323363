//! What one core owns: a wheel, the timers in it, and what is due.
//!
//! Why not fire callbacks from here: whoever is called would find the shard borrowed. A shard hands
//! expired timers out one by one and is free in between, so that whatever is run for one of them
//! may schedule, cancel and reset, and a timer that is due but not handed out can still be
//! cancelled.
//!
//! Invariants: every pending timer has exactly one entry that is not stale; a timer is handed out
//! when the wheel has reached its deadline, and the wheel never passes the tick it was told.
//! Absent by design: a clock, a lock, an atomic, a walk over all timers.

mod peek;

use crate::config::{ConfigError, ShardConfig, WheelKind};
use crate::counters::Counters;
use crate::key::TimerKey;
use crate::outcome::{ArmOutcome, Budget, CancelOutcome, Expired, Full, ResetOutcome};
use crate::slab::{Armed, Cancelled, Entry, Moved, Ripe, Slab, State};
use crate::tick::Tick;
use crate::wheel::{Batch, HashedWheel, HierarchicalWheel, SLICE_CHUNKS, Side, Slots, Step, Wheel};

/// The timers of one core.
///
/// The methods come in four families. *Commands* ([`schedule`](Self::schedule),
/// [`cancel`](Self::cancel), [`reset`](Self::reset), [`drain`](Self::drain)) may be used at any
/// time, between two expired timers as well. *Inputs* ([`grant`](Self::grant),
/// [`arm`](Self::arm), [`revoke`](Self::revoke)) are for timers that come from other threads.
/// *Time* goes in this order: [`advance`](Self::advance) says what time it is,
/// [`pop_expired`](Self::pop_expired) is called until it returns `None`, and
/// [`next_deadline`](Self::next_deadline) says when to advance again. *Queries* change nothing.
///
/// ```
/// use corewheel_shard::{Budget, Shard, ShardConfig, Tick};
///
/// let mut shard = Shard::new(ShardConfig::default())?;
/// let hello = shard.schedule(Tick::new(3), "hello")?;
/// let world = shard.schedule(Tick::new(5), "world")?;
/// assert_eq!(shard.cancel(hello).task(), Some("hello"));
///
/// // The wheel may ask to be advanced before the deadline, never after it.
/// while let Some(tick) = shard.next_deadline() {
///     shard.advance(tick, Budget::default());
///     while let Some(expired) = shard.pop_expired() {
///         assert_eq!((expired.key, expired.task), (world, "world"));
///         assert_eq!(tick, Tick::new(5));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shard<T> {
    slab: Slab<T>,
    slots: Slots,
    wheel: Wheel,
    /// Entries that are being handed out.
    batch: Batch,
    /// The latest tick that was told.
    horizon: u64,
    /// Before this tick no turn has anything to do. Zero where that is not known.
    quiet_until: u64,
    expired_left: u32,
    work_left: u32,
    /// How many more timers may go before the stale entries are looked at.
    sweep_in: u32,
    counters: Counters,
}

/// Constructor.
impl<T> Shard<T> {
    /// A shard without timers, with room reserved for all it can hold.
    ///
    /// # Errors
    ///
    /// A field of `config` that is out of its limits, or no memory for the capacity.
    pub fn new(config: ShardConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let start = config.start.index();
        let bits = config.slots.next_power_of_two().ilog2();
        let level_bits = config.level_slots.next_power_of_two().ilog2();
        let (wheel, wheel_slots) = match config.wheel {
            WheelKind::Hierarchical => (
                Wheel::Hierarchical(HierarchicalWheel::new(bits, level_bits, start)),
                HierarchicalWheel::slot_count(bits, level_bits),
            ),
            WheelKind::Hashed => (Wheel::Hashed(HashedWheel::new(bits, start)), 1 << bits),
        };
        let out_of_memory = ConfigError::OutOfMemory { capacity: config.capacity };
        Ok(Self {
            slab: Slab::with_capacity(config.capacity).ok_or(out_of_memory)?,
            slots: Slots::with_capacity(wheel_slots, config.capacity).ok_or(out_of_memory)?,
            wheel,
            batch: Batch::EMPTY,
            horizon: start,
            quiet_until: 0,
            expired_left: 0,
            work_left: 0,
            sweep_in: 1,
            counters: Counters::default(),
        })
    }
}

/// Commands.
impl<T> Shard<T> {
    /// Adds a timer. It is handed out by the first turn at or after `deadline`; one that is due
    /// already by the next turn.
    ///
    /// Timers are handed out in the order of their deadlines, and those of one tick in the order in
    /// which they were scheduled. A timer that is due already comes behind all timers that were due
    /// when it was scheduled, and before all that were not.
    ///
    /// O(1): a slot of the slab and an entry of the wheel are written.
    ///
    /// # Errors
    ///
    /// [`Full`] with the task, if there is no slot left.
    #[inline]
    pub fn schedule(&mut self, deadline: Tick, task: T) -> Result<TimerKey, Full<T>> {
        match self.slab.insert(deadline.index(), task) {
            Ok((key, entry)) => {
                self.counters.scheduled_local += 1;
                self.file(entry, deadline.index());
                self.note_pending();
                Ok(key)
            }
            Err(task) => {
                self.counters.refused += 1;
                Err(Full(task))
            }
        }
    }

    /// Ends a timer that has not been handed out, whether it is due or not.
    ///
    /// O(1): the timer's slot is written; its entry is left behind and swept later, some 60
    /// entries with every fourth cancel once there are many.
    #[inline]
    pub fn cancel(&mut self, key: TimerKey) -> CancelOutcome<T> {
        match self.slab.cancel(key) {
            Cancelled::Armed { deadline, task } => {
                self.counters.cancelled += 1;
                self.pay_for_sweep();
                CancelOutcome::Cancelled { deadline: Tick::new(deadline), task }
            }
            Cancelled::Other(State::Granted) => {
                self.slab.doom(key);
                CancelOutcome::Overtook
            }
            Cancelled::Other(State::Fired) => {
                self.counters.stale += 1;
                CancelOutcome::AlreadyFired
            }
            Cancelled::Other(_) => {
                self.counters.stale += 1;
                CancelOutcome::Stale
            }
        }
    }

    /// Moves a timer that has not been handed out to another deadline.
    ///
    /// O(1). Later is one store: the entry is filed anew when its old place comes round, and only
    /// then does the timer take its place among those of its new tick. Earlier takes a new entry.
    #[inline]
    pub fn reset(&mut self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        match self.slab.reset(key, deadline.index()) {
            Moved::Later => {
                self.counters.reset_lazy += 1;
                ResetOutcome::Moved
            }
            Moved::Earlier(entry) => {
                self.file(entry, deadline.index());
                self.counters.reset_relinked += 1;
                self.pay_for_sweep();
                ResetOutcome::Moved
            }
            Moved::Other(State::Granted) => {
                self.slab.redirect(key, deadline.index());
                ResetOutcome::Overtook
            }
            Moved::Other(State::Fired) => {
                self.counters.stale += 1;
                ResetOutcome::AlreadyFired
            }
            Moved::Other(_) => {
                self.counters.stale += 1;
                ResetOutcome::Stale
            }
        }
    }

    /// Takes all pending timers out, in no particular order, and counts them as returned.
    ///
    /// What the iterator has not yielded when it is dropped stays pending.
    pub fn drain(&mut self) -> Drain<'_, T> {
        Drain { shard: self, from: 0 }
    }
}

/// Inputs: timers that come from elsewhere, after a key that was given in advance.
impl<T> Shard<T> {
    /// Reserves a slot for a timer that is still to come, and names it. `None` if there is none.
    ///
    /// A granted key takes up capacity and is not pending.
    pub fn grant(&mut self) -> Option<TimerKey> {
        self.slab.grant()
    }

    /// Adds the timer for a granted key.
    #[inline]
    pub fn arm(&mut self, key: TimerKey, deadline: Tick, task: T) -> ArmOutcome<T> {
        match self.slab.arm(key, deadline.index(), task) {
            Armed::At { deadline, entry } => {
                self.counters.scheduled_remote += 1;
                self.file(entry, deadline);
                self.note_pending();
                ArmOutcome::Armed
            }
            Armed::Doomed(task) => {
                self.counters.scheduled_remote += 1;
                self.counters.cancelled += 1;
                self.counters.overtaken += 1;
                ArmOutcome::Overtaken(task)
            }
            Armed::NotGranted(task) => ArmOutcome::NotGranted(task),
        }
    }

    /// Takes a granted key back whose timer will not come. False if the key is not granted.
    pub fn revoke(&mut self, key: TimerKey) -> bool {
        self.slab.revoke(key)
    }
}

/// Time.
impl<T> Shard<T> {
    /// Begins a turn: says what time it is and how much may be done about it.
    ///
    /// The work itself is done by [`pop_expired`](Self::pop_expired). A tick before the last one
    /// that was told is taken as that one.
    #[inline]
    pub fn advance(&mut self, now: Tick, budget: Budget) {
        self.expired_left = budget.expired_max;
        self.work_left = budget.work_max;
        let now = self.horizon.max(now.index());
        if now < self.quiet_until {
            self.wheel.pass(now);
        } else {
            // What the last turn took off the wheel and did not hand out comes first.
            self.work_left = budget.work_max.saturating_sub(self.batch.len());
            self.slots.admit_deferred(self.horizon);
        }
        self.horizon = now;
    }

    /// Hands out the next timer that is due, until none is or the turn's budget is used up; which
    /// of the two, [`is_behind`](Self::is_behind) tells.
    ///
    /// O(1) a timer, and for a gap of any length O(levels) for each tick at which timers are due.
    #[inline]
    pub fn pop_expired(&mut self) -> Option<Expired<T>> {
        self.pop_expired_unless(|_| None)
    }

    /// The same for timers of which some may be due later than they were scheduled: `postpone` is
    /// asked about each that has come up, and a tick that it answers with is the timer's deadline
    /// from then on. Its key stays what it is.
    ///
    /// So a deadline that moves with each packet is kept where the packet is handled anyway, at the
    /// cost of a store, and the shard is not told before it matters. One that moves earlier has to
    /// be [`reset`](Self::reset). A timer that is postponed to the tick of the last advance or
    /// before comes up again in the next turn.
    ///
    /// A timer that is postponed counts as cascaded; it uses the budget of entries, not that of
    /// timers.
    ///
    /// # Panics
    ///
    /// Where `postpone` panics. The timer that it was asked about stays pending, with its deadline,
    /// and comes up again in the next call.
    #[inline]
    pub fn pop_expired_unless(
        &mut self,
        mut postpone: impl FnMut(&T) -> Option<Tick>,
    ) -> Option<Expired<T>> {
        if self.horizon < self.quiet_until {
            return None;
        }
        loop {
            while self.expired_left > 0
                && let Some(entry) = self.batch.first()
            {
                // It may have been cancelled or moved since the batch was looked at.
                let ripe = self.slab.expire(entry, self.wheel.now(), &mut postpone);
                // Not before: where `postpone` panics, the entry is still to be handed out.
                self.batch.skip();
                match ripe {
                    Ripe::Due { key, deadline, task } => {
                        self.expired_left -= 1;
                        self.counters.fired += 1;
                        // With one timer less, fewer stale entries are allowed.
                        self.pay_for_sweep();
                        return Some(Expired { key, deadline: Tick::new(deadline), task });
                    }
                    Ripe::Later(deadline) => {
                        self.counters.cascaded += 1;
                        self.file_ahead(entry, deadline);
                    }
                    Ripe::Postponed(deadline) => {
                        self.counters.cascaded += 1;
                        self.file(entry, deadline);
                    }
                    Ripe::Stale => self.counters.swept += 1,
                }
            }
            if self.expired_left == 0 || !self.open_batch() {
                return None;
            }
        }
    }

    /// When to advance next: a tick that is not later than the earliest deadline. `None` if nothing
    /// is pending.
    ///
    /// It may be earlier, by what is left of the level that the timer is filed in, and the turn
    /// then only brings it nearer; so a single timer costs at most one such turn a level. At or
    /// before the tick of the last advance if that turn left work behind.
    ///
    /// O(levels).
    #[inline]
    pub fn next_deadline(&self) -> Option<Tick> {
        // Stale entries are no reason to wake up.
        if self.is_empty() {
            return None;
        }
        if !self.batch.is_empty() || self.slots.has_late() {
            return Some(Tick::new(self.horizon));
        }
        self.wheel.next(&self.slots).map(Tick::new)
    }
}

/// Queries.
impl<T> Shard<T> {
    /// Whether timers may be due that have not been handed out: the turn's budget did not suffice,
    /// or something that is due was scheduled since the turn began.
    pub fn is_behind(&self) -> bool {
        self.horizon >= self.quiet_until
            && self.next_deadline().is_some_and(|next| next.index() <= self.horizon)
    }

    /// How many timers are pending.
    #[inline]
    pub fn len(&self) -> usize {
        self.slab.armed() as usize
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many timers fit, granted keys and retired slots included.
    pub fn capacity(&self) -> usize {
        self.slab.capacity() as usize
    }

    /// How many slots are reserved for timers still to come.
    pub fn granted(&self) -> usize {
        self.slab.granted() as usize
    }

    /// How many slots have used up their generations and are out of use.
    pub fn retired(&self) -> usize {
        self.slab.retired() as usize
    }

    /// How many entries the wheel holds, stale ones included: at most twice [`len`](Self::len) and
    /// a constant.
    pub fn entries(&self) -> usize {
        self.slots.entries() as usize + self.batch.len() as usize
    }

    /// The latest tick that was told.
    pub fn now(&self) -> Tick {
        Tick::new(self.horizon)
    }

    /// When a pending timer is due; `None` if `key` names none.
    pub fn deadline(&self, key: TimerKey) -> Option<Tick> {
        match self.slab.state(key) {
            State::Armed { deadline } => Some(Tick::new(deadline)),
            _ => None,
        }
    }

    /// What a pending timer was scheduled with; `None` if `key` names none.
    pub fn task(&self, key: TimerKey) -> Option<&T> {
        match self.slab.state(key) {
            State::Armed { .. } => self.slab.task(key.index()),
            _ => None,
        }
    }

    /// What has been done so far.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Looks at everything and compares it with everything else. O(n): for tests.
    ///
    /// # Panics
    ///
    /// With a sentence and the values, if something is wrong with the shard.
    pub fn check_invariants(&self) {
        self.slab.check_invariants();
        self.slots.check_invariants();
        assert_eq!(self.counters.pending(), self.len() as u64, "pending is what the counts say");
        assert!(self.wheel.now() <= self.horizon, "the wheel is ahead of time");
        let first_side = self.slots.side(Side::Late);
        let mut live = 0;
        let mut earliest = None;
        self.slots.for_each(|slot, entry| {
            if let Some(deadline) = self.slab.probe(entry) {
                live += 1;
                earliest = Some(earliest.map_or(deadline, |first: u64| first.min(deadline)));
                if slot < first_side {
                    self.wheel.check_filing(slot, deadline);
                }
            }
        });
        for (entry, _) in self.batch.iter() {
            live += u64::from(self.slab.probe(entry).is_some());
        }
        assert_eq!(live, self.len() as u64, "each pending timer has one entry that counts");
        let (entries, max) = (self.entries() as u64, self.slots.entries_max(live));
        assert!(entries <= max, "{entries} entries for {live} timers: more than {max}");
        if let (Some(earliest), Some(next)) = (earliest, self.next_deadline()) {
            let bound = earliest.max(self.horizon);
            assert!(next.index() <= bound, "next {next:?} is later than the first, {bound}");
        }
        if self.horizon < self.quiet_until {
            let due = self.slots.has_late() || !self.batch.is_empty();
            assert!(!due, "quiet, and something is due");
            let next = self.wheel.next(&self.slots).unwrap_or(u64::MAX);
            assert!(self.quiet_until <= next, "quiet until {}, past {next}", self.quiet_until);
        }
        assert!(live == 0 || self.next_deadline().is_some(), "something pending, nothing next");
    }
}

impl<T> Shard<T> {
    #[inline]
    fn file(&mut self, entry: Entry, deadline: u64) {
        if deadline > self.horizon {
            self.file_ahead(entry, deadline);
        } else {
            self.slots.defer(entry);
            self.quiet_until = 0;
        }
    }

    /// Files an entry that the wheel has not come to.
    #[inline]
    fn file_ahead(&mut self, entry: Entry, deadline: u64) {
        let comes_up = self.wheel.file(&mut self.slots, entry, deadline);
        if comes_up < self.quiet_until {
            self.quiet_until = comes_up;
        }
    }

    #[inline]
    fn note_pending(&mut self) {
        let pending = u64::from(self.slab.armed());
        if pending > self.counters.pending_max {
            self.counters.pending_max = pending;
        }
    }

    /// A timer has gone or has left an entry behind: pays for the removal of stale entries.
    #[inline]
    fn pay_for_sweep(&mut self) {
        self.sweep_in -= 1;
        if self.sweep_in == 0 {
            self.sweep();
        }
    }

    #[inline(never)]
    fn sweep(&mut self) {
        let live = u64::from(self.slab.armed());
        self.sweep_in = if self.slots.is_sweeping() || self.slots.wants_sweep(live) {
            self.counters.swept += u64::from(self.slots.sweep_slice(&self.slab));
            if self.slots.must_hurry(live) { 1 } else { SLICE_CHUNKS }
        } else {
            self.slots.until_sweep(live)
        };
    }

    /// Takes what is due off a slot. False if there is nothing.
    fn take_batch(&mut self, slot: usize) -> bool {
        let taken = self.slots.take_batch(slot, self.work_left, &self.slab, &mut self.batch);
        if taken {
            self.count_taken();
        }
        taken
    }

    fn count_taken(&mut self) {
        self.work_left = self.work_left.saturating_sub(self.batch.examined());
        self.counters.swept += u64::from(self.batch.examined() - self.batch.len());
    }

    /// Takes the next entries that are due, in the order of their ticks: those of the wheel up to
    /// where late ones come in, these, and so on up to the horizon.
    fn open_batch(&mut self) -> bool {
        loop {
            if self.work_left == 0 {
                return false;
            }
            let late_after = self.slots.late_after();
            let step = self.wheel.step(
                &mut self.slots,
                &self.slab,
                late_after.unwrap_or(self.horizon),
                &mut self.work_left,
                &mut self.counters,
            );
            match step {
                Step::Due { slot } => {
                    if self.work_left > 0 && self.take_batch(slot) {
                        return true;
                    }
                }
                Step::Reached { .. } if late_after.is_some() => {
                    self.slots.take_late(self.work_left, &self.slab, &mut self.batch);
                    self.count_taken();
                    return true;
                }
                Step::Reached { next } => {
                    self.quiet_until = if self.slots.has_deferred() { 0 } else { next };
                    return false;
                }
                Step::Exhausted => return false,
            }
        }
    }
}

/// All pending timers, one by one; made by [`Shard::drain`].
#[derive(Debug)]
pub struct Drain<'a, T> {
    shard: &'a mut Shard<T>,
    from: u32,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = Expired<T>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.shard.slab.next_armed(self.from)?;
        self.from = index + 1;
        let (key, deadline, task) = self.shard.slab.remove(index);
        self.shard.counters.returned += 1;
        self.shard.pay_for_sweep();
        Some(Expired { key, deadline: Tick::new(deadline), task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_retired_slot_stays_stale() {
        let mut shard = Shard::new(ShardConfig { capacity: 3, ..ShardConfig::default() }).unwrap();
        shard.slab.limit_generations(3);
        let keys = [(); 6].map(|()| {
            let key = shard.schedule(Tick::new(5), ()).unwrap();
            assert!(shard.cancel(key).task().is_some());
            shard.check_invariants();
            key
        });
        assert_eq!(shard.retired(), 3);
        assert!(shard.schedule(Tick::new(5), ()).is_err());
        for key in keys {
            assert_eq!(shard.cancel(key), CancelOutcome::Stale);
            assert_eq!(shard.reset(key, Tick::new(9)), ResetOutcome::Stale);
        }
    }
}
