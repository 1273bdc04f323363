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
//! Invariants: an open connection has an entry, not later than its first deadline. The table says
//! what is known of a connection; which deadline is due follows from the
//! [rules](super::super::rules).
//!
//! Cost: a deadline that is set by the limits costs a load and an addition when the entry expires,
//! and nothing before. Limits that many connections share are stored once.

use std::task::Waker;

use hashbrown::HashMap;
use slab::Slab;

use super::super::limits::{ConnEvent, ConnLimits, Spans};
use super::super::marks::{Flags, KindBits};
use super::super::rules::{self, Armed, Facts, InProgressCounts, Place, Rare};
use super::super::timers::ConnTimers;
use super::activity::Activity;
use super::record::{BLOCK, Block, NONE, Record, Records, Usage, block_of};
use crate::values::class::ClassId;

/// Called for each event of a connection.
pub(super) type OnEvent = Box<dyn FnMut(&ConnTimers, ConnEvent)>;

/// What few connections need.
pub(super) struct Extra {
    rare: Rare,
    on_event: Option<OnEvent>,
    /// The callback is running, and is put back afterwards.
    is_called: bool,
}

/// The limits of all connections of a shard, each stored once.
#[derive(Default)]
struct Limits {
    /// With how many connections use them.
    spans: Slab<(Spans, u32)>,
    known: HashMap<ConnLimits, u32>,
}

impl Limits {
    fn of(&self, record: &Record) -> &Spans {
        &self.spans[record.limits.get() as usize].0
    }

    fn take(&mut self, limits: ConnLimits) -> u32 {
        let insert = || self.spans.insert((Spans::new(limits), 0)) as u32;
        let number = *self.known.entry(limits).or_insert_with(insert);
        self.spans[number as usize].1 += 1;
        number
    }

    fn give_back(&mut self, number: u32) {
        let (spans, users) = &mut self.spans[number as usize];
        *users -= 1;
        if *users == 0 {
            self.known.remove(&spans.limits);
            self.spans.remove(number as usize);
        }
    }
}

/// The connections of a shard.
#[derive(Default)]
pub(super) struct Table {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    limits: Limits,
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
    flags: Flags,
    event_at: [u64; Rare::NO_EVENT.len()],
    first: KindBits,
    armed: Armed,
}

impl Packed {
    pub(super) fn new(limits: ConnLimits, class: ClassId, now: u64, salt: u8) -> Self {
        Self {
            limits,
            class,
            read: now,
            written: now,
            request_ended: 0,
            opened: now,
            flags: Flags::new(salt),
            event_at: Rare::NO_EVENT,
            first: 0,
            armed: Armed::default(),
        }
    }
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
        let limits = self.limits.take(packed.limits);
        let (record, usage) = (self.record(index), self.usage(index));
        record.read.set(activity.exact(packed.read));
        record.written.set(activity.exact(packed.written));
        usage.request_ended.set(activity.exact(packed.request_ended));
        record.opened.set(packed.opened);
        record.limits.set(limits);
        record.extra.set(NONE);
        record.waker.set(NONE);
        record.flags.set(packed.flags);
        usage.reads.set(0);
        usage.requests.set(0);
        if packed.event_at != Rare::NO_EVENT || packed.armed != Armed::default() {
            let rare = &mut self.extra_mut(index).rare;
            (rare.event_at, rare.first, rare.armed) = (packed.event_at, packed.first, packed.armed);
        }
        index
    }

    /// Ends the use of a record that has no entry any more. The caller drops what the record held
    /// of the user's.
    pub(super) fn vacate(&mut self, index: u32) -> (Option<Extra>, Option<Waker>) {
        let waker = self.take_waker(index);
        let record = self.record(index);
        let (extra, limits) = (record.extra.replace(NONE), record.limits.get());
        record.clear_pending();
        self.limits.give_back(limits);
        let extra = self.extras.try_remove(extra as usize);
        self.vacant.push(index);
        (extra, waker)
    }

    /// The extra of a connection, made if there is none yet.
    fn extra_mut(&mut self, index: u32) -> &mut Extra {
        let record = self.blocks[block_of(index)].record(index);
        made_extra(&mut self.extras, record)
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
        // The events of transfers are withdrawn with them.
        let (now, flags) = (activity.now(), record.flags.get());
        // The other shard does not know the gaps of this shard. Its own gaps concern other stamps.
        let settle = |stamp: u64, in_progress: u32| {
            if in_progress > 0 { now } else { activity.resolve(stamp).min(now) }
        };
        Packed {
            limits: self.limits.of(record).limits,
            class,
            read: settle(record.read.get(), usage.reads.get()),
            written: settle(record.written.get(), 0),
            request_ended: settle(usage.request_ended.get(), usage.requests.get()),
            opened: record.opened.get(),
            flags: flags.with_pending(flags.pending() & !rules::RATES),
            event_at: extra.map_or(Rare::NO_EVENT, |extra| extra.rare.event_at),
            first: extra.map_or(0, |extra| extra.rare.first),
            armed: extra.map_or(Armed::default(), |extra| extra.rare.armed),
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

/// What is known of a connection.
impl Table {
    pub(super) fn facts<'a>(
        &'a mut self,
        index: u32,
        activity: &Activity,
    ) -> Facts<'a, Extras<'a>> {
        let block = &self.blocks[block_of(index)];
        let (record, usage) = (block.record(index), block.usage(index));
        Facts {
            is_open: record.is_open(),
            present: activity.now(),
            opened: record.opened.get(),
            read: activity.resolve(record.read.get()),
            written: activity.resolve(record.written.get()),
            request_ended: activity.resolve(usage.request_ended.get()),
            in_progress: InProgressCounts {
                reads: usage.reads.get(),
                requests: usage.requests.get(),
            },
            spans: self.limits.of(record),
            flags: &record.flags,
            place: Extras { extras: &mut self.extras, record },
        }
    }

    pub(super) fn set_limits(&mut self, index: u32, limits: ConnLimits) {
        let number = self.limits.take(limits);
        let before = self.record(index).limits.replace(number);
        self.limits.give_back(before);
    }

    /// Whether an idle event has come after a time.
    pub(super) fn is_before_event(&self, index: u32, at: u64) -> bool {
        self.extra(index).is_some_and(|extra| rules::is_before_event(&extra.rare, at))
    }
}

/// The table in which a connection has its extra.
pub(in crate::conn) struct Extras<'a> {
    extras: &'a mut Slab<Extra>,
    record: &'a Record,
}

impl Place for Extras<'_> {
    fn rare(&self) -> Option<&Rare> {
        self.extras.get(self.record.extra.get() as usize).map(|extra| &extra.rare)
    }

    fn known_rare_mut(&mut self) -> Option<&mut Rare> {
        self.extras.get_mut(self.record.extra.get() as usize).map(|extra| &mut extra.rare)
    }

    fn rare_mut(&mut self) -> &mut Rare {
        &mut made_extra(self.extras, self.record).rare
    }
}

/// The extra of a connection, made if there is none yet.
fn made_extra<'a>(extras: &'a mut Slab<Extra>, record: &Record) -> &'a mut Extra {
    let mut extra = record.extra.get();
    if extra == NONE {
        let made = Extra { rare: Rare::new(), on_event: None, is_called: false };
        extra = extras.insert(made) as u32;
        record.extra.set(extra);
    }
    &mut extras[extra as usize]
}

/// Callbacks and wakers, to which the events go.
impl Table {
    pub(super) fn has_events(&self, index: u32) -> bool {
        self.record(index).flags.get().pending() != 0
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
