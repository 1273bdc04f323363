//! The handle of a part to its shard, and how a part is made.

use std::any::TypeId;
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use super::base::Base;
use super::local::LocalShard;
use super::part::{Part, PartTimer};
use super::parts::Entry;
use super::timers::Timers;
use crate::clock::when::{Deadline, When};
use crate::clock::{Timeline, saturating_nanos};
use crate::directory::orders::Orders;
use crate::stats::class::{ClassStats, FirstHeld};
use crate::values::class::ClassId;
use crate::values::ids::ShardId;
use crate::values::outcome::ResetOutcome;
use crate::values::refused::RefusedKind;
use crate::values::scale::Scale;

/// The handle of a [`Part`] to its shard. When it is dropped, the part has left the shard; timers
/// of it that are still pending expire without a call.
///
/// Cost: a command costs what it costs [`Timers`], and a dynamic call. A timer of a part is a timer
/// of the shard, and counts in its statistics, for the class of the view that made the part.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::part::{Part, PartHandle};
/// use std::time::Duration;
///
/// struct Session {
///     shard: PartHandle,
/// }
///
/// impl Part for Session {}
///
/// let service = TimerService::builder().shards(1).start_attached()?;
/// let shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
/// let session = shard.timers().add_part(|shard| Session { shard });
/// let timer = session.shard.schedule(Duration::from_secs(30), 0)?;
/// assert!(session.shard.reset(timer, Duration::from_secs(60)));
/// assert!(session.shard.cancel(timer));
/// assert!(!session.shard.cancel(timer));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PartHandle {
    shard: Rc<dyn LocalShard>,
    /// The timeline of the service, copied so that a conversion makes no dynamic call.
    time: Timeline,
    entry: Entry,
    class: ClassId,
    /// Where the shard looks for the part's oldest value; not set before the part has said it.
    oldest: OnceCell<Option<Arc<FirstHeld>>>,
}

/// The part's timers.
impl PartHandle {
    /// Schedules a timer with an index, with which [`Part::expired`] is called when the timer is
    /// due. If the driver of the shard sleeps past the deadline, this wakes it.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room, `Closed` if it is shut down.
    #[inline]
    pub fn schedule<W: When>(&self, when: W, index: u32) -> Result<PartTimer, RefusedKind> {
        self.schedule_as(self.class, self.tick_of(when), index)
    }

    /// Schedules a timer that counts for no class, as [`schedule`](Self::schedule) does for the
    /// class of the part: for a part that [counts](Self::count) its values, with a timer for the
    /// first of them.
    ///
    /// # Errors
    ///
    /// Those of [`schedule`](Self::schedule).
    #[inline]
    pub fn schedule_uncounted<W: When>(
        &self,
        when: W,
        index: u32,
    ) -> Result<PartTimer, RefusedKind> {
        self.schedule_as(ClassId::NONE, self.tick_of(when), index)
    }

    /// Schedules a timer of another class.
    #[inline]
    pub(crate) fn schedule_as(
        &self,
        class: ClassId,
        deadline: Tick,
        index: u32,
    ) -> Result<PartTimer, RefusedKind> {
        self.shard.schedule_part(class, deadline, self.entry.id(), index).map(PartTimer)
    }

    /// Changes the deadline of a timer. False if it has expired or was cancelled. Later is one
    /// store.
    #[inline]
    pub fn reset<W: When>(&self, timer: PartTimer, when: W) -> bool {
        self.shard.reset(timer.0, self.tick_of(when)) == ResetOutcome::Reset
    }

    /// Cancels a timer. False if it has expired or was cancelled before. Reads no clock.
    #[inline]
    pub fn cancel(&self, timer: PartTimer) -> bool {
        self.shard.cancel_part(timer.0)
    }

    /// The deadline of everything that is due at a time, computed once.
    pub fn deadline<W: When>(&self, when: W) -> Deadline {
        Deadline(self.tick_of(when))
    }

    /// The deadline of a timer. `None` if it has expired or was cancelled.
    #[inline]
    pub fn deadline_of(&self, timer: PartTimer) -> Option<Deadline> {
        self.shard.deadline_of(timer.0).map(Deadline)
    }

    /// When a deadline comes: the beginning of its tick.
    #[inline]
    pub fn instant_of(&self, deadline: Deadline) -> Instant {
        self.time.instant(deadline.0)
    }

