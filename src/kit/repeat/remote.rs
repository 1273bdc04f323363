//! Periodic callbacks on a shard, for other threads.

use std::sync::Arc;
use std::time::Instant;

use corewheel_shard::TimerKey;

use super::options::Body;
use super::repeating::Repeating;
use super::{PeriodicRun, Repeat, StopOutcome};
use crate::clock::Timeline;
use crate::clock::when::When;
use crate::face::handle::Handle;
use crate::face::timers::Timers;
use crate::kit::herd::slacken;
use crate::link::stop_flag::{Stop, StopFlag};
use crate::shard::timers::SendCall;
use crate::values::ids::TimerId;
use crate::values::refused::RefusedCall;

/// A callback that runs periodically on a shard, for other threads; made by
/// [`Handle::repeat`] and [`Handle::repeat_by_plan`].
///
/// `Send` and `Sync`. It does not own the callback: when it and all its clones are dropped, the
/// callback goes on.
#[derive(Clone, Debug)]
pub struct RemotePeriodic {
    first: TimerId,
    stop_flag: Arc<StopFlag>,
}

impl RemotePeriodic {
    /// Stops the callback, at once and without waiting for the shard.
    ///
    /// A stop cannot be refused: after `Stopped` the callback is not running and will not run. Any
    /// handle of the service will do. It asks the shard to drop the callback and to free its timer,
    /// which the shard does within a second, as [`Handle::cancel_detached`] says.
    pub fn stop<T: Send + 'static>(&self, handle: Handle<T>) -> StopOutcome {
        match self.stop_flag.stop() {
            Stop::Over => StopOutcome::AlreadyOver,
            Stop::Runs => StopOutcome::LastRun,
            Stop::Waited(timer) => {
                let later = timer.map(|(index, generation)| {
                    self.first.home().timer(TimerKey::from_parts(index, generation))
                });
                handle.cancel_detached(later.unwrap_or(self.first));
                StopOutcome::Stopped
            }
        }
    }

    /// Whether the callback will not run again.
    pub fn is_over(&self) -> bool {
        self.stop_flag.is_over()
    }
}

/// The shard's side of a stop flag, which is over when the callback is dropped.
pub(super) struct EndedOnDrop(Arc<StopFlag>);

impl EndedOnDrop {
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

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Periodic callbacks.
impl<T: Send + 'static> Handle<T> {
    /// Runs a callback periodically on the shard of this handle, or of this thread, as
    /// [`Timers::repeat`] does there. The instant of its first run is computed on the calling
    /// thread.
    ///
    /// ```
    /// use corewheel::repeat::{Repeat, StopOutcome};
    /// use corewheel::{ShutdownPolicy, TimerService};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let handle = service.handle();
    /// let shard = handle.on(service.shards().next().unwrap());
    ///
    /// let (sender, beats) = mpsc::channel();
    /// let every = Repeat::at_fixed_rate(Duration::from_millis(2))?;
    /// let heartbeat = shard.repeat(every, move |run| {
    ///     // The receiver is gone at the end of this example.
    ///     let _ = sender.send(run.number());
    /// })?;
    /// assert_eq!((beats.recv()?, beats.recv()?), (0, 1));
    /// // It was waiting, or is running for the last time.
    /// assert_ne!(heartbeat.stop(handle), StopOutcome::AlreadyOver);
    /// assert_ne!(heartbeat.stop(handle), StopOutcome::Stopped);
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// assert!(heartbeat.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full`, `Busy`, `Closed` or `NoSuchShard`, with a callback that begins the runs, the first
    /// of them at once, where it is run. After its first run was accepted, no later run is refused.
    pub fn repeat<F>(
        &self,
        repeat: Repeat,
        call: F,
    ) -> Result<RemotePeriodic, RefusedCall<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
    {
        let first = repeat.clone();
        let due = move |time: &Timeline| first.first_due(time);
        self.begin(due, repeat.with(call))
    }

