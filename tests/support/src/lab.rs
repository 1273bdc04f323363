//! A service whose shards the test drives turn by turn, with a manual clock.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::shutdown::ShutdownReport;
use corewheel::sim;
use corewheel::stats::ShardCounts;
use corewheel::{
    Fired, Handle, ShardId, ShutdownPolicy, TimerId, TimerService, TimerServiceBuilder, Timers,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::{Elsewhere, SHARD, look, ms, seeds, waker_of};

/// A handler of any type.
pub type BoxedHandler<T> = Box<dyn FnMut(Fired<T>, &Timers<T>)>;

/// A service whose shards the test drives turn by turn, with a manual clock. A tick is a
/// millisecond.
///
/// The clock has run for a random time before the service starts, the shards begin at different
/// times, and have run for a while when the test begins. At its end, their counts obey the law.
pub struct Lab<T: Send + 'static = Infallible> {
    /// Dropped first. Checks the law for the counts of all shards, unless the test has failed.
    _law: OnDrop<Box<dyn FnMut()>>,
    /// What the clock showed when it was made. Ticks count from there.
    pub epoch: Instant,
    /// The clock of the service.
    pub clock: ManualClock,
    /// The service.
    pub service: TimerService<T>,
    /// Its shards.
    pub shards: Vec<ShardLoop<T, BoxedHandler<T>>>,
    fired: Rc<RefCell<Vec<(T, u64)>>>,
    /// Runs the tasks on the thread of the test, without timers of its own; `None` without tasks.
    tasks: Option<Runtime>,
}

