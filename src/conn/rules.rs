//! The rules of a connection's deadlines: when each is due, which events come, and which of them
//! are withdrawn.
//!
//! The rules are functions of the [`Facts`] of one connection. So the connections of a shard and
//! the connections of tasks that go from thread to thread have the same events: they differ only
//! in where their facts lie.
//!
//! Invariants: no rule reads a clock. Times are nanoseconds since the clock's epoch, `NEVER` for a
//! deadline that is off.
//!
//! Cost: a deadline that is set by the limits costs a load and an addition.

use std::cell::Cell;
use std::sync::Arc;

use super::kinds::{ARMED_END, DeadlineKind, IDLE, Rule, WRITES, rate, rule};
use super::limits::{ArmError, ConnEvent, NEVER, Spans};
use super::marks::{Flags, KindBits};
use super::measured::{ByteCount, Direction, Measured, Transfers};
use crate::clock::saturating_nanos;

/// A golden section of 2⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const NAMED: usize = DeadlineKind::NAMED_COUNT;
const KINDS: usize = DeadlineKind::COUNT;
/// The deadlines that can be armed: those of the table, and the custom ones.
const ARMED: usize = ARMED_END + KINDS - NAMED;
const IDLE_KINDS: KindBits = (1 << IDLE.end) - (1 << IDLE.start);

/// The kinds of the least rates. An event of theirs that is withdrawn leaves a deadline.
pub(super) const RATES: KindBits = 1 << rate(Direction::Read) | 1 << rate(Direction::Write);

/// What the rules know of a connection, and change.
pub(super) struct Facts<'a, P> {
    pub(super) is_open: bool,
    /// The time by which the rules decide.
    pub(super) present: u64,
    /// When the connection began.
    pub(super) opened: u64,
    /// The times of the last read, of the last write and of the last end of a request. None is
    /// before the activity.
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) request_ended: u64,
    /// How many reads and requests are in progress.
    pub(super) in_progress: InProgressCounts,
    pub(super) spans: &'a Spans,
    pub(super) flags: &'a Cell<Flags>,
    pub(super) place: P,
}

/// Where a connection has what few connections need.
pub(super) trait Place {
    /// `None` if the connection has needed none.
    fn rare(&self) -> Option<&Rare>;
    fn known_rare_mut(&mut self) -> Option<&mut Rare>;
    /// Made if there is none yet.
    fn rare_mut(&mut self) -> &mut Rare;
}

impl<P: Place> Facts<'_, P> {
    /// The limit of a kind that is not custom.
    fn span(&self, kind: usize) -> u64 {
        self.spans.by_kind[kind]
    }

    fn rare(&self) -> Option<&Rare> {
        self.place.rare()
    }

    /// The kinds of the events that have come and were not delivered.
    pub(super) fn pending(&self) -> KindBits {
        self.flags.get().pending()
    }

    fn set_pending(&self, kinds: KindBits) {
        self.flags.set(self.flags.get().with_pending(kinds));
    }

    fn set_over(&self, kind: usize) {
        self.flags.set(self.flags.get().with_over(kind));
    }
}

/// What is in progress and holds idle deadlines back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Read,
    Request,
}

/// How many reads and requests of a connection are in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InProgressCounts {
    pub(super) reads: u32,
    pub(super) requests: u32,
}

impl InProgressCounts {
    pub(super) fn of_mut(&mut self, held: Held) -> &mut u32 {
        match held {
            Held::Read => &mut self.reads,
            Held::Request => &mut self.requests,
        }
    }
}

/// What few connections need. Without it, no idle event has come.
#[derive(Debug)]
pub(super) struct Rare {
    /// When the last idle event of each kind came; 0 if none has come.
    pub(super) event_at: [u64; IDLE.end - IDLE.start],
    /// The kinds whose event that was not delivered is the first, as bits.
    pub(super) first: KindBits,
    /// The deadlines that were armed.
    pub(super) armed: Armed,
    transfers: Transfers,
    /// The numbers of the writes in progress, with their deadlines.
    writes: Vec<(u32, u64)>,
    next_write: u32,
}

const _: () = assert!(size_of::<Rare>() <= 176);

impl Rare {
    pub(super) const NO_EVENT: [u64; IDLE.end - IDLE.start] = [0; IDLE.end - IDLE.start];

    pub(super) fn new() -> Self {
        Self {
            event_at: Self::NO_EVENT,
            first: 0,
            armed: Armed::default(),
            transfers: Transfers::default(),
            writes: Vec::new(),
            next_write: 0,
        }
    }
}

