//! The service: asked for clients, futures and statistics, and shut down.

pub(crate) mod builder;
mod options;
pub(crate) mod start;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::directory::here::is_shard_thread;
use crate::driver::attach::Attachment;
use crate::face::Directory;
use crate::face::client::Client;
use crate::face::report::{ShardReport, ShutdownReport};
use crate::face::stored::{Job, LocalFuture, Stored};
use crate::face::timers::Timers;
use crate::service::builder::TimerServiceBuilder;
use crate::shard::request::{Control, ShutdownOrder};
use crate::shard::shutdown::Report;
use crate::stats::ServiceStats;
use crate::values::error::{AttachError, Closed, ShutdownError, SpawnError, WaitError};
use crate::values::handle::ShardId;
use crate::values::scale::Scale;
use crate::values::shutdown::ShutdownPolicy;

/// Timers on several cores: a shard for each, which only its own thread touches, and lanes between
/// them.
///
/// Built by [`builder`](Self::builder). `T` is what typed timers hold; without one, timers hold
/// callbacks and futures only.
///
/// Dropped without a [`shutdown`](Self::shutdown), it ends its shards and logs how many timers were
/// lost.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use corewheel::{ShardId, ShutdownPolicy, TimerService};
///
/// let service = TimerService::builder().shards(1).start()?;
/// let client = service.client();
/// let (sender, fired) = mpsc::channel();
/// client.schedule_fn_on(ShardId::new(0), Duration::from_millis(5), move |_| {
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
    unattached: Mutex<Vec<bool>>,
}

/// A report that a shard still owes.
enum PendingReport<T: 'static> {
    /// No thread has driven the shard.
    NeverDriven,
    Ordered(oneshot::Receiver<Report<Stored<T>>>),
}

/// How many services live in this process.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// From how many on that is taken for a mistake.
const ALIVE_MAX: usize = 64;

impl TimerService {
    /// A builder with the defaults: a shard for each core that the process may use, 1 ms ticks,
    /// 2²⁰ timers a shard.
    pub fn builder() -> TimerServiceBuilder {
        TimerServiceBuilder::new()
    }
}

