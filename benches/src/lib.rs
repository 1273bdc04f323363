//! What corewheel costs beside its peers: the workloads, the contenders in turns, and from one
//! place the tables, the plots and the targets.
//!
//! Why a crate of its own: only this crate depends on the peers, so users of corewheel do not
//! download them.
//!
//! Invariants: all contenders of a row get the same operations, and a contender is timed only after
//! [`verify`](verify::verify) has passed. A row of the wheel has simulated time: a tick is a
//! number. Absent by design: a figure from another run. Absolute figures differ between machines;
//! ratios within a run can be compared.

#![allow(missing_debug_implementations, reason = "no program shows a contender or a run")]

pub mod cells;
pub mod judges;
pub mod peers;
pub mod plot;
pub mod report;
pub mod rows;
pub mod targets;
pub mod verify;

use std::num::NonZeroU64;

use corewheel::attach::ShardLoop;
use corewheel::{Fired, TimerService, TimerServiceBuilder};

/// The payload of a timer: eight bytes with a niche, like a box.
pub type Payload = NonZeroU64;

/// The operations of every contender. Ticks are counted from 0.
pub trait Timers: Sized + 'static {
    /// The name in tables.
    const NAME: &'static str;
    /// Whether timers of one tick fire in the order in which they were scheduled.
    const FIFO: bool;
    /// Identifies a pending timer. It is not `Copy`, because some contenders' handles are not.
    type Handle: 'static;

    /// An empty contender for at most `capacity` timers.
    fn with_capacity(capacity: usize) -> Self;

    /// Adds a timer.
    fn schedule(&mut self, deadline: u64, payload: Payload) -> Self::Handle;

    /// Adds a timer that is never cancelled or reset.
    fn schedule_unnamed(&mut self, deadline: u64, payload: Payload) {
        drop(self.schedule(deadline, payload));
    }

    /// Cancels a pending timer and returns its payload.
    fn cancel(&mut self, handle: Self::Handle) -> Payload;

    /// Resets a pending timer. The handle may change.
    fn reset(&mut self, handle: Self::Handle, deadline: u64) -> Self::Handle {
        let payload = self.cancel(handle);
        self.schedule(deadline, payload)
    }

    /// Sets the time and delivers all timers that are due.
    fn advance(&mut self, now: u64, fired: impl FnMut(Payload));

    /// A tick that is not later than the first deadline; `None` if nothing is pending.
    fn next_deadline(&mut self) -> Option<u64>;

    /// How many timers are pending.
    fn pending(&self) -> usize;
}

/// What takes the timers of a [`Home`] that fire.
pub type Deliver = fn(Fired<Payload>, &corewheel::Timers<Payload>);

/// A service with one shard, which is driven by the calling thread.
pub struct Home {
    /// Dropped before its service, whose drop closes the shard.
    pub shard: ShardLoop<Payload, Deliver>,
    /// The service.
    pub service: TimerService<Payload>,
}

impl Home {
    /// A shard for so many timers.
    pub fn new(capacity: usize) -> Self {
        Self::with(TimerService::builder().capacity(capacity as u32), |_, _| {})
    }

    /// A shard with other settings.
    pub fn with(builder: TimerServiceBuilder, deliver: Deliver) -> Self {
        let service = builder.shards(1).start_attached_with().expect("it starts");
        let shard = service.shards().next().expect("it has one");
        let attachment = service.attach(shard).expect("it is free");
        Self { shard: attachment.into_loop(deliver).expect("there is memory"), service }
    }
}

/// Keeps this thread on one core, so that no figure contains a migration.
///
/// This is the last core: interrupts and other work tend to be on the first. Returns false if the
/// system does not allow it.
pub fn pin_to_one_core() -> bool {
    let last = core_affinity::get_core_ids().and_then(|cores| cores.last().copied());
    last.is_some_and(core_affinity::set_for_current)
}

/// The numbers below `count`, in an order that is too long for a predictor to learn.
pub fn random_order(count: usize) -> impl FnMut() -> usize {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0010);
    let order: Vec<u32> = (0..1 << 18).map(|_| rng.u32(..count as u32)).collect();
    let mut at = 0;
    move || {
        at = (at + 1) % order.len();
        order[at] as usize
    }
}
