//! Sleeps and timeouts of a handle, with many threads and a real clock.

use std::future::{pending, poll_fn};
use std::hint::black_box;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, mpsc};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use corewheel::stats::ShardCounts;
use corewheel::{
    Handle, RefusedKind, Runtime, ShardId, ShutdownPolicy, TimerService, TimerServiceBuilder,
    Timers,
};
use fastrand::Rng;
use futures_lite::future::block_on;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::check_not_early;
use corewheel_test_support::{FAR, PATIENCE, ms, poll, poll_with, wait_until};

/// A service with one shard on a plain thread, and the test's view of it.
struct OneShard {
    service: TimerService,
    handle: Handle,
    /// The counts before other threads had timers.
    begin: ShardCounts,
}

impl OneShard {
    fn new(builder: TimerServiceBuilder) -> Self {
        let service = builder.shards(1).runtime(Runtime::Thread).start().unwrap();
        let handle = service.handle();
        let mut lab = Self { service, handle, begin: ShardCounts::default() };
        lab.begin = lab.wait_until("no timer", |counts| counts.pending == 0);
        lab
    }

    /// The counts, which obey the law in every reading.
    fn counts(&self) -> ShardCounts {
        let counts = self.service.stats().shards[0].counts;
        let scheduled = counts.scheduled_local + counts.scheduled_remote;
        let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
        assert_eq!(Some(counts.pending), scheduled.checked_sub(ended), "{counts:?}");
        counts
    }

    /// Makes the shard take turns until its counts are as expected. Each time, it receives a timer
    /// of the test's own thread, as requests that need no wake-up may wait.
    fn wait_until(&self, expected: &str, are: impl Fn(&ShardCounts) -> bool) -> ShardCounts {
        let begin = Instant::now();
        loop {
            block_on(self.handle.sleep(ms(1))).unwrap();
            let counts = self.counts();
            if are(&counts) {
                return counts;
            }
            assert!(begin.elapsed() < PATIENCE, "{expected}: {counts:?}");
        }
    }

    /// Waits until the shard has nothing left of the other threads' timers.
    fn wait_until_no_timer(&self) -> ShardCounts {
        self.wait_until("no timer", |counts| counts.pending == 0)
    }

    /// Waits until the shard has nothing left of threads that have ended.
    fn wait_until_no_client(&self) {
        let Self { begin, .. } = self;
        self.wait_until("as at the begin", |counts| {
            (counts.pending, counts.threads) == (0, begin.threads)
                && counts.granted == begin.granted
        });
    }
}

fn multi_thread(workers: usize) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_time().build().unwrap()
}

/// Waits for something on a runtime, at most [`PATIENCE`].
fn wait_for<F: Future>(runtime: &tokio::runtime::Runtime, future: F) -> F::Output {
    runtime.block_on(async { timeout(PATIENCE, future).await }).expect("it ends in time")
}

/// Spawns tasks on a runtime.
fn spawn_all<F: Future<Output: Send> + Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    futures: impl IntoIterator<Item = F>,
) -> JoinSet<F::Output> {
    let mut tasks = JoinSet::new();
    for future in futures {
        tasks.spawn_on(future, runtime.handle());
    }
    tasks
}

