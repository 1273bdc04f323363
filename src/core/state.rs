//! What a shard's thread borrows at a time, and what is left to do when it has let go.

use std::task::Waker;

use corewheel_shard::{ArmOutcome, CancelOutcome as ShardCancel, Shard, Tick, TimerKey};
use hashbrown::HashMap;
use slab::Slab;

use super::Core;
use super::classes::{ClassTable, Ended};
use super::moving::Moved;
use super::put_off::PutOff;
use super::shared::Owners;
use crate::across::{CancelAccount, DrainAnswer, MoveAnswer};
use crate::class::ClassId;
use crate::handle::ShardId;
use crate::lane::Request;
use crate::mesh::Directory;
use crate::stats::{Recorder, ShardCounts};
use crate::task::{Call, Callback, CancelOutcome, RemoteTask, ResetOutcome, Stored, Task};

pub(super) struct State<T: 'static> {
    pub(super) shard: Shard<Stored<T>>,
    pub(super) calls: Slab<Call<T>>,
    pub(super) owners: Owners<T>,
    pub(super) sleepers: Slab<Sleeper>,
    /// Cancels that overtook their timers and whose senders wait for the task.
    pub(super) overtaken: HashMap<TimerKey, oneshot::Sender<CancelOutcome<RemoteTask<T>>>>,
    /// Timers that live on other shards now.
    pub(super) moved: Moved,
    pub(super) effects: Vec<Effect<T>>,
    pub(super) counts: ShardCounts,
    pub(super) lateness: Recorder,
    pub(super) ring_delay: Recorder,
    pub(super) classes: ClassTable,
    /// The class of the timer that is being delivered.
    pub(super) delivering: ClassId,
    pub(super) put_off: PutOff<T>,
}

/// A future that waits for a timer of this core.
pub(super) enum Sleeper {
    Waiting(Waker),
    Fired,
    Closed,
}

/// What a future finds when it looks at its timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slept {
    NotYet,
    Fired,
    Closed,
}

/// What is left to be done when nothing is borrowed any more.
pub(super) enum Effect<T: 'static> {
    DropTask(Task<T>),
    Cancelled(oneshot::Sender<CancelOutcome<RemoteTask<T>>>, CancelOutcome<Task<T>>),
    Reset(oneshot::Sender<ResetOutcome>, ResetOutcome),
    Wake(Waker),
    Errand(Errand<T>),
}

/// What is rarer.
pub(super) enum Errand<T: 'static> {
    /// Answers for many commands.
    Tell(CancelAccount<T>),
    /// Sends a request on to where its timer has gone.
    Forward(ShardId, Request<T>),
    Move(TimerKey, ShardId, MoveAnswer),
    Drain(Box<[ShardId]>, DrainAnswer),
}

impl<T: Send + 'static> Effect<T> {
    pub(super) fn run(self, core: &Core<T>) {
        // Nobody waits any more where an answer cannot be sent.
        match self {
            Self::DropTask(task) => drop(task),
            Self::Cancelled(answer, outcome) => {
                let (outcome, left) = outcome.into_remote();
                // Apart from the answer, which may wake a waker that panics.
                core.drop_each(left);
                drop(answer.send(outcome));
            }
            Self::Reset(answer, outcome) => drop(answer.send(outcome)),
            Self::Wake(waker) => waker.wake(),
            Self::Errand(errand) => errand.run(core),
        }
    }
}

impl<T> CancelOutcome<Task<T>> {
    /// The outcome for another thread, and what cannot go there: to be dropped here.
    pub(super) fn into_remote(self) -> (CancelOutcome<RemoteTask<T>>, Option<Call<T>>) {
        let outcome = match self {
            Self::Cancelled { remaining, task } => {
                let (task, left) = task.into_remote();
                return (CancelOutcome::Cancelled { remaining, task }, left);
            }
            Self::Overtook => CancelOutcome::Overtook,
            Self::AlreadyFired => CancelOutcome::AlreadyFired,
            Self::Stale => CancelOutcome::Stale,
            Self::Elsewhere(shard) => CancelOutcome::Elsewhere(shard),
            Self::Foreign => CancelOutcome::Foreign,
        };
        (outcome, None)
    }
}

impl<T> Task<T> {
    pub(super) fn into_remote(self) -> (RemoteTask<T>, Option<Call<T>>) {
        match self {
            Self::Value(value) => (RemoteTask::Value(value), None),
            Self::Callback(Callback(Call::Send(call))) => (RemoteTask::Callback(call), None),
            Self::Callback(Callback(call)) => (RemoteTask::LeftAtHome, Some(call)),
            Self::Sleep => (RemoteTask::LeftAtHome, None),
        }
    }
}

