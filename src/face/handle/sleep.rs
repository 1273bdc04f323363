//! Sleeps and timeouts that any thread may poll and drop.
//!
//! A sleep of a [`Handle`] is over when the clock says so, whether its timer has fired or not; the
//! timer only wakes the task. A sleep of a shard's own thread is over in the turn that fires its
//! timer. A timer lies with the thread that has armed it, with the waker, for all of its life: see
//! [`crate::link::thread_timers`]. The sleep holds its name.
//!
//! Invariants: a sleep is never over before its deadline, by the system's clock. A sleep that waits
//! has a timer, whose deadline is its own, or that has fired and wakes its task; or its shard looks
//! for room.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::here::{Reach, Unarmed};
use super::place::{Place, ThreadTimersName};
use super::{AnyHandle, Handle, here};
use crate::clock::when::When;
use crate::link::thread_timers::{Arming, Name, Number, Progress};
use crate::pass::{self, Decided, Guarded, Limit, Pass};
use crate::values::class::ClassId;
use crate::values::ids::{ServiceId, ShardId};
use crate::values::refused::RefusedKind;

/// Waits for a deadline, on any thread; made by [`Handle::sleep`], and on a shard's own thread by
/// [`Timers::sleep`](crate::Timers::sleep).
///
/// It is `Send`, `Sync`, `Unpin` and `'static`. It arms a timer when it is first polled before its
/// deadline, and ends the timer when it is dropped, without waking the shard: another thread wakes
/// one that sleeps for over a second, once for many drops. It may be polled and dropped on any
/// thread. A drop is harmless on a thread that ends, after the service has ended, and on a runtime
/// that is shut down.
///
/// # Order
///
/// The timers that one thread has armed for a shard fire in the order of their ticks, also where
/// the shard was held up. Within a tick there is no order, and none between threads. In which order
/// their tasks run is up to the runtime.
///
/// # Errors
///
/// As a future it returns `Full` if the shard has no room for its timer, `Closed` if
/// the shard has ended before the deadline, and `NoSuchShard`. After an error it may be polled
/// again.
///
/// Where the calling thread has no room left, the first poll asks the shard for what other threads
/// do not use, and the task is woken when the shard has looked. So `Full` means that the pending
/// timers, and the keys that lanes use, fill the shard.
///
/// # Cost
///
/// 40 bytes, and 52 to 61 with the timers of the thread that arms it, 16 to 32 more if it has a
/// class; no allocation of its own. A poll that is ready costs a reading of the clock. A poll
/// before the deadline, a reset and a drop take the lock of these timers each, which is in the
/// cache of their thread, and another waker takes it twice; a drop on another thread takes another
/// lock. A drop after the timer has fired takes none, on a thread that has read the time since.
///
/// A thread that has armed a timer takes 4 to 8 KiB for each shard until it ends, also while it has
/// no timer. While it has timers, it keeps 40 bytes for each that it had at once. It takes 8 to 16
/// bytes for each of them until it ends, and keeps up to 32 KiB for its next timers.
///
/// The timer holds the waker, and with it the memory of its task. A drop on the thread that has
/// armed the timer drops the waker at once, and one on another thread within a second; one while
/// the shard looks for room does so when the shard has looked.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    /// In nanoseconds since the service's epoch, before it is rounded up to a tick. `u64::MAX` for
    /// never. Most sleeps are never rounded: see [`crate::link::thread_timers`].
    deadline: u64,
    /// Where the timer lies while the phase is `Armed`. While it is `Asked`, the shard that was
    /// asked, and the number that the sleep has there.
    thread_timers: ThreadTimersName,
    number: Option<Number>,
    slot: u32,
    service: ServiceId,
    shard: Option<ShardId>,
    class: ClassId,
    phase: Phase,
    /// Whether it is done in the turn of its shard that fires its timer, and not by a clock.
    waits_for_turn: bool,
    /// Whether it guards a future.
    is_guard: bool,
}

const _: () = assert!(size_of::<Sleep>() == 40);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It has no timer.
    Unarmed,
    /// It has no timer, and its shard looks for room.
    Asked,
    Armed,
    Done,
}

impl Sleep {
    #[inline]
    pub(crate) fn new<T>(handle: Handle<T>, deadline: u64) -> Self {
        Self::done_by(false, handle, deadline)
    }

