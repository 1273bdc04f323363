//! The connections of one shard: their records, and their part in the turns of the shard.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use corewheel_shard::Tick;

use super::activity::Activity;
use super::limits::{ConnLimits, DeadlineKind, IdleEvent};
use super::record::{Block, Conns, OnEvent, Packed, Record};
use crate::face::Core;
use crate::face::stored::Stored;
use crate::face::timers::Timers;
use crate::shard::hooks::{Part, PartId};
use crate::stats::ShardCounts;
use crate::values::contain::contain;

/// Why a connection could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Full,
    Closed,
}

/// All connections of a shard. It is registered with the shard when the first one is opened, and
/// holds the shard's timers until the shard ends and lets go of its parts.
pub(super) struct Connections<T: Send + 'static> {
    id: PartId,
    timers: Timers<T>,
    activity: Activity,
    conns: RefCell<Conns<T>>,
}

impl<T: Send + 'static> Connections<T> {
    /// The connections of the shard of these timers.
    pub(super) fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.core().parts().get_or_register(|id| Self {
            id,
            timers: timers.clone(),
            activity: Activity::new(),
            conns: RefCell::default(),
        })
    }

    pub(super) fn timers(&self) -> &Timers<T> {
        &self.timers
    }

    #[inline]
    fn core(&self) -> &Core<T> {
        self.timers.core()
    }

    /// The time to stamp on what happens now.
    #[inline]
    pub(super) fn stamp(&self) -> u64 {
        self.activity.bound().unwrap_or_else(|| self.open_activity())
    }

    #[cold]
    fn open_activity(&self) -> u64 {
        let core = self.core();
        let (bound, expires) = self.activity.open(core.nanos_near(), core.time().tick());
        if !core.is_closed() {
            core.note_deadline(expires);
        }
        bound
    }

    /// The later of an earlier stamp and a known time. A stamp made since the shard last looked at
    /// the clock may stand for a later time than it says.
    #[inline]
    pub(super) fn later_stamp(&self, stamp: u64, at: u64) -> u64 {
        if self.activity.is_plainly_next(at, stamp) { at } else { self.compare_stamps(stamp, at) }
    }

    #[inline(never)]
    fn compare_stamps(&self, stamp: u64, at: u64) -> u64 {
        let keep = self.activity.bound() == Some(stamp) || self.activity.resolve(stamp) >= at;
        if keep { stamp } else { self.activity.exact(at) }
    }

    /// A connection was stamped with a known time. If that is before an idle event came, the stamp
    /// may bring the next one nearer.
    #[inline]
    pub(super) fn refile_stamped(&self, index: u32, record: &Record, at: u64) {
        if record.has_more() && self.conns.borrow().is_before_event(index, at) {
            self.refile(index);
        }
    }

    /// Opens a connection, with its entry in the wheel.
    pub(super) fn open(&self, packed: &Packed) -> Result<(Block, u32), Refused> {
        let core = self.core();
        if core.is_closed() {
            return Err(Refused::Closed);
        }
        let (index, block, due) = {
            let mut conns = self.conns.borrow_mut();
            let index = conns.open(packed);
            let record = conns.record(index);
            record.read.set(self.activity.exact(record.read.get()));
            record.written.set(self.activity.exact(record.written.get()));
            (index, conns.block(index), conns.first_due(index, &self.activity))
        };
        // The driver is woken when the connection is complete.
        let _compound = core.compound();
        let deadline = core.time().ceil(due);
        let key = core.schedule(packed.class, deadline, Stored::Part(self.id, index)).ok();
        if key.is_none() {
            let nothing = self.conns.borrow_mut().vacate(index);
            drop(nothing);
            return Err(Refused::Full);
        }
        self.conns.borrow().record(index).set_key(key);
        self.publish_count();
        Ok((block, index))
    }

    /// Cancels all deadlines of a connection. False if that has been done before.
    pub(super) fn close(&self, index: u32, record: &Record) -> bool {
        let Some(key) = record.key() else { return false };
        let core = self.core();
        record.set_key(None);
        record.forget_events();
        // Its payload is an index.
        let _ = core.cancel_unread(key);
        let waker = self.conns.borrow_mut().take_waker(index);
        // A panic must not keep the record from being vacated.
        if let Some(waker) = waker {
            core.contain(|| waker.wake());
        }
        true
    }

    /// Lets another connection have the record of one that is closed.
    pub(super) fn vacate(&self, index: u32) {
        let left = self.conns.borrow_mut().vacate(index);
        self.publish_count();
        let (more, waker) = left;
        self.core().drop_each(more);
        self.core().drop_each(waker);
    }

    /// What a connection takes along to another shard.
    pub(super) fn pack(&self, index: u32) -> Packed {
        let core = self.core();
        // A stamp that was just made counts from the clock's next reading on.
        self.look_at_clock(core.nanos());
        let conns = self.conns.borrow();
        let class = conns.record(index).key().map(|key| core.class_of(key));
        conns.pack(index, class.unwrap_or_default(), &self.activity)
    }

    pub(super) fn limits(&self, index: u32) -> ConnLimits {
        self.conns.borrow().limits(index)
    }

    pub(super) fn set_limits(&self, index: u32, limits: ConnLimits) {
        self.conns.borrow_mut().set_limits(index, limits);
        self.refile(index);
    }

    /// Arms a deadline that comes once, or disarms it with `NEVER`. True if it was armed, or had
    /// come and was not taken.
    pub(super) fn arm(&self, index: u32, kind: usize, due: u64) -> bool {
        let was_armed = self.conns.borrow_mut().arm(index, kind, due, &self.activity);
        self.refile(index);
        was_armed
    }

    pub(super) fn begin_write(&self, index: u32) -> Option<u32> {
        let write = self.conns.borrow_mut().begin_write(index, self.core().nanos_near());
        if write.is_some() {
            self.refile(index);
        }
        write
    }

    pub(super) fn end_write(&self, index: u32, write: u32) -> bool {
        self.conns.borrow_mut().end_write(index, write)
    }

    /// When a deadline is due, in nanoseconds since the epoch.
    pub(super) fn due(&self, index: u32, kind: usize) -> u64 {
        self.conns.borrow().due(index, kind, &self.activity)
    }

    pub(super) fn set_on_event(&self, index: u32, on_event: Option<OnEvent<T>>) {
        let (before, waker) = {
            let mut conns = self.conns.borrow_mut();
            let is_cleared = on_event.is_none() && conns.has_untold(index);
            let before = conns.set_on_event(index, on_event);
            (before, if is_cleared { conns.take_waker(index) } else { None })
        };
        // An event that has come already is delivered by the next turn.
        self.refile(index);
        self.core().drop_each(before);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next event of those wanted that has come.
    pub(super) fn poll(
        &self,
        index: u32,
        record: &Record,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Option<IdleEvent>> {
        if record.key().is_none() {
            return Poll::Ready(None);
        }
        let event = self.conns.borrow().next_event(index, &self.activity, wanted);
        if event.is_some() {
            return Poll::Ready(event);
        }
        if !self.conns.borrow().keeps_waker(record, cx.waker()) {
            // Cloning and dropping a waker run code of the user, which may close the connection, so
            // nothing is borrowed meanwhile.
            let waker = cx.waker().clone();
            if record.key().is_none() {
                return Poll::Ready(None);
            }
            let old = self.conns.borrow_mut().keep_waker(record, waker);
            drop(old);
        }
        Poll::Pending
    }

    #[inline]
    fn publish_count(&self) {
        let count = self.len() as u64;
        self.core().publish_gauge(|counts| counts.connections = count);
    }

    /// How many connections are open, or closed and not dropped yet.
    pub(super) fn len(&self) -> usize {
        self.conns.borrow().len()
    }

    /// Moves the entry of a connection to its first deadline, if that is nearer now, or to the next
    /// turn, if there is a callback for an event that has come.
    fn refile(&self, index: u32) {
        let core = self.core();
        let conns = self.conns.borrow();
        let Some(key) = conns.record(index).key() else { return };
        let due = if conns.owes_callback(index) {
            core.time().floor(core.nanos_near())
        } else {
            core.time().ceil(conns.first_due(index, &self.activity))
        };
        drop(conns);
        if core.deadline_of(key).is_some_and(|filed| due < filed) {
            // It is pending, as its deadline is known.
            let _ = core.reset(key, due);
        }
    }

    /// The shard has looked at the clock.
    fn look_at_clock(&self, now: u64) {
        if self.activity.look(now, self.core().time().tick()) {
            self.activity.settle(self.conns.borrow().blocks());
        }
    }

    /// Delivers the events of a connection to its callback, or wakes the task that waits for them.
    fn deliver(&self, index: u32) {
        let called = self.conns.borrow_mut().take_on_event(index);
        let Some((serial, mut on_event)) = called else {
            let waker = self.conns.borrow_mut().take_waker(index);
            return waker.into_iter().for_each(Waker::wake);
        };
        loop {
            let event = {
                let conns = self.conns.borrow();
                if !conns.is_same(index, serial) {
                    break;
                }
                conns.next_event(index, &self.activity, |_| true)
            };
            let Some(event) = event else { break };
            self.core().contain(|| on_event(&self.timers, event));
        }
        let left = self.conns.borrow_mut().put_back(index, serial, on_event);
        drop(left);
    }
}

impl<T: Send + 'static> Part for Connections<T> {
    fn turn_begins(&self, now: u64) {
        self.look_at_clock(now);
    }

    fn next_turn(&self) -> Tick {
        self.activity.expires()
    }

    /// Until when the entry of a connection is put off; `None` if something is due.
    fn postpone(&self, index: u32) -> Option<Tick> {
        let conns = self.conns.borrow();
        if conns.owes_callback(index) {
            return None;
        }
        let due = conns.first_due(index, &self.activity);
        (due > self.activity.now()).then(|| self.core().time().ceil(due))
    }

    /// The entry of a connection has come up. It gets another before its events are delivered.
    fn expired(&self, index: u32) {
        let core = self.core();
        if core.is_closed() {
            // It is told with all others.
            return;
        }
        let due = {
            let mut conns = self.conns.borrow_mut();
            let events = conns.take_due(index, &self.activity);
            conns.note_events(index, events);
            core.time().ceil(conns.first_due(index, &self.activity))
        };
        let key = core.schedule(core.class_delivered(), due, Stored::Part(self.id, index)).ok();
        if key.is_none() {
            // The slot that it was in is retired, after more timers than any service has run, and
            // all others are taken.
            let shard = core.id().number();
            tracing::error!(shard, "a connection has lost its deadlines");
        }
        self.conns.borrow().record(index).set_key(key);
        self.deliver(index);
    }

    fn publish(&self, counts: &mut ShardCounts) {
        counts.connections = self.len() as u64;
    }

    /// Closes all connections, and tells the tasks that wait for events.
    fn closed(&self, _is_dead: bool) {
        let wakers = self.conns.borrow_mut().close_all();
        for waker in wakers {
            contain(self.core().id(), || waker.wake());
        }
    }
}
