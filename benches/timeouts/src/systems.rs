//! The systems behind one trait. Each method returns the future of the system itself, with nothing
//! around it, so that a pending timeout takes the memory that it takes in a server.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Pending, pending};
use std::pin::Pin;
use std::time::Duration;

use corewheel::stats::ShardCounts;
use corewheel::{Handle, TimeoutError, TimerService};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, Sleep};

/// The most timers of a shard: a million others, those of the tasks, and those whose cancels the
/// shard has not received yet.
const CAPACITY: u32 = 1 << 21;

/// A system, as the tasks of a pass have it.
pub(crate) trait Timeouts: Copy + Send + Sync + 'static {
    /// Why a timeout's future returns no output.
    type Error: Debug + Send;
    /// A future that waits.
    type Sleep: Future + Send;

    /// Starts what the system needs beside the runtime.
    fn start() -> Self;

    /// A timeout around a future.
    fn timeout<F: Future + Send>(
        self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Error>> + Send;

    /// Whether the time was up, and nothing else went wrong.
    fn is_elapsed(_: &Self::Error) -> bool {
        true
    }

    /// The sums that the system counts, with their names.
    fn counts(self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Waits for a delay.
    fn sleep(self, delay: Duration) -> Self::Sleep;

    /// Makes a sleep wait for a delay from now.
    fn reset(_: Pin<&mut Self::Sleep>, _: Duration) {}
}

/// No timeout.
#[derive(Clone, Copy)]
pub(crate) struct Without;

impl Timeouts for Without {
    type Error = Infallible;
    type Sleep = Pending<()>;

    fn start() -> Self {
        Self
    }

    async fn timeout<F: Future + Send>(
        self,
        _: Duration,
        future: F,
    ) -> Result<F::Output, Infallible> {
        Ok(future.await)
    }

    fn sleep(self, _: Duration) -> Pending<()> {
        pending()
    }
}

/// Tokio's timers. Which of the two implementations it is depends on the runtime.
#[derive(Clone, Copy)]
pub(crate) struct Tokio;

impl Timeouts for Tokio {
    type Error = tokio::time::error::Elapsed;
    type Sleep = Sleep;

    fn start() -> Self {
        Self
    }

    fn timeout<F: Future + Send>(
        self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Error>> + Send {
        tokio::time::timeout(delay, future)
    }

    fn sleep(self, delay: Duration) -> Sleep {
        tokio::time::sleep(delay)
    }

    fn reset(sleep: Pin<&mut Sleep>, delay: Duration) {
        sleep.reset(Instant::now() + delay);
    }
}

/// Pingora's timers, which its own thread fires.
#[derive(Clone, Copy)]
pub(crate) struct Pingora;

impl Timeouts for Pingora {
    type Error = pingora_timeout::Elapsed;
    type Sleep = Pending<()>;

    fn start() -> Self {
        Self
    }

    fn timeout<F: Future + Send>(
        self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Error>> + Send {
        pingora_timeout::timeout(delay, future)
    }

    fn sleep(self, _: Duration) -> Pending<()> {
        unreachable!("its sleeps are measured in no row")
    }
}

/// A corewheel service beside the runtime.
#[derive(Clone, Copy)]
pub(crate) struct Corewheel {
    handle: Handle,
    service: &'static TimerService,
}

impl Timeouts for Corewheel {
    type Error = TimeoutError;
    type Sleep = corewheel::Sleep;

    fn start() -> Self {
        let service = TimerService::beside_runtime().capacity(CAPACITY).start();
        // The process measures one cell and exits, so the service lives as long as the process.
        let service: &'static TimerService = Box::leak(Box::new(service.expect("it starts")));
        Self { handle: service.handle(), service }
    }

    fn timeout<F: Future + Send>(
        self,
        delay: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output, Self::Error>> + Send {
        self.handle.timeout(delay, future)
    }

    fn is_elapsed(error: &TimeoutError) -> bool {
        error.is_elapsed()
    }

    fn counts(self) -> Vec<(&'static str, u64)> {
        let shards = self.service.stats().shards;
        let counts: Vec<Vec<_>> = shards.iter().map(|it| it.counts.iter().collect()).collect();
        let sums = ShardCounts::rows().enumerate().filter(|(_, (_, is_gauge))| !is_gauge);
        let sum = |at: usize| (counts[0][at].0, counts.iter().map(|shard| shard[at].1).sum());
        sums.map(|(at, _)| sum(at)).collect()
    }

    fn sleep(self, delay: Duration) -> corewheel::Sleep {
        self.handle.sleep(delay)
    }

    fn reset(mut sleep: Pin<&mut corewheel::Sleep>, delay: Duration) {
        sleep.as_mut().get_mut().reset(delay);
    }
}

/// A multi-thread runtime with its default settings, except for the number of its threads.
///
/// # Errors
///
/// The alternative timer is wanted, and this binary was built without it.
pub(crate) fn runtime(workers: usize, is_alternative: bool) -> Result<Runtime, &'static str> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all();
    if is_alternative {
        #[cfg(tokio_unstable)]
        builder.enable_alt_timer();
        #[cfg(not(tokio_unstable))]
        return Err("tokio's alternative timer needs a build with `--cfg tokio_unstable`");
    }
    builder.build().map_err(|_| "the system gives the runtime no threads or no poll")
}
