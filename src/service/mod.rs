//! The service: asked for handles and statistics, and shut down.

pub(crate) mod builder;
mod cpus;
#[cfg(all(test, feature = "tokio", not(corewheel_loom)))]
mod driver_tests;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
mod options;
pub(crate) mod start;
#[cfg(all(test, not(corewheel_loom)))]
mod table_tests;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::conn::KIND_NAMES;
use crate::directory::here::is_shard_thread;
use crate::directory::orders::Drain;
use crate::driver::attach::Attachment;
use crate::driver::runtime::Runtime;
use crate::face::handle::{Handle, registry};
use crate::face::reply::Reply;
use crate::face::report::ShutdownReport;
use crate::face::timers::Timers;
use crate::service::builder::TimerServiceBuilder;
use crate::shard::Directory;
use crate::shard::request::{Control, ShutdownOrder};
use crate::shard::timers::{Job, LocalFuture};
use crate::stats::ServiceStats;
use crate::values::error::{ReplyError, ShardError};
use crate::values::ids::ShardId;
use crate::values::scale::Scale;
use crate::values::shutdown::ShutdownPolicy;

/// Timers on several cores: a shard for each, which only its own thread touches, and lanes between
/// them.
///
/// Built by [`builder`](Self::builder). `T` is the type of the values that timers carry; without
/// one, timers carry callbacks and futures only.
///
/// Dropped without a [`shutdown`](Self::shutdown), it ends its shards and logs how many timers were
/// lost. Such a drop blocks as a shutdown does, but not on a thread that drives a shard, and not
/// where the shards are [attached](crate::attach). A task awaits
/// [`begin_shutdown`](Self::begin_shutdown) before it drops the service; the drop then blocks no
/// longer.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use corewheel::{ShutdownPolicy, TimerService};
///
/// let service = TimerService::builder().shards(2).start()?;
/// let handle = service.handle();
/// let (sender, fired) = mpsc::channel();
/// let connection = 7;
/// handle.on(handle.shard_for(connection)).schedule_fn(Duration::from_millis(5), move |_| {
///     sender.send("five milliseconds later").unwrap();
/// })?;
/// assert_eq!(fired.recv()?, "five milliseconds later");
/// service.shutdown(ShutdownPolicy::Drop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TimerService<T: Send + 'static = Infallible> {
    directory: Arc<Directory<T>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// For each shard, whether it is still to be attached; empty if the service runs them itself.
    unattached: Mutex<Box<[bool]>>,
}

/// Replies for a spawned future. A panic of the future goes on to the shard, which counts it.
struct PanicReporter<R>(Option<oneshot::Sender<Result<R, ReplyError>>>);

impl<R> PanicReporter<R> {
    /// Runs code of the future, and replies if it panics.
    fn watch<O>(&mut self, run: impl FnOnce() -> O) -> O {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            self.send(Err(ReplyError::Panicked));
            resume_unwind(panic)
        })
    }

    fn send(&mut self, result: Result<R, ReplyError>) {
        if let Some(sender) = self.0.take() {
            // The caller may have dropped the reply.
            drop(sender.send(result));
        }
    }
}

/// The cpus whose workers one shard serves, beside a multi-thread runtime.
const CPUS_PER_SHARD: usize = 8;

/// The requests that a lane of a worker thread holds.
const LONG_LANE: usize = 1 << 16;

impl TimerService {
    /// A builder with the defaults: a shard for each core that the process may use, 1 ms ticks,
    /// 2²⁰ timers a shard.
    pub fn builder() -> TimerServiceBuilder {
        TimerServiceBuilder::new()
    }

