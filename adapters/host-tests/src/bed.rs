//! Where a host is tested: a service with a shard on it, and waits that end.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::host::Engine;
use corewheel::shutdown::ShutdownReport;
use corewheel::{Fired, Reply, ReplyError, ShardId, ShutdownPolicy, TimerService, Timers, When};

/// The shard that is tested.
pub(crate) const SHARD: ShardId = ShardId::new(0);
/// A delay that is longer than any test runs.
pub(crate) const FAR: Duration = Duration::from_secs(3_600);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The host that is tested.
pub(crate) struct Bed {
    engine: Arc<dyn Engine>,
    patience: Duration,
    tick: Duration,
}

impl Bed {
    pub(crate) fn new(engine: Arc<dyn Engine>, patience: Duration) -> Self {
        Self { engine, patience, tick: ms(1) }
    }

    /// This host with ticks of another length.
    pub(crate) fn with_tick(&self, tick: Duration) -> Self {
        Self { engine: Arc::clone(&self.engine), tick, ..*self }
    }

    pub(crate) fn has_executor(&self) -> bool {
        self.engine.has_executor()
    }

    /// Starts a shard whose values go to a handler.
    pub(crate) fn start<T: Send + 'static, H: FnMut(Fired<T>, &Timers<T>) + 'static>(
        &self,
        make_handler: impl Fn() -> H + Send + Sync + 'static,
    ) -> Running<T> {
        let builder = TimerService::builder().name("host-tests").shards(1).unpinned();
        let builder = builder.runtime(Arc::clone(&self.engine)).capacity(1 << 16).tick(self.tick);
        let service = builder.start_with(move |_| make_handler());
        let service = service.unwrap_or_else(|error| panic!("{}: {error}", self.engine.name()));
        let (host, patience) = (self.engine.name(), self.patience);
        Running { service: Arc::new(service), host, patience }
    }

    /// Starts a shard without values.
    pub(crate) fn start_plain(&self) -> Running<()> {
        self.start(|| |_: Fired<()>, _: &Timers<()>| {})
    }
}

/// A shard on the host. A test that fails leaves it as it is: a host that is broken may never end
/// it.
pub(crate) struct Running<T: Send + 'static> {
    pub(crate) service: Arc<TimerService<T>>,
    host: &'static str,
    patience: Duration,
}

impl<T: Send + 'static> Running<T> {
    /// Ends the test: the host has not done this.
    #[track_caller]
    pub(crate) fn fail(&self, must: &str) -> ! {
        panic!("a shard on the host `{}` must do this, and does not: {must}", self.host)
    }

    /// Fails unless it is so.
    #[track_caller]
    pub(crate) fn must(&self, must: &str, is_so: bool) {
        if !is_so {
            self.fail(must);
        }
    }

    /// Waits for a message.
    #[track_caller]
    pub(crate) fn next<V>(&self, messages: &Receiver<V>, must: &str) -> V {
        messages.recv_timeout(self.patience).unwrap_or_else(|_| self.fail(must))
    }

    /// Waits for a reply.
    #[track_caller]
    pub(crate) fn reply<V>(&self, mut reply: Reply<V>, must: &str) -> Result<V, ReplyError> {
        let give_up = Instant::now() + self.patience;
        loop {
            if let Some(result) = look(&mut reply) {
                return result;
            }
            if Instant::now() >= give_up {
                self.fail(must);
            }
            thread::sleep(ms(1));
        }
    }

    /// Waits for the end of a future.
    #[track_caller]
    pub(crate) fn finish(&self, reply: Reply<()>, must: &str) {
        let done = self.reply(reply, must);
        self.must("run a future to its end", done == Ok(()));
    }

    /// Has the shard run a future.
    #[track_caller]
    pub(crate) fn spawn<F>(
        &self,
        start: impl FnOnce(Timers<T>) -> F + Send + 'static,
    ) -> Reply<F::Output>
    where
        F: Future<Output: Send + 'static> + 'static,
    {
        let spawned = self.service.spawn_on(SHARD, start);
        spawned.unwrap_or_else(|error| self.fail(&format!("take a future: {error}")))
    }

    /// Has the shard run a callback after a time.
    #[track_caller]
    pub(crate) fn call(&self, after: Duration, call: impl FnOnce(&Timers<T>) + Send + 'static) {
        let scheduled = self.service.handle().on(SHARD).schedule_fn(after, call);
        self.must("take a callback", scheduled.is_ok());
    }

    /// Has the shard deliver a value.
    #[track_caller]
    pub(crate) fn deliver(&self, when: impl When, value: T) {
        let scheduled = self.service.handle().on(SHARD).schedule(when, value);
        self.must("take a timer", scheduled.is_ok());
    }

    /// Blocks the shard's thread in a callback until `work` has returned, which runs on this thread
    /// meanwhile, and until the moment that it returns.
    #[track_caller]
    pub(crate) fn stall(&self, work: impl FnOnce() -> Instant) {
        let (stalled, is_stalled) = mpsc::channel();
        let (go, goes) = mpsc::channel::<Instant>();
        let goes = Mutex::new(goes);
        let stall = move |_: &Timers<T>| {
            let _told = stalled.send(());
            let goes = goes.lock().unwrap_or_else(PoisonError::into_inner);
            sleep_until(goes.recv().unwrap_or_else(|_| Instant::now()));
        };
        self.call(Duration::ZERO, stall);
        self.next(&is_stalled, "run a callback that another thread has scheduled");
        let until = work();
        let _told = go.send(until);
    }

    /// Shuts the service down.
    #[track_caller]
    pub(crate) fn end(self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let (sender, ended) = mpsc::channel();
        let service = Arc::clone(&self.service);
        let shut_down = move || {
            let report = service.shutdown(policy);
            let _told = sender.send(report);
        };
        let closing = thread::spawn(shut_down);
        let report = self.next(&ended, "end when the service is shut down");
        let report = report.expect("it is shut down once");
        self.must("not die before it is shut down", report.dead.is_empty());
        closing.join().expect("a shutdown does not panic");
        report
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The last drop of a service waits for its shards.
            std::mem::forget(Arc::clone(&self.service));
        }
    }
}

/// Sleeps until a moment.
pub(crate) fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// A callback that tells that it runs.
pub(crate) fn tells<T: Send + 'static>(sender: mpsc::Sender<()>) -> impl FnOnce(&Timers<T>) + Send {
    move |_| {
        // The test may be over.
        let _told = sender.send(());
    }
}

/// The value of a reply, if it has come.
pub(crate) fn look<V>(reply: &mut Reply<V>) -> Option<Result<V, ReplyError>> {
    match Pin::new(reply).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
