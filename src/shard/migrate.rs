//! Timers that migrate to another shard, and requests that are forwarded to them.
//!
//! A timer migrates in one step of the thread of its shard: the shard first takes a key of the
//! other shard, then takes the timer out, and sends it over the lane of its outbox, as a thread
//! does. So the timer is either here or in the lane, never both and never neither, and from then on
//! the lane guarantees that it is not lost. If the other shard turns out to be closed only then,
//! the timer is put back into a slot that was reserved for it.
//!
//! A request with the old id is forwarded over the same lane, so it arrives after the timer.
//! Otherwise a thread that holds the old id would get the reply `Stale` for a timer that fires
//! on the other shard. The shard remembers a bounded number of ids, and forgets the oldest
//! first. While it remembers any, every request wakes it, since the request may concern a timer
//! that is due on another shard. When the shard closes, the new ids are left at its post, and
//! threads send to the other shards.
//!
//! A `migrate_all` migrates all timers, slot by slot, a slice in each turn.
//!
//! Cost: some 40 bytes for each remembered id; one comparison for a stale cancel while no timer
//! has migrated.

use std::collections::VecDeque;
use std::sync::Arc;

use corewheel_shard::{CancelOutcome as ShardCancel, Tick, TimerKey};

use super::classes::Ended;
use super::effect::Effect;
use super::request::{Bulk, MigrateAllReply, MigrateReply, RemainingReply, Request};
use super::stored::{Packed, Stored, Taken};
use super::{Core, State};
use crate::values::class::ClassId;
use crate::values::contain::contain;
use crate::values::ids::{Home, ShardId, TimerId};
use crate::values::migration::{MigrateError, MigrateReport, NewIds};
use crate::values::outcome::{CancelOutcome, ResetOutcome};

/// The most slots that a turn searches for timers to migrate.
const SLOTS_MAX: u32 = 1 << 14;
/// How long a `migrate_all` waits for room on the other shards before it leaves timers where they
/// are.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The new ids of the timers that have migrated from a shard.
pub(super) struct Migrated {
    home: Home,
    /// The most ids that the shard remembers.
    max: usize,
    /// By the old keys. Shared once the shard is closed.
    ids: Arc<NewIds>,
    /// The old keys, oldest first.
    keys: VecDeque<TimerKey>,
}

/// The place of a timer that has migrated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The other shard was closed, so the timer came back and has this key now.
    Here(TimerKey),
    There(TimerId),
}

impl Migrated {
    pub(super) fn new(home: Home, max: usize) -> Self {
        Self { home, max, ids: Arc::default(), keys: VecDeque::new() }
    }

    /// The place of the timer that had this key; `None` if it has not migrated or is forgotten.
    #[inline]
    pub(super) fn find(&self, key: TimerKey) -> Option<Place> {
        if self.keys.is_empty() {
            return None;
        }
        let timer = *self.ids.get(&key)?;
        if timer.home() == self.home {
            return Some(Place::Here(timer.key()));
        }
        Some(Place::There(timer))
    }

    /// Remembers the new id of a timer. If `max` ids are known, the oldest is forgotten.
    fn remember(&mut self, key: TimerKey, timer: TimerId) {
        let ids = Arc::make_mut(&mut self.ids);
        if ids.insert(key, timer).is_some() {
            return;
        }
        if self.keys.len() >= self.max
            && let Some(oldest) = self.keys.pop_front()
        {
            ids.remove(&oldest);
        }
        self.keys.push_back(key);
    }

    /// How many ids the shard remembers.
    #[cfg(feature = "sim")]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The new ids, for the post of the shard when it closes; `None` if there are none.
    pub(super) fn new_ids(&self) -> Option<Arc<NewIds>> {
        (!self.keys.is_empty()).then(|| Arc::clone(&self.ids))
    }
}

/// A `migrate_all` that is not finished.
pub(super) struct MigrateAll {
    into: Box<[ShardId]>,
    /// The index in `into` of the shard that gets the next timer.
    next: usize,
    /// The slot from which the search for the next timer begins.
    slot: u32,
    /// When to try again; `None` unless the last timer found no room.
    retry_at: Option<Tick>,
    /// The time in nanoseconds since which no timer has found room; `None` if the last timer has.
    stuck_since: Option<u64>,
    report: MigrateReport,
    reply: MigrateAllReply,
}

