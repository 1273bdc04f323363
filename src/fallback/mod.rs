//! Sleeps that return no error: where the service has no timer, a thread keeps the deadline.
//!
//! The interfaces of tokio, hyper and quinn have sleeps whose output is `()`. Such a sleep must
//! neither be done early nor be forgotten when a shard is full or has ended. [`InfallibleSleep`] is
//! one for an adapter of the program's own.
//!
//! Invariants: a sleep is done when its deadline has come by the clock of the service, and not
//! before. A sleep that is pending is known to a shard, or to the fallback thread, or its task is
//! polled again at once.
//!
//! Cost: a sleep that its shard has room for costs what a [`Sleep`] does, and 16
//! bytes. Of the others, the *fallback thread* of the process keeps the deadlines in an ordered map
//! behind a lock. [`InfallibleSleep::fallback_count`] counts them; a server that sees the count
//! grow gives its shards more [capacity](crate::TimerServiceBuilder::capacity).

mod infallible;
mod moment;
mod thread;
#[cfg(feature = "test-util")]
mod tokio_clock;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use self::infallible::InfallibleSleep;
#[cfg(feature = "tokio")]
pub(crate) use self::infallible::{is_system_time, now};
pub(crate) use self::moment::Moment;
use self::thread::Kept;
use crate::clock::Timeline;
use crate::face::handle::AnyHandle;
use crate::face::handle::sleep::Sleep;
use crate::values::refused::RefusedKind;

/// How often the fallback thread wakes the task of a sleep whose service goes by a manual clock:
/// the thread cannot wait for that clock.
const MANUAL_PERIOD: Duration = Duration::from_millis(1);

/// The deadline that is `delay` after `now`: in nanoseconds, and as a moment.
#[inline]
pub(crate) fn due_after(time: &Timeline, now: u64, delay: Duration) -> (u64, Moment) {
    let due = crate::clock::nanos_after(now, delay);
    (due, Moment::by(time.clock(), due))
}

/// A [`Sleep`] that returns no error. It is never done before its deadline, and a poll after
/// its end finds it done.
pub(crate) struct SleepOrKept {
    deadline: Moment,
    shared: Sleep,
    /// The deadline in the map of the fallback thread; `None` unless the service had no timer.
    kept: Option<Box<Kept>>,
}

impl SleepOrKept {
    #[inline]
    pub(crate) fn new(handle: AnyHandle, deadline: Instant) -> Self {
        Self { deadline: Moment::of(deadline), shared: handle.sleep(deadline), kept: None }
    }

    /// A sleep that is done when `delay` has passed from now. A delay that does not fit never has.
    pub(crate) fn after(handle: AnyHandle, delay: Duration) -> Self {
        let due = handle.with_reach(|reach| due_after(reach.time(), reach.nanos(), delay));
        let (due, deadline) = due.unwrap_or_else(|| {
            let clock = crate::clock::Clock::monotonic();
            (u64::MAX, Moment::by(&clock, crate::clock::saturating_nanos(delay)))
        });
        Self::until(handle, due, deadline)
    }

    /// A sleep until a deadline, in nanoseconds by the service's clock and as a moment.
    // A sleep is written field by field to where it belongs, and not copied as a whole.
    #[allow(clippy::inline_always, reason = "a call would copy the sleep of each timeout")]
    #[inline(always)]
    pub(crate) fn until(handle: AnyHandle, due: u64, deadline: Moment) -> Self {
        Self { deadline, shared: Sleep::new(handle, due), kept: None }
    }

    pub(crate) fn handle(&self) -> AnyHandle {
        self.shared.handle()
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline.instant()
    }

    /// The sleep guards a future: see [`Sleep::guard`].
    #[cfg(feature = "tokio")]
    #[inline]
    pub(crate) fn guard(&mut self) {
        self.shared.guard();
    }

    /// Whether the runtime has looked at its sockets since the deadline: see [`Sleep::is_proven`].
    #[cfg(feature = "tokio")]
    pub(crate) fn is_proven(&self, looks: u64) -> bool {
        self.kept.is_none() && self.shared.is_proven(looks)
    }

