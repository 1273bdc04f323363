//! Sleeps and timeouts that any thread may poll and drop.
//!
//! A sleep is over when the clock says so, whether its timer has fired or not; the timer only wakes
//! the task. So the sleep and the shard share no state: the sleep holds the handle of its timer,
//! and the timer holds the waker.
//!
//! Why not a flag that both share: it would be an allocation for each sleep, made on one thread and
//! freed on another.
//!
//! A sleep that ends before its shard has received its timer marks the request as cancelled where
//! it lies in the lane, and sends nothing. Then there is nothing left to do for the sleep, on
//! whichever thread it is dropped.
//!
//! Invariants: a sleep is never over before its deadline, by the system's clock. A pending timer of
//! a sleep is not later than the sleep's deadline.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use corewheel_shard::Tick;
use pin_project_lite::pin_project;

use super::here::{Reach, ThreadClient};
use super::{Handle, here};
use crate::clock::Timeline;
use crate::clock::when::When;
use crate::link::lane::Mark;
use crate::shard::request::NumberedWaker;
use crate::values::error::{Elapsed, TimeoutError};
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::refused::RefusedKind;

/// Waits for a deadline, on any thread; made by [`Handle::sleep`].
///
/// It is `Send`, `Sync`, `Unpin` and `'static`. It schedules a timer when it is first polled before
/// its deadline, and cancels the timer when it is dropped, without a reply and without waking the
/// shard. It may be polled and dropped on any thread. A drop is harmless on a thread that ends,
/// after the service has ended, and on a runtime that is shut down.
///
/// # Errors
///
/// As a future it returns `Full` or `Reserved` if the shard has no room for its timer, `Closed` if
/// the shard has ended before the deadline, and `NoSuchShard`. After an error it may be polled
/// again. A lane that is full for a moment is no error: the sleep waits until it has room.
///
/// `Reserved` means that the last slots are keys of other clients. The shard takes back the keys
/// that are not in use, in the next tick if not at once, and the sleep waits for one: it returns
/// `Reserved` only when it was refused for that reason in 4 ticks. A sleep whose deadline comes
/// before is done then, without a timer.
///
/// # Cost
///
/// 88 bytes, and no allocation. A poll that is ready costs a reading of the clock. The first poll
/// before the deadline costs what a [`schedule`](crate::RemoteTimers::schedule) does. A drop before
/// the shard has received the timer costs a compare-and-exchange, and a later one a message. A poll
/// with another waker than the poll before costs a first poll and such a drop; once the shard has
/// received the timer, a message with an allocation.
///
/// The timer holds the waker, and with it the memory of its task. After a drop the waker is held
/// until the shard next receives requests. If the shard had not received the timer before the drop,
/// that is at most a second later, if the shard keeps up. If it had, nothing wakes the shard for
/// the cancel: a shard that has nothing else to do holds the waker until the old deadline.
#[must_use = "a future does nothing unless it is awaited"]
pub struct SharedSleep {
    handle: Handle,
    deadline: Tick,
    phase: Phase,
}

enum Phase {
    /// No timer is pending.
    Unarmed,
    /// No timer is pending, since the lane was full, or since other clients used the last keys. The
    /// lane holds the waker.
    WaitsForRoom(RoomWait),
    Armed(Armed),
    Done,
}

impl Phase {
    /// The phase of a sleep that a shard has refused at `now` and that waits for room; `None` if no
    /// room comes.
    fn after_refusal(
        kind: RefusedKind,
        waited: Option<RoomWait>,
        shard: ShardId,
        now: Tick,
    ) -> Option<Self> {
        let waited = waited.unwrap_or(RoomWait { ticks: 0, last: Tick::ZERO, shard });
        match kind {
            RefusedKind::Busy => Some(Self::WaitsForRoom(RoomWait { shard, ..waited })),
            RefusedKind::Reserved { .. } => waited.longer(shard, now).map(Self::WaitsForRoom),
            _ => None,
        }
    }
}

/// In how many ticks a sleep is refused as `Reserved` before it returns that.
const RESERVED_TICKS: u32 = 4;

/// How long a sleep has waited for room. Only waiting for keys that other clients use is counted:
/// the shard looks for unused keys once in each tick and then wakes the sleep, so the ticks are
/// counted in which the sleep was refused. A shard that was held up still looks as often.
#[derive(Clone, Copy)]
struct RoomWait {
    /// Less than [`RESERVED_TICKS`].
    ticks: u32,
    /// The last of these ticks, if there is one.
    last: Tick,
    /// The shard that has refused.
    shard: ShardId,
}

impl RoomWait {
    /// The wait of a sleep that is refused again, at `now`; `None` if it has waited long enough.
    fn longer(self, shard: ShardId, now: Tick) -> Option<Self> {
        if self.ticks > 0 && self.last >= now {
            return Some(Self { shard, ..self });
        }
        let ticks = self.ticks + 1;
        (ticks < RESERVED_TICKS).then_some(Self { ticks, last: now, shard })
    }
}

