//! Where the lateness of a delivery arose, and how long the turns of a shard take.
//!
//! The time from a deadline to the delivery is cut at moments that the shard knows:
//!
//! ```text
//!              last turn                            this turn
//! deadline came  began  1st delivery  ended   began  1st delivery  delivered
//!   | arrival |backlog|  backlog  | handlers |poll delay| backlog | handlers |
//! ```
//!
//! A moment that lies before the one to its left cuts nothing off, so the parts add up. The
//! deliveries of the last turn are `backlog` for a timer that the turn left for want of budget.
//! They are `handlers` for a timer that became due, or came, while they went on.
//!
//! The moments of the turns are noted once a turn. The shard notes when a timer came only for a
//! timer from another thread that came beyond the service's bound. For any other timer it tells
//! from the last turns that the timer cannot have been there: it is due before the turn that the
//! last turn asked for, or at a tick that a turn has finished.
//!
//! A request may lie in its lane while turns in a row leave requests behind. That time is
//! `arrival`, except the deliveries of the longest of these turns, which are `handlers`: without
//! them, the next turn would have come at once. What went before the row is told as for any other
//! timer.
//!
//! Cost: some forty instructions a turn on x86-64, one comparison for a timer from another thread,
//! and nothing for a timer that is not late.

use corewheel_shard::{Tick, TimerKey};
use hashbrown::HashMap;

use crate::clock::{Timeline, saturating_nanos};
use crate::stats::ShardCounts;
use crate::stats::late::{LateLog, LateRecord, LatenessParts};
use crate::stats::recent::RecentMax;
use crate::stats::times::Recorder;
use crate::values::class::ClassId;
use crate::values::warning_limits::{EXECUTOR_STALL, EXHAUSTED_TURNS};

/// The moments of a turn that has ended, in nanoseconds. Before the first turn, all of them are the
/// clock's epoch, before which nothing is due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PastTurn {
    began: u64,
    /// When its first delivery began.
    delivers_since: u64,
    pub(super) ended: u64,
    /// Whether it used its budget for expired timers up.
    used_budget_up: bool,
}

impl PastTurn {
    fn delivered_for(&self) -> u64 {
        self.ended.saturating_sub(self.delivers_since)
    }
}

/// Turns in a row that have left requests in the lanes.
#[derive(Clone, Copy, Debug)]
struct LeavingRow {
    /// When the first of them began.
    since: u64,
    /// The turn before the first of them.
    before: PastTurn,
    /// The one whose deliveries took longest.
    longest: PastTurn,
}

/// When a timer came, and what it had waited for until then.
#[derive(Debug)]
struct Came {
    at: u64,
    /// The time from the deadline to `at` that was not spent in the lane, in its parts.
    before: LatenessParts,
}

/// The end of a turn.
pub(super) struct TurnEnd {
    /// Whether the turn left requests in the lanes.
    pub(super) left_requests: bool,
    /// Whether a turn is due at once.
    pub(super) is_more: bool,
    /// The tick at which the next turn is due; `None` if none is.
    pub(super) next: Option<Tick>,
}

/// The moments of a shard's turns, in nanoseconds.
#[derive(Debug)]
pub(super) struct TurnTimes {
    /// When this turn began.
    began: u64,
    /// When the first delivery of this turn began.
    pub(super) delivers_since: u64,
    pub(super) last: PastTurn,
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
    pub(super) late_until: Tick,
    /// `None` if the last turn left no requests in the lanes.
    leaving: Option<LeavingRow>,
    /// Whether this turn has used its budget up.
    pub(super) uses_budget_up: bool,
    /// When timers came that came beyond the bound. Emptied by a turn that delivers all that is
    /// due.
    came: HashMap<TimerKey, Came>,
    /// The requests that the turns of the last seconds left in one lane.
    pub(super) deepest_lane: RecentMax,
    /// How long turns took.
    pub(super) taken: Recorder,
    pub(super) late: LateLog,
}

impl TurnTimes {
    pub(super) fn new() -> Self {
        Self {
            began: 0,
            delivers_since: 0,
            last: PastTurn::default(),
            due: u64::MAX,
            woken: u64::MAX,
            none_before: 0,
            finished: Tick::ZERO,
            finished_at: 0,
            late_until: Tick::ZERO,
            leaving: None,
            uses_budget_up: false,
            came: HashMap::new(),
            deepest_lane: RecentMax::default(),
            taken: Recorder::new(),
            late: LateLog::new(),
        }
    }

    /// Notes the beginning of a turn at `now`, and when a command woke the driver before it. A
    /// request for a timer that is due before `late_until` comes beyond the service's bound.
    #[inline]
    pub(super) fn begin(&mut self, now: u64, late_until: Tick, woken: u64) {
        (self.began, self.late_until, self.woken) = (now, late_until, woken);
        self.due = self.due.min(woken);
    }

