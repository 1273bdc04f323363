//! Where the lateness of a delivery arose, and how long the turns of a shard take.
//!
//! The time from a deadline to the delivery is cut at moments that the shard knows:
//!
//! ```text
//! deadline     came      last turn ended   turn began   first delivery   delivered
//!    |  arrival  |  backlog  |  poll delay  |  backlog  |    handlers    |
//! ```
//!
//! A moment that lies before the one to its left cuts nothing off, so the parts add up. The last
//! four moments are those of the turn, and are noted once a turn. The shard notes when a timer came
//! only for a timer from another thread that came beyond the service's bound. For any other timer
//! it tells from the last turns that the timer cannot have been there: it is due before the turn
//! that the last turn asked for, or at a tick that a turn has finished.
//!
//! Cost: some forty instructions a turn, one comparison for a timer from another thread, and
//! nothing for a timer that is not late.

use corewheel_shard::{Tick, TimerKey};
use hashbrown::HashMap;

use super::{Core, State};
use crate::clock::saturating_nanos;
use crate::stats::late::{LateLog, LateRecord, LatenessParts};
use crate::stats::times::Recorder;

/// The moments of a shard's turns, in nanoseconds.
#[derive(Debug)]
pub(super) struct TurnTimes {
    /// When this turn began.
    began: u64,
    /// When the first delivery of this turn began.
    delivers_since: u64,
    /// When the last turn ended.
    ended: u64,
    /// From when the next turn is due; `u64::MAX` if none is.
    due: u64,
    /// When a command woke the driver before this turn; `u64::MAX` if none did.
    woken: u64,
    /// Timers that are due before this moment came after the last turn.
    none_before: u64,
    /// A turn had time for all timers up to this tick, and began at `finished_at`.
    finished: Tick,
    finished_at: u64,
    /// A request for a timer that is due by this tick came beyond the service's bound.
    late_until: Tick,
    /// Whether the last turn left requests in the lanes.
    left_requests: bool,
    /// Whether the last turn used its budget up.
    used_budget_up: bool,
    /// Whether this turn has used its budget up.
    pub(super) uses_budget_up: bool,
    /// When timers came that came beyond the bound. Emptied by a turn that delivers all that is
    /// due.
    came: HashMap<TimerKey, u64>,
    /// How long turns took.
    pub(super) taken: Recorder,
    pub(super) late: LateLog,
}

impl TurnTimes {
    pub(super) fn new() -> Self {
        Self {
            began: 0,
            delivers_since: 0,
            ended: 0,
            due: u64::MAX,
            woken: u64::MAX,
            none_before: 0,
            finished: Tick::ZERO,
            finished_at: 0,
            late_until: Tick::ZERO,
            left_requests: false,
            used_budget_up: false,
            uses_budget_up: false,
            came: HashMap::new(),
            taken: Recorder::new(),
            late: LateLog::new(),
        }
    }

    #[inline]
    pub(super) fn deliver_from(&mut self, now: u64) {
        self.delivers_since = now;
    }

    /// Whether a request for a timer that is due at `deadline` came beyond the service's bound.
    #[inline]
    pub(super) fn is_beyond_bound(&self, deadline: Tick) -> bool {
        deadline < self.late_until
    }

    /// Notes that a request for a timer came beyond the bound; it was sent at `sent`.
    #[cold]
    pub(super) fn note_came(&mut self, key: TimerKey, deadline: u64, sent: u64) {
        // If the last turn left requests, this one may have waited behind them.
        let came = if self.left_requests { self.began } else { sent.min(self.began) };
        // Else no turn was there that could have received it.
        self.due = self.due.min(deadline.max(came));
        self.came.insert(key, came);
    }

