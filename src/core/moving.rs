//! Timers that go to another shard, and where they have gone.
//!
//! A timer is moved in one step of its own core: a key of the other shard is in hand before it is
//! taken out here, and it leaves over the lane of this core's client like any other timer from
//! elsewhere. So it is here or on its way, never both and never neither; the lane accounts for it
//! from then on. Where the other shard is found closed only then, the timer is put back: its slot
//! was kept for it.
//!
//! What is sent here by the old name is sent on, over the same lane and so behind the timer. What
//! is remembered for that is bounded: the oldest are forgotten first. A shard that remembers some
//! sleeps lightly: it is woken by whatever is sent to it, as that may concern a timer which is due
//! elsewhere. When it is closed, what it remembers lies at its door, and clients send to the new
//! names themselves.
//!
//! Draining is moving, slot by slot and in slices of a turn.
//!
//! Cost: some 40 bytes for each timer that is remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use corewheel_shard::{CancelOutcome as ShardCancel, Tick, TimerKey};

use super::Core;
use super::state::{Effect, Errand, State};
use crate::across::{Across, DrainAnswer, MoveAnswer, NewNames};
use crate::contain::contain;
use crate::handle::{Home, ShardId, TimerHandle};
use crate::lane::Request;
use crate::mesh::Directory;
use crate::moving::{DrainError, DrainReport, MoveError};
use crate::task::{Call, CancelOutcome, ResetOutcome, Stored, Task};

/// The most slots that a turn looks at for what is to be moved.
const SLOTS_MAX: u32 = 1 << 14;
/// For how long a drain waits for room on the other shards, without getting any.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Where the timers of a shard have gone.
pub(super) struct Moved {
    home: Home,
    max: usize,
    /// Shared once the shard is closed.
    whereabouts: Arc<NewNames>,
    /// Oldest first.
    keys: VecDeque<TimerKey>,
}

/// Where a timer is that has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whereabouts {
    /// It could not leave after all, and has another name.
    Here(TimerKey),
    There(TimerHandle),
}

impl Moved {
    pub(super) fn new(home: Home, max: usize) -> Self {
        Self { home, max, whereabouts: Arc::default(), keys: VecDeque::new() }
    }

    #[inline]
    pub(super) fn find(&self, key: TimerKey) -> Option<Whereabouts> {
        if self.keys.is_empty() {
            return None;
        }
        let timer = *self.whereabouts.get(&key)?;
        if timer.home() == self.home {
            return Some(Whereabouts::Here(timer.key()));
        }
        Some(Whereabouts::There(timer))
    }

    /// Notes where a timer has gone, or that it is elsewhere than was noted.
    fn remember(&mut self, key: TimerKey, timer: TimerHandle) {
        let whereabouts = Arc::make_mut(&mut self.whereabouts);
        if whereabouts.insert(key, timer).is_some() {
            return;
        }
        if self.keys.len() >= self.max
            && let Some(oldest) = self.keys.pop_front()
        {
            whereabouts.remove(&oldest);
        }
        self.keys.push_back(key);
    }

    /// For those who look for timers of this shard when it is closed.
    pub(super) fn leave_names(&self) -> Option<Arc<NewNames>> {
        (!self.keys.is_empty()).then(|| Arc::clone(&self.whereabouts))
    }
}

/// A drain that is not done.
pub(super) struct Draining {
    into: Box<[ShardId]>,
    /// Whose turn it is of those.
    next: usize,
    /// The slot to look at next.
    slot: u32,
    /// When to try again, after there was no room.
    retry_at: Option<Tick>,
    /// Since when there is none.
    stuck_since: Option<u64>,
    report: DrainReport,
    answer: DrainAnswer,
}

