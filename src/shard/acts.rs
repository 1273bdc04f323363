//! How a turn acts for the threads whose futures wait for a shard's timers.
//!
//! A turn takes the timers of one thread that are due, up to 64 under one lock, wakes their futures
//! one after the other, and then counts them. Why not one at a time: the worker that runs a woken
//! task is done with it before the shard wakes the next one. The worker sleeps then, is woken for
//! the next task, and takes the shard's processor each time. Threads have their turns one after the
//! other.
//!
//! A future that a timer guards decides after its runtime has looked at its sockets. Where the
//! runtime of the thread is known, the turn hands the wakers over to it: see
//! [`Relay`](crate::link::thread_timers::Relay).

use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::{Counters, Tick};

use super::classes::Ended;
use super::core::{Core, Effect, State};
use super::measures::Measures;
use super::threads::{TAKEN_BACK_MAX, unused_slots};
use crate::link::thread_timers::{Due, TAKEN_MAX, ThreadTimers};
use crate::values::class::ClassId;
use crate::values::contain::each;

/// The most timers that wait for room and that a turn serves.
const SERVED_MAX: usize = 1_024;
/// The most timers of a thread that are taken, under several locks, before the first is woken: as
/// many as a turn delivers by default.
const WOKEN_MAX: usize = 384;
/// The most wakes that are timed together, all of one class. A reading of the clock before each
/// would cost each timeout that fires.
const TIMED_MAX: usize = 16;