impl<T: Send + 'static> TimerService<T> {
    pub(crate) fn new(
        directory: Arc<Directory<T>>,
        threads: Vec<JoinHandle<()>>,
        unattached: Vec<bool>,
    ) -> Self {
        // The message comes once, when the number is passed for the first time.
        if ALIVE.fetch_add(1, Ordering::Relaxed) == ALIVE_MAX {
            tracing::warn!(
                services = ALIVE_MAX + 1,
                "many timer services live in this process; one is made to serve all of it"
            );
        }
        Self { directory, threads: Mutex::new(threads), unattached: Mutex::new(unattached) }
    }

    /// A client, for any thread. As many as wanted.
    pub fn client(&self) -> Client<T> {
        Client::new(Arc::clone(&self.directory))
    }

    /// The shards, in order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        self.directory.shards()
    }

    /// What each shard has done so far. Takes no lock that a turn takes; costs the shards nothing.
    pub fn stats(&self) -> ServiceStats {
        self.directory.stats()
    }

    /// A source of statistics that outlives this handle, for an endpoint.
    pub fn stats_source(&self) -> StatsSource {
        let directory = Arc::clone(&self.directory);
        StatsSource(Arc::new(move || directory.stats()))
    }

    /// Sets by what all shards scale their [`ScaledTimeouts`](crate::ScaledTimeouts), as
    /// [`Client::set_scale_on`] does for one. Those that are shut down or dead are passed over.
    pub fn set_scale(&self, scale: Scale) {
        for shard in self.directory.shards() {
            let _closed = self.directory.set_scale(shard, scale);
        }
    }

    /// What the shards run on: `glommio`, `tokio`, `thread` or `attached`.
    pub fn runtime(&self) -> &'static str {
        self.directory.runtime
    }

    /// Why they run on that: `asked for`, or what [`Runtime::Auto`](crate::Runtime::Auto) found
    /// out.
    pub fn runtime_reason(&self) -> &str {
        &self.directory.runtime_reason
    }

    /// The present moment, by the service's clock.
    pub fn now(&self) -> Instant {
        self.directory.time.now()
    }

    /// Starts a future on a shard's core: `start` is called there, with the shard's timers, and
    /// what it returns is spawned on the shard's executor.
    ///
    /// The returned future waits for the output; dropping it leaves the task running.
    ///
    /// When the shard is shut down, its spawned futures end with it, on every executor, those
    /// included that a shard is attached to: each future is polled once more after the timers have
    /// ended, so that one that waits for the shard sees that it is closed, and is then dropped. A
    /// caller that waits for the output of a future that was not done is answered `Closed`. So the
    /// future of a [`begin_shutdown`](Self::begin_shutdown) is to be awaited somewhere else: it is
    /// dropped with the spawned future that awaits it. A task that is to outlive the shard is one
    /// for the executor's own `spawn_local`; glommio drops no task of its own that is not done.
    ///
    /// # Errors
    ///
    /// `NoExecutor` where shards are plain threads or own loops, `Closed` after the end.
    pub fn spawn_on<F, R>(
        &self,
        shard: ShardId,
        start: impl FnOnce(Timers<T>) -> F + Send + 'static,
    ) -> Result<Spawned<R>, SpawnError>
    where
        F: Future<Output = R> + 'static,
        R: Send + 'static,
    {
        let post = self.directory.post(shard).ok_or(SpawnError::Closed)?;
        if post.mailbox.is_closed() {
            return Err(SpawnError::Closed);
        }
        if !post.has_executor() {
            return Err(SpawnError::NoExecutor);
        }
        let (sender, output) = oneshot::channel();
        let job = move |timers| -> LocalFuture {
            let future = start(timers);
            // The caller may have dropped its end.
            Box::pin(async move { drop(sender.send(future.await)) })
        };
        let job = Control::Job(Box::new(job) as Job<T>);
        post.mailbox.send(job, &post.doorbell).map_err(|_| SpawnError::Closed)?;
        Ok(Spawned(output))
    }

    /// Takes hold of a shard of a service that was built with
    /// [`start_attached`](TimerServiceBuilder::start_attached), to drive it in an executor or a
    /// loop that is there already. Once for each shard, from any thread; until then what is sent to
    /// the shard is refused as `Full`.
    ///
    /// # Errors
    ///
    /// The service is not of that kind, there is no such shard, or it was attached before.
    pub fn attach(&self, shard: ShardId) -> Result<Attachment<T>, AttachError> {
        let mut unattached = self.unattached.lock().unwrap_or_else(PoisonError::into_inner);
        if unattached.is_empty() {
            return Err(AttachError::NotAttachable);
        }
        let free = unattached.get_mut(shard.index()).ok_or(AttachError::NoSuchShard(shard))?;
        if self.directory.post(shard).is_none_or(|post| post.mailbox.is_closed()) {
            return Err(AttachError::Closed);
        }
        if !std::mem::take(free) {
            return Err(AttachError::AlreadyAttached(shard));
        }
        Ok(Attachment::new(Arc::clone(&self.directory), shard))
    }

    /// Closes the service and blocks until every shard has ended. Every timer that was accepted
    /// has then fired, been cancelled, or goes the way of the policy.
    ///
    /// Futures that were spawned on the shards are [dropped](Self::spawn_on). Executors that shards
    /// are attached to go on, without the shards; they must be running for this to return.
    ///
    /// # Errors
    ///
    /// It is shut down already, or this thread drives a shard.
    pub fn shutdown(&self, policy: ShutdownPolicy) -> Result<ShutdownReport<T>, ShutdownError> {
        if is_shard_thread() {
            return Err(ShutdownError::OnShard);
        }
        let reports = self.order_shutdown(policy)?;
        let report = wait_for_reports(&self.directory, reports);
        self.join();
        Ok(report)
    }

    /// Closes the service and returns a future that waits until every shard has ended, for callers
    /// that cannot block: from inside a callback, or on a shard's own executor.
    ///
    /// # Errors
    ///
    /// It is shut down already.
    pub fn begin_shutdown(
        &self,
        policy: ShutdownPolicy,
    ) -> Result<impl Future<Output = ShutdownReport<T>> + Send + use<T>, ShutdownError> {
        let reports = self.order_shutdown(policy)?;
        let directory = Arc::clone(&self.directory);
        Ok(async move {
            // Until all are there, the payloads in each are dropped one at a time.
            let mut ended = Vec::with_capacity(reports.len());
            for (shard, report) in reports {
                ended.push((
                    shard,
                    match report {
                        PendingReport::NeverDriven => Ended::NeverDriven,
                        PendingReport::Ordered(report) => {
                            Ended::Driven(report.await.ok().map(Box::new))
                        }
                    },
                ));
            }
            shutdown_report(&directory, ended)
        })
    }

    fn order_shutdown(
        &self,
        policy: ShutdownPolicy,
    ) -> Result<Vec<(ShardId, PendingReport<T>)>, ShutdownError> {
        // Relaxed: one of those who try gets to do it, and the others learn nothing else.
        if self.directory.shut_down.swap(true, Ordering::Relaxed) {
            return Err(ShutdownError::AlreadyShutDown);
        }
        let mut reports = Vec::new();
        for shard in self.directory.shards() {
            let Some(post) = self.directory.post(shard) else { continue };
            let (report, answer) = oneshot::channel();
            if post.close_unowned() {
                // Nothing was ever accepted for it.
                reports.push((shard, PendingReport::NeverDriven));
                continue;
            }
            // A shard that has ended drops the report's sender, and counts as dead.
            let order = Control::Shutdown(ShutdownOrder { policy, report });
            drop(post.mailbox.send(order, &post.doorbell));
            reports.push((shard, PendingReport::Ordered(answer)));
        }
        Ok(reports)
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

/// How a shard has ended.
enum Ended<T: 'static> {
    NeverDriven,
    /// `None` if it ended without a report.
    Driven(Option<Box<Report<Stored<T>>>>),
}

