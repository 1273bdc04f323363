//! The rules of a connection's deadlines: when each is due, which events come, and which of them
//! are withdrawn.
//!
//! The rules are functions of the [`Facts`] of one connection. So the connections of a shard and
//! the connections of tasks that go from thread to thread have the same events: they differ only
//! in where their facts lie.
//!
//! Invariants: no rule reads a clock. Times are nanoseconds since the clock's epoch, `NEVER` for a
//! deadline that is off. A stamp of what has not happened is `None`, and no time: the idle times of
//! such a connection count from its beginning.
//!
//! Cost: a deadline that is set by the limits costs a load and an addition.

use std::cell::Cell;
use std::sync::Arc;

use super::kinds::{
    ARMED_END, DeadlineKind, Direction, HEARTBEAT, IDLE, MAX_AGE, Rule, WRITES, rate, rule,
};
use super::limits::{ConnEvent, DataRate, NEVER, Spans, Wanted};
use super::marks::{Flags, KindBits};
use super::measured::{Progress, Transfers, came_at};
use super::moment::Moment;
use crate::clock::saturating_nanos;
use crate::directory::orders::{Terms, Visit};
use crate::pass::Polls;
use crate::values::error::ConfigError;
use crate::values::random;

const NAMED: usize = DeadlineKind::NAMED_COUNT;
const KINDS: usize = DeadlineKind::COUNT;
/// The deadlines that can be armed: those of the table, and the custom ones.
const ARMED: usize = ARMED_END + KINDS - NAMED;
const IDLE_KINDS: KindBits = (1 << IDLE.end) - (1 << IDLE.start);

/// The kinds of the least rates.
pub(super) const RATES: KindBits = 1 << rate(Direction::Read) | 1 << rate(Direction::Write);
/// The kinds whose event that is withdrawn leaves a deadline.
const LEAVE: KindBits = RATES | 1 << WRITES;

/// What the rules know of a connection, and change.
pub(super) struct Facts<'a, P> {
    pub(super) is_open: bool,
    /// The time by which the rules decide.
    pub(super) present: u64,
    /// When the connection began.
    pub(super) opened: u64,
    pub(super) stamps: Stamps,
    pub(super) in_progress: InProgressCounts,
    pub(super) spans: &'a Spans,
    /// The orders of the connection's shard.
    pub(super) terms: Terms,
    pub(super) flags: &'a Cell<Flags>,
    pub(super) place: P,
}

/// Where a connection has what few connections need.
pub(super) trait Place {
    /// `None` if the connection has needed none.
    fn rare(&self) -> Option<&Rare>;
    /// Made if there is none yet.
    fn rare_mut(&mut self) -> &mut Rare;
}

impl<P: Place> Facts<'_, P> {
    /// The limit of a kind that is not custom.
    pub(super) fn span(&self, kind: usize) -> u64 {
        self.spans.at(kind, self.terms.scale)
    }

    fn rare(&self) -> Option<&Rare> {
        self.place.rare()
    }

    /// The kinds of the events that have come and were not delivered.
    pub(super) fn pending(&self) -> KindBits {
        self.flags.get().pending()
    }

    fn mark(&self, change: impl FnOnce(Flags) -> Flags) {
        self.flags.set(change(self.flags.get()));
    }

    /// An event that has come is not to be delivered any more.
    fn withdraw(&self, kind: usize) {
        self.mark(|flags| flags.with_pending(flags.pending() & !(1 << kind)));
    }
}

/// What is in progress and holds idle deadlines back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Read,
    Request,
}

impl Held {
    /// The place of the stamp that its end sets.
    pub(super) const fn stamp(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Request => 2,
        }
    }
}

/// The times of the last read, of the last write and of the last end of a request, in the order of
/// [`Direction`]; `None` for what has not happened. No time is before the activity.
pub(super) type Stamps = [Option<Moment>; 3];
/// How many reads and requests are in progress, in the order of [`Held`].
pub(super) type InProgressCounts = [u32; 2];