    #[inline(always)]
    pub(crate) fn done_by<T>(waits_for_turn: bool, handle: Handle<T>, deadline: u64) -> Self {
        let Handle { service, shard, class, .. } = handle;
        Self {
            deadline,
            thread_timers: ThreadTimersName::NONE,
            number: None,
            slot: 0,
            service,
            shard,
            class,
            phase: Phase::Unarmed,
            waits_for_turn,
            is_guard: false,
        }
    }

    pub(crate) fn handle(&self) -> AnyHandle {
        Handle::of_parts(self.service, self.shard, self.class)
    }

    /// The deadline before it is rounded up to a tick, in nanoseconds.
    #[inline]
    pub(crate) fn due(&self) -> u64 {
        self.deadline
    }

    /// When the future will be done: the deadline, rounded up to a tick. `None` if the service has
    /// ended and this thread has not used it before.
    pub fn deadline(&self) -> Option<Instant> {
        let time = self.handle().time()?;
        Some(time.instant_of(time.round_up(self.deadline)))
    }

    /// Whether the future is done.
    pub fn is_elapsed(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether its shard looks for room for its timer, and may refuse it then.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.phase == Phase::Asked
    }

    /// Waits until something else is due instead, also after it was done.
    ///
    /// A timer is reset in its slot. The shard is told only if it would act too late for it.
    pub fn reset<W: When>(&mut self, when: W) {
        let reset = here::with(self.service, |reach| {
            self.reset_by(reach, reach.time().due_of(when, || reach.nanos()));
        });
        if reset.is_none() {
            // The service has ended.
            self.deadline = u64::MAX;
            self.forget_if_done();
        }
    }

    pub(crate) fn reset_to(&mut self, deadline: u64) {
        let is_armed = self.phase == Phase::Armed;
        let reset =
            is_armed.then(|| here::with(self.service, |reach| self.reset_by(reach, deadline)));
        if reset.flatten().is_none() {
            self.deadline = deadline;
            self.forget_if_done();
        }
    }

    #[inline]
    fn reset_by(&mut self, reach: &Reach, deadline: u64) {
        self.deadline = deadline;
        match self.place() {
            // A timer that has fired has woken its task, whose next poll arms another one.
            Some(place) if !reach.reset(place, deadline) => self.phase = Phase::Unarmed,
            Some(_) => {}
            None => self.forget_if_done(),
        }
    }

    /// A sleep that is done waits again.
    #[inline]
    fn forget_if_done(&mut self) {
        if self.phase == Phase::Done {
            self.phase = Phase::Unarmed;
        }
    }

    /// Whether a test moves the clock of the service.
    pub(crate) fn is_manual(&self) -> bool {
        let is_manual = |reach: &Reach| reach.time().clock().is_manual();
        here::with(self.service, is_manual).unwrap_or(false)
    }

    /// Whether the runtime of the calling thread has looked at its sockets since a deadline, within
    /// the first `looks` of all runtimes, or need not do so. If it has not, what this thread guards
    /// later is handed over to the runtime when its timer fires, which wakes its task after a look.
    #[cold]
    pub(crate) fn is_proven(&self, looks: u64, deadline: u64) -> bool {
        let is_proven = |reach: &Reach| {
            let clock = reach.time().clock();
            // A test that moves the clock decides itself what is in time, except with simulated
            // sockets.
            if clock.is_manual() && !pass::is_simulated() {
                return true;
            }
            let deadline = deadline.saturating_add(clock.since_first);
            let is_proven = pass::is_proven(looks, deadline);
            if !is_proven {
                reach.find_relay();
            }
            is_proven
        };
        here::with(self.service, is_proven).unwrap_or(false)
    }

    /// Whether the service or the shard has ended, as far as this thread knows.
    pub(crate) fn has_ended(&self) -> bool {
        self.reach().is_none_or(|reach| reach.is_shard_closed(self.shard))
    }

    /// Where the timer lies; `None` if there is none.
    #[inline]
    fn place(&self) -> Option<Place> {
        let timer = Name { slot: self.slot, number: self.number? };
        (self.phase == Phase::Armed).then_some(Place { thread_timers: self.thread_timers, timer })
    }

    #[inline]
    fn reach(&self) -> Option<Rc<Reach>> {
        here::find(self.service)
    }

    /// Whether the deadline has passed.
    #[inline]
    fn is_over(&self, reach: &Reach) -> bool {
        let time = reach.time();
        // Mostly saves a reading: a worker that polls many woken tasks has just read the clock for
        // another one.
        let latest = reach.clock.latest();
        if latest >= self.deadline && reach.has_passed(time.round_up(self.deadline), latest) {
            return true;
        }
        let nanos = reach.nanos();
        if nanos < self.deadline {
            return false;
        }
        let due = time.round_up(self.deadline);
        // Within the microseconds by which the near clock may be ahead, the system's decides.
        nanos >= due && (reach.has_passed(due, nanos) || time.nanos() >= due)
    }

