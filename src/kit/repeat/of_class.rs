//! Periodic callbacks whose timers are of a class.

use std::time::Instant;

use super::options::Body;
use super::{Periodic, PeriodicRun, RemotePeriodic, Repeat, clock};
use crate::face::callback::SendCall;
use crate::face::classed::{Classed, ClassedClient};
use crate::values::error::ScheduleError;
use crate::values::handle::ShardId;

impl<T: Send + 'static> Classed<'_, T> {
    /// As [`Timers::repeat`](crate::Timers::repeat). Each of its runs counts as a timer of the
    /// class.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn repeat<F>(&self, repeat: Repeat, call: F) -> Result<Periodic<T>, ScheduleError<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
    {
        let due = repeat.first(clock(self.timers()), self.timers().now());
        self.timers().begin(due, repeat.with(call), self.id())
    }

    /// As [`Timers::repeat_by_plan`](crate::Timers::repeat_by_plan). Each of its runs counts as a
    /// timer of the class.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback; the plan is dropped.
    pub fn repeat_by_plan<F, N>(
        &self,
        first: Instant,
        next: N,
        call: F,
    ) -> Result<Periodic<T>, ScheduleError<F>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + 'static,
        N: FnMut(Instant) -> Option<Instant> + 'static,
    {
        self.timers().begin(first, Body::planned(next, call), self.id())
    }
}

impl<T: Send + 'static> ClassedClient<'_, T> {
    /// As [`Client::repeat_on`](crate::Client::repeat_on). Each of its runs counts as a timer of
    /// the class.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn repeat_on<F>(
        &self,
        shard: ShardId,
        repeat: Repeat,
        call: F,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    {
        let client = self.client();
        let due = repeat.first(client.directory().time.clock(), client.now());
        client.begin_on(shard, due, repeat.with(call), self.id())
    }

    /// As [`Client::repeat_by_plan_on`](crate::Client::repeat_by_plan_on). Each of its runs counts
    /// as a timer of the class.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn repeat_by_plan_on<F, N>(
        &self,
        shard: ShardId,
        first: Instant,
        next: N,
        call: F,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        self.client().begin_on(shard, first, Body::planned(next, call), self.id())
    }
}
