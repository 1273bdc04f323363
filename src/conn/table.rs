//! The connections of a shard: many deadlines for each, and one entry of the wheel, at their
//! minimum.
//!
//! A touch changes a record, and the wheel is not changed. When the entry of a connection expires,
//! the record says which deadline is due. In most cases none is, since the connection was active,
//! and the entry is put off to the new minimum. Only a deadline that becomes earlier resets the
//! entry at once.
//!
//! What few connections need lies in a table of its own, and so do the wakers.
//!
//! Invariants: an open connection has an entry, not later than its first deadline.
//!
//! Cost: a deadline that is set by the limits costs a load and an addition when the entry expires,
//! and nothing before. Limits that many connections share are stored once.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use hashbrown::HashMap;
use slab::Slab;

use super::activity::Activity;
use super::limits::{ConnEvent, ConnLimits, DeadlineKind};
use super::marks::{HANDSHAKE, Marks, READ_IDLE};
use super::record::{BLOCK, Block, NONE, Record, Records, Usage, block_of};
use super::timers::ConnTimers;
use crate::clock::saturating_nanos;
use crate::values::class::ClassId;

/// The due time of a deadline that is off.
pub(super) const NEVER: u64 = u64::MAX;

const WRITE_TIMEOUT: usize = DeadlineKind::WriteTimeout.named_index();
pub(super) const WRITE_IDLE: usize = DeadlineKind::WriteIdle.named_index();
pub(super) const ALL_IDLE: usize = DeadlineKind::AllIdle.named_index();
const HEARTBEAT: usize = DeadlineKind::Heartbeat.named_index();
const KINDS: usize = DeadlineKind::COUNT;
const _: () = assert!(KINDS == u16::BITS as usize);

/// Called for each event of a connection.
pub(super) type OnEvent = Box<dyn FnMut(&ConnTimers, ConnEvent)>;

/// What few connections need.
pub(super) struct Extra {
    /// When the last idle event of each kind came; 0 if none has come.
    event_at: [u64; 4],
    /// The deadlines that were armed: max age, handshake, request and the custom ones.
    armed: [u64; KINDS],
    /// The numbers of the writes in progress, with their deadlines.
    writes: VecDeque<(u32, u64)>,
    next_write: u32,
    on_event: Option<OnEvent>,
    /// The callback is running, and is put back afterwards.
    is_called: bool,
}

/// Limits that some connections share.
struct Spans {
    limits: ConnLimits,
    users: u32,
    /// By kind. Of the deadlines that come once, only those that the limits arm.
    by_kind: [u64; 8],
}

/// The connections of a shard.
#[derive(Default)]
pub(super) struct Table {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    limits: Slab<Spans>,
    known: HashMap<ConnLimits, u32>,
    extras: Slab<Extra>,
    wakers: Slab<Waker>,
}

/// What a connection takes along to another shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    pub(super) limits: ConnLimits,
    /// The class of the connection's entry.
    pub(super) class: ClassId,
    read: u64,
    written: u64,
    request_ended: u64,
    opened: u64,
    pending: u16,
    marks: Marks,
    event_at: [u64; 4],
    armed: [u64; KINDS],
}

impl Packed {
    pub(super) fn new(limits: ConnLimits, class: ClassId, now: u64) -> Self {
        Self {
            limits,
            class,
            read: now,
            written: now,
            request_ended: 0,
            opened: now,
            pending: 0,
            marks: Marks::default(),
            event_at: [0; 4],
            armed: [NEVER; KINDS],
        }
    }
}

/// The deadlines of a connection that are due, as bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Events {
    kinds: u16,
    first: u16,
}

/// Records, and the limits that they name.
impl Table {
    pub(super) fn record(&self, index: u32) -> &Record {
        self.blocks[block_of(index)].record(index)
    }

    fn usage(&self, index: u32) -> &Usage {
        self.blocks[block_of(index)].usage(index)
    }