/// The deadlines that were armed, in the order of their kinds; `NEVER` where none is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Armed([u64; ARMED]);

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
            let due = if is_over { NEVER } else { conn.opened.saturating_add(conn.span(kind)) };
            let jitter = if has_jitter { age_jitter(conn) } else { 0 };
            armed().min(due.saturating_add(jitter))
        }
        Rule::Armed | Rule::After => armed(),
        Rule::Writes => {
            let writes = rare.into_iter().flat_map(|rare| &rare.writes);
            writes.map(|(_, due)| *due).min().unwrap_or(NEVER)
        }
        Rule::Rate(direction) => {
            let transfer = rare.and_then(|rare| rare.transfers.at(direction));
            transfer.map_or(NEVER, Measured::due)
        }
        Rule::Idle { .. } => {
            let (idle_at, event_at) = (idle_at(conn, kind), event_at(conn, kind));
            if idle_at > event_at { idle_at } else { event_at.saturating_add(conn.span(kind)) }
        }
    }
}

/// When a deadline is due, if the connection is open.
pub(super) fn open_due(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    if conn.is_open { due(conn, kind) } else { NEVER }
}

/// By how much the end of the connection's greatest age is later.
///
/// A connection's part of the longest jitter follows from the time at which the connection began,
/// and from its salt, so it takes no room of its own.
fn age_jitter(conn: &Facts<'_, impl Place>) -> u64 {
    let longest = saturating_nanos(conn.spans.limits.max_age_jitter);
    if longest == 0 {
        return 0;
    }
    let seed = conn.opened ^ u64::from(conn.flags.get().salt()).wrapping_mul(GOLDEN);
    let part = fastrand::Rng::with_seed(seed).u64(..);
    ((u128::from(part) * (u128::from(longest) + 1)) >> u64::BITS) as u64
}

/// Whether something in progress holds back the idle deadline of a kind.
fn is_held_back(conn: &Facts<'_, impl Place>, kind: usize) -> bool {
    let InProgressCounts { reads, requests } = conn.in_progress;
    let Rule::Idle { read, request, .. } = rule(kind) else { return false };
    (read && reads > 0) || (request && requests > 0)
}

/// When the connection has been idle for long enough, unless it is active before.
fn idle_at(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    let span = conn.span(kind);
    let Rule::Idle { read, written, request } = rule(kind) else { return NEVER };
    if span == NEVER {
        return NEVER;
    }
    let mut active = 0;
    if read {
        active = conn.read;
    }
    if written {
        active = active.max(conn.written);
    }
    if request {
        active = active.max(conn.request_ended);
    }
    // What is in progress counts as activity whenever the time is asked for. A stamp may be later
    // than the present, and a read or a request that begins makes no deadline earlier.
    if is_held_back(conn, kind) {
        active = active.max(conn.present);
    }
    active.saturating_add(span)
}

/// When the last event of an idle kind came; 0 if none has come.
fn event_at(conn: &Facts<'_, impl Place>, kind: usize) -> u64 {
    conn.rare().map_or(0, |rare| rare.event_at[kind - IDLE.start])
}

/// Whether an idle event that has come is still true: the connection has not been active since.
fn is_idle(conn: &Facts<'_, impl Place>, kind: usize) -> bool {
    // After an event that came on another shard, this shard may not have read the clock yet.
    !is_held_back(conn, kind) && idle_at(conn, kind) <= event_at(conn, kind)
}

/// When the first deadline of a connection is due.
pub(super) fn first_due(conn: &Facts<'_, impl Place>) -> u64 {
    // Otherwise, only the deadlines that the limits set are armed.
    let kinds = if conn.rare().is_some() { KINDS } else { NAMED };
    (0..kinds).map(|kind| due(conn, kind)).min().unwrap_or(NEVER)
}

/// Takes the deadlines that are due, arms those again that come again, and keeps their events until
/// they are delivered.
pub(super) fn take_due(conn: &mut Facts<'_, impl Place>) {
    let now = conn.present;
    let (mut kinds, mut first) = (0, 0);
    for kind in 0..KINDS {
        if due(conn, kind) > now {
            continue;
        }
        kinds |= 1 << kind;
        match rule(kind) {
            Rule::Idle { .. } => {
                if idle_at(conn, kind) > event_at(conn, kind) {
                    first |= 1 << kind;
                }
                conn.place.rare_mut().event_at[kind - IDLE.start] = now;
            }
            Rule::Writes => conn.place.rare_mut().writes.retain(|(_, due)| *due > now),
            Rule::Rate(direction) => conn.place.rare_mut().transfers.take(direction, now),
            Rule::Opened { .. } | Rule::Armed | Rule::After => {
                conn.set_over(kind);
                if let Some(rare) = conn.place.known_rare_mut() {
                    rare.armed.set(kind, NEVER);
                }
                let next = kind + 1;
                if rule(next) == Rule::After && conn.span(next) != NEVER {
                    let due = now.saturating_add(conn.span(next));
                    conn.place.rare_mut().armed.set(next, due);
                }
            }
        }
    }
    let before = conn.pending();
    conn.set_pending(before | kinds);
    // An event that was the first and was not taken stays the first. If the new event of its kind
    // is the first again, the old one is withdrawn.
    if let Some(rare) = conn.place.known_rare_mut() {
        rare.first = (rare.first & before) | first;
    }
}

