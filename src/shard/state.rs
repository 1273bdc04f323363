//! The state of a shard: a plain struct that one thread owns. Its methods execute requests and
//! commands. Work that must not run while the state is borrowed, such as code of the user, is left
//! as effects.

use std::mem::needs_drop;
use std::sync::Arc;

use corewheel_shard::{
    ArmOutcome, CancelOutcome as ShardCancel, Shard, ShardConfig, Tick, TimerKey,
};

use super::Directory;
use super::callback::Call;
use super::classes::ClassTable;
use super::effect::{Effect, Left};
use super::inbox::{Inbox, Mail};
use super::measures::Measures;
use super::nurseries::Nurseries;
use super::request::{Bulk, BulkCancel, BulkSchedule, CancelReply, Control, Request, freed_by};
use super::stored;
use super::stored::{Calls, Remote, Stored, Taken};
use super::turn::Paused;
use crate::directory::Post;
use crate::link::lane::{Arrival, LaneReceiver};
use crate::link::mailbox;
use crate::values::class::ClassId;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use crate::values::outcome::CancelOutcome;

/// The state of a shard, divided by what changes together.
pub(crate) struct State<T: 'static> {
    pub(super) id: ShardId,
    pub(super) directory: Arc<Directory<T>>,
    pub(crate) wheel: Shard<Stored<T>>,
    pub(crate) calls: Calls<T>,
    pub(super) nurseries: Nurseries,
    pub(super) inbox: Inbox<T>,
    pub(super) mail: Mail<T>,
    pub(super) left: Left<T>,
    pub(super) paused: Paused,
    pub(super) measured: Measures,
}