    /// Runs a callback by a plan on the shard of this handle, or of this thread, as
    /// [`Timers::repeat_by_plan`] does there.
    ///
    /// # Errors
    ///
    /// The errors of [`repeat`](Self::repeat).
    pub fn repeat_by_plan<W: When, F, N>(
        &self,
        first: W,
        next: N,
        call: F,
    ) -> Result<RemotePeriodic, RefusedCall<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        self.begin(|time| time.instant_due(first), Body::planned(next, call))
    }

    fn begin<F, N>(
        &self,
        due: impl FnOnce(&Timeline) -> Instant,
        mut body: Body<F, N>,
    ) -> Result<RemotePeriodic, RefusedCall<SendCall<T>>>
    where
        F: FnMut(&mut PeriodicRun<'_, T>) + Send + 'static,
        N: FnMut(Instant) -> Option<Instant> + Send + 'static,
    {
        // A service that has ended refuses the callback.
        let (class, time, clock) = (self.class(), self.time(), self.clock());
        let due = time.as_ref().map_or_else(|| clock.now(), due);
        let aim = body.aim(&clock, due);
        let at = match time {
            Some(time) if !body.slack.is_zero() => {
                let nanos = time.nanos_at(aim);
                time.instant(slacken(&time, time.ceil(nanos), nanos, body.slack))
            }
            _ => aim,
        };
        let stop_flag = Arc::new(StopFlag::new());
        let ended = EndedOnDrop(Arc::clone(&stop_flag));
        let begin = move |timers: &Timers<T>| {
            // The first timer calls this closure, the later ones call the closure of `Repeating`.
            let (_, call) = Repeating::new(body, class, (due, aim), Some(ended));
            call(timers);
        };
        let first = self.schedule_fn(at, begin)?;
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

    use crate::attach::ShardLoop;
    use crate::clock::ManualClock;
    use crate::kit::repeat::{PeriodicRun, Repeat, StopOutcome};
    use crate::{Fired, Payload, ShardId, TimerService, Timers};

    type Run<'a> = PeriodicRun<'a, u8>;

    fn rate(period: Duration) -> Repeat {
        Repeat::at_fixed_rate(period).unwrap()
    }

    /// A handler of values, which no timer carries here.
    type NoValues = fn(Fired<u8>, &Timers<u8>);

    /// A shard that takes its turns when a test says so.
    struct Lab {
        clock: ManualClock,
        service: TimerService<u8>,
        shard: ShardLoop<u8, NoValues>,
    }

    impl Lab {
        fn new() -> Self {
            let clock = ManualClock::new();
            // Far from the epoch, where a time that is wrongly 0 would be right.
            clock.advance(Duration::from_secs(12_345));
            let builder = TimerService::builder().shards(1).capacity(16).clock(&clock);
            let service: TimerService<u8> = builder.start_attached_with().unwrap();
            let attachment = service.attach(ShardId::new(0)).unwrap();
            let shard = attachment.into_loop((|_, _| {}) as NoValues).unwrap();
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

    /// Takes the payload of the only timer of a shard, by all the ids that there could be.
    /// Only this crate can make such ids.
    fn take_back(timers: &Timers<u8>) -> Option<Payload<u8>> {
        let mut keys = (0..16).flat_map(|index| (1..40).map(move |of| (index, of)));
        keys.find_map(|(index, of)| {
            let key = TimerKey::from_parts(index, NonZeroU32::new(of).unwrap());
            timers.cancel(timers.core().home().timer(key)).payload()
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
        let Some(Payload::Callback(call)) = take_back(&timers) else { panic!("it is a callback") };
        lab.advance(Duration::from_millis(20));
        assert_eq!((periodic.runs(), periodic.is_over(), timers.len()), (0, false, 0));
        call(&timers);
        assert_eq!((periodic.runs(), timers.len()), (1, 1), "it has begun again");
        lab.advance(Duration::from_millis(5));
        assert!(periodic.runs() > 1);
        let call = take_back(&timers);
        assert_eq!(
            (periodic.stop(), periodic.stop()),
            (StopOutcome::Stopped, StopOutcome::AlreadyOver)
        );
        let ran = periodic.runs();
        let Some(Payload::Callback(call)) = call else { panic!("it is a callback") };
        assert_eq!(Rc::strong_count(&guard), 2);
        call(&timers);
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
                    Some(Payload::Callback(call)) if !held => call(run.timers()),
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
            if let Some(Payload::Callback(call)) = taken {
                call(lab.shard.timers());
            }
            assert_eq!((runs.get(), lab.shard.timers().len()), (1 + u32::from(held), 0));
            drop(kept.take());
            assert!(periodic.is_over());
        }
    }
}