    /// A builder for a service beside a multi-thread runtime, whose tasks use it by
    /// [`handle`](TimerService::handle)s: one shard for each 8 cpus that the process may use, and
    /// at least one, on plain threads that are not pinned, and lanes for up to 65,536 requests.
    ///
    /// The runtime's workers use all cpus. A shard that is pinned to a cpu waits for the worker
    /// that runs there, while one that is not pinned goes to another cpu. One shard serves many
    /// workers, since most of its work is done in bulk. Most timeouts end soon after they begin:
    /// with long lanes, most of them end before the shard has received them, and so cost it little.
    /// A lane takes 256 KiB of address space at first, for keys. The system gives the process what
    /// it uses of this. Requests take up to 4 MiB if its thread uses all of it.
    /// [`guide::multi_thread_tokio`](crate::guide::multi_thread_tokio) shows such a server.
    ///
    /// ```
    /// use corewheel::{Runtime, ShutdownPolicy, TimerService};
    ///
    /// let service = TimerService::beside_runtime().name("timers").start()?;
    /// assert_eq!(service.runtime(), Some(Runtime::Thread.name()));
    /// service.shutdown(ShutdownPolicy::Drop)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn beside_runtime() -> TimerServiceBuilder {
        let shards = cpus::count().div_ceil(CPUS_PER_SHARD);
        let builder = Self::builder().shards(shards).runtime(Runtime::Thread);
        builder.unpinned().lane_capacity(LONG_LANE)
    }
}

