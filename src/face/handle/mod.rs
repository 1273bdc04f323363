//! A service as every thread reaches it: handles, their commands, and their futures, which are
//! `Send` and `Sync`.

mod commands;
pub(crate) mod here;
mod own;
mod place;
mod reaches;
pub(crate) mod registry;
#[cfg_attr(not(feature = "sim"), path = "not_simulated.rs")]
pub(crate) mod simulated;
pub(crate) mod sleep;
#[cfg(feature = "sim")]
pub(crate) mod test_thread;
pub(crate) mod thread_lanes;

use std::convert::Infallible;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use corewheel_shard::Tick;

use self::here::Reach;
use self::simulated::CommandThread;
use self::sleep::{Sleep, Timeout};
use crate::clock::when::{Deadline, When};
use crate::clock::{Clock, Timeline};
use crate::directory::orders::Group;
use crate::pass::Guarded;
use crate::shard::lanes::Lanes;
use crate::values::class::{ClassId, TimerClass};
use crate::values::error::ConfigError;
use crate::values::ids::{ServiceId, ShardId};
use crate::values::refused::RefusedKind;

/// A service as any thread reaches it, for tasks that migrate between threads; made by
/// [`TimerService::handle`](crate::TimerService::handle).
///
/// It is `Copy`, `Send`, `Sync` and `'static`, and takes 12 bytes. So are its futures, but for
/// `Copy`: [`sleep`](Self::sleep), [`timeout`](Self::timeout) and
/// [`interval`](Self::interval) may be polled and dropped on any thread. A handle may be kept in a
/// static and used in every task of a multi-thread runtime. It does not keep the service alive:
/// when the service has ended, futures return `Closed`, also if it was dropped without a
/// shutdown.
///
/// ```
/// use corewheel::TimerService;
/// use std::time::Duration;
///
/// let service = TimerService::builder().shards(1).start()?;
/// let handle = service.handle();
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// runtime.block_on(async {
///     let task = tokio::spawn(async move {
///         handle.sleep(Duration::from_millis(2)).await?;
///         let never = std::future::pending::<()>();
///         let late = handle.timeout(Duration::from_millis(2), never).await;
///         assert!(late.is_err_and(|error| error.is_elapsed()));
///         Ok::<(), corewheel::RefusedKind>(())
///     });
///     task.await?.map_err(Box::<dyn std::error::Error>::from)
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The methods that most servers need:
///
/// - [`timeout`](Self::timeout), [`sleep`](Self::sleep) and [`interval`](Self::interval) make
///   futures.
/// - [`connection`](Self::connection) has all deadlines of a connection.
/// - [`schedule`](Self::schedule) and [`schedule_fn`](Self::schedule_fn) make a timer with a value
///   or a callback; [`reset`](Self::reset) and [`cancel`](Self::cancel) change and end it.
/// - [`on`](Self::on) chooses a shard, and [`of_class`](Self::of_class) a class.
///
/// # How a thread reaches the service
///
/// Each thread keeps the timers of its futures to itself: a timer is armed, reset, fired and ended
/// where it lies. The shard's thread acts for a thread only when a timer is due, and once for a
/// timer that has aged: between a third and all of its time. A timer of a thread that has ended
/// goes on.
///
/// Timers of a thread belong to the shard that the thread drives, or to one that it is given when
/// it first needs one; threads are given the shards in turn. [`on`](Self::on) chooses a shard.
/// Timers of one thread that are due in different ticks fire in the order of their ticks, also
/// after a stall. There is no order within a tick.
///
/// A thread that arms or ends a timer waits while the shard acts for up to 64 timers of that
/// thread, which is some microseconds; if the shard's thread loses its processor meanwhile, until
/// it has one again.
///
/// # Time
///
/// Futures go by the clock of the service, and not by that of a tokio runtime, also while a test
/// has paused it. Tests of tasks that use a handle have a
/// [`ManualClock`](crate::clock::ManualClock), or run them in a simulation, the module
/// [`sim`](sim/index.html).
///
/// # Commands
///
/// Commands go over lanes, which each thread opens to a shard when it first sends to it, and which
/// end with the thread. A lane takes about 12 KiB by default. A command finds the lanes of its
/// thread first, for some nanoseconds.
///
/// A timer has its id at once, because the shard has granted keys to the thread in advance. A lane
/// that is just opened has keys only as far as the shard has some in store for new threads, and the
/// next turn of the shard grants more. So a first schedule may be refused as
/// [`Busy`](crate::Refused::Busy). The refusal has woken the shard: try again after its turn, or
/// let [`schedule_when_room`](Self::schedule_when_room) wait for it.
///
/// # Room
///
/// A thread borrows slots of its shard: one at first, and twice as many each time, up to 1,024 or
/// an eighth of those that are left. It keeps what it was last lent at once. Where the shard has
/// none left to lend, the first poll of a future asks it to take back what other threads do not
/// use. The shard looks, and wakes the task: the next poll has a timer, or returns `Full`. So
/// futures are refused only where the pending timers fill the shard, but for what each thread was
/// lent. On the thread that drives the shard all this is one poll.
/// [`guide::multi_thread_tokio`](crate::guide::multi_thread_tokio) is about the shards
/// that such a server should have.
pub struct Handle<T: 'static = Infallible> {
    pub(crate) service: ServiceId,
    shard: Option<ShardId>,
    class: ClassId,
    /// The thread whose lanes the commands use.
    thread: CommandThread,
    values: PhantomData<fn() -> T>,
}