/// What few connections need. Without it, no idle event has come.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// When the last idle event of each kind came; `None` if none has come.
    pub(super) event_at: [Option<Moment>; IDLE.end - IDLE.start],
    /// The kinds whose event that was not delivered is the first, as bits.
    first: KindBits,
    /// The kind of the last event that was taken and may end the connection; `None` for a greatest
    /// age, which the flag of a connection that was told to end says.
    ends_by: Option<u8>,
    pub(super) polls: Polls,
    armed: Armed,
    pub(super) transfers: Transfers,
}

const _: () = assert!(size_of::<Rare>() <= 192);

impl Rare {
    /// What a connection takes along to another shard.
    pub(super) fn without_transfers(&self) -> Self {
        let Self { event_at, first, ends_by, armed, .. } = *self;
        Self { event_at, first, ends_by, armed, ..Self::default() }
    }
}

/// The deadlines that were armed, in the order of their kinds; `NEVER` where none is.
#[derive(Clone, Copy, Debug)]
struct Armed([u64; ARMED]);

impl Default for Armed {
    fn default() -> Self {
        Self([NEVER; ARMED])
    }
}

impl Armed {
    /// The place of a kind that can be armed.
    fn place(kind: usize) -> Option<usize> {
        match kind {
            0..ARMED_END => Some(kind),
            NAMED.. => Some(kind - NAMED + ARMED_END),
            _ => None,
        }
    }

    fn due(&self, kind: usize) -> u64 {
        Self::place(kind).map_or(NEVER, |place| self.0[place])
    }

    fn set(&mut self, kind: usize, due: u64) {
        if let Some(place) = Self::place(kind) {
            self.0[place] = due;
        }
    }
}

/// When a deadline is due.
pub(super) fn due(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    let rare = conn.rare();
    let armed = || rare.map_or(NEVER, |rare| rare.armed.due(kind));
    match rule(kind) {
        Rule::Opened { has_jitter } => {
            let is_over = conn.flags.get().is_over(kind);
            armed().min(if is_over { NEVER } else { opened_due(conn, kind, has_jitter) })
        }
        Rule::Armed => armed(),
        Rule::After => {
            // A drain cuts the connections that it has told.
            let flags = conn.flags.get();
            let is_drained = flags.is_told() && !flags.is_over(kind);
            armed().min(if is_drained { conn.terms.drain_until } else { NEVER })
        }
        Rule::Writes | Rule::Rate(_) => rare.map_or(NEVER, |rare| rare.transfers.due(kind)),
        Rule::Idle { .. } => {
            let idle_at = idle_at(conn, kind);
            match event_at(conn, kind) {
                Some(event_at) if idle_at <= event_at => event_at.saturating_add(conn.span(kind)),
                _ => idle_at,
            }
        }
    }
}

/// When a deadline is due that counts from the beginning of the connection.
///
/// A connection's part of the longest jitter follows from the time at which the connection began,
/// and from its salt, so it takes no room of its own.
pub(super) fn opened_due(conn: &Facts<'_, impl Place>, kind: usize, has_jitter: bool) -> u64 {
    let longest = saturating_nanos(conn.spans.limits.max_age_jitter);
    let jitter = if has_jitter && longest > 0 { part_of(conn, longest) } else { 0 };
    conn.opened.saturating_add(conn.span(kind)).saturating_add(jitter)
}

/// When a deadline is due, if the connection is open.
pub(super) fn open_due(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    if conn.is_open { due(conn, kind) } else { NEVER }
}

/// A random part of a time, from none up to and including all of it, which a connection keeps.
fn part_of(conn: &Facts<'_, impl Place>, longest: u64) -> u64 {
    let salt = u64::from(conn.flags.get().salt());
    random::part_of(longest, (conn.opened << 8) | salt)
}

/// When the first heartbeat comes, whatever was written before; `None` if nothing but the last
/// write says when.
fn first_beat(conn: &Facts<'_, impl Place>, kind: usize) -> Option<u64> {
    let has_phase = kind == HEARTBEAT && conn.spans.limits.heartbeat_phase;
    has_phase.then(|| conn.opened.saturating_add(part_of(conn, conn.span(kind))))
}

