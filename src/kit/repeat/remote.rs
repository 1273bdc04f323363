//! Periodic callbacks on a shard, from elsewhere.

use std::sync::Arc;
use std::time::Instant;

use corewheel_shard::TimerKey;

use super::options::Body;
use super::{Course, PeriodicRun, Repeat, StopOutcome};
use crate::face::callback::SendCall;
use crate::face::client::Client;
use crate::face::timers::Timers;
use crate::kit::herd::slacken;
use crate::link::stop_flag::{Stop, StopFlag};
use crate::values::class::ClassId;
use crate::values::error::ScheduleError;
use crate::values::handle::{ShardId, TimerHandle};

/// A callback that runs periodically on a shard, as another thread knows it; made by
/// [`Client::repeat_on`] and [`Client::repeat_by_plan_on`].
///
/// `Send` and `Sync`. It does not own the callback: when it and all its clones are dropped, the
/// callback goes on.
#[derive(Clone, Debug)]
pub struct RemotePeriodic {
    first: TimerHandle,
    stop_flag: Arc<StopFlag>,
}

impl RemotePeriodic {
    /// Stops the callback and says what that came to, at once and without waiting for the shard.
    ///
    /// It cannot be refused, and takes effect at once: after `Stopped` the callback is not running
    /// and will not. Any client of the service will do; it tells the shard to drop the callback and
    /// free its timer when it next comes by.
    pub fn stop<T: Send + 'static>(&self, client: &Client<T>) -> StopOutcome {
        match self.stop_flag.stop() {
            Stop::Over => StopOutcome::AlreadyOver,
            Stop::Runs => StopOutcome::LastRun,
            Stop::Waited(timer) => {
                let later = timer.map(|(index, generation)| {
                    self.first.home().handle(TimerKey::from_parts(index, generation))
                });
                client.cancel_detached(later.unwrap_or(self.first));
                StopOutcome::Stopped
            }
        }
    }

    /// Whether it will not run again.
    pub fn is_over(&self) -> bool {
        self.stop_flag.is_over()
    }

    /// The shard that it runs on.
    pub fn shard(&self) -> ShardId {
        self.first.shard()
    }
}

/// The stop flag of one callback, which is over when the callback is dropped.
pub(super) struct StopOfOne(Arc<StopFlag>);

impl StopOfOne {
    pub(super) fn begin(&self) -> bool {
        self.0.begin()
    }

    pub(super) fn rest(&self, timer: TimerKey) -> bool {
        self.0.rest(timer.index(), timer.generation())
    }

    pub(super) fn end(&self) {
        self.0.end();
    }
}

impl Drop for StopOfOne {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Periodic callbacks.
impl<T: Send + 'static> Client<T> {
    /// Runs a callback periodically on a shard, as [`Timers::repeat`] does there. The moment of its
    /// first run is worked out here, so the way to the shard is part of it and not on top of it.
    ///
    /// ```
    /// use corewheel::{PeriodicRun, Repeat, ShutdownPolicy, StopOutcome, TimerService};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let client = service.client();
    /// let shard = service.shards().next().unwrap();
    ///
    /// let (sender, beats) = mpsc::channel();
    /// let every = Repeat::at_fixed_rate(Duration::from_millis(2))?;
    /// let heart = client.repeat_on(shard, every, move |run: &mut PeriodicRun<'_>| {
    ///     // Nobody listens any more at the end of this.
    ///     let _ = sender.send(run.number());
    /// })?;
    /// assert_eq!((beats.recv()?, beats.recv()?), (0, 1));
    /// // It was waiting, or is running for the last time.
    /// assert_ne!(heart.stop(&client), StopOutcome::AlreadyOver);
    /// assert_ne!(heart.stop(&client), StopOutcome::Stopped);
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// assert!(heart.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with what would have begun it on its shard: run by hand it begins with a
    /// run at once. Once it was accepted it cannot be refused.
    pub fn repeat_on<F>(
        &self,
        shard: ShardId,
        repeat: Repeat,
        call: F,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    {
        let due = repeat.first(self.directory().time.clock(), self.now());
        self.begin_on(shard, due, repeat.with(call), ClassId::NONE)
    }

    /// Runs a callback by a plan on a shard, as [`Timers::repeat_by_plan`] does there.
    ///
    /// # Errors
    ///
    /// As for [`repeat_on`](Self::repeat_on).
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
        self.begin_on(shard, first, Body::planned(next, call), ClassId::NONE)
    }

    pub(super) fn begin_on<F, N>(
        &self,
        shard: ShardId,
        due: Instant,
        mut body: Body<F, N>,
        class: ClassId,
    ) -> Result<RemotePeriodic, ScheduleError<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        let time = &self.directory().time;
        let aim = body.aim(time.clock(), due);
        let at = if body.slack.is_zero() {
            aim
        } else {
            let nanos = time.nanos_at(aim);
            time.instant(slacken(time, time.ceil(nanos), nanos, body.slack))
        };
        let stop_flag = Arc::new(StopFlag::new());
        let one = StopOfOne(Arc::clone(&stop_flag));
        let begin = move |timers: &Timers<T>| {
            // The first timer's callback is this, the later ones' is the course's own.
            let (_, call) = Course::new(body, class, (due, aim), Some(one));
            call(timers, 0);
        };
        let (deadline, now) = (self.tick_at(at), self.nanos());
        let first = self.schedule_call(class, shard, deadline, now, Box::new(begin))?;
        Ok(RemotePeriodic { first, stop_flag })
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::num::NonZeroU32;
    use std::rc::Rc;
    use std::time::Duration;