impl<T: Send + 'static> State<T> {
    /// Does what a client asks. Whatever that sets free or answers is left as an effect.
    pub(super) fn apply(
        &mut self,
        request: Request<T>,
        key: Option<TimerKey>,
        now: u64,
        directory: &Directory<T>,
    ) {
        match request {
            Request::Schedule { deadline, sent_us, class, task } => {
                self.note_ring_delay(sent_us, now);
                self.arm(key, class, deadline, Stored::Value(task), now, directory);
            }
            Request::Call { deadline, sent_us, class, call } => {
                self.note_ring_delay(sent_us, now);
                let index = self.calls.insert(Call::Send(call)) as u32;
                self.arm(key, class, deadline, Stored::Call(index), now, directory);
            }
            Request::Cancel { key, answer } => {
                let outcome = self.cancel(key);
                if matches!(outcome, ShardCancel::Stale)
                    && let Some((shard, key)) = self.trace(key)
                {
                    let request = Request::Cancel { key, answer };
                    return self.send_on(shard, request, now, directory);
                }
                let overtook = matches!(outcome, ShardCancel::Overtook);
                let outcome = self.finish_cancel(outcome, now, directory);
                match answer {
                    // The answer can tell the task when it comes.
                    Some(answer) if overtook => {
                        self.overtaken.insert(key, answer);
                    }
                    Some(answer) => self.effects.push(Effect::Cancelled(answer, outcome)),
                    None => self.effects.extend(outcome.task().map(Effect::DropTask)),
                }
            }
            Request::Reset { key, deadline, answer } => {
                let outcome = self.shard.reset(key, deadline).into();
                if outcome == ResetOutcome::Stale
                    && let Some((shard, key)) = self.trace(key)
                {
                    let request = Request::Reset { key, deadline, answer };
                    return self.send_on(shard, request, now, directory);
                }
                self.effects.extend(answer.map(|answer| Effect::Reset(answer, outcome)));
            }
            Request::Across(_) => unreachable!("many commands are applied one by one"),
        }
    }

    pub(super) fn arm(
        &mut self,
        key: Option<TimerKey>,
        class: ClassId,
        deadline: Tick,
        stored: Stored<T>,
        now: u64,
        directory: &Directory<T>,
    ) {
        let key = key.expect("a request for a timer comes with the key that it uses up");
        match self.shard.arm(key, deadline, stored) {
            ArmOutcome::Armed if class.is_some() => self.classes.begin(class, key.index(), now),
            ArmOutcome::Armed => {}
            ArmOutcome::Overtaken(stored) => {
                self.classes.pass(class, Ended::Cancelled);
                let task = self.take(stored, Sleeper::Closed);
                self.effects.push(match self.overtaken.remove(&key) {
                    Some(answer) => {
                        let remaining = directory.remaining(deadline, now);
                        Effect::Cancelled(answer, CancelOutcome::Cancelled { remaining, task })
                    }
                    None => Effect::DropTask(task),
                });
            }
            ArmOutcome::NotGranted(_) => unreachable!("the queue of a lane holds granted keys"),
        }
    }

    /// Takes a timer out.
    #[inline]
    pub(super) fn cancel(&mut self, key: TimerKey) -> ShardCancel<Stored<T>> {
        let outcome = self.shard.cancel(key);
        if let ShardCancel::Cancelled { .. } = outcome {
            self.classes.end(key.index(), Ended::Cancelled);
        }
        outcome
    }

    #[inline(never)]
    pub(super) fn finish_cancel(
        &mut self,
        outcome: ShardCancel<Stored<T>>,
        now: u64,
        directory: &Directory<T>,
    ) -> CancelOutcome<Task<T>> {
        match outcome {
            ShardCancel::Cancelled { deadline, task } => {
                let remaining = directory.remaining(deadline, now);
                CancelOutcome::Cancelled { remaining, task: self.take(task, Sleeper::Closed) }
            }
            ShardCancel::Overtook => CancelOutcome::Overtook,
            ShardCancel::AlreadyFired => CancelOutcome::AlreadyFired,
            ShardCancel::Stale => CancelOutcome::Stale,
        }
    }

    /// What a stored task stands for; a sleeper ends as told.
    #[inline]
    pub(super) fn take(&mut self, stored: Stored<T>, end: Sleeper) -> Task<T> {
        match stored {
            Stored::Value(value) => Task::Value(value),
            Stored::Call(index) => Task::Callback(Callback(self.calls.remove(index as usize))),
            Stored::Shared(owner, number) => match self.owners.take(owner, number) {
                Some(call) => Task::Callback(Callback(call)),
                None => Task::Sleep,
            },
            Stored::Sleeper(index) => {
                let waker = self.end_sleep(index, end);
                self.effects.extend(waker.map(Effect::Wake));
                Task::Sleep
            }
            // Who waits is told with all connections.
            Stored::Conn(_) => Task::Sleep,
        }
    }

    pub(super) fn end_sleep(&mut self, index: u32, end: Sleeper) -> Option<Waker> {
        let sleeper = self.sleepers.get_mut(index as usize)?;
        match std::mem::replace(sleeper, end) {
            Sleeper::Waiting(waker) => Some(waker),
            Sleeper::Fired | Sleeper::Closed => None,
        }
    }

    #[inline]
    pub(super) fn note_ring_delay(&mut self, sent_us: u32, now: u64) {
        let delay_us = ((now / 1_000) as u32).wrapping_sub(sent_us);
        // A sender's clock reading can be a moment later than this turn's.
        let delay_us = if delay_us > u32::MAX / 2 { 0 } else { delay_us };
        self.ring_delay.record(u64::from(delay_us) * 1_000);
    }
}
