//! The measurement of a cell.
//!
//! A pass spawns the tasks of a row and waits for them. First some passes have no timeouts, before
//! the system is started; then the system is started, the other timeouts are armed, and some passes
//! have timeouts. Of both the pass with the least processor time counts. On a busy machine this may
//! be one in which the workers did not run at the same time, and contended for no lock.
//!
//! Why in one process: the passes that are subtracted from each other are as close in time as
//! possible. Why the system is started late: what its threads do of themselves counts as its cost.

use std::future::{pending, poll_fn};
use std::hint::black_box;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{mem, thread};

use tokio::runtime::Runtime;

use crate::arm::times_to_arm;
use crate::process::{processor_time, resident_bytes, waits};
use crate::systems::{Corewheel, Pingora, Timeouts, Tokio, Without, runtime};
use crate::{Cell, Facts, Measured, Row, System, quantity};

/// A timeout of which the time is never up.
const LONG: Duration = Duration::from_secs(30);
/// A timeout that is due soon.
const SHORT: Duration = Duration::from_millis(5);
/// After which time the events of the row [`Row::Lives`] happen.
const LIVES_FOR: Duration = Duration::from_millis(5);
/// A timeout that grows old, and after which time its event happens.
const OLD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(40));
/// After which time each pending timer of corewheel is filed.
const OLD_AFTER: Duration = Duration::from_secs(13);
/// How many timeouts a thread sends to another one at once, and how often it may do so before the
/// other has received them.
const SENT_AT_ONCE: usize = 64;
const SENT_MAX: usize = 8;
/// The delays of timeouts that fire, in microseconds.
const FIRED_US: Range<u64> = 5_000..24_000;
/// The delays of the other timeouts, in milliseconds. Pingora leaves delays of more than 15 minutes
/// to tokio's timers.
const OTHERS_MS: Range<u64> = 300_000..600_000;
/// How many of the other timeouts a task holds: fewer than what tokio lets a task poll at once.
pub(crate) const HELD_BY_TASK: usize = 64;
/// How many passes are measured.
const PASSES: usize = 3;
pub(crate) const SEED: u64 = 0x0C0D_E5EE_D000_000D;

/// What a pass of a row does, with `each` timeouts a task.
type Pass<T> = fn(T, Row, &Runtime, usize);

/// Measures a cell. `allocated` returns how many bytes are allocated, if the process counts them.
///
/// # Errors
///
/// The runtime cannot be started, this build has no such system, or the system cannot do what the
/// row asks for.
///
/// # Panics
///
/// A timeout's result is not the expected one, or the system refused a timer.
pub fn measure(
    cell: Cell,
    allocated: Option<fn() -> usize>,
) -> Result<Vec<Measured>, &'static str> {
    let runtime = runtime(cell.workers, cell.system == System::TokioAlternative)?;
    Ok(match cell.system {
        System::Tokio | System::TokioAlternative => measure_on::<Tokio>(cell, &runtime, allocated),
        System::Pingora => measure_on::<Pingora>(cell, &runtime, allocated),
        System::Corewheel => measure_on::<Corewheel>(cell, &runtime, allocated),
    })
}

fn measure_on<T: Timeouts>(
    cell: Cell,
    runtime: &Runtime,
    allocated: Option<fn() -> usize>,
) -> Vec<Measured> {
    match cell.row {
        Row::Memory => memory::<T>(cell, runtime, allocated),
        Row::TimeToArm => time_to_arm::<T>(cell, runtime),
        Row::FiredFew | Row::FiredMany => fired::<T, _>(cell, runtime, time_out::<T>),
        Row::Slept => fired(cell, runtime, |system: T, delay| async move {
            system.sleep(delay).await;
        }),
        Row::Moved => compare::<T>(cell, runtime, moved::<Without>, moved::<T>),
        Row::Reset => compare::<T>(cell, runtime, reset::<Without>, reset::<T>),
        Row::Lives | Row::Old => compare::<T>(cell, runtime, lives::<Without>, lives::<T>),
        Row::AtOnceFew | Row::AtOnceMany | Row::Short => {
            compare::<T>(cell, runtime, at_once::<Without>, at_once::<T>)
        }
    }
}

/// How many tasks a pass has, and how many timeouts each.
fn shares(Cell { row, timeouts, .. }: Cell) -> (usize, usize) {
    let Facts { tasks, twentieths, .. } = row.facts();
    (tasks, (timeouts * twentieths / 20).div_ceil(tasks).max(1))
}