    use corewheel_shard::TimerKey;

    use crate::kit::repeat::{PeriodicRun, Repeat, StopOutcome};
    use crate::{Fired, Handler, ManualClock, ShardId, ShardLoop, Task, TimerService, Timers};

    type Run<'a> = PeriodicRun<'a, u8>;

    fn rate(period: Duration) -> Repeat {
        Repeat::at_fixed_rate(period).unwrap()
    }

    /// A handler of typed timers, of which there are none here.
    struct NoValues;

    impl Handler<u8> for NoValues {
        fn expired(&mut self, _: Fired<u8>, _: &Timers<u8>) {}
    }

    /// A shard that takes its turns when a test says so.
    struct Lab {
        clock: ManualClock,
        service: TimerService<u8>,
        shard: ShardLoop<u8, NoValues>,
    }

    impl Lab {
        fn new() -> Self {
            let clock = ManualClock::new();
            let builder = TimerService::builder().shards(1).capacity(16).clock(clock.clock());
            let service: TimerService<u8> = builder.start_attached().unwrap();
            let attachment = service.attach(ShardId::new(0)).unwrap();
            let shard = attachment.into_loop(NoValues).unwrap();
            Self { clock, service, shard }
        }

        fn advance(&mut self, by: Duration) {
            self.clock.advance(by);
            for _ in 0..10 {
                let _ = self.shard.turn();
            }
        }

        fn panicked(&self) -> u64 {
            self.service.stats().shards[0].counts.panicked
        }
    }

    /// Takes the task of the only timer of a shard away, by all the handles that there could
    /// be. Only this crate can make them up.
    fn take_back(timers: &Timers<u8>) -> Option<Task<u8>> {
        let mut keys = (0..16).flat_map(|index| (1..40).map(move |of| (index, of)));
        keys.find_map(|(index, of)| {
            let key = TimerKey::from_parts(index, NonZeroU32::new(of).unwrap());
            timers.cancel(timers.core().home().handle(key)).task()
        })
    }

    #[test]
    fn periodic_callback_taken_by_a_guessed_handle_can_be_run_stopped_and_dropped() {
        let mut lab = Lab::new();
        let timers = lab.shard.timers().clone();
        let guard = Rc::new(());
        let held = Rc::clone(&guard);
        let call = move |_: &mut Run<'_>| {
            let _ = Rc::strong_count(&held);
        };
        let periodic = timers.repeat(rate(Duration::from_millis(5)), call).unwrap();
        let Some(Task::Callback(call)) = take_back(&timers) else { panic!("it is a callback") };
        lab.advance(Duration::from_millis(20));
        assert_eq!((periodic.runs(), periodic.is_over(), timers.len()), (0, false, 0));
        call.run(&timers);
        assert_eq!((periodic.runs(), timers.len()), (1, 1), "it has begun again");
        lab.advance(Duration::from_millis(5));
        assert!(periodic.runs() > 1);
        let call = take_back(&timers);
        assert_eq!(
            (periodic.stop(), periodic.stop()),
            (StopOutcome::Stopped, StopOutcome::AlreadyOver)
        );
        let ran = periodic.runs();
        let Some(Task::Callback(call)) = call else { panic!("it is a callback") };
        assert_eq!(Rc::strong_count(&guard), 2);
        call.run(&timers);
        assert_eq!((periodic.runs(), Rc::strong_count(&guard)), (ran, 1));
        assert_eq!((timers.len(), lab.panicked()), (0, 0));
    }

    #[test]
    fn periodic_callback_whose_next_timer_is_cancelled_does_not_overlap_and_ends() {
        for held in [false, true] {
            let mut lab = Lab::new();
            let runs = Rc::new(Cell::new(0));
            let (counted, deep) = (Rc::clone(&runs), Cell::new(0));
            let kept = Rc::new(RefCell::new(None));
            let keep = Rc::clone(&kept);
            let call = move |run: &mut Run<'_>| {
                counted.set(counted.get() + 1);
                deep.set(deep.get() + 1);
                assert_eq!(deep.get(), 1, "it runs within itself");
                match take_back(run.timers()) {
                    Some(Task::Callback(call)) if !held => call.run(run.timers()),
                    taken => drop(keep.replace(taken)),
                }
                deep.set(deep.get() - 1);
            };
            let periodic = lab.shard.timers().repeat(rate(Duration::from_millis(5)), call).unwrap();
            lab.advance(Duration::from_millis(5));
            lab.advance(Duration::from_millis(50));
            assert_eq!((runs.get(), periodic.runs(), lab.panicked()), (1, 1, 0));
            assert!(held || periodic.is_over());
            let taken = kept.take();
            if let Some(Task::Callback(call)) = taken {
                call.run(lab.shard.timers());
            }
            assert_eq!((runs.get(), lab.shard.timers().len()), (1 + u32::from(held), 0));
            drop(kept.take());
            assert!(periodic.is_over());
        }
    }
}