    pub(super) fn block(&self, index: u32) -> Block {
        Block::clone(&self.blocks[block_of(index)])
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Fills a record for a connection, which has no entry yet.
    pub(super) fn open(&mut self, packed: &Packed, activity: &Activity) -> u32 {
        if self.vacant.is_empty() {
            let first = (self.blocks.len() * BLOCK) as u32;
            self.blocks.push(Records::new());
            self.vacant.extend((first..first + BLOCK as u32).rev());
        }
        let index = self.vacant.pop().expect("there is a block with room");
        let limits = self.use_limits(packed.limits);
        let (record, usage) = (self.record(index), self.usage(index));
        record.read.set(activity.exact(packed.read));
        record.written.set(activity.exact(packed.written));
        usage.request_ended.set(activity.exact(packed.request_ended));
        record.opened.set(packed.opened);
        record.limits.set(limits);
        record.extra.set(NONE);
        record.waker.set(NONE);
        record.pending.set(packed.pending);
        record.marks.set(packed.marks);
        usage.reads.set(0);
        usage.requests.set(0);
        if packed.event_at != [0; 4] || packed.armed != [NEVER; KINDS] {
            let extra = self.extra_mut(index);
            (extra.event_at, extra.armed) = (packed.event_at, packed.armed);
        }
        index
    }

    /// Ends the use of a record that has no entry any more. The caller drops what the record held
    /// of the user's.
    pub(super) fn vacate(&mut self, index: u32) -> (Option<Extra>, Option<Waker>) {
        let waker = self.take_waker(index);
        let record = self.record(index);
        let (extra, limits) = (record.extra.replace(NONE), record.limits.get());
        record.pending.set(0);
        self.drop_limits(limits);
        let extra = self.extras.try_remove(extra as usize);
        self.vacant.push(index);
        (extra, waker)
    }

    pub(super) fn limits(&self, index: u32) -> ConnLimits {
        self.limits[self.record(index).limits.get() as usize].limits
    }

    pub(super) fn set_limits(&mut self, index: u32, limits: ConnLimits) {
        let number = self.use_limits(limits);
        let before = self.record(index).limits.replace(number);
        self.drop_limits(before);
    }

    fn use_limits(&mut self, limits: ConnLimits) -> u32 {
        let number = *self.known.entry(limits).or_insert_with(|| {
            self.limits.insert(Spans { limits, users: 0, by_kind: spans_of(&limits) }) as u32
        });
        self.limits[number as usize].users += 1;
        number
    }

    fn drop_limits(&mut self, number: u32) {
        let spans = &mut self.limits[number as usize];
        spans.users -= 1;
        if spans.users == 0 {
            let spans = self.limits.remove(number as usize);
            self.known.remove(&spans.limits);
        }
    }

    /// The extra of a connection, made if there is none yet.
    fn extra_mut(&mut self, index: u32) -> &mut Extra {
        let mut extra = self.record(index).extra.get();
        if extra == NONE {
            extra = self.extras.insert(Extra {
                event_at: [0; 4],
                armed: [NEVER; KINDS],
                writes: VecDeque::new(),
                next_write: 0,
                on_event: None,
                is_called: false,
            }) as u32;
            self.record(index).extra.set(extra);
        }
        &mut self.extras[extra as usize]
    }

    fn extra(&self, index: u32) -> Option<&Extra> {
        self.extras.get(self.record(index).extra.get() as usize)
    }

    fn known_extra_mut(&mut self, index: u32) -> Option<&mut Extra> {
        self.extras.get_mut(self.record(index).extra.get() as usize)
    }

    /// What a connection takes along to another shard. Reads and requests in progress end here.
    pub(super) fn pack(&self, index: u32, class: ClassId, activity: &Activity) -> Packed {
        let (record, usage, extra) = (self.record(index), self.usage(index), self.extra(index));
        let now = activity.now();
        // The other shard does not know the gaps of this shard. Its own gaps concern other stamps.
        let settle = |stamp: u64, in_progress: u32| {
            if in_progress > 0 { now } else { activity.resolve(stamp).min(now) }
        };
        Packed {
            limits: self.limits(index),
            class,
            read: settle(record.read.get(), usage.reads.get()),
            written: settle(record.written.get(), 0),
            request_ended: settle(usage.request_ended.get(), usage.requests.get()),
            opened: record.opened.get(),
            pending: record.pending.get(),
            marks: record.marks.get(),
            event_at: extra.map_or([0; 4], |extra| extra.event_at),
            armed: extra.map_or([NEVER; KINDS], |extra| extra.armed),
        }
    }

    /// Closes all connections. Returns what they held of the user's.
    pub(super) fn close_all(&mut self) -> (Vec<Waker>, Vec<OnEvent>) {
        for record in self.blocks.iter().flat_map(|block| block.all()) {
            record.key.set(None);
            record.waker.set(NONE);
        }
        let callbacks = self.extras.iter_mut().filter_map(|(_, extra)| {
            extra.is_called = false;
            extra.on_event.take()
        });
        let callbacks = callbacks.collect();
        (self.wakers.drain().collect(), callbacks)
    }
}

/// Deadlines.
impl Table {
    /// When a deadline is due.
    pub(super) fn due(&self, index: u32, kind: usize, activity: &Activity) -> u64 {
        let record = self.record(index);
        let extra = self.extra(index);
        let armed = extra.map_or(NEVER, |extra| extra.armed[kind]);
        if kind == WRITE_TIMEOUT {
            let writes = extra.into_iter().flat_map(|extra| &extra.writes);
            return writes.map(|(_, due)| *due).min().unwrap_or(NEVER);
        }
        if !(kind <= HANDSHAKE || (READ_IDLE..=HEARTBEAT).contains(&kind)) {
            return armed;
        }
        let span = self.span(record, kind);
        if kind <= HANDSHAKE {
            let is_over = record.marks.get().is_over(kind);
            let due = if is_over { NEVER } else { record.opened.get().saturating_add(span) };
            return armed.min(due);
        }
        let idle_at = self.idle_at(index, kind, activity);
        let event_at = extra.map_or(0, |extra| extra.event_at[kind - READ_IDLE]);
        if idle_at > event_at { idle_at } else { event_at.saturating_add(span) }
    }