impl<T: 'static> State<T> {
    /// Sends a cancel or a reset to the shard to which its timer has migrated.
    #[cold]
    pub(super) fn forward(&mut self, shard: ShardId, request: Request<T>, now: u64) {
        if shard == self.id {
            return self.apply(request, None, now);
        }
        self.effects.push(Effect::Forward(shard, request));
    }

    /// The present shard and key of a timer that had the key `key` here; `None` if the timer has
    /// not migrated or is forgotten.
    pub(super) fn trace(&self, mut key: TimerKey) -> Option<(ShardId, TimerKey)> {
        let mut found = None;
        // Each key leads to a newer key, so the loop ends.
        while let Some(place) = self.migrated.find(key) {
            match place {
                Place::Here(other) => {
                    key = other;
                    found = Some((self.id, key));
                }
                Place::There(timer) => return Some((timer.shard(), timer.key())),
            }
        }
        found
    }

    /// `Err` with the reason if a timer is not pending here or cannot migrate.
    fn check_travels(&self, key: TimerKey) -> Result<(), MigrateError> {
        let payload = self.wheel.payload(key).ok_or(MigrateError::NotPending)?;
        payload.check_travels(&self.tables)
    }

    /// Takes a timer out that can migrate, as a request to another shard.
    fn pack(&mut self, key: TimerKey, now: u64) -> Request<T> {
        let ShardCancel::Cancelled { deadline, payload } = self.wheel.cancel(key) else {
            unreachable!("a timer is checked before it migrates")
        };
        let class = self.classes.end(key.index(), Ended::Migrated);
        let sent_us = (now / 1_000) as u32;
        match payload.pack(&mut self.tables) {
            Packed::Value(value) => Request::Schedule { deadline, sent_us, class, value },
            Packed::Call(call) => Request::Call { deadline, sent_us, class, call },
        }
    }

    /// Takes the timer out of a request that [`pack`](Self::pack) has made.
    fn unpack(&mut self, request: Request<T>) -> (Tick, ClassId, Stored<T>) {
        match request {
            Request::Schedule { deadline, class, value, .. } => {
                (deadline, class, Stored::Value(value))
            }
            Request::Call { deadline, class, call, .. } => {
                (deadline, class, Stored::of_call(call, &mut self.tables))
            }
            _ => unreachable!("`pack` makes no other request"),
        }
    }

    /// Whether a `migrate_all` can go on in the next turn.
    pub(super) fn migrates_at_once(&self) -> bool {
        self.migrating_all.as_ref().is_some_and(|all| all.retry_at.is_none())
    }

    /// When a `migrate_all` that has found no room tries again; `None` if there is no such one.
    pub(super) fn migrate_all_retries_at(&self) -> Option<Tick> {
        self.migrating_all.as_ref()?.retry_at
    }
}