impl<T: 'static> Core<T> {
    /// Acts for the next thread that needs it by the tick `last`, for up to `max` timers: wakes the
    /// futures whose timers are due, and files those that have aged. Returns how many timers that
    /// were, 0 if no thread needs an act, and the time after the last wake.
    pub(super) fn act_for_thread(&self, last: Tick, now: u64, max: usize) -> (usize, u64) {
        // A shutdown fires all timers, early ones too.
        let begun = if self.is_closed() { u64::MAX } else { self.time().start_of(last) };
        let (mut due, mut done, thread_timers) = {
            let State { threads, left, .. } = &mut *self.state.borrow_mut();
            let Some((index, thread_timers)) = threads.next_by(begun) else { return (0, now) };
            let mut due = std::mem::take(&mut threads.due);
            let (mut done, mut is_more) = (0, true);
            while is_more && done < max.min(WOKEN_MAX) {
                let most = (max.min(WOKEN_MAX) - done) as u32;
                let (count, more) =
                    thread_timers.act(begun, most, &mut due, &mut left.unused_wakers);
                (done, is_more) = (done + count as usize, more);
            }
            if threads.acted_for.last() != Some(&index) {
                threads.acted_for.push(index);
            }
            (due, done, thread_timers)
        };
        done = done.max(1);
        // Timers that a shutdown fires before their time are woken here.
        let relay = thread_timers.relay().filter(|_| !self.is_closed());
        let mut relayed = Vec::new();
        let now = self.wake_all(&mut due, now, relay.is_some().then_some(&mut relayed));
        if let Some(relay) = relay.filter(|_| !relayed.is_empty()) {
            let until = begun.saturating_add(self.time().clock().since_first);
            // The runtime has ended.
            let kept = relay.take_over(relayed, until).err();
            each(kept.into_iter().flatten(), Waker::wake);
        }
        self.state.borrow_mut().threads.due = due;
        self.run_effects();
        (done, now)
    }

    /// Wakes futures whose timers were taken out at `taken`, and counts them. Returns the time
    /// after the last wake. What is guarded goes into `relayed` instead, and counts as woken.
    fn wake_all(
        &self,
        due: &mut Vec<Due<Waker>>,
        taken: u64,
        mut relayed: Option<&mut Vec<Waker>>,
    ) -> u64 {
        let mut now = if due.len() > 1 { self.nanos_near() } else { taken };
        let mut woken = due.drain(..).peekable();
        let mut late: [u64; TIMED_MAX] = [0; TIMED_MAX];
        while let Some(class) = woken.peek().map(|due| due.class) {
            self.deliver_as(ClassId::from_bits(class));
            let mut count = 0;
            while count < TIMED_MAX {
                let next = woken.next_if(|due| due.class == class);
                let Some(Due { carried, at, is_guarded, .. }) = next else { break };
                late[count] = at;
                count += 1;
                if let Some(relayed) = relayed.as_mut().filter(|_| is_guarded) {
                    relayed.push(carried);
                    continue;
                }
                // A waker that panics harms no other one.
                self.contain(|| carried.wake());
            }
            let after = self.nanos_near();
            self.note_delivery(after.saturating_sub(now));
            let state = &mut *self.state.borrow_mut();
            for (index, due) in late[..count].iter().enumerate() {
                // All but the first have the time after the last one.
                let at = if index == 0 { now } else { after };
                let class = ClassId::from_bits(class);
                let late = at.saturating_sub(*due);
                state.measured.begin_delivery((class, None), late, self.time(), || at);
            }
            now = after;
        }
        now
    }

    /// Looks for room for timers that have found none. True if more is left to do.
    pub(super) fn serve_threads(&self) -> bool {
        // Nearly all turns.
        if !self.post().threads.is_short() {
            return false;
        }
        let more = {
            let state = &mut *self.state.borrow_mut();
            let waiting = self.post().threads.begin_serving();
            state.end_on_all_threads();
            state.serve(waiting)
        };
        self.run_effects();
        more
    }

    /// Whether a thread needs an act before a tick, or is new. Called after the fence of the
    /// wake-up protocol.
    pub(crate) fn has_act_before(&self, until: Tick) -> bool {
        let threads = &self.state.borrow().threads;
        let table = &self.post().threads;
        let act_by = self.time().ceil(threads.act_by());
        table.version() != threads.version || table.is_short() || act_by < until
    }

    /// How many timers of threads are pending. Takes the lock of each thread.
    pub(super) fn pending_of_threads(&self) -> usize {
        let state = &mut *self.state.borrow_mut();
        state.threads.refresh();
        state
            .threads
            .known
            .iter()
            .flatten()
            .map(|thread_timers| thread_timers.pending() as usize)
            .sum()
    }

    /// Refuses all timers that threads arm from then on. Those that there are stay.
    pub(super) fn close_threads(&self) {
        let state = &mut *self.state.borrow_mut();
        state.threads.known = self.post().threads.close();
        // Timers that wait for room find the shard closed.
        let waiting = self.post().threads.end_serving(usize::MAX, false);
        state.left.effects.extend(waiting.into_iter().map(Effect::Wake));
        for (index, thread_timers) in state.threads.known.iter().enumerate() {
            let Some(thread_timers) = thread_timers else { continue };
            while thread_timers.close(&mut state.left.unused_wakers) {}
            state.threads.acted_for.push(index as u16);
        }
        state.settle_all();
    }
}

