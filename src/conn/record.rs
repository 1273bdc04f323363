//! The deadlines of connections: many for each, and one entry of the wheel, at their minimum.
//!
//! What a connection does is noted in its record by a store, of which the wheel is not told. When
//! the entry comes up, the record says what is due; mostly nothing is, since the connection has
//! done something, and the entry goes to the new minimum. Only a deadline that comes nearer moves
//! the entry at once.
//!
//! Records lie in blocks of 64, which their connections share with the shard: so noting something
//! takes no look-up and borrows nothing. The two moments that are noted never lie on two cache
//! lines. What few connections need lies in tables of its own, and so do the wakers of those that
//! are awaited.
//!
//! Invariants: an open connection has an entry, not later than its first deadline. A record is not
//! used again before its connection is dropped. Moments are nanoseconds since the epoch, `NEVER`
//! for what is off.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use corewheel_shard::TimerKey;
use hashbrown::HashMap;
use slab::Slab;

use super::activity::Activity;
use super::limits::{ConnLimits, DeadlineKind, IdleEvent};
use super::marks::{HANDSHAKE, Marks, READ_IDLE};
use crate::clock::saturating_nanos;
use crate::face::timers::Timers;
use crate::values::class::ClassId;

pub(crate) const NEVER: u64 = u64::MAX;

const BLOCK_BITS: u32 = 6;
const BLOCK: usize = 1 << BLOCK_BITS;
const NONE: u32 = u32::MAX;

const WRITE_TIMEOUT: usize = DeadlineKind::WriteTimeout.place();
const ALL_IDLE: usize = DeadlineKind::AllIdle.place();
const HEARTBEAT: usize = DeadlineKind::Heartbeat.place();
const KINDS: usize = DeadlineKind::COUNT;

/// What is called when a deadline of a connection comes.
pub(crate) type OnEvent<T> = Box<dyn FnMut(&Timers<T>, IdleEvent)>;

/// What each connection needs. A block is aligned to 16 bytes, and so is what comes first here.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Record {
    /// When something was last read and written.
    pub(crate) read: Cell<u64>,
    pub(crate) written: Cell<u64>,
    opened: Cell<u64>,
    /// Of its entry; none if it is closed.
    key: Cell<Option<TimerKey>>,
    limits: Cell<u32>,
    /// In the table of what few connections need.
    more: Cell<u32>,
    /// In the table of those who wait.
    waker: Cell<u32>,
    /// Bits of the kinds that have come and not been told.
    pending: Cell<u16>,
    /// See [`Marks`].
    marks: Cell<Marks>,
}
const _: () = assert!(size_of::<Record>() == 48);
const _: () = assert!(KINDS == u16::BITS as usize);

pub(crate) type Block = Rc<[Record; BLOCK]>;

pub(super) fn new_block() -> Block {
    Rc::new(std::array::from_fn(|_| Record::default()))
}

/// Where a record lies in its block.
pub(crate) fn slot_of(index: u32) -> usize {
    index as usize % BLOCK
}

/// What few connections need.
pub(super) struct More<T: 'static> {
    /// Tells this one from those that were here before.
    serial: u64,
    /// When an idle event of each kind last came, 0 for never.
    told: [u64; 4],
    /// What was armed: max age, handshake, request and the user's own.
    armed: [u64; KINDS],
    writes: VecDeque<(u32, u64)>,
    next_write: u32,
    on_event: Option<OnEvent<T>>,
    /// It is being called, and to be put back.
    is_called: bool,
}

/// Limits that some connections have.
struct Spans {
    limits: ConnLimits,
    users: u32,
    /// By kind; of the deadlines that come once, only those that are armed from the beginning.
    by_kind: [u64; 8],
}

/// The records of a shard.
pub(super) struct Conns<T: 'static> {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    limits: Slab<Spans>,
    known: HashMap<ConnLimits, u32>,
    more: Slab<More<T>>,
    wakers: Slab<Waker>,
    serial: u64,
}

/// What a connection takes along to another shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    pub(crate) limits: ConnLimits,
    /// That of its entry.
    pub(super) class: ClassId,
    read: u64,
    written: u64,
    opened: u64,
    pending: u16,
    marks: Marks,
    told: [u64; 4],
    armed: [u64; KINDS],
}

impl Packed {
    pub(crate) fn new(limits: ConnLimits, class: ClassId, now: u64) -> Self {
        let (read, written, opened) = (now, now, now);
        let (pending, marks) = (0, Marks::default());
        let (told, armed) = ([0; 4], [NEVER; KINDS]);
        Self { limits, class, read, written, opened, pending, marks, told, armed }
    }
}