    /// Notes and counts the end at `now` of a turn that has delivered what it could. Returns when
    /// the next turn is due, `u64::MAX` if none is.
    pub(super) fn end(
        &mut self,
        end: &TurnEnd,
        now: u64,
        time: &Timeline,
        counts: &mut ShardCounts,
    ) -> u64 {
        let next_due = end.next.map_or(u64::MAX, |next| time.start_of(next));
        let took = now.saturating_sub(self.began);
        self.taken.record(took);
        counts.busy_ns += took;
        counts.turns += 1;
        counts.turns_exhausted += u64::from(end.is_more);
        // What became due while the turn before ran has not waited for the executor before its end.
        let stalled = self.began.saturating_sub(self.due.max(self.last.ended));
        if stalled > saturating_nanos(EXECUTOR_STALL) {
            counts.stalls += 1;
            counts.stalled_ns += stalled;
            counts.stall_last_ns = stalled;
        }
        let used_budget_up = self.uses_budget_up;
        if used_budget_up {
            counts.exhausted_row += 1;
            counts.exhausted_rows += u64::from(counts.exhausted_row == EXHAUSTED_TURNS);
        } else {
            counts.exhausted_row = 0;
            (self.finished, self.finished_at) = (time.floor(self.began), self.began);
            if !self.came.is_empty() {
                self.came.clear();
            }
        }
        let Self { began, delivers_since, last: before, leaving, .. } = *self;
        let last = PastTurn { began, delivers_since, ended: now, used_budget_up };
        self.last = last;
        self.leaving = end.left_requests.then(|| match leaving {
            None => LeavingRow { since: began, before, longest: last },
            Some(row) if last.delivered_for() > row.longest.delivered_for() => {
                LeavingRow { longest: last, ..row }
            }
            Some(row) => row,
        });
        self.due = if end.is_more { now } else { next_due };
        self.none_before = if end.is_more { 0 } else { next_due };
        next_due
    }

    /// Notes that a request for a timer came beyond the bound; it was sent at `sent`.
    #[cold]
    pub(super) fn note_came(&mut self, key: TimerKey, deadline: u64, sent: u64) {
        let sent = sent.min(self.began);
        // If turns left requests, this one may have waited behind them.
        let came = match self.leaving {
            None => Came { at: sent, before: LatenessParts::default() },
            Some(LeavingRow { since, before, longest }) => {
                let there = deadline.max(sent);
                let mut parts = Cut { at: there, end: since }.waits_for(&before);
                parts.handlers += longest.ended.saturating_sub(there.max(longest.delivers_since));
                Came { at: self.began, before: parts }
            }
        };
        // Else no turn was there that could have received it.
        self.due = self.due.min(deadline.max(came.at));
        self.came.insert(key, came);
    }

    /// Writes a delivery at `now` down that is beyond the bound. `tick` is that of the deadline.
    #[cold]
    pub(super) fn note_late(
        &mut self,
        (class, key): (ClassId, Option<TimerKey>),
        deadline: u64,
        now: u64,
        tick: Tick,
    ) {
        let parts = self.parts_of(key, deadline, now, tick);
        self.late.push(LateRecord {
            at: now,
            class,
            parts,
            after_budget: self.last.used_budget_up,
        });
    }

    /// The parts of the lateness of a delivery at `now`.
    fn parts_of(
        &mut self,
        key: Option<TimerKey>,
        deadline: u64,
        now: u64,
        tick: Tick,
    ) -> LatenessParts {
        let Self { last, .. } = *self;
        let came = key.and_then(|key| self.came.remove(&key)).unwrap_or_else(|| {
            let at = match () {
                // A command on the shard's own thread brought it, and woke the driver if it slept.
                () if deadline < self.none_before && self.woken < u64::MAX => self.woken,
                () if deadline < self.none_before => last.ended,
                () if tick <= self.finished => self.finished_at,
                () => 0,
            };
            Came { at, before: LatenessParts::default() }
        });
        let mut cut = Cut { at: deadline, end: now };
        let arrival = cut.until(came.at);
        // The timer may have been reset since it came, so what it had waited for is no more than
        // what its present deadline leaves.
        let before = came.before.at_most(arrival);
        let mut parts = Cut { end: self.began.min(now), ..cut }.waits_for(&last);
        cut.until(self.began);
        parts.backlog += cut.until(self.delivers_since);
        parts.handlers += cut.until(now);
        LatenessParts {
            arrival: arrival - before.sum(),
            poll_delay: parts.poll_delay + before.poll_delay,
            handlers: parts.handlers + before.handlers,
            backlog: parts.backlog + before.backlog,
        }
    }
}

/// What is left of the time from a deadline to a moment, in nanoseconds.
struct Cut {
    at: u64,
    end: u64,
}

impl Cut {
    /// Cuts off the time up to a moment.
    fn until(&mut self, moment: u64) -> u64 {
        let moment = moment.clamp(self.at, self.end.max(self.at));
        moment - std::mem::replace(&mut self.at, moment)
    }

    /// What a timer that is there from `at` on waits for until the turn begins that follows `turn`.
    fn waits_for(&mut self, turn: &PastTurn) -> LatenessParts {
        let was_left = turn.used_budget_up && self.at <= turn.began;
        let backlog = self.until(turn.delivers_since.min(turn.ended));
        let delivering = self.until(turn.ended);
        let (handlers, left) = if was_left { (0, delivering) } else { (delivering, 0) };
        let poll_delay = self.until(u64::MAX);
        LatenessParts { arrival: 0, poll_delay, handlers, backlog: backlog + left }
    }
}
