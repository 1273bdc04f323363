//! Helpers of the tests: the hosts on which a shard can run, and a lab that drives shards itself
//! with a manual clock.

pub(crate) mod seeds;

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use corewheel::attach::{Attachment, ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::shutdown::{ShardReport, ShutdownReport};
use corewheel::sim;
use corewheel::stats::ShardCounts;
use corewheel::{
    Fired, Handler, ShardId, ShutdownPolicy, StartError, TimerId, TimerService,
    TimerServiceBuilder, Timers,
};
use corewheel_glommio::{AttachGlommio, Runtime};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::LocalSet;

/// How long a test waits for an expected event before it fails. Far longer than the event takes, so
/// that no test fails because the machine is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// A delay that is longer than any test runs.
pub(crate) const FAR: Duration = Duration::from_hours(1);
pub(crate) const SHARD: ShardId = ShardId::new(0);
pub(crate) const OTHER: ShardId = ShardId::new(1);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The host of a service's shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    /// The service's own threads.
    Own(Runtime),
    /// An executor or a loop that the test runs.
    GlommioAttached,
    /// In a `LocalSet`.
    TokioAttached,
    LocalRuntimeAttached,
    LoopAttached,
}

impl Host {
    /// All hosts that work on this machine.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let all = [
            Self::Own(Runtime::Glommio),
            Self::Own(Runtime::Tokio),
            Self::Own(Runtime::Thread),
            Self::GlommioAttached,
            Self::TokioAttached,
            Self::LocalRuntimeAttached,
            Self::LoopAttached,
        ];
        let needs_ring = |host| matches!(host, Self::Own(Runtime::Glommio) | Self::GlommioAttached);
        all.into_iter().filter(move |host| glommio_works() || !needs_ring(*host))
    }

    /// The hosts that can spawn futures.
    pub(crate) fn executors() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| *host != Self::Own(Runtime::Thread))
    }

    /// The hosts whose threads the service starts itself.
    pub(crate) fn own() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| matches!(host, Self::Own(_)))
    }
}

/// Whether `io_uring` works on this machine.
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

/// A service with running shards, and the threads of the test that drive them.
pub(crate) struct Running<T: Send + 'static> {
    pub(crate) service: Arc<TimerService<T>>,
    pub(crate) stops: Vec<oneshot::Sender<()>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static> Running<T> {
    pub(crate) fn start<H: Handler<T>>(
        host: Host,
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
    ) -> Self {
        Self::start_boxed(host, builder, Arc::new(move |shard| Box::new(make_handler(shard))))
    }

    /// Compiled once for all handlers of a type of timers: each host is a driver to compile.
    fn start_boxed(
        host: Host,
        builder: TimerServiceBuilder,
        make_handler: Arc<dyn Fn(ShardId) -> BoxedHandler<T> + Send + Sync>,
    ) -> Self {
        if let Host::Own(runtime) = host {
            let service = builder.runtime(runtime).start_with(move |shard| make_handler(shard));
            return Self::of(service.unwrap_or_else(|error| panic!("{host:?}: {error}")));
        }
        let mut running = Self::of(builder.start_attached_with().unwrap());
        for shard in running.service.shards() {
            let attachment = running.service.attach(shard).unwrap();
            let make_handler = Arc::clone(&make_handler);
            let (stop, stopped) = oneshot::async_channel();
            let (ready, attached) = oneshot::channel();
            let ready = move || ready.send(()).unwrap();
            running.stops.push(stop);
            running.threads.push(thread::spawn(move || match host {
                Host::GlommioAttached => {
                    run_glommio(attachment, make_handler(shard), ready, stopped);
                }
                Host::TokioAttached | Host::LocalRuntimeAttached => {
                    run_tokio(host, attachment, make_handler(shard), ready, stopped);
                }
                _ => run_loop(attachment, make_handler(shard), ready),
            }));
            attached.recv().unwrap();
        }
        running
    }

    fn of(service: TimerService<T>) -> Self {
        Self { service: Arc::new(service), stops: Vec::new(), threads: Vec::new() }
    }

    pub(crate) fn client(&self) -> sim::Thread<T> {
        sim::Thread::of(&self.service)
    }

    /// Shuts the service down and ends the threads of the test that drove its shards.
    pub(crate) fn end(self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let report = self.service.shutdown(policy).unwrap();
        self.stop();
        report
    }

    /// Ends the threads of the test that drove the shards. The service is shut down.
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
    host: Host,
    attachment: Attachment<T>,
    handler: impl Handler<T>,
    ready: impl FnOnce(),
    stopped: oneshot::AsyncReceiver<()>,
) {
    block_on_tokio(host, async move {
        let timers = attachment.attach_tokio(handler).unwrap();
        ready();
        let _ = stopped.await;
        drop(timers);
    });
}

