//! How a shard receives mail and requests of other threads, and publishes its counts for them.

use std::time::Duration;

use corewheel_shard::Tick;

use super::core::{Core, State};
use super::request::{Control, Request, ShutdownOrder, freed_by};
use super::timers::{Job, SendCall};
use crate::link::lane::LaneReceiver;
use crate::link::mailbox;
use crate::stats::publish::Measured;

/// The shard closes a lane on which no request came for this long. Otherwise the keys of a thread
/// that sends nothing any more would stay reserved as long as it lives. It opens another lane when
/// it next sends.
const LANE_IDLE: Duration = Duration::from_secs(60);

impl<T: 'static> Core<T> {
    /// Takes the mail if any has come. False if none has.
    pub(super) fn take_mail(&self, now: u64) -> bool {
        let has_mail = self.post().mailbox.take_flag();
        if has_mail {
            self.state.borrow_mut().take_mail(self.time().floor(now));
            self.take_orders();
        }
        has_mail
    }

    /// Receives up to `requests_max` requests from the lanes, and looks for room for timers of
    /// threads. True if more is left to do.
    pub(super) fn receive(&self, now: u64, requests_max: u32) -> bool {
        let tick = self.time().floor(now);
        if self.held_lanes.get() {
            self.run_effects();
            return self.serve_threads();
        }
        let more = {
            let mut state = self.state.borrow_mut();
            let more = state.receive(tick, now, requests_max as usize);
            state.close_unused_lanes(tick, now);
            more
        };
        self.run_effects();
        self.serve_threads() || more
    }

    /// When a turn looks at the lanes though nothing in them may wake the shard; `None` if no turn
    /// needs to.
    pub(super) fn lanes_due(&self) -> Option<Tick> {
        if self.held_lanes.get() {
            // A turn looks at no lane.
            return None;
        }
        let state = self.state.borrow();
        state.inbox.frees_at
    }

    /// Takes the jobs that have come for the driver.
    pub(crate) fn take_jobs(&self) -> Vec<Job<T>> {
        std::mem::take(&mut self.state.borrow_mut().mail.jobs)
    }

    /// Takes the callbacks of the mail.
    pub(super) fn take_calls(&self) -> Vec<SendCall<T>> {
        std::mem::take(&mut self.state.borrow_mut().mail.calls)
    }

    pub(super) fn take_shutdown_order(&self) -> Option<ShutdownOrder<T>> {
        self.state.borrow_mut().mail.shutdown.take()
    }

    /// Has the parts write their gauges.
    pub(super) fn set_gauges(&self, state: &mut State<T>) {
        state.measured.gauges.clear();
        self.parts.each(|id, part| {
            part.publish(&mut state.measured.gauges_of(id));
            true
        });
        state.measured.publish_gauges(&self.post().published);
    }

    /// How many connections the shard has now.
    #[allow(dead_code, reason = "only drivers in executors wait for the sockets")]
    pub(crate) fn connections(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        self.set_gauges(state);
        state.measured.counts.connections
    }

    /// Stores the counts where every thread can read them.
    pub(crate) fn publish(&self) {
        let state = &mut *self.state.borrow_mut();
        let counters = state.counters();
        // The gauges with which a shard has ended stay.
        let may_change = !state.measured.gauges.is_empty() && !self.parts.ended.get();
        if !self.parts.none_turns() || may_change {
            self.set_gauges(state);
        }
        let counts = &mut state.measured.counts;
        counts.take_over(&counters);
        counts.panicked = self.panicked.get();
        counts.granted = state.wheel.granted() as u64;
        counts.lanes = state.inbox.lanes.len() as u64;
        let depths = state.inbox.lanes.iter().map(|lane| lane.depth() as u64);
        let (sum, deepest) = depths.fold((0, 0), |(sum, max), one| (sum + one, one.max(max)));
        counts.lane_depth = sum;
        let times = &mut state.measured.times;
        counts.lane_depth_max = times.deepest_lane.note(times.last.ended, deepest);
        counts.lanes_flooded += u64::from(deepest > self.directory.settings.lane_flood);
        state.measured.live.set_memory(state.wheel.memory() as u64);
        let times = Measured {
            lateness: &mut state.measured.lateness,
            ring_delay: &mut state.measured.ring_delay,
            turn_time: &mut state.measured.times.taken,
            late: &mut state.measured.times.late,
        };
        let classes = &mut state.measured.classes;
        let published = &self.post().published;
        published.store(counts, times, |published| classes.publish(published));
    }
}

