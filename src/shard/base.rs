//! What a shard has whatever its timers carry: who it is, its clock, its parts.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::{Tick, TimerKey};

use super::parts::Parts;
use super::poll_budget::PollBudget;
use crate::clock::when::When;
use crate::clock::{NearClock, Timeline};
use crate::directory::Directory;
use crate::directory::orders::Orders;
use crate::directory::post::Front;
use crate::link::lane::Request;
use crate::stats::class::FirstHeld;
use crate::values::class::ClassId;
use crate::values::contain::contain;
use crate::values::ids::{Home, ShardId};
use crate::values::scale::Scale;

/// The plain half of a [`Core`](super::Core), which dereferences to it.
pub(crate) struct Base {
    pub(super) id: ShardId,
    pub(super) home: Home,
    capacity: u32,
    time: Timeline,
    clock: NearClock,
    pub(super) parts: Parts,
    pub(super) closed: Cell<bool>,
    /// The shard's scale.
    pub(super) scale: Cell<Scale>,
    pub(super) front: Arc<Front>,
    pub(super) budget: PollBudget,
    /// The tick until which the driver sleeps; [`Tick::ZERO`] while the driver is awake.
    pub(super) asleep_until: Cell<Tick>,
    /// How many compound commands are running. The driver is woken after the outermost of them.
    compound: Cell<u32>,
    /// Whether the outermost compound command must wake the driver when it ends.
    wake_due: Cell<bool>,
    /// When a command woke the driver; `u64::MAX` if none did since the last turn.
    pub(super) woken_at: Cell<u64>,
    /// How often code of the user has panicked.
    pub(super) panicked: Cell<u64>,
}

/// A guard for a command of several steps. The driver is woken at most once, when the guard is
/// dropped.
pub(crate) struct Compound<'a>(&'a Base);

impl Drop for Compound<'_> {
    fn drop(&mut self) {
        let base = self.0;
        base.compound.set(base.compound.get() - 1);
        if base.compound.get() == 0 && base.wake_due.replace(false) {
            base.front.doorbell.wake();
        }
    }
}

impl Base {
    pub(super) fn new<R, C>(directory: &Directory<R, C>, id: ShardId) -> Self
    where
        R: Request<Key = TimerKey>,
    {
        let time = directory.time.clone();
        let post = directory.post(id).expect("a core is made for a shard of the service");
        Self {
            id,
            home: directory.service.home(id),
            capacity: directory.settings.shard.capacity,
            clock: NearClock::new(time.clock().clone()),
            time,
            parts: Parts::new(id),
            closed: Cell::new(false),
            scale: Cell::default(),
            front: Arc::clone(post.front()),
            budget: PollBudget::new(),
            asleep_until: Cell::new(Tick::ZERO),
            compound: Cell::new(0),
            wake_due: Cell::new(false),
            woken_at: Cell::new(u64::MAX),
            panicked: Cell::new(0),
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    /// The service and the shard, as the ids of this shard's timers carry them.
    #[inline]
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// The most timers that may be pending.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The conversions between ticks, nanoseconds and instants of the service.
    #[inline]
    pub(crate) fn time(&self) -> &Timeline {
        &self.time
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What other threads have ordered.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        self.front.orders()
    }

    /// A container is made whose values are of a class. `None` if that is none.
    pub(crate) fn hold(&self, class: ClassId) -> Option<Arc<FirstHeld>> {
        Some(self.front.published.hold(class.index()?))
    }

    /// The class of the timer that is being delivered; [`ClassId::NONE`] if it has no class.
    pub(crate) fn class_delivered(&self) -> ClassId {
        self.front.published.live.delivering()
    }

    /// Sets the class for which the present delivery counts.
    #[inline]
    pub(crate) fn deliver_as(&self, class: ClassId) {
        self.front.published.live.deliver(class);
    }

    /// Begins a command of several steps, which wakes the driver at most once, when it is complete.
    #[inline]
    pub(crate) fn compound(&self) -> Compound<'_> {
        self.compound.set(self.compound.get() + 1);
        Compound(self)
    }

    /// Runs code of the user, with nothing borrowed. If the code panics, the panic is caught,
    /// logged and counted, and the result is false.
    pub(crate) fn contain(&self, run: impl FnOnce()) -> bool {
        let is_ok = contain(self.id, run);
        if !is_ok {
            self.panicked.set(self.panicked.get() + 1);
        }
        is_ok
    }

    /// Drops values of the user one at a time, with nothing borrowed. Each panic is logged and
    /// counted.
    pub(crate) fn drop_each<V>(&self, values: impl IntoIterator<Item = V>) {
        for value in values {
            self.contain(|| drop(value));
        }
    }

    /// Wakes the driver if it sleeps.
    pub(super) fn wake_driver(&self) {
        if self.asleep_until.replace(Tick::ZERO) == Tick::ZERO {
            return;
        }
        let now = self.nanos_near();
        self.woken_at.set(now);
        self.front.published.live.note_due(now);
        if self.compound.get() > 0 {
            self.wake_due.set(true);
        } else {
            self.front.doorbell.wake();
        }
    }

    /// Called by the driver when it stops sleeping.
    pub(crate) fn wake_up(&self) {
        self.asleep_until.set(Tick::ZERO);
        self.front.doorbell.set_awake();
    }

    /// Replaces the waker of a sleep that goes on. False if the shard was woken meanwhile.
    pub(crate) fn stay_asleep(&self, waker: &Waker) -> bool {
        self.front.doorbell.stay_asleep(waker)
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.asleep_until.get() > Tick::ZERO
    }

    /// The present in nanoseconds, from the system.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.ask()
    }

    /// The present in nanoseconds, or up to a few microseconds later. Costs less than
    /// [`nanos`](Self::nanos).
    #[inline]
    pub(crate) fn nanos_near(&self) -> u64 {
        self.clock.nanos()
    }

    /// The tick at which something is due.
    #[inline]
    pub(crate) fn tick_of(&self, when: impl When) -> Tick {
        self.time.tick_of(when, || self.nanos_near())
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The shard's scale.
    pub(crate) fn scale(&self) -> Scale {
        self.scale.get()
    }
}
