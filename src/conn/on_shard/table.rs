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

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use hashbrown::HashMap;
use slab::Slab;

use super::super::limits::{ConnEvent, ConnLimits, Spans};
use super::super::marks::Flags;
use super::super::moment::Moment;
use super::super::rules::{self, Facts, Held, Place, Rare, Stamps};
use super::super::timers::ConnTimers;
use super::activity::Activity;
use super::record::{BLOCK, Block, NONE, Record, Records, block_of};
use crate::directory::orders::Terms;
use crate::values::class::ClassId;

/// Called for each event of a connection.
pub(super) type OnEvent = Rc<RefCell<dyn FnMut(&ConnTimers, ConnEvent)>>;

/// What few connections need.
#[derive(Default)]
pub(super) struct Extra {
    rare: Rare,
    on_event: Option<OnEvent>,
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
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) limits: ConnLimits,
    /// The class of the connection's entry.
    pub(super) class: ClassId,
    stamps: Stamps,
    opened: u64,
    flags: Flags,
    rare: Option<Rare>,
}

impl Packed {
    pub(super) fn new(limits: ConnLimits, class: ClassId, now: u64, salt: u8) -> Self {
        let (stamps, flags) = (Stamps::default(), Flags::new(salt));
        Self { limits, class, stamps, opened: now, flags, rare: None }
    }
}

/// Records, and the limits that they name.
impl Table {
    pub(super) fn record(&self, index: u32) -> &Record {
        self.blocks[block_of(index)].record(index)
    }

    pub(super) fn block(&self, index: u32) -> Block {
        Block::clone(&self.blocks[block_of(index)])
    }

    /// More than the last index of a record.
    pub(super) fn places(&self) -> u32 {
        (self.blocks.len() * BLOCK) as u32
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
        let block = &self.blocks[block_of(index)];
        for (stamp, at) in block.stamps_of(index).into_iter().zip(packed.stamps) {
            stamp.set(at.map(|at| activity.exact(at)));
        }
        block.usage(index).in_progress.iter().for_each(|count| count.set(0));
        let record = block.record(index);
        record.opened.set(packed.opened);
        record.limits.set(limits);
        record.extra.set(NONE);
        record.waker.set(NONE);
        record.flags.set(packed.flags);
        if let Some(rare) = &packed.rare {
            made_extra(&mut self.extras, record).rare = rare.without_transfers();
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

    fn extra(&self, index: u32) -> Option<&Extra> {
        self.extras.get(self.record(index).extra.get() as usize)
    }

    /// What a connection takes along to another shard. Reads and requests in progress end here. It
    /// keeps the time of its beginning, from which an idle time counts if nothing has happened.
    pub(super) fn pack(&self, index: u32, class: ClassId, activity: &Activity) -> Packed {
        let (block, record) = (&self.blocks[block_of(index)], self.record(index));
        let (now, flags) = (Moment::at(activity.now()), record.flags.get());
        // The other shard does not know the gaps of this shard. Its own gaps concern other stamps.
        let resolve = |at| activity.resolve(at).min(now);
        let mut stamps = block.stamps_of(index).map(|at| at.get().map(resolve));
        for held in [Held::Read, Held::Request] {
            if block.usage(index).in_progress[held as usize].get() > 0 {
                stamps[held.stamp()] = Some(now);
            }
        }
        Packed {
            limits: self.limits.of(record).limits,
            class,
            stamps,
            opened: record.opened.get(),
            // The events of transfers are withdrawn with them.
            flags: flags.with_pending(flags.pending() & !rules::RATES),
            rare: self.extra(index).map(|extra| extra.rare.without_transfers()),
        }
    }

    /// Closes all connections. Returns what they held of the user's.
    pub(super) fn close_all(&mut self) -> (Vec<Waker>, Vec<OnEvent>) {
        for record in self.blocks.iter().flat_map(|block| block.all()) {
            record.timer.set(None);
            record.waker.set(NONE);
        }
        let callbacks = self.extras.iter_mut().filter_map(|(_, extra)| extra.on_event.take());
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
        terms: Terms,
    ) -> Facts<'a, Extras<'a>> {
        let block = &self.blocks[block_of(index)];
        let record = block.record(index);
        Facts {
            is_open: record.is_open(),
            present: activity.now(),
            opened: record.opened.get(),
            stamps: block.stamps_of(index).map(|at| at.get().map(|at| activity.resolve(at))),
            in_progress: block.usage(index).in_progress.each_ref().map(Cell::get),
            spans: self.limits.of(record),
            terms,
            flags: &record.flags,
            place: Extras { extras: &mut self.extras, record },
        }
    }

    pub(super) fn limits(&self, index: u32) -> &ConnLimits {
        &self.limits.of(self.record(index)).limits
    }

    pub(super) fn set_limits(&mut self, index: u32, limits: ConnLimits) {
        let number = self.limits.take(limits);
        let before = self.record(index).limits.replace(number);
        self.limits.give_back(before);
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

    fn rare_mut(&mut self) -> &mut Rare {
        &mut made_extra(self.extras, self.record).rare
    }
}

/// The extra of a connection, made if there is none yet.
fn made_extra<'a>(extras: &'a mut Slab<Extra>, record: &Record) -> &'a mut Extra {
    let mut extra = record.extra.get();
    if extra == NONE {
        extra = extras.insert(Extra::default()) as u32;
        record.extra.set(extra);
    }
    &mut extras[extra as usize]
}

/// Callbacks and wakers, to which the events go.
impl Table {
    /// Whether there is a callback that does not run, and an event that it has not been called for.
    pub(super) fn owes_callback(&self, index: u32) -> bool {
        let is_at_rest = |on_event: &OnEvent| on_event.try_borrow().is_ok();
        let has_events = self.record(index).flags.get().pending() != 0;
        has_events && self.on_event(index).is_some_and(is_at_rest)
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
        let record = self.blocks[block_of(index)].record(index);
        std::mem::replace(&mut made_extra(&mut self.extras, record).on_event, on_event)
    }

    pub(super) fn on_event(&self, index: u32) -> Option<&OnEvent> {
        self.extra(index)?.on_event.as_ref()
    }

    /// Whether a callback is still that of an open connection.
    pub(super) fn calls(&self, index: u32, on_event: &OnEvent) -> bool {
        let is_same = |now| Rc::ptr_eq(now, on_event);
        self.record(index).is_open() && self.on_event(index).is_some_and(is_same)
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