impl<T: Send + 'static> Lab<T> {
    /// A lab whose handler notes each payload that fires, and the tick.
    pub fn new(builder: TimerServiceBuilder) -> Self {
        let (runs_on, served) = random_beginning();
        let mut lab = Self::noting(builder, runs_on);
        lab.age(served);
        lab
    }

    /// Like [`new`](Self::new), with a thread that drives no shard.
    pub fn with_thread(builder: TimerServiceBuilder) -> (Self, Elsewhere) {
        let lab = Self::new(builder);
        let there = Elsewhere::new(lab.handle().untyped());
        (lab, there)
    }

    /// Like [`new`](Self::new), at a time at which all windows of the wheel begin: see
    /// [`seeds::windows`].
    pub fn at_windows(builder: TimerServiceBuilder) -> Self {
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

    /// A lab with a handler of the test for each shard.
    pub fn with_handler<H>(
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
    pub fn at_epoch(builder: TimerServiceBuilder) -> Self {
        Self::aged(builder, Duration::ZERO)
    }

    /// A lab without values that begins so long after the clock's epoch.
    pub fn aged(builder: TimerServiceBuilder, age: Duration) -> Self {
        let mut before = Some(age);
        let handler = |_| |_: Fired<T>, _: &Timers<T>| {};
        Self::begin(builder, handler, || before.take().unwrap_or_default())
    }

    /// The lab with a runtime, whose tasks run in each [`settle`](Self::settle).
    #[must_use]
    pub fn with_tasks(mut self) -> Self {
        self.tasks = Some(tokio::runtime::Builder::new_current_thread().build().unwrap());
        self.settle();
        self
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
        let stats = service.stats_source();
        let law = OnDrop::<Box<dyn FnMut()>>(Box::new(move || {
            if !thread::panicking() {
                stats().shards.iter().for_each(|shard| check_law(&shard.counts));
            }
        }));
        Self { _law: law, epoch, clock, service, shards, fired: Rc::default(), tasks: None }
    }

    /// Nanoseconds since the clock's epoch.
    pub fn nanos(&self) -> u64 {
        (self.clock.now() - self.epoch).as_nanos() as u64
    }

    /// What any thread can do with the service.
    pub fn client(&self) -> sim::Thread<T> {
        sim::Thread::of(&self.service)
    }

    /// The timers of the first shard.
    pub fn timers(&self) -> &Timers<T> {
        self.shards[0].timers()
    }

    /// Takes one turn of the first shard.
    pub fn turn(&mut self) -> Turn {
        self.shards[0].turn()
    }

    /// Takes turns of all shards until no shard has more to do. If there are tasks, they run until
    /// each has had what the others and the shards have for it.
    pub fn settle(&mut self) {
        if let Some(tasks) = self.tasks.take() {
            for _ in 0..8 {
                tasks.block_on(async {
                    for _ in 0..32 {
                        tokio::task::yield_now().await;
                    }
                });
                self.take_turns();
            }
            self.tasks = Some(tasks);
        } else {
            self.take_turns();
        }
    }

    fn take_turns(&mut self) {
        for _ in 0..100_000 {
            if self.shards.iter_mut().all(|shard| shard.turn() != Turn::More) {
                return;
            }
        }
        panic!("the shards always have more to do");
    }

    /// Takes turns of all shards until they are closed.
    pub fn settle_closed(&mut self) {
        for shard in &mut self.shards {
            while shard.turn() != Turn::Closed {}
        }
    }

    /// Ends the service with what its timers carry, and takes all turns until it is closed.
    pub fn close(&mut self) {
        let _ended = self.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
        self.settle_closed();
    }

    /// Takes turns of the first shard until it falls asleep, and returns until when.
    pub fn fall_asleep(&mut self, waker: &Waker) -> Turn {
        loop {
            let turn = self.turn();
            match self.shards[0].prepare_to_sleep(turn, waker) {
                Turn::More => {}
                sleep => return sleep,
            }
        }
    }

    /// Lets the time pass at once, and then settles.
    pub fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.settle();
    }

    /// Lets a time pass so many times, and settles after each.
    pub fn advance_steps(&mut self, steps: u64, by: Duration) {
        (0..steps).for_each(|_| self.advance(by));
    }

    /// Lets some milliseconds pass, one at a time.
    pub fn advance_ticks(&mut self, ticks: u64) {
        self.advance_steps(ticks, ms(1));
    }

    /// Lets the service run for a time before the test. Ticks count from then on.
    pub fn age(&mut self, by: Duration) {
        self.advance(by);
        EPOCH.set(Some(self.clock.now()));
    }

    /// Takes the payloads that have fired since the last call, with their ticks.
    pub fn fired(&self) -> Vec<(T, u64)> {
        self.fired.take()
    }

    /// Takes the payloads that have fired since the last call.
    pub fn values(&self) -> Vec<T> {
        self.fired().into_iter().map(|(value, _)| value).collect()
    }

    /// What a reply says, which has come when the shards have no more to do.
    #[track_caller]
    pub fn reply<R: IntoFuture<IntoFuture: Unpin>>(&mut self, reply: R) -> R::Output {
        let mut reply = reply.into_future();
        self.settle();
        look(&mut reply).expect("the reply has come")
    }

    /// The counts of the first shard, which obey the law.
    #[track_caller]
    pub fn counts(&self) -> ShardCounts {
        self.counts_of(SHARD)
    }

    /// The counts of a shard, which obey the law.
    #[track_caller]
    pub fn counts_of(&self, shard: ShardId) -> ShardCounts {
        let counts = self.service.stats().shards[usize::from(shard.number())].counts;
        check_law(&counts);
        counts
    }

    /// Shuts the first shard down alone. Its counts obey the law.
    #[track_caller]
    pub fn end(&mut self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let report = self.shards.remove(0).shutdown(policy);
        check_law(&report.shards[0].counts);
        report
    }

    /// The counts of the first shard when it has no more to do.
    pub fn settled(&mut self) -> ShardCounts {
        self.settle();
        self.counts()
    }

    /// A handle of the service.
    pub fn handle(&self) -> Handle<T> {
        self.service.handle()
    }

    fn tasks(&self) -> &Runtime {
        self.tasks.as_ref().expect("the lab was made with tasks")
    }

    /// Spawns a task, which runs in the next [`settle`](Self::settle).
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        // One type for all futures of an output: the code of a task is compiled once.
        let future: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(future);
        self.tasks().spawn(future)
    }

    /// Runs a future that needs nothing but the tasks.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let future: Pin<&mut dyn Future<Output = F::Output>> = pin!(future);
        self.tasks().block_on(future)
    }

    /// The output of a task that has ended.
    #[track_caller]
    pub fn output<O>(&mut self, task: JoinHandle<O>) -> O {
        assert!(task.is_finished(), "the task has not ended");
        self.block_on(task).unwrap()
    }
}