/// The cost of timeouts that do not fire, and of the same without timeouts.
fn compare<T: Timeouts>(
    cell: Cell,
    runtime: &Runtime,
    without: Pass<Without>,
    with: Pass<T>,
) -> Vec<Measured> {
    let Cell { row, pending, .. } = cell;
    let (tasks, each) = shares(cell);
    let (without, _) = least_of(cell, |each| without(Without, row, runtime, each));
    let system = T::start();
    arm(runtime, pending, move |delay| system.timeout(delay, Never([0; 8])));
    let before = system.counts();
    let (with, waits) = least_of(cell, |each| with(system, row, runtime, each));
    let grown = grown(&before, &system.counts());
    check_none_waits(&grown);
    let mut measured = counters(&grown, tasks * (PASSES * each + warm_up(each)));
    let subtracted = if row.is_gross() { 0.0 } else { without };
    measured.extend([
        value(quantity::PROCESSOR, "{}", with - subtracted),
        value(quantity::PROCESSOR_WITHOUT, "{}", without),
        value(quantity::WAITS, "{}", waits),
    ]);
    measured
}

/// The cost and the lateness of timeouts, or of sleeps, that fire.
fn fired<T: Timeouts, F: Future<Output = ()> + Send + 'static>(
    cell: Cell,
    runtime: &Runtime,
    wait: fn(T, Duration) -> F,
) -> Vec<Measured> {
    let (tasks, each) = shares(cell);
    let system = T::start();
    let before = system.counts();
    let mut late_us = Vec::new();
    let (spent, waits) = least_of(cell, |each| {
        late_us = run(runtime, tasks, |task| fire(system, wait, task, each)).concat();
    });
    let all = tasks * (PASSES * each + warm_up(each));
    let mut measured = counters(&grown(&before, &system.counts()), all);
    late_us.sort_by(f64::total_cmp);
    measured.extend([
        value(quantity::PROCESSOR, "{}", spent),
        value(quantity::WAITS, "{}", waits),
        value(quantity::LATE, "{}, least", late_us[0]),
        value(quantity::LATE, "{}, p50", at_most(&late_us, 500)),
        value(quantity::LATE, "{}, p99", at_most(&late_us, 990)),
    ]);
    measured
}

/// How long workers take to arm a timeout.
fn time_to_arm<T: Timeouts>(cell: Cell, runtime: &Runtime) -> Vec<Measured> {
    let (tasks, each) = shares(cell);
    let without = times_to_arm(Without, runtime, tasks, each);
    let with = times_to_arm(T::start(), runtime, tasks, each);
    let mut measured = Vec::new();
    for (row, of_1000) in
        [("{}, p50", 500), ("{}, p99", 990), ("{}, p99.9", 999), ("{}, greatest", 1_000)]
    {
        measured.push(value(quantity::ARM, row, at_most(&with, of_1000)));
        measured.push(value(quantity::ARM_WITHOUT, row, at_most(&without, of_1000)));
    }
    measured
}

/// What pending timeouts take, net of what their futures take without timeouts.
fn memory<T: Timeouts>(
    cell: Cell,
    runtime: &Runtime,
    allocated: Option<fn() -> usize>,
) -> Vec<Measured> {
    let system = T::start();
    let taken = || [resident_bytes() as f64, allocated.map_or(0.0, |allocated| allocated() as f64)];
    let empty = taken();
    arm(runtime, cell.pending, |_| Never([0; 8]));
    let without = taken();
    let timeout = move |delay| system.timeout(delay, Never([0; 8]));
    arm(runtime, cell.pending, timeout);
    let young = taken();
    // Corewheel's shard files them by then, so the greater of the two counts.
    thread::sleep(OLD_AFTER);
    wait_until_idle();
    let filed = taken();
    let net = |of: usize| {
        let with = young[of].max(filed[of]);
        ((with - without[of]) - (without[of] - empty[of])) / cell.pending as f64
    };
    let in_future = size_of_returned(&timeout) - size_of::<Never>();
    let mut measured = vec![
        value(quantity::BYTES, "{}, resident", net(0)),
        value(quantity::BYTES, "{}, of its future", in_future as f64),
    ];
    measured.extend(allocated.map(|_| value(quantity::BYTES, "{}, allocated", net(1))));
    measured
}

/// The size of the futures that a closure makes.
fn size_of_returned<F>(_: &impl Fn(Duration) -> F) -> usize {
    size_of::<F>()
}

/// The value that so many of a thousand do not exceed.
fn at_most(sorted: &[f64], of_1000: usize) -> f64 {
    sorted[(sorted.len() - 1) * of_1000 / 1_000]
}