impl<T: 'static> State<T> {
    pub(super) fn new(directory: Arc<Directory<T>>, id: ShardId) -> Result<Self, StartError> {
        let config: ShardConfig = directory.settings.shard;
        let wheel = Shard::new(config).map_err(|error| StartError::Shard {
            shard: id,
            source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error),
        })?;
        let post = directory.post(id).expect("a state is made for a shard of the service");
        let classes = ClassTable::new(directory.settings.classes.len(), config.capacity);
        Ok(Self {
            id,
            wheel,
            calls: Calls::new(),
            nurseries: Nurseries::new(Arc::clone(post.front()), config.capacity),
            inbox: Inbox::new(freed_by(&directory.time, directory.time.nanos())),
            mail: Mail::default(),
            left: Left::default(),
            paused: Paused::default(),
            measured: Measures::new(config.capacity, classes, Arc::clone(&post.published.live)),
            directory,
        })
    }

    pub(super) fn post(&self) -> &Post<Request<T>, Control<T>> {
        self.directory.post(self.id).expect("a state is made for a shard of the service")
    }

    /// Schedules a payload. `Err` with the payload if the shard is full.
    #[inline(always)]
    pub(super) fn schedule(
        &mut self,
        deadline: Tick,
        payload: Stored<T>,
    ) -> Result<TimerKey, Stored<T>> {
        if !self.has_own_slot() {
            return self.schedule_in_reserve(deadline, payload);
        }
        self.wheel.schedule(deadline, payload).map_err(|full| full.0)
    }

    /// Schedules in a slot that is lent to threads or reserved for threads, the last reserve of a
    /// full shard.
    #[cold]
    fn schedule_in_reserve(
        &mut self,
        deadline: Tick,
        payload: Stored<T>,
    ) -> Result<TimerKey, Stored<T>> {
        let mut payload = payload;
        if self.take_credit_back() || self.free_slot() {
            match self.wheel.schedule(deadline, payload) {
                Ok(key) => return Ok(key),
                Err(full) => payload = full.0,
            }
        }
        self.measured.counts.refused += 1;
        Err(payload)
    }

    /// Cancels a timer in the wheel, and counts it for its class. `now` gives the present in
    /// nanoseconds.
    #[inline(always)]
    pub(super) fn cancel(
        &mut self,
        key: TimerKey,
        now: impl FnOnce() -> u64,
    ) -> ShardCancel<Stored<T>> {
        let outcome = self.wheel.cancel(key);
        if let ShardCancel::Cancelled { deadline, .. } = outcome {
            let class = self.measured.classes.class_of(key.index());
            if class.is_some() {
                let deadline = self.directory.time.start_of(deadline);
                self.measured.classes.cancel(class, key.index(), deadline, now());
            }
        }
        outcome
    }

    /// Takes the payload of a cancelled timer out of its table. Returns the outcome for the
    /// caller.
    #[inline(never)]
    pub(super) fn finish_cancel(
        &mut self,
        outcome: ShardCancel<Stored<T>>,
        now: u64,
    ) -> CancelOutcome<Taken<T>> {
        match outcome {
            ShardCancel::Cancelled { deadline, payload } => {
                let remaining = self.directory.time.remaining(deadline, now);
                CancelOutcome::Cancelled { remaining, payload: self.take(payload) }
            }
            ShardCancel::Overtook => CancelOutcome::Overtook,
            ShardCancel::AlreadyFired => CancelOutcome::AlreadyFired,
            ShardCancel::Stale => CancelOutcome::Stale,
        }
    }

    /// Takes the payload of a timer that will not fire out of its table.
    #[inline]
    pub(super) fn take(&mut self, payload: Stored<T>) -> Taken<T> {
        payload.take(&mut self.calls)
    }

    /// Takes the mail, and fills the key pool.
    pub(super) fn take_mail(&mut self, tick: Tick) {
        let window = self.directory.settings.grant_window;
        let Self { wheel, nurseries, directory, id, .. } = self;
        let post = directory.post(*id).expect("a state is made for a shard of the service");
        let grant = || nurseries.grant_key(wheel);
        let mailbox::Taken { lanes, control, .. } = post.mailbox.take(window, grant);
        self.accept(lanes, control, tick);
    }

    pub(super) fn accept(
        &mut self,
        lanes: Vec<LaneReceiver<Request<T>>>,
        control: Vec<Control<T>>,
        tick: Tick,
    ) {
        for mut lane in lanes {
            lane.used_at = tick;
            self.inbox.lanes.push(lane);
        }
        for message in control {
            match message {
                Control::Job(job) => self.mail.jobs.push(job),
                Control::Call(call) => self.mail.calls.push(call),
                Control::Shutdown(order) => self.mail.shutdown = Some(order),
            }
        }
    }

    /// Takes a request and executes it, of a bulk request at most `max` commands. Leaves the rest
    /// of the request, if there is any.
    #[inline(never)]
    pub(super) fn apply_some(
        &mut self,
        place: &mut Option<Request<T>>,
        arrival: Arrival<TimerKey>,
        max: usize,
        now: u64,
    ) {
        let Arrival { key, is_cancelled } = arrival;
        match place.take() {
            Some(request) if is_cancelled => self.pass(request, key, now),
            Some(Request::Bulk(bulk)) => *place = self.apply_bulk(bulk, max, now),
            Some(request) => self.apply(request, key, now),
            None => {}
        }
    }

    /// Executes a request with one command.
    pub(super) fn apply(&mut self, request: Request<T>, key: Option<TimerKey>, now: u64) {
        match request {
            Request::Schedule { deadline, sent_us, class, value } => {
                self.arm(key, class, (deadline, sent_us), Stored::Value(value), now);
            }
            Request::Call { deadline, sent_us, class, call } => {
                let payload = Stored::of_call(call, &mut self.calls);
                self.arm(key, class, (deadline, sent_us), payload, now);
            }
            Request::Cancel { key, reply } => self.apply_cancel(key, reply, now),
            Request::Reset { key, deadline, reply } => {
                let outcome = self.wheel.reset(key, deadline).into();
                self.left.effects.extend(reply.map(|reply| Effect::Reset(reply, outcome)));
            }
            Request::Bulk(_) => unreachable!("a bulk request is applied command by command"),
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
        let times = request.times().expect("only a timer is cancelled in its lane");
        self.pass_key(key, request.class(), times, now);
        let taken = match request {
            Request::Schedule { value, .. } => Taken::Value(value),
            Request::Call { call, .. } => Taken::Callback(Call::Send(call)),
            Request::Cancel { .. } | Request::Reset { .. } | Request::Bulk(_) => {
                unreachable!("only a timer is cancelled in its lane")
            }
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
    fn pass_key(&mut self, key: TimerKey, class: ClassId, times: (Tick, u32), now: u64) {
        let is_granted = self.wheel.pass(key);
        debug_assert!(is_granted, "the queue of a lane holds granted keys");
        if class.is_some() {
            let (deadline, sent_us) = times;
            let delay = delay_of(sent_us, now);
            let deadline = self.directory.time.start_of(deadline);
            self.measured.classes.pass_cancelled(class, now.saturating_sub(delay), deadline, now);
        }
    }

    #[inline]
    fn apply_cancel(&mut self, key: TimerKey, reply: Option<CancelReply<T>>, now: u64) {
        let outcome = self.cancel(key, || now);
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
        if self.measured.times.is_beyond_bound(deadline) {
            let deadline = self.directory.time.start_of(deadline);
            self.measured.times.note_came(key, deadline, now.saturating_sub(delay));
        }
        match self.wheel.arm(key, deadline, payload) {
            ArmOutcome::Armed if class.is_some() => {
                self.measured.classes.begin(class, key.index(), now);
            }
            ArmOutcome::Armed => {}
            ArmOutcome::Overtaken(payload) => {
                let due = self.directory.time.start_of(deadline);
                self.measured.classes.pass_cancelled(class, now.saturating_sub(delay), due, now);
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

    #[inline(never)]
    fn apply_bulk(&mut self, mut bulk: Box<Bulk<T>>, max: usize, now: u64) -> Option<Request<T>> {
        let is_done = match &mut *bulk {
            Bulk::Cancel(many) => self.cancel_some(many, max, now),
            Bulk::Schedule(many) => self.arm_some(many, max, now),
            Bulk::Remaining { .. } | Bulk::Message(_) => {
                // A reply wakes its caller, and a message runs code of a part, so they wait until
                // nothing is borrowed.
                self.left.effects.push(match *bulk {
                    Bulk::Remaining { key, reply } => Effect::Remaining(key, reply),
                    Bulk::Message(message) => Effect::Message(message),
                    Bulk::Cancel(_) | Bulk::Schedule(_) => unreachable!("matched above"),
                });
                return None;
            }
        };
        (!is_done).then_some(Request::Bulk(bulk))
    }

    /// Cancels up to `max` timers of a bulk request. True if none is left.
    fn cancel_some(&mut self, many: &mut BulkCancel<T>, max: usize, now: u64) -> bool {
        self.inbox.has_freed |= many.replies.is_none();
        for key in many.keys.by_ref().take(max) {
            let outcome = self.cancel(key, || now);
            self.inbox.has_freed |= matches!(outcome, ShardCancel::Overtook);
            let outcome = self.finish_cancel(outcome, now);
            let Some(replies) = &mut many.replies else {
                self.drop_later(outcome.payload());
                continue;
            };
            let (outcome, left) = into_remote::<T>(outcome);
            replies.push(outcome);
            // The part of the payload that must not leave this thread is dropped here.
            self.left.effects.extend(left.map(Effect::Drop));
        }
        if many.keys.len() > 0 {
            return false;
        }
        self.left.effects.extend(many.replies.take().map(Effect::Reply));
        true
    }

    /// Schedules up to `max` timers of a bulk request. True if none is left.
    fn arm_some(&mut self, many: &mut BulkSchedule<T>, max: usize, now: u64) -> bool {
        for (key, deadline, value) in many.timers.by_ref().take(max) {
            let times = (deadline, many.sent_us);
            self.arm(Some(key), many.class, times, Stored::Value(value), now);
        }
        many.timers.len() == 0
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

/// Makes an outcome ready for another thread. Also returns the part of the payload that must be
/// dropped on this thread.
pub(super) fn into_remote<T: 'static>(
    outcome: CancelOutcome<Taken<T>>,
) -> (CancelOutcome<Remote<T>>, Option<Taken<T>>) {
    let mut left = None;
    let outcome = outcome.map(|taken| {
        let (remote, rest) = stored::into_remote(taken);
        left = rest;
        remote
    });
    (outcome, left)
}
