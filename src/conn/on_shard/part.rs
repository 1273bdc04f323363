//! The connections' part in the turns of their shard.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::super::moment::Moment;
use super::super::rules::{self, Facts};
use super::super::side::Connection;
use super::super::timers::ConnTimers;
use super::activity::Activity;
use super::record_ref::RecordRef;
use super::table::{Extras, OnEvent, Packed, Table};
use crate::clock::saturating_nanos;
use crate::clock::when::Deadline;
use crate::directory::orders::{Orders, Visit};
use crate::face::part::{Gauges, Part, PartHandle, Wants};
use crate::face::timers::Timers;
use crate::shard::sweep::Population;
use crate::values::contain::contain;
use crate::values::refused::RefusedKind;

/// All connections of a shard. Registered with the shard when the first connection is opened. Holds
/// the shard until the shard ends and drops its parts.
pub(super) struct Connections {
    /// For the handle that a callback is given; set when the part is registered.
    itself: OnceCell<Weak<Self>>,
    pub(super) shard: PartHandle,
    /// What all connections of the shard are told.
    pub(super) orders: Arc<Orders>,
    pub(super) activity: Activity,
    pub(super) table: RefCell<Table>,
    /// How many connections have a handle.
    count: Cell<usize>,
    /// How many connections were packed for another shard.
    packed: Cell<u64>,
    /// The salt of the next connection.
    next_salt: Cell<u8>,
}

impl Connections {
    /// The connections of the shard of these timers.
    pub(super) fn of<T: Send + 'static>(timers: &Timers<T>) -> Rc<Self> {
        let connections = timers.shared_part(|shard| Self {
            itself: OnceCell::new(),
            orders: Arc::clone(shard.orders()),
            activity: Activity::new(shard.nanos()),
            shard,
            table: RefCell::default(),
            count: Cell::new(0),
            packed: Cell::new(0),
            next_salt: Cell::new(0),
        });
        connections.itself.get_or_init(|| {
            connections.shard.add_population(Rc::clone(&connections) as _);
            Rc::downgrade(&connections)
        });
        connections
    }

    pub(super) fn facts<'a>(&self, table: &'a mut Table, index: u32) -> Facts<'a, Extras<'a>> {
        table.facts(index, &self.activity, self.orders.terms())
    }

    /// The activity stamp of what happens now.
    #[inline]
    pub(super) fn stamp(&self) -> Moment {
        self.activity.bound().unwrap_or_else(|| self.open_activity())
    }

    #[cold]
    fn open_activity(&self) -> Moment {
        let (bound, expires) =
            self.activity.open(self.shard.nanos_near(), self.shard.time().tick());
        self.shard.wake_past(Deadline(expires));
        bound
    }

    /// The salt of a connection that begins.
    pub(super) fn next_salt(&self) -> u8 {
        self.next_salt.replace(self.next_salt.get().wrapping_add(1))
    }

    /// Opens a connection, with its entry in the wheel.
    pub(super) fn open(self: Rc<Self>, packed: &Packed) -> Result<ConnTimers, RefusedKind> {
        let (index, block, due) = {
            let mut table = self.table.borrow_mut();
            let index = table.open(packed, &self.activity);
            let block = table.block(index);
            (index, block, rules::first_due(&self.facts(&mut table, index)))
        };
        // The driver is woken when the connection is complete.
        let connections = Rc::clone(&self);
        let _compound = connections.shard.compound();
        match self.shard.schedule_as(packed.class, self.shard.time().ceil(due), index) {
            Ok(timer) => block.record(index).timer.set(Some(timer)),
            Err(kind) => {
                self.vacate(index);
                return Err(kind);
            }
        }
        if self.orders.terms().is_draining() {
            self.visit(index, Visit::Tell);
        }
        Ok(ConnTimers::new(RecordRef::new(self, block, index)))
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
        let class = table.record(index).timer.get().map(|timer| self.shard.class_of(timer));
        let packed = table.pack(index, class.unwrap_or_default(), &self.activity);
        self.packed.set(self.packed.get() + 1);
        packed
    }

    pub(super) fn set_on_event(&self, index: u32, on_event: OnEvent) {
        let before = self.table.borrow_mut().set_on_event(index, Some(on_event));
        // The next turn calls the callback for an event that has come already.
        self.file(index, false);
        self.shard.drop_each(before);
    }

    /// A connection has got its first handle, or has lost its last one.
    pub(super) fn count_handled(&self, change: isize) {
        self.count.set(self.count.get().wrapping_add_signed(change));
        self.shard.publish();
    }

    /// Resets the entry of a connection to its first deadline: if that is earlier now, or `anew`,
    /// after what was due was taken. The first deadline is the next turn, if there is a callback
    /// for an event that has come.
    pub(super) fn file(&self, index: u32, anew: bool) {
        let mut table = self.table.borrow_mut();
        let Some(timer) = table.record(index).timer.get() else { return };
        let due = if anew {
            self.shard.time().ceil(rules::next_look(&self.facts(&mut table, index)))
        } else if table.owes_callback(index) {
            self.shard.time().floor(self.shard.nanos_near())
        } else {
            self.shard.time().ceil(rules::first_due(&self.facts(&mut table, index)))
        };
        drop(table);
        if anew || self.shard.deadline_of(timer).is_some_and(|filed| due < filed.0) {
            // The entry is pending: its deadline is known, or its turn has not reached it.
            let _ = self.shard.reset(timer, Deadline(due));
        }
    }

    /// The shard has read the clock.
    fn advance(&self, now: u64) {
        if self.activity.advance(now, self.shard.time().tick()) {
            self.activity.settle(self.table.borrow().blocks());
        }
    }

    /// Delivers the events of a connection to its callback, or wakes the task that waits for them.
    fn deliver_events(&self, index: u32) {
        let on_event = self.table.borrow().on_event(index).map(Rc::clone);
        let itself = self.itself.get().and_then(Weak::upgrade);
        let (Some(on_event), Some(itself)) = (on_event, itself) else {
            let waker = self.table.borrow_mut().take_waker(index);
            return waker.into_iter().for_each(Waker::wake);
        };
        let block = self.table.borrow().block(index);
        ConnTimers::lend(RecordRef::new(itself, block, index), |conn: &ConnTimers| {
            let mut call = on_event.borrow_mut();
            while self.table.borrow().calls(index, &on_event) {
                let Some(event) = conn.conn().take(|_, _| true) else { break };
                self.shard.contain(|| call(conn, event));
            }
        });
        self.shard.drop_each(Some(on_event));
    }
}