    /// Polls the sleep while the caller has borrowed something. It runs no code of the user but
    /// that of the waker that it is given, and of the one that it was polled with before.
    pub(crate) fn poll_borrowed(&mut self, cx: &Context<'_>) -> Poll<Result<(), RefusedKind>> {
        self.poll_here(cx, true)
    }

    #[inline]
    fn poll_here(&mut self, cx: &Context<'_>, is_borrowed: bool) -> Poll<Result<(), RefusedKind>> {
        // A refusal goes beside the result, which is in a register so.
        let mut refused = RefusedKind::Closed;
        match self.poll_or_refuse(cx, is_borrowed, &mut refused) {
            Some(true) => Poll::Ready(Ok(())),
            Some(false) => Poll::Pending,
            None => Poll::Ready(Err(refused)),
        }
    }

    /// Whether the sleep is done. `None` where there is no timer to wait for, which `refused` says
    /// if the service has not ended.
    #[inline]
    fn poll_or_refuse(
        &mut self,
        cx: &Context<'_>,
        is_borrowed: bool,
        refused: &mut RefusedKind,
    ) -> Option<bool> {
        if self.phase == Phase::Done {
            return Some(true);
        }
        let service = self.service;
        here::with(service, |reach| self.poll_at(reach, cx, is_borrowed, refused)).flatten()
    }

    /// Polls a sleep that is not done, as [`poll_or_refuse`](Self::poll_or_refuse) does.
    #[inline]
    fn poll_at(
        &mut self,
        reach: &Reach,
        cx: &Context<'_>,
        is_borrowed: bool,
        refused: &mut RefusedKind,
    ) -> Option<bool> {
        if let Some(place) = self.place() {
            if !self.waits_for_turn {
                if self.end_if_over(reach) {
                    return Some(true);
                }
            } else if reach.is_timer_over(place) && self.is_over(reach) {
                self.phase = Phase::Done;
                return Some(true);
            }
            if let Some(polled) = self.poll_armed(reach, place, cx) {
                return polled;
            }
        }
        // Most sleeps are polled long before their deadlines: the clock is read only if this thread
        // has read a time after the deadline, or if little time may be left.
        if !self.waits_for_turn && reach.may_have_passed(self.deadline) && self.end_if_over(reach) {
            return Some(true);
        }
        let Self { deadline, class, is_guard: is_guarded, .. } = *self;
        let carried = cx.waker().clone();
        let arming = Arming { deadline, class: class.bits(), is_guarded, carried };
        match reach.arm(self.shard, arming, is_borrowed) {
            Ok((Place { thread_timers, timer: Name { slot, number } }, has_time)) => {
                (self.thread_timers, self.slot, self.phase) = (thread_timers, slot, Phase::Armed);
                self.number = Some(number);
                Some(!has_time && !self.waits_for_turn && self.end_if_over(reach))
            }
            Err(unarmed) => self.wait_for_room(reach, unarmed, cx).unwrap_or_else(|kind| {
                *refused = kind;
                None
            }),
        }
    }

    /// Waits until the shard has looked for room, as [`poll_at`](Self::poll_at) does.
    #[cold]
    fn wait_for_room(
        &mut self,
        reach: &Reach,
        unarmed: Unarmed,
        cx: &Context<'_>,
    ) -> Result<Option<bool>, RefusedKind> {
        let is_asked = self.is_asked();
        self.phase = Phase::Unarmed;
        let shard = match unarmed {
            Unarmed::Refused(kind) => return Err(kind),
            Unarmed::NoRoom(shard) => shard,
        };
        if !self.waits_for_turn && self.end_if_over(reach) {
            return Ok(Some(true));
        }
        // A sleep without a shard of its own asks that of the thread that polls it.
        let asked = self.number.filter(|_| is_asked && self.thread_timers.shard() == shard);
        self.number = Some(reach.wait_for_room(shard, self.class, asked, cx.waker().clone())?);
        (self.thread_timers, self.phase) = (ThreadTimersName::none_of(shard), Phase::Asked);
        Ok(Some(false))
    }

