//! The nurseries of a shard: how its turns look at them, and how it lends them slots.
//!
//! A timer in a nursery has a slot of the wheel lent to it, so the wheel can always take it over.
//! The room from which nurseries borrow holds all slots that the shard does not need at the moment;
//! the shard takes some back when it needs more. So `lent` slots of the wheel are free at any time.
//!
//! The counts of young timers come with a look, and when the shard ends. Until then they are in no
//! statistics.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::{CancelOutcome, Counters, Shard, Tick, TimerKey};

use super::classes::ClassTable;
use super::effect::Effect;
use super::measures::Measures;
use super::stored::Stored;
use super::{Core, Post, State};
use crate::clock::Timeline;
use crate::link::nursery::{Due, Nursery, Owner, Room, TAKEN_MAX, Table};
use crate::values::class::{ClassId, add_all};

/// The most slots that the shard takes back from the room at a time, or keeps from it.
const TAKEN_BACK_MAX: u32 = 256;
/// The most timers that wait for room and that a turn serves.
const SERVED_MAX: usize = 1_024;

pub(super) struct Nurseries {
    /// By their indices; `None` for one that is gone.
    known: Vec<Option<Arc<Nursery<Waker>>>>,
    /// The version of the table that `known` was copied from.
    version: u64,
    /// The nursery at which the next turn looks first.
    first: usize,
    /// The slots that are lent: to the room, as credit, and to young timers.
    lent: u64,
    /// Timers that were armed, those of them that were armed by the shard's own thread, and timers
    /// that ended while they were young, and that were taken over.
    armed: u64,
    armed_here: u64,
    ended: u64,
    taken_over: u64,
    /// The most timers that were pending at once, young ones included.
    pending_max: u64,
    /// The nurseries that a turn has looked at and whose counts it has not taken yet.
    looked_at: Vec<u16>,
}

impl Nurseries {
    /// The nurseries of a shard that has lent all of its slots to their room.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            known: Vec::new(),
            version: 0,
            first: 0,
            lent: u64::from(capacity),
            armed: 0,
            armed_here: 0,
            ended: 0,
            taken_over: 0,
            pending_max: 0,
            looked_at: Vec::new(),
        }
    }

    /// The timers that were young when the shard last looked.
    pub(super) fn young(&self) -> u64 {
        self.armed - self.ended - self.taken_over
    }

    /// The counts of the wheel, with the timers that have not come to it.
    pub(super) fn counters(&self, wheel: &Counters) -> Counters {
        let mut counters = *wheel;
        // The wheel counts a timer that it takes over as its own.
        counters.scheduled_local -= self.taken_over;
        counters.scheduled_local += self.armed_here;
        counters.scheduled_remote += self.armed - self.armed_here;
        counters.cancelled += self.ended;
        counters.pending_max = counters.pending_max.max(self.pending_max);
        counters
    }

    fn get(&self, nursery: u16) -> Option<&Arc<Nursery<Waker>>> {
        self.known.get(usize::from(nursery))?.as_ref()
    }

    /// A timer is due in the wheel, at the tick that begins at `now`.
    pub(super) fn fire(&self, nursery: u16, slot: u32, now: u64) -> Due<Waker> {
        self.get(nursery).map_or(Due::Nothing, |nursery| nursery.fire(slot, now))
    }

    /// The earliest look that a nursery wants.
    fn look_by(&self) -> u64 {
        let known = self.known.iter().flatten();
        known.fold(u64::MAX, |earliest, nursery| earliest.min(nursery.look_by()))
    }

    /// Takes lent slots back until `count` of the wheel's are free, if the room has as many.
    pub(super) fn take_back<T: 'static>(
        &mut self,
        wheel: &Shard<Stored<T>>,
        room: &Room,
        count: usize,
    ) -> bool {
        let free = unused_slots(wheel).saturating_sub(self.lent);
        let lacking = (count as u64).saturating_sub(free);
        if lacking > 0 {
            // More at a time, of a large room.
            let more = (wheel.capacity() as u32 / 64).min(TAKEN_BACK_MAX);
            self.lent -= u64::from(room.take_all((lacking as u32).max(more)));
        }
        unused_slots(wheel) >= self.lent + count as u64
    }

    /// Grants a key, if a slot of the wheel is free that no nursery has borrowed.
    pub(super) fn grant_key<T: 'static>(
        &mut self,
        wheel: &mut Shard<Stored<T>>,
        room: &Room,
    ) -> Option<TimerKey> {
        if self.take_back(wheel, room, 1) { wheel.grant() } else { None }
    }

    fn refresh(&mut self, table: &Table<Waker>) {
        if table.version() != self.version {
            (self.known, self.version) = table.all();
        }
    }
}

