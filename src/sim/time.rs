//! The clock of a simulation, as its tasks see it.

use std::future::{Future, poll_fn};
use std::time::{Duration, Instant};

use super::executor::{Alarm, Executor};
use crate::clock::saturating_nanos;

/// The clock of a simulation, for its tasks; made by [`Simulation::time`](super::Simulation::time).
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::sim::Simulation;
/// use std::time::Duration;
///
/// let builder = TimerService::beside_runtime().shards(1).capacity(10);
/// let mut sim: Simulation = Simulation::start(1, builder, |_| |_, _| ())?;
/// let time = sim.time();
/// sim.run(async move {
///     let begin = time.now();
///     time.sleep(Duration::from_secs(3_600)).await;
///     assert!(time.now() - begin >= Duration::from_secs(3_600));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Time(pub(super) Executor);

impl Time {
    /// The simulated present.
    pub fn now(&self) -> Instant {
        self.0.clock().now()
    }

    /// How many times a task has run since the start. A turn of a shard takes one of these steps,
    /// so all that happens in it happens at one number.
    pub fn steps(&self) -> u64 {
        self.0.steps()
    }

    /// Waits for this much simulated time, without a timer of the service. It is never early.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Unpin + use<> {
        let at = self.0.nanos().saturating_add(saturating_nanos(time));
        let alarm = Alarm::new(&self.0, at);
        poll_fn(move |cx| alarm.poll(cx))
    }
}

debug_fields!([] Time, |it| now: Duration::from_nanos(it.0.nanos()));