impl<T: 'static> State<T> {
    /// Takes the mail, and fills the key pool.
    pub(super) fn take_mail(&mut self, tick: Tick) {
        let window = self.directory.settings.grant_window;
        let Self { wheel, threads, directory, id, .. } = self;
        let post = directory.post(*id).expect("a state is made for a shard of the service");
        let grant = || threads.grant_key(wheel);
        let mailbox::Taken { lanes, control, .. } = post.mailbox.take(window, grant);
        self.accept(lanes, control, tick);
    }

    pub(super) fn accept(
        &mut self,
        lanes: Vec<LaneReceiver<Request<T>>>,
        control: Vec<Control<T>>,
        tick: Tick,
    ) {
        for mut lane in lanes {
            lane.used_at = tick;
            self.inbox.lanes.push(lane);
        }
        for message in control {
            match message {
                Control::Job(job) => self.mail.jobs.push(job),
                Control::Call(call) => self.mail.calls.push(call),
                Control::Shutdown(order) => self.mail.shutdown = Some(order),
            }
        }
    }

    /// Receives up to `max` requests from the lanes, at least one from each. True if more are left.
    fn receive(&mut self, tick: Tick, now: u64, max: usize) -> bool {
        self.inbox.soon = freed_by(&self.directory.time, now);
        self.inbox.frees_at = self.inbox.frees_at.filter(|at| *at > tick);
        if self.inbox.lanes.is_empty() {
            return false;
        }
        let mut lanes = std::mem::take(&mut self.inbox.lanes);
        // Each lane has an equal share, so that a flooded lane does not starve the others.
        let share = (max / lanes.len()).max(1);
        let mut more = false;
        let mut is_short = false;
        for lane in &mut lanes {
            let received = lane.receive(share, |request, how| self.apply_some(request, how, now));
            lane.is_in_use = received > 0;
            if received > 0 {
                self.measured.counts.requests += received as u64;
                lane.used_at = tick;
                more |= received == share;
            }
            is_short |= self.grant(lane);
        }
        if is_short {
            self.grant_reclaimed(&mut lanes, tick, now);
        }
        self.inbox.lanes = lanes;
        if std::mem::take(&mut self.inbox.has_freed) {
            self.inbox.frees_at = Some(self.inbox.soon);
        }
        more
    }

    /// Grants a thread new keys if it has few left. True if there are not enough.
    #[inline]
    fn grant(&mut self, lane: &mut LaneReceiver<Request<T>>) -> bool {
        let wanted = lane.wants_keys();
        if wanted == 0 {
            return false;
        }
        let is_short = self.grant_some(lane, wanted) < wanted;
        if is_short {
            lane.set_short();
        } else {
            lane.set_exhausted(None);
        }
        is_short
    }

    /// Closes the lanes whose thread is gone, and once in [`LANE_IDLE`] the lanes that were idle
    /// for so long. A lane that got no keys for so long has a smaller window from then on.
    fn close_unused_lanes(&mut self, tick: Tick, now: u64) {
        if self.inbox.lanes.iter().any(LaneReceiver::is_finished) {
            self.close_lanes(now, LaneReceiver::is_finished);
        }
        let idle = self.directory.time.ceil(LANE_IDLE.as_nanos() as u64).index();
        if tick.saturating_since(self.inbox.lanes_checked) >= idle {
            self.inbox.lanes_checked = tick;
            self.close_lanes(now, |lane| tick.saturating_since(lane.used_at) >= idle);
            self.inbox.lanes.iter_mut().for_each(LaneReceiver::shrink);
        }
    }

    fn close_lanes(&mut self, now: u64, is_unused: impl Fn(&LaneReceiver<Request<T>>) -> bool) {
        let mut unused = Vec::new();
        while let Some(at) = self.inbox.lanes.iter().position(&is_unused) {
            unused.push(self.inbox.lanes.remove(at));
        }
        for lane in unused {
            self.close_lane(lane, now);
        }
    }

    /// Closes a lane, receives its last requests and takes its keys back.
    pub(super) fn close_lane(&mut self, mut lane: LaneReceiver<Request<T>>, now: u64) {
        lane.close(|request, how| self.apply_some(request, how, now));
        self.post().mailbox.forget(lane.shared());
        for key in lane.hand_back() {
            self.revoke(key);
        }
    }
}