    /// Notes a delivery at `now` that is beyond the bound.
    #[cold]
    fn note_late(&mut self, key: Option<TimerKey>, deadline: u64, now: u64, tick: Tick) -> Parts {
        let came = match key.and_then(|key| self.came.remove(&key)) {
            Some(came) => came,
            // A command on the shard's own thread brought it, and woke the driver if it slept.
            None if deadline < self.none_before && self.woken < u64::MAX => self.woken,
            None if deadline < self.none_before => self.ended,
            None if tick <= self.finished => self.finished_at,
            None => 0,
        };
        let mut at = deadline;
        // The time up to a moment that is not counted yet.
        let mut until = |moment: u64| {
            let moment = moment.clamp(at, now.max(at));
            moment - std::mem::replace(&mut at, moment)
        };
        let arrival = until(came);
        let before = until(self.ended.min(self.began));
        let poll_delay = until(self.began);
        let receiving = until(self.delivers_since);
        LatenessParts { arrival, poll_delay, handlers: until(now), backlog: before + receiving }
    }
}

type Parts = LatenessParts<u64>;

/// The end of a turn.
pub(super) struct TurnEnd {
    /// Whether the turn left requests in the lanes.
    pub(super) left_requests: bool,
    /// Whether a turn is due at once.
    pub(super) is_more: bool,
    /// The tick at which the next turn is due.
    pub(super) next: Option<Tick>,
}

impl<T: 'static> Core<T> {
    /// Notes the beginning of a turn.
    #[inline]
    pub(super) fn begin_turn(&self, now: u64) {
        let state = &mut *self.state.borrow_mut();
        let bound = saturating_nanos(self.directory.settings.lateness_bound);
        let times = &mut state.times;
        times.began = now;
        times.late_until = self.time().floor(now.saturating_sub(bound));
        times.woken = self.woken_at.replace(u64::MAX);
        times.due = times.due.min(times.woken);
        state.live.begin_turn(now);
    }

    /// Notes the end of a turn that has delivered what it could.
    pub(super) fn end_turn(&self, end: &TurnEnd) {
        let now = self.nanos_near();
        let next_due = end.next.map_or(u64::MAX, |next| self.time().start_of(next));
        let state = &mut *self.state.borrow_mut();
        state.lend();
        let State { times, counts, .. } = state;
        let took = now.saturating_sub(times.began);
        times.taken.record(took);
        counts.busy_ns += took;
        counts.turns += 1;
        counts.turns_exhausted += u64::from(end.is_more);
        let limits = &self.directory.settings.warnings;
        // What became due while the turn before ran has not waited for the executor before its end.
        let stalled = times.began.saturating_sub(times.due.max(times.ended));
        if stalled > saturating_nanos(limits.executor_stall) {
            counts.stalls += 1;
            counts.stalled_ns += stalled;
            counts.stall_last_ns = stalled;
        }
        times.used_budget_up = times.uses_budget_up;
        if times.used_budget_up {
            counts.exhausted_row += 1;
            counts.exhausted_rows +=
                u64::from(counts.exhausted_row == u64::from(limits.exhausted_turns));
        } else {
            counts.exhausted_row = 0;
            times.finished = self.time().floor(times.began);
            times.finished_at = times.began;
            if !times.came.is_empty() {
                times.came.clear();
            }
        }
        times.ended = now;
        times.left_requests = end.left_requests;
        times.due = if end.is_more { now } else { next_due };
        times.none_before = if end.is_more { 0 } else { next_due };
        state.live.end_turn(next_due);
    }

    /// Writes a delivery at `now` down that is `late` nanoseconds late, beyond the bound.
    #[cold]
    pub(super) fn note_late(
        &self,
        state: &mut State<T>,
        key: Option<TimerKey>,
        now: u64,
        late: u64,
    ) {
        let deadline = now.saturating_sub(late);
        let parts = state.times.note_late(key, deadline, now, self.time().floor(deadline));
        state.counts.late += 1;
        let (class, after_budget) = (state.live.delivering(), state.times.used_budget_up);
        state.times.late.push(LateRecord { at: now, class, parts, after_budget });
    }
}