fn value(quantity: &str, row: &str, value: f64) -> Measured {
    ((quantity.to_owned(), row.to_owned()), value)
}

/// Counters of the system, with their names.
type Counts = Vec<(&'static str, u64)>;

/// What the system's counters have grown by.
fn grown(before: &Counts, after: &Counts) -> Counts {
    let grown = |((name, before), (_, after)): (&(_, u64), &(_, u64))| (*name, after - before);
    before.iter().zip(after).map(grown).collect()
}

/// What the system's counters have grown by for each of `timeouts`, of those that have grown.
fn counters(grown: &Counts, timeouts: usize) -> Vec<Measured> {
    let grown = grown.iter().filter(|(_, grown)| *grown > 0);
    let each = |(name, grown): &(&str, u64)| {
        value(quantity::COUNTER, &format!("{name}: {{}}"), *grown as f64 / timeouts as f64)
    };
    grown.map(each).collect()
}

/// Checks that no timeout was refused, and that none went to its shard in a request, which would
/// wait for room in a lane.
///
/// # Panics
///
/// A timeout was refused, or waited.
fn check_none_waits(grown: &Counts) {
    for (name, grown) in grown.iter().filter(|(name, _)| ["refused", "requests"].contains(name)) {
        assert_eq!(*grown, 0, "the counter `{name}` grew by {grown}, and timeouts must not wait");
    }
}

/// Runs a shorter pass to warm up, and then some others. Returns the processor time of the least of
/// them for each timeout, in nanoseconds, and how often threads wait in all of them for each 1,000.
fn least_of(cell: Cell, mut pass: impl FnMut(usize)) -> (f64, f64) {
    let (tasks, each) = shares(cell);
    pass(warm_up(each));
    let timeouts = (tasks * each) as f64;
    let waited = waits();
    let measured = (0..PASSES).map(|_| {
        let before = processor_time();
        pass(each);
        processor_time().saturating_sub(before).as_nanos() as f64 / timeouts
    });
    let least = measured.min_by(f64::total_cmp).expect("there is a pass at least");
    (least, (waits() - waited) as f64 / timeouts / PASSES as f64 * 1_000.0)
}

/// How many timeouts each task of the first pass has, which is not measured.
fn warm_up(each: usize) -> usize {
    each.div_ceil(5)
}

/// Spawns tasks and waits until all have ended.
pub(crate) fn run<F>(runtime: &Runtime, tasks: usize, task: impl Fn(usize) -> F) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks).map(|number| tokio::spawn(task(number))).collect();
        let mut outputs = Vec::with_capacity(tasks.len());
        for task in tasks {
            outputs.push(task.await.expect("a task does not panic"));
        }
        outputs
    })
}

/// Timeouts around futures that are ready at their second poll.
fn at_once<T: Timeouts>(system: T, row: Row, runtime: &Runtime, each: usize) {
    let delay = if row == Row::Short { SHORT } else { LONG };
    run(runtime, row.facts().tasks, |_| async move {
        for number in 0..each {
            match system.timeout(delay, ready_at_second_poll(number)).await {
                Ok(returned) => assert_eq!(returned, number),
                Err(error) => assert!(row == Row::Short && T::is_elapsed(&error), "{error:?}"),
            }
        }
    });
}

async fn ready_at_second_poll(output: usize) -> usize {
    let mut is_first = true;
    poll_fn(move |cx| {
        if mem::take(&mut is_first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(output)
    })
    .await
}

/// Tasks that reset a sleep at each of many polls.
fn reset<T: Timeouts>(system: T, row: Row, runtime: &Runtime, each: usize) {
    run(runtime, row.facts().tasks, |_| async move {
        let mut sleep = pin!(system.sleep(LONG));
        let mut left = each;
        poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            T::reset(sleep.as_mut(), LONG);
            assert!(sleep.as_mut().poll(cx).is_pending(), "a timer is had, and not due");
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    });
}

/// Timeouts around events, which a thread makes happen again and again.
fn lives<T: Timeouts>(system: T, row: Row, runtime: &Runtime, each: usize) {
    let (delay, happens_after) = if row == Row::Old { OLD } else { (LONG, LIVES_FOR) };
    let events: Arc<[Event]> = (0..row.facts().tasks).map(|_| Event::default()).collect();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                thread::sleep(happens_after);
                events.iter().for_each(Event::happen);
            }
        });
        run(runtime, row.facts().tasks, |task| {
            let events = Arc::clone(&events);
            async move {
                for _ in 0..each {
                    if let Err(error) = system.timeout(delay, events[task].wait()).await {
                        // On a busy machine the event may happen late.
                        assert!(row == Row::Old && T::is_elapsed(&error), "{error:?}");
                    }
                }
            }
        });
        is_done.store(true, Ordering::Relaxed);
    });
}