    /// Ends the sleep if its deadline has passed.
    #[inline]
    fn end_if_over(&mut self, reach: &Reach) -> bool {
        let is_over = self.is_over(reach);
        if is_over {
            if let Some(place) = self.place() {
                reach.end(place, true);
            }
            self.phase = Phase::Done;
        }
        is_over
    }

    /// Polls a sleep whose timer is armed, as [`poll_at`](Self::poll_at) does. `None` if another
    /// timer is to be armed.
    #[inline(never)]
    #[allow(clippy::option_option, reason = "the inner one is what `poll_at` returns")]
    fn poll_armed(
        &mut self,
        reach: &Reach,
        place: Place,
        cx: &Context<'_>,
    ) -> Option<Option<bool>> {
        let waker = cx.waker();
        let progress = reach.with(place, |thread_timers, timer| {
            (thread_timers.look_at(timer, |known| known.will_wake(waker)), None)
        });
        match progress {
            Some(Progress::Same) => return Some(Some(false)),
            Some(Progress::Other) => {
                // A waker runs code of the user when it is cloned and when it is dropped.
                let waker = waker.clone();
                let replaced = reach.with(place, |thread_timers, timer| {
                    (thread_timers.replace(timer, waker), None)
                });
                if let Some(Ok(_old)) = replaced {
                    return Some(Some(false));
                }
            }
            Some(Progress::Fired) => {}
            Some(Progress::Closed) | None => {
                self.phase = Phase::Unarmed;
                return Some(None);
            }
        }
        // It has fired, perhaps since this poll began.
        self.phase = Phase::Unarmed;
        self.end_if_over(reach).then_some(Some(true))
    }
}

impl Future for Sleep {
    type Output = Result<(), RefusedKind>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_here(cx, false)
    }
}

impl Drop for Sleep {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place() {
            let end = |reach: &Reach| reach.end(place, reach.may_have_passed(self.deadline));
            // Where the service has ended, no timer of it carries anything.
            let _ended = here::with(self.service, end);
        }
    }
}

debug_fields!([] Sleep, |it| deadline: it.deadline, elapsed: it.is_elapsed());

impl Limit for Sleep {
    /// The runtime of the thread that arms the timer wakes its task, after a look at the sockets,
    /// where the runtime is known.
    #[inline]
    fn guard(&mut self) {
        self.is_guard = true;
    }

    #[inline]
    fn poll_late(&mut self, pass: &mut Pass, looks: u64, cx: &mut Context<'_>) -> Decided {
        ready!(self.poll_here(cx, false))?;
        pass.poll(Some(looks), || self.is_proven(looks, self.deadline), cx).map(Ok)
    }
}

/// Gives a future time until a deadline, on any thread; made by [`Handle::timeout`].
///
/// It is `Send` and `Sync` if the future is. A value that is ready at the same time as the
/// deadline wins.
///
/// # In time
///
/// Data that lies in a socket at the deadline is in time, also where the runtime was held up
/// and has not looked at the socket. So a deadline that has passed first waits for a *pass*:
/// the runtime has looked at all its sockets since. Then the future is polled once more, and if
/// it is pending, its time is up. A poll for another reason decides nothing, so a single poll
/// of a timeout whose deadline has passed, as by `now_or_never`, may be pending.
///
/// A pass is proven in a tokio runtime with I/O, on Unix, with the feature `tokio`, for the
/// sockets of that runtime. Elsewhere the task is woken once instead, which proves nothing: on
/// another runtime, in a build whose panics abort, where the process has no descriptor left,
/// and on a thread that has entered a current-thread runtime and does not run it. A service
/// with a [`ManualClock`](crate::clock::ManualClock) and a runtime without I/O need no pass.
///
/// Where the future waits for another task that reads the socket, that task may not have run
/// before the decision.
///
/// The runtime must run: a timeout that is polled by an executor within one of its tasks, as by
/// `futures::executor::block_on`, holds the only worker up, and so waits for itself, as one of
/// tokio's does. A timeout beside workers that are all stuck ends when one of them goes on. Why
/// no bound on that wait: it would cut clients in a runtime that is held up for longer.
///
/// A runtime without I/O is known by a panic of tokio, which is caught. The process's panic
/// hook runs for it, once for each such runtime.
pub type Timeout<F> = Guarded<F, Sleep>;

// A test of the thread timers adds what a pending one takes there.
const _: () = assert!(size_of::<Timeout<()>>() == 48);

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<Handle>();
    is_any_threads::<Sleep>();
    is_any_threads::<Timeout<std::future::Ready<()>>>();
};