    fn span(&self, record: &Record, kind: usize) -> u64 {
        self.limits[record.limits.get() as usize].by_kind[kind]
    }

    /// When the connection has been idle for long enough, unless it is active before.
    fn idle_at(&self, index: u32, kind: usize, activity: &Activity) -> u64 {
        let (record, usage) = (self.record(index), self.usage(index));
        let span = self.span(record, kind);
        if span == NEVER {
            return NEVER;
        }
        let read = || activity.resolve(record.read.get());
        let written = || activity.resolve(record.written.get());
        let request_ended = || activity.resolve(usage.request_ended.get());
        let active = match kind {
            READ_IDLE => read().max(request_ended()),
            WRITE_IDLE => written().max(request_ended()),
            ALL_IDLE => read().max(written()).max(request_ended()),
            _ => written(),
        };
        // What is in progress counts as activity at each turn. A stamp may be later than the turn,
        // and a read or a request that begins makes no deadline earlier.
        let active = if usage.holds_back(kind) { active.max(activity.now()) } else { active };
        active.saturating_add(span)
    }

    /// Whether an idle event that has come is still true: the connection has not been active since.
    fn is_idle(&self, index: u32, kind: usize, activity: &Activity) -> bool {
        // After an event that came on another shard, this shard may not have read the clock yet.
        if self.usage(index).holds_back(kind) {
            return false;
        }
        let event_at = self.extra(index).map_or(0, |extra| extra.event_at[kind - READ_IDLE]);
        self.idle_at(index, kind, activity) <= event_at
    }

