//! `nexus-timer`: a hierarchical wheel of linked lists through one slab, with raw handles.
//!
//! Set up as its documentation advises for a known number of timers: one chunk for all of them, and
//! `poll_and_rebalance`, without which far timers stay in coarse slots and are walked past with
//! each poll. Its interface takes an `Instant`; making one from a tick costs two nanoseconds or so,
//! which are part of its figures. It converts back by a multiplication that rounds down, so that an
//! instant at the very beginning of a tick is taken for the tick before; hence the half tick.

use std::mem::{self, ManuallyDrop};
use std::time::{Duration, Instant};

use nexus_timer::{TimerHandle, Wheel, WheelBuilder};

use crate::{Payload, Timers};

/// A [`Wheel`] with a tick of one millisecond.
pub struct Nexus {
    wheel: Wheel<Payload>,
    epoch: Instant,
    expired: Vec<Payload>,
}

impl Nexus {
    #[inline]
    fn instant(&self, tick: u64) -> Instant {
        self.epoch + Duration::from_micros(tick * 1_000 + 500)
    }
}

impl Drop for Nexus {
    /// A debug build of nexus-slab panics where handles of fired timers were not dropped.
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let empty = WheelBuilder::default().unbounded(1).build(self.epoch);
            mem::forget(mem::replace(&mut self.wheel, empty.expect("the configuration is valid")));
        }
    }
}

impl Timers for Nexus {
    const NAME: &'static str = "nexus-timer";
    const FIFO: bool = false;
    // A handle of nexus-timer may not be dropped while its wheel lives; here wheels are dropped
    // with what is in them.
    type Handle = ManuallyDrop<TimerHandle<Payload>>;

    fn with_capacity(capacity: usize) -> Self {
        let epoch = Instant::now();
        let wheel = WheelBuilder::default().unbounded(capacity).build(epoch);
        Self { wheel: wheel.expect("the configuration is valid"), epoch, expired: Vec::new() }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> Self::Handle {
        ManuallyDrop::new(self.wheel.schedule(self.instant(deadline), payload))
    }

    fn schedule_unnamed(&mut self, deadline: u64, payload: Payload) {
        self.wheel.schedule_forget(self.instant(deadline), payload);
    }

    fn cancel(&mut self, handle: Self::Handle) -> Payload {
        self.wheel.cancel(ManuallyDrop::into_inner(handle)).expect("it is pending")
    }

    fn reset(&mut self, handle: Self::Handle, deadline: u64) -> Self::Handle {
        let handle = ManuallyDrop::into_inner(handle);
        ManuallyDrop::new(self.wheel.reschedule(handle, self.instant(deadline)))
    }

    fn advance(&mut self, now: u64, fired: impl FnMut(Payload)) {
        self.wheel.poll_and_rebalance(self.instant(now), &mut self.expired);
        self.expired.drain(..).for_each(fired);
    }

    fn next_deadline(&mut self) -> Option<u64> {
        let deadline = self.wheel.next_deadline()?;
        Some(deadline.duration_since(self.epoch).as_millis() as u64)
    }

    fn pending(&self) -> usize {
        self.wheel.len()
    }
}
