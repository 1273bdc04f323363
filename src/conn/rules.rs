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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::limits::{ArmError, ConnEvent, ConnLimits, DeadlineKind};
use super::marks::{Flags, HANDSHAKE, KindBits, Marks, READ_IDLE};
use super::measured::{ByteCount, Direction, Measured, READ_RATE, Transfers, WRITE_RATE};
use crate::clock::saturating_nanos;

/// The due time of a deadline that is off.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) const WRITE_TIMEOUT: usize = DeadlineKind::WriteTimeout.named_index();
const MAX_AGE: usize = DeadlineKind::MaxAge.named_index();
const WRITE_IDLE: usize = DeadlineKind::WriteIdle.named_index();
const ALL_IDLE: usize = DeadlineKind::AllIdle.named_index();
const HEARTBEAT: usize = DeadlineKind::Heartbeat.named_index();
/// A golden section of 2⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const REQUEST: usize = DeadlineKind::Request.named_index();
const NAMED: usize = DeadlineKind::NAMED_COUNT;
const KINDS: usize = DeadlineKind::COUNT;
/// The deadlines that can be armed: max age, handshake, request and the custom ones.
const ARMED: usize = REQUEST + 1 + KINDS - NAMED;

/// The kinds of the least rates. An event of theirs that is withdrawn leaves a deadline.
pub(super) const RATES: KindBits = 1 << READ_RATE | 1 << WRITE_RATE;

/// What the rules know of a connection, and change.
pub(super) trait Facts {
    fn is_open(&self) -> bool;
    /// The time by which the rules decide.
    fn present(&self) -> u64;
    /// When the connection began.
    fn opened(&self) -> u64;
    /// The times of the last read, of the last write and of the last end of a request. None is
    /// before the activity.
    fn read(&self) -> u64;
    fn written(&self) -> u64;
    fn request_ended(&self) -> u64;
    /// How many reads and requests are in progress.
    fn in_progress(&self) -> InProgressCounts;
    /// The limit of a kind that is not custom, as [`span_of`] gives it.
    fn span(&self, kind: usize) -> u64;
    /// The limits that have no span.
    fn limits(&self) -> &ConnLimits;
    fn set_limits(&mut self, limits: ConnLimits);
    fn flags(&self) -> Flags;
    fn set_flags(&self, flags: Flags);
    /// `None` if the connection has needed none.
    fn rare(&self) -> Option<&Rare>;
    fn known_rare_mut(&mut self) -> Option<&mut Rare>;
    /// Made if there is none yet.
    fn rare_mut(&mut self) -> &mut Rare;

    fn marks(&self) -> Marks {
        self.flags().marks()
    }

    fn set_marks(&self, marks: Marks) {
        self.set_flags(self.flags().with_marks(marks));
    }

    /// The kinds of the events that have come and were not delivered.
    fn pending(&self) -> KindBits {
        self.flags().pending()
    }

    fn set_pending(&self, kinds: KindBits) {
        self.set_flags(self.flags().with_pending(kinds));
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

    /// Whether something in progress holds back the idle deadline of a kind.
    fn hold_back(self, kind: usize) -> bool {
        match kind {
            READ_IDLE | ALL_IDLE => self.reads > 0 || self.requests > 0,
            WRITE_IDLE => self.requests > 0,
            _ => false,
        }
    }
}

/// What few connections need. Without it, no idle event has come.
#[derive(Debug)]
pub(super) struct Rare {
    /// When the last idle event of each kind came; 0 if none has come.
    pub(super) event_at: [u64; 4],
    /// The deadlines that were armed.
    pub(super) armed: Armed,
    transfers: Transfers,
    /// The numbers of the writes in progress, with their deadlines.
    writes: VecDeque<(u32, u64)>,
    next_write: u32,
}

const _: () = assert!(size_of::<Rare>() <= 176);

impl Rare {
    pub(super) const NO_EVENT: [u64; 4] = [0; 4];

