//! A sleep that follows the clock of the tokio runtime that polls it, where a test has paused that
//! clock. The feature `test-util` brings that; without it, this is the sleep of the service.
//!
//! Invariants: a service by a manual clock has the time of that clock in any runtime.
//!
//! Cost: none without the feature; with it, see [`tokio_clock`](super::tokio_clock).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use super::thread::{self, Kept};
#[cfg(feature = "test-util")]
use super::tokio_clock::{self, Follower};
use crate::clock::{Clock, Timeline, first_epoch, instant_after, nanos_after, saturating_nanos};
use crate::face::handle::sleep::Sleep;
use crate::face::handle::{AnyHandle, Handle};
use crate::pass::{Decided, Limit, Pass, is_simulated};
use crate::values::refused::RefusedKind;

/// How often the fallback thread wakes the task of a sleep whose service goes by a manual clock:
/// the thread cannot wait for that clock.
const MANUAL_PERIOD: Duration = Duration::from_millis(1);

/// The deadline that is `delay` after `now`: in nanoseconds, and as a moment.
#[inline]
pub(crate) fn due_after(time: &Timeline, now: u64, delay: Duration) -> (u64, Moment) {
    let due = nanos_after(now, delay);
    (due, Moment::by(time.clock(), due))
}

/// Whether sleeps go by a clock that no test has paused.
fn is_system_time() -> bool {
    #[cfg(feature = "test-util")]
    return tokio_clock::is_system_time();
    #[cfg(not(feature = "test-util"))]
    true
}

/// The present moment: by the clock of the runtime that the calling thread is in, with the feature
/// `test-util`, and by the system's clock otherwise.
#[cfg(feature = "tokio")]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-util")]
    return tokio_clock::now();
    #[cfg(not(feature = "test-util"))]
    crate::clock::now()
}

/// The present by a clock that a test has paused; `None` if sleeps go by the clock of the service.
#[cfg(feature = "test-util")]
fn paused(handle: AnyHandle) -> Option<Instant> {
    let is_manual = || handle.with_reach(|reach| reach.time().clock().is_manual());
    let is_paused = !is_system_time() && is_manual() != Some(true);
    is_paused.then(tokio_clock::now)
}

/// A sleep whose output is `()`, for interfaces that have no error: neither a full shard nor the
/// end of the service refuses it.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::fallback::InfallibleSleep;
/// use std::time::{Duration, Instant};
///
/// let service = TimerService::builder().shards(1).start()?;
/// let timers = service.handle();
/// // After the end of a service its `sleep` returns an error.
/// drop(service);
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// runtime.block_on(async {
///     let (began, delay) = (Instant::now(), Duration::from_millis(2));
///     assert!(timers.sleep(delay).await.is_err());
///     InfallibleSleep::after(timers, delay).by_service().await;
///     assert!(began.elapsed() >= delay);
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is done when its deadline has come, and not before; where the service has a timer, at most a
/// tick later. A poll after that finds it done. Where the service has none, see the
/// [module](crate::fallback).
///
/// It is `Send`, `Sync` and `Unpin`: any thread may poll it, by any executor. The timer is
/// scheduled at the first poll before the deadline, and cancelled when the sleep is dropped.
///
/// # A paused clock
///
/// It goes by the clock of the service. With the feature `test-util`, it follows the clock of the
/// current-thread tokio runtime that polls it, once a test has paused that clock, as
/// [`time`](../time/index.html) does. So `advance` moves it, and a runtime in which no task can run
/// moves its clock to the deadline. A service by a
/// [`ManualClock`](crate::clock::ManualClock) has the time of that clock in any runtime.
///
/// ```
/// # #[cfg(feature = "test-util")] {
/// use corewheel::TimerService;
/// use corewheel::fallback::InfallibleSleep;
/// use std::time::Duration;
///
/// let service = TimerService::builder().shards(1).start().unwrap();
/// let timers = service.handle();
/// let mut runtime = tokio::runtime::Builder::new_current_thread();
/// runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
///     let (hour, began) = (Duration::from_secs(3_600), InfallibleSleep::now(timers));
///     // No task can run, so the paused clock moves.
///     InfallibleSleep::after(timers, hour).await;
///     assert!(InfallibleSleep::now(timers) - began >= hour);
/// });
/// # }
/// ```
///
/// # Cost
///
/// That of a [`Sleep`](crate::Sleep), and 16 bytes more; with the feature `test-util`, also a timer
/// of tokio in a current-thread runtime. The fallback thread takes a lock and O(log n) for each of
/// n sleeps that it keeps.
#[must_use = "futures do nothing unless they are polled"]
pub struct InfallibleSleep {
    deadline: Moment,
    timer: Sleep,
    /// The deadline in the map of the fallback thread; `None` unless the service had no timer.
    kept: Option<Box<Kept>>,
    /// `None` if it goes by the clock of the service only.
    #[cfg(feature = "test-util")]
    follower: Option<Follower>,
}

