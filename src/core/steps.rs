//! The steps of a turn; [`crate::turn`] says in which order.

use std::task::Waker;
use std::time::Duration;

use corewheel_shard::{Budget, Tick};

use super::classes::Ended;
use super::state::{Effect, Sleeper};
use super::{Core, Delivery};
use crate::class::ClassId;
use crate::contain::contain;
use crate::lane::LaneReceiver;
use crate::mesh::{Job, Order};
use crate::stats::{ShardCounts, ShardState};
use crate::task::{CancelOutcome, Fired, Stored};

/// A lane on which nothing came for this long is closed, so that what was granted to a client that
/// was leaked comes back. A client that is alive notices and opens another.
const LANE_IDLE: Duration = Duration::from_mins(1);

impl<T: Send + 'static> Core<T> {
    /// Takes in what other threads have sent, as much as the budget allows. True if there is more.
    pub(crate) fn receive(&self, now: u64) -> bool {
        let tick = self.directory.tick.floor(now);
        if self.door().answer_knock() {
            self.open_door(tick);
            self.rescale();
        }
        let more = self.drain_lanes(tick, now);
        self.tend_lanes(tick);
        self.run_effects();
        let more_to_move = self.drain_some(now);
        more || more_to_move
    }

    pub(crate) fn advance(&self, now: u64) {
        let budget = self.directory.settings.budget.of_wheel();
        self.state.borrow_mut().shard.advance(self.directory.tick.floor(now), budget);
    }

    /// Makes everything due, for a shutdown that fires what is pending.
    pub(crate) fn advance_to_the_end(&self) {
        self.state.borrow_mut().shard.advance(Tick::NEVER, Budget::UNLIMITED);
    }

    /// The next timer to be delivered, with how late it is at `now`.
    #[inline]
    pub(crate) fn pop(&self, now: u64) -> Option<Delivery<T>> {
        let mut state = self.state.borrow_mut();
        let expired = state.shard.pop_expired_unless(|stored| match stored {
            Stored::Conn(index) => self.postpone_conn(*index),
            _ => None,
        })?;
        let due = self.directory.tick.start_of(expired.deadline);
        let late = now.saturating_sub(due);
        state.lateness.record(late);
        let lateness = Duration::from_nanos(late);
        let late = lateness > self.directory.settings.lateness_bound;
        state.counts.late += u64::from(late);
        state.delivering = state.classes.end(expired.key.index(), Ended::Fired { late });
        Some(match expired.task {
            Stored::Value(task) => Delivery::Value(Fired {
                handle: self.home.handle(expired.key),
                deadline: self.directory.clock.instant(due),
                lateness,
                task,
            }),
            Stored::Call(index) => Delivery::Call(state.calls.remove(index as usize)),
            Stored::Shared(owner, number) => match state.owners.take(owner, number) {
                Some(call) => Delivery::Call(call),
                None => Delivery::Wake(None),
            },
            // No future is told that its time has come before it has, by whatever policy.
            Stored::Sleeper(index) if now < due => {
                Delivery::Wake(state.end_sleep(index, Sleeper::Closed))
            }
            Stored::Sleeper(index) => Delivery::Wake(state.end_sleep(index, Sleeper::Fired)),
            Stored::Conn(index) => self.take_conn_events(&mut state, index),
        })
    }

    /// What a delivery came to.
    #[inline]
    pub(crate) fn note_delivery(&self, calm: bool, took: u64) {
        let over = Duration::from_nanos(took) > self.directory.settings.overrun;
        if over || !calm {
            {
                let mut state = self.state.borrow_mut();
                state.counts.overrun += u64::from(over);
                state.counts.panicked += u64::from(!calm);
            }
            if over {
                self.note_overrun(took);
            }
        }
    }

    /// Runs something of the user's, with nothing borrowed. If it panics, that is logged and
    /// counted; false then.
    pub(crate) fn contain(&self, run: impl FnOnce()) -> bool {
        let calm = contain(self.id, run);
        if !calm {
            self.note_delivery(false, 0);
        }
        calm
    }

    /// Drops values of the user's one at a time, with nothing borrowed; each that panics is logged
    /// and counted.
    pub(crate) fn drop_each<V>(&self, values: impl IntoIterator<Item = V>) {
        for value in values {
            self.contain(|| drop(value));
        }
    }

    /// Counts what is done with timers that were delivered.
    pub(crate) fn count(&self, count: impl FnOnce(&mut ShardCounts)) {
        count(&mut self.state.borrow_mut().counts);
    }

    pub(crate) fn note_turn(&self, exhausted: bool) {
        let mut state = self.state.borrow_mut();
        state.delivering = ClassId::NONE;
        state.counts.turns += 1;
        state.counts.turns_exhausted += u64::from(exhausted);
    }

    /// Stores the counts where everybody can read them.
    pub(crate) fn publish(&self) {
        let lanes = self.lanes.borrow();
        let state = &mut *self.state.borrow_mut();
        state.counts.take_over(state.shard.counters());
        state.counts.granted = state.shard.granted() as u64;
        state.counts.lanes = lanes.len() as u64;
        state.counts.lane_depth = lanes.iter().map(|lane| lane.depth() as u64).sum();
        (state.counts.scaled_pending, state.counts.scaled_fired) = self.scaling.counts();
        state.counts.connections = self.conn_count() as u64;
        let published = &self.door().published;
        let classes = &mut state.classes;
        published.store(&state.counts, &mut state.lateness, &mut state.ring_delay, |published| {
            classes.publish(published);
        });
    }

    /// When to take the next turn.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        let next = self.state.borrow().shard.next_deadline();
        let next = [next, self.drain_retries_at()].into_iter().flatten().min();
        let next = next.unwrap_or(Tick::NEVER).min(self.recent.expires());
        Some(next).filter(|next| *next < Tick::NEVER)
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.state.borrow().shard.is_behind() || self.scaling.is_due()
    }

    pub(crate) fn take_jobs(&self) -> Vec<Job<T>> {
        std::mem::take(&mut *self.jobs.borrow_mut())
    }

    pub(crate) fn take_order(&self) -> Option<Order<T>> {
        self.order.borrow_mut().take()
    }

    /// Goes to sleep by the bell's protocol. False if something came meanwhile.
    pub(crate) fn fall_asleep(&self, until: Tick, waker: &Waker) -> bool {
        let door = self.door();
        self.asleep_until.set(until);
        if self.sleeps_lightly() {
            door.bell.doze(waker);
        } else {
            door.bell.fall_asleep(until, waker);
        }
        if door.is_knocked() || self.lanes.borrow().iter().any(LaneReceiver::has_news) {
            self.wake_up();
            return false;
        }
        true
    }

    pub(crate) fn wake_up(&self) {
        self.asleep_until.set(Tick::ZERO);
        self.door().bell.wake_up();
    }

    /// Whether anything has come in since the last turn, for a driver that spins.
    pub(crate) fn has_news(&self) -> bool {
        self.door().is_knocked() || self.lanes.borrow().iter().any(LaneReceiver::has_news)
    }

    /// Takes in what was left at the door, and fills the bank.
    pub(super) fn open_door(&self, tick: Tick) {
        let mut state = self.state.borrow_mut();
        let mut visitors = self.door().visitors();
        match visitors.state {
            ShardState::Waiting => visitors.state = ShardState::Running,
            ShardState::Running => {}
            // The service was shut down before the shard was driven.
            ShardState::Closed | ShardState::Dead => return self.closed.set(true),
        }
        for mut lane in visitors.arriving.drain(..) {
            lane.used_at = tick;
            self.lanes.borrow_mut().push(lane);
        }
        self.jobs.borrow_mut().append(&mut visitors.jobs);
        self.scaling.want(visitors.scale);
        if let Some(order) = visitors.order.take() {
            *self.order.borrow_mut() = Some(order);
        }
        while visitors.bank.len() < self.directory.settings.grant_window {
            let Some(key) = state.shard.grant() else { break };
            visitors.bank.push_back(key);
        }
    }

    pub(super) fn drain_lanes(&self, tick: Tick, now: u64) -> bool {
        let mut lanes = self.lanes.borrow_mut();
        if lanes.is_empty() {
            return false;
        }
        let state = &mut *self.state.borrow_mut();
        // Every lane has its share, so that one that floods does not starve another.
        let share = (self.directory.settings.budget.requests_max as usize / lanes.len()).max(1);
        let mut more = false;
        for lane in lanes.iter_mut() {
            let drained = lane.drain(share, |request, key, max| {
                state.apply_some(request, key, max, now, &self.directory)
            });
            if drained > 0 {
                state.counts.requests += drained as u64;
                lane.used_at = tick;
                more |= drained == share;
            }
            for _ in 0..lane.wants_keys(self.directory.settings.grant_window) {
                // What is kept for newcomers is the last that there is for those who are here.
                let reserve = || self.door().visitors().bank.pop_back();
                let Some(key) = state.shard.grant().or_else(reserve) else { break };
                lane.grant(key);
            }
        }
        more
    }

    /// Lets go of lanes whose client is gone, and now and then of those that have long been idle.
    pub(super) fn tend_lanes(&self, tick: Tick) {
        let mut lanes = self.lanes.borrow_mut();
        if lanes.iter().any(LaneReceiver::is_finished) {
            for lane in lanes.extract_if(.., |lane| lane.is_finished()) {
                self.let_go(lane);
            }
        }
        let idle = self.directory.tick.ceil(LANE_IDLE.as_nanos() as u64).index();
        if tick.saturating_since(self.lanes_checked.get()) >= idle {
            self.lanes_checked.set(tick);
            for lane in lanes.extract_if(.., |lane| tick.saturating_since(lane.used_at) >= idle) {
                self.let_go(lane);
            }
        }
    }

    /// Closes a lane, drains it for the last time and takes its keys back.
    pub(super) fn let_go(&self, mut lane: LaneReceiver<T>) {
        lane.close();
        let now = self.nanos();
        let state = &mut *self.state.borrow_mut();
        lane.drain_last(|request, key, max| {
            state.apply_some(request, key, max, now, &self.directory)
        });
        self.door().visitors().forget(lane.shared());
        for key in lane.hand_back() {
            state.shard.revoke(key);
            if let Some(answer) = state.overtaken.remove(&key) {
                state.effects.push(Effect::Cancelled(answer, CancelOutcome::Stale));
            }
        }
    }

    pub(super) fn run_effects(&self) {
        loop {
            let mut effects = {
                let mut state = self.state.borrow_mut();
                if state.effects.is_empty() {
                    return;
                }
                std::mem::take(&mut state.effects)
            };
            for effect in effects.drain(..) {
                self.contain(|| effect.run(self));
            }
            let mut state = self.state.borrow_mut();
            if state.effects.is_empty() {
                // The room is kept for the next turn.
                state.effects = effects;
            }
        }
    }
}
