//! Timers that go to another shard, and requests that follow them there.
//!
//! A timer migrates in one step of its own thread: a key of the other shard is in hand before the
//! timer is taken out here, and the timer leaves over the lane of this shard's outbox like any
//! other timer from elsewhere. So the timer is here or on its way, never both and never neither;
//! the lane accounts for it from then on. If the other shard is found closed only then, the timer
//! is put back: its slot was kept for it.
//!
//! A request that comes here by the old handle is forwarded, over the same lane and so behind the
//! timer. Without that, a thread that holds the old handle would be answered `Stale` for a timer
//! that goes on and fires elsewhere: a cancel would not tell the truth. What is remembered for it
//! is bounded: the oldest handles are forgotten first. A shard that remembers some sleeps lightly:
//! any request wakes it, as the request may concern a timer that is due elsewhere. When the shard
//! is closed, the new handles lie at its post, and clients send to them.
//!
//! A drain migrates all timers, slot by slot and in slices of a turn.
//!
//! Cost: some 40 bytes for each timer that is remembered; one comparison for a stale cancel where
//! no timer has migrated.

use std::collections::VecDeque;
use std::sync::Arc;

use corewheel_shard::{CancelOutcome as ShardCancel, Tick, TimerKey};

use super::effect::Effect;
use super::payload::{Outbox, Packed, Payload};
use super::request::{Bulk, DrainReply, MigrateReply, Request};
use super::{Core, State};
use crate::values::class::ClassId;
use crate::values::contain::contain;
use crate::values::handle::{Home, ShardId, TimerHandle};
use crate::values::migration::{DrainError, DrainReport, MoveError, NewHandles};
use crate::values::outcome::{CancelOutcome, ResetOutcome};

/// The most slots that a turn looks at for what is to be moved.
const SLOTS_MAX: u32 = 1 << 14;
/// For how long a drain waits for room on the other shards, without getting any.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Where the timers of a shard have gone.
pub(super) struct Migrated {
    home: Home,
    max: usize,
    /// Shared once the shard is closed.
    whereabouts: Arc<NewHandles>,
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

impl Migrated {
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
    pub(super) fn leave_handles(&self) -> Option<Arc<NewHandles>> {
        (!self.keys.is_empty()).then(|| Arc::clone(&self.whereabouts))
    }
}

/// A drain that is not done.
pub(super) struct Drain {
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
    reply: DrainReply,
}

impl<P: Payload> State<P> {
    /// Sends a cancel or a reset to where its timer has gone.
    #[cold]
    pub(super) fn forward(&mut self, shard: ShardId, request: Request<P>, now: u64) {
        if shard == self.id {
            return self.apply(request, None, now);
        }
        self.effects.push(Effect::Forward(shard, request));
    }

    /// Where a timer is that has gone, or that is here by another name.
    pub(super) fn trace(&self, mut key: TimerKey) -> Option<(ShardId, TimerKey)> {
        let mut found = None;
        // Names are given in order, so this ends.
        while let Some(whereabouts) = self.migrated.find(key) {
            match whereabouts {
                Whereabouts::Here(other) => {
                    key = other;
                    found = Some((self.id, key));
                }
                Whereabouts::There(timer) => return Some((timer.shard(), timer.key())),
            }
        }
        found
    }

    /// Whether a timer is here and can travel.
    fn check_travels(&self, key: TimerKey) -> Result<(), MoveError> {
        let payload = self.wheel.task(key).ok_or(MoveError::NotPending)?;
        payload.check_travels(&self.tables)
    }

    /// Takes a timer out that can travel, as a request to another shard.
    fn pack(&mut self, key: TimerKey, now: u64) -> Request<P> {
        let class = self.classes.class_of(key.index());
        let ShardCancel::Cancelled { deadline, task } = self.cancel(key) else {
            unreachable!("a timer is looked at before it migrates")
        };
        let sent_us = (now / 1_000) as u32;
        match task.pack(&mut self.tables) {
            Packed::Value(value) => Request::Schedule { deadline, sent_us, class, value },
            Packed::Call(call) => Request::Call { deadline, sent_us, class, call },
        }
    }