/// What is due of a connection, by bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Events {
    kinds: u16,
    first: u16,
}

impl<T> Default for Conns<T> {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            vacant: Vec::new(),
            limits: Slab::new(),
            known: HashMap::new(),
            more: Slab::new(),
            wakers: Slab::new(),
            serial: 0,
        }
    }
}

impl<T> Conns<T> {
    pub(super) fn record(&self, index: u32) -> &Record {
        &self.blocks[(index >> BLOCK_BITS) as usize][slot_of(index)]
    }

    pub(super) fn block(&self, index: u32) -> Block {
        Rc::clone(&self.blocks[(index >> BLOCK_BITS) as usize])
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len() * BLOCK - self.vacant.len()
    }

    /// A record for a connection, which has no entry yet.
    pub(super) fn open(&mut self, packed: &Packed) -> u32 {
        if self.vacant.is_empty() {
            let first = (self.blocks.len() * BLOCK) as u32;
            self.blocks.push(new_block());
            self.vacant.extend((first..first + BLOCK as u32).rev());
        }
        let index = self.vacant.pop().expect("there is a block with room");
        let limits = self.use_limits(packed.limits);
        let record = self.record(index);
        record.read.set(packed.read);
        record.written.set(packed.written);
        record.opened.set(packed.opened);
        record.limits.set(limits);
        record.more.set(NONE);
        record.waker.set(NONE);
        record.pending.set(packed.pending);
        record.marks.set(packed.marks);
        if packed.told != [0; 4] || packed.armed != [NEVER; KINDS] {
            let more = self.more_of(index);
            (more.told, more.armed) = (packed.told, packed.armed);
        }
        index
    }

