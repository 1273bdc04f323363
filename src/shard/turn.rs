//! One turn of a shard; every driver takes turns by this function.

use std::time::Duration;

use corewheel_shard::{Budget, Tick};

use super::core::{Core, State};
use super::deliver::{Deliveries, deliver};
use super::handler::Handler;
use super::lateness::TurnEnd;
use super::shutdown::shut_down;
use super::timers::Timers;
use crate::values::contain::{Contained, contain};
use crate::values::settings::TurnBudget;

/// When a driver takes the next turn.
#[must_use = "it says when the next turn is due"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// At once, after other tasks of the thread: the turn has left work behind.
    Now,
    /// At this tick, or when a timer is scheduled or the driver is woken before.
    At(Tick),
    /// When a timer is scheduled or the driver is woken.
    WhenWoken,
    /// Never: the shard is shut down.
    Never,
}

/// Takes a turn: begin, take mail and run its callbacks, receive requests, look for room for timers
/// of threads. Then the turn shuts down if a shutdown order has come, advances the wheel, delivers
/// and acts for threads, publishes, and says when the next turn is due. The steps come in
/// this order, but [`deliver`] may act for threads first. Each keeps to its budget, but for the
/// callbacks of the mail. No timer that is due after `last` is delivered.
///
/// Expired timers are delivered with nothing borrowed, one at a time, so every callback sees the
/// shard as it is. Those of futures are taken from their threads some at a time.
pub(crate) fn turn<T: 'static>(
    core: &Core<T>,
    host: &mut Deliveries<'_, T, impl Handler<T>>,
    last: Tick,
) -> Next {
    if core.is_closed() {
        return Next::Never;
    }
    let TurnBudget { requests_max, expired_max, work_max, time_max } =
        core.directory().settings.budget;
    let now = core.nanos();
    core.begin_turn(now);
    if !core.parts.none_turns() {
        core.begin_turn_of_parts(now);
    }
    if core.take_mail(now) {
        run_calls(core, host);
    }
    let more_requests = core.receive(now, requests_max);
    if let Some(order) = core.take_shutdown_order() {
        let report = shut_down(core, host, order.policy);
        // If no caller waits for the report, the payloads in it are dropped here.
        contain(core.id(), || drop(order.report.send(report)));
        return Next::Never;
    }
    let last = core.time().floor(now).min(last);
    core.advance(last, Budget { expired_max, work_max });
    deliver(core, host, last, time_max, expired_max as usize);
    let wanted = core.parts.wanted();
    let more = more_requests || wanted.has_work || core.is_behind(last);
    let next = core.next_deadline_but(wanted.turn_by);
    core.end_turn(&TurnEnd { left_requests: more_requests, is_more: more, next });
    core.publish();
    core.parts.drop_ownerless();
    match next {
        _ if more => Next::Now,
        Some(tick) => Next::At(tick),
        None => Next::WhenWoken,
    }
}

/// Takes a turn of a shard, which delivers no timer that is due after the tick `last`.
pub(crate) fn take_turn<T, H>(timers: &Timers<T>, handler: &mut Contained<H>, last: Tick) -> Next
where
    T: Send + 'static,
    H: Handler<T>,
{
    turn(timers.core(), &mut Deliveries { timers, handler }, last)
}

/// Runs the callbacks of the mail. Mail is rare, so they have no budget.
fn run_calls<T: 'static>(core: &Core<T>, host: &mut Deliveries<'_, T, impl Handler<T>>) {
    for call in core.take_calls() {
        core.contain(|| host.run(call));
    }
}

impl<T: 'static> Core<T> {
    fn advance(&self, tick: Tick, budget: Budget) {
        self.state.borrow_mut().wheel.advance(tick, budget);
    }

    fn begin_turn_of_parts(&self, now: u64) {
        self.parts.forget_left();
        let now = Duration::from_nanos(now);
        self.parts.each(|_, part| {
            part.turn_begins(now);
            true
        });
    }

    /// Whether the wheel, a thread or a command has left work for a turn that follows at once.
    fn is_behind(&self, last: Tick) -> bool {
        let State { wheel, left, threads, .. } = &*self.state.borrow();
        let has_act = || threads.act_by() <= self.time().start_of(last);
        wheel.is_behind() || left.has_effects() || has_act()
    }

    /// When the next turn is due; `None` if no timer or part wants a turn.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.next_deadline_but(self.parts.wanted().turn_by)
    }

    /// When the next turn is due, if parts want one by `turn_by`.
    fn next_deadline_but(&self, turn_by: Tick) -> Option<Tick> {
        let lanes_due = self.lanes_due().unwrap_or(Tick::NEVER);
        let State { wheel, threads, .. } = &mut *self.state.borrow_mut();
        threads.refresh();
        let next_act = self.time().ceil(threads.act_by());
        let next = wheel.next_deadline().map_or(next_act, |next| next.min(next_act)).min(lanes_due);
        Some(next.min(turn_by)).filter(|next| *next < Tick::NEVER)
    }
}