    pub(super) fn new() -> Self {
        Self {
            event_at: Self::NO_EVENT,
            armed: Armed::default(),
            transfers: Transfers::default(),
            writes: VecDeque::new(),
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
            0..=REQUEST => Some(kind),
            NAMED.. => Some(kind - NAMED + REQUEST + 1),
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

/// The deadlines of a connection that are due, as bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Events {
    kinds: KindBits,
    first: KindBits,
}

/// When a deadline is due.
pub(super) fn due(conn: &impl Facts, kind: usize) -> u64 {
    let rare = conn.rare();
    let armed = rare.map_or(NEVER, |rare| rare.armed.due(kind));
    if kind == WRITE_TIMEOUT {
        let writes = rare.into_iter().flat_map(|rare| &rare.writes);
        return writes.map(|(_, due)| *due).min().unwrap_or(NEVER);
    }
    if let Some(direction) = Direction::of(kind) {
        let transfer = rare.and_then(|rare| rare.transfers.at(direction));
        return transfer.map_or(NEVER, Measured::due);
    }
    if !(kind <= HANDSHAKE || (READ_IDLE..=HEARTBEAT).contains(&kind)) {
        return armed;
    }
    let span = conn.span(kind);
    if kind <= HANDSHAKE {
        let is_over = conn.marks().is_over(kind);
        let due = if is_over { NEVER } else { conn.opened().saturating_add(span) };
        let jitter = if kind == MAX_AGE { age_jitter(conn) } else { 0 };
        return armed.min(due.saturating_add(jitter));
    }
    let idle_at = idle_at(conn, kind);
    let event_at = rare.map_or(0, |rare| rare.event_at[kind - READ_IDLE]);
    if idle_at > event_at { idle_at } else { event_at.saturating_add(span) }
}

/// When a deadline is due, if the connection is open.
pub(super) fn open_due(conn: &impl Facts, kind: usize) -> u64 {
    if conn.is_open() { due(conn, kind) } else { NEVER }
}

/// By how much the end of the connection's greatest age is later.
///
/// A connection's part of the longest jitter follows from the time at which the connection began,
/// and from its salt, so it takes no room of its own.
fn age_jitter(conn: &impl Facts) -> u64 {
    let longest = saturating_nanos(conn.limits().max_age_jitter);
    if longest == 0 {
        return 0;
    }
    let seed = conn.opened() ^ u64::from(conn.flags().salt()).wrapping_mul(GOLDEN);
    let part = fastrand::Rng::with_seed(seed).u64(..);
    ((u128::from(part) * (u128::from(longest) + 1)) >> u64::BITS) as u64
}

/// When the connection has been idle for long enough, unless it is active before.
fn idle_at(conn: &impl Facts, kind: usize) -> u64 {
    let span = conn.span(kind);
    if span == NEVER {
        return NEVER;
    }
    let active = match kind {
        READ_IDLE => conn.read().max(conn.request_ended()),
        WRITE_IDLE => conn.written().max(conn.request_ended()),
        ALL_IDLE => conn.read().max(conn.written()).max(conn.request_ended()),
        _ => conn.written(),
    };
    // What is in progress counts as activity whenever the time is asked for. A stamp may be later
    // than the present, and a read or a request that begins makes no deadline earlier.
    let holds_back = conn.in_progress().hold_back(kind);
    let active = if holds_back { active.max(conn.present()) } else { active };
    active.saturating_add(span)
}

/// Whether an idle event that has come is still true: the connection has not been active since.
fn is_idle(conn: &impl Facts, kind: usize) -> bool {
    // After an event that came on another shard, this shard may not have read the clock yet.
    if conn.in_progress().hold_back(kind) {
        return false;
    }
    let event_at = conn.rare().map_or(0, |rare| rare.event_at[kind - READ_IDLE]);
    idle_at(conn, kind) <= event_at
}

/// When the first deadline of a connection is due.
pub(super) fn first_due(conn: &impl Facts) -> u64 {
    // Otherwise, only the deadlines that the limits set are armed.
    let kinds = if conn.rare().is_some() { KINDS } else { HEARTBEAT + 1 };
    (0..kinds).map(|kind| due(conn, kind)).min().unwrap_or(NEVER)
}

/// Takes the deadlines that are due, and arms those again that come again.
pub(super) fn take_due(conn: &mut impl Facts) -> Events {
    let now = conn.present();
    let mut events = Events { kinds: 0, first: 0 };
    for kind in 0..KINDS {
        if due(conn, kind) > now {
            continue;
        }
        events.kinds |= 1 << kind;
        events.first |= 1 << kind;
        match kind {
            READ_IDLE..=HEARTBEAT => {
                let idle_at = idle_at(conn, kind);
                let event_at = &mut conn.rare_mut().event_at[kind - READ_IDLE];
                if idle_at <= *event_at {
                    events.first &= !(1 << kind);
                }
                *event_at = now;
            }
            WRITE_TIMEOUT => conn.rare_mut().writes.retain(|(_, due)| *due > now),
            READ_RATE => conn.rare_mut().transfers.take(Direction::Read, now),
            WRITE_RATE => conn.rare_mut().transfers.take(Direction::Write, now),
            _ => {
                conn.set_marks(conn.marks().set_over(kind));
                if let Some(rare) = conn.known_rare_mut() {
                    rare.armed.set(kind, NEVER);
                }
            }
        }
    }
    events
}

/// Keeps events until they are delivered.
pub(super) fn add_events(conn: &impl Facts, events: Events) {
    let before = conn.pending();
    // An event that was the first and was not taken stays the first. If the new event of its kind
    // is the first again, the old one is withdrawn.
    let first = (conn.marks().first() & before) | events.first;
    conn.set_marks(conn.marks().with_first(first));
    conn.set_pending(before | events.kinds);
}

/// Takes the next event that has come and is still true.
pub(super) fn next_event(
    conn: &impl Facts,
    wanted: impl Fn(DeadlineKind) -> bool,
) -> Option<ConnEvent> {
    for kind in 0..KINDS {
        let (pending, bit) = (conn.pending(), 1 << kind);
        if pending & bit == 0 || !wanted(DeadlineKind::at(kind)) {
            continue;
        }
        conn.set_pending(pending & !bit);
        if (READ_IDLE..=HEARTBEAT).contains(&kind) && !is_idle(conn, kind) {
            continue;
        }
        if let Some(direction) = Direction::of(kind) {
            let transfer = conn.rare().and_then(|rare| rare.transfers.at(direction));
            if !transfer.is_some_and(Measured::keep_event) {
                continue;
            }
        }
        let first = conn.marks().first() & bit != 0;
        return Some(ConnEvent { kind: DeadlineKind::at(kind), first });
    }
    None
}

/// Whether an idle event has come after a time.
pub(super) fn is_before_event(rare: &Rare, at: u64) -> bool {
    rare.event_at.iter().any(|event_at| at < *event_at)
}

/// Arms a deadline that comes once, or disarms it with `NEVER`. True if the deadline was armed, or
/// had come and its event was not taken.
pub(super) fn arm(conn: &mut impl Facts, kind: usize, due_at: u64) -> bool {
    let was_armed = due(conn, kind) != NEVER;
    let pending = conn.pending();
    conn.set_pending(pending & !(1 << kind));
    conn.set_marks(conn.marks().set_over(kind));
    if due_at != NEVER || conn.rare().is_some() {
        conn.rare_mut().armed.set(kind, due_at);
    }
    was_armed || pending & 1 << kind != 0
}

/// The number of a write that begins at `now`; `None` if there is no limit for writes.
pub(super) fn begin_write(conn: &mut impl Facts, now: u64) -> Option<u32> {
    let span = conn.span(WRITE_TIMEOUT);
    if span == NEVER {
        return None;
    }
    let rare = conn.rare_mut();
    let write = rare.next_write;
    rare.next_write = write.wrapping_add(1);
    rare.writes.push_back((write, now.saturating_add(span)));
    Some(write)
}

/// False if the write's time was up before.
pub(super) fn end_write(conn: &mut impl Facts, write: u32) -> bool {
    let Some(rare) = conn.known_rare_mut() else { return false };
    let position = rare.writes.iter().position(|(known, _)| *known == write);
    position.and_then(|position| rare.writes.remove(position)).is_some()
}

/// A measured transfer begins at `now`. It takes the place of the transfer before. `None` if there
/// is no least rate.
pub(super) fn begin_transfer(
    conn: &mut impl Facts,
    direction: Direction,
    now: u64,
) -> Option<Arc<ByteCount>> {
    withdraw(conn, direction);
    let rate = match direction {
        Direction::Read => conn.limits().min_read_rate,
        Direction::Write => conn.limits().min_write_rate,
    };
    if rate.bytes_per_second > 0 {
        return Some(conn.rare_mut().transfers.begin(direction, rate, now));
    }
    if let Some(rare) = conn.known_rare_mut() {
        rare.transfers.end(direction);
    }
    None
}

/// The transfer with this count, unless it has ended.
pub(super) fn transfer_mut<'a>(
    conn: &'a mut impl Facts,
    direction: Direction,
    count: &Arc<ByteCount>,
) -> Option<&'a mut Measured> {
    conn.known_rare_mut()?.transfers.of_count_mut(direction, count)
}

/// Ends a transfer. Its event, if it was not taken, is withdrawn. False if the time of the transfer
/// was up before, or if another transfer has taken its place.
pub(super) fn end_transfer(
    conn: &mut impl Facts,
    direction: Direction,
    count: &Arc<ByteCount>,
) -> bool {
    let Some(transfer) = transfer_mut(conn, direction, count) else { return false };
    let is_in_time = !transfer.end();
    withdraw(conn, direction);
    is_in_time
}

fn withdraw(conn: &impl Facts, direction: Direction) {
    conn.set_pending(conn.pending() & !(1 << direction.kind()));
}

/// The position of a kind that [`arm`] takes.
pub(super) fn armed_kind(kind: DeadlineKind) -> Result<usize, ArmError> {
    let index = kind.index().ok_or(ArmError::NoSuchDeadline(kind))?;
    Armed::place(index).map(|_| index).ok_or(ArmError::SetByLimits(kind))
}

/// The limit of a kind that is not custom, in nanoseconds; `NEVER` if it is off. Of the deadlines
/// that come once, only those that the limits arm have one.
pub(super) fn span_of(limits: &ConnLimits, kind: usize) -> u64 {
    let limit = match DeadlineKind::at(kind) {
        DeadlineKind::MaxAge => limits.max_age,
        DeadlineKind::Handshake => limits.handshake,
        DeadlineKind::WriteTimeout => limits.write_timeout,
        DeadlineKind::ReadIdle => limits.read_idle,
        DeadlineKind::WriteIdle => limits.write_idle,
        DeadlineKind::AllIdle => limits.all_idle,
        DeadlineKind::Heartbeat => limits.heartbeat,
        DeadlineKind::Request
        | DeadlineKind::ReadRate
        | DeadlineKind::WriteRate
        | DeadlineKind::Custom(_) => Duration::ZERO,
    };
    if limit.is_zero() { NEVER } else { saturating_nanos(limit) }
}