/// The migration of one timer.
impl<T: 'static> Core<T> {
    /// Migrates a timer of this shard to another shard. Returns its new id.
    pub(crate) fn migrate_to(&self, key: TimerKey, to: ShardId) -> Result<TimerId, MigrateError> {
        if self.is_closed() {
            return Err(MigrateError::Closed(self.id));
        }
        let checked = self.state.borrow().check_travels(key);
        if let Err(error) = checked {
            let gone = self.state.borrow().trace(key);
            return match gone {
                Some((shard, key)) if shard == self.id => self.migrate_to(key, to),
                Some((shard, _)) => Err(MigrateError::Elsewhere(shard)),
                None => Err(error),
            };
        }
        if to == self.id {
            return Ok(self.home.timer(key));
        }
        let there = |granted| self.directory.service.home(to).timer(granted);
        let now = self.nanos_near();
        let is_first = !self.wakes_for_any_request();
        let mut spare = None;
        let check = || self.state.borrow().check_travels(key);
        let pack = |granted, back: Option<Request<T>>| {
            let state = &mut *self.state.borrow_mut();
            let request = back.unwrap_or_else(|| {
                let request = state.pack(key, now);
                // A slot stays reserved until the other shard has accepted the timer.
                spare = state.grant_key();
                state.counts.migrated_out += 1;
                request
            });
            // Before the send: the send may wake a waker that uses the timer's id.
            state.migrated.remember(key, there(granted));
            request
        };
        let mut sent = Err((MigrateError::Full(to), None));
        if !contain(self.id, || sent = self.outbox.send_timer(to, check, pack)) {
            // A waker has panicked. If the timer was sent before, it has migrated all the same.
            if let Some(Place::There(timer)) = self.state.borrow().migrated.find(key) {
                sent = Ok(timer.key());
            }
        }
        if let Some(spare) = spare {
            self.state.borrow_mut().wheel.revoke(spare);
        }
        match sent {
            Ok(granted) => {
                self.note_migrated(is_first);
                Ok(there(granted))
            }
            Err((error, back)) => {
                if let Some(request) = back {
                    self.put_back(key, request);
                    self.note_migrated(is_first);
                }
                Err(error)
            }
        }
    }

    /// The new id of a timer of this shard that has migrated; `None` if it has not.
    pub(crate) fn migrated_to(&self, key: TimerKey) -> Option<TimerId> {
        let (shard, key) = self.state.borrow().trace(key)?;
        Some(self.directory.service.home(shard).timer(key))
    }

    /// Cancels a timer that has no slot here by this key: it came back, or is on another shard.
    #[cold]
    pub(super) fn cancel_migrated(&self, key: TimerKey, now: u64) -> CancelOutcome<Taken<T>> {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.cancel(key, now),
            Some((shard, _)) => CancelOutcome::Elsewhere(shard),
            None => CancelOutcome::Stale,
        }
    }

    /// Resets a timer that has no slot here by this key: it came back, or is on another shard.
    #[cold]
    pub(super) fn reset_migrated(&self, key: TimerKey, deadline: Tick) -> ResetOutcome {
        let found = self.state.borrow().trace(key);
        match found {
            Some((shard, key)) if shard == self.id => self.reset(key, deadline),
            Some((shard, _)) => ResetOutcome::Elsewhere(shard),
            None => ResetOutcome::Stale,
        }
    }

    /// Schedules a timer here again that the other shard has not accepted. Its old key leads to the
    /// new id.
    #[cold]
    fn put_back(&self, key: TimerKey, request: Request<T>) {
        let (deadline, class, payload) = self.state.borrow_mut().unpack(request);
        let Ok(again) = self.schedule(class, deadline, payload) else {
            unreachable!("a slot was reserved for the timer")
        };
        self.state.borrow_mut().migrated.remember(key, self.timer_of(again));
    }

    /// Called after a timer has migrated. `is_first` if the shard remembered no id before.
    fn note_migrated(&self, is_first: bool) {
        if is_first && self.is_asleep() {
            // From now on every request must end the sleep, so the driver falls asleep anew.
            self.wake_driver();
        } else {
            self.publish_command();
        }
    }

    /// Whether every request must wake this shard, as it may concern a timer on another shard.
    pub(super) fn wakes_for_any_request(&self) -> bool {
        !self.state.borrow().migrated.keys.is_empty()
    }

    /// Replies how long it is until a timer is due, or forwards the request to the timer's shard.
    pub(super) fn reply_remaining(&self, key: TimerKey, reply: RemainingReply) {
        if let Some(deadline) = self.deadline_of(key) {
            let remaining = self.time().remaining(deadline, self.nanos_near());
            return drop(reply.send(Some(remaining)));
        }
        match self.migrated_to(key) {
            Some(timer) if timer.shard() == self.id => self.reply_remaining(timer.key(), reply),
            Some(timer) => {
                let bulk = Bulk::Remaining { key: timer.key(), reply };
                self.outbox.send(timer.shard(), Request::Bulk(Box::new(bulk)));
            }
            None => drop(reply.send(None)),
        }
    }

    /// Migrates a timer for another thread and replies, or forwards the request to the timer's
    /// shard.
    pub(super) fn migrate_and_reply(&self, key: TimerKey, to: ShardId, reply: MigrateReply) {
        let outcome = match self.migrate_to(key, to) {
            // The caller need not know the timer's shard.
            Err(MigrateError::Elsewhere(shard)) => match self.migrated_to(key) {
                Some(timer) => {
                    let bulk = Bulk::Migrate { key: timer.key(), to, reply };
                    return self.outbox.send(shard, Request::Bulk(Box::new(bulk)));
                }
                None => Err(MigrateError::NotPending),
            },
            outcome => outcome,
        };
        // If the reply cannot be sent, no caller waits for it.
        drop(reply.send(outcome));
    }
}