impl<T: Send + 'static> TimerService<T> {
    pub(crate) fn new(
        directory: Arc<Directory<T>>,
        threads: Vec<JoinHandle<()>>,
        unattached: Vec<bool>,
    ) -> Self {
        // The message comes once, when the number is passed for the first time.
        directory.name_deadlines(&KIND_NAMES);
        registry::enter(&directory);
        let (threads, unattached) = (Mutex::new(threads), Mutex::new(unattached.into()));
        Self { directory, threads, unattached }
    }

    /// A handle, with which every thread uses the service. It is `Copy`, `Send` and `Sync`, and so
    /// are its futures, but for `Copy`.
    pub fn handle(&self) -> Handle<T> {
        Handle::new(self.directory.service)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn timeline(&self) -> &crate::clock::Timeline {
        &self.directory.time
    }

    /// The shards, in order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        self.directory.shards()
    }

    /// The shard for a key: `hash % shard_count`. The hash may be the number of a connection, or
    /// come from a [`Hasher`](std::hash::Hasher); equal hashes name the same shard on every thread,
    /// as long as the service has as many shards.
    pub fn shard_for(&self, hash: u64) -> ShardId {
        self.directory.shard_for(hash)
    }

    /// The statistics of the shards at this moment. Sends the shards nothing, and holds each lock
    /// that a shard or a thread may wait for only while it copies some numbers: see
    /// [`stats`](crate::stats).
    pub fn stats(&self) -> ServiceStats {
        self.directory.stats()
    }

    /// A function that reads the [statistics](Self::stats) from any thread, also after this service
    /// is dropped: for an endpoint.
    pub fn stats_source(&self) -> impl Fn() -> ServiceStats + Clone + Send + Sync + use<T> {
        let directory = Arc::clone(&self.directory);
        move || directory.stats()
    }

    /// Sets the [scale](crate::Timers::set_scale) of all shards, as
    /// [`Handle::set_scale`](crate::Handle::set_scale) does for one shard. Shards that have ended
    /// are skipped.
    ///
    /// A limit of a connection for which [`ConnLimits`](crate::ConnLimits) names a least time, such
    /// as [`read_idle_least`](crate::ConnLimits::read_idle_least), lasts for
    /// `least + (limit - least) × scale`, by the present scale. A connection applies it when it
    /// next looks at its deadlines. When the scale shrinks, the shard visits all connections, at
    /// most 256 in each turn, so that their timers come in time; other timers are delivered in
    /// between. A visit wakes no task.
    ///
    /// Cost: 1,700 instructions a visit and 300 to reset a timer, by callgrind on x86-64.
    ///
    /// See [`guide::overload_and_restarts`](crate::guide::overload_and_restarts).
    pub fn set_scale(&self, scale: Scale) {
        self.directory.order_all(|orders| orders.set_scale(scale));
    }

    /// Drains all connections of all shards: each is told once to end, by
    /// [`DeadlineKind::MaxAge`](crate::DeadlineKind::MaxAge) as at its greatest age, so that the
    /// server sends its GOAWAY or `Connection: close`. The connections of a shard are told one
    /// after another, evenly spread over the window; a connection that was told before is not told
    /// again. At the end of the window each that is still open is cut, by
    /// [`DeadlineKind::AgeGrace`](crate::DeadlineKind::AgeGrace), whatever its
    /// [`max_age_grace`](crate::ConnLimits::max_age_grace). A connection that begins later is told
    /// at once. Shards that have ended are skipped, and a shard that is not attached yet drains
    /// when it is.
    ///
    /// The connections of a service are those of [`Timers::connection`] on its shards, and those of
    /// [`Handle::connection`]. Each of these belongs to the shard of its handle, or else to that of
    /// the thread on which it began. A drain does not end: a service that drains serves no new
    /// connection for longer than the window. Another drain replaces it, with a window of its own.
    ///
    /// Cost: by callgrind on x86-64, 8,500 instructions for each connection, 4,100 on any thread,
    /// and none for a touch. A turn visits at most 256; others are told later. On any thread, the
    /// visit resets the sleep of a connection to its cut and wakes its task once, and its place
    /// takes 28 bytes.
    ///
    /// See [`guide::overload_and_restarts`](crate::guide::overload_and_restarts).
    ///
    /// ```
    /// use corewheel::clock::ManualClock;
    /// use corewheel::{ConnLimits, DeadlineKind, Fired, TimerService, Timers};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(1).clock(&clock);
    /// let service: TimerService<u64> = builder.start_attached_with()?;
    /// let shard = service.attach(service.shards().next().unwrap())?;
    /// let mut shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
    /// let conn = shard.timers().connection(ConnLimits::default())?;
    /// conn.on_event(|conn, event| match event.kind {
    ///     DeadlineKind::MaxAge => println!("GOAWAY"),
    ///     _ => drop(conn.close()),
    /// });
    /// service.drain(Duration::from_secs(10));
    /// let _ = shard.turn();
    /// // The connection ends its last request within the window, or else it is cut.
    /// clock.advance(Duration::from_secs(10));
    /// let _ = shard.turn();
    /// assert!(conn.is_closed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, window: Duration) {
        let drain = Drain::beginning(self.directory.time.nanos(), window);
        self.directory.order_all(|orders| orders.set_drain(drain));
    }

    /// Tells the `n` connections of each shard to end that have been idle for longest: those whose
    /// last read, write and end of a request are the longest ago, and in which no read, no request
    /// and no write with a limit is in progress. They are told by
    /// [`DeadlineKind::MaxAge`](crate::DeadlineKind::MaxAge), as at their greatest age, and have
    /// their [`max_age_grace`](crate::ConnLimits::max_age_grace). Connections that were told before
    /// do not count, and one that becomes active before its turn comes is left out.
    ///
    /// Cost: each shard visits all its connections once, at most 256 in each turn, by some 700
    /// instructions each (callgrind, x86-64), and keeps the `n` idlest in a heap of 24 bytes each.
    /// Nothing is kept in the order of activity, as each touch would have to change it.
    pub fn close_idlest(&self, n: usize) {
        self.directory.order_all(|orders| orders.add_idlest(n));
    }

    /// The [name](crate::host::Engine::name) of the shards' runtime, such as `tokio` or `thread`.
    /// `None` if the service was built with
    /// [`start_attached`](TimerServiceBuilder::start_attached), as the user drives the shards.
    pub fn runtime(&self) -> Option<&'static str> {
        self.directory.runtime
    }

    /// Why the shards have that runtime: `asked for`, or what the start found out about the host.
    pub fn runtime_reason(&self) -> &str {
        &self.directory.runtime_reason
    }

    /// The present moment, by the service's clock.
    pub fn now(&self) -> Instant {
        self.directory.time.now()
    }

    /// Starts a future on a shard: `start` is called on the shard's thread with the shard's timers,
    /// and the future that it returns is spawned on the shard's executor.
    ///
    /// The returned [`Reply`] gives the future's output, or [`ReplyError::Panicked`] if the future
    /// panicked; dropping the reply leaves the future running.
    ///
    /// A future can use the sockets and files of the executor that it runs on, so the builder
    /// decides which executor that is: [`Runtime::Tokio`], or that of another
    /// [`Engine`](crate::host::Engine). Where it names several, of which some have no executor, no
    /// future is accepted.
    ///
    /// When the shard is shut down, its spawned futures end with it, on every executor, those
    /// included that a shard is attached to: each future is polled once more after the timers have
    /// ended, so that one that waits for the shard sees that it is closed, and is then dropped. The
    /// reply of a future that was not done is [`ReplyError::Closed`]. So the future of a
    /// [`begin_shutdown`](Self::begin_shutdown) is awaited elsewhere: it is dropped with the
    /// spawned future that awaits it. A task that outlives the shard is spawned by the executor's
    /// own `spawn_local`; glommio drops no task of its own that is not done.
    ///
    /// # Errors
    ///
    /// `RuntimeNotChosen` where the host decides whether there is an executor; `NoExecutor` where
    /// the shard is a plain thread or not attached yet; `NoSuchShard`; `Closed` after the end.
    pub fn spawn_on<F, R>(
        &self,
        shard: ShardId,
        start: impl FnOnce(Timers<T>) -> F + Send + 'static,
    ) -> Result<Reply<R>, ShardError>
    where
        F: Future<Output = R> + 'static,
        R: Send + 'static,
    {
        let post = self.directory.post(shard).ok_or(ShardError::NoSuchShard(shard))?;
        if post.mailbox.is_closed() {
            return Err(ShardError::Closed);
        }
        if !self.directory.settings.is_runtime_chosen {
            return Err(ShardError::RuntimeNotChosen);
        }
        if !post.has_executor() {
            return Err(ShardError::NoExecutor);
        }
        let (sender, output) = Reply::of_result();
        let job = move |timers| -> LocalFuture {
            let mut sender = PanicReporter(Some(sender));
            let future = sender.watch(|| start(timers));
            Box::pin(async move {
                let mut future = pin!(future);
                let output = poll_fn(|cx| sender.watch(|| future.as_mut().poll(cx))).await;
                sender.send(Ok(output));
            })
        };
        let job = Control::Job(Box::new(job) as Job<T>);
        post.mailbox.send(job, &post.doorbell).map_err(|_| ShardError::Closed)?;
        Ok(output)
    }

    /// Returns the [`Attachment`] with which an executor or a loop that is there already drives one
    /// shard of a service that was built with
    /// [`start_attached`](TimerServiceBuilder::start_attached). It can be called once for each
    /// shard, from any thread; until then each timer that is sent to the shard is refused as
    /// [`NotAttached`](crate::Refused::NotAttached), and futures of a handle wait.
    ///
    /// # Errors
    ///
    /// `NotAttachable`, `NoSuchShard`, `AlreadyAttached`; `Closed` after the end.
    pub fn attach(&self, shard: ShardId) -> Result<Attachment<T>, ShardError> {
        let mut unattached = self.unattached.lock().unwrap_or_else(PoisonError::into_inner);
        if unattached.is_empty() {
            return Err(ShardError::NotAttachable);
        }
        let free = unattached.get_mut(shard.index()).ok_or(ShardError::NoSuchShard(shard))?;
        if self.directory.post(shard).is_none_or(|post| post.mailbox.is_closed()) {
            return Err(ShardError::Closed);
        }
        if !std::mem::take(free) {
            return Err(ShardError::AlreadyAttached(shard));
        }
        Ok(Attachment::new(Arc::clone(&self.directory), shard))
    }

    /// Closes the service and blocks until every shard has ended. Every timer that was accepted
    /// has then fired, been cancelled, or goes the way of the policy.
    ///
    /// A task awaits [`begin_shutdown`](Self::begin_shutdown) instead: a thread of its runtime that
    /// blocks here runs no other task until the shards' callbacks and drops are done. Where the
    /// threads of the shards must be joined too, a task calls this in tokio's `spawn_blocking`. It
    /// would wait for ever if a handler or callback of a shard waited for a task of the blocked
    /// thread.
    ///
    /// Futures that were spawned on the shards are [dropped](Self::spawn_on). Executors that shards
    /// are attached to go on, without the shards; they must be running for this to return.
    ///
    /// # Errors
    ///
    /// `Closed` if it is shut down already, and `OnShard` if this thread drives a shard.
    pub fn shutdown(&self, policy: ShutdownPolicy) -> Result<ShutdownReport<T>, ReplyError> {
        if is_shard_thread() {
            return Err(ReplyError::OnShard);
        }
        let report = Reply::gathered(self.order_shutdown(policy)?).wait()?;
        self.join();
        Ok(report)
    }

    /// Closes the service and returns a future that waits until every shard has ended, for callers
    /// that cannot block: in a task, inside a callback, or on a shard's own executor. The service
    /// is closed when this returns; a future that is dropped loses the report only.
    ///
    /// ```
    /// use corewheel::{ShutdownPolicy, TimerService};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = TimerService::builder().shards(1).start()?;
    /// service.handle().sleep(Duration::from_millis(2)).await?;
    /// let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    /// assert!(report.dead.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed` if it is shut down already.
    pub fn begin_shutdown(
        &self,
        policy: ShutdownPolicy,
    ) -> Result<impl Future<Output = ShutdownReport<T>> + Send + use<T>, ReplyError> {
        self.order_shutdown(policy)
    }

    /// Closes the service. The future ends when every shard has.
    fn order_shutdown(
        &self,
        policy: ShutdownPolicy,
    ) -> Result<impl Future<Output = ShutdownReport<T>> + Send + use<T>, ReplyError> {
        // Relaxed: only one caller gets `false`, and no other data is read by it.
        if self.directory.shut_down.swap(true, Ordering::Relaxed) {
            return Err(ReplyError::Closed);
        }
        registry::leave(self.directory.service);
        // `None` for a shard that no thread has driven: nothing was ever accepted for it.
        let mut reports = Vec::new();
        for shard in self.directory.shards() {
            let Some(post) = self.directory.post(shard) else { continue };
            let ordered = (!post.close_unowned()).then(|| {
                // A shard that has ended drops the report's sender, and counts as dead.
                let (report, answer) = oneshot::async_channel();
                let order = Control::Shutdown(ShutdownOrder { policy, report });
                drop(post.mailbox.send(order, &post.doorbell));
                answer
            });
            reports.push((shard, ordered));
        }
        let directory = Arc::clone(&self.directory);
        Ok(async move {
            // Until all are there, the payloads in each are dropped one at a time.
            let mut ended = Vec::with_capacity(reports.len());
            for (shard, ordered) in reports {
                let report = match ordered {
                    Some(answer) => answer.await.ok().map(|report| Some(Box::new(report))),
                    None => Some(None),
                };
                ended.push((shard, report));
            }
            let mut all = ShutdownReport::new();
            for (shard, report) in ended {
                match report {
                    Some(Some(report)) => all.add(*report, &directory.time),
                    Some(None) => all.shards.extend(directory.shard_stats(shard)),
                    None => all.dead.push(shard),
                }
            }
            all
        })
    }

    fn join(&self) {
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A shard's thread that panicked has reported itself dead.
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Drop for TimerService<T> {
    fn drop(&mut self) {
        let Ok(reports) = self.order_shutdown(ShutdownPolicy::Drop) else { return };
        let lost: u64 = if is_shard_thread() || self.directory.runtime.is_none() {
            // It cannot be waited for here. The shards see the order in their next turn.
            self.stats().shards.iter().map(|shard| shard.counts.pending).sum()
        } else {
            let Ok(report) = Reply::gathered(reports).wait() else { return };
            self.join();
            report.shards.iter().map(|shard| shard.counts.dropped).sum()
        };
        if lost > 0 {
            tracing::warn!(
                name: "dropped-with-loss",
                target: "corewheel::service",
                name = %self.directory.settings.name, lost,
                "a timer service was dropped without a shutdown"
            );
        }
    }
}

debug_fields!([T: Send + 'static] TimerService<T>, |it| name: it.directory.settings.name,
    runtime: it.directory.runtime, shards: it.directory.settings.shards);