    /// Ends the use of a record that has no entry any more. What it held is the user's to drop.
    pub(super) fn vacate(&mut self, index: u32) -> (Option<More<T>>, Option<Waker>) {
        let waker = self.take_waker(index);
        let record = self.record(index);
        let (more, limits) = (record.more.replace(NONE), record.limits.get());
        record.pending.set(0);
        self.drop_limits(limits);
        let more = (more != NONE).then(|| self.more.remove(more as usize));
        self.vacant.push(index);
        (more, waker)
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

    /// What few connections need, made for this one if need be.
    fn more_of(&mut self, index: u32) -> &mut More<T> {
        let mut more = self.record(index).more.get();
        if more == NONE {
            self.serial += 1;
            more = self.more.insert(More {
                serial: self.serial,
                told: [0; 4],
                armed: [NEVER; KINDS],
                writes: VecDeque::new(),
                next_write: 0,
                on_event: None,
                is_called: false,
            }) as u32;
            self.record(index).more.set(more);
        }
        &mut self.more[more as usize]
    }

    fn more(&self, index: u32) -> Option<&More<T>> {
        self.more.get(self.record(index).more.get() as usize)
    }

    /// When a deadline is due.
    pub(super) fn due(&self, index: u32, kind: usize, activity: &Activity) -> u64 {
        let record = self.record(index);
        let more = self.more(index);
        let armed = more.map_or(NEVER, |more| more.armed[kind]);
        if kind == WRITE_TIMEOUT {
            let writes = more.into_iter().flat_map(|more| &more.writes);
            return writes.map(|(_, due)| *due).min().unwrap_or(NEVER);
        }
        if !(kind <= HANDSHAKE || (READ_IDLE..=HEARTBEAT).contains(&kind)) {
            return armed;
        }
        let span = self.limits[record.limits.get() as usize].by_kind[kind];
        if kind <= HANDSHAKE {
            let due = if record.marks.get().is_over(kind) {
                NEVER
            } else {
                record.opened.get().saturating_add(span)
            };
            return armed.min(due);
        }
        let idle_at = self.idle_at(index, kind, activity);
        let told = more.map_or(0, |more| more.told[kind - READ_IDLE]);
        if idle_at > told { idle_at } else { told.saturating_add(span) }
    }

    /// When the connection has been idle for long enough, if it does nothing more.
    fn idle_at(&self, index: u32, kind: usize, activity: &Activity) -> u64 {
        let record = self.record(index);
        let span = self.limits[record.limits.get() as usize].by_kind[kind];
        if span == NEVER {
            return NEVER;
        }
        let noted = match kind {
            READ_IDLE => record.read.get(),
            ALL_IDLE => record.read.get().max(record.written.get()),
            _ => record.written.get(),
        };
        let noted = activity.resolve(noted);
        // A read in progress is as good as one that is done just now. What was noted may be later
        // than that, and its deadline does not come nearer when a read begins.
        let since = if record.is_reading(kind) { noted.max(activity.now()) } else { noted };
        since.saturating_add(span)
    }

    /// Whether an idle event that has come is still true: the connection has done nothing since.
    fn is_idle(&self, index: u32, kind: usize, activity: &Activity) -> bool {
        // The shard may not have looked at the clock since the event came, on another shard.
        if self.record(index).is_reading(kind) {
            return false;
        }
        let told = self.more(index).map_or(0, |more| more.told[kind - READ_IDLE]);
        self.idle_at(index, kind, activity) <= told
    }

    /// Whether an idle event has come after a moment.
    pub(super) fn is_before_event(&self, index: u32, at: u64) -> bool {
        self.more(index).is_some_and(|more| more.told.iter().any(|told| at < *told))
    }

    /// When the first of its deadlines is due.
    pub(super) fn first_due(&self, index: u32, activity: &Activity) -> u64 {
        // Without more there are those alone which the limits have armed.
        let kinds = if self.more(index).is_some() { KINDS } else { HEARTBEAT + 1 };
        (0..kinds).map(|kind| self.due(index, kind, activity)).min().unwrap_or(NEVER)
    }

    /// Takes out what is due, and arms it again if it comes again.
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
                    let told = &mut self.more_of(index).told[kind - READ_IDLE];
                    if idle_at <= *told {
                        events.first &= !(1 << kind);
                    }
                    *told = now;
                }
                WRITE_TIMEOUT => self.more_of(index).writes.retain(|(_, due)| *due > now),
                _ => {
                    let record = self.record(index);
                    record.marks.set(record.marks.get().set_over(kind));
                    if record.more.get() != NONE {
                        self.more_of(index).armed[kind] = NEVER;
                    }
                }
            }
        }
        events
    }

    /// Arms a deadline that comes once, or disarms it. True if it was armed, or had come and not
    /// been told.
    pub(super) fn arm(&mut self, index: u32, kind: usize, due: u64, activity: &Activity) -> bool {
        let was_armed = self.due(index, kind, activity) != NEVER;
        let record = self.record(index);
        let pending = record.pending.get();
        record.pending.set(pending & !(1 << kind));
        record.marks.set(record.marks.get().set_over(kind));
        if due != NEVER || record.more.get() != NONE {
            self.more_of(index).armed[kind] = due;
        }
        was_armed || pending & 1 << kind != 0
    }

    pub(super) fn begin_write(&mut self, index: u32, now: u64) -> Option<u32> {
        let spans = &self.limits[self.record(index).limits.get() as usize];
        let span = spans.by_kind[WRITE_TIMEOUT];
        if span == NEVER {
            return None;
        }
        let more = self.more_of(index);
        let write = more.next_write;
        more.next_write = write.wrapping_add(1);
        more.writes.push_back((write, now.saturating_add(span)));
        Some(write)
    }

    /// False if its time was up before.
    pub(super) fn end_write(&mut self, index: u32, write: u32) -> bool {
        let Some(more) = self.more.get_mut(self.record(index).more.get() as usize) else {
            return false;
        };
        let position = more.writes.iter().position(|(known, _)| *known == write);
        position.and_then(|position| more.writes.remove(position)).is_some()
    }

    /// Sets what is called for each event. Returns what was called before.
    pub(super) fn set_on_event(
        &mut self,
        index: u32,
        on_event: Option<OnEvent<T>>,
    ) -> Option<OnEvent<T>> {
        if on_event.is_none() && self.record(index).more.get() == NONE {
            return None;
        }
        let more = self.more_of(index);
        more.is_called = false;
        std::mem::replace(&mut more.on_event, on_event)
    }

    /// Takes what is to be called out, for as long as it is called.
    pub(super) fn take_on_event(&mut self, index: u32) -> Option<(u64, OnEvent<T>)> {
        let more = self.more.get_mut(self.record(index).more.get() as usize)?;
        let on_event = more.on_event.take()?;
        more.is_called = true;
        Some((more.serial, on_event))
    }

    /// Puts it back, if the connection is still there and it was not to be another one meanwhile.
    pub(super) fn put_back(
        &mut self,
        index: u32,
        serial: u64,
        on_event: OnEvent<T>,
    ) -> Option<OnEvent<T>> {
        match self.more.get_mut(self.record(index).more.get() as usize) {
            Some(more) if more.serial == serial && more.is_called => {
                more.is_called = false;
                more.on_event = Some(on_event);
                None
            }
            _ => Some(on_event),
        }
    }

    /// Whether a connection is still the one whose callback was taken out, and open.
    pub(super) fn is_same(&self, index: u32, serial: u64) -> bool {
        self.record(index).key.get().is_some()
            && self.more(index).is_some_and(|more| more.serial == serial && more.is_called)
    }

    /// Whether anything has come that nobody was told of.
    pub(super) fn has_untold(&self, index: u32) -> bool {
        self.record(index).pending.get() != 0
    }

    /// Whether there is a callback, and something has come that it was not told of.
    pub(super) fn owes_callback(&self, index: u32) -> bool {
        self.has_untold(index) && self.more(index).is_some_and(|more| more.on_event.is_some())
    }

    /// Keeps events until the callback or a task takes them.
    pub(super) fn note_events(&self, index: u32, events: Events) {
        let record = self.record(index);
        let before = record.pending.get();
        // What came before and was not told is still the first, and what comes now may be the first
        // again: then what came before will not be told any more.
        let first = (record.marks.get().first() & before) | events.first;
        record.marks.set(record.marks.get().with_first(first));
        record.pending.set(before | events.kinds);
    }

    /// The next event that has come and is still true.
    pub(super) fn next_event(
        &self,
        index: u32,
        activity: &Activity,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Option<IdleEvent> {
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
            return Some(IdleEvent { kind: DeadlineKind::at(kind), first });
        }
        None
    }

    pub(super) fn pack(&self, index: u32, class: ClassId, activity: &Activity) -> Packed {
        let record = self.record(index);
        let more = self.more(index);
        Packed {
            limits: self.limits(index),
            class,
            // The other shard knows nothing of this one's gaps, and its own are none of these.
            read: activity.resolve(record.read.get()).min(activity.now()),
            written: activity.resolve(record.written.get()).min(activity.now()),
            opened: record.opened.get(),
            pending: record.pending.get(),
            marks: record.marks.get().without_reads(),
            told: more.map_or([0; 4], |more| more.told),
            armed: more.map_or([NEVER; KINDS], |more| more.armed),
        }
    }

    /// All records whose connections are open, to be closed.
    pub(super) fn close_all(&mut self) -> Vec<Waker> {
        for record in self.blocks.iter().flat_map(|block| block.iter()) {
            record.key.set(None);
            record.waker.set(NONE);
        }
        self.wakers.drain().collect()
    }

    /// Whether a waker is the one that is kept already.
    pub(super) fn keeps_waker(&self, record: &Record, waker: &Waker) -> bool {
        self.wakers.get(record.waker.get() as usize).is_some_and(|kept| kept.will_wake(waker))
    }

    /// Keeps the waker of who waits. Returns one that is not needed any more.
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

