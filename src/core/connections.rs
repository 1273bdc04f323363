//! What connections ask of the shard that they are on, and what it tells them.

use std::task::{Context, Poll};

use corewheel_shard::Tick;

use super::conns::{Block, Events, OnEvent, Packed, Record};
use super::state::State;
use super::{Core, Delivery};
use crate::conn::{ConnLimits, DeadlineKind, IdleEvent};
use crate::contain::contain;
use crate::task::Stored;
use crate::timers::Timers;

/// Why a connection could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl<T: Send + 'static> Core<T> {
    /// The moment to note for what happens now.
    #[inline]
    pub(crate) fn recent(&self) -> u64 {
        self.recent.bound().unwrap_or_else(|| self.open_recent())
    }

    #[cold]
    fn open_recent(&self) -> u64 {
        let (bound, expires) = self.recent.open(self.nanos_near(), self.directory.tick);
        if !self.closed.get() {
            self.note_deadline(expires);
        }
        bound
    }

    /// The later of what was noted before and a moment. What was noted since the clock was last
    /// looked at may be later than it says.
    #[inline]
    pub(crate) fn later_note(&self, noted: u64, at: u64) -> u64 {
        if self.recent.is_plainly_next(at, noted) { at } else { self.weigh_notes(noted, at) }
    }

    #[inline(never)]
    fn weigh_notes(&self, noted: u64, at: u64) -> u64 {
        let keep = self.recent.bound() == Some(noted) || self.recent.resolve(noted) >= at;
        if keep { noted } else { self.recent.exact(at) }
    }

    /// What was noted just now was at this moment. Was that before an idle event came, it may
    /// bring the next one nearer.
    #[inline]
    pub(crate) fn refile_conn(&self, index: u32, record: &Record, at: u64) {
        if record.has_more() && self.conns.borrow().is_before_event(index, at) {
            self.file_conn(index);
        }
    }

    /// The shard has looked at the clock.
    pub(crate) fn note_time(&self, now: u64) {
        if self.recent.look(now, self.directory.tick) {
            self.recent.settle(self.conns.borrow().blocks());
        }
    }

    /// Opens a connection, with its entry.
    pub(crate) fn open_conn(&self, packed: &Packed) -> Result<(Block, u32), Refused> {
        if self.closed.get() {
            return Err(Refused::Closed);
        }
        let (index, block, due) = {
            let mut conns = self.conns.borrow_mut();
            let index = conns.open(packed);
            let record = conns.record(index);
            record.read.set(self.recent.exact(record.read.get()));
            record.written.set(self.recent.exact(record.written.get()));
            (index, conns.block(index), conns.first_due(index, &self.recent))
        };
        let deadline = self.directory.tick.ceil(due);
        let key = self.schedule_quietly(deadline, Stored::Conn(index));
        self.note_classed(packed.class, key);
        if key.is_none() {
            let nothing = self.conns.borrow_mut().vacate(index);
            drop(nothing);
            return Err(Refused::Full);
        }
        self.conns.borrow().record(index).set_key(key);
        self.publish_conns();
        // Only now, as the driver's waker is the user's code.
        self.note_deadline(deadline);
        Ok((block, index))
    }

    /// Cancels all deadlines of a connection. False if that has been done before.
    pub(crate) fn close_conn(&self, index: u32, record: &Record) -> bool {
        let Some(key) = record.key() else { return false };
        record.set_key(None);
        record.forget_events();
        // Its task is a number: there is nothing to be told of it.
        let _ = self.state.borrow_mut().cancel(key);
        self.publish_command();
        let waker = self.conns.borrow_mut().take_waker(index);
        // A panic must not keep its record from being vacated.
        if waker.is_some_and(|waker| !contain(self.id, || waker.wake())) {
            self.note_delivery(false, 0);
        }
        true
    }

    /// Lets another connection have the record of one that is closed.
    pub(crate) fn vacate_conn(&self, index: u32) {
        let left = self.conns.borrow_mut().vacate(index);
        self.publish_conns();
        let (more, waker) = left;
        self.drop_each(more);
        self.drop_each(waker);
    }

    /// What a connection takes along to another shard.
    pub(crate) fn pack_conn(&self, index: u32) -> Packed {
        // What was noted just now counts from the clock's next reading on.
        self.note_time(self.nanos());
        let conns = self.conns.borrow();
        let key = conns.record(index).key();
        let class = key.map(|key| self.state.borrow().classes.class_of(key.index()));
        conns.pack(index, class.unwrap_or_default(), &self.recent)
    }

    pub(crate) fn conn_limits(&self, index: u32) -> ConnLimits {
        self.conns.borrow().limits(index)
    }

    pub(crate) fn set_conn_limits(&self, index: u32, limits: ConnLimits) {
        self.conns.borrow_mut().set_limits(index, limits);
        self.file_conn(index);
    }

    /// Arms a deadline that comes once, or disarms it with `NEVER`.
    pub(crate) fn arm_conn(&self, index: u32, kind: usize, due: u64) -> bool {
        let was_armed = self.conns.borrow_mut().arm(index, kind, due, &self.recent);
        self.file_conn(index);
        was_armed
    }

    pub(crate) fn begin_write(&self, index: u32) -> Option<u32> {
        let write = self.conns.borrow_mut().begin_write(index, self.nanos_near());
        if write.is_some() {
            self.file_conn(index);
        }
        write
    }

    pub(crate) fn end_write(&self, index: u32, write: u32) -> bool {
        self.conns.borrow_mut().end_write(index, write)
    }

    /// When a deadline is due, in nanoseconds since the epoch.
    pub(crate) fn conn_due(&self, index: u32, kind: usize) -> u64 {
        self.conns.borrow().due(index, kind, &self.recent)
    }

    pub(crate) fn set_on_event(&self, index: u32, on_event: Option<OnEvent<T>>) {
        let (before, waker) = {
            let mut conns = self.conns.borrow_mut();
            let is_cleared = on_event.is_none() && conns.has_untold(index);
            let before = conns.set_on_event(index, on_event);
            (before, if is_cleared { conns.take_waker(index) } else { None })
        };
        // What has come already is told by the next turn.
        self.file_conn(index);
        self.drop_each(before);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next event of those wanted that has come.
    pub(crate) fn poll_conn(
        &self,
        index: u32,
        record: &Record,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Option<IdleEvent>> {
        if record.key().is_none() {
            return Poll::Ready(None);
        }
        let event = self.conns.borrow().next_event(index, &self.recent, wanted);
        if event.is_some() {
            return Poll::Ready(event);
        }
        if !self.conns.borrow().keeps_waker(record, cx.waker()) {
            // Cloning and dropping are not ours, and so nothing is borrowed meanwhile: either may
            // close the connection.
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
    fn publish_conns(&self) {
        if self.asleep_until.get() > Tick::ZERO {
            self.door().published.store_connections(self.conn_count() as u64);
        }
    }

    /// How many connections are open or not dropped yet.
    pub(crate) fn conn_count(&self) -> usize {
        self.conns.borrow().len()
    }

    /// Moves the entry of a connection to where its first deadline is, if that is nearer now, or to
    /// the next turn, if there is a callback that is to be told of what has come.
    fn file_conn(&self, index: u32) {
        let conns = self.conns.borrow();
        let Some(key) = conns.record(index).key() else { return };
        let due = if conns.owes_callback(index) {
            self.directory.tick.floor(self.nanos_near())
        } else {
            self.directory.tick.ceil(conns.first_due(index, &self.recent))
        };
        drop(conns);
        let filed = self.state.borrow().shard.deadline(key);
        if filed.is_some_and(|filed| due < filed) {
            // It is pending, as its deadline has just been told.
            let _ = self.reset(key, due);
        }
    }

    /// Until when the entry of a connection is to be put off; `None` if something is due.
    #[inline]
    pub(super) fn postpone_conn(&self, index: u32) -> Option<Tick> {
        if self.closed.get() {
            return None;
        }
        let conns = self.conns.borrow();
        if conns.owes_callback(index) {
            return None;
        }
        let due = conns.first_due(index, &self.recent);
        (due > self.recent.now()).then(|| self.directory.tick.ceil(due))
    }

    /// The entry of a connection has come up, and it has another before anybody is told.
    pub(super) fn take_conn_events(&self, state: &mut State<T>, index: u32) -> Delivery<T> {
        if self.closed.get() {
            // It is told with all others.
            return Delivery::Wake(None);
        }
        let mut conns = self.conns.borrow_mut();
        let events = conns.take_due(index, &self.recent);
        let due = self.directory.tick.ceil(conns.first_due(index, &self.recent));
        let record = conns.record(index);
        let key = state.shard.schedule(due, Stored::Conn(index)).ok();
        if let Some(key) = key
            && state.delivering.is_some()
        {
            state.begin_class(state.delivering, key, self.recent.now());
        }
        if key.is_none() {
            // The slot that it was in is retired, after more timers than anybody has seen, and all
            // others are taken.
            tracing::error!(shard = self.id.number(), "a connection has lost its deadlines");
        }
        record.set_key(key);
        Delivery::Events(index, events)
    }

    /// Tells a connection what has come.
    pub(crate) fn deliver_events(&self, index: u32, events: Events, timers: &Timers<T>) {
        let called = {
            let mut conns = self.conns.borrow_mut();
            conns.note_events(index, events);
            conns.take_on_event(index)
        };
        let Some((serial, mut on_event)) = called else {
            let waker = self.conns.borrow_mut().take_waker(index);
            return waker.into_iter().for_each(std::task::Waker::wake);
        };
        loop {
            let event = {
                let conns = self.conns.borrow();
                if !conns.is_same(index, serial) {
                    break;
                }
                conns.next_event(index, &self.recent, |_| true)
            };
            let Some(event) = event else { break };
            if !contain(self.id, || on_event(timers, event)) {
                self.note_delivery(false, 0);
            }
        }
        let left = self.conns.borrow_mut().put_back(index, serial, on_event);
        drop(left);
    }

    /// The shard is closed: tells all connections.
    pub(super) fn close_all_conns(&self) {
        let wakers = self.conns.borrow_mut().close_all();
        for waker in wakers {
            contain(self.id, || waker.wake());
        }
    }
}