impl Population for Connections {
    fn count(&self) -> usize {
        self.count.get()
    }

    fn places(&self) -> u32 {
        self.table.borrow().places()
    }

    fn visit(&self, place: u32, visit: Visit) -> Option<u64> {
        let mut found = None;
        // The filing looks at the facts, too.
        if visit != Visit::LookAgain {
            let mut table = self.table.borrow_mut();
            if !table.record(place).is_open() {
                return None;
            }
            found = rules::visit(&mut self.facts(&mut table, place), visit);
        }
        let is_told = visit == Visit::Tell && found.is_some();
        if visit != Visit::FindIdle {
            self.file(place, is_told);
        }
        if is_told {
            self.deliver_events(place);
        }
        found
    }
}

impl Part for Connections {
    fn takes_turns(&self) -> bool {
        true
    }

    fn turn_begins(&self, now: Duration) {
        self.advance(saturating_nanos(now));
    }

    fn wants(&self) -> Wants {
        Wants::TurnBy(Deadline(self.activity.expires()))
    }

    /// Until when the entry of a connection is put off; `None` if a deadline is due.
    fn postpone(&self, index: u32) -> Option<Deadline> {
        let mut table = self.table.borrow_mut();
        if table.owes_callback(index) {
            return None;
        }
        let due = rules::next_look(&self.facts(&mut table, index));
        (due > self.activity.now()).then(|| Deadline(self.shard.time().ceil(due)))
    }

    /// The entry of a connection has expired. The connection gets another entry before its events
    /// are delivered.
    fn expired(self: Rc<Self>, index: u32) {
        if self.shard.is_closed() {
            // The end of the shard closes all connections.
            return;
        }
        let due = {
            let mut table = self.table.borrow_mut();
            let mut facts = self.facts(&mut table, index);
            rules::take_due(&mut facts);
            self.shard.time().ceil(rules::next_look(&facts))
        };
        let class = self.shard.class_delivered();
        let timer = self.shard.schedule_as(class, due, index).ok();
        if timer.is_none() {
            // The slot of the expired entry is retired, after more timers than any service has run,
            // and all others are taken.
            let shard = self.shard.shard_id().number();
            tracing::error!(
                name: "deadlines-lost",
                target: "corewheel::conn",
                shard, "a connection has lost its deadlines"
            );
        }
        self.table.borrow().record(index).timer.set(timer);
        self.deliver_events(index);
    }

    fn publish(&self, gauges: &mut Gauges<'_>) {
        let counts = gauges.counts();
        counts.connections = self.count.get() as u64;
        counts.migrated_out = self.packed.get();
    }

    /// Closes all connections, and wakes the tasks that wait for events.
    fn closed(&self, _is_dead: bool) {
        let (wakers, callbacks) = self.table.borrow_mut().close_all();
        for waker in wakers {
            contain(self.shard.shard_id(), || waker.wake());
        }
        for callback in callbacks {
            contain(self.shard.shard_id(), || drop(callback));
        }
    }
}