/// Whether something in progress holds back the idle deadline of a kind.
fn is_held_back(conn: &Facts<'_, impl Place>, kind: usize) -> bool {
    let [reads, requests] = conn.in_progress;
    let Rule::Idle { read, written, request } = rule(kind) else { return false };
    let by_write = request && (read || written);
    (read && reads > 0) || (request && requests > 0) || (by_write && is_writing(conn))
}

/// Whether a write waits whose time is limited and is not up: its peer is bounded by that limit,
/// and by no idle time.
fn is_writing(conn: &Facts<'_, impl Place>) -> bool {
    conn.rare().is_some_and(|rare| rare.transfers.is_writing())
}

/// When the connection has been idle for long enough, unless it is active before.
fn idle_at(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    let span = conn.span(kind);
    let Rule::Idle { read, written, request } = rule(kind) else { return NEVER };
    if span == NEVER {
        return NEVER;
    }
    // A stamp may be later than what was written before the first beat.
    if let Some(first) = first_beat(conn, kind) {
        let written = conn.stamps[Direction::Write as usize].map(Moment::nanos);
        if event_at(conn, kind).is_none_or(|at| at < first) || written.is_none_or(|at| at <= first)
        {
            return first;
        }
    }
    let mut active = last_active(conn, [read, written, request]);
    // What is in progress counts as activity whenever the time is asked for. A stamp may be later
    // than the present, and a read or a request that begins makes no deadline earlier.
    if is_held_back(conn, kind) {
        active = active.max(conn.present);
    }
    active.saturating_add(span)
}

/// When the connection was last active in one of the ways that count, in the order of [`Stamps`];
/// when it began, if it never was.
fn last_active(conn: &Facts<'_, impl Place>, counts: [bool; 3]) -> u64 {
    let stamps = conn.stamps.into_iter().zip(counts);
    let counted = stamps.filter_map(|(stamp, counts)| stamp.filter(|_| counts));
    counted.map(Moment::nanos).fold(conn.opened, u64::max)
}

/// When the last event of an idle kind came; `None` if none has come.
fn event_at(conn: &Facts<'_, impl Place>, kind: usize) -> Option<u64> {
    conn.rare()?.event_at[kind - IDLE.start].map(Moment::nanos)
}

/// Whether an idle event that has come is still true: the connection has not been active since.
fn is_idle(conn: &Facts<'_, impl Place>, kind: usize) -> bool {
    let Some(event_at) = event_at(conn, kind) else { return false };
    if let Some(first) = first_beat(conn, kind) {
        if event_at < first.saturating_add(conn.span(kind)) {
            return true;
        }
    }
    // After an event that came on another shard, this shard may not have read the clock yet.
    !is_held_back(conn, kind) && idle_at(conn, kind) <= event_at
}

/// When the first deadline of a connection is due.
pub(super) fn first_due(conn: &Facts<'_, impl Place>) -> u64 {
    // Otherwise, only the deadlines that the limits set are armed.
    let kinds = if conn.rare().is_some() { KINDS } else { NAMED };
    (0..kinds).map(|kind| due(conn, kind)).min().unwrap_or(NEVER)
}

/// Takes the deadlines that are due, arms those again that come again, and keeps their events until
/// they are delivered. Returns the kinds of which none had come before that is still true, and when
/// the last deadline was due: a connection that stays idle is idle again after each further limit.
pub(super) fn take_due(conn: &mut Facts<'_, impl Place>) -> (KindBits, u64) {
    let now = conn.present;
    let (mut kinds, mut first, mut last) = (0, 0, 0);
    for kind in 0..KINDS {
        let due = due(conn, kind);
        if due > now {
            continue;
        }
        match rule(kind) {
            Rule::Idle { .. } => {
                if event_at(conn, kind).is_none_or(|at| at < idle_at(conn, kind)) {
                    first |= 1 << kind;
                }
                conn.place.rare_mut().event_at[kind - IDLE.start] = Some(Moment::at(now));
            }
            Rule::Writes | Rule::Rate(_) => {
                // Another thread may have changed the transfer since.
                if !conn.place.rare_mut().transfers.take_due(kind, now) {
                    continue;
                }
            }
            Rule::Opened { .. } | Rule::Armed | Rule::After => come_once(conn, kind, now),
        }
        (kinds, last) = (kinds | 1 << kind, due.max(last));
    }
    let before = conn.pending();
    conn.mark(|flags| flags.with_pending(before | kinds));
    // An event that was the first and was not taken stays the first. If the new event of its kind
    // is the first again, the old one is withdrawn.
    if conn.rare().is_some() {
        let rare = conn.place.rare_mut();
        rare.first = (rare.first & before) | first;
    }
    (kinds & !(IDLE_KINDS & before & !first), last)
}

