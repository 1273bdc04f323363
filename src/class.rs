//! Classes: names for what timers are for, so that the statistics can tell them apart.
//!
//! Why not a label on each timer: a slot of the wheel is 24 bytes and stays so. A shard keeps the
//! class of its timers in a table beside the slab, made when the first timer of any class comes. A
//! service without classes never makes it.
//!
//! Why they are registered: a shard publishes what it has counted without a lock and without an
//! allocation, so there must be a place for each class before its first timer. A number bounds how
//! many there can be, and so how many lines a scraper gets.
//!
//! Cost: a timer of a class writes 16 bytes of that table and those of its two neighbours in the
//! order of scheduling; a timer without a class reads 16 bytes of it when it ends, once the table
//! is there. Two instructions each until then.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::core::Core;
use crate::error::{ConfigError, ScheduleError, TimeoutError};
use crate::handle::{ShardId, TimerHandle};
use crate::sleep::{RemoteSleep, Sleep, within};
use crate::task::{LocalCall, SendCall};
use crate::timers::{Deadline, Timers};

/// What a timer is for: `idle`, `handshake`, `request`. Registered with
/// [`TimerServiceBuilder::class`](crate::TimerServiceBuilder::class), used with [`Timers::class`]
/// and [`Client::class`], told apart in [`ShardStats::classes`](crate::ShardStats::classes) and at
/// the endpoint.
///
/// ```
/// use std::time::Duration;
/// use corewheel::{Fired, ManualClock, ShardId, TimerClass, TimerService, Timers};
///
/// const IDLE: TimerClass = TimerClass::new("idle");
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock()).class(IDLE);
/// let service = builder.start_attached::<u64>()?;
/// let attachment = service.attach(ShardId::new(0))?;
/// let mut shard = attachment.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
///
/// let idle = shard.timers().class(IDLE)?;
/// idle.schedule(Duration::from_millis(5), 1)?;
/// idle.schedule(Duration::from_secs(60), 2)?;
/// clock.advance(Duration::from_millis(6));
/// let _ = shard.turn();
///
/// let stats = &service.stats().shards[0].classes[0];
/// assert_eq!((stats.class, stats.counts.fired, stats.counts.live), ("idle", 1, 1));
/// assert_eq!(stats.oldest, Some(Duration::from_millis(6)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerClass(&'static str);

impl TimerClass {
    /// The most classes a service can have.
    pub const COUNT_MAX: usize = 64;
    /// The most bytes of a name.
    pub const NAME_LEN_MAX: usize = 64;

    /// A class of this name: 1 to 64 bytes without control characters, quotes and backslashes. Two
    /// classes of one name are the same. The name is checked when the service starts.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for TimerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimerClass({:?})", self.0)
    }
}

impl fmt::Display for TimerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The number of a class within its service: 0 is none, and they begin with 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClassId(u8);

impl ClassId {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Where it stands among the classes; `None` if there is none.
    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    #[inline]
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// The classes of a service, in the order in which they were named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes(Vec<TimerClass>);

impl Classes {
    pub(crate) fn push(&mut self, class: TimerClass) {
        self.0.push(class);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn list(&self) -> &[TimerClass] {
        &self.0
    }

    pub(crate) fn name(&self, id: ClassId) -> Option<&'static str> {
        id.index().and_then(|index| self.0.get(index)).map(|class| class.0)
    }

    /// The number of a class.
    #[inline]
    pub(crate) fn find(&self, class: TimerClass) -> Result<ClassId, UnknownClass> {
        // One constant of the program is mostly one string in memory as well.
        let same = |known: &TimerClass| std::ptr::eq(known.0, class.0);
        let position = self.0.iter().position(same);
        let position = position.or_else(|| self.0.iter().position(|known| *known == class));
        match position {
            Some(position) => Ok(ClassId(position as u8 + 1)),
            None => Err(UnknownClass { class }),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        const REMEDY: &str = "use one short word for each purpose, such as idle or request";
        let refuse = |value: &dyn fmt::Debug, limit: String, remedy: &str| {
            Err(ConfigError::new("class", value, limit, remedy))
        };
        if self.len() > TimerClass::COUNT_MAX {
            let limit = format!("a service can have {} classes", TimerClass::COUNT_MAX);
            return refuse(&self.len(), limit, "give a class to each purpose, not to each peer");
        }
        for (index, TimerClass(name)) in self.0.iter().enumerate() {
            if name.is_empty() || name.len() > TimerClass::NAME_LEN_MAX {
                let limit = format!("a name must have 1 to {} bytes", TimerClass::NAME_LEN_MAX);
                return refuse(name, limit, REMEDY);
            }
            if name.contains(|c: char| c.is_control() || c == '"' || c == '\\') {
                let limit = "a name is the label of a metric, without control characters, quotes \
                             and backslashes";
                return refuse(name, limit.to_owned(), REMEDY);
            }
            if self.0[..index].contains(&TimerClass(name)) {
                let limit = "it was named before".to_owned();
                return refuse(name, limit, "name each class once");
            }
        }
        Ok(())
    }
}

/// The service does not know the class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownClass {
    /// The class that was asked for.
    pub class: TimerClass,
}

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.class.0;
        write!(
            f,
            "class is {name:?}, but the service has no such class; name it with the builder's \
             `class` before the service starts"
        )
    }
}