    /// The timer of a request that was packed.
    fn unpack(&mut self, request: Request<P>) -> (Tick, ClassId, P) {
        match request {
            Request::Schedule { deadline, class, value, .. } => {
                (deadline, class, P::of_value(value))
            }
            Request::Call { deadline, class, call, .. } => {
                (deadline, class, P::of_call(call, &mut self.tables))
            }
            _ => unreachable!("what was just sent comes back"),
        }
    }

    /// When a drain is to go on that has found no room.
    pub(super) fn drain_retries_at(&self) -> Option<Tick> {
        self.draining.as_ref()?.retry_at
    }
}

/// Migrating one timer.
impl<P: Payload> Core<P> {
    /// Sends a timer of this shard to live on another, and tells its new name.
    pub(crate) fn migrate_to(&self, key: TimerKey, to: ShardId) -> Result<TimerHandle, MoveError> {
        if self.is_closed() {
            return Err(MoveError::Closed(self.id));
        }
        let checked = self.state.borrow().check_travels(key);
        if let Err(error) = checked {
            let gone = self.state.borrow().trace(key);
            return match gone {
                Some((shard, key)) if shard == self.id => self.migrate_to(key, to),
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
        let pack = |granted, back: Option<Request<P>>| {
            let state = &mut *self.state.borrow_mut();
            let request = back.unwrap_or_else(|| {
                let request = state.pack(key, now);
                // Its slot is kept until it has left for good.
                spare = state.wheel.grant();
                state.counts.moved_out += 1;
                request
            });
            // Before it is sent: that may wake who asks for it.
            state.migrated.remember(key, there(granted));
            request
        };
        let mut sent = Err((MoveError::Full(to), None));
        if !contain(self.id, || sent = self.outbox.send_timer(to, check, pack)) {
            // What was woken has panicked, which is nothing to the timer if that was sent before.
            if let Some(Whereabouts::There(timer)) = self.state.borrow().migrated.find(key) {
                sent = Ok(timer.key());
            }
        }
        if let Some(spare) = spare {
            self.state.borrow_mut().wheel.revoke(spare);
        }
        match sent {
            Ok(granted) => {
                self.note_migrated(first);
                Ok(there(granted))
            }
            Err((error, back)) => {
                if let Some(request) = back {
                    self.put_back(key, request);
                    self.note_migrated(first);
                }
                Err(error)
            }
        }
    }

    /// Where a timer of this shard has gone, if it has.
    pub(crate) fn migrated_to(&self, key: TimerKey) -> Option<TimerHandle> {
        let (shard, key) = self.state.borrow().trace(key)?;
        Some(self.directory.service.home(shard).handle(key))
    }

    /// What a cancel finds whose timer is not here by this name.
    #[cold]
    pub(super) fn cancel_migrated(&self, key: TimerKey, now: u64) -> CancelOutcome<P::Taken> {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.cancel(key, now),
            Some((shard, _)) => CancelOutcome::Elsewhere(shard),
            None => CancelOutcome::Stale,
        }
    }

    /// What a reset finds whose timer is not here by this name.
    #[cold]
    pub(super) fn reset_migrated(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.reset(key, deadline),
            Some((shard, _)) => ResetOutcome::Elsewhere(shard),
            None => ResetOutcome::Stale,
        }
    }

    /// A timer that could not leave after all gets another handle here, and is known by both.
    #[cold]
    fn put_back(&self, key: TimerKey, request: Request<P>) {
        let (deadline, class, payload) = self.state.borrow_mut().unpack(request);
        let Ok(again) = self.schedule(class, deadline, payload) else {
            unreachable!("a slot was just given back")
        };
        self.state.borrow_mut().migrated.remember(key, self.handle_of(again));
    }

    /// After a timer has left, the first one or not.
    fn note_migrated(&self, is_first: bool) {
        if is_first && self.is_asleep() {
            // A sleep that only some requests end is too deep from now on.
            self.wake_driver();
        } else {
            self.publish_command();
        }
    }

