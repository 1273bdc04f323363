//! The timers of one core: a wheel, a slab of timers and the entries that are due.
//!
//! Why not call callbacks from here: a callback would find the shard borrowed. A shard hands
//! expired timers out one by one and is not borrowed in between. So the code that runs for one of
//! them may schedule, cancel and reset, and can still cancel a timer that is due but not handed
//! out.
//!
//! Invariants: every pending timer has exactly one live entry; the shard hands a timer out when the
//! wheel has reached its deadline; the wheel never passes the tick of the last `advance`. Absent by
//! design: a clock, a lock, an atomic, and a walk over all timers but in [`Shard::drain`].

mod check;
mod granted;
mod soonest;
mod usage;

use core::iter;

use self::soonest::Index;
use crate::config::{ConfigError, ShardConfig, WheelKind};
use crate::counters::Counters;
use crate::key::TimerKey;
use crate::outcome::{Budget, CancelOutcome, Expired, Full, ResetOutcome};
use crate::slab::{Cancelled, Entry, GRANT_CANCELLED, Popped, Reset, Slab, State};
use crate::tick::Tick;
use crate::wheel::{Batch, HashedWheel, HierarchicalWheel, SLICE_CHUNKS, Slots, Step, Wheel};

/// The timers of one core.
///
/// The methods come in four families. *Commands* ([`schedule`](Self::schedule),
/// [`cancel`](Self::cancel), [`reset`](Self::reset), [`drain`](Self::drain)) may be called at any
/// time, also between two calls of `pop_expired`. *Inputs* ([`grant`](Self::grant),
/// [`arm`](Self::arm), [`revoke`](Self::revoke)) are for timers that arrive from other threads.
/// *Time* goes in this order: the caller passes the current tick to [`advance`](Self::advance),
/// calls [`pop_expired`](Self::pop_expired) until it returns `None`, and asks
/// [`next_deadline`](Self::next_deadline) when to advance again. *Queries* change nothing.
///
/// ```
/// use corewheel_shard::{Budget, Shard, ShardConfig, Tick};
///
/// let mut shard = Shard::new(ShardConfig::default())?;
/// let hello = shard.schedule(Tick::new(3), "hello")?;
/// let world = shard.schedule(Tick::new(5), "world")?;
/// assert_eq!(shard.cancel(hello).payload(), Some("hello"));
///
/// // `next_deadline` may return a tick before the deadline, never one after it.
/// while let Some(tick) = shard.next_deadline() {
///     shard.advance(tick, Budget::default());
///     while let Some(expired) = shard.pop_expired() {
///         assert_eq!((expired.key, expired.payload), (world, "world"));
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
    /// Entries that were taken off the wheel and not handed out.
    batch: Batch,
    /// The latest tick that was passed to `advance`; at first the start of the configuration.
    now: u64,
    /// A turn before this tick has nothing to do. 0 if no such tick is known.
    no_work_before: u64,
    /// What is left of the turn's `expired_max`.
    expired_left: u32,
    /// What is left of the turn's `work_max`.
    work_left: u32,
    /// Counted down by each operation that ends a timer or leaves a stale entry behind. At 0
    /// `sweep_slice` runs and sets it again. At least 1 between operations.
    operations_to_sweep: u32,
    counters: Counters,
    /// The timers that are due first, once a caller has asked for the soonest.
    index: Index<T>,
}

/// Constructor.
impl<T> Shard<T> {
    /// A shard without timers, with memory reserved for the whole capacity.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a field of `config` is out of its limits, or if there is no memory for
    /// the capacity.
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
            now: start,
            no_work_before: 0,
            expired_left: 0,
            work_left: 0,
            operations_to_sweep: 1,
            counters: Counters::default(),
            index: Index::EMPTY,
        })
    }
}

/// Commands.
impl<T> Shard<T> {
    /// Adds a timer. The first turn at or after `deadline` hands it out; if `deadline` has passed
    /// already, the next turn does.
    ///
    /// Timers are handed out in the order of their deadlines, and those of one tick in the order in
    /// which they were scheduled. A timer whose deadline has passed when it is scheduled comes
    /// after all timers that are due at that time, and before all others.
    ///
    /// O(1): a slot of the slab and an entry of the wheel are written.
    ///
    /// # Errors
    ///
    /// [`Full`] with the payload, if no slot is left.
    #[inline(always)]
    pub fn schedule(&mut self, deadline: Tick, payload: T) -> Result<TimerKey, Full<T>> {
        match self.slab.insert(deadline.index(), payload) {
            Ok((key, entry)) => {
                self.counters.scheduled_local += 1;
                self.file(entry, deadline.index());
                Ok(key)
            }
            Err(payload) => {
                self.counters.refused += 1;
                Err(Full(payload))
            }
        }
    }