/// A timer that was scheduled.
struct Armed {
    timer: TimerHandle,
    /// Cancels the timer in its lane; `None` if the timer was not sent through a lane, or is known
    /// to have been received.
    mark: Option<Mark>,
    /// When the timer fires: at the deadline, or before if the deadline has become later since.
    fires_at: Tick,
    waker: WakerId,
    /// How many wakers the timer had before.
    wakers: u32,
}

/// Says whether two wakers are the same, as [`Waker::will_wake`] does, without holding a waker. The
/// timer holds the waker, so no other waker has the same number while the timer is pending.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WakerId(usize, usize);

impl WakerId {
    fn of(waker: &Waker) -> Self {
        Self(waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
    }
}

impl SharedSleep {
    #[inline]
    pub(crate) fn new(handle: Handle, deadline: Tick) -> Self {
        Self { handle, deadline, phase: Phase::Unarmed }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn deadline_tick(&self) -> Tick {
        self.deadline
    }

    /// When the future will be done: the deadline, rounded up to a tick. `None` if the service has
    /// ended and this thread has not used it before.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.handle.time()?.instant(self.deadline))
    }

    /// Whether the future is done.
    pub fn is_elapsed(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Waits until something else is due instead, also after it was done. A deadline that becomes
    /// later sends nothing; the timer is scheduled again when it fires.
    pub fn reset<W: When>(&mut self, when: W) {
        self.reset_to(self.handle.tick_of(when));
    }

    pub(crate) fn reset_to(&mut self, deadline: Tick) {
        let before = std::mem::replace(&mut self.deadline, deadline);
        match &mut self.phase {
            Phase::Unarmed => {}
            Phase::WaitsForRoom(waited) => {
                // The lane may hold the waker until after the new deadline.
                if deadline < before
                    && let Some(reach) = self.handle.reach()
                    && let Some((client, _)) = reach.client()
                {
                    client.wake_waiting(waited.shard);
                }
            }
            Phase::Done => self.phase = Phase::Unarmed,
            Phase::Armed(armed) => {
                if deadline < armed.fires_at {
                    armed.fires_at = deadline;
                    let Some(reach) = self.handle.reach() else { return };
                    let timer = armed.timer;
                    if let Some(shard) = reach.shard(Some(timer.shard())) {
                        shard.reset_to_earlier(timer.key(), deadline);
                    } else if let Some((client, _)) = reach.client() {
                        client.reset_to_earlier(timer, deadline);
                    }
                }
            }
        }
    }

    /// Whether the service or the shard has ended, as far as this thread knows.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(reach) = self.handle.reach() else { return true };
        if reach.shard(self.handle.shard).is_some() {
            return false;
        }
        let Some((client, of_thread)) = reach.client() else { return true };
        client.has_ended(self.handle.shard.unwrap_or(of_thread))
    }

    /// Schedules a timer for a future that is polled before its deadline, at `nanos` nanoseconds.
    fn arm(
        &mut self,
        reach: &Reach,
        nanos: u64,
        cx: &Context<'_>,
    ) -> Poll<Result<(), RefusedKind>> {
        let waited = match &mut self.phase {
            Phase::WaitsForRoom(waited) => Some(*waited),
            Phase::Armed(armed) => {
                // An old timer that is still in its lane would wake the task once more.
                armed.mark.take().map(Mark::cancel);
                None
            }
            Phase::Unarmed | Phase::Done => None,
        };
        self.phase = Phase::Unarmed;
        let Handle { class, shard, .. } = self.handle;
        let waker = cx.waker();
        let id = WakerId::of(waker);
        // A waker runs code of the user when it is cloned and when it is dropped.
        let scheduled = if let Some(shard) = reach.shard(shard) {
            let scheduled = shard.schedule_waker(class, self.deadline, waker.clone());
            scheduled.map(|timer| (timer, None)).map_err(|_unused| RefusedKind::Full)
        } else {
            let Some((client, of_thread)) = reach.client() else {
                return Poll::Ready(Err(self.handle.why_closed()));
            };
            let shard = shard.unwrap_or(of_thread);
            match client.schedule_waker(class, shard, self.deadline, waker.clone(), nanos) {
                Err((kind, waker)) => {
                    let now = reach.time().floor(nanos);
                    if let Some(phase) = Phase::after_refusal(kind, waited, shard, now) {
                        self.phase = phase;
                        return self.wait_for_room(reach, client, shard, waker);
                    }
                    Err(kind)
                }
                Ok((timer, mark)) => Ok((timer, Some(mark))),
            }
        };
        match scheduled {
            Ok((timer, mark)) => {
                let (fires_at, waker) = (self.deadline, id);
                self.phase = Phase::Armed(Armed { timer, mark, fires_at, waker, wakers: 0 });
                Poll::Pending
            }
            Err(kind) => Poll::Ready(Err(kind)),
        }
    }