impl<T: Send + 'static> State<T> {
    pub(super) fn home(&self) -> ShardId {
        self.moved.home.shard()
    }

    /// Sends a cancel or a reset to where its timer has gone.
    #[cold]
    pub(super) fn send_on(
        &mut self,
        shard: ShardId,
        request: Request<T>,
        now: u64,
        directory: &Directory<T>,
    ) {
        if shard == self.home() {
            return self.apply(request, None, now, directory);
        }
        self.effects.push(Effect::Errand(Errand::Forward(shard, request)));
    }

    /// Where a timer is that has gone, or that is here by another name.
    pub(super) fn trace(&self, mut key: TimerKey) -> Option<(ShardId, TimerKey)> {
        let mut found = None;
        // Names are given in order, so this ends.
        while let Some(whereabouts) = self.moved.find(key) {
            match whereabouts {
                Whereabouts::Here(other) => {
                    key = other;
                    found = Some((self.home(), key));
                }
                Whereabouts::There(timer) => return Some((timer.shard(), timer.key())),
            }
        }
        found
    }

    /// Whether a timer is here and can travel.
    fn check_travels(&self, key: TimerKey) -> Result<(), MoveError> {
        match self.shard.task(key) {
            Some(Stored::Value(_)) => Ok(()),
            Some(Stored::Call(index)) => match self.calls.get(*index as usize) {
                Some(Call::Send(_)) => Ok(()),
                _ => Err(MoveError::LocalCallback),
            },
            Some(Stored::Shared(..)) => Err(MoveError::LocalCallback),
            Some(Stored::Sleeper(_)) => Err(MoveError::Sleep),
            Some(Stored::Conn(_)) => Err(MoveError::Connection),
            None => Err(MoveError::NotPending),
        }
    }

    /// Takes a timer out that can travel, as a request to another shard.
    fn pack(&mut self, key: TimerKey, now: u64) -> Request<T> {
        let class = self.classes.class_of(key.index());
        let ShardCancel::Cancelled { deadline, task } = self.cancel(key) else {
            unreachable!("a timer is looked at before it is moved")
        };
        let sent_us = (now / 1_000) as u32;
        match task {
            Stored::Value(task) => Request::Schedule { deadline, sent_us, class, task },
            Stored::Call(index) => match self.calls.remove(index as usize) {
                Call::Send(call) => Request::Call { deadline, sent_us, class, call },
                _ => unreachable!("what cannot travel is not packed"),
            },
            Stored::Shared(..) | Stored::Sleeper(_) | Stored::Conn(_) => {
                unreachable!("what cannot travel is not packed")
            }
        }
    }

    /// The reverse, as far as it goes.
    fn unpack(&mut self, request: Request<T>) -> (Tick, Stored<T>) {
        match request {
            Request::Schedule { deadline, task, .. } => (deadline, Stored::Value(task)),
            Request::Call { deadline, call, .. } => {
                (deadline, Stored::Call(self.calls.insert(Call::Send(call)) as u32))
            }
            _ => unreachable!("what was just sent comes back"),
        }
    }
}

