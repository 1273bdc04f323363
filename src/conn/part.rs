//! The connections' part in the turns of their shard.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use corewheel_shard::Tick;

use super::activity::Activity;
use super::limits::{ConnEvent, ConnLimits, DeadlineKind};
use super::measured::{ByteCount, Direction};
use super::record::{Record, RecordRef};
use super::rules::{self, RATES};
use super::table::{OnEvent, Packed, Table};
use super::timers::ConnTimers;
use crate::clock::Timeline;
use crate::face::local::LocalShard;
use crate::face::timers::Timers;
use crate::shard::hooks::{Part, PartId};
use crate::stats::ShardCounts;
use crate::values::contain::contain;
use crate::values::refused::RefusedKind;

/// All connections of a shard. Registered with the shard when the first connection is opened. Holds
/// the shard until the shard ends and drops its parts.
pub(super) struct Connections {
    id: PartId,
    /// For the handle that a callback is given; set when the part is registered.
    itself: OnceCell<Weak<Self>>,
    shard: Rc<dyn LocalShard>,
    time: Timeline,
    activity: Activity,
    table: RefCell<Table>,
    /// How many connections have a handle.
    count: Cell<usize>,
    /// The salt of the next connection.
    next_salt: Cell<u8>,
}

impl Connections {
    /// The connections of the shard of these timers.
    pub(super) fn of<T: Send + 'static>(timers: &Timers<T>) -> Rc<Self> {
        let connections = timers.core().parts().get_or_register(|id| {
            let shard = timers.local();
            Self {
                id,
                itself: OnceCell::new(),
                time: shard.time().clone(),
                shard,
                activity: Activity::new(),
                table: RefCell::default(),
                count: Cell::new(0),
                next_salt: Cell::new(0),
            }
        });
        let _itself = connections.itself.get_or_init(|| Rc::downgrade(&connections));
        connections
    }

    pub(super) fn shard(&self) -> &dyn LocalShard {
        &*self.shard
    }

    pub(super) fn time(&self) -> &Timeline {
        &self.time
    }

    /// The activity stamp of what happens now.
    #[inline]
    pub(super) fn stamp(&self) -> u64 {
        self.activity.bound().unwrap_or_else(|| self.open_activity())
    }

    #[cold]
    fn open_activity(&self) -> u64 {
        let (bound, expires) = self.activity.open(self.shard.nanos_near(), self.time.tick());
        if !self.shard.is_closed() {
            self.shard.note_deadline(expires);
        }
        bound
    }

    /// Stamps a connection with a known time, unless its stamp is later. A stamp made since the
    /// shard last read the clock may stand for a later time than it says.
    #[inline]
    pub(super) fn stamp_at(&self, index: u32, record: &Record, stamp: &Cell<u64>, now: Instant) {
        let at = self.time.nanos_at(now);
        if self.activity.is_plainly_next(at, stamp.get()) {
            stamp.set(at);
        } else {
            stamp.set(self.later_stamp(stamp.get(), at));
        }
        // A time before the last idle event may make the next one earlier.
        if record.has_extra() && self.table.borrow().is_before_event(index, at) {
            self.file_earlier(index);
        }
    }

    #[inline(never)]
    fn later_stamp(&self, stamp: u64, at: u64) -> u64 {
        let keep = self.activity.bound() == Some(stamp) || self.activity.resolve(stamp) >= at;
        if keep { stamp } else { self.activity.exact(at) }
    }

    /// The salt of a connection that begins.
    pub(super) fn next_salt(&self) -> u8 {
        self.next_salt.replace(self.next_salt.get().wrapping_add(1))
    }

    /// Opens a connection, with its entry in the wheel.
    pub(super) fn open(self: Rc<Self>, packed: &Packed) -> Result<ConnTimers, RefusedKind> {
        let shard = Rc::clone(&self.shard);
        if shard.is_closed() {
            return Err(shard.why_closed());
        }
        let (index, block, due) = {
            let mut table = self.table.borrow_mut();
            let index = table.open(packed, &self.activity);
            (index, table.block(index), rules::first_due(&table.facts(index, &self.activity)))
        };
        // The driver is woken when the connection is complete.
        let _compound = shard.compound();
        let deadline = self.time.ceil(due);
        let key = shard.schedule_part(packed.class, deadline, self.id, index);
        if key.is_none() {
            self.vacate(index);
            return Err(RefusedKind::Full);
        }
        block.record(index).key.set(key);
        Ok(ConnTimers::new(RecordRef::new(self, block, index)))
    }

    /// Cancels all deadlines of a connection. False if the connection is closed already.
    pub(super) fn close(&self, index: u32, record: &Record) -> bool {
        let Some(key) = record.key.take() else { return false };
        record.clear_pending();
        self.shard.cancel_part(key);
        let (waker, on_event) = {
            let mut table = self.table.borrow_mut();
            (table.take_waker(index), table.set_on_event(index, None))
        };
        // A panic must not keep the record from being vacated.
        if let Some(waker) = waker {
            self.shard.contain(|| waker.wake());
        }
        self.shard.drop_each(on_event);
        true
    }

    /// Lets another connection have the record of one that is closed.
    pub(super) fn vacate(&self, index: u32) {
        let (extra, waker) = self.table.borrow_mut().vacate(index);
        self.shard.drop_each(extra);
        self.shard.drop_each(waker);
    }

    /// What a connection takes along to another shard.
    pub(super) fn pack(&self, index: u32) -> Packed {
        // A stamp that was just made counts from the next reading of the clock on.
        self.advance(self.shard.nanos());
        let table = self.table.borrow();
        let class = table.record(index).key.get().map(|key| self.shard.class_of(key));
        table.pack(index, class.unwrap_or_default(), &self.activity)
    }

    pub(super) fn limits(&self, index: u32) -> ConnLimits {
        self.table.borrow().limits(index)
    }

    pub(super) fn set_limits(&self, index: u32, limits: ConnLimits) {
        self.table.borrow_mut().set_limits(index, limits);
        self.file_earlier(index);
    }

    /// Arms a deadline that comes once, or disarms it with `NEVER`. True if the deadline was armed,
    /// or had come and its event was not taken.
    pub(super) fn arm(&self, index: u32, kind: usize, due: u64) -> bool {
        let was_armed =
            rules::arm(&mut self.table.borrow_mut().facts_mut(index, &self.activity), kind, due);
        self.file_earlier(index);
        was_armed
    }

    pub(super) fn begin_write(&self, index: u32) -> Option<u32> {
        let write = {
            let mut table = self.table.borrow_mut();
            rules::begin_write(&mut table.facts_mut(index, &self.activity), self.shard.nanos_near())
        };
        if write.is_some() {
            self.file_earlier(index);
        }
        write
    }

    pub(super) fn end_write(&self, index: u32, write: u32) -> bool {
        self.table.borrow_mut().end_write(index, write)
    }

    pub(super) fn begin_transfer(
        &self,
        index: u32,
        direction: Direction,
    ) -> Option<Arc<ByteCount>> {
        let count = {
            let (mut table, now) = (self.table.borrow_mut(), self.shard.nanos_near());
            rules::begin_transfer(&mut table.facts_mut(index, &self.activity), direction, now)
        };
        if count.is_some() {
            self.file_earlier(index);
        }
        count
    }

    pub(super) fn pause_transfer(&self, index: u32, direction: Direction, count: &Arc<ByteCount>) {
        // The near clock may be ahead, and would count too little time as a pause.
        let (mut table, now) = (self.table.borrow_mut(), self.shard.nanos());
        let mut facts = table.facts_mut(index, &self.activity);
        if let Some(transfer) = rules::transfer_mut(&mut facts, direction, count) {
            transfer.pause(now);
        }
    }

    pub(super) fn resume_transfer(&self, index: u32, direction: Direction, count: &Arc<ByteCount>) {
        {
            let (mut table, now) = (self.table.borrow_mut(), self.shard.nanos_near());
            let mut facts = table.facts_mut(index, &self.activity);
            if let Some(transfer) = rules::transfer_mut(&mut facts, direction, count) {
                transfer.resume(now);
            }
        }
        self.file_earlier(index);
    }

    /// False if the transfer's time was up before, or another has taken its place.
    pub(super) fn end_transfer(
        &self,
        index: u32,
        direction: Direction,
        count: &Arc<ByteCount>,
    ) -> bool {
        let mut table = self.table.borrow_mut();
        rules::end_transfer(&mut table.facts_mut(index, &self.activity), direction, count)
    }

    /// When a deadline is due, in nanoseconds since the epoch.
    pub(super) fn due(&self, index: u32, kind: usize) -> u64 {
        rules::due(&self.table.borrow().facts(index, &self.activity), kind)
    }

    pub(super) fn set_on_event(&self, index: u32, on_event: Option<OnEvent>) {
        let (before, waker) = {
            let mut table = self.table.borrow_mut();
            let is_cleared = on_event.is_none() && table.has_events(index);
            let before = table.set_on_event(index, on_event);
            (before, if is_cleared { table.take_waker(index) } else { None })
        };
        // The next turn calls the callback for an event that has come already.
        self.file_earlier(index);
        self.shard.drop_each(before);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next wanted event that has come. Otherwise, stores the waker.
    pub(super) fn poll(
        &self,
        index: u32,
        record: &Record,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Option<ConnEvent>> {
        if !record.is_open() {
            return Poll::Ready(None);
        }
        let may_withdraw = record.flags.get().pending() & RATES != 0;
        let event = rules::next_event(&self.table.borrow().facts(index, &self.activity), wanted);
        if may_withdraw {
            self.file_earlier(index);
        }
        if event.is_some() {
            return Poll::Ready(event);
        }
        if !self.table.borrow().keeps_waker(record, cx.waker()) {
            // Cloning and dropping a waker run code of the user, which may close the connection.
            // Nothing is borrowed meanwhile.
            let waker = cx.waker().clone();
            if !record.is_open() {
                return Poll::Ready(None);
            }
            let old = self.table.borrow_mut().keep_waker(record, waker);
            drop(old);
        }
        Poll::Pending
    }

    /// A connection has got its first handle, or has lost its last one.
    pub(super) fn count_handled(&self, change: isize) {
        self.count.set(self.count.get().wrapping_add_signed(change));
        let count = self.count.get() as u64;
        self.shard.publish_gauge(|counts| counts.connections = count);
    }

    /// Resets the entry of a connection to its first deadline, if that is earlier now, or to the
    /// next turn, if there is a callback for an event that has come.
    fn file_earlier(&self, index: u32) {
        let table = self.table.borrow();
        let Some(key) = table.record(index).key.get() else { return };
        let due = if table.owes_callback(index) {
            self.time.floor(self.shard.nanos_near())
        } else {
            self.time.ceil(rules::first_due(&table.facts(index, &self.activity)))
        };
        drop(table);
        if self.shard.deadline_of(key).is_some_and(|filed| due < filed) {
            // The entry is pending, as its deadline is known.
            let _ = self.shard.reset(key, due);
        }
    }

    /// The shard has read the clock.
    fn advance(&self, now: u64) {
        if self.activity.advance(now, self.time.tick()) {
            self.activity.settle(self.table.borrow().blocks());
        }
    }

    /// Delivers the events of a connection to its callback, or wakes the task that waits for them.
    fn deliver(&self, index: u32) {
        let on_event = self.table.borrow_mut().take_on_event(index);
        let itself = self.itself.get().and_then(Weak::upgrade);
        let (Some(mut on_event), Some(itself)) = (on_event, itself) else {
            let waker = self.table.borrow_mut().take_waker(index);
            return waker.into_iter().for_each(Waker::wake);
        };
        let block = self.table.borrow().block(index);
        let may_withdraw = block.record(index).flags.get().pending() & RATES != 0;
        ConnTimers::lend(RecordRef::new(itself, block, index), |conn| {
            loop {
                let event = {
                    let table = self.table.borrow();
                    if !table.is_called(index) {
                        break;
                    }
                    rules::next_event(&table.facts(index, &self.activity), |_| true)
                };
                let Some(event) = event else { break };
                self.shard.contain(|| on_event(conn, event));
            }
            let left = self.table.borrow_mut().put_back(index, on_event);
            if may_withdraw {
                self.file_earlier(index);
            }
            self.shard.drop_each(left);
        });
    }
}

impl Part for Connections {
    fn turn_begins(&self, now: u64) {
        self.advance(now);
    }

    fn next_turn(&self) -> Tick {
        self.activity.expires()
    }

    /// Until when the entry of a connection is put off; `None` if a deadline is due.
    fn postpone(&self, index: u32) -> Option<Tick> {
        let table = self.table.borrow();
        if table.owes_callback(index) {
            return None;
        }
        let due = rules::first_due(&table.facts(index, &self.activity));
        (due > self.activity.now()).then(|| self.time.ceil(due))
    }

    /// The entry of a connection has expired. The connection gets another entry before its events
    /// are delivered.
    fn expired(&self, index: u32) {
        if self.shard.is_closed() {
            // The end of the shard closes all connections.
            return;
        }
        let due = {
            let mut table = self.table.borrow_mut();
            let mut facts = table.facts_mut(index, &self.activity);
            let events = rules::take_due(&mut facts);
            rules::add_events(&facts, events);
            self.time.ceil(rules::first_due(&facts))
        };
        let key = self.shard.schedule_part(self.shard.class_delivered(), due, self.id, index);
        if key.is_none() {
            // The slot of the expired entry is retired, after more timers than any service has run,
            // and all others are taken.
            let shard = self.shard.id().number();
            tracing::error!(shard, "a connection has lost its deadlines");
        }
        self.table.borrow().record(index).key.set(key);
        self.deliver(index);
    }

    fn publish(&self, counts: &mut ShardCounts) {
        counts.connections = self.count.get() as u64;
    }

    /// Closes all connections, and wakes the tasks that wait for events.
    fn closed(&self, _is_dead: bool) {
        let (wakers, callbacks) = self.table.borrow_mut().close_all();
        for waker in wakers {
            contain(self.shard.id(), || waker.wake());
        }
        for callback in callbacks {
            contain(self.shard.id(), || drop(callback));
        }
    }
}