/// A deadline that comes once has come.
fn come_once(conn: &mut Facts<'_, impl Place>, kind: usize, now: u64) {
    let is_told = kind == MAX_AGE || conn.flags.get().is_told();
    conn.mark(|flags| flags.with_over(kind, true).with_told(is_told));
    set_armed(conn, kind, NEVER);
    let next = kind + 1;
    if rule(next) != Rule::After {
        return;
    }
    conn.mark(|flags| flags.with_over(next, false));
    // The end of a drain takes the place of the grace: what ends in time is not cut.
    if conn.span(next) != NEVER && !conn.terms.is_draining() {
        set_armed(conn, next, now.saturating_add(conn.span(next)));
    }
}

fn set_armed(conn: &mut Facts<'_, impl Place>, kind: usize, due: u64) {
    if due != NEVER || conn.rare().is_some() {
        conn.place.rare_mut().armed.set(kind, due);
    }
}

/// Tells a connection to end, as its greatest age does. False if it was told before, or is closed.
///
/// Deadlines that are due come first: else the grace that begins now would replace one that is over
/// and whose timer the turn has not reached, or whose task was not polled.
fn tell(conn: &mut Facts<'_, impl Place>) -> bool {
    let tells = conn.is_open && !conn.flags.get().is_told();
    if tells {
        take_due(conn);
    }
    if tells && !conn.flags.get().is_told() {
        come_once(conn, MAX_AGE, conn.present);
        conn.mark(|flags| flags.with_pending(flags.pending() | 1 << MAX_AGE));
    }
    tells
}

/// What a visit of a connection returns. After all visits but those that look for idle
/// connections, the timer is to be filed: anew if the connection was told.
pub(super) fn visit(conn: &mut Facts<'_, impl Place>, visit: Visit) -> Option<u64> {
    match visit {
        Visit::LookAgain => None,
        Visit::Tell => tell(conn).then_some(conn.present),
        Visit::FindIdle => idle_since(conn),
    }
}

/// Since when a connection has been idle; `None` if a read, a request or a write with a limit is in
/// progress, or if the connection was told to end or is closed.
///
/// A deadline that is due counts as one that has come: on any thread the task, which takes it, may
/// not have been polled since.
fn idle_since(conn: &Facts<'_, impl Place>) -> Option<u64> {
    let now = conn.present;
    let is_told = || conn.flags.get().is_told() || due(conn, MAX_AGE) <= now;
    let is_writing = || conn.rare().is_some_and(|rare| rare.transfers.is_in_time(now));
    let is_idle = conn.is_open && conn.in_progress == [0, 0] && !is_told() && !is_writing();
    is_idle.then(|| last_active(conn, [true; 3]))
}

/// Whether an event that has come is still true.
fn is_true(conn: &Facts<'_, impl Place>, kind: usize) -> bool {
    match rule(kind) {
        Rule::Idle { .. } => is_idle(conn, kind),
        Rule::Rate(_) => conn.rare().is_some_and(|rare| rare.transfers.keep_event(kind)),
        // A write that has ended meanwhile was in time for a task that polls it first.
        Rule::Writes => conn.rare().is_some_and(|rare| rare.transfers.keep_write_event()),
        Rule::Opened { .. } | Rule::After | Rule::Armed => true,
    }
}