/// Moving.
impl<T: Send + 'static> Core<T> {
    /// Sends a timer of this shard to live on another, and tells its new name.
    pub(crate) fn move_to(&self, key: TimerKey, to: ShardId) -> Result<TimerHandle, MoveError> {
        if self.is_closed() {
            return Err(MoveError::Closed(self.id));
        }
        let checked = self.state.borrow().check_travels(key);
        if let Err(error) = checked {
            let gone = self.state.borrow().trace(key);
            return match gone {
                Some((shard, key)) if shard == self.id => self.move_to(key, to),
                Some((shard, _)) => Err(MoveError::Elsewhere(shard)),
                None => Err(error),
            };
        }
        if to == self.id {
            return Ok(self.home.handle(key));
        }
        let there = |granted| self.directory.service.home(to).handle(granted);
        let now = self.nanos_near();
        let first = !self.sleeps_lightly();
        let mut spare = None;
        let check = || self.state.borrow().check_travels(key);
        let pack = |granted, back: Option<Request<T>>| {
            let state = &mut *self.state.borrow_mut();
            let request = back.unwrap_or_else(|| {
                let request = state.pack(key, now);
                // Its slot is kept until it has left for good.
                spare = state.shard.grant();
                state.counts.moved_out += 1;
                request
            });
            // Before it is sent: that may wake who asks for it.
            state.moved.remember(key, there(granted));
            request
        };
        let mut sent = Err((MoveError::Full(to), None));
        if !contain(self.id, || sent = self.client.send_timer(to, check, pack)) {
            // What was woken has panicked, which is nothing to the timer if that was sent before.
            if let Some(Whereabouts::There(timer)) = self.state.borrow().moved.find(key) {
                sent = Ok(timer.key());
            }
        }
        if let Some(spare) = spare {
            self.state.borrow_mut().shard.revoke(spare);
        }
        match sent {
            Ok(granted) => {
                self.note_moved(first);
                Ok(there(granted))
            }
            Err((error, back)) => {
                if let Some(request) = back {
                    self.put_back(key, request);
                    self.note_moved(first);
                }
                Err(error)
            }
        }
    }

    /// Where a timer of this shard has gone, if it has.
    pub(crate) fn moved_to(&self, key: TimerKey) -> Option<TimerHandle> {
        let (shard, key) = self.state.borrow().trace(key)?;
        Some(self.directory.service.home(shard).handle(key))
    }

    /// What a cancel finds whose timer is not here by this name.
    #[cold]
    pub(super) fn cancel_moved(&self, key: TimerKey, now: u64) -> CancelOutcome<Task<T>> {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.cancel(key, now),
            Some((shard, _)) => CancelOutcome::Elsewhere(shard),
            None => CancelOutcome::Stale,
        }
    }

    /// What a reset finds whose timer is not here by this name.
    #[cold]
    pub(super) fn reset_moved(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.reset(key, deadline),
            Some((shard, _)) => ResetOutcome::Elsewhere(shard),
            None => ResetOutcome::Stale,
        }
    }

    /// A timer that could not leave after all gets another name here, and is known by both.
    #[cold]
    fn put_back(&self, key: TimerKey, request: Request<T>) {
        let class = request.class();
        let (deadline, stored) = self.state.borrow_mut().unpack(request);
        let again = self.schedule_stored(deadline, stored);
        let again = again.expect("a slot was just given back");
        self.begin_class(class, again);
        self.state.borrow_mut().moved.remember(key, self.home.handle(again));
    }

    /// After a timer has left, the first one or not.
    fn note_moved(&self, first: bool) {
        if first && self.asleep_until.get() > Tick::ZERO {
            // It sleeps too deep from now on.
            self.asleep_until.set(Tick::ZERO);
            self.door().bell.ring();
        } else {
            self.publish_command();
        }
    }

    /// Whether timers of this shard may be due elsewhere that are asked for here.
    pub(super) fn sleeps_lightly(&self) -> bool {
        !self.state.borrow().moved.keys.is_empty()
    }

    /// A move that was asked for from elsewhere.
    fn move_for(&self, key: TimerKey, to: ShardId, answer: MoveAnswer) {
        let outcome = self.move_to(key, to);
        let outcome = match outcome {
            // Whoever asks need not know where it is.
            Err(MoveError::Elsewhere(shard)) => match self.moved_to(key) {
                Some(timer) => {
                    let across = Across::Move { key: timer.key(), to, answer };
                    return self.client.send(shard, Request::Across(Box::new(across)));
                }
                None => Err(MoveError::NotPending),
            },
            outcome => outcome,
        };
        // Nobody waits any more where it cannot be sent.
        drop(answer.send(outcome));
    }
}

impl<T: Send + 'static> Errand<T> {
    pub(super) fn run(self, core: &Core<T>) {
        match self {
            Self::Tell(account) => core.drop_each(account.tell()),
            Self::Forward(shard, request) => core.client.send(shard, request),
            Self::Move(key, to, answer) => core.move_for(key, to, answer),
            Self::Drain(into, answer) => core.begin_drain(into, answer),
        }
    }
}