impl std::error::Error for UnknownClass {}

impl<T: Send + 'static> Timers<T> {
    /// The same timers, for timers of one class. Found by its name among the service's; keep it
    /// where many are scheduled at once.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn class(&self, class: TimerClass) -> Result<Classed<'_, T>, UnknownClass> {
        let class = self.core().directory().settings.classes.find(class)?;
        Ok(Classed { timers: self, class })
    }
}

impl<T: Send + 'static> Client<T> {
    /// The same client, for timers of one class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn class(&self, class: TimerClass) -> Result<ClassedClient<'_, T>, UnknownClass> {
        let class = self.directory().settings.classes.find(class)?;
        Ok(ClassedClient { client: self, class })
    }
}

/// The timers of this core, for timers of one class; made by [`Timers::class`].
///
/// Its methods are those of [`Timers`] that make one timer: schedules of all kinds, tasks, sleeps,
/// timeouts and intervals. To cancel or reset one, the class does not matter. Periodic callbacks,
/// connections and what else holds many timers have no class. Copied at the cost of two words.
pub struct Classed<'a, T: 'static = std::convert::Infallible> {
    timers: &'a Timers<T>,
    class: ClassId,
}

impl<T> Clone for Classed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Classed<'_, T> {}

impl<T> fmt::Debug for Classed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classed(..)")
    }
}

impl<'a, T: Send + 'static> Classed<'a, T> {
    fn core(&self) -> &'a Core<T> {
        self.timers.core()
    }

    pub(crate) fn timers(&self) -> &'a Timers<T> {
        self.timers
    }

    /// Schedules as a timer of the class what the closure schedules.
    pub(crate) fn schedule_as<K>(
        &self,
        schedule: impl FnOnce() -> Result<TimerHandle, ScheduleError<K>>,
    ) -> Result<TimerHandle, ScheduleError<K>> {
        self.core().schedule_classed(self.class, schedule)
    }

    /// As [`Timers::schedule`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule(&self, delay: Duration, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let deadline = self.core().deadline_after(delay);
        self.core().schedule_classed(self.class, || self.core().schedule(deadline, task))
    }

    /// As [`Timers::schedule_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_at(&self, at: Instant, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let deadline = self.core().deadline_at(at);
        self.core().schedule_classed(self.class, || self.core().schedule(deadline, task))
    }

    /// As [`Timers::schedule_fn`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn(
        &self,
        delay: Duration,
        call: impl FnOnce(&Timers<T>) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let deadline = self.core().deadline_after(delay);
        let call = Box::new(call);
        self.core().schedule_classed(self.class, || self.core().schedule_call(deadline, call))
    }

    /// As [`Timers::schedule_fn_at`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_at(
        &self,
        at: Instant,
        call: impl FnOnce(&Timers<T>) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let deadline = self.core().deadline_at(at);
        let call = Box::new(call);
        self.core().schedule_classed(self.class, || self.core().schedule_call(deadline, call))
    }

    /// As [`Timers::schedule_to`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_to(
        &self,
        deadline: Deadline,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        self.schedule_as(|| self.timers.schedule_to(deadline, task))
    }

    /// As [`Timers::sleep`].
    pub fn sleep(&self, delay: Duration) -> Sleep<T> {
        Sleep::new(self.timers.clone(), self.core().deadline_after(delay), self.class)
    }

    /// As [`Timers::sleep_until`].
    pub fn sleep_until(&self, at: Instant) -> Sleep<T> {
        Sleep::new(self.timers.clone(), self.core().deadline_at(at), self.class)
    }

    /// As [`Timers::timeout`].
    ///
    /// # Errors
    ///
    /// The time was up, or there was no timer to be had; the future is dropped.
    pub fn timeout<F: Future>(
        &self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<F, T> {
        within(self.sleep(delay), future)
    }

    /// As [`Timers::timeout_at`].
    ///
    /// # Errors
    ///
    /// As for [`timeout`](Self::timeout).
    pub fn timeout_at<F: Future>(
        &self,
        at: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<F, T> {
        within(self.sleep_until(at), future)
    }
}

/// The timers of any shard, for timers of one class; made by [`Client::class`].
///
/// Its methods are those of [`Client`] that make one timer; for many at once there is
/// [`Batch::class`](crate::Batch::class). Copied at the cost of two words.
pub struct ClassedClient<'a, T: 'static = std::convert::Infallible> {
    client: &'a Client<T>,
    class: ClassId,
}

impl<T> Clone for ClassedClient<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ClassedClient<'_, T> {}

impl<T> fmt::Debug for ClassedClient<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClassedClient(..)")
    }
}