/// The kinds of the events that have come, are wanted and are still true, and that data in a socket
/// may refute. Withdraws those that are not true. Beside them, whether the first deadline may be
/// earlier now.
pub(super) fn judged(conn: &Facts<'_, impl Place>, wanted: impl Wanted) -> (KindBits, bool) {
    let pending = conn.pending();
    let mut judged = 0;
    for kind in (0..KINDS).filter(|kind| pending & 1 << kind != 0) {
        let named = DeadlineKind::at(kind);
        if !named.is_judged() || !wanted(named, came_at(conn.rare(), kind)) {
            continue;
        }
        if is_true(conn, kind) {
            judged |= 1 << kind;
        } else {
            conn.withdraw(kind);
        }
    }
    (judged, pending & LEAVE != 0)
}

/// Takes the next event that has come and is still true. Beside it, whether the first deadline may
/// be earlier now.
pub(super) fn next_event(
    conn: &mut Facts<'_, impl Place>,
    wanted: impl Wanted,
) -> (Option<ConnEvent>, bool) {
    let pending = conn.pending();
    if pending == 0 {
        return (None, false);
    }
    let is_next = |kind: &usize| {
        if pending & 1 << kind == 0 || !wanted(DeadlineKind::at(*kind), came_at(conn.rare(), *kind))
        {
            return false;
        }
        conn.withdraw(*kind);
        is_true(conn, *kind)
    };
    let event = (0..KINDS).find(is_next).map(|position| {
        // An event of a kind that is not idle is always the first.
        let first = conn.rare().map_or(0, |rare| rare.first) | !IDLE_KINDS;
        let kind = DeadlineKind::at(position);
        // A drain tells all connections. The flag that says so is enough, and no place is made.
        let is_age = position == MAX_AGE;
        let may_end = !matches!(kind, DeadlineKind::Heartbeat | DeadlineKind::Custom(_));
        if may_end && (!is_age || conn.rare().is_some()) {
            conn.place.rare_mut().ends_by = (!is_age).then_some(position as u8);
        }
        ConnEvent { kind, first: first & 1 << position != 0 }
    });
    (event, pending & LEAVE != 0)
}

/// Which deadline has ended a connection, if its owner closes it now; `None` if none has.
pub(super) fn ended_by(conn: &Facts<'_, impl Place>) -> Option<usize> {
    let is_true = |kind: &usize| !matches!(rule(*kind), Rule::Idle { .. }) || is_idle(conn, *kind);
    let taken = conn.rare().and_then(|rare| rare.ends_by).map(usize::from).filter(is_true);
    let is_told = conn.flags.get().is_told() && conn.pending() & 1 << MAX_AGE == 0;
    taken.or(is_told.then_some(MAX_AGE))
}

/// When the connection counts as active, in the order of [`Stamps`]: later than its stamps by the
/// time for which its peer had something to take, and no later than `until`. `None` where a stamp
/// stays.
pub(super) fn later_by(conn: &Facts<'_, impl Place>, busy: u64, until: u64) -> Stamps {
    conn.stamps.map(|stamp| {
        let before = stamp.map_or(conn.opened, Moment::nanos);
        let later = before.saturating_add(busy).min(until);
        (later > before).then(|| Moment::at(later))
    })
}

/// Withdraws the idle events that are not true any more. Returns what [`Connection::change`] asks
/// for.
///
/// [`Connection::change`]: super::side::Connection::change
pub(super) fn withdraw_idle(conn: &Facts<'_, impl Place>) -> ((), u64) {
    for kind in IDLE.filter(|kind| conn.pending() & 1 << kind != 0) {
        if !is_true(conn, kind) {
            conn.withdraw(kind);
        }
    }
    ((), 0)
}

/// Arms a deadline that comes once, or disarms it with `NEVER`. True if the deadline was armed, or
/// had come and its event was not taken.
pub(super) fn arm(conn: &mut Facts<'_, impl Place>, kind: usize, due_at: u64) -> bool {
    let was_armed = due(conn, kind) != NEVER;
    let pending = conn.pending();
    conn.withdraw(kind);
    // The connection begins another age, unless it is drained.
    let is_new = kind == MAX_AGE && due_at != NEVER && !conn.terms.is_draining();
    conn.mark(|flags| flags.with_over(kind, true).with_told(flags.is_told() && !is_new));
    set_armed(conn, kind, due_at);
    was_armed || pending & 1 << kind != 0
}

