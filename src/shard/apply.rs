//! Executes the requests of other threads. Work that must not run while the state is borrowed, such
//! as code of the user, is left as effects.

use std::mem::needs_drop;

use corewheel_shard::{ArmOutcome, CancelOutcome as ShardCancel, Tick, TimerKey};

use super::core::{Effect, State};
use super::request::{CancelReply, Request};
use super::stored::Stored;
use super::timers::{Call, Taken};
use crate::link::lane::Arrival;
use crate::values::class::ClassId;
use crate::values::outcome::CancelOutcome;

impl<T: 'static> State<T> {
    /// Takes a request and executes it.
    #[inline(never)]
    pub(super) fn apply_some(
        &mut self,
        place: &mut Option<Request<T>>,
        arrival: Arrival<TimerKey>,
        now: u64,
    ) {
        let Arrival { key, is_cancelled } = arrival;
        match place.take() {
            Some(request) if is_cancelled => self.pass(request, key, now),
            Some(request) => self.apply(request, key, now),
            None => {}
        }
    }

    /// Executes a request that was not cancelled in its lane.
    pub(super) fn apply(&mut self, request: Request<T>, key: Option<TimerKey>, now: u64) {
        match request {
            Request::Schedule { deadline, sent_us, class, value } => {
                self.arm(key, class, (deadline, sent_us), Stored::Value(value), now);
            }
            Request::Call { deadline, sent_us, class, call } => {
                let payload = Stored::Call(self.calls.insert(Call::Send(call)) as u32);
                self.arm(key, class, (deadline, sent_us), payload, now);
            }
            Request::Cancel { key, reply } => self.apply_cancel(key, reply, now),
            Request::Reset { key, deadline, reply } => {
                let outcome = self.wheel.reset(key, deadline).into();
                self.left.effects.extend(reply.map(|reply| Effect::Reset(reply, outcome)));
            }
            // A reply wakes its caller, and a message runs code of a part, so they wait until
            // nothing is borrowed.
            Request::Remaining { key, reply } => {
                self.left.effects.push(Effect::Remaining(key, reply));
            }
            Request::Message(message) => self.left.effects.push(Effect::Message(message)),
        }
    }

    /// Drops a timer that was cancelled in its lane.
    fn pass(&mut self, request: Request<T>, key: Option<TimerKey>, now: u64) {
        self.inbox.has_freed = true;
        let key = key.expect("a request for a timer comes with the key that it uses up");
        if self.inbox.overtaken.contains_key(&key) {
            // A caller waits for the outcome of a cancel that came before, and gets the payload.
            return self.apply(request, Some(key), now);
        }
        self.pass_key(key, request.class());
        let taken = match request {
            Request::Schedule { value, .. } => Taken::Value(value),
            Request::Call { call, .. } => Taken::Callback(Call::Send(call)),
            _ => unreachable!("only a timer is cancelled in its lane"),
        };
        self.drop_later(Some(taken));
    }

    /// Has a payload dropped when nothing is borrowed, unless it is a value without a destructor.
    #[inline]
    fn drop_later(&mut self, taken: Option<Taken<T>>) {
        let taken = taken.filter(|taken| needs_drop::<T>() || !matches!(taken, Taken::Value(_)));
        self.left.effects.extend(taken.map(Effect::Drop));
    }

    #[inline]
    fn pass_key(&mut self, key: TimerKey, class: ClassId) {
        let is_granted = self.wheel.pass(key);
        debug_assert!(is_granted, "the queue of a lane holds granted keys");
        if class.is_some() {
            self.measured.classes.pass_cancelled(class);
        }
    }

    #[inline]
    fn apply_cancel(&mut self, key: TimerKey, reply: Option<CancelReply<T>>, now: u64) {
        let outcome = self.cancel(key);
        let overtook = matches!(outcome, ShardCancel::Overtook);
        self.inbox.has_freed |= overtook || reply.is_none();
        let outcome = self.finish_cancel(outcome, now);
        match reply {
            // The reply can return the payload when the timer comes.
            Some(reply) if overtook => {
                self.inbox.overtaken.insert(key, reply);
            }
            Some(reply) => self.left.effects.push(Effect::Cancelled(reply, outcome)),
            None => self.drop_later(outcome.payload()),
        }
    }

    /// Schedules a timer of a thread in the slot of a granted key.
    fn arm(
        &mut self,
        key: Option<TimerKey>,
        class: ClassId,
        (deadline, sent_us): (Tick, u32),
        payload: Stored<T>,
        now: u64,
    ) {
        let key = key.expect("a request for a timer comes with the key that it uses up");
        let delay = delay_of(sent_us, now);
        self.measured.ring_delay.record(delay);
        if deadline < self.measured.times.late_until {
            let deadline = self.directory.time.start_of(deadline);
            self.measured.times.note_came(key, deadline, now.saturating_sub(delay));
        }
        match self.wheel.arm(key, deadline, payload) {
            ArmOutcome::Armed if class.is_some() => {
                self.measured.classes.begin(class, key.index(), now);
            }
            ArmOutcome::Armed => {}
            ArmOutcome::Overtaken(payload) => {
                self.measured.classes.pass_cancelled(class);
                let payload = self.take(payload);
                self.left.effects.push(match self.inbox.overtaken.remove(&key) {
                    Some(reply) => {
                        let remaining = self.directory.time.remaining(deadline, now);
                        Effect::Cancelled(reply, CancelOutcome::Cancelled { remaining, payload })
                    }
                    None => Effect::Drop(payload),
                });
            }
            ArmOutcome::NotGranted(_) => unreachable!("the queue of a lane holds granted keys"),
        }
    }

    /// Takes a granted key back that no timer will use.
    pub(super) fn revoke(&mut self, key: TimerKey) {
        self.wheel.revoke(key);
        if let Some(reply) = self.inbox.overtaken.remove(&key) {
            self.left.effects.push(Effect::Cancelled(reply, CancelOutcome::Stale));
        }
    }
}

/// How long a request was on the way, in nanoseconds.
#[inline]
fn delay_of(sent_us: u32, now: u64) -> u64 {
    let delay_us = ((now / 1_000) as u32).wrapping_sub(sent_us);
    // A sender's clock reading can be a moment later than this turn's.
    let delay_us = if delay_us > u32::MAX / 2 { 0 } else { delay_us };
    u64::from(delay_us) * 1_000
}