/// The migration of all timers.
impl<T: 'static> Core<T> {
    /// Begins a `migrate_all`, or replies with the error why it cannot begin.
    pub(super) fn begin_migrate_all(&self, into: Box<[ShardId]>, reply: MigrateAllReply) {
        let error = if into.contains(&self.id) {
            Some(MigrateError::IntoItself(self.id))
        } else if self.state.borrow().migrating_all.is_some() {
            Some(MigrateError::AlreadyMigrating(self.id))
        } else {
            into.is_empty().then_some(MigrateError::NowhereToGo)
        };
        if let Some(error) = error {
            drop(reply.send(Err(error)));
        } else if !self.is_closed() {
            self.state.borrow_mut().migrating_all = Some(MigrateAll {
                into,
                next: 0,
                slot: 0,
                retry_at: None,
                stuck_since: None,
                report: MigrateReport::new(self.id),
                reply,
            });
        }
    }

    /// Migrates up to `max` timers of a `migrate_all`. True if more of it can be done at once.
    #[inline]
    pub(super) fn migrate_some(&self, now: u64, max: usize) -> bool {
        {
            let state = self.state.borrow();
            let Some(all) = &state.migrating_all else { return false };
            // A refusal wakes the other shard. If a wake-up made this shard try before its time,
            // two shards that are full would wake each other without a pause.
            if all.retry_at.is_some_and(|at| at > self.time().floor(now)) {
                return false;
            }
        }
        // The state must not stay borrowed, since a migration wakes other shards.
        let all = self.state.borrow_mut().migrating_all.take();
        all.is_some_and(|all| self.migrate_slice(all, now, max))
    }

    #[cold]
    fn migrate_slice(&self, mut all: MigrateAll, now: u64, max: usize) -> bool {
        let capacity = self.state.borrow().wheel.capacity() as u32;
        let end = all.slot.saturating_add(SLOTS_MAX).min(capacity);
        let mut left = max;
        all.retry_at = None;
        let more = loop {
            if left == 0 {
                break true;
            }
            let found = self.state.borrow().wheel.pending_in(all.slot..end);
            let Some(key) = found else {
                all.slot = end;
                if end < capacity {
                    break true;
                }
                // The others are in the wheel.
                all.report.sleeps += self.young() as u64;
                contain(self.id, || drop(all.reply.send(Ok(all.report))));
                return false;
            };
            left -= 1;
            if !self.migrate_next(&mut all, key, now) {
                all.retry_at = Some(self.time().floor(now).saturating_add(1));
                break false;
            }
            all.slot = key.index() + 1;
        };
        self.state.borrow_mut().migrating_all = Some(all);
        more
    }

    /// Migrates one timer of a `migrate_all`, or counts why it stays. False if there was no room
    /// and the shard is to try again after a tick.
    fn migrate_next(&self, all: &mut MigrateAll, key: TimerKey, now: u64) -> bool {
        let checked = {
            let state = self.state.borrow();
            // A timer that is due fires here, in this turn or in one of the next turns.
            if state.wheel.deadline(key).is_none_or(|due| due <= self.time().floor(now)) {
                return true;
            }
            state.check_travels(key)
        };
        match checked {
            Ok(()) => {}
            Err(error) => {
                match error {
                    MigrateError::Sleep => all.report.sleeps += 1,
                    MigrateError::Connection => all.report.connections += 1,
                    _ => all.report.callbacks += 1,
                }
                return true;
            }
        }
        let mut is_full = false;
        for _ in 0..all.into.len() {
            let to = all.into[all.next];
            all.next = (all.next + 1) % all.into.len();
            match self.migrate_to(key, to) {
                Ok(_) => {
                    all.report.migrated += 1;
                    all.stuck_since = None;
                    return true;
                }
                Err(MigrateError::Full(_)) => is_full = true,
                Err(_) => {}
            }
        }
        let since = *all.stuck_since.get_or_insert(now);
        if is_full && now.saturating_sub(since) < PATIENCE_NS {
            return false;
        }
        all.report.refused += 1;
        true
    }
}