impl InfallibleSleep {
    /// A sleep until an instant of the clock that [`now`](Self::now) reads. A deadline that has
    /// passed is done at the first poll.
    ///
    /// The timer is on a shard of the handle's service: [`Handle::on`] chooses it, and with
    /// [`Handle::of_class`] the statistics count it for a class.
    pub fn until<T: 'static>(timers: Handle<T>, deadline: Instant) -> Self {
        Self::of(timers.sleep(deadline), Moment::of(deadline))
    }

    /// A sleep until a deadline, in nanoseconds by the service's clock and as a moment.
    // A sleep is written field by field to where it belongs, and not copied as a whole.
    #[allow(clippy::inline_always, reason = "a call would copy the sleep of each timeout")]
    #[inline(always)]
    pub(crate) fn until_due(timers: AnyHandle, due: u64, deadline: Moment) -> Self {
        Self::of(Sleep::new(timers, due), deadline)
    }

    #[allow(clippy::inline_always, reason = "as for what calls it")]
    #[inline(always)]
    fn of(timer: Sleep, deadline: Moment) -> Self {
        Self {
            deadline,
            timer,
            kept: None,
            #[cfg(feature = "test-util")]
            follower: Some(Follower::default()),
        }
    }

    /// Goes by the clock of the service, also in a runtime whose clock is paused.
    pub fn by_service(self) -> Self {
        Self {
            #[cfg(feature = "test-util")]
            follower: None,
            ..self
        }
    }

    /// A sleep that is done when `delay` has passed from this call. A delay that does not fit never
    /// has.
    pub fn after<T: 'static>(timers: Handle<T>, delay: Duration) -> Self {
        let timers = timers.untyped();
        #[cfg(feature = "test-util")]
        if let Some(deadline) = paused(timers).and_then(|now| now.checked_add(delay)) {
            return Self::until(timers, deadline);
        }
        let due = timers.with_reach(|reach| due_after(reach.time(), reach.nanos(), delay));
        let (due, deadline) = due.unwrap_or_else(|| {
            (u64::MAX, Moment::by(&Clock::monotonic(), saturating_nanos(delay)))
        });
        Self::until_due(timers, due, deadline)
    }

    /// The present by the clock that sleeps follow which are polled here, or up to some
    /// microseconds later: a reading of the near clock of this thread, where no test has paused a
    /// clock. It is never behind the clock of the service. A thread that has not used the service
    /// before its end reads the system's clock.
    #[inline]
    pub fn now<T: 'static>(timers: Handle<T>) -> Instant {
        let timers = timers.untyped();
        #[cfg(feature = "test-util")]
        if let Some(now) = paused(timers) {
            return now;
        }
        let read = timers.with_reach(|reach| reach.time().instant_of(reach.nanos()));
        read.unwrap_or_else(crate::clock::now)
    }

    /// Waits until another deadline instead, also after the sleep was done. The task that has
    /// polled it is woken at the new deadline. A sleep that the fallback thread keeps tries its
    /// shard again at the next poll.
    ///
    /// A reset to later sends nothing to the shard.
    pub fn reset(&mut self, deadline: Instant) {
        self.reset_timer(deadline);
        #[cfg(feature = "test-util")]
        if let Some(follower) = self.follower.as_mut().filter(|_| !self.timer.is_manual()) {
            follower.reset(deadline);
        }
    }

    fn reset_timer(&mut self, deadline: Instant) {
        self.deadline = Moment::of(deadline);
        self.timer.reset(deadline);
        if self.kept.is_some() {
            let wake_at = self.wake_at();
            // A deadline that has come is forgotten.
            self.kept.take_if(|kept| !kept.reset(wake_at));
        }
    }

    /// As [`reset`](Self::reset), without a timer of tokio before the next poll.
    #[cfg(feature = "tokio")]
    pub(crate) fn reset_unbegun(&mut self, deadline: Instant) {
        self.reset_timer(deadline);
        #[cfg(feature = "test-util")]
        {
            // Until the next poll there is no timer to which a paused clock advances.
            self.follower = Some(Follower::default());
        }
    }

    /// When it is done, or 292 years after the first service of the process began, if that is
    /// earlier.
    pub fn deadline(&self) -> Instant {
        self.deadline.instant()
    }

    /// The handle of which it was made.
    pub fn handle(&self) -> AnyHandle {
        self.timer.handle()
    }

    /// Whether the fallback thread keeps the deadline, as the service had no timer at the last
    /// poll.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// How many sleeps, timeouts and ticks of the process the fallback thread has had to keep so
    /// far, because a shard was full or had ended: those of this type, of `time`, and of the
    /// adapters.
    pub fn fallback_count() -> u64 {
        thread::fallback_count()
    }

    /// Whether the deadline is one by the system's clock, so that a runtime may have been held up
    /// when it came: whether a limit asks for a [`Pass`](crate::pass::Pass) before it cuts
    /// anything. A clock that a test moves needs none.
    pub fn needs_pass(&self) -> bool {
        !self.timer.is_manual() && is_system_time()
    }

    /// Whether the deadline has come, for a sleep that was polled or reset.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_elapsed(&self) -> bool {
        // When a poll finds it done: at the deadline, rounded up to a tick of the service.
        let time = self.timer.handle().time().filter(|_| self.kept.is_none());
        let ceil = |time: Timeline| time.instant(time.deadline_at(self.deadline.instant()));
        let is_elapsed = || now() >= time.map_or_else(|| self.deadline.instant(), ceil);
        #[cfg(feature = "test-util")]
        if let Some(follower) = &self.follower {
            return follower.is_elapsed(is_elapsed);
        }
        is_elapsed()
    }

    /// Is done when the deadline has come. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "as for what it calls")]
    #[inline(always)]
    pub(crate) fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "test-util")]
        if let Some(mut follower) = self.follower.take_if(|_| !self.timer.is_manual()) {
            let polled = follower.poll(self.deadline(), cx, |cx| self.poll_service(cx));
            self.follower = Some(follower);
            return polled;
        }
        self.poll_service(cx)
    }

    /// Whether the deadline has come, by the clock of the service.
    fn is_over(&self) -> bool {
        let (time, due) = (self.timer.handle().time(), self.timer.due());
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
        let time = self.timer.handle().time();
        let is_manual = time.is_some_and(|time| time.clock().is_manual());
        if is_manual { crate::clock::now() + MANUAL_PERIOD } else { self.deadline.instant() }
    }

    /// Is done when the deadline has come by the clock of the service. Else the task is woken then.
    #[allow(clippy::inline_always, reason = "a call of it costs as much as it does")]
    #[inline(always)]
    fn poll_service(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.kept.is_some() { self.poll_kept(cx) } else { self.poll_timer(cx) }
    }

    #[allow(clippy::inline_always, reason = "a call of it costs as much as it does")]
    #[inline(always)]
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.due() == u64::MAX && !self.deadline.is_furthest() {
            self.find_due();
        }
        match Pin::new(&mut self.timer).poll(cx) {
            Poll::Ready(Err(refused)) => self.poll_refused(refused, cx.waker()),
            polled => polled.map(drop),
        }
    }

    /// Finds the deadline of a sleep that was made on a thread that could not reach the service.
    #[cold]
    fn find_due(&mut self) {
        self.timer.reset(self.deadline.instant());
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
        let polled = self.poll_timer(cx);
        // The fallback thread has no reset deadline unless the service has refused it again, or may
        // refuse it once its shard has looked for room.
        let may_be_refused = self.timer.is_asked();
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
        let service = self.timer.handle().service;
        match Kept::new(self.wake_at(), waker.clone(), service, refused) {
            Ok(kept) => self.kept = Some(Box::new(kept)),
            // The next poll tries again.
            Err(waker) => waker.wake(),
        }
        Poll::Pending
    }
}