/// Draining.
impl<T: Send + 'static> Core<T> {
    fn begin_drain(&self, into: Box<[ShardId]>, answer: DrainAnswer) {
        let error = if into.contains(&self.id) {
            Some(DrainError::IntoItself(self.id))
        } else if self.draining.borrow().is_some() {
            Some(DrainError::AlreadyDraining(self.id))
        } else {
            into.is_empty().then_some(DrainError::NowhereToGo)
        };
        if let Some(error) = error {
            drop(answer.send(Err(error)));
        } else if !self.is_closed() {
            *self.draining.borrow_mut() = Some(Draining {
                into,
                next: 0,
                slot: 0,
                retry_at: None,
                stuck_since: None,
                report: DrainReport::new(self.id),
                answer,
            });
        }
    }

    /// Moves what a drain has still to move, as much as a turn's budget allows. True if there is
    /// more to do at once.
    #[inline]
    pub(super) fn drain_some(&self, now: u64) -> bool {
        // It is not left borrowed: moving rings other shards' bells.
        if self.draining.borrow().is_none() {
            return false;
        }
        let draining = self.draining.borrow_mut().take();
        let Some(draining) = draining else { return false };
        self.drain_slice(draining, now)
    }

    #[cold]
    fn drain_slice(&self, mut draining: Draining, now: u64) -> bool {
        let capacity = self.state.borrow().shard.capacity() as u32;
        let end = draining.slot.saturating_add(SLOTS_MAX).min(capacity);
        let mut left = self.directory.settings.budget.requests_max.max(1);
        draining.retry_at = None;
        let more = loop {
            if left == 0 {
                break true;
            }
            let found = self.state.borrow().shard.pending_in(draining.slot..end);
            let Some(key) = found else {
                draining.slot = end;
                if end < capacity {
                    break true;
                }
                contain(self.id, || drop(draining.answer.send(Ok(draining.report))));
                return false;
            };
            left -= 1;
            if !self.drain_one(&mut draining, key, now) {
                draining.retry_at = Some(self.directory.tick.floor(now).saturating_add(1));
                break false;
            }
            draining.slot = key.index() + 1;
        };
        *self.draining.borrow_mut() = Some(draining);
        more
    }

    /// Sees to one timer. False if it is to be tried again after a moment.
    fn drain_one(&self, draining: &mut Draining, key: TimerKey, now: u64) -> bool {
        let checked = {
            let state = self.state.borrow();
            // What is due fires here, in this turn or one of the next.
            if state.shard.deadline(key).is_none_or(|due| due <= self.directory.tick.floor(now)) {
                return true;
            }
            state.check_travels(key)
        };
        match checked {
            Ok(()) => {}
            Err(MoveError::Sleep) => {
                draining.report.sleeps += 1;
                return true;
            }
            Err(MoveError::Connection) => {
                draining.report.connections += 1;
                return true;
            }
            Err(_) => {
                draining.report.callbacks += 1;
                return true;
            }
        }
        let mut is_full = false;
        for _ in 0..draining.into.len() {
            let to = draining.into[draining.next];
            draining.next = (draining.next + 1) % draining.into.len();
            match self.move_to(key, to) {
                Ok(_) => {
                    draining.report.moved += 1;
                    draining.stuck_since = None;
                    return true;
                }
                Err(MoveError::Full(_)) => is_full = true,
                Err(_) => {}
            }
        }
        let since = *draining.stuck_since.get_or_insert(now);
        if is_full && now.saturating_sub(since) < PATIENCE_NS {
            return false;
        }
        draining.report.refused += 1;
        true
    }

    /// When a drain is to go on.
    pub(super) fn drain_retries_at(&self) -> Option<Tick> {
        self.draining.borrow().as_ref()?.retry_at
    }
}