    /// Has a waker woken when there is room for a timer, or else in the next tick.
    #[cold]
    fn wait_for_room(
        &mut self,
        reach: &Reach,
        client: &dyn ThreadClient,
        shard: ShardId,
        waker: Waker,
    ) -> Poll<Result<(), RefusedKind>> {
        if let Err(kind) = client.wait_for_room(shard, waker) {
            self.phase = Phase::Unarmed;
            return Poll::Ready(Err(kind));
        }
        // The tick after this one may be too late for a thread that was delayed in this poll.
        if self.is_over(reach.time(), reach.nanos()) {
            self.phase = Phase::Done;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Whether the deadline has passed; `nanos` is the present by the near clock.
    #[inline]
    fn is_over(&self, time: &Timeline, nanos: u64) -> bool {
        // The near clock may be ahead by a microsecond, so the system's clock decides.
        time.floor(nanos) >= self.deadline && time.floor(time.nanos()) >= self.deadline
    }

    /// Polls a future whose timer is pending. `None` if another timer is to be scheduled.
    fn poll_armed(
        &mut self,
        reach: &Reach,
        cx: &Context<'_>,
    ) -> Option<Poll<Result<(), RefusedKind>>> {
        let Phase::Armed(armed) = &mut self.phase else { return None };
        let timer = armed.timer;
        let waker = WakerId::of(cx.waker());
        let (own, client) = match reach.shard(Some(timer.shard())) {
            Some(shard) => (Some(shard), None),
            None => (None, reach.client().map(|(client, _)| client)),
        };
        let has_ended = |client: &dyn ThreadClient| client.has_ended(timer.shard());
        if own.is_none() && client.is_none_or(has_ended) {
            self.phase = Phase::Unarmed;
            return Some(Poll::Ready(Err(self.handle.why_closed())));
        }
        if waker == armed.waker {
            return Some(Poll::Pending);
        }
        if armed.mark.take().is_some_and(Mark::cancel) {
            return None;
        }
        armed.waker = waker;
        armed.wakers += 1;
        let waker = NumberedWaker { waker: cx.waker().clone(), number: armed.wakers };
        match (own, client) {
            (Some(shard), _) => shard.replace_waker(timer.key(), waker),
            (None, Some(client)) => client.replace_waker(timer, waker),
            (None, None) => {}
        }
        Some(Poll::Pending)
    }
}

impl Future for SharedSleep {
    type Output = Result<(), RefusedKind>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Phase::Done = self.phase {
            return Poll::Ready(Ok(()));
        }
        let Some(reach) = self.handle.reach() else {
            self.phase = Phase::Unarmed;
            return Poll::Ready(Err(self.handle.why_closed()));
        };
        let (time, nanos) = (reach.time(), reach.nanos());
        if self.is_over(time, nanos) {
            self.phase = Phase::Done;
            return Poll::Ready(Ok(()));
        }
        let now = time.floor(nanos);
        // A timer that is due has fired or is about to, and wakes the task for nothing.
        if let Phase::Armed(armed) = &self.phase
            && (armed.fires_at > now || armed.fires_at >= self.deadline)
            && let Some(polled) = self.poll_armed(&reach, cx)
        {
            return polled;
        }
        self.arm(&reach, nanos, cx)
    }
}

impl Drop for SharedSleep {
    fn drop(&mut self) {
        let Phase::Armed(armed) = &mut self.phase else { return };
        if armed.mark.take().is_some_and(Mark::cancel) {
            return;
        }
        let timer = armed.timer;
        let Some(reach) = self.handle.reach() else {
            if let Some(client) = here::client_for_once(self.handle.service) {
                client.cancel(timer);
            }
            return;
        };
        if let Some(shard) = reach.shard(Some(timer.shard())) {
            shard.cancel(timer.key());
        } else if let Some((client, _)) = reach.client() {
            client.cancel(timer);
        }
    }
}

impl fmt::Debug for SharedSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSleep")
            .field("deadline", &self.deadline)
            .field("elapsed", &self.is_elapsed())
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// Gives a future time until a deadline, on any thread; made by [`Handle::timeout`].
    ///
    /// It is `Send` and `Sync` if the future is. A value that is ready at the same time as the
    /// deadline wins.
    #[must_use = "a future does nothing unless it is awaited"]
    #[derive(Debug)]
    pub struct SharedTimeout<F> {
        #[pin]
        future: F,
        sleep: SharedSleep,
    }
}

impl<F> SharedTimeout<F> {
    #[inline]
    pub(crate) fn new(sleep: SharedSleep, future: F) -> Self {
        Self { future, sleep }
    }

    /// The future.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The future, without a timeout.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for SharedTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The future first: a value that is there at the deadline is there in time.
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(cx).map(|slept| {
            Err(match slept {
                Ok(()) => TimeoutError::Elapsed(Elapsed),
                Err(error) => TimeoutError::NoTimer(error),
            })
        })
    }
}

const _: () = {
    const fn is_any_threads<X: Send + Sync + Unpin + 'static>() {}
    is_any_threads::<Handle>();
    is_any_threads::<SharedSleep>();
    is_any_threads::<SharedTimeout<std::future::Ready<()>>>();
};