impl<T: 'static> State<T> {
    /// Ends the timers that have ended on other threads than they were armed on.
    #[cold]
    pub(super) fn end_on_all_threads(&mut self) {
        let Self { threads, left, .. } = self;
        threads.refresh();
        for (index, thread_timers) in threads.known.iter().enumerate() {
            let Some(thread_timers) = thread_timers else { continue };
            while thread_timers.end_some(&mut left.unused_wakers) {}
            threads.acted_for.push(index as u16);
        }
        self.settle_all();
    }

    /// Takes all timers of threads out, and has their futures woken, which find the shard closed.
    /// Returns how many there were.
    pub(super) fn take_out_all(&mut self) -> u64 {
        self.settle_all();
        let (mut out, mut count) = (Vec::new(), 0);
        for thread_timers in self.threads.known.iter().flatten() {
            loop {
                let more = thread_timers.take_out(&mut out);
                count += out.len() as u64;
                for Due { carried, class, .. } in out.drain(..) {
                    self.left.effects.push(Effect::Wake(carried));
                    let class = ClassId::from_bits(class);
                    self.measured.classes.end_of_thread(class, Ended::Dropped);
                }
                if !more {
                    break;
                }
            }
        }
        self.threads.taken_out += count;
        count
    }

    /// Takes and publishes the counts of the threads for which the shard has acted, and removes
    /// those that are over.
    pub(super) fn settle_all(&mut self) {
        if self.threads.acted_for.is_empty() {
            return;
        }
        let front = Arc::clone(&self.threads.front);
        front.published.store_taken(|published| {
            while let Some(index) = self.threads.acted_for.pop() {
                let place = usize::from(index);
                let Some(thread_timers) = self.threads.known[place].clone() else { continue };
                if self.settle(&thread_timers) {
                    self.threads.known[place] = None;
                    front.threads.remove(index);
                }
            }
            self.measured.counts.ended_young = self.threads.counts.young;
            self.measured.classes.publish(published);
            (self.counters(), self.threads.counts.young)
        });
    }

    /// Takes the counts of a thread over. Whether the thread and its timers are over.
    fn settle(&mut self, thread_timers: &ThreadTimers<Waker>) -> bool {
        let Self { measured: Measures { classes, .. }, threads, .. } = self;
        let (counts, is_over) = thread_timers.settle(|class, counts| {
            classes.count(ClassId::from_bits(class), |stats| {
                stats.scheduled += counts.armed;
                stats.cancelled += counts.ended;
                stats.pending = counts.pending_after(stats.pending);
            });
        });
        threads.counts.add(counts);
        threads.armed_here += if thread_timers.is_local { counts.armed } else { 0 };
        is_over
    }

    /// The counts of the wheel and of the threads together.
    pub(super) fn counters(&self) -> Counters {
        self.threads.counters(self.wheel.counters())
    }

    /// Whether a slot of the wheel is free that is not lent. Some are taken back if need be.
    #[inline]
    pub(super) fn has_own_slot(&mut self) -> bool {
        unused_slots(&self.wheel) > self.threads.lent || self.threads.take_back(&self.wheel, 1)
    }

    /// The slots that are free and that no thread has borrowed.
    pub(super) fn free_slots(&self) -> usize {
        let borrowed = self.threads.lent.saturating_sub(self.threads.table().room().free());
        unused_slots(&self.wheel).saturating_sub(borrowed) as usize
    }

    /// Takes the credit of threads back that they do not use. Whether there was any.
    #[cold]
    pub(super) fn take_credit_back(&mut self) -> bool {
        self.threads.refresh();
        let known = self.threads.known.iter().flatten();
        let credit: u64 = known.map(|thread_timers| u64::from(thread_timers.take_credit())).sum();
        self.threads.lent -= credit;
        credit > 0
    }

    /// The slots that the shard has not lent and does not use.
    fn spare(&self) -> u64 {
        unused_slots(&self.wheel).saturating_sub(self.threads.lent)
    }

    /// Lends slots to `waiting` timers that have found no room, and has their tasks poll again. The
    /// slots are those that threads do not use, and those that are reserved for threads.
    /// True if the next turn must go on.
    #[cold]
    fn serve(&mut self, waiting: usize) -> bool {
        self.take_credit_back();
        let room = Arc::clone(self.threads.table().room());
        let (all, waiting) = (waiting, waiting.min(SERVED_MAX));
        let wanted = waiting as u64;
        let (mut spare, mut freed) = (self.spare(), 0);
        // A thread may take from the room at any time, so what there is is counted before slots are
        // given.
        while spare + room.free() < wanted && freed < TAKEN_MAX && self.free_slot() {
            // A lane that is closed gives all of its keys back.
            (spare, freed) = (self.spare(), freed + 1);
        }
        let is_full = spare + room.free() < wanted;
        self.threads.lend(spare.min(wanted));
        if is_full && freed == TAKEN_MAX {
            self.threads.table().go_on_serving();
            return true;
        }
        let served = self.threads.table().end_serving(waiting, is_full);
        self.left.effects.extend(served.into_iter().map(Effect::Wake));
        let has_more = waiting < all;
        if has_more {
            self.threads.table().go_on_serving();
        }
        has_more
    }

    /// Lends the slots that the shard does not need. Called at the end of a turn.
    pub(super) fn lend(&mut self) {
        let kept = (self.wheel.capacity() as u64 / 64).min(u64::from(TAKEN_BACK_MAX));
        let spare = self.spare();
        if spare > 2 * kept {
            self.threads.lend(spare - kept);
        }
    }
}
