//! Timeouts of the owner's futures, by the timer that the connection has already.
//!
//! Most timeouts do not come. So the deadline of one that was dropped stays armed, and the next
//! one, which is due later, arms nothing: it is told when the old deadline comes, and arms its own
//! then. With one limit for all requests of a connection, a deadline is armed once in each such
//! time.
//!
//! Why not a timer for each: it is a request to the shard and a cancel, for each request of a
//! client, beside a timer of the same connection that fires no earlier.
//!
//! Invariants: one timeout at a time has the slot, and a deadline of the connection is armed that
//! is not later than that timeout. A timeout is over only by its own deadline.
//!
//! Cost: a timeout that does not come is a reading of the clock and some ten atomic operations, and
//! takes no lock.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::control::Shared;
use super::waiter::Waiter;
use crate::clock::when::When;
use crate::conn::{ConnTimers, DeadlineKind, Passes, Side, Wakes};
use crate::face::handle::AnyHandle;
use crate::face::handle::sleep::Sleep;
use crate::link::sync::{AtomicBool, AtomicU64, Ordering};
use crate::pass::Pass;
use crate::values::refused::RefusedKind;

/// The deadline of the connection that stands for its timeout.
pub(super) const TIMEOUT: DeadlineKind = DeadlineKind::Custom(DeadlineKind::CUSTOM_COUNT - 1);

/// The due time of what is never due, and of a deadline that is not armed.
const NEVER: u64 = u64::MAX;

/// The place of the one timeout that uses the connection's timer.
pub(super) struct Slot {
    is_taken: AtomicBool,
    /// When the connection's deadline was last armed for; `NEVER` if its event was taken since.
    armed: AtomicU64,
    /// The task of the timeout that has the slot.
    pub(super) waiter: Waiter,
}

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            armed: AtomicU64::new(NEVER),
            waiter: Waiter::new(),
        }
    }

    /// False if another timeout has the slot.
    fn take(&self) -> bool {
        // Acquire: pairs with the store in `release`, so that what the timeout before has armed is
        // known.
        !self.is_taken.swap(true, Ordering::Acquire)
    }

    fn release(&self) {
        // Release: pairs with the swap in `take`.
        self.is_taken.store(false, Ordering::Release);
    }

    fn armed(&self) -> u64 {
        // Relaxed: only who has the slot uses it.
        self.armed.load(Ordering::Relaxed)
    }

    fn set_armed(&self, due: u64) {
        // Relaxed: see `armed`.
        self.armed.store(due, Ordering::Relaxed);
    }
}

/// A timeout that waits.
pub(super) struct Timeout<'a, M: Side> {
    timers: &'a ConnTimers<M>,
    shared: &'a Arc<Shared>,
    due: u64,
    by: By,
}

/// What tells a timeout that it is over.
enum By {
    /// It has not waited yet.
    Nothing,
    Connection,
    /// A timer of its own, as another timeout has the connection's.
    Sleep(Sleep, Pass),
}

/// What a timeout knew before its future was polled.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// How many passes of the connection were over.
    passes: Passes,
    /// Whether its own pass was over.
    was_over: bool,
}

impl<'a, M: Side> Timeout<'a, M> {
    /// A timeout whose time begins now.
    pub(super) fn new(timers: &'a ConnTimers<M>, shared: &'a Arc<Shared>, when: impl When) -> Self {
        Self { timers, shared, due: timers.nanos_of(when), by: By::Nothing }
    }

    /// The future is polled next.
    #[inline]
    pub(super) fn look(&self) -> Seen {
        let was_over = matches!(&self.by, By::Sleep(_, pass) if pass.is_over());
        Seen { passes: self.timers.passes(), was_over }
    }

    /// Ready when the time is up, or when there is no timer. The future is pending, and was polled
    /// after [`look`](Self::look) has returned `seen`.
    pub(super) fn poll(
        &mut self,
        seen: Seen,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RefusedKind>> {
        if let By::Nothing = self.by {
            self.by = if self.shared.timeout_slot.take() {
                By::Connection
            } else {
                let handle = self.shared.handle;
                match own_sleep(handle, self.due) {
                    Some(sleep) => By::Sleep(sleep, Pass::NONE),
                    None => return Poll::Ready(Err(handle.why_closed())),
                }
            };
        }
        match &mut self.by {
            By::Sleep(sleep, pass) => {
                ready!(Pin::new(&mut *sleep).poll(cx))?;
                pass.decide(seen.was_over, !sleep.is_manual(), cx).map(Ok)
            }
            By::Nothing | By::Connection => self.poll_slot(seen.passes, cx),
        }
    }

    #[inline]
    fn poll_slot(&self, seen: Passes, cx: &Context<'_>) -> Poll<Result<(), RefusedKind>> {
        let slot = &self.shared.timeout_slot;
        let may_have_come = slot.waiter.register(cx.waker());
        let is_earlier = self.due < slot.armed();
        if is_earlier {
            self.arm();
        }
        if may_have_come || is_earlier { self.look_at_slot(seen) } else { Poll::Pending }
    }

    fn arm(&self) {
        // An error says that the connection is closed, which the poll finds out that follows.
        let _ = self.timers.arm_at(TIMEOUT, self.due, Wakes::Nothing);
        self.shared.timeout_slot.set_armed(self.due);
    }

    /// Takes the event of the armed deadline, if it has come.
    fn look_at_slot(&self, seen: Passes) -> Poll<Result<(), RefusedKind>> {
        let slot = &self.shared.timeout_slot;
        let waker = Waker::from(Arc::clone(self.shared));
        let cx = &mut Context::from_waker(&waker);
        loop {
            match self.timers.poll_kinds(cx, Some(seen), |kind| kind == TIMEOUT) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(_)) if self.due <= slot.armed() => {
                    slot.set_armed(NEVER);
                    return Poll::Ready(Ok(()));
                }
                // The deadline of a timeout before, which has ended.
                Poll::Ready(Ok(_)) => self.arm(),
                Poll::Ready(Err(refused)) => {
                    // The next timeout looks whether there is a timer then.
                    slot.waiter.look_again();
                    return Poll::Ready(Err(refused));
                }
            }
        }
    }
}

/// `None` if the service has ended.
fn own_sleep(handle: AnyHandle, due: u64) -> Option<Sleep> {
    handle.time().map(|_| Sleep::new(handle, due))
}

impl<M: Side> Drop for Timeout<'_, M> {
    fn drop(&mut self) {
        if let By::Connection = self.by {
            self.shared.timeout_slot.release();
        }
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;

    #[test]
    fn timeout_that_takes_the_slot_knows_what_the_one_before_has_armed() {
        check(|| {
            let slot = Arc::new(Slot::new());
            // Each timeout arms an earlier deadline than the one before.
            let use_slot = |slot: &Slot| {
                let is_free = slot.take();
                if is_free {
                    slot.set_armed(slot.armed() - 1);
                    slot.release();
                }
                u64::from(is_free)
            };
            let other = Arc::clone(&slot);
            let thread = thread::spawn(move || use_slot(&other));
            let count = use_slot(&slot) + thread.join().unwrap();
            assert_eq!(slot.armed(), NEVER - count);
        });
    }
}