    /// Ends a timer that has not been handed out, whether it is due or not.
    ///
    /// O(1): the timer's slot is written. Its entry stays behind as a stale one and is swept later:
    /// while there are many stale entries, every 16th cancel, and every fourth while there are far
    /// too many, looks at some 240 entries.
    #[inline]
    pub fn cancel(&mut self, key: TimerKey) -> CancelOutcome<T> {
        match self.slab.cancel(key) {
            Cancelled::Armed { deadline, payload } => {
                self.counters.cancelled += 1;
                self.count_towards_sweep();
                CancelOutcome::Cancelled { deadline: Tick::new(deadline), payload }
            }
            Cancelled::NotArmed => self.cancel_not_armed(key),
        }
    }

    /// Cancels a timer that has not arrived, or says what became of it.
    #[cold]
    #[inline(never)]
    fn cancel_not_armed(&mut self, key: TimerKey) -> CancelOutcome<T> {
        match self.slab.state(key) {
            State::Granted => {
                self.slab.reset_grant(key, GRANT_CANCELLED);
                CancelOutcome::Overtook
            }
            State::Fired => {
                self.counters.stale += 1;
                CancelOutcome::AlreadyFired
            }
            _ => {
                self.counters.stale += 1;
                CancelOutcome::Stale
            }
        }
    }

    /// Changes the deadline of a timer that has not been handed out.
    ///
    /// O(1). A later deadline is one store: the entry is filed again when its slot comes up, and
    /// the timer comes after the timers that were filed for the new tick by then. An earlier
    /// deadline takes a new entry.
    #[inline]
    pub fn reset(&mut self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        match self.slab.reset(key, deadline.index()) {
            Reset::Later => {
                self.counters.reset_lazy += 1;
                ResetOutcome::Reset
            }
            Reset::Earlier(entry) => {
                self.file_again(entry, deadline);
                ResetOutcome::Reset
            }
            Reset::NotArmed => self.reset_not_armed(key, deadline),
        }
    }

    /// Resets a timer that has not arrived, or says what became of it.
    #[cold]
    #[inline(never)]
    fn reset_not_armed(&mut self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        match self.slab.state(key) {
            State::Granted => {
                self.slab.reset_grant(key, deadline.index());
                ResetOutcome::Overtook
            }
            State::Fired => {
                self.counters.stale += 1;
                ResetOutcome::AlreadyFired
            }
            _ => {
                self.counters.stale += 1;
                ResetOutcome::Stale
            }
        }
    }

    /// Takes all pending timers out, in no particular order, and counts them as returned.
    ///
    /// Timers that the iterator has not yielded when it is dropped stay pending.
    pub fn drain(&mut self) -> impl Iterator<Item = Expired<T>> {
        let mut from = 0;
        iter::from_fn(move || {
            let index = self.slab.next_armed(from)?;
            from = index + 1;
            let (key, deadline, payload) = self.slab.remove(index);
            self.counters.returned += 1;
            self.count_towards_sweep();
            Some(Expired { key, deadline: Tick::new(deadline), payload })
        })
    }
}

/// Time.
impl<T> Shard<T> {
    /// Begins a turn at the tick `now`, with a limit on its work.
    ///
    /// [`pop_expired`](Self::pop_expired) does the work. If `now` is earlier than the tick of the
    /// last turn, the turn is at the tick of the last turn.
    #[inline]
    pub fn advance(&mut self, now: Tick, budget: Budget) {
        self.expired_left = budget.expired_max;
        self.work_left = budget.work_max;
        let now = self.now.max(now.index());
        if now < self.no_work_before {
            self.wheel.skip_to(now);
        } else {
            // The entries that the last turn took off the wheel and did not hand out come first.
            self.work_left = budget.work_max.saturating_sub(self.batch.len());
            self.slots.make_deferred_late(self.now);
            self.index.drop_if_passed(now);
        }
        self.now = now;
    }

    /// Hands out the next timer that is due. `None` if no timer is due or the turn's budget is used
    /// up; [`is_behind`](Self::is_behind) then returns true if timers may still be due.
    ///
    /// O(1) a timer, and for a gap of any length O(levels) for each tick at which timers are due.
    #[inline]
    pub fn pop_expired(&mut self) -> Option<Expired<T>> {
        self.pop_expired_unless(|_| None)
    }