impl Future for InfallibleSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_done(cx)
    }
}

impl Limit for InfallibleSleep {
    #[inline]
    fn guard(&mut self) {
        self.timer.guard();
    }

    #[inline]
    fn poll_late(&mut self, pass: &mut Pass, looks: u64, cx: &mut Context<'_>) -> Decided {
        ready!(self.poll_done(cx));
        let is_of_test = || !self.needs_pass() && !is_simulated();
        let is_of_timer = || self.kept.is_none() && self.timer.is_proven(looks, self.timer.due());
        pass.poll(Some(looks), || is_of_test() || is_of_timer(), cx).map(Ok)
    }
}

debug_fields!([] InfallibleSleep, |it| deadline: it.deadline(), is_kept: it.is_kept());

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<InfallibleSleep>();
    #[cfg(not(feature = "test-util"))]
    assert!(size_of::<InfallibleSleep>() <= size_of::<Sleep>() + 16);
};

/// An instant, as nanoseconds since the [`first_epoch`]. Most deadlines are never asked for as an
/// [`Instant`], which is computed only then, and without the clock.
/// One that is more than 292 years away is taken for the furthest that fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(i64);

impl Moment {
    /// The moment this many nanoseconds after the epoch of `clock`.
    #[inline]
    pub(crate) fn by(clock: &Clock, nanos: u64) -> Self {
        Self(at_most_max(nanos.saturating_add(clock.since_first)))
    }

