//! Many commands that came in one message, as far as a turn's budget goes.

use corewheel_shard::{CancelOutcome as ShardCancel, Tick, TimerKey};

use super::Core;
use super::state::{Effect, Errand, State};
use crate::across::{Across, CancelMany, ScheduleMany, Told};
use crate::class::ClassId;
use crate::error::ScheduleManyError;
use crate::handle::TimerHandle;
use crate::lane::Request;
use crate::mesh::Directory;
use crate::task::{Callback, Stored, Task};

impl<T: Send + 'static> State<T> {
    /// Does what a client asks, `max` commands of it. Returns the rest.
    #[inline]
    pub(super) fn apply_some(
        &mut self,
        request: Request<T>,
        key: Option<TimerKey>,
        max: usize,
        now: u64,
        directory: &Directory<T>,
    ) -> Option<Request<T>> {
        if let Request::Across(across) = request {
            return self.apply_across(across, max, now, directory);
        }
        self.apply(request, key, now, directory);
        None
    }

    #[inline(never)]
    fn apply_across(
        &mut self,
        mut across: Box<Across<T>>,
        max: usize,
        now: u64,
        directory: &Directory<T>,
    ) -> Option<Request<T>> {
        let is_done = match &mut *across {
            Across::Cancel(many) => self.cancel_some(many, max, now, directory),
            Across::Schedule(many) => self.arm_some(many, max, now, directory),
            Across::Move { .. } | Across::Drain { .. } => {
                // They send something themselves, so they wait until nothing is borrowed.
                self.effects.push(Effect::Errand(match *across {
                    Across::Move { key, to, answer } => Errand::Move(key, to, answer),
                    Across::Drain { into, answer } => Errand::Drain(into, answer),
                    Across::Cancel(_) | Across::Schedule(_) => unreachable!("it was looked at"),
                }));
                return None;
            }
        };
        (!is_done).then_some(Request::Across(across))
    }

    /// True if that was all.
    fn cancel_some(
        &mut self,
        many: &mut CancelMany<T>,
        max: usize,
        now: u64,
        directory: &Directory<T>,
    ) -> bool {
        for key in many.keys.by_ref().take(max) {
            let mut outcome = self.cancel(key);
            if matches!(outcome, ShardCancel::Stale)
                && let Some((shard, key)) = self.trace(key)
            {
                if shard != self.home() {
                    let (answer, told) = many.account.is_some().then(oneshot::channel).unzip();
                    let request = Request::Cancel { key, answer };
                    self.send_on(shard, request, now, directory);
                    if let (Some(account), Some(told)) = (&mut many.account, told) {
                        account.note(Told::Later(told));
                    }
                    continue;
                }
                outcome = self.cancel(key);
            }
            let outcome = self.finish_cancel(outcome, now, directory);
            let Some(account) = &mut many.account else {
                self.effects.extend(outcome.task().map(Effect::DropTask));
                continue;
            };
            let (outcome, left) = outcome.into_remote();
            account.note(Told::Now(outcome));
            // What cannot travel is dropped here.
            let left = left.map(|call| Task::Callback(Callback(call)));
            self.effects.extend(left.map(Effect::DropTask));
        }
        if many.keys.len() > 0 {
            return false;
        }
        self.effects.extend(many.account.take().map(|all| Effect::Errand(Errand::Tell(all))));
        true
    }

    /// True if that was all.
    fn arm_some(
        &mut self,
        many: &mut ScheduleMany<T>,
        max: usize,
        now: u64,
        directory: &Directory<T>,
    ) -> bool {
        for (key, deadline, task) in many.timers.by_ref().take(max) {
            self.note_ring_delay(many.sent_us, now);
            self.arm(Some(key), many.class, deadline, Stored::Value(task), now, directory);
        }
        many.timers.len() == 0
    }
}

impl<T: Send + 'static> Core<T> {
    /// Schedules all of these, or none. The driver is woken once, when all are there: whoever is
    /// woken may want some of the room.
    pub(crate) fn schedule_all<D>(
        &self,
        class: ClassId,
        timers: Vec<(D, T)>,
        tick: impl Fn(D) -> Tick,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(D, T)>> {
        if self.is_closed() {
            return Err(ScheduleManyError::Closed(timers));
        }
        let mut earliest = Tick::NEVER;
        let handles: Vec<_> = {
            let State { shard, counts, classes, .. } = &mut *self.state.borrow_mut();
            // Without what is reserved for clients.
            let room = shard.capacity() - shard.len() - shard.granted() - shard.retired();
            if timers.len() > room {
                counts.refused += 1;
                classes.count(class, |counts| counts.refused += 1);
                return Err(ScheduleManyError::Full(timers));
            }
            let schedule = |(when, task)| {
                let deadline = tick(when);
                earliest = earliest.min(deadline);
                let Ok(key) = shard.schedule(deadline, Stored::Value(task)) else {
                    unreachable!("there is room for all of them")
                };
                self.home.handle(key)
            };
            timers.into_iter().map(schedule).collect()
        };
        for timer in &handles {
            self.note_classed(class, Some(timer.key()));
        }
        self.note_deadline(earliest);
        Ok(handles)
    }
}