    /// The class of a timer that is pending.
    pub(crate) fn class_of(&self, timer: PartTimer) -> ClassId {
        let mut class = ClassId::NONE;
        self.shard.measure(&mut |measures| {
            class = measures.classes.class_of(timer.0.index());
            false
        });
        class
    }
}

/// The part's shard.
impl PartHandle {
    /// The present, by the near clock, which is never behind the service's and at most some
    /// microseconds ahead.
    pub fn now(&self) -> Instant {
        self.time().instant_of(self.nanos_near())
    }

    /// How long the service's clock has run, by the near clock: the present in a form that needs
    /// eight bytes, as nanoseconds.
    #[inline]
    pub fn since_start(&self) -> Duration {
        Duration::from_nanos(self.nanos_near())
    }

    /// The instant of a reading of [`since_start`](Self::since_start).
    pub fn instant_after(&self, since_start: Duration) -> Instant {
        self.time.instant_of(saturating_nanos(since_start))
    }

    /// The tick that has begun, by the service's clock: the present of a wheel of the part's own.
    /// By the near clock a tick may begin some microseconds early.
    #[inline]
    pub fn tick(&self) -> Tick {
        self.time.floor(self.nanos())
    }

    /// Which shard this is.
    pub fn shard_id(&self) -> ShardId {
        self.shard.id()
    }

    /// Whether the shard is shut down.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shard.is_closed()
    }

    /// Wakes the driver of the shard if it sleeps, so that it takes a turn: to be called when
    /// [`Part::wants`] has changed outside of a turn.
    pub fn wake(&self) {
        self.wake_past(Deadline(Tick::ZERO));
    }

    /// Wakes the driver if it sleeps past a time, so that it falls asleep for less.
    #[inline]
    pub fn wake_past<W: When>(&self, when: W) {
        if !self.is_closed() {
            self.shard.parts().ask_again();
            self.shard.note_deadline(self.tick_of(when));
        }
    }

    /// Wakes the driver if it sleeps and its time has come, for a part whose work keeps the thread
    /// busy, so that the runtime has not looked at its alarms. Returns whether the driver is awake:
    /// then the work lets it run. It reads the near clock.
    pub fn wake_if_due(&self) -> bool {
        self.shard.wake_driver_if_due()
    }

    /// Begins a command of several steps: until what this returns is dropped, no command wakes the
    /// driver, whose waker may run code of the user. Then the driver is woken at most once. For a
    /// part that schedules a timer while it borrows its own state.
    #[must_use = "the driver is woken when it is dropped"]
    #[inline]
    pub fn compound(&self) -> impl Sized + use<'_> {
        self.shard.compound()
    }

    /// Runs code of the part's users, and catches, logs and counts a panic. False if it panicked.
    pub fn contain(&self, run: impl FnOnce()) -> bool {
        self.shard.contain(run)
    }

    /// Drops values of the part's users one by one, and catches, logs and counts the panic of each.
    pub fn drop_each<V>(&self, values: impl IntoIterator<Item = V>) {
        self.shard.drop_each(values);
    }

    /// The shard's [scale](Timers::set_scale).
    pub fn scale(&self) -> Scale {
        self.shard.scale()
    }

    /// Has the part's [gauges](Part::publish) published now, if the shard sleeps. In a turn they
    /// are published anyway.
    #[inline]
    pub fn publish(&self) {
        let base: &Base = &self.shard;
        if base.is_asleep() || base.is_closed() {
            self.publish_asleep();
        }
    }

    /// Publishes the gauges while the driver sleeps or is gone.
    #[cold]
    fn publish_asleep(&self) {
        let Some(part) = self.shard.parts().at(self.entry) else { return };
        let published = &self.shard.front.published;
        self.shard.measure(&mut |measures| {
            part.publish(&mut measures.gauges_of(self.entry.id()));
            published.store_parts(&measures.counts);
            measures.publish_gauges(published);
            false
        });
    }

    pub(crate) fn shard(&self) -> &Rc<dyn LocalShard> {
        &self.shard
    }

    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    #[inline]
    pub(crate) fn time(&self) -> &Timeline {
        &self.time
    }

    #[inline]
    fn tick_of(&self, when: impl When) -> Tick {
        self.time.tick_of(when, || self.nanos_near())
    }

    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.shard.nanos()
    }

    #[inline]
    pub(crate) fn nanos_near(&self) -> u64 {
        self.shard.nanos_near()
    }

    /// What all connections of the shard are told.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        self.shard.orders()
    }

    /// The class of the timer that is being delivered.
    pub(crate) fn class_delivered(&self) -> ClassId {
        self.shard.class_delivered()
    }

    /// Begins a poll for a result, `is_first` if the task has not polled for that result before.
    /// Pending if the task must return to its executor first; its waker has been woken then.
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        self.shard.begin_poll(is_first, cx)
    }

    /// Notes whether the first poll for a result was ready.
    pub(crate) fn note_ready(&self, is_first: bool, is_ready: bool) {
        self.shard.note_ready(is_first, is_ready);
    }

    /// Counts a poll for a result.
    pub(crate) fn count_poll(&self) {
        self.shard.count_poll();
    }
}

