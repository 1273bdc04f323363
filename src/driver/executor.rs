//! The loop of a driver in an executor, the same for all hosts.
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
use std::task::{Poll, Waker};
use std::time::Duration;

use corewheel_shard::Tick;

use super::host::Host;
use super::spawn::Running;
use super::{Driven, Entered};
use crate::face::timers::Timers;
use crate::shard::Base;
use crate::shard::handler::Handler;
use crate::shard::timers::LocalFuture;
use crate::shard::turn::{Next, take_turn};
use crate::values::contain::Contained;

/// A shard as its driver takes the turns, whatever its timers carry. So a host, whose driver is
/// compiled for it, need not know the types of a service.
pub(crate) trait Turns {
    fn base(&self) -> &Base;
    /// See [`Driven::enter`].
    fn enter(&self) -> Entered;
    /// Takes a turn, which delivers no timer that is due after the tick `last`.
    fn turn(&mut self, last: Tick) -> Next;
    /// Starts the futures that other threads have sent.
    fn start_futures(&self, spawn: &dyn Fn(LocalFuture));
    /// How many connections the shard has.
    fn connections(&self) -> u64;
    /// See [`Core::fall_asleep`](crate::shard::Core::fall_asleep).
    fn fall_asleep(&self, latest: Tick, waker: &Waker) -> Option<Tick>;
}

/// A shard and the handler of its values.
pub(crate) struct WithHandler<T: Send + 'static, H> {
    driven: Driven<T>,
    handler: Contained<H>,
}

impl<T: Send + 'static, H: Handler<T>> WithHandler<T, H> {
    pub(crate) fn new(driven: Driven<T>, handler: H) -> Self {
        Self { driven, handler: Contained::new(handler) }
    }
}

impl<T: Send + 'static, H: Handler<T>> Turns for WithHandler<T, H> {
    fn base(&self) -> &Base {
        self.driven.timers().core()
    }

    fn enter(&self) -> Entered {
        self.driven.enter()
    }

    fn turn(&mut self, last: Tick) -> Next {
        take_turn(self.driven.timers(), &mut self.handler, last)
    }

    fn start_futures(&self, spawn: &dyn Fn(LocalFuture)) {
        start_futures(self.driven.timers(), spawn);
    }

    fn connections(&self) -> u64 {
        self.driven.timers().core().connections()
    }

    fn fall_asleep(&self, latest: Tick, waker: &Waker) -> Option<Tick> {
        self.driven.timers().core().fall_asleep(latest, waker)
    }
}

/// The longest that an alarm is set for; it is then set again.
const ALARM_MAX: Duration = Duration::from_secs(86_400);

/// Starts the futures that other threads have sent to a shard. False if there are none.
pub(super) fn start_futures<T: Send + 'static>(timers: &Timers<T>, spawn: impl Fn(LocalFuture)) {
    let core = timers.core();
    let jobs = core.take_jobs();
    for job in jobs {
        let spawn = || spawn(Box::pin(Running::new(timers.clone(), job(timers.clone()))));
        if !core.contain(spawn) {
            core.publish();
        }
    }
}

/// Runs a shard until it is shut down. The thread counts as the shard's from this call on.
pub(crate) fn drive<X: Host>(
    mut shard: Box<dyn Turns>,
    host: X,
) -> impl Future<Output = ()> + use<X> {
    if let Some(prefer) = host.prefer_driver() {
        shard.base().set_prefer_driver(prefer);
    }
    let here = shard.enter();
    async move {
        take_turns(&mut *shard, host).await;
        drop(shard);
        drop(here);
    }
}

async fn take_turns(shard: &mut dyn Turns, mut host: impl Host) {
    // When the alarm is set for, in nanoseconds; it is left alone unless it must be earlier.
    let mut armed_for = None;
    let now = |base: &Base| base.time().floor(base.nanos());
    // The executor has looked at its sockets since this tick began.
    let mut looked = now(shard.base());
    // When the shard first wants a turn.
    let mut due = Tick::NEVER;
    loop {
        let begun = now(shard.base());
        if due <= begun && looked < begun {
            shard.base().set_waits_for_sockets(true);
            host.read_sockets(shard.connections() as usize).await;
            shard.base().set_waits_for_sockets(false);
            looked = begun;
        }
        let next = shard.turn(looked);
        shard.start_futures(&|future| host.spawn(future));
        let until = match next {
            Next::Now => None,
            Next::At(tick) => Some(tick),
            Next::WhenWoken => Some(Tick::NEVER),
            Next::Never => return,
        };
        // A job may have scheduled an earlier timer before its future first waited.
        let slept = match until {
            Some(until) => sleep(shard, until, &mut host, &mut armed_for).await,
            None => None,
        };
        if let Some(Slept { until, alarm }) = slept {
            due = until;
            if let Some(alarm) = alarm {
                let base = shard.base();
                looked = looked.max(base.time().floor(alarm.min(base.nanos())));
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
async fn sleep(
    shard: &dyn Turns,
    latest: Tick,
    host: &mut impl Host,
    armed_for: &mut Option<u64>,
) -> Option<Slept> {
    let base = shard.base();
    let mut asleep_until = None;
    poll_fn(|cx| {
        host.keep_poll_request(cx);
        let until;
        if let Some(known) = asleep_until {
            until = known;
            if !base.stay_asleep(host.waker(cx)) {
                base.wake_up();
                if armed_for.is_some_and(|at| at <= base.nanos()) {
                    // A task has woken the driver, which the alarm should have done.
                    host.request_poll();
                }
                return Poll::Ready(Some(Slept { until, alarm: None }));
            }
        } else {
            until = match shard.fall_asleep(latest, host.waker(cx)) {
                Some(until) => until,
                None => return Poll::Ready(None),
            };
            asleep_until = Some(until);
            if until < Tick::NEVER {
                let at = base.time().start_of(until);
                if armed_for.is_none_or(|earlier| at < earlier) {
                    let after = Duration::from_nanos(at.saturating_sub(base.nanos()));
                    host.arm(after.min(ALARM_MAX));
                    *armed_for = Some(at);
                }
            }
        }
        if armed_for.is_some() && host.poll_alarm(cx).is_ready() {
            base.wake_up();
            return Poll::Ready(Some(Slept { until, alarm: armed_for.take() }));
        }
        Poll::Pending
    })
    .await
}