    #[inline]
    pub(crate) fn of(instant: Instant) -> Self {
        let first = first_epoch();
        let nanos = |duration| at_most_max(saturating_nanos(duration));
        Self(match instant.checked_duration_since(first) {
            Some(after) => nanos(after),
            None => -nanos(first.duration_since(instant)),
        })
    }

    /// Whether it stands for the furthest that fits, so that it may be later.
    pub(crate) fn is_furthest(self) -> bool {
        self.0 == i64::MAX
    }

    pub(crate) fn instant(self) -> Instant {
        let (first, nanos) = (first_epoch(), self.0.unsigned_abs());
        if self.0 >= 0 {
            return instant_after(first, nanos);
        }
        first.checked_sub(Duration::from_nanos(nanos)).unwrap_or(first)
    }
}

fn at_most_max(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::nanos_after;

    #[test]
    fn moment_is_the_instant_of_which_it_was_made() {
        let clock = Clock::monotonic();
        let [hour, never] = [Duration::from_secs(3_600), Duration::MAX];
        let now = clock.now();
        let before = now.checked_sub(hour).unwrap_or(now);
        for instant in [now, now + hour, before, first_epoch(), clock.instant(3)] {
            assert_eq!(Moment::of(instant).instant(), instant);
        }
        assert_eq!(Moment::by(&clock, 3).instant(), clock.instant(3));
        assert!(Moment::by(&clock, nanos_after(0, never)).instant() > now + 1_000 * hour);
    }
}