    /// Whether a test moves the clock of the service.
    pub(crate) fn is_manual(&self) -> bool {
        self.shared.is_manual()
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline.
    pub(crate) fn reset(&mut self, deadline: Instant) {
        self.deadline = Moment::of(deadline);
        self.shared.reset(deadline);
        if self.kept.is_some() {
            let wake_at = self.wake_at();
            // A deadline that has come is forgotten.
            self.kept.take_if(|kept| !kept.reset(wake_at));
        }
    }

    /// When a poll finds the sleep done: the deadline, rounded up to a tick of the service.
    #[cfg(feature = "tokio")]
    pub(crate) fn done_at(&self) -> Instant {
        let time = self.shared.handle().time().filter(|_| self.kept.is_none());
        let Some(time) = time else { return self.deadline.instant() };
        time.instant(time.deadline_at(self.deadline.instant()))
    }

    /// Whether the deadline has come, by the clock of the service.
    fn is_over(&self) -> bool {
        let (time, due) = (self.shared.handle().time(), self.shared.due());
        match time {
            // A moment is no later than 292 years after the first epoch, and a manual clock may be.
            Some(time) if due != u64::MAX => time.nanos() >= due,
            _ if self.deadline.is_furthest() => false,
            Some(time) => time.now() >= self.deadline.instant(),
            None => crate::clock::now() >= self.deadline.instant(),
        }
    }

    /// When the fallback thread is to wake the task.
    fn wake_at(&self) -> Instant {
        let time = self.shared.handle().time();
        let is_manual = time.is_some_and(|time| time.clock().is_manual());
        if is_manual { crate::clock::now() + MANUAL_PERIOD } else { self.deadline.instant() }
    }

    /// Is done when the deadline has come. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "a call of it costs as much as it does")]
    #[inline(always)]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.kept.is_some() { self.poll_kept(cx) } else { self.poll_shared(cx) }
    }

    #[allow(clippy::inline_always, reason = "a call of it costs as much as it does")]
    #[inline(always)]
    fn poll_shared(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.due() == u64::MAX && !self.deadline.is_furthest() {
            self.find_due();
        }
        match Pin::new(&mut self.shared).poll(cx) {
            Poll::Ready(Err(refused)) => self.poll_refused(refused, cx.waker()),
            polled => polled.map(drop),
        }
    }

    /// Finds the deadline of a sleep that was made on a thread that could not reach the service.
    #[cold]
    fn find_due(&mut self) {
        self.shared.reset(self.deadline.instant());
    }

    /// Polls a sleep whose deadline was given to the fallback thread.
    #[cold]
    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Its service would have it done a tick later, and may have to look for room first.
        if self.is_over() {
            return Poll::Ready(());
        }
        if let Some(kept) = &self.kept {
            if !kept.is_reset {
                if kept.set_waker(cx.waker().clone()) {
                    return Poll::Pending;
                }
                // The thread has woken the task.
                self.kept = None;
            }
        }
        let polled = self.poll_shared(cx);
        // The fallback thread has no reset deadline unless the service has refused it again, or may
        // refuse it once its shard has looked for room.
        let may_be_refused = self.shared.is_asked();
        self.kept.take_if(|kept| kept.is_reset && !may_be_refused);
        polled
    }

    /// Polls a sleep for which the service has no timer.
    #[cold]
    fn poll_refused(&mut self, refused: RefusedKind, waker: &Waker) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        if let Some(kept) = &mut self.kept {
            if kept.set_waker(waker.clone()) {
                kept.is_reset = false;
                return Poll::Pending;
            }
        }
        let service = self.shared.handle().service;
        match Kept::new(self.wake_at(), waker.clone(), service, refused) {
            Ok(kept) => self.kept = Some(Box::new(kept)),
            // The next poll tries again.
            Err(waker) => waker.wake(),
        }
        Poll::Pending
    }
}

debug_fields!([] SleepOrKept, |it| deadline: it.deadline.instant(), is_kept: it.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<SleepOrKept>();
    assert!(size_of::<SleepOrKept>() <= size_of::<Sleep>() + 16);
};