/// Blocks until all shards have reported.
fn wait_for_reports<T: Send + 'static>(
    directory: &Directory<T>,
    reports: Vec<(ShardId, PendingReport<T>)>,
) -> ShutdownReport<T> {
    let ended = reports.into_iter().map(|(shard, report)| match report {
        PendingReport::NeverDriven => (shard, Ended::NeverDriven),
        PendingReport::Ordered(report) => (shard, Ended::Driven(report.recv().ok().map(Box::new))),
    });
    shutdown_report(directory, ended.collect())
}

fn shutdown_report<T: 'static>(
    directory: &Directory<T>,
    ended: Vec<(ShardId, Ended<T>)>,
) -> ShutdownReport<T> {
    ShutdownReport::new(ended.into_iter().map(|(shard, ended)| {
        let report = match ended {
            Ended::NeverDriven => {
                let classes = directory.shard_stats(shard).map(|stats| stats.classes);
                Some(ShardReport::empty(shard, classes.unwrap_or_default()))
            }
            Ended::Driven(report) => report.map(|r| ShardReport::new(*r, &directory.time)),
        };
        (shard, report)
    }))
}

impl<T: Send + 'static> Drop for TimerService<T> {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        let Ok(reports) = self.order_shutdown(ShutdownPolicy::Drop) else { return };
        let name = &self.directory.settings.name;
        if is_shard_thread() || self.directory.runtime == start::ATTACHED {
            // It cannot be waited for here. The shards see the order in their next turn.
            let pending: u64 = self.stats().shards.iter().map(|shard| shard.counts.pending).sum();
            if pending > 0 {
                tracing::warn!(%name, pending, "a timer service was dropped without a shutdown");
            }
            return;
        }
        let report = wait_for_reports(&self.directory, reports);
        let lost: u64 = report.shards.iter().map(|shard| shard.unfired).sum();
        if lost > 0 {
            tracing::warn!(%name, lost, "a timer service was dropped without a shutdown");
        }
        self.join();
    }
}

impl<T: Send + 'static> fmt::Debug for TimerService<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerService")
            .field("name", &self.directory.settings.name)
            .field("runtime", &self.directory.runtime)
            .field("shards", &self.directory.settings.shards)
            .finish_non_exhaustive()
    }
}

/// Reads a service's statistics, from any thread and after the service's handle is gone.
#[derive(Clone)]
pub struct StatsSource(Arc<dyn Fn() -> ServiceStats + Send + Sync>);

impl StatsSource {
    /// What each shard has done so far.
    pub fn read(&self) -> ServiceStats {
        (self.0)()
    }
}

impl fmt::Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatsSource(..)")
    }
}

/// The output of a future that runs on a shard; made by [`TimerService::spawn_on`].
#[must_use = "it holds the output; drop it on purpose to let the task go its way"]
pub struct Spawned<R>(oneshot::Receiver<R>);

impl<R> Spawned<R> {
    /// Blocks this thread until the future is done.
    ///
    /// # Errors
    ///
    /// `Closed` if the shard ended, or the future panicked, before it was done; `OnShard` on a
    /// thread that drives a shard of any service, where waiting could not end.
    pub fn wait(self) -> Result<R, WaitError> {
        if is_shard_thread() {
            return Err(WaitError::OnShard);
        }
        self.0.recv().map_err(|_| WaitError::Closed)
    }
}

impl<R> IntoFuture for Spawned<R> {
    type Output = Result<R, Closed>;
    type IntoFuture = crate::face::client::AnswerFuture<R>;

    fn into_future(self) -> Self::IntoFuture {
        crate::face::client::AnswerFuture::new(self.0)
    }
}

impl<R> fmt::Debug for Spawned<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawned(..)")
    }
}