    /// Whether timers of this shard may be due elsewhere that are asked for here.
    pub(super) fn sleeps_lightly(&self) -> bool {
        !self.state.borrow().migrated.keys.is_empty()
    }

    /// Migrates a timer as another thread has asked for.
    pub(super) fn migrate_for(&self, key: TimerKey, to: ShardId, reply: MigrateReply) {
        let outcome = match self.migrate_to(key, to) {
            // The caller need not know where the timer is.
            Err(MoveError::Elsewhere(shard)) => match self.migrated_to(key) {
                Some(timer) => {
                    let bulk = Bulk::Migrate { key: timer.key(), to, reply };
                    return self.outbox.send(shard, Request::Bulk(Box::new(bulk)));
                }
                None => Err(MoveError::NotPending),
            },
            outcome => outcome,
        };
        // A reply that cannot be sent has no caller that waits for it.
        drop(reply.send(outcome));
    }
}

/// Draining.
impl<P: Payload> Core<P> {
    pub(super) fn begin_drain(&self, into: Box<[ShardId]>, reply: DrainReply) {
        let error = if into.contains(&self.id) {
            Some(DrainError::IntoItself(self.id))
        } else if self.state.borrow().draining.is_some() {
            Some(DrainError::AlreadyDraining(self.id))
        } else {
            into.is_empty().then_some(DrainError::NowhereToGo)
        };
        if let Some(error) = error {
            drop(reply.send(Err(error)));
        } else if !self.is_closed() {
            self.state.borrow_mut().draining = Some(Drain {
                into,
                next: 0,
                slot: 0,
                retry_at: None,
                stuck_since: None,
                report: DrainReport::new(self.id),
                reply,
            });
        }
    }

    /// Migrates what a drain has still to migrate, up to `max` timers. True if there is more to do
    /// at once.
    #[inline]
    pub(super) fn drain_some(&self, now: u64, max: usize) -> bool {
        if self.state.borrow().draining.is_none() {
            return false;
        }
        // It is not left borrowed: a migration rings other shards' doorbells.
        let draining = self.state.borrow_mut().draining.take();
        draining.is_some_and(|draining| self.drain_slice(draining, now, max))
    }

    #[cold]
    fn drain_slice(&self, mut draining: Drain, now: u64, max: usize) -> bool {
        let capacity = self.state.borrow().wheel.capacity() as u32;
        let end = draining.slot.saturating_add(SLOTS_MAX).min(capacity);
        let mut left = max;
        draining.retry_at = None;
        let more = loop {
            if left == 0 {
                break true;
            }
            let found = self.state.borrow().wheel.pending_in(draining.slot..end);
            let Some(key) = found else {
                draining.slot = end;
                if end < capacity {
                    break true;
                }
                contain(self.id, || drop(draining.reply.send(Ok(draining.report))));
                return false;
            };
            left -= 1;
            if !self.drain_one(&mut draining, key, now) {
                draining.retry_at = Some(self.time().floor(now).saturating_add(1));
                break false;
            }
            draining.slot = key.index() + 1;
        };
        self.state.borrow_mut().draining = Some(draining);
        more
    }

    /// Sees to one timer. False if it is to be tried again after a tick.
    fn drain_one(&self, draining: &mut Drain, key: TimerKey, now: u64) -> bool {
        let checked = {
            let state = self.state.borrow();
            // A timer that is due fires here, in this turn or one of the next.
            if state.wheel.deadline(key).is_none_or(|due| due <= self.time().floor(now)) {
                return true;
            }
            state.check_travels(key)
        };
        match checked {
            Ok(()) => {}
            Err(error) => {
                match error {
                    MoveError::Sleep => draining.report.sleeps += 1,
                    MoveError::Connection => draining.report.connections += 1,
                    _ => draining.report.callbacks += 1,
                }
                return true;
            }
        }
        let mut is_full = false;
        for _ in 0..draining.into.len() {
            let to = draining.into[draining.next];
            draining.next = (draining.next + 1) % draining.into.len();
            match self.migrate_to(key, to) {
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
}
