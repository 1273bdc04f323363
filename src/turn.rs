//! One turn of a shard, the same for every driver.

use std::time::Duration;

use crate::clock::nanos_after;
use crate::contain::contain;
use crate::core::Delivery;
use crate::shutdown::{ShardReport, ShutdownPolicy, UnreadReport};
use crate::stats::ShardState;
use crate::task::Handler;
use crate::timers::Timers;

use corewheel_shard::Tick;

/// What a turn leaves to its driver.
#[must_use = "it says when the next turn is due"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Turn {
    /// There is more to do at once, after whatever else the thread has to do.
    More,
    /// Nothing to do before this tick, unless something is scheduled or the bell rings.
    Next(Tick),
    /// Nothing to do unless something is scheduled or the bell rings.
    Idle,
    /// The shard is shut down; there will be nothing to do any more.
    Closed,
}

/// Drain the lanes, advance, deliver, publish, say what is next: always in this order, each within
/// its budget.
///
/// What is due is delivered with nothing borrowed, one timer at a time, so that every callback sees
/// the shard as it is.
pub(crate) fn turn<T, H>(timers: &Timers<T>, handler: &mut H) -> Turn
where
    T: Send + 'static,
    H: Handler<T>,
{
    let core = timers.core();
    if core.is_closed() {
        return Turn::Closed;
    }
    let now = core.nanos();
    core.note_time(now);
    let more_requests = core.receive(now);
    if let Some(order) = core.take_order() {
        let report = shut_down(timers, handler, order.policy);
        // Where no caller waits for the report any more, the tasks in it are dropped here.
        contain(core.id(), || drop(order.report.send(UnreadReport::new(report))));
        return Turn::Closed;
    }
    core.advance(now);
    let budget = core.directory().settings.budget;
    deliver(timers, handler, budget.time_max, budget.expired_max as usize);
    let more = more_requests || core.is_behind();
    core.note_turn(more);
    core.publish();
    match core.next_deadline() {
        _ if more => Turn::More,
        Some(tick) => Turn::Next(tick),
        None => Turn::Idle,
    }
}

/// Ends a shard: nothing comes in any more, and what is pending goes the way of the policy.
pub(crate) fn shut_down<T, H>(
    timers: &Timers<T>,
    handler: &mut H,
    policy: ShutdownPolicy,
) -> ShardReport<T>
where
    T: Send + 'static,
    H: Handler<T>,
{
    let core = timers.core();
    core.close(ShardState::Closed);
    core.run_all_put_off(timers);
    if policy == ShutdownPolicy::Fire {
        core.advance_to_the_end();
        deliver(timers, handler, None, usize::MAX);
    }
    core.contain(|| handler.closing(timers));
    core.clear_out(policy)
}

/// Delivers what is due, until the turn's counts or this much time are used up. The wheel has
/// counted the timers; of scaled timeouts there are so many at most.
fn deliver<T, H>(
    timers: &Timers<T>,
    handler: &mut H,
    time_max: Option<Duration>,
    mut scaled_max: usize,
) where
    T: Send + 'static,
    H: Handler<T>,
{
    let core = timers.core();
    let mut now = core.nanos();
    let end = nanos_after(now, time_max.unwrap_or(Duration::MAX));
    let tick = core.directory().tick.floor(now);
    while let Some(delivery) = core.next_delivery(now, tick, &mut scaled_max) {
        let calm = contain(core.id(), || match delivery {
            Delivery::Value(fired) => handler.expired(fired, timers),
            Delivery::Call(call) => call.run(timers),
            Delivery::Wake(Some(waker)) => waker.wake(),
            Delivery::Wake(None) => {}
            Delivery::Events(index, events) => core.deliver_events(index, events, timers),
            Delivery::Scaled(class) => class.deliver(now),
        });
        let after = core.nanos_near();
        core.note_delivery(calm, after.saturating_sub(now));
        now = after;
        if now >= end {
            break;
        }
    }
}