    /// Hands out the next timer that is due and that `postpone` does not postpone.
    ///
    /// The shard calls `postpone` with the payload of each timer that is due. If `postpone` returns
    /// a tick, the timer stays pending, keeps its key and has that tick as its deadline.
    ///
    /// This suits a deadline that changes with each packet: the caller stores it with the
    /// connection, at the cost of one store, and `postpone` reads it when the earlier deadline is
    /// reached. A change to an earlier deadline needs [`reset`](Self::reset). If `postpone` returns
    /// the tick of the last advance or an earlier one, the timer comes up again in the next turn.
    ///
    /// A postponed timer counts as cascaded; it uses up the budget of entries, not that of timers.
    ///
    /// # Panics
    ///
    /// If `postpone` panics. The timer that it was called for stays pending, with its deadline, and
    /// comes up again in the next call.
    #[inline(always)]
    pub fn pop_expired_unless(
        &mut self,
        mut postpone: impl FnMut(&T) -> Option<Tick>,
    ) -> Option<Expired<T>> {
        // A tick without work costs this comparison and no call, and a timer that is due when its
        // batch is taken off the wheel costs no call either.
        if self.now < self.no_work_before {
            return None;
        }
        loop {
            while self.expired_left > 0 {
                let Some(entry) = self.batch.first() else { break };
                // The timer may have been cancelled or reset since the batch was taken.
                let popped = self.slab.expire(entry, self.wheel.now(), &mut postpone);
                // Not before `expire`: if `postpone` panics, the entry must stay in the batch.
                self.batch.remove_first();
                match popped {
                    Popped::Due { key, deadline, payload } => {
                        self.expired_left -= 1;
                        self.counters.fired += 1;
                        // With fewer live timers, fewer stale entries are allowed.
                        self.count_towards_sweep();
                        return Some(Expired { key, deadline: Tick::new(deadline), payload });
                    }
                    Popped::NotDue(deadline) => self.file_not_due(entry, deadline),
                    Popped::Postponed { deadline, entry } => self.file_postponed(entry, deadline),
                    Popped::Stale => self.counters.swept += 1,
                }
            }
            if self.expired_left == 0 || !self.take_next_batch() {
                return None;
            }
        }
    }

    /// When to advance next: a tick that is not later than the earliest deadline. `None` if no
    /// timer is pending.
    ///
    /// The tick may be earlier than the deadline, on the hierarchical wheel by less than the width
    /// of the timer's slot. A turn at such a tick only files the timer on a lower level, so a
    /// single timer costs at most one such turn a level. The tick is at or before that of the last
    /// advance if that turn left work behind.
    ///
    /// O(levels).
    #[inline]
    pub fn next_deadline(&self) -> Option<Tick> {
        // Stale entries need no turn.
        if self.is_empty() {
            return None;
        }
        if !self.batch.is_empty() || self.slots.has_late() {
            return Some(Tick::new(self.now));
        }
        self.wheel.next_tick(&self.slots).map(Tick::new)
    }
}

