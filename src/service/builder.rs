//! The settings of a service, and its start.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use corewheel_shard::WheelKind;

use super::options::Options;
use crate::clock::ManualClock;
use crate::driver::host::Engine;
#[cfg(doc)]
use crate::driver::runtime::Runtime;
use crate::face::timers::Timers;
use crate::service::TimerService;
use crate::service::start;
use crate::shard::Directory;
use crate::shard::handler::Fired;
use crate::values::class::TimerClass;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use crate::values::settings::{Settings, TurnBudget, WarningLimits};

/// Collects the settings of a service; made by [`TimerService::builder`].
///
/// ```
/// use corewheel::settings::TurnBudget;
/// use corewheel::{Runtime, ShutdownPolicy, TimerService};
/// use std::time::Duration;
///
/// let builder = TimerService::builder()
///     .name("gateway")
///     .shards(2)
///     .tick(Duration::from_millis(10))
///     .capacity(100_000)
///     .budget(TurnBudget { time_max: Some(Duration::from_millis(1)), ..TurnBudget::default() })
///     .runtime(Runtime::Thread);
/// let refused = builder.clone().tick(Duration::from_micros(10)).start().unwrap_err();
/// assert!(refused.to_string().contains("tick is 10µs, but it must be between 100µs and 1s"));
///
/// let service = builder.start()?;
/// assert_eq!((service.shards().count(), service.runtime()), (2, Some("thread")));
/// service.shutdown(ShutdownPolicy::Drop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until it is started"]
#[derive(Clone, Debug)]
pub struct TimerServiceBuilder {
    pub(crate) options: Options,
}

impl TimerServiceBuilder {
    pub(crate) fn new() -> Self {
        Self { options: Options::default() }
    }

    /// How many shards, 1 to 1,024. By default one for each cpu that the process may use: what the
    /// standard library calls the available parallelism, which respects the process's cpu set and
    /// its quota of processor time.
    pub fn shards(mut self, count: usize) -> Self {
        self.options.shards = Some(count);
        self
    }