impl Record {
    pub(crate) fn key(&self) -> Option<TimerKey> {
        self.key.get()
    }

    pub(super) fn set_key(&self, key: Option<TimerKey>) {
        self.key.set(key);
    }

    /// Whether a read is in progress that keeps the connection from being idle.
    fn is_reading(&self, kind: usize) -> bool {
        matches!(kind, READ_IDLE | ALL_IDLE) && self.marks.get().reads() > 0
    }

    /// A read is in progress. False if there are so many that it is not counted.
    pub(crate) fn begin_read(&self) -> bool {
        let marks = self.marks.get().with_read();
        self.marks.set(marks.unwrap_or(self.marks.get()));
        marks.is_some()
    }

    /// One that was counted is over.
    pub(crate) fn end_read(&self) {
        self.marks.set(self.marks.get().without_read());
    }

    /// Without, no idle event has come.
    pub(super) fn has_more(&self) -> bool {
        self.more.get() != NONE
    }

    pub(super) fn forget_events(&self) {
        self.pending.set(0);
    }
}

/// How long each deadline is from what it counts from; of those that come once, only the ones that
/// the limits arm.
fn spans_of(limits: &ConnLimits) -> [u64; 8] {
    std::array::from_fn(|place| {
        let limit = match DeadlineKind::at(place) {
            DeadlineKind::MaxAge => limits.max_age,
            DeadlineKind::Handshake => limits.handshake,
            DeadlineKind::WriteTimeout => limits.write_timeout,
            DeadlineKind::ReadIdle => limits.read_idle,
            DeadlineKind::WriteIdle => limits.write_idle,
            DeadlineKind::AllIdle => limits.all_idle,
            DeadlineKind::Heartbeat => limits.heartbeat,
            DeadlineKind::Request | DeadlineKind::Own(_) => Duration::ZERO,
        };
        if limit.is_zero() { NEVER } else { saturating_nanos(limit) }
    })
}