/// A handle of any service, whatever values its timers carry: what a function or a struct takes
/// that wants timeouts, sleeps and connections only. [`Handle::untyped`] makes it of each handle.
///
/// It has all methods of a [`Handle`] but those that send values or callbacks, whose type it does
/// not name. A function that schedules callbacks on a service without values takes [`Handle`], and
/// one that schedules values takes the `Handle<T>` of their type. The constructors of the adapters
/// and of [`TimedIo`](stream/struct.TimedIo.html) take each handle as it is.
///
/// ```
/// use corewheel::{AnyHandle, Fired, TimeoutError, TimerService, Timers};
/// use std::time::Duration;
///
/// // In messages of the compiler it is `Handle<Untyped>`.
/// async fn answer(timers: AnyHandle, request: &str) -> Result<usize, TimeoutError> {
///     let work = async { request.len() };
///     timers.timeout(Duration::from_secs(1), work).await
/// }
///
/// // A service whose timers carry no values.
/// let timeouts = TimerService::builder().shards(1).start()?;
/// // A service whose timers carry strings.
/// let start = TimerService::builder().shards(1);
/// let jobs = start.start_with(|_| |_: Fired<String>, _: &Timers<String>| {})?;
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// runtime.block_on(async {
///     assert_eq!(answer(timeouts.handle().untyped(), "GET /").await, Ok(5));
///     assert_eq!(answer(jobs.handle().untyped(), "a job").await, Ok(5));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type AnyHandle = Handle<Untyped>;

/// Stands for the type of the values in an [`AnyHandle`].
///
/// It is not `Send`, so such a handle has no commands that need the type.
#[derive(Debug)]
pub struct Untyped {
    _is_not_send: PhantomData<*const ()>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.service, self.shard, self.class) == (other.service, other.shard, other.class)
    }
}

impl<T> Eq for Handle<T> {}

impl<T> Hash for Handle<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.service, self.shard, self.class).hash(state);
    }
}