/// What a task waits for, again and again: the waker of the task, until the event happens.
#[derive(Default)]
struct Event(Mutex<Option<Waker>>);

impl Event {
    /// Wakes the task, if it waits.
    fn happen(&self) {
        let waker = self.0.lock().expect("no thread panics meanwhile").take();
        waker.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            let mut waker = self.0.lock().expect("no thread panics meanwhile");
            if mem::replace(&mut has_waited, true) && waker.is_none() {
                return Poll::Ready(());
            }
            *waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Timeouts that this thread arms and another thread drops.
fn moved<T: Timeouts>(system: T, _: Row, runtime: &Runtime, each: usize) {
    let (sender, receiver) = mpsc::sync_channel::<Vec<_>>(SENT_MAX);
    thread::scope(|scope| {
        scope.spawn(|| receiver.into_iter().for_each(drop));
        let _entered = runtime.enter();
        for from in (0..each).step_by(SENT_AT_ONCE) {
            let chunk = (from..each.min(from + SENT_AT_ONCE)).map(|_| {
                let mut timeout = Box::pin(system.timeout(LONG, Never([0; 8])));
                assert!(poll_once(timeout.as_mut()).is_pending(), "a timer is had, and not due");
                timeout
            });
            sender.send(chunk.collect()).expect("the other thread receives until the end");
        }
        drop(sender);
    });
}

/// Polls a future of which nothing is to be woken.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A task whose timeouts fire. Returns how late each was at the task, in microseconds.
async fn fire<T: Timeouts, F: Future<Output = ()> + Send>(
    system: T,
    wait: fn(T, Duration) -> F,
    task: usize,
    each: usize,
) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(SEED + task as u64);
    let mut late_us = Vec::with_capacity(each);
    for _ in 0..each {
        let delay = Duration::from_micros(rng.u64(FIRED_US));
        let start = Instant::now();
        wait(system, delay).await;
        let took = start.elapsed();
        late_us.push((took.as_secs_f64() - delay.as_secs_f64()) * 1e6);
    }
    late_us
}

/// Waits by a timeout around a future that is never ready.
async fn time_out<T: Timeouts>(system: T, delay: Duration) {
    let returned = system.timeout(delay, pending::<()>()).await;
    assert!(returned.is_err_and(|error| T::is_elapsed(&error)), "the time is up");
}

/// A future of some bytes, as the code of a connection has, which is never ready.
pub(crate) struct Never(pub(crate) [u64; 8]);

impl Future for Never {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        black_box(&self.0);
        Poll::Pending
    }
}

/// Arms timeouts that stay pending until the process exits, on all workers, and waits until the
/// process has nothing more to do.
fn arm<F>(
    runtime: &Runtime,
    pending: usize,
    timeout: impl Fn(Duration) -> F + Copy + Send + 'static,
) where
    F: Future + Send + 'static,
{
    if pending == 0 {
        return;
    }
    let armed = Arc::new(AtomicUsize::new(0));
    for task in 0..pending.div_ceil(HELD_BY_TASK) {
        let held = HELD_BY_TASK.min(pending - task * HELD_BY_TASK);
        let armed = Arc::clone(&armed);
        runtime.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(SEED + task as u64);
            let mut delay = || Duration::from_millis(rng.u64(OTHERS_MS));
            let mut timeouts: Vec<_> = (0..held).map(|_| Box::pin(timeout(delay()))).collect();
            let mut uncounted = held;
            poll_fn(move |cx| {
                for timeout in &mut timeouts {
                    assert!(timeout.as_mut().poll(cx).is_pending(), "a timer is had, and not due");
                }
                armed.fetch_add(mem::take(&mut uncounted), Ordering::Relaxed);
                Poll::<()>::Pending
            })
            .await;
        });
    }
    while armed.load(Ordering::Relaxed) < pending {
        thread::sleep(Duration::from_millis(1));
    }
    wait_until_idle();
}

/// Waits until the threads of this process hardly use the processor for some periods in a row: on a
/// busy machine they may have to wait for it in one of them.
fn wait_until_idle() {
    const PERIOD: Duration = Duration::from_millis(20);
    const PERIODS: usize = 5;
    let mut idle = 0;
    while idle < PERIODS {
        let before = processor_time();
        thread::sleep(PERIOD);
        let is_idle = processor_time().saturating_sub(before) < PERIOD / 20;
        idle = if is_idle { idle + 1 } else { 0 };
    }
}
