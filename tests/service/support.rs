//! The places where a shard can run, and a shard in a loop of the test's own, with a clock that the
//! test moves.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use corewheel::{
    Attachment, Client, Fired, Handler, LoopSleep, ManualClock, Runtime, ShardCounts, ShardId,
    ShardLoop, ShardReport, ShutdownPolicy, ShutdownReport, StartError, Tick, TimerService,
    TimerServiceBuilder, Timers, Turn,
};

/// How long a test waits for what must come. Far longer than it takes, so that a busy machine fails
/// no test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Farther away than any test runs.
pub(crate) const FAR: Duration = Duration::from_hours(1);
pub(crate) const SHARD: ShardId = ShardId::new(0);
pub(crate) const OTHER: ShardId = ShardId::new(1);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Where the shards of a service run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    /// On threads of the service's own.
    Own(Runtime),
    /// In executors or loops that the test runs.
    GlommioAttached,
    TokioAttached,
    LoopAttached,
}

impl Host {
    /// All that work on this machine.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let all = [
            Self::Own(Runtime::Glommio),
            Self::Own(Runtime::Tokio),
            Self::Own(Runtime::Thread),
            Self::GlommioAttached,
            Self::TokioAttached,
            Self::LoopAttached,
        ];
        let needs_ring = |host| matches!(host, Self::Own(Runtime::Glommio) | Self::GlommioAttached);
        all.into_iter().filter(move |host| glommio_works() || !needs_ring(*host))
    }

    /// Those that can spawn futures.
    pub(crate) fn executors() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| !matches!(host, Self::Own(Runtime::Thread) | Self::LoopAttached))
    }

    /// Those whose threads the service starts itself.
    pub(crate) fn own() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| matches!(host, Self::Own(_)))
    }
}

/// Whether `io_uring` can be used here. Where it cannot, the service says why.
pub(crate) fn glommio_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        match TimerService::builder().shards(1).runtime(Runtime::Glommio).start() {
            Ok(service) => service.shutdown(ShutdownPolicy::Drop).is_ok(),
            Err(StartError::Runtime { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    })
}

pub(crate) fn runtimes() -> impl Iterator<Item = Runtime> {
    Host::own().filter_map(|host| match host {
        Host::Own(runtime) => Some(runtime),
        _ => None,
    })
}

/// A service whose shards run somewhere.
pub(crate) struct Running<T: Send + 'static> {
    pub(crate) service: Arc<TimerService<T>>,
    pub(crate) stops: Vec<oneshot::Sender<()>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Running<T> {
    pub(crate) fn start<H: Handler<T>>(
        host: Host,
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H + Send + Sync + Clone + 'static,
    ) -> Self {
        if let Host::Own(runtime) = host {
            let service = builder.runtime(runtime).start_with(make_handler);
            return Self::of(service.unwrap_or_else(|error| panic!("{host:?}: {error}")));
        }
        let mut running = Self::of(builder.start_attached().unwrap());
        for shard in running.service.shards() {
            let attachment = running.service.attach(shard).unwrap();
            let make_handler = make_handler.clone();
            let (stop, stopped) = oneshot::async_channel();
            let (ready, attached) = oneshot::channel();
            let ready = move || ready.send(()).unwrap();
            running.stops.push(stop);
            running.threads.push(thread::spawn(move || match host {
                Host::GlommioAttached => {
                    run_glommio(attachment, make_handler(shard), ready, stopped);
                }
                Host::TokioAttached => run_tokio(attachment, make_handler(shard), ready, stopped),
                _ => run_loop(attachment, make_handler(shard), ready),
            }));
            attached.recv().unwrap();
        }
        running
    }

    fn of(service: TimerService<T>) -> Self {
        Self { service: Arc::new(service), stops: Vec::new(), threads: Vec::new() }
    }

    pub(crate) fn client(&self) -> Client<T> {
        self.service.client()
    }

    /// Shuts the service down and ends what it ran in.
    pub(crate) fn end(self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let report = self.service.shutdown(policy).unwrap();
        self.stop();
        report
    }

    /// Ends what a service that is shut down ran in.
    pub(crate) fn stop(self) {
        for stop in self.stops {
            let _ = stop.send(());
        }
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn run_glommio<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl Handler<T>,
    ready: impl FnOnce(),
    stopped: oneshot::AsyncReceiver<()>,
) {
    let executor = glommio::LocalExecutorBuilder::default().make().expect("io_uring");
    executor.run(async move {
        let timers = attachment.attach_glommio(handler).unwrap();
        ready();
        let _ = stopped.await;
        drop(timers);
    });
}

fn run_tokio<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl Handler<T>,
    ready: impl FnOnce(),
    stopped: oneshot::AsyncReceiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let timers = attachment.attach_tokio(handler).unwrap();
        ready();
        let _ = stopped.await;
        drop(timers);
    });
}

fn run_loop<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl Handler<T>,
    ready: impl FnOnce(),
) {
    let mut shard = attachment.into_loop(handler).unwrap();
    ready();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let turn = shard.turn();
        if turn == Turn::Closed {
            return;
        }
        match shard.prepare_to_sleep(turn, &waker) {
            LoopSleep::No => {}
            LoopSleep::Until(at) => thread::park_timeout(at.saturating_duration_since(now())),
            LoopSleep::UntilWoken => thread::park(),
        }
    }
}