impl<'a, T: Send + 'static> ClassedClient<'a, T> {
    pub(crate) fn client(&self) -> &'a Client<T> {
        self.client
    }

    /// As [`Client::schedule_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_on(
        &self,
        shard: ShardId,
        delay: Duration,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.nanos();
        let deadline = self.client.tick_after(now, delay);
        self.client.schedule_value(self.class, shard, deadline, now, task)
    }

    /// As [`Client::schedule_at_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task.
    #[inline]
    pub fn schedule_at_on(
        &self,
        shard: ShardId,
        at: Instant,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.nanos();
        self.client.schedule_value(self.class, shard, self.client.tick_at(at), now, task)
    }

    /// As [`Client::schedule_fn_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_on(
        &self,
        shard: ShardId,
        delay: Duration,
        call: impl FnOnce(&Timers<T>) + Send + 'static,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        self.schedule_call(shard, delay, Box::new(call))
    }

    /// As [`Client::schedule_fn_at_on`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the callback.
    pub fn schedule_fn_at_on(
        &self,
        shard: ShardId,
        at: Instant,
        call: impl FnOnce(&Timers<T>) + Send + 'static,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        self.schedule_call_at(shard, at, Box::new(call))
    }

    /// As [`Client::sleep_on`].
    pub fn sleep_on(&self, shard: ShardId, delay: Duration) -> RemoteSleep<'a, T> {
        RemoteSleep::new(self.client, |call| self.schedule_call(shard, delay, call))
    }

    /// As [`Client::sleep_until_on`].
    pub fn sleep_until_on(&self, shard: ShardId, at: Instant) -> RemoteSleep<'a, T> {
        RemoteSleep::new(self.client, |call| self.schedule_call_at(shard, at, call))
    }

    /// As [`Client::timeout_on`].
    ///
    /// # Errors
    ///
    /// The time was up, or there was no timer to be had; the future is dropped.
    pub fn timeout_on<F: Future>(
        &self,
        shard: ShardId,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<'a, F, T> {
        within(self.sleep_on(shard, delay), future)
    }

    /// As [`Client::timeout_at_on`].
    ///
    /// # Errors
    ///
    /// As for [`timeout_on`](Self::timeout_on).
    pub fn timeout_at_on<F: Future>(
        &self,
        shard: ShardId,
        at: Instant,
        future: F,
    ) -> impl Future<Output = Result<F::Output, TimeoutError>> + use<'a, F, T> {
        within(self.sleep_until_on(shard, at), future)
    }

    fn schedule_call(
        &self,
        shard: ShardId,
        delay: Duration,
        call: SendCall<T>,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        let now = self.client.nanos();
        let deadline = self.client.tick_after(now, delay);
        self.client.schedule_call(self.class, shard, deadline, now, call)
    }

    fn schedule_call_at(
        &self,
        shard: ShardId,
        at: Instant,
        call: SendCall<T>,
    ) -> Result<TimerHandle, ScheduleError<SendCall<T>>> {
        let now = self.client.nanos();
        self.client.schedule_call(self.class, shard, self.client.tick_at(at), now, call)
    }
}