/// A write whose time is limited, or a measured transfer, begins at `now`. If it is the only one of
/// its kind, the others end, and their event is withdrawn. `None` if the limits say nothing of it.
/// Beside it, when it is due.
pub(super) fn begin(
    conn: &mut Facts<'_, impl Place>,
    (kind, is_only): (usize, bool),
    now: u64,
) -> (Option<Arc<Progress>>, u64) {
    if is_only && conn.rare().is_some() {
        conn.withdraw(kind);
        conn.place.rare_mut().transfers.end_all(kind);
    }
    let limits = conn.spans.limits;
    let rate = match rule(kind) {
        Rule::Rate(Direction::Read) => limits.min_read_rate,
        Rule::Rate(Direction::Write) => limits.min_write_rate,
        // A byte, in the end.
        _ => {
            let is_on = !limits.write_timeout.is_zero();
            DataRate::new(u64::from(is_on), limits.write_timeout)
        }
    };
    let is_limited = rate.bytes_per_second > 0;
    let progress = is_limited.then(|| conn.place.rare_mut().transfers.begin(kind, rate, now));
    (progress, if is_limited { due(conn, kind) } else { NEVER })
}

/// Ends a write or a transfer. An event of a transfer, if it was not taken, is withdrawn. False if
/// its time was up before, or if another transfer has taken its place.
pub(super) fn end(
    conn: &mut Facts<'_, impl Place>,
    progress: &Arc<Progress>,
    withdraws: bool,
) -> bool {
    // A connection that has had a transfer keeps its place, unless it is closed.
    let ended = conn.rare().is_some().then(|| conn.place.rare_mut().transfers.end(progress));
    let Some((kind, is_in_time)) = ended.flatten() else { return false };
    if withdraws {
        conn.withdraw(kind);
    }
    is_in_time
}

/// Ends a write. Returns what [`end`] does; whether an idle time of reads that it has held back was
/// over by `now`, and so begins again; and when the first idle time is due. One that was over then
/// already was not held back: a heartbeat that is sent at that moment says nothing of the peer.
pub(super) fn end_write(
    conn: &mut Facts<'_, impl Place>,
    progress: &Arc<Progress>,
    now: u64,
) -> (bool, bool, u64) {
    let held_since = conn.rare().map_or(NEVER, |rare| rare.transfers.first_start());
    let is_in_time = end(conn, progress, false);
    let (idle_at, idle) = (idle_at(conn, IDLE.start), IDLE.map(|kind| due(conn, kind)));
    (is_in_time, held_since < idle_at && idle_at <= now, idle.min().unwrap_or(NEVER))
}

/// The transfers of a connection; `None` if it has had none.
pub(super) fn transfers<'a>(conn: &'a mut Facts<'_, impl Place>) -> Option<&'a mut Transfers> {
    if conn.rare().is_some() { Some(&mut conn.place.rare_mut().transfers) } else { None }
}

/// When the timer that has expired, or was looked at, is to expire next. Transfers that are paused
/// are not regarded before they go on.
pub(super) fn next_look(conn: &Facts<'_, impl Place>) -> u64 {
    if let Some(rare) = conn.rare() {
        rare.transfers.unwatch(false);
    }
    first_due(conn)
}

/// The limits have changed. A transfer that begins again takes note of them.
pub(super) fn limits_changed(conn: &Facts<'_, impl Place>) {
    if let Some(rare) = conn.rare() {
        rare.transfers.unwatch(true);
    }
}

/// The position of a kind that [`arm`] takes.
pub(super) fn armed_kind(kind: DeadlineKind) -> Result<usize, ConfigError> {
    let index = kind.index();
    index.filter(|index| Armed::place(*index).is_some()).ok_or_else(|| {
        let (limit, remedy) = if index.is_some() {
            ("it follows from what the connection does".to_owned(), "set its limit by set_limits")
        } else {
            let last = DeadlineKind::CUSTOM_COUNT - 1;
            (format!("custom deadlines are numbered from 0 to {last}"), "use one of those")
        };
        ConfigError::new("kind", format_args!("{kind}"), limit, remedy)
    })
}
