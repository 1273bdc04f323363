//! How a turn wakes futures whose timers have expired.
//!
//! A turn takes up to [`WAKES_MAX`] timers of futures in a row out of the wheel, wakes the futures
//! one after the other, and then counts them. Why not take out and wake one at a time: the worker
//! that runs a woken task is done with it before the shard wakes the next one. The worker sleeps
//! then, is woken for the next task, and takes the shard's processor each time.
//!
//! A timer of another kind stays in the wheel until the futures before it are woken. A future that
//! is dropped by the waker of another one in the row has fired: its waker is woken all the same.
//!
//! Cost: 48 bytes for each timer that is taken out. The first of 384 futures is woken some 30 µs
//! later than it would be alone.

use std::task::Waker;

use corewheel_shard::TimerKey;

use super::Core;
use crate::values::class::ClassId;
use crate::values::contain::contain;

/// The most timers of futures that a turn takes out of the wheel together: as many as it delivers
/// by default.
pub(super) const WAKES_MAX: usize = 384;
/// The most wakes that are timed together, all of one class. A reading of the clock before each
/// makes a timeout that fires cost a tenth more.
const TIMED_MAX: usize = 16;

/// The expired timer of a future.
pub(super) struct Wake {
    /// `None` if nothing waits any more.
    waker: Option<Waker>,
    key: TimerKey,
    /// In nanoseconds.
    deadline: u64,
    class: ClassId,
    /// When the future was woken, in nanoseconds. Of wakes that are timed together, all but the
    /// first have the time after the last one.
    woken: u64,
}

impl Wake {
    pub(super) fn new(waker: Option<Waker>, key: TimerKey, deadline: u64, class: ClassId) -> Self {
        Self { waker, key, deadline, class, woken: 0 }
    }
}

impl<T: 'static> Core<T> {
    /// Wakes futures whose timers were taken out at `taken`, and counts them. Returns the time
    /// after the last wake.
    pub(super) fn wake_all(&self, wakes: &mut Vec<Wake>, taken: u64) -> u64 {
        let mut now = if wakes.len() > 1 { self.nanos_near() } else { taken };
        let of_classes = wakes.chunk_by_mut(|one, next| one.class == next.class);
        for group in of_classes.flat_map(|of_class| of_class.chunks_mut(TIMED_MAX)) {
            self.deliver_as(group[0].class);
            for wake in &mut *group {
                if let Some(waker) = wake.waker.take() {
                    if !contain(self.id(), || waker.wake()) {
                        self.note_delivery(false, 0);
                    }
                }
            }
            let after = self.nanos_near();
            for wake in &mut *group {
                wake.woken = after;
            }
            group[0].woken = now;
            self.note_delivery(true, after.saturating_sub(now));
            now = after;
        }
        let state = &mut *self.state.borrow_mut();
        for Wake { key, deadline, class, woken, .. } in wakes.drain(..) {
            let late = woken.saturating_sub(deadline);
            self.begin_delivery_of(state, class, Some(key), late, || woken);
        }
        now
    }
}
