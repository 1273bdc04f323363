//! What a thread does for a timer for which it has no thread timers, which it makes, or no credit:
//! it has the shard look for some.
//!
//! The shard of another thread looks in its next turn, and wakes the task of the timer then. A
//! thread that drives the shard has it look at once.

use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::Tick;

use super::super::place::ThreadTimersName;
use super::Reach;
use crate::link::thread_timers::{ArmRefusal, Number, Periods, ThreadTimers};
use crate::values::class::ClassId;
use crate::values::ids::ShardId;
use crate::values::refused::RefusedKind;

/// Why a timer was not armed.
pub(crate) enum Unarmed {
    /// The thread has no credit of a shard, which may have some that others do not use.
    NoRoom(ShardId),
    Refused(RefusedKind),
}

impl From<RefusedKind> for Unarmed {
    fn from(kind: RefusedKind) -> Self {
        Self::Refused(kind)
    }
}

impl Reach {
    /// Makes the timers of this thread for a shard.
    #[cold]
    pub(super) fn enter(&self, shard: ShardId) -> Result<(), RefusedKind> {
        let service = self.service().ok_or(RefusedKind::Closed)?;
        let front = service.front(shard).ok_or(RefusedKind::NoSuchShard)?;
        let table = &front.threads;
        front.note_waiting(shard);
        let periods = Periods::new(self.time.tick());
        let is_local = self.driven(Some(shard)).is_some();
        let room = Arc::clone(table.room());
        let thread_timers = ThreadTimers::new(periods, service.classes.len(), room, is_local);
        match table.enter(thread_timers) {
            Ok((id, thread_timers)) => {
                front.note_waiting(shard);
                if table.has_many_new() {
                    table.ring(Tick::ZERO, &front.doorbell);
                }
                self.own.add(shard, ThreadTimersName::new(shard, id), thread_timers);
                Ok(())
            }
            Err(true) => Err(RefusedKind::Closed),
            Err(false) => Err(RefusedKind::Full),
        }
    }

    /// Has the shard lend a slot for a timer that was refused, if the thread drives the shard.
    /// `Err` if it lends none.
    #[cold]
    pub(super) fn ask_for_room(
        &self,
        shard: ShardId,
        class: ClassId,
        refusal: ArmRefusal,
        is_borrowed: bool,
    ) -> Result<(), Unarmed> {
        if refusal == ArmRefusal::Closed {
            return Err(RefusedKind::Closed.into());
        }
        match self.driven(Some(shard)) {
            Some(driven) if driven.lend_one(is_borrowed) => Ok(()),
            // It has looked for all that others do not use.
            Some(_) if !is_borrowed => Err(self.note_full(shard, class).into()),
            _ => Err(Unarmed::NoRoom(shard)),
        }
    }

    /// Has a shard look for room for a timer that has found none, and then wake the task. `asked`
    /// is what this has returned for the timer before. `Err` if there is no room.
    #[cold]
    pub(crate) fn wait_for_room(
        &self,
        shard: ShardId,
        class: ClassId,
        asked: Option<Number>,
        waker: Waker,
    ) -> Result<Number, RefusedKind> {
        let front = self.front(shard).ok_or(RefusedKind::Closed)?;
        let (asked, _unused) = front.threads.ask_for_room(asked, waker, &front.doorbell);
        asked.map_err(|refusal| match refusal {
            ArmRefusal::Closed => RefusedKind::Closed,
            ArmRefusal::Full => self.note_full(shard, class),
        })
    }

    /// Counts a timer that a full shard refuses.
    #[cold]
    fn note_full(&self, shard: ShardId, class: ClassId) -> RefusedKind {
        if let Some(front) = self.front(shard) {
            front.threads.note_refused();
            front.note_refused(class);
        }
        RefusedKind::Full
    }
}