async fn sleep_not_early(handle: Handle, time: Duration) {
    let begin = Instant::now();
    handle.sleep(time).await.unwrap();
    check_not_early(begin, time);
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

#[test]
fn burst_of_timeouts_from_one_worker_arms_all() {
    for workers in [1, 4] {
        let lab = OneShard::new(TimerService::builder());
        let runtime = multi_thread(workers);
        check_burst_of_timeouts(&lab, &runtime, 40_000, true);
        check_burst_of_timeouts(&lab, &runtime, 20_000, false);
        drop(runtime);
        lab.wait_until_no_client();
    }
}

/// A waker for one poll of a future, which holds what is counted.
struct Counted(Waker, #[allow(dead_code, reason = "it is counted")] Arc<()>);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

/// Timeouts that one task polls, and drops when all of them are armed, or else while most of them
/// wait for room.
fn check_burst_of_timeouts(
    lab: &OneShard,
    runtime: &tokio::runtime::Runtime,
    count: u64,
    are_armed: bool,
) {
    let handle = lab.handle;
    let wakers_left = Arc::new(());
    let timeout = |_| {
        let (mut timeout, left) = (handle.timeout(FAR, pending::<()>()), wakers_left.clone());
        poll_fn(move |cx| {
            let waker = Waker::from(Arc::new(Counted(cx.waker().clone(), left.clone())));
            poll(&mut timeout, &waker)
        })
    };
    let mut set: FuturesUnordered<_> = (0..count).map(timeout).collect();
    let (drop_them, mut may_drop) = oneshot::channel::<()>();
    let task = runtime.spawn(async move {
        poll_fn(|cx| {
            assert!(set.poll_next_unpin(cx).is_pending(), "a timeout is over");
            Pin::new(&mut may_drop).poll(cx)
        })
        .await
    });
    if are_armed {
        lab.wait_until("all are armed", |counts| counts.pending == count);
    }
    drop_them.send(()).unwrap();
    wait_for(runtime, task).unwrap().unwrap();
    lab.wait_until_no_timer();
    lab.wait_until("no waker is left", |_| Arc::strong_count(&wakers_left) == 1);
}

#[test]
fn burst_of_sleeps_fires_all_and_none_early() {
    const COUNT: usize = 30_000;
    for workers in [1, 4] {
        let lab = OneShard::new(TimerService::builder());
        let runtime = multi_thread(workers);
        let tasks = spawn_all(&runtime, (0..COUNT).map(|_| sleep_not_early(lab.handle, ms(50))));
        assert_eq!(wait_for(&runtime, tasks.join_all()).len(), COUNT);
        lab.wait_until_no_timer();
    }
}

/// Threads with small stacks. Prints a line where the host does not allow so many.
fn spawn_threads<O: Send + 'static, F: FnOnce() -> O + Send + 'static>(
    runs: impl Iterator<Item = F>,
) -> Option<Vec<JoinHandle<O>>> {
    let spawn = |run| thread::Builder::new().stack_size(128 << 10).spawn(run);
    let threads = runs.map(spawn).collect::<io::Result<_>>();
    if let Err(error) = &threads {
        println!("skipped: this host does not allow so many threads: {error}");
    }
    threads.ok()
}

/// Threads that sleep by a handle at the same time and end when all of them have slept.
fn check_threads_at_once(builder: TimerServiceBuilder, count: usize) {
    let lab = OneShard::new(builder);
    let handle = lab.handle;
    let (start, end) = (Arc::new(RwLock::new(())), Arc::new(RwLock::new(())));
    let (may_start, may_end) = (start.write().unwrap(), end.write().unwrap());
    let have_slept = Arc::new(AtomicUsize::new(0));
    let run = |_| {
        let (start, end, have_slept) = (start.clone(), end.clone(), have_slept.clone());
        move || {
            drop(start.read().unwrap());
            block_on(sleep_not_early(handle, ms(500)));
            have_slept.fetch_add(1, Ordering::Relaxed);
            drop(end.read().unwrap());
        }
    };
    let threads = spawn_threads((0..count).map(run));
    drop(may_start);
    if let Some(threads) = &threads {
        wait_until("all have slept", || {
            assert!(!threads.iter().any(JoinHandle::is_finished), "a sleep is early");
            have_slept.load(Ordering::Relaxed) == count
        });
    }
    drop(may_end);
    threads.into_iter().flatten().for_each(|thread| thread.join().unwrap());
    lab.wait_until_no_client();
}

#[test]
fn sleeps_of_2000_threads_fire_and_the_timers_of_the_threads_go_with_them() {
    for builder in [TimerService::builder(), TimerService::builder().capacity(10_000)] {
        check_threads_at_once(builder, 2_000);
    }
}

/// Threads that arm a far sleep each while a callback holds up the shard, which then receives them
/// all in one tick, and that drop it when all sleeps are armed.
fn check_burst_of_threads(capacity: u32, count: usize) {
    let lab = OneShard::new(TimerService::builder().capacity(capacity));
    let handle = lab.handle;
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let client = lab.service.handle();
    let hold_up = move |_: &Timers| assert!(may_go_on.recv().is_err());
    // On a thread of its own, whose lane ends with it.
    let hold = move || client.on(ShardId::new(0)).schedule_fn(ms(0), hold_up).map(drop);
    assert!(thread::spawn(hold).join().unwrap().is_ok());
    let polled = Arc::new(AtomicUsize::new(0));
    let (drop_them, may_drop): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
    let run = |may_drop: oneshot::Receiver<()>| {
        let polled = polled.clone();
        move || {
            let mut armed = pin!(handle.timeout(FAR, may_drop));
            let first = poll_once(armed.as_mut());
            polled.fetch_add(1, Ordering::Relaxed);
            if first.is_pending() { block_on(armed) } else { panic!("{first:?}") }
        }
    };
    let Some(threads) = spawn_threads(may_drop.into_iter().map(run)) else { return };
    let is_over = || threads.iter().any(JoinHandle::is_finished);
    wait_until("all are polled", || is_over() || polled.load(Ordering::Relaxed) == count);
    drop(go_on);
    lab.wait_until("all are armed", |counts| is_over() || counts.pending == count as u64);
    drop(drop_them.into_iter().map(|drop_it| drop_it.send(())).collect::<Vec<_>>());
    let ends = threads.into_iter().map(|thread| thread.join().unwrap());
    let refused: Vec<_> = ends.filter(|end| *end != Ok(Ok(()))).collect();
    assert!(refused.is_empty(), "{} of {count} at {capacity}: {:?}", refused.len(), refused[0]);
    lab.wait_until("no client is left", |counts| (counts.pending, counts.lanes) == (0, 0));
}

#[test]
fn burst_of_2000_threads_at_a_capacity_of_2200_arms_all() {
    // A 32nd of the slots is reserved for clients, and the shard that is held up lends none of it.
    for capacity in [2_200, 3_000] {
        check_burst_of_threads(capacity, 2_000);
    }
}

#[test]
fn short_lived_threads_leave_no_timers() {
    const WAVE: usize = 100;
    // A shard of the default capacity grants and takes back a thousand keys for each thread.
    for (capacity, waves) in [(1 << 20, 5), (1 << 11, 40)] {
        let lab = OneShard::new(TimerService::builder().capacity(capacity));
        let handle = lab.handle;
        for _ in 0..waves {
            thread::scope(|scope| {
                for number in 0..WAVE {
                    scope.spawn(move || arm_and_drop(handle, number % 10 == 0));
                }
            });
        }
        lab.wait_until_no_client();
    }
}

/// Arms a timeout and drops it, at once or when the shard has received it.
fn arm_and_drop(handle: Handle, is_received: bool) {
    let mut armed = pin!(handle.timeout(FAR, pending::<()>()));
    assert!(poll_once(armed.as_mut()).is_pending());
    if is_received {
        block_on(sleep_not_early(handle, ms(1)));
    }
}

#[test]
fn runtime_that_is_shut_down_drops_its_sleeps_harmlessly() {
    const COUNT: u64 = 5_000;
    let lab = OneShard::new(TimerService::builder());
    let handle = lab.handle;
    for workers in [1, 4] {
        let runtime = multi_thread(workers);
        for _ in 0..COUNT {
            runtime.spawn(handle.sleep(FAR));
            runtime.spawn(handle.timeout(FAR, pending::<()>()));
        }
        lab.wait_until("all are armed", |counts| counts.pending == 2 * COUNT);
        // While other tasks still begin to sleep.
        for _ in 0..COUNT {
            runtime.spawn(handle.sleep(FAR));
        }
        runtime.shutdown_background();
        lab.wait_until_no_client();
    }
}

#[test]
fn tasks_that_wait_when_the_service_ends_get_closed() {
    use ShutdownPolicy::{Drop, Fire, Return};
    const COUNT: u64 = 5_000;
    for policy in [Some(Drop), Some(Fire), Some(Return), None] {
        // With so small a lane, thousands wait for room.
        let lab = OneShard::new(TimerService::builder().lane_capacity(4));
        let handle = lab.handle;
        let runtime = multi_thread(4);
        let sleeps = || (0..COUNT).map(|_| handle.sleep(FAR));
        let mut tasks = spawn_all(&runtime, sleeps());
        lab.wait_until("all are armed", |counts| counts.pending == COUNT);
        // While other tasks wait for room, or begin to sleep.
        for sleep in sleeps() {
            tasks.spawn_on(sleep, runtime.handle());
        }
        lab.wait_until("some are armed", |counts| counts.pending > COUNT + 20);
        let _unpolled = handle.sleep(FAR);
        match policy {
            Some(policy) => drop(lab.service.shutdown(policy).unwrap()),
            None => drop(lab.service),
        }
        for slept in wait_for(&runtime, tasks.join_all()) {
            assert_eq!(slept, Err(RefusedKind::Closed), "{policy:?}");
        }
        // The threads of the runtime know the service, and a new thread does not.
        let used = runtime.spawn(check_closed(handle));
        wait_for(&runtime, used).unwrap();
        thread::spawn(move || block_on(check_closed(handle))).join().unwrap();
    }
}

/// Uses a handle of a service that has ended.
async fn check_closed(handle: Handle) {
    let kind = RefusedKind::Closed;
    assert_eq!(handle.sleep(FAR).await, Err(kind));
    let error = handle.timeout(FAR, pending::<()>()).await.unwrap_err();
    assert!(!error.is_elapsed());
    assert_eq!(handle.timeout(FAR, async { 1 }).await, Ok(1));
    let mut interval = handle.interval_at(FAR, ms(1)).unwrap();
    let ticked = interval.tick().await;
    assert!(ticked == Err(kind) || ticked.is_ok(), "{ticked:?}");
}

/// A task whose sleep is polled, reset and awaited, on one worker after the other.
async fn migrate(handle: Handle, mut rng: Rng) {
    let mut sleep = handle.sleep(ms(20));
    for _ in 0..8 {
        let begin = Instant::now();
        let mut least = ms(rng.u64(..30));
        sleep.reset(least);
        for _ in 0..rng.usize(..4) {
            if poll_once(Pin::new(&mut sleep)).is_ready() {
                check_not_early(begin, least);
            }
            yield_now().await;
            // To earlier and to later.
            least = begin.elapsed() + ms(rng.u64(..30));
            sleep.reset(begin + least);
        }
        if rng.bool() {
            sleep_not_early(handle, ms(rng.u64(..5))).await;
            yield_now().await;
        }
        sleep.await.unwrap();
        check_not_early(begin, least);
        sleep = handle.sleep(FAR);
        assert!(poll_once(Pin::new(&mut sleep)).is_pending());
        // A timeout with a future that is done first, and one that is over first.
        let yields = async {
            yield_now().await;
            yield_now().await;
        };
        assert!(handle.timeout(FAR, yields).await.is_ok());
        let (begin, time) = (Instant::now(), ms(rng.u64(..5)));
        let late = handle.timeout(time, pending::<()>()).await;
        assert!(late.unwrap_err().is_elapsed());
        check_not_early(begin, time);
    }
}

#[test]
fn tasks_that_migrate_between_workers_keep_their_deadlines() {
    let lab = OneShard::new(TimerService::builder());
    let runtime = multi_thread(4);
    let migrations = (0..2_000).map(|seed| migrate(lab.handle, Rng::with_seed(seed)));
    let tasks = spawn_all(&runtime, migrations);
    wait_for(&runtime, tasks.join_all());
    lab.wait_until_no_timer();
    drop(runtime);
    lab.wait_until_no_client();
}

/// Computes for a few milliseconds between two awaits, until it is told to stop.
async fn compute_in_slices(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        while begin.elapsed() < ms(2) {
            black_box((0..1_000_u64).map(black_box).sum::<u64>());
        }
        yield_now().await;
    }
}

#[test]
fn shard_beside_busy_workers_receives_its_requests() {
    const COUNT: usize = 20_000;
    const WORKERS: usize = 4;
    let lab = OneShard::new(TimerService::builder().unpinned());
    let (handle, runtime) = (lab.handle, multi_thread(WORKERS));
    let stop = Arc::new(AtomicBool::new(false));
    let busy = spawn_all(&runtime, (0..WORKERS).map(|_| compute_in_slices(Arc::clone(&stop))));
    let task = |number| async move {
        if number % 2 == 0 {
            let begin = Instant::now();
            let late = handle.timeout(ms(20), pending::<()>()).await;
            check_not_early(begin, ms(20));
            assert!(late.unwrap_err().is_elapsed());
        } else {
            let mut armed = pin!(handle.timeout(FAR, pending::<()>()));
            for _ in 0..3 {
                assert!(poll_once(armed.as_mut()).is_pending());
                yield_now().await;
            }
        }
    };
    // This thread waits beside the runtime, whose workers are busy.
    let tasks = spawn_all(&runtime, (0..COUNT).map(task));
    wait_for(&runtime, tasks.join_all());
    lab.wait_until_no_timer();
    stop.store(true, Ordering::Relaxed);
    wait_for(&runtime, busy.join_all());
}
