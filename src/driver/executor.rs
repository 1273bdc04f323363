//! The loop of a driver in an executor, the same for glommio and tokio.
//!
//! What is due may guard a socket, whose data came in time and lies there unread. So a turn
//! delivers what was due when the executor last looked at its sockets. An executor does that before
//! it looks at its alarms. A driver that finds more due has the sockets read first: it runs late,
//! or another task has woken it.
//!
//! Why not only where it is some milliseconds late: on a busy thread, a client that was in time by
//! less is cut.
//!
//! Cost: under a flood, the sockets are read once a tick.

use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel_shard::Tick;

use super::Driven;
use super::spawn::Running;
use crate::face::timers::Timers;
use crate::shard::host::{Values, take_turn};
use crate::shard::stored::LocalFuture;
use crate::shard::turn::Next;

/// The operations that a driver needs of its executor.
pub(crate) trait Host {
    /// Sets the one alarm.
    fn arm(&mut self, after: Duration);
    /// Whether the alarm has gone off.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// The waker by which other threads wake the driver.
    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        cx.waker()
    }
    /// Makes the executor look at its sockets and alarms soon, although tasks are ready to run.
    fn request_poll(&mut self) {}
    /// Keeps [`request_poll`](Self::request_poll) possible, while the driver sleeps.
    fn keep_poll_request(&mut self, _cx: &mut Context<'_>) {}
    /// Waits until the executor has looked at all sockets, and all tasks that this has made ready
    /// have run once. The shard has this many connections.
    async fn read_sockets(&mut self, connections: usize);
    /// Lets other tasks of the executor run.
    async fn step_aside(&mut self);
    /// Starts a future beside the driver.
    fn spawn(&self, future: LocalFuture);
}

/// The longest that an alarm is set for; it is then set again.
const ALARM_MAX: Duration = Duration::from_secs(86_400);

/// Runs a shard until it is shut down. The thread counts as the shard's from this call on.
pub(crate) fn drive<T, V, X>(driven: Driven<T>, values: V, host: X) -> impl Future<Output = ()>
where
    T: Send + 'static,
    V: Values<T>,
    X: Host,
{
    let here = driven.enter();
    async move {
        take_turns(driven.timers(), values, host).await;
        drop(driven);
        drop(here);
    }
}

async fn take_turns<T, V, X>(timers: &Timers<T>, mut values: V, mut host: X)
where
    T: Send + 'static,
    V: Values<T>,
    X: Host,
{
    let core = timers.core();
    // When the alarm is set for, in nanoseconds; it is left alone unless it must be earlier.
    let mut armed_for = None;
    // The executor has looked at its sockets since this tick began.
    let mut looked = core.time().floor(core.nanos());
    // When the shard first wants a turn.
    let mut due = Tick::NEVER;
    loop {
        let now = core.time().floor(core.nanos());
        if due <= now && looked < now {
            core.set_waits_for_sockets(true);
            host.read_sockets(core.connections() as usize).await;
            core.set_waits_for_sockets(false);
            looked = now;
        }
        let next = take_turn(timers, &mut values, looked);
        for job in core.take_jobs() {
            let spawn = || host.spawn(Box::pin(Running::new(timers.clone(), job(timers.clone()))));
            if !core.contain(spawn) {
                core.publish();
            }
        }
        let until = match next {
            Next::Now => None,
            Next::At(tick) => Some(tick),
            Next::WhenWoken => Some(Tick::NEVER),
            Next::Never => return,
        };
        // A job may have scheduled an earlier timer before its future first waited.
        let slept = match until {
            Some(until) => sleep(timers, until, &mut host, &mut armed_for).await,
            None => None,
        };
        if let Some(Slept { until, alarm }) = slept {
            due = until;
            if let Some(alarm) = alarm {
                looked = looked.max(core.time().floor(alarm.min(core.nanos())));
            }
        } else {
            // A turn that has left work behind is followed by another at once.
            due = until.unwrap_or(Tick::ZERO);
            // Also where requests arrive after each turn, without an end.
            host.step_aside().await;
        }
    }
}

/// How a sleep of the driver has ended.
struct Slept {
    /// The first tick at which the shard wanted a turn.
    until: Tick,
    /// When the alarm was set for that has gone off, in nanoseconds; `None` if another task has
    /// woken the driver.
    alarm: Option<u64>,
}

/// Sleeps until `latest`, or until an earlier tick at which the shard wants a turn, or until it is
/// woken. `None` if a request has arrived since the turn, and it has not slept.
async fn sleep<T, X>(
    timers: &Timers<T>,
    latest: Tick,
    host: &mut X,
    armed_for: &mut Option<u64>,
) -> Option<Slept>
where
    T: Send + 'static,
    X: Host,
{
    let core = timers.core();
    let mut asleep_until = None;
    poll_fn(|cx| {
        host.keep_poll_request(cx);
        let until;
        if let Some(known) = asleep_until {
            until = known;
            if !core.post().doorbell.stay_asleep(host.waker(cx)) {
                core.wake_up();
                if armed_for.is_some_and(|at| at <= core.nanos()) {
                    // A task has woken the driver, which the alarm should have done.
                    host.request_poll();
                }
                return Poll::Ready(Some(Slept { until, alarm: None }));
            }
        } else {
            until = match core.fall_asleep(latest, host.waker(cx)) {
                Some(until) => until,
                None => return Poll::Ready(None),
            };
            asleep_until = Some(until);
            if until < Tick::NEVER {
                let at = core.time().start_of(until);
                if armed_for.is_none_or(|earlier| at < earlier) {
                    let after = Duration::from_nanos(at.saturating_sub(core.nanos()));
                    host.arm(after.min(ALARM_MAX));
                    *armed_for = Some(at);
                }
            }
        }
        if armed_for.is_some() && host.poll_alarm(cx).is_ready() {
            core.wake_up();
            return Poll::Ready(Some(Slept { until, alarm: armed_for.take() }));
        }
        Poll::Pending
    })
    .await
}