/// Queries.
impl<T> Shard<T> {
    /// Whether timers may be due that have not been handed out: the turn's budget did not suffice,
    /// or a timer whose deadline had passed was scheduled since the turn began.
    pub fn is_behind(&self) -> bool {
        self.now >= self.no_work_before
            && self.next_deadline().is_some_and(|next| next.index() <= self.now)
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

    /// How many timers the shard can hold. Granted keys and retired slots take up capacity.
    pub fn capacity(&self) -> usize {
        self.slab.capacity() as usize
    }

    /// How many keys are granted whose timers have not arrived.
    pub fn granted(&self) -> usize {
        self.slab.granted() as usize
    }

    /// How many slots have used up their generations and hold no timer any more.
    pub fn retired(&self) -> usize {
        self.slab.retired() as usize
    }

    /// How many entries the wheel holds, stale ones included: at most twice [`len`](Self::len) plus
    /// a constant.
    pub fn entries(&self) -> usize {
        self.slots.entries() as usize + self.batch.len() as usize
    }

    /// The latest tick that was passed to [`advance`](Self::advance); before that
    /// [`ShardConfig::start`].
    pub fn now(&self) -> Tick {
        Tick::new(self.now)
    }

    /// The deadline of a pending timer; `None` if `key` names none.
    pub fn deadline(&self, key: TimerKey) -> Option<Tick> {
        match self.slab.state(key) {
            State::Armed { deadline } => Some(Tick::new(deadline)),
            _ => None,
        }
    }

    /// The payload of a pending timer; `None` if `key` names none.
    pub fn payload(&self, key: TimerKey) -> Option<&T> {
        match self.slab.state(key) {
            State::Armed { .. } => self.slab.payload(key.index()),
            _ => None,
        }
    }

    /// The counters of the shard.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl<T> Shard<T> {
    /// Files the entry of a due slot again whose timer was reset to a later deadline.
    #[inline(never)]
    fn file_not_due(&mut self, entry: Entry, deadline: u64) {
        self.counters.cascaded += 1;
        self.file_in_wheel(entry, deadline);
    }

    /// Files the new entry of a timer that `postpone` has postponed.
    #[inline(never)]
    fn file_postponed(&mut self, entry: Entry, deadline: u64) {
        self.counters.cascaded += 1;
        self.file(entry, deadline);
    }

    /// Files an entry in the wheel, or defers it to the next turn if its deadline has passed.
    ///
    /// Each schedule comes here. On x86-64 the calls would take as many instructions as the rest.
    #[inline(always)]
    fn file(&mut self, entry: Entry, deadline: u64) {
        if self.index.covers(deadline) {
            self.add_to_index(entry, deadline);
        }
        if deadline > self.now {
            self.file_in_wheel(entry, deadline);
        } else {
            self.defer(entry);
        }
    }

    /// Defers a timer to the next turn.
    #[cold]
    #[inline(never)]
    fn defer(&mut self, entry: Entry) {
        self.slots.defer(entry);
        self.no_work_before = 0;
    }

    /// Files an entry whose deadline the wheel has not reached.
    #[inline(always)]
    fn file_in_wheel(&mut self, entry: Entry, deadline: u64) {
        let comes_up = self.wheel.file(&mut self.slots, entry, deadline);
        if comes_up < self.no_work_before {
            self.no_work_before = comes_up;
        }
    }

    /// Files the new entry of a timer that was reset to an earlier deadline.
    ///
    /// Not inlined, so that [`reset`](Self::reset) is short enough to be inlined in every caller.
    /// If `reset` were longer, the compiler would inline some of its callers and call `reset` from
    /// there. Such a caller then matches on the outcome again, by an indirect jump.
    #[cold]
    #[inline(never)]
    fn file_again(&mut self, entry: Entry, deadline: Tick) {
        self.file(entry, deadline.index());
        self.counters.reset_relinked += 1;
        self.count_towards_sweep();
    }

    /// Counts an operation that ended a timer or left a stale entry behind, and sweeps a slice if
    /// it is time.
    #[inline]
    fn count_towards_sweep(&mut self) {
        self.operations_to_sweep -= 1;
        if self.operations_to_sweep == 0 {
            self.sweep_slice();
        }
    }

    /// Sweeps a slice if there are many stale entries, and decides when to look again.
    #[inline(never)]
    fn sweep_slice(&mut self) {
        let live = u64::from(self.slab.armed());
        if self.slots.wants_slice(live) {
            self.counters.swept += u64::from(self.slots.sweep_slice(&self.slab));
        }
        self.operations_to_sweep = if !self.slots.wants_slice(live) {
            self.slots.operations_to_sweep(live)
        } else if self.slots.is_near_entries_max(live) {
            SLICE_CHUNKS / 4
        } else {
            SLICE_CHUNKS
        };
    }

    /// Takes a batch of entries off a slot. False if the slot is empty.
    fn take_batch_from(&mut self, slot: usize) -> bool {
        let taken = self.slots.take_batch(slot, self.work_left, &self.slab, &mut self.batch);
        if taken {
            self.count_examined();
        }
        taken
    }

    /// Subtracts the batch from the budget and counts its stale entries.
    fn count_examined(&mut self) {
        self.work_left = self.work_left.saturating_sub(self.batch.examined());
        self.counters.swept += u64::from(self.batch.examined() - self.batch.len());
    }

    /// Takes the next batch of entries in the order of their ticks: entries of the wheel up to the
    /// tick of the first group of late timers, then that group, and so on up to the turn's tick.
    /// False if no entry is due or the budget is used up.
    #[inline(never)]
    fn take_next_batch(&mut self) -> bool {
        loop {
            if self.work_left == 0 {
                return false;
            }
            let late_after = self.slots.late_after();
            let step = self.wheel.step(
                &mut self.slots,
                &self.slab,
                late_after.unwrap_or(self.now),
                &mut self.work_left,
                &mut self.counters,
            );
            match step {
                Step::Due { slot } => {
                    if self.work_left > 0 && self.take_batch_from(slot) {
                        return true;
                    }
                }
                Step::Reached { .. } if late_after.is_some() => {
                    self.slots.take_late(self.work_left, &self.slab, &mut self.batch);
                    self.count_examined();
                    return true;
                }
                Step::Reached { next } => {
                    self.no_work_before = if self.slots.has_deferred() { 0 } else { next };
                    return false;
                }
                Step::Exhausted => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests;