/// What the part's values count for its class, which is that of the view that made the part.
/// Without a class these do nothing.
impl PartHandle {
    /// Whether the part has a class.
    #[inline]
    pub fn has_class(&self) -> bool {
        self.class.is_some()
    }

    /// Counts something for the class: of values that have no timers of their own. Then the class
    /// keeps its law only if each value counts as pending from when it counts as scheduled until it
    /// counts as ended.
    ///
    /// The state of the shard is borrowed meanwhile: a call of the shard's commands panics.
    #[inline]
    pub fn count(&self, mut count: impl FnMut(&mut ClassStats)) {
        if self.has_class() {
            self.shard.measure(&mut |measures| {
                measures.classes.count(self.class, &mut count);
                true
            });
        }
    }

    /// Begins the delivery of a value that has no timer of its own and is late by `late`: the value
    /// counts as fired and as pending no more, and its lateness is measured, without a class by the
    /// shard alone.
    ///
    /// # Panics
    ///
    /// In a build with overflow checks, if no value counts as pending for the class.
    pub fn begin_delivery(&self, late: Duration) {
        self.shard.begin_delivery(self.class, saturating_nanos(late));
    }

    /// Says since when the part has its oldest value, for the age of the oldest of the class.
    /// `None` if it has no value.
    #[inline]
    pub fn set_oldest(&self, since: Option<Instant>) {
        if self.has_class() {
            let held = self.oldest.get_or_init(|| self.shard.hold(self.class));
            if let Some(held) = held {
                held.set(since.map(|since| self.time().nanos_at(since)));
            }
        }
    }
}

impl Drop for PartHandle {
    fn drop(&mut self) {
        self.shard.parts().leave(self.entry);
    }
}

debug_fields!([] PartHandle, |it| shard: it.shard_id());

/// Parts of this shard.
impl<T: Send + 'static> Timers<T> {
    /// Makes a part of this shard. The shard does not keep it alive: the part leaves when the
    /// last [`Rc`] of it is dropped, so that a container ends with its last handle.
    ///
    /// `make` puts the handle into the part: a part whose handle is dropped has left.
    ///
    /// Its timers count for the class of this view. O(1); a shard has at most 16,777,216 parts at
    /// a time.
    ///
    /// # Panics
    ///
    /// If the shard has that many parts.
    pub fn add_part<P: Part>(&self, make: impl FnOnce(PartHandle) -> P) -> Rc<P> {
        add_part(self.local(), self.class(), make)
    }

    /// The part of type `P` that this shard keeps; `make` makes it if there is none. It lives until
    /// the shard ends. Its timers are of no class.
    ///
    /// O(types of parts that the shard keeps).
    pub fn shared_part<P: Part>(&self, make: impl FnOnce(PartHandle) -> P) -> Rc<P> {
        let shard = self.local();
        if let Some(known) = shard.parts().shared::<P>() {
            return known;
        }
        let part = add_part(Rc::clone(&shard), ClassId::NONE, make);
        shard.parts().keep(Rc::clone(&part) as _);
        part
    }
}

fn add_part<P: Part>(
    shard: Rc<dyn LocalShard>,
    class: ClassId,
    make: impl FnOnce(PartHandle) -> P,
) -> Rc<P> {
    let entry = shard.parts().enter(TypeId::of::<P>());
    let part = Rc::new(make(PartHandle {
        shard: Rc::clone(&shard),
        time: shard.time().clone(),
        entry,
        class,
        oldest: OnceCell::new(),
    }));
    shard.parts().place(entry, &part, part.takes_turns());
    part
}