impl<T: 'static> Handle<T> {
    pub(crate) fn new(service: ServiceId) -> Self {
        Self::of_parts(service, None, ClassId::NONE)
    }

    pub(crate) fn of_parts(service: ServiceId, shard: Option<ShardId>, class: ClassId) -> Self {
        Self { service, shard, class, thread: CommandThread::default(), values: PhantomData }
    }

    /// A handle whose timers are on one shard. On a shard that the service does not have they are
    /// refused with `NoSuchShard`.
    #[must_use]
    pub fn on(self, shard: ShardId) -> Self {
        Self { shard: Some(shard), ..self }
    }

    /// A handle of the same shards and class that names no type of values: what a function or a
    /// struct takes that makes futures and connections only. Costs nothing.
    pub fn untyped(self) -> AnyHandle {
        Handle::of_parts(self.service, self.shard, self.class)
    }

    /// A handle whose timers are of `class`. The statistics count them for the class.
    ///
    /// # Errors
    ///
    /// The service has no such class, or has ended.
    pub fn of_class(self, class: TimerClass) -> Result<Self, ConfigError> {
        let Some(class) = self.with_reach(|reach| reach.find_class(class)).flatten() else {
            let limit = format!("its service is gone: {}", RefusedKind::Closed);
            let remedy = "make handles of a class while its service runs";
            return Err(ConfigError::new("class", class.name(), limit, remedy));
        };
        Ok(self.with_class(class?))
    }

    /// The present moment, by the service's clock.
    pub fn now(&self) -> Instant {
        self.clock().now()
    }

    /// The shards of the service; none if it has ended.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        (0..self.shard_count() as u16).map(ShardId::new)
    }

    /// The shard for a key: `hash % shard_count`, as
    /// [`TimerService::shard_for`](crate::TimerService::shard_for) returns it. The first shard if
    /// the service has ended.
    pub fn shard_for(&self, hash: u64) -> ShardId {
        ShardId::new((hash % self.shard_count().max(1) as u64) as u16)
    }

    /// How many shards the service has; 0 if it has ended.
    fn shard_count(&self) -> usize {
        self.with_reach(Reach::shard_count).unwrap_or(0)
    }

    /// Whether this is a handle of a service.
    pub(crate) fn is_of(self, service: ServiceId) -> bool {
        self.service == service
    }

    /// The class of the timers of this handle.
    pub(crate) fn class(self) -> ClassId {
        self.class
    }

    pub(crate) fn with_class(self, class: ClassId) -> Self {
        Self { class, ..self }
    }

    /// Waits until something is due. A delay counts from this call. The timer is scheduled when the
    /// future is first polled before its deadline, and cancelled when it is dropped.
    ///
    /// # Errors
    ///
    /// The future returns why there is no timer: `Full`, `Closed` or `NoSuchShard`. It
    /// never returns `Ok` early.
    #[inline]
    pub fn sleep<W: When>(&self, when: W) -> Sleep {
        Sleep::new(*self, self.due_of(when))
    }

    /// Gives a future time until something is due. A value that is ready at the same time as the
    /// deadline wins, and so does one whose data lay in a socket then, see [`Timeout`].
    ///
    /// # Cost
    ///
    /// For a future that is ready at its first poll, a reading of the near clock. A timeout whose
    /// time is up costs an allocation, and a share of a pass: all that begin a pass together share
    /// a write to a descriptor. The first one in a runtime opens that descriptor, which is closed
    /// with the runtime.
    ///
    /// # Errors
    ///
    /// The time was up, or no timer could be had.
    #[inline]
    pub fn timeout<W: When, F: Future>(&self, when: W, future: F) -> Timeout<F> {
        Guarded::new(future, self.sleep(when))
    }

    /// The deadline of everything that is due at a time, computed once for all futures that share
    /// it. A handle of a service that has ended returns a deadline that never comes.
    pub fn deadline<W: When>(&self, when: W) -> Deadline {
        Deadline(self.tick_of(when))
    }

    /// When the first tick of the service begins that does not begin before `at`: a timer whose
    /// deadline is `at` expires then. `at` itself if the service has ended.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel::clock::ManualClock;
    /// use std::time::Duration;
    ///
    /// let manual = ManualClock::new();
    /// let service = TimerService::builder().shards(1).clock(&manual).start_attached()?;
    /// let timers = service.handle();
    /// // A tick is a millisecond, unless the builder is given another one.
    /// let [soon, next] = [300, 1_000].map(|us| manual.now() + Duration::from_micros(us));
    /// assert_eq!((timers.round_up(soon), timers.round_up(next)), (next, next));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn round_up(&self, at: Instant) -> Instant {
        let round = |reach: &Reach| reach.time().instant(reach.time().deadline_at(at));
        self.with_reach(round).unwrap_or(at)
    }

    /// The clock of the service; the system's if the service has ended. For code that compares its
    /// own readings with deadlines, also after the end of the service: [`now`](Self::now) finds
    /// the service for each reading.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel::clock::ManualClock;
    /// use std::time::Duration;
    ///
    /// let manual = ManualClock::new();
    /// let service = TimerService::builder().shards(1).clock(&manual).start_attached()?;
    /// let clock = service.handle().clock();
    /// manual.advance(Duration::from_secs(3));
    /// assert!(clock.is_manual() && clock.now() == manual.now());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(&self) -> Clock {
        self.time().map_or_else(Clock::monotonic, |time| time.clock().clone())
    }

    /// The instant at which something is due: a delay from now, an instant as it is, or the
    /// beginning of the tick of a deadline. The present if the service has ended.
    pub fn instant_of<W: When>(&self, when: W) -> Instant {
        let now = || self.clock().now();
        self.time().map_or_else(now, |time| time.instant_of_due(when.due()))
    }

    /// How the calling thread reaches the service.
    #[inline]
    pub(crate) fn reach(&self) -> Option<Rc<Reach>> {
        here::find(self.service)
    }

    /// Runs code with how the calling thread reaches the service, which costs less than
    /// [`reach`](Self::reach).
    #[inline]
    pub(crate) fn with_reach<R>(&self, run: impl FnMut(&Reach) -> R) -> Option<R> {
        here::with(self.service, run)
    }

    /// The conversions between ticks, nanoseconds and instants of the service; `None` if it has
    /// ended.
    pub(crate) fn time(&self) -> Option<Timeline> {
        Some(self.reach()?.time().clone())
    }

    /// The present in nanoseconds, or a little later, by the near clock of this thread; the end of
    /// time if the service has ended.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.with_reach(Reach::nanos).unwrap_or(u64::MAX)
    }

    /// This thread's group of connections, on the shard on which the handle's timers are: on this
    /// thread's shard, where it names none. `None` if the service has ended, or has no such shard.
    pub(crate) fn group(&self) -> Option<Arc<Group>> {
        self.reach()?.group(self.shard)
    }

    /// A number that differs from those that this thread was given before, among 256; 0 if the
    /// service has ended.
    pub(crate) fn next_salt(&self) -> u8 {
        self.reach().map_or(0, |reach| reach.next_salt())
    }

    /// When something is due, in nanoseconds, before that is rounded up to a tick.
    #[inline]
    fn due_of(&self, when: impl When) -> u64 {
        // A time that is moved into the closure stays in a register.
        let due = self.with_reach(move |reach| reach.time().due_of(when, || reach.nanos()));
        due.unwrap_or(u64::MAX)
    }

    /// The tick at which something is due.
    #[inline]
    fn tick_of(&self, when: impl When) -> Tick {
        let tick = self.with_reach(move |reach| reach.time().tick_of(when, || reach.nanos()));
        tick.unwrap_or(Tick::NEVER)
    }
}

debug_fields!([T] Handle<T>, |it| shard: it.shard);