/// A lab whose driver takes its turns as soon as it is woken from its sleep.
pub struct Eager<T: Send + 'static> {
    lab: Rc<RefCell<Option<Lab<T>>>>,
    waker: Waker,
}

impl<T: Send + 'static> Eager<T> {
    /// Takes all turns until the driver falls asleep.
    pub fn fall_asleep(lab: Lab<T>) -> Self {
        let lab = Rc::new(RefCell::new(Some(lab)));
        let known = Rc::downgrade(&lab);
        let waker = waker_of(move || {
            let Some(known) = known.upgrade() else { return };
            let Some(mut lab) = known.take() else { return };
            lab.settle();
            known.replace(Some(lab));
        });
        let eager = Self { lab, waker };
        eager.fall_asleep_again();
        eager
    }

    /// Takes all turns until the driver falls asleep.
    pub fn fall_asleep_again(&self) {
        let mut lab = self.lab.take().expect("no turn is taken within another");
        lab.settle();
        let _ = lab.fall_asleep(&self.waker);
        self.lab.replace(Some(lab));
    }

    /// The counts of the shard.
    pub fn counts(&self) -> ShardCounts {
        self.lab.borrow().as_ref().expect("no turn is being taken").counts()
    }

    /// The lab, whose driver takes its turns no more.
    pub fn into_lab(self) -> Lab<T> {
        self.lab.take().expect("no turn is being taken")
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
pub fn ticks_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_millis() as u64
}

/// The present time of the lab in nanoseconds.
pub fn nanos_of<T: Send + 'static>(timers: &Timers<T>) -> u64 {
    let epoch = EPOCH.get().expect("a lab is made first");
    (timers.now() - epoch).as_nanos() as u64
}

/// Checks the law for the counts of a shard: the pending timers are those scheduled and not ended.
#[track_caller]
pub fn check_law(counts: &ShardCounts) {
    let scheduled = counts.scheduled_local + counts.scheduled_remote;
    let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
    assert_eq!(Some(counts.pending), scheduled.checked_sub(ended), "{counts:?}");
}

/// The timers of a shard that has ended which did not fire.
pub fn unfired(counts: &ShardCounts) -> u64 {
    counts.returned + counts.dropped
}

/// A service with some shards, for tests that run at the same time.
pub fn builder(shards: usize) -> TimerServiceBuilder {
    TimerService::builder().shards(shards).capacity(1 << 16)
}

/// A payload that counts its drops.
#[derive(Clone)]
pub struct Guard(Arc<AtomicUsize>);

impl Guard {
    /// A payload, and how often it and its clones were dropped.
    pub fn new() -> (Self, Arc<AtomicUsize>) {
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

/// Runs code when it is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The values that a shutdown has returned, in order of size.
pub fn values_of<T: Ord + Send + 'static>(report: ShutdownReport<T>) -> Vec<T> {
    let returned = report.returned.into_iter();
    let mut values: Vec<_> = returned.filter_map(|one| one.payload.into_value()).collect();
    values.sort_unstable();
    values
}

/// The default of a type, for a test and for a callback that it makes.
pub fn shared<T: Default>() -> (Rc<T>, Rc<T>) {
    let shared = Rc::<T>::default();
    (Rc::clone(&shared), shared)
}

/// The result of a turn whose next turn is due at a tick.
pub fn next(ticks: u64) -> Turn {
    let epoch = EPOCH.get().expect("a lab is made first");
    Turn::Next(epoch + ms(ticks))
}

/// The shard, the slot and the generation that a handle names, in whichever service.
pub fn key_of(timer: TimerId) -> String {
    format!("{timer:?}")
}

/// The shard and the slot that a handle names.
pub fn slot_of(timer: TimerId) -> String {
    let key = key_of(timer);
    let (slot, _generation) = key.split_once('v').expect("a key ends with its generation");
    slot.to_owned()
}