/// A shard that takes the timers of a nursery over.
struct TakesOver<'a, T: 'static> {
    wheel: &'a mut Shard<Stored<T>>,
    classes: &'a mut ClassTable,
    lent: &'a mut u64,
    taken_over: &'a mut u64,
    time: &'a Timeline,
    nursery: u16,
    now: u64,
}

impl<T: 'static> Owner for TakesOver<'_, T> {
    fn take_over(&mut self, slot: u32, deadline: u64, class: u8) -> u64 {
        let deadline = self.time.ceil(deadline);
        let Ok(key) = self.wheel.schedule(deadline, Stored::Slot(self.nursery, slot)) else {
            unreachable!("a slot is lent to each timer of a nursery")
        };
        *self.lent -= 1;
        *self.taken_over += 1;
        let class = ClassId::from_bits(class);
        if class.is_some() {
            self.classes.enter(class, key.index(), self.now);
        }
        u64::from(key.index()) << 32 | u64::from(key.generation().get())
    }

    fn cancel(&mut self, key: u64) {
        if let Some(key) = key_of(key) {
            if let CancelOutcome::Cancelled { deadline, .. } = self.wheel.cancel(key) {
                let class = self.classes.class_of(key.index());
                if class.is_some() {
                    let due = self.time.start_of(deadline);
                    self.classes.cancel(class, key.index(), due, self.now);
                }
            }
        }
    }

    fn reset(&mut self, key: u64, deadline: u64) {
        if let Some(key) = key_of(key) {
            let _fired_already = self.wheel.reset(key, self.time.ceil(deadline));
        }
    }
}

/// The slots of a wheel without a timer and without a key, lent ones included.
#[inline]
fn unused_slots<T: 'static>(wheel: &Shard<Stored<T>>) -> u64 {
    (wheel.capacity() - wheel.len() - wheel.granted() - wheel.retired()) as u64
}

/// The key that a nursery keeps as a number.
fn key_of(bits: u64) -> Option<TimerKey> {
    let generation = NonZeroU32::new(bits as u32)?;
    Some(TimerKey::from_parts((bits >> 32) as u32, generation))
}

impl<T: 'static> Core<T> {
    /// Looks at the nurseries whose time has come, and takes over up to `max` timers. True if more
    /// are left to do.
    pub(super) fn look_at_nurseries(&self, now: u64, max: usize) -> bool {
        let more = {
            let mut state = self.state.borrow_mut();
            state.nurseries.refresh(&self.post().nurseries);
            let begun = self.time().round_down(now);
            let is_short = self.post().nurseries.is_short();
            // Nearly all turns.
            if state.nurseries.look_by() > begun && !is_short {
                return false;
            }
            let waiting = if is_short { self.post().nurseries.begin_serving() } else { 0 };
            let is_wanted = |nursery: &Nursery<Waker>| is_short || nursery.look_by() <= begun;
            let more = state.look(self.post(), begun, now, max, is_wanted);
            more | (is_short && state.serve(waiting, more))
        };
        self.run_effects();
        more
    }

    /// Whether a nursery wants a look before a tick, or is new. Called after the fence of the
    /// wake-up protocol.
    pub(crate) fn has_look_before(&self, until: Tick) -> bool {
        let nurseries = &self.state.borrow().nurseries;
        let table = &self.post().nurseries;
        let look_by = self.time().ceil(nurseries.look_by());
        table.version() != nurseries.version || table.is_short() || look_by < until
    }

    /// Lends one more slot, for a future on the shard's own thread: it has the slots that are
    /// reserved for threads, too, and those of timers that have ended if the caller has borrowed
    /// nothing. False if there is none.
    pub(crate) fn lend_one(&self, is_borrowed: bool) -> bool {
        if !is_borrowed {
            {
                let state = &mut *self.state.borrow_mut();
                state.nurseries.refresh(&self.post().nurseries);
                state.look(self.post(), 0, 0, TAKEN_MAX as usize, |_| true);
            }
            self.run_effects();
        }
        let has_slot = {
            let state = &mut *self.state.borrow_mut();
            let has_slot = state.has_own_slot() || state.take_credit_back() || state.free_slot();
            if has_slot {
                state.nurseries.lent += 1;
                self.post().nurseries.room().give(1);
            }
            has_slot
        };
        self.wake_for_effects();
        has_slot
    }

    /// How many timers are young. Takes the lock of each nursery.
    pub(super) fn young(&self) -> usize {
        let state = &mut *self.state.borrow_mut();
        state.nurseries.refresh(&self.post().nurseries);
        state.nurseries.known.iter().flatten().map(|nursery| nursery.young() as usize).sum()
    }

    /// When a nursery wants the next look.
    pub(super) fn next_look(&self) -> Tick {
        self.time().ceil(self.state.borrow().nurseries.look_by())
    }

    /// Takes all young timers over, and refuses all that threads arm from then on.
    pub(super) fn close_nurseries(&self, now: u64) {
        let state = &mut *self.state.borrow_mut();
        state.nurseries.known = self.post().nurseries.close();
        // Timers that wait for room find the shard closed.
        let waiting = self.post().nurseries.end_serving(usize::MAX, false);
        state.left.effects.extend(waiting.into_iter().map(Effect::Wake));
        for index in 0..state.nurseries.known.len() {
            let Some(nursery) = state.nurseries.known[index].clone() else { continue };
            loop {
                let State { wheel, measured, nurseries, left, directory, .. } = state;
                let (classes, unused_wakers) = (&mut measured.classes, &mut left.unused_wakers);
                let Nurseries { lent, taken_over, .. } = nurseries;
                let (time, nursery_) = (&directory.time, index as u16);
                let mut owner =
                    TakesOver { wheel, classes, lent, taken_over, time, nursery: nursery_, now };
                if !nursery.close(&mut owner, unused_wakers) {
                    break;
                }
            }
            state.nurseries.looked_at.push(index as u16);
        }
        state.settle_all(self.post());
    }
}