/// Runs a future in a `LocalRuntime` or in a `LocalSet`, as the host says.
pub(crate) fn block_on_tokio<F: Future>(host: Host, future: F) -> F::Output {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    match host {
        Host::LocalRuntimeAttached => {
            builder.build_local(LocalOptions::default()).unwrap().block_on(future)
        }
        Host::TokioAttached => LocalSet::new().block_on(&builder.build().unwrap(), future),
        _ => panic!("{host:?} is not attached to tokio"),
    }
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
        match shard.prepare_to_sleep(turn, &waker) {
            Turn::More => {}
            Turn::Next(at) => thread::park_timeout(at.saturating_duration_since(now())),
            Turn::Idle => thread::park(),
            Turn::Closed => return,
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

/// Blocks this thread until a future is ready.
pub(crate) fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let give_up = now() + PATIENCE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(now() < give_up, "a future is not ready in time");
        thread::park_timeout(ms(100));
    }
}

/// Polls a future once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls a future once. `None` if it is pending.
pub(crate) fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match poll(future, Waker::noop()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits until a condition holds. `what` names it.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = now() + PATIENCE;
    while !is_so() {
        assert!(now() < give_up, "waited in vain until {what}");
        thread::sleep(ms(1));
    }
}

/// A waker that counts how often it is woken.
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

/// A service whose shards the test drives turn by turn, with a manual clock. A tick is a
/// millisecond.
///
/// The clock has run for a random time before the service starts, the shards begin at different
/// times, and have run for a while when the test begins.
pub(crate) struct Lab<T: Send + 'static> {
    /// What the clock showed when it was made. Ticks count from there.
    pub(crate) epoch: Instant,
    pub(crate) clock: ManualClock,
    pub(crate) service: TimerService<T>,
    pub(crate) shards: Vec<ShardLoop<T, BoxedHandler<T>>>,
    fired: Rc<RefCell<Vec<(T, u64)>>>,
}