fn now() -> Instant {
    Instant::now()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let give_up = now() + PATIENCE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(now() < give_up, "a future is not done");
        thread::park_timeout(ms(100));
    }
}

/// What a future that is done answers; `None` if it is not.
pub(crate) fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = now() + PATIENCE;
    while !is_so() {
        assert!(now() < give_up, "in vain: {what}");
        thread::sleep(ms(1));
    }
}

/// Counts how often it is woken.
#[derive(Default)]
pub(crate) struct Alarm(AtomicUsize);

impl Alarm {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), Waker::from(alarm))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type BoxedHandler<T> = Box<dyn FnMut(Fired<T>, &Timers<T>)>;

/// Shards that take their turns when the test says so, on a clock that it moves; a tick is a
/// millisecond.
pub(crate) struct Lab<T: Send + 'static> {
    pub(crate) clock: ManualClock,
    pub(crate) service: TimerService<T>,
    pub(crate) shards: Vec<ShardLoop<T, BoxedHandler<T>>>,
    fired: Rc<RefCell<Vec<(T, u64)>>>,
}

impl<T: Send + 'static> Lab<T> {
    /// With a handler that notes what fires, and at which tick.
    pub(crate) fn new(builder: TimerServiceBuilder) -> Self {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let mut lab = Self::with_handler(builder, move |_| {
            let fired = Rc::clone(&noted);
            move |one: Fired<T>, timers: &Timers<T>| {
                assert!(one.deadline <= timers.now(), "a timer is early");
                let at = timers.now() - one.deadline;
                assert_eq!(at, one.lateness, "the lateness is what the clock says");
                fired.borrow_mut().push((one.task, ticks_of(timers)));
            }
        });
        lab.fired = fired;
        lab
    }

    pub(crate) fn with_handler<H>(
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H,
    ) -> Self
    where
        H: FnMut(Fired<T>, &Timers<T>) + 'static,
    {
        let clock = ManualClock::new();
        EPOCH.set(Some(clock.now()));
        let service: TimerService<T> = builder.clock(clock.clock()).start_attached().unwrap();
        let drive = |shard| {
            let handler: BoxedHandler<T> = Box::new(make_handler(shard));
            service.attach(shard).unwrap().into_loop(handler).unwrap()
        };
        let shards = service.shards().map(drive).collect();
        Self { clock, service, shards, fired: Rc::default() }
    }

    pub(crate) fn client(&self) -> Client<T> {
        self.service.client()
    }

    pub(crate) fn timers(&self) -> &Timers<T> {
        self.shards[0].timers()
    }

    /// One turn of the first shard.
    pub(crate) fn turn(&mut self) -> Turn {
        self.shards[0].turn()
    }

    /// Turns of all shards until none has more to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.shards.iter_mut().all(|shard| shard.turn() != Turn::More) {
                return;
            }
        }
        panic!("the shards never come to rest");
    }

    /// Turns of all shards until they are closed.
    pub(crate) fn settle_closed(&mut self) {
        for shard in &mut self.shards {
            while shard.turn() != Turn::Closed {}
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.settle();
    }

    /// What has fired since the last look, with the tick at which it did.
    pub(crate) fn fired(&self) -> Vec<(T, u64)> {
        self.fired.take()
    }

    pub(crate) fn counts(&self) -> ShardCounts {
        self.counts_of(SHARD)
    }

    pub(crate) fn counts_of(&self, shard: ShardId) -> ShardCounts {
        self.service.stats().shards[usize::from(shard.number())].counts
    }

    /// Ends the first shard alone.
    pub(crate) fn end(&mut self, policy: ShutdownPolicy) -> ShardReport<T> {
        self.shards.remove(0).shutdown(policy)
    }
}

thread_local! {
    /// The epoch of this thread's lab.
    static EPOCH: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// The present tick of the lab.
pub(crate) fn ticks_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_millis() as u64
}

/// Nanoseconds that the lab's clock has counted.
pub(crate) fn nanos_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_nanos() as u64
}

/// The law, for one reading of one shard.
#[track_caller]
pub(crate) fn check_law(counts: &ShardCounts) {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ended = counts.fired + counts.cancelled + counts.returned;
    assert_eq!(Some(counts.pending), scheduled.checked_sub(ended), "{counts:?}");
}

pub(crate) fn builder(shards: usize) -> TimerServiceBuilder {
    // As many services as tests run at once share what cpus there are.
    TimerService::builder().shards(shards).capacity(1 << 16)
}

/// A task that says when it is dropped.
#[derive(Clone)]
pub(crate) struct Guard(Arc<AtomicUsize>);

impl Guard {
    pub(crate) fn new() -> (Self, Arc<AtomicUsize>) {
        let dropped = Arc::new(AtomicUsize::new(0));
        (Self(Arc::clone(&dropped)), dropped)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

/// The tick of a turn's answer.
pub(crate) fn next(ticks: u64) -> Turn {
    Turn::Next(Tick::new(ticks))
}