    /// The length of a tick, 100 µs to 1 s; 1 ms by default. Timers fire up to a tick late by it,
    /// never early.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.options.tick = tick;
        self
    }

    /// Which wheel the shards turn; the hierarchical one by default.
    pub fn wheel(mut self, kind: WheelKind) -> Self {
        self.options.wheel = kind;
        self
    }

    /// Slots of the wheel's first level, 2 to 65,536, rounded up to a power of two; 256 by default.
    pub fn slots(mut self, slots: u32) -> Self {
        self.options.slots = slots;
        self
    }

    /// The most timers of one shard, 1 to 2³⁰; 2²⁰ by default. Memory for them is reserved at the
    /// start and touched as it comes into use. Slots that are reserved for the next timers that
    /// other threads send count too: a thirty-second part of the capacity among all of them at
    /// first, and as much for each thread that needs it. The shard takes reserved slots of idle
    /// threads back when other timers need them; see [`Refused::Reserved`](crate::Refused).
    pub fn capacity(mut self, timers: u32) -> Self {
        self.options.capacity = timers;
        self
    }

    /// The most requests that wait in one lane, 1 to 2²⁰; 1,024 by default. Beyond it schedules are
    /// refused as `Busy`; cancels and resets are not. A lane takes memory for 64 requests, and for
    /// more once as many wait.
    pub fn lane_capacity(mut self, requests: usize) -> Self {
        self.options.lane_capacity = requests;
        self
    }

    /// How much one turn may do.
    pub fn budget(mut self, budget: TurnBudget) -> Self {
        self.options.budget = budget;
        self
    }

    /// How late a timer may be before it is counted as late; at least a tick, ten by default.
    pub fn lateness_bound(mut self, bound: Duration) -> Self {
        self.options.lateness_bound = Some(bound);
        self
    }

    /// How long a callback may take before it is counted as overrun; 1 ms by default.
    pub fn overrun(mut self, limit: Duration) -> Self {
        self.options.overrun = limit;
        self
    }

    /// From when on the service [warns](crate::stats::WarningKind).
    pub fn warning_limits(mut self, limits: WarningLimits) -> Self {
        self.options.warnings = limits;
        self
    }

    /// The runtime of the shards; [`Runtime::Thread`] by default. It decides which futures
    /// [`spawn_on`](crate::TimerService::spawn_on) accepts, and what sockets and files they may
    /// use.
    ///
    /// [`Runtime`] has what this crate has itself. The package `corewheel-glommio` has glommio, and
    /// a choice of glommio where `io_uring` works. Any other runtime is an
    /// [`Engine`](crate::host::Engine), too.
    ///
    /// ```
    /// use corewheel::host::Engine;
    /// use corewheel::{Runtime, ShutdownPolicy, TimerService};
    /// use std::sync::Arc;
    ///
    /// // What an option of the command line has named.
    /// let runtime: Arc<dyn Engine> = Arc::new(Runtime::Tokio);
    /// let service = TimerService::builder().shards(1).runtime(runtime).start()?;
    /// assert_eq!(service.runtime(), Some("tokio"));
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn runtime(mut self, engine: impl Engine) -> Self {
        self.options.engine = Arc::new(engine);
        self
    }

    /// Pins no thread: the scheduler of the system places them. The default without the feature
    /// `pinning`, and where the process has a quota of less processor time than its cpus have.
    /// Else shard `n` is pinned to the `n`th of the cpus that the process may use, and its memory
    /// is on the node of that cpu. Further shards begin with the first cpu again. Without effect on
    /// attached shards.
    pub fn unpinned(mut self) -> Self {
        self.options.pins = false;
        self
    }

    /// The service's name, for threads, logs and statistics; `corewheel` by default. It has 1 to 64
    /// bytes, without control characters, quotes and backslashes, as the name of a class has.
    ///
    /// Services of one process need different names wherever their statistics meet:
    /// `register` of `corewheel-stats` refuses two services of one name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// A class of timers, counted on its own in the statistics; at most 64 of them, each once.
    pub fn class(mut self, class: TimerClass) -> Self {
        self.options.classes.push(class);
        self
    }

    /// Several classes of timers, in this order.
    pub fn classes(self, classes: impl IntoIterator<Item = TimerClass>) -> Self {
        classes.into_iter().fold(self, Self::class)
    }

    /// A clock that a test moves, in place of the monotonic clock of the system. It is refused
    /// unless the service is made with [`start_attached`](Self::start_attached) or
    /// [`start_attached_with`](Self::start_attached_with).
    pub fn clock(mut self, clock: &ManualClock) -> Self {
        self.options.clock = clock.clock();
        self
    }

    /// Starts a service whose timers hold callbacks and futures.
    ///
    /// Either all shards run when this returns, or none does.
    ///
    /// It blocks the calling thread until then, for milliseconds, and may be called in a task, as
    /// in `#[tokio::main]`. A child of a later `fork` has no shards: see
    /// [`guide::choosing`](crate::guide::choosing).
    ///
    /// # Errors
    ///
    /// `Config` for a setting that is out of its limits; else why the shards cannot run.
    pub fn start(self) -> Result<TimerService, StartError> {
        self.start_with(|_| |fired: Fired<Infallible>, _: &Timers| match fired.payload {})
    }

    /// Starts a service with typed timers. `make_handler` is called on each shard's thread, and
    /// the handler that it returns gets the values of that shard's timers.
    ///
    /// Either all shards run when this returns, or none does. No handler is made on a runtime that
    /// does not get what it needs of the host.
    ///
    /// It blocks the calling thread until then, for milliseconds, and may be called in a task, as
    /// in `#[tokio::main]`.
    ///
    /// # Errors
    ///
    /// `Config` for a setting that is out of its limits; else why the shards cannot run.
    pub fn start_with<T, H>(
        self,
        make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
    ) -> Result<TimerService<T>, StartError>
    where
        T: Send + 'static,
        H: FnMut(Fired<T>, &Timers<T>) + 'static,
    {
        let settings = self.options.check(false)?;
        let engines = self.options.engines();
        let Options { clock, .. } = self.options;
        start::start(&settings, &clock, &engines, make_handler)
    }

    /// Makes a service whose timers hold callbacks and futures, and whose shards are driven by
    /// executors or loops that are there already: see [`TimerService::attach`].
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel::clock::ManualClock;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let service = TimerService::builder().shards(1).clock(&clock).start_attached()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// // Without values, no handler is called.
    /// let mut shard = attachment.into_loop(|fired, _| match fired.payload {})?;
    /// shard.timers().schedule_fn(Duration::from_millis(1), |_| println!("a millisecond later"))?;
    /// clock.advance(Duration::from_millis(1));
    /// let _next = shard.turn();
    /// assert_eq!(service.stats().shards[0].counts.fired, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A setting that is out of its limits.
    pub fn start_attached(self) -> Result<TimerService, StartError> {
        self.start_attached_with()
    }

    /// Makes a service with typed timers, whose shards are driven by executors or loops that are
    /// there already: see [`TimerService::attach`]. The handler that gets the values of a shard's
    /// timers is given when the shard is attached.
    ///
    /// # Errors
    ///
    /// A setting that is out of its limits.
    pub fn start_attached_with<T: Send + 'static>(self) -> Result<TimerService<T>, StartError> {
        let settings: Settings = self.options.check(true)?;
        let unattached = vec![true; settings.shards];
        let reason = start::ATTACHED_REASON.to_owned();
        let directory = Directory::new(settings, self.options.clock, None, reason);
        Ok(TimerService::new(Arc::new(directory), Vec::new(), unattached))
    }
}