impl<T: Send + 'static> Lab<T> {
    /// A lab whose handler notes each payload that fires, and the tick.
    pub(crate) fn new(builder: TimerServiceBuilder) -> Self {
        let (runs_on, served) = random_beginning();
        let mut lab = Self::noting(builder, runs_on);
        lab.age(served);
        lab
    }

    /// Like [`new`](Self::new), at a time at which all windows of the wheel begin: see
    /// [`seeds::windows`].
    pub(crate) fn at_windows(builder: TimerServiceBuilder) -> Self {
        let mut before = Some(seeds::windows(&mut seeds::rng()));
        let mut lab = Self::noting(builder, || before.take().unwrap_or_default());
        // The first turns come from the clock's epoch to the present.
        lab.settle();
        lab
    }

    fn noting(builder: TimerServiceBuilder, runs_on: impl FnMut() -> Duration) -> Self {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let make_handler = move |_| {
            let fired = Rc::clone(&noted);
            move |one: Fired<T>, timers: &Timers<T>| {
                assert!(one.deadline <= timers.now(), "a timer is early");
                let late = timers.now() - one.deadline;
                assert_eq!(late, one.lateness, "the lateness is the time since the deadline");
                fired.borrow_mut().push((one.payload, ticks_of(timers)));
            }
        };
        let mut lab = Self::begin(builder, make_handler, runs_on);
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
        let (runs_on, served) = random_beginning();
        let mut lab = Self::begin(builder, make_handler, runs_on);
        lab.age(served);
        lab
    }

    /// A lab without values that begins at the clock's epoch.
    pub(crate) fn at_epoch(builder: TimerServiceBuilder) -> Self {
        Self::begin(builder, |_| |_: Fired<T>, _: &Timers<T>| {}, || Duration::ZERO)
    }

    /// `runs_on` is how long the clock runs before the service starts, and then before each shard
    /// does.
    fn begin<H>(
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H,
        mut runs_on: impl FnMut() -> Duration,
    ) -> Self
    where
        H: FnMut(Fired<T>, &Timers<T>) + 'static,
    {
        let clock = ManualClock::new();
        let epoch = clock.now();
        clock.advance(runs_on());
        let service: TimerService<T> = builder.clock(&clock).start_attached_with().unwrap();
        let drive = |shard| {
            clock.advance(runs_on());
            let handler: BoxedHandler<T> = Box::new(make_handler(shard));
            service.attach(shard).unwrap().into_loop(handler).unwrap()
        };
        let shards = service.shards().map(drive).collect();
        EPOCH.set(Some(clock.now()));
        Self { epoch, clock, service, shards, fired: Rc::default() }
    }

    /// Nanoseconds since the clock's epoch.
    pub(crate) fn nanos(&self) -> u64 {
        (self.clock.now() - self.epoch).as_nanos() as u64
    }

    pub(crate) fn client(&self) -> sim::Thread<T> {
        sim::Thread::of(&self.service)
    }

    pub(crate) fn timers(&self) -> &Timers<T> {
        self.shards[0].timers()
    }

    /// Takes one turn of the first shard.
    pub(crate) fn turn(&mut self) -> Turn {
        self.shards[0].turn()
    }

    /// Takes turns of all shards until no shard has more to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.shards.iter_mut().all(|shard| shard.turn() != Turn::More) {
                return;
            }
        }
        panic!("the shards always have more to do");
    }

    /// Takes turns of all shards until they are closed.
    pub(crate) fn settle_closed(&mut self) {
        for shard in &mut self.shards {
            while shard.turn() != Turn::Closed {}
        }
    }

    /// Takes turns of the first shard until it falls asleep, and returns until when.
    pub(crate) fn fall_asleep(&mut self, waker: &Waker) -> Turn {
        loop {
            let turn = self.turn();
            match self.shards[0].prepare_to_sleep(turn, waker) {
                Turn::More => {}
                sleep => return sleep,
            }
        }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.settle();
    }

    /// Lets the service run for a time before the test. Ticks count from then on.
    pub(crate) fn age(&mut self, by: Duration) {
        self.advance(by);
        EPOCH.set(Some(self.clock.now()));
    }

    /// Takes the payloads that have fired since the last call, with their ticks.
    pub(crate) fn fired(&self) -> Vec<(T, u64)> {
        self.fired.take()
    }

    pub(crate) fn counts(&self) -> ShardCounts {
        self.counts_of(SHARD)
    }

    pub(crate) fn counts_of(&self, shard: ShardId) -> ShardCounts {
        self.service.stats().shards[usize::from(shard.number())].counts
    }

    /// Shuts the first shard down alone.
    pub(crate) fn end(&mut self, policy: ShutdownPolicy) -> ShardReport<T> {
        self.shards.remove(0).shutdown(policy)
    }
}

/// How long a clock runs before a service starts and then before each of its shards, and for how
/// long they have served when a test begins.
fn random_beginning() -> (impl FnMut() -> Duration, Duration) {
    let mut rng = seeds::rng();
    let (mut before, served) = (Some(seeds::age(&mut rng)), rng.u64(..3_600 * 24));
    let seconds = Duration::from_secs;
    (move || before.take().unwrap_or_else(|| seconds(rng.u64(..100))), seconds(served))
}

thread_local! {
    /// The time from which this thread's lab counts.
    static EPOCH: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
}

/// The present tick of the lab.
pub(crate) fn ticks_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_millis() as u64
}

/// The present time of the lab in nanoseconds.
pub(crate) fn nanos_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_nanos() as u64
}

/// Checks the law for the counts of a shard: the pending timers are those scheduled and not ended.
#[track_caller]
pub(crate) fn check_law(counts: &ShardCounts) {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
    assert_eq!(Some(counts.pending), scheduled.checked_sub(ended), "{counts:?}");
}

pub(crate) fn builder(shards: usize) -> TimerServiceBuilder {
    // Tests run at the same time, and their services share the cpus.
    TimerService::builder().shards(shards).capacity(1 << 16)
}

/// A payload that counts its drops.
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

/// The result of a turn whose next turn is due at a tick.
pub(crate) fn next(ticks: u64) -> Turn {
    let epoch = EPOCH.get().expect("a lab is made first");
    Turn::Next(epoch + ms(ticks))
}

/// The shard, the slot and the generation that a handle names, in whichever service.
pub(crate) fn key_of(timer: TimerId) -> String {
    format!("{timer:?}")
}

/// The shard and the slot that a handle names.
pub(crate) fn slot_of(timer: TimerId) -> String {
    let key = key_of(timer);
    let (slot, _generation) = key.split_once('v').expect("a key ends with its generation");
    slot.to_owned()
}
