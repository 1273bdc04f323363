//! How a shard takes what other threads have sent, and what it publishes for them.

use std::time::Duration;

use corewheel_shard::Tick;

use super::effect::Effect;
use super::payload::Payload;
use super::request::{Request, ShutdownOrder};
use super::{Core, State};
use crate::link::lane::LaneReceiver;
use crate::stats::ShardCounts;
use crate::values::outcome::CancelOutcome;

/// A lane on which nothing came for this long is closed. Without that, the keys that were granted
/// to a client which was leaked, with `std::mem::forget` or in a reference cycle, would stay
/// reserved as long as the service lives. A client that is alive opens another lane when it next
/// sends.
const LANE_IDLE: Duration = Duration::from_mins(1);

impl<P: Payload> Core<P> {
    /// Takes mail if any has come.
    pub(super) fn take_mail(&self, now: u64) {
        if self.post().mailbox.take_flag() {
            self.state.borrow_mut().take_mail(self.time().floor(now));
            self.take_scale();
        }
    }

    /// Takes requests off the lanes and moves timers of a drain, `requests_max` of both together.
    /// True if there is more.
    pub(super) fn receive(&self, now: u64, requests_max: u32) -> bool {
        let tick = self.time().floor(now);
        let (more, left) = {
            let mut state = self.state.borrow_mut();
            let received = state.receive(tick, now, requests_max as usize);
            state.tend_lanes(tick, now);
            received
        };
        self.run_effects();
        let more_to_move = self.drain_some(now, left);
        more || more_to_move
    }

    /// The jobs that have come for the driver.
    pub(crate) fn take_jobs(&self) -> Vec<P::Job> {
        std::mem::take(&mut self.state.borrow_mut().jobs)
    }

    pub(super) fn take_shutdown_order(&self) -> Option<ShutdownOrder<P>> {
        self.state.borrow_mut().shutdown.take()
    }

    /// Sets the gauges of the parts to what they are now.
    pub(crate) fn set_gauges(&self, counts: &mut ShardCounts) {
        self.parts.fold((), |(), part| part.publish(counts));
    }

    /// Stores the counts where every thread can read them.
    pub(crate) fn publish(&self) {
        let state = &mut *self.state.borrow_mut();
        let counts = &mut state.counts;
        counts.take_over(state.wheel.counters());
        counts.granted = state.wheel.granted() as u64;
        counts.lanes = state.lanes.len() as u64;
        counts.lane_depth = state.lanes.iter().map(|lane| lane.depth() as u64).sum();
        self.set_gauges(counts);
        let classes = &mut state.classes;
        let (lateness, ring_delay) = (&mut state.lateness, &mut state.ring_delay);
        self.post().published.store(counts, lateness, ring_delay, |published| {
            classes.publish(published);
        });
    }
}

impl<P: Payload> State<P> {
    /// Takes up to `max` requests off the lanes, at least one off each. True if there is more, and
    /// what is left of `max` for a drain, which is at least one.
    fn receive(&mut self, tick: Tick, now: u64, max: usize) -> (bool, usize) {
        if self.lanes.is_empty() {
            return (false, max);
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        // Every lane has its share, so that one that floods does not starve another; so has a
        // drain.
        let shares = lanes.len() + usize::from(self.draining.is_some());
        let share = (max / shares).max(1);
        let (mut more, mut spent) = (false, 0);
        for lane in &mut lanes {
            let received =
                lane.drain(share, |request, key, max| self.apply_some(request, key, max, now));
            if received > 0 {
                self.counts.requests += received as u64;
                lane.used_at = tick;
                more |= received == share;
                spent += received;
            }
            self.grant(lane);
        }
        self.lanes = lanes;
        (more, max.saturating_sub(spent).max(1))
    }

    /// Grants a client the keys that it is short of.
    #[inline]
    fn grant(&mut self, lane: &mut LaneReceiver<Request<P>>) {
        for _ in 0..lane.wants_keys(self.directory.settings.grant_window) {
            // The key pool is the last reserve for the clients that are there.
            let Some(key) = self.wheel.grant().or_else(|| self.take_pool_key()) else { break };
            lane.grant(key);
        }
    }

    /// Lets go of lanes whose client is gone, and now and then of those that have long been idle.
    fn tend_lanes(&mut self, tick: Tick, now: u64) {
        if self.lanes.iter().any(LaneReceiver::is_finished) {
            self.let_go_of(now, LaneReceiver::is_finished);
        }
        let idle = self.directory.time.ceil(LANE_IDLE.as_nanos() as u64).index();
        if tick.saturating_since(self.lanes_checked) >= idle {
            self.lanes_checked = tick;
            self.let_go_of(now, |lane| tick.saturating_since(lane.used_at) >= idle);
        }
    }

    fn let_go_of(&mut self, now: u64, is_over: impl Fn(&LaneReceiver<Request<P>>) -> bool) {
        let over: Vec<_> = self.lanes.extract_if(.., |lane| is_over(lane)).collect();
        for lane in over {
            self.let_go(lane, now);
        }
    }

    /// Closes a lane, takes the last requests off it and takes its keys back.
    pub(super) fn let_go(&mut self, mut lane: LaneReceiver<Request<P>>, now: u64) {
        lane.close();
        lane.drain_last(|request, key, max| self.apply_some(request, key, max, now));
        self.post().mailbox.forget(lane.shared());
        for key in lane.hand_back() {
            self.wheel.revoke(key);
            if let Some(reply) = self.overtaken.remove(&key) {
                self.effects.push(Effect::Cancelled(reply, CancelOutcome::Stale));
            }
        }
    }
}
