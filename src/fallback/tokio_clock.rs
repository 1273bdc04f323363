//! The clock of the current-thread tokio runtime that the calling thread is in, which a test may
//! pause and advance.
//!
//! Why a timer of tokio for each sleep: tokio has no event for a clock that is paused or advanced,
//! but wakes its own timers. A runtime whose clock is paused moves it to the earliest of them when
//! no task can run. Why the service's timer as well, while the clock shows the system's time: a
//! test in real time tests the service, and not tokio's timers.
//!
//! Invariants: no sleep is done before its deadline by the clock of the runtime that polls it. A
//! poll gives the service no timer once that clock was paused.
//!
//! Cost: tokio's timer and an allocation for each sleep, and some readings of the clock for each
//! poll.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::coop::unconstrained;
use tokio::time::Sleep;

thread_local! {
    /// The last runtime of this thread that was found to have no timers.
    static WITHOUT_TIMERS: Cell<Option<Id>> = const { Cell::new(None) };
}

/// The current-thread runtime that the calling thread is in.
fn runtime() -> Option<Id> {
    let runtime = Handle::try_current().ok()?;
    (runtime.runtime_flavor() == RuntimeFlavor::CurrentThread).then(|| runtime.id())
}

/// The present moment by the clock of the runtime that the calling thread is in, or by the
/// system's clock outside of a runtime. A multi-thread runtime has the system's clock.
pub(super) fn now() -> Instant {
    // Tokio's clock panics on a thread whose table of runtimes is gone.
    match Handle::try_current() {
        Ok(_) => tokio::time::Instant::now().into_std(),
        Err(_) => crate::clock::now(),
    }
}

/// Whether [`now`] shows the system's time: the clock has not been paused. Tokio has no query for
/// that.
pub(super) fn is_system_time() -> bool {
    let before = crate::clock::now();
    let shown = now();
    (before..=crate::clock::now()).contains(&shown)
}

/// The part of a sleep that follows the clock of a current-thread runtime.
#[derive(Default)]
pub(super) struct Follower {
    /// Tokio's timer and its runtime. `None` before the sleep is polled or reset in a
    /// current-thread runtime with timers, and when it is done.
    timer: Option<(Id, Pin<Box<Sleep>>)>,
    /// Whether a poll has found the sleep done, and it was not reset since.
    is_done: bool,
}

impl Follower {
    /// Polls a sleep until `deadline`. `poll_service` polls its timer of the service.
    pub(super) fn poll(
        &mut self,
        deadline: Instant,
        cx: &mut Context<'_>,
        poll_service: impl FnOnce(&mut Context<'_>) -> Poll<()>,
    ) -> Poll<()> {
        if self.is_done {
            return Poll::Ready(());
        }
        let polled =
            self.with_timer(deadline, |timer| Pin::new(&mut unconstrained(timer)).poll(cx));
        let polled = match polled {
            Some(Poll::Pending) if is_system_time() => match poll_service(cx) {
                // A clock that has just been paused may still show the system's time.
                Poll::Ready(()) if now() >= deadline => Poll::Ready(()),
                _ => Poll::Pending,
            },
            Some(polled) => polled,
            None => poll_service(cx),
        };
        if polled.is_ready() {
            *self = Self { timer: None, is_done: true };
        }
        polled
    }

    /// Follows the clock to another deadline, as a `Sleep` of tokio does after its `reset`.
    pub(super) fn reset(&mut self, deadline: Instant) {
        self.is_done = false;
        if let Some((_, timer)) = &mut self.timer {
            timer.as_mut().reset(deadline.into());
        } else {
            self.with_timer(deadline, |timer| timer.reset(deadline.into()));
        }
    }

    /// Whether the sleep is done by tokio's timer or a poll. `by_service` says it where the service
    /// has the timer.
    pub(super) fn is_elapsed(&self, by_service: impl FnOnce() -> bool) -> bool {
        match &self.timer {
            _ if self.is_done => true,
            Some((_, timer)) if timer.is_elapsed() => true,
            Some(_) if !is_system_time() => false,
            _ => by_service(),
        }
    }

    /// Calls a function with the timer in the current-thread runtime that the calling thread is in;
    /// makes the timer if there is none. `None` outside of such a runtime, and if the runtime has
    /// no timers and its clock was not paused.
    ///
    /// # Panics
    ///
    /// The runtime has no timers, and its clock was paused: with the message of tokio.
    fn with_timer<O>(
        &mut self,
        deadline: Instant,
        call: impl FnOnce(Pin<&mut Sleep>) -> O,
    ) -> Option<O> {
        let Some(id) = runtime() else {
            self.timer = None;
            return None;
        };
        if WITHOUT_TIMERS.get() == Some(id) && is_system_time() {
            return None;
        }
        self.timer.take_if(|(of, _)| *of != id);
        let timer = &mut self.timer;
        // Only a panic of tokio says that a runtime has no timers, or shuts down.
        let called = catch_unwind(AssertUnwindSafe(|| {
            let new = || (id, Box::pin(tokio::time::sleep_until(deadline.into())));
            call(timer.get_or_insert_with(new).1.as_mut())
        }));
        match called {
            Ok(output) => Some(output),
            Err(_) if is_system_time() => {
                WITHOUT_TIMERS.set(Some(id));
                self.timer = None;
                None
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}