/// Takes the next event that has come and is still true.
pub(super) fn next_event(
    conn: &Facts<'_, impl Place>,
    wanted: impl Fn(DeadlineKind) -> bool,
) -> Option<ConnEvent> {
    for kind in 0..KINDS {
        let (pending, bit) = (conn.pending(), 1 << kind);
        if pending & bit == 0 || !wanted(DeadlineKind::at(kind)) {
            continue;
        }
        conn.set_pending(pending & !bit);
        let is_true = match rule(kind) {
            Rule::Idle { .. } => is_idle(conn, kind),
            Rule::Rate(direction) => {
                let transfer = conn.rare().and_then(|rare| rare.transfers.at(direction));
                transfer.is_some_and(Measured::keep_event)
            }
            Rule::Opened { .. } | Rule::After | Rule::Armed | Rule::Writes => true,
        };
        if is_true {
            // An event of a kind that is not idle is always the first.
            let first = conn.rare().map_or(0, |rare| rare.first) | !IDLE_KINDS;
            return Some(ConnEvent { kind: DeadlineKind::at(kind), first: first & bit != 0 });
        }
    }
    None
}

/// Whether an idle event has come after a time.
pub(super) fn is_before_event(rare: &Rare, at: u64) -> bool {
    rare.event_at.iter().any(|event_at| at < *event_at)
}

/// Arms a deadline that comes once, or disarms it with `NEVER`. True if the deadline was armed, or
/// had come and its event was not taken.
pub(super) fn arm(conn: &mut Facts<'_, impl Place>, kind: usize, due_at: u64) -> bool {
    let was_armed = due(conn, kind) != NEVER;
    let pending = conn.pending();
    conn.set_pending(pending & !(1 << kind));
    conn.set_over(kind);
    if due_at != NEVER || conn.rare().is_some() {
        conn.place.rare_mut().armed.set(kind, due_at);
    }
    was_armed || pending & 1 << kind != 0
}

/// The number of a write that begins at `now`; `None` if there is no limit for writes.
pub(super) fn begin_write(conn: &mut Facts<'_, impl Place>, now: u64) -> Option<u32> {
    let span = conn.span(WRITES);
    if span == NEVER {
        return None;
    }
    let rare = conn.place.rare_mut();
    let write = rare.next_write;
    rare.next_write = write.wrapping_add(1);
    rare.writes.push((write, now.saturating_add(span)));
    Some(write)
}

/// False if the write's time was up before.
pub(super) fn end_write(conn: &mut Facts<'_, impl Place>, write: u32) -> bool {
    let Some(rare) = conn.place.known_rare_mut() else { return false };
    let position = rare.writes.iter().position(|(known, _)| *known == write);
    position.map(|position| rare.writes.remove(position)).is_some()
}

/// A measured transfer begins at `now`. It takes the place of the transfer before. `None` if there
/// is no least rate.
pub(super) fn begin_transfer(
    conn: &mut Facts<'_, impl Place>,
    direction: Direction,
    now: u64,
) -> Option<Arc<ByteCount>> {
    withdraw(conn, direction);
    let rate = match direction {
        Direction::Read => conn.spans.limits.min_read_rate,
        Direction::Write => conn.spans.limits.min_write_rate,
    };
    if rate.bytes_per_second > 0 {
        return Some(conn.place.rare_mut().transfers.begin(direction, rate, now));
    }
    if let Some(rare) = conn.place.known_rare_mut() {
        rare.transfers.end(direction);
    }
    None
}

/// The transfer with this count, unless it has ended.
pub(super) fn transfer_mut<'a>(
    conn: &'a mut Facts<'_, impl Place>,
    direction: Direction,
    count: &Arc<ByteCount>,
) -> Option<&'a mut Measured> {
    conn.place.known_rare_mut()?.transfers.of_count_mut(direction, count)
}

/// Ends a transfer. Its event, if it was not taken, is withdrawn. False if the time of the transfer
/// was up before, or if another transfer has taken its place.
pub(super) fn end_transfer(
    conn: &mut Facts<'_, impl Place>,
    direction: Direction,
    count: &Arc<ByteCount>,
) -> bool {
    let Some(transfer) = transfer_mut(conn, direction, count) else { return false };
    let is_in_time = !transfer.end();
    withdraw(conn, direction);
    is_in_time
}

fn withdraw(conn: &Facts<'_, impl Place>, direction: Direction) {
    conn.set_pending(conn.pending() & !(1 << rate(direction)));
}

/// The position of a kind that [`arm`] takes.
pub(super) fn armed_kind(kind: DeadlineKind) -> Result<usize, ArmError> {
    let index = kind.index().ok_or(ArmError::NoSuchDeadline(kind))?;
    Armed::place(index).map(|_| index).ok_or(ArmError::SetByLimits(kind))
}
