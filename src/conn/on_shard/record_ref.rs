//! A counted reference to the record of a connection on its shard, and what it does there.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::super::kinds::Direction;
use super::super::limits::{ConnEvent, ConnLimits, NEVER, Wanted};
use super::super::measured::Progress;
use super::super::moment::Moment;
use super::super::rules::{self, Facts, Held, Place};
use super::super::side::{Connection, Wakes};
use super::part::Connections;
use super::record::{Block, Record, Usage, add_one, take_one};
use super::table::Extras;
use crate::clock::Timeline;
use crate::face::part::PartHandle;
use crate::pass::has_budget;
use crate::stats::tally::Tally;

/// A counted reference to a connection's record.
pub(in crate::conn) struct RecordRef {
    pub(super) connections: Rc<Connections>,
    block: Block,
    pub(super) index: u32,
}

impl RecordRef {
    pub(super) fn new(connections: Rc<Connections>, block: Block, index: u32) -> Self {
        add_one(&block.usage(index).refs);
        Self { connections, block, index }
    }

    #[inline]
    pub(super) fn record(&self) -> &Record {
        self.block.record(self.index)
    }

    #[inline]
    pub(super) fn usage(&self) -> &Usage {
        self.block.usage(self.index)
    }

    pub(super) fn stamps(&self) -> [&Cell<Option<Moment>>; 3] {
        self.block.stamps_of(self.index)
    }

    /// Takes the connection off its shard: false if it was closed before.
    pub(super) fn leave(&self) -> bool {
        let (all, index, record) = (&self.connections, self.index, self.record());
        let Some(timer) = record.timer.take() else { return false };
        record.clear_pending();
        all.shard.cancel(timer);
        let (waker, on_event) = {
            let mut table = all.table.borrow_mut();
            (table.take_waker(index), table.set_on_event(index, None))
        };
        // A panic must not keep the record from being vacated.
        if let Some(waker) = waker {
            all.shard.contain(|| waker.wake());
        }
        all.shard.drop_each(on_event);
        true
    }
}

impl Connection for RecordRef {
    type Place<'a> = Extras<'a>;
    type Error = Infallible;

    fn add_owner(&self) {
        let owners = &self.usage().owners;
        add_one(owners);
        if owners.get() == 1 {
            self.connections.count_handled(1);
        }
    }

    fn drop_owner(&self) {
        let owners = &self.usage().owners;
        take_one(owners);
        if owners.get() == 0 {
            self.close();
            self.connections.count_handled(-1);
        }
    }

    fn with_tally(&self, count: impl FnOnce(&Tally)) {
        count(self.connections.orders.tally());
    }

    fn close(&self) -> bool {
        let ended_by = self.look(|facts| rules::ended_by(facts));
        let is_open = self.leave();
        if is_open {
            self.with_tally(|tally| tally.count_end(ended_by));
        }
        is_open
    }

    fn time(&self) -> Option<&Timeline> {
        Some(self.connections.shard.time())
    }

    fn now(&self) -> u64 {
        self.connections.shard.nanos_near()
    }

    #[inline]
    fn stamp_at(&self, _now: Option<u64>) -> Moment {
        self.connections.stamp()
    }

    #[inline]
    fn stamp(&self, direction: Direction, stamp: Moment) {
        self.record().stamps[direction as usize].set(Some(stamp));
    }

    fn stamp_all(&self, stamps: rules::Stamps) {
        for (stamp, at) in self.stamps().into_iter().zip(stamps) {
            stamp.set(at.or(stamp.get()));
        }
    }

    fn begin(&self, held: Held) {
        add_one(&self.usage().in_progress[held as usize]);
    }

    /// A stamp costs no reading of the clock here.
    fn end(&self, held: Held, _at: Option<Moment>) {
        take_one(&self.usage().in_progress[held as usize]);
        self.stamps()[held.stamp()].set(Some(self.stamp_at(None)));
    }

    #[inline]
    fn add(progress: &Progress, bytes: u64) {
        progress.add_here(bytes);
    }

    fn look<R>(&self, look: impl FnOnce(&mut Facts<'_, Extras<'_>>) -> R) -> R {
        let all = &self.connections;
        look(&mut all.facts(&mut all.table.borrow_mut(), self.index))
    }

    fn change<R>(
        &self,
        _: Wakes,
        change: impl FnOnce(&mut Facts<'_, Extras<'_>>) -> (R, u64),
    ) -> R {
        let (result, earliest) = self.look(change);
        if earliest < NEVER {
            self.connections.file(self.index, false);
        }
        result
    }

    fn with_limits<R>(&self, look: impl FnOnce(&ConnLimits) -> R) -> R {
        look(self.connections.table.borrow().limits(self.index))
    }

    fn store_limits(&self, limits: ConnLimits) {
        self.connections.table.borrow_mut().set_limits(self.index, limits);
    }

    fn take(&self, wanted: impl Wanted) -> Option<ConnEvent> {
        let event = self.change(Wakes::Task, |facts| {
            let (event, may_be_earlier) = rules::next_event(facts, wanted);
            (event, if may_be_earlier { 0 } else { NEVER })
        });
        event.inspect(|event| event.kind.count_in(self.connections.orders.tally()))
    }

    fn poll(
        &self,
        cx: &mut Context<'_>,
        // The driver of the shard looks at its sockets before a turn that is late.
        _looks: Option<u64>,
        wanted: impl Wanted,
    ) -> Poll<Result<Option<ConnEvent>, Infallible>> {
        let (table, record) = (&self.connections.table, self.record());
        if !record.is_open() {
            return Poll::Ready(Ok(None));
        }
        let has_events = record.flags.get().pending() != 0;
        let is_cut_short = || {
            self.look(|facts| match facts.place.rare() {
                None if has_budget() => false,
                _ => facts.place.rare_mut().polls.are_cut_short(),
            })
        };
        if has_events && is_cut_short() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(event) = self.take(wanted) {
            return Poll::Ready(Ok(Some(event)));
        }
        if !table.borrow().keeps_waker(record, cx.waker()) {
            // Cloning and dropping a waker run code of the user, which may close the connection.
            // Nothing is borrowed meanwhile.
            let waker = cx.waker().clone();
            if !record.is_open() {
                return Poll::Ready(Ok(None));
            }
            let old = table.borrow_mut().keep_waker(record, waker);
            drop(old);
        }
        Poll::Pending
    }

    #[inline]
    fn budget(&self) -> Option<&PartHandle> {
        Some(&self.connections.shard)
    }
}

impl Clone for RecordRef {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.connections), Rc::clone(&self.block), self.index)
    }
}

impl Drop for RecordRef {
    fn drop(&mut self) {
        let refs = &self.usage().refs;
        take_one(refs);
        if refs.get() == 0 {
            self.connections.vacate(self.index);
        }
    }
}