impl<T: 'static> State<T> {
    /// Looks at the nurseries that are `wanted`, at the tick that begins at `begun`, and takes over
    /// up to `max` timers. True if more are left to do.
    fn look(
        &mut self,
        post: &Post<T>,
        begun: u64,
        now: u64,
        max: usize,
        wanted: impl Fn(&Nursery<Waker>) -> bool,
    ) -> bool {
        let count = self.nurseries.known.len();
        let due = self.nurseries.known.iter().flatten().filter(|nursery| wanted(nursery)).count();
        // Each has an equal share, so that the timers of one thread do not hold up the others'.
        let share = (max / due.max(1)).max(TAKEN_MAX as usize);
        let (mut left, mut more) = (max, false);
        for place in 0..count {
            let index = (self.nurseries.first + place) % count;
            let Some(nursery) = self.nurseries.known[index].clone() else { continue };
            if !wanted(&nursery) {
                continue;
            }
            if left == 0 {
                self.nurseries.first = index;
                more = true;
                break;
            }
            let mut of_this = share.min(left);
            loop {
                let Self { wheel, measured, nurseries, left: kept, directory, .. } = self;
                let (classes, unused_wakers) = (&mut measured.classes, &mut kept.unused_wakers);
                let Nurseries { lent, taken_over, .. } = nurseries;
                let (time, number) = (&directory.time, index as u16);
                let mut owner =
                    TakesOver { wheel, classes, lent, taken_over, time, nursery: number, now };
                let (done, is_more) =
                    nursery.look(begun, of_this as u32, &mut owner, unused_wakers);
                left = left.saturating_sub(done as usize);
                of_this = of_this.saturating_sub(done as usize);
                if !is_more || of_this == 0 {
                    more |= is_more;
                    break;
                }
            }
            self.nurseries.looked_at.push(index as u16);
        }
        self.settle_all(post);
        more
    }

    /// Takes and publishes the counts of the nurseries that were looked at, and removes those that
    /// are over.
    fn settle_all(&mut self, post: &Post<T>) {
        post.published.store_taken(|published| {
            while let Some(index) = self.nurseries.looked_at.pop() {
                let place = usize::from(index);
                let Some(nursery) = self.nurseries.known[place].clone() else { continue };
                if self.settle(&nursery) {
                    self.nurseries.known[place] = None;
                    post.nurseries.remove(index);
                }
            }
            // The timers of a nursery that were taken over are in the wheel before they are in the
            // counts, so all nurseries are settled first.
            let Self { nurseries, wheel, .. } = self;
            let pending = nurseries.young() + wheel.counters().pending();
            nurseries.pending_max = nurseries.pending_max.max(pending);
            self.measured.counts.ended_young = nurseries.ended;
            self.measured.classes.publish(published);
            (self.counters(), self.measured.counts.ended_young)
        });
    }

    /// Takes the counts of a nursery over. Whether the nursery is over.
    fn settle(&mut self, nursery: &Nursery<Waker>) -> bool {
        let Self { measured: Measures { classes, .. }, nurseries, .. } = self;
        let (counts, is_over) = nursery.settle(|class, counts, ended_at| {
            classes.count(ClassId::from_bits(class), |stats| {
                stats.scheduled += counts.armed;
                stats.cancelled += counts.ended;
                add_all(&mut stats.cancelled_at, ended_at);
                stats.pending = (stats.pending + counts.armed).saturating_sub(counts.ended);
            });
        });
        nurseries.armed += counts.armed;
        nurseries.armed_here += if nursery.is_local() { counts.armed } else { 0 };
        nurseries.ended += counts.ended;
        is_over
    }

    /// The counts of the wheel and of the nurseries together.
    pub(super) fn counters(&self) -> Counters {
        self.nurseries.counters(self.wheel.counters())
    }

    /// Whether a slot of the wheel is free that is not lent. Some are taken back if need be.
    #[inline]
    pub(super) fn has_own_slot(&mut self) -> bool {
        unused_slots(&self.wheel) > self.nurseries.lent || self.take_back(1)
    }

    /// The slots that are free and that no nursery has borrowed.
    pub(super) fn free_slots(&self) -> usize {
        let borrowed = self.nurseries.lent.saturating_sub(self.post().nurseries.room().free());
        unused_slots(&self.wheel).saturating_sub(borrowed) as usize
    }

    /// Takes lent slots back until `count` are free, if the room has as many.
    #[cold]
    pub(super) fn take_back(&mut self, count: usize) -> bool {
        let Self { wheel, nurseries, directory, id, .. } = self;
        let post = directory.post(*id).expect("a state is made for a shard of the service");
        nurseries.take_back(wheel, post.nurseries.room(), count)
    }

    /// Grants a key, if a slot is free that no nursery has borrowed.
    pub(super) fn grant_key(&mut self) -> Option<TimerKey> {
        let Self { wheel, nurseries, directory, id, .. } = self;
        let post = directory.post(*id).expect("a state is made for a shard of the service");
        nurseries.grant_key(wheel, post.nurseries.room())
    }

    /// Takes the credit of nurseries back that they do not use. Whether there was any.
    #[cold]
    pub(super) fn take_credit_back(&mut self) -> bool {
        self.nurseries.refresh(&self.directory.post(self.id).expect("it is there").nurseries);
        let known = self.nurseries.known.iter().flatten();
        let credit: u64 = known.map(|nursery| u64::from(nursery.take_credit())).sum();
        self.nurseries.lent -= credit;
        credit > 0
    }

    /// Lends slots to `waiting` timers that have found no room, and has their tasks poll again. The
    /// slots are those that threads do not use, and those that are reserved for threads.
    /// `is_partial` if a look has left timers that have ended for the next turn. True if the next
    /// turn must go on.
    #[cold]
    fn serve(&mut self, waiting: usize, is_partial: bool) -> bool {
        self.take_credit_back();
        let Self { directory, id, .. } = self;
        let post = directory.post(*id).expect("a state is made for a shard of the service");
        let room = Arc::clone(post.nurseries.room());
        let (all, waiting) = (waiting, waiting.min(SERVED_MAX));
        let wanted = waiting as u64;
        let spare_of =
            |state: &Self| unused_slots(&state.wheel).saturating_sub(state.nurseries.lent);
        let (mut spare, mut freed) = (spare_of(self), 0);
        // A thread may take from the room at any time, so what there is is counted before slots are
        // given.
        while spare + room.free() < wanted && freed < TAKEN_MAX && self.free_slot() {
            // A lane that is closed gives all of its keys back.
            (spare, freed) = (spare_of(self), freed + 1);
        }
        let is_full = spare + room.free() < wanted;
        let lent = spare.min(wanted) as u32;
        self.nurseries.lent += u64::from(lent);
        room.give(lent);
        if is_full && (is_partial || freed == TAKEN_MAX) {
            self.post().nurseries.go_on_serving();
            return true;
        }
        let served = self.post().nurseries.end_serving(waiting, is_full);
        self.left.effects.extend(served.into_iter().map(Effect::Wake));
        let has_more = waiting < all;
        if has_more {
            self.post().nurseries.go_on_serving();
        }
        has_more
    }

    /// Lends the slots that the shard does not need. Called at the end of a turn.
    pub(super) fn lend(&mut self) {
        let kept = (self.wheel.capacity() as u64 / 64).min(u64::from(TAKEN_BACK_MAX));
        let spare = unused_slots(&self.wheel).saturating_sub(self.nurseries.lent);
        if spare > 2 * kept {
            let lent = (spare - kept) as u32;
            self.nurseries.lent += u64::from(lent);
            self.post().nurseries.room().give(lent);
        }
    }

    /// Checks what holds between turns.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    #[cfg(feature = "sim")]
    pub(super) fn check_nurseries(&self) {
        let (lent, unused) = (self.nurseries.lent, unused_slots(&self.wheel));
        let shard = self.id;
        let is_closed = self.post().has_ended();
        assert!(is_closed || lent <= unused, "shard {shard} lends {lent} slots of {unused}");
        for nursery in self.nurseries.known.iter().flatten() {
            nursery.check_invariants();
        }
    }
}
