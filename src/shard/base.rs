//! What a shard has whatever its timers carry: who it is, its clock, its parts.

use std::cell::Cell;
use std::sync::Arc;

use corewheel_shard::Tick;

use super::Directory;
use super::parts::Parts;
use super::poll_budget::PollBudget;
use crate::clock::when::When;
use crate::clock::{NearClock, Timeline};
use crate::directory::orders::Orders;
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
    /// The factor of the shard's scaled timeouts.
    pub(super) scale: Cell<Scale>,
    orders: Arc<Orders>,
    pub(super) budget: PollBudget,
}

impl Base {
    pub(super) fn new<T: 'static>(directory: &Directory<T>, id: ShardId) -> Self {
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
            orders: Arc::clone(post.orders()),
            budget: PollBudget::new(),
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
        &self.orders
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

    /// The factor of the shard's scaled timeouts.
    pub(crate) fn scale(&self) -> Scale {
        self.scale.get()
    }
}