    /// Whether an idle event has come after a time.
    pub(super) fn is_before_event(&self, index: u32, at: u64) -> bool {
        self.extra(index).is_some_and(|extra| extra.event_at.iter().any(|event_at| at < *event_at))
    }

    /// When the first deadline of a connection is due.
    pub(super) fn first_due(&self, index: u32, activity: &Activity) -> u64 {
        // Without an extra, only the deadlines that the limits set are armed.
        let kinds = if self.extra(index).is_some() { KINDS } else { HEARTBEAT + 1 };
        (0..kinds).map(|kind| self.due(index, kind, activity)).min().unwrap_or(NEVER)
    }

    /// Takes the deadlines that are due, and arms those again that come again.
    pub(super) fn take_due(&mut self, index: u32, activity: &Activity) -> Events {
        let now = activity.now();
        let mut events = Events { kinds: 0, first: 0 };
        for kind in 0..KINDS {
            if self.due(index, kind, activity) > now {
                continue;
            }
            events.kinds |= 1 << kind;
            events.first |= 1 << kind;
            match kind {
                READ_IDLE..=HEARTBEAT => {
                    let idle_at = self.idle_at(index, kind, activity);
                    let event_at = &mut self.extra_mut(index).event_at[kind - READ_IDLE];
                    if idle_at <= *event_at {
                        events.first &= !(1 << kind);
                    }
                    *event_at = now;
                }
                WRITE_TIMEOUT => self.extra_mut(index).writes.retain(|(_, due)| *due > now),
                _ => {
                    let marks = &self.record(index).marks;
                    marks.set(marks.get().set_over(kind));
                    if let Some(extra) = self.known_extra_mut(index) {
                        extra.armed[kind] = NEVER;
                    }
                }
            }
        }
        events
    }

    /// Arms a deadline that comes once, or disarms it with `NEVER`. True if the deadline was armed,
    /// or had come and its event was not taken.
    pub(super) fn arm(&mut self, index: u32, kind: usize, due: u64, activity: &Activity) -> bool {
        let was_armed = self.due(index, kind, activity) != NEVER;
        let record = self.record(index);
        let pending = record.pending.get();
        record.pending.set(pending & !(1 << kind));
        record.marks.set(record.marks.get().set_over(kind));
        if due != NEVER || record.extra.get() != NONE {
            self.extra_mut(index).armed[kind] = due;
        }
        was_armed || pending & 1 << kind != 0
    }

    /// The number of a write that begins; `None` if there is no limit for writes.
    pub(super) fn begin_write(&mut self, index: u32, now: u64) -> Option<u32> {
        let span = self.span(self.record(index), WRITE_TIMEOUT);
        if span == NEVER {
            return None;
        }
        let extra = self.extra_mut(index);
        let write = extra.next_write;
        extra.next_write = write.wrapping_add(1);
        extra.writes.push_back((write, now.saturating_add(span)));
        Some(write)
    }

    /// False if the write's time was up before.
    pub(super) fn end_write(&mut self, index: u32, write: u32) -> bool {
        let Some(extra) = self.known_extra_mut(index) else { return false };
        let position = extra.writes.iter().position(|(known, _)| *known == write);
        position.and_then(|position| extra.writes.remove(position)).is_some()
    }
}

/// Events, and the callback or the waker that they are for.
impl Table {
    /// Keeps events until the callback or a task takes them.
    pub(super) fn add_events(&self, index: u32, events: Events) {
        let record = self.record(index);
        let before = record.pending.get();
        // An event that was the first and was not taken stays the first. If the new event of its
        // kind is the first again, the old one is withdrawn.
        let first = (record.marks.get().first() & before) | events.first;
        record.marks.set(record.marks.get().with_first(first));
        record.pending.set(before | events.kinds);
    }

    /// Takes the next event that has come and is still true.
    pub(super) fn next_event(
        &self,
        index: u32,
        activity: &Activity,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Option<ConnEvent> {
        let record = self.record(index);
        for kind in 0..KINDS {
            let (pending, bit) = (record.pending.get(), 1 << kind);
            if pending & bit == 0 || !wanted(DeadlineKind::at(kind)) {
                continue;
            }
            record.pending.set(pending & !bit);
            if (READ_IDLE..=HEARTBEAT).contains(&kind) && !self.is_idle(index, kind, activity) {
                continue;
            }
            let first = record.marks.get().first() & bit != 0;
            return Some(ConnEvent { kind: DeadlineKind::at(kind), first });
        }
        None
    }

    pub(super) fn has_events(&self, index: u32) -> bool {
        self.record(index).pending.get() != 0
    }

    /// Whether there is a callback, and an event that it has not been called for.
    pub(super) fn owes_callback(&self, index: u32) -> bool {
        self.has_events(index) && self.extra(index).is_some_and(|extra| extra.on_event.is_some())
    }

    /// Sets the callback. Returns the one before.
    pub(super) fn set_on_event(
        &mut self,
        index: u32,
        on_event: Option<OnEvent>,
    ) -> Option<OnEvent> {
        if on_event.is_none() && self.extra(index).is_none() {
            return None;
        }
        let extra = self.extra_mut(index);
        extra.is_called = false;
        std::mem::replace(&mut extra.on_event, on_event)
    }

    /// Takes the callback out while it is called.
    pub(super) fn take_on_event(&mut self, index: u32) -> Option<OnEvent> {
        let extra = self.known_extra_mut(index)?;
        let on_event = extra.on_event.take()?;
        extra.is_called = true;
        Some(on_event)
    }

    /// Puts the callback back, unless it was cleared or replaced meanwhile. Returns one that is not
    /// needed any more.
    pub(super) fn put_back(&mut self, index: u32, on_event: OnEvent) -> Option<OnEvent> {
        match self.known_extra_mut(index) {
            Some(extra) if extra.is_called => {
                extra.is_called = false;
                extra.on_event = Some(on_event);
                None
            }
            _ => Some(on_event),
        }
    }

    /// Whether the callback that was taken out is still the callback of an open connection.
    pub(super) fn is_called(&self, index: u32) -> bool {
        self.record(index).is_open() && self.extra(index).is_some_and(|extra| extra.is_called)
    }

    /// Whether a waker is equivalent to the one that is stored.
    pub(super) fn keeps_waker(&self, record: &Record, waker: &Waker) -> bool {
        self.wakers.get(record.waker.get() as usize).is_some_and(|kept| kept.will_wake(waker))
    }

    /// Stores the waker of the task that waits. Returns the one before.
    pub(super) fn keep_waker(&mut self, record: &Record, waker: Waker) -> Option<Waker> {
        if let Some(kept) = self.wakers.get_mut(record.waker.get() as usize) {
            return Some(std::mem::replace(kept, waker));
        }
        record.waker.set(self.wakers.insert(waker) as u32);
        None
    }

    pub(super) fn take_waker(&mut self, index: u32) -> Option<Waker> {
        let waker = self.record(index).waker.replace(NONE);
        self.wakers.try_remove(waker as usize)
    }
}

/// The span of each kind. Of the deadlines that come once, only those that the limits arm.
fn spans_of(limits: &ConnLimits) -> [u64; 8] {
    std::array::from_fn(|index| {
        let limit = match DeadlineKind::at(index) {
            DeadlineKind::MaxAge => limits.max_age,
            DeadlineKind::Handshake => limits.handshake,
            DeadlineKind::WriteTimeout => limits.write_timeout,
            DeadlineKind::ReadIdle => limits.read_idle,
            DeadlineKind::WriteIdle => limits.write_idle,
            DeadlineKind::AllIdle => limits.all_idle,
            DeadlineKind::Heartbeat => limits.heartbeat,
            DeadlineKind::Request | DeadlineKind::Custom(_) => Duration::ZERO,
        };
        if limit.is_zero() { NEVER } else { saturating_nanos(limit) }
    })
}
