//! The measurement of a cell.
//!
//! A pass spawns the tasks of a row and waits for them. First some passes have no timeouts, before
//! the system is started; then the system is started, the other timeouts are armed, and some passes
//! have timeouts. Of both the pass with the least processor time counts. On a busy machine this may
//! be one in which the workers did not run at the same time, and contended for no lock.
//!
//! Why in one process: the passes that are subtracted from each other are as close in time as
//! possible. Why the system is started late: what its threads do of themselves counts as its cost.

use std::future::{pending, poll_fn, ready};
use std::hint::black_box;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::process::{processor_time, resident_bytes};
use crate::systems::{Corewheel, Pingora, Timeouts, Tokio, Without, runtime};
use crate::{Cell, Measured, Row, System, quantity};

/// A timeout that is cancelled.
const LONG: Duration = Duration::from_secs(30);
/// The delays of timeouts that fire, in microseconds.
const SHORT_US: std::ops::Range<u64> = 1_000..20_000;
/// The delays of the other timeouts, in milliseconds. Pingora leaves delays of more than 15 minutes
/// to tokio's timers.
const OTHERS_MS: std::ops::Range<u64> = 300_000..600_000;
/// How many of the other timeouts a task holds: fewer than what tokio lets a task poll at once.
const HELD_BY_TASK: usize = 64;
/// How often timeouts that are ready or cancelled are measured. Those that fire are measured once.
const PASSES: usize = 3;
const SEED: u64 = 0x0C0D_E5EE_D000_000D;

/// Measures a cell.
///
/// # Errors
///
/// The runtime cannot be started, or this build has no such system.
///
/// # Panics
///
/// A timeout's result is not the expected one, or the system refused a timer.
pub fn measure(cell: Cell) -> Result<Vec<Measured>, &'static str> {
    let runtime = runtime(cell.workers, cell.system == System::TokioAlternative)?;
    Ok(match cell.system {
        System::Tokio | System::TokioAlternative => measure_on::<Tokio>(cell, &runtime),
        System::Pingora => measure_on::<Pingora>(cell, &runtime),
        System::Corewheel => measure_on::<Corewheel>(cell, &runtime),
    })
}

fn measure_on<T: Timeouts>(cell: Cell, runtime: &Runtime) -> Vec<Measured> {
    match cell.row {
        Row::Memory => memory::<T>(cell, runtime),
        Row::Fired => fired::<T>(cell, runtime),
        Row::Ready | Row::CancelledFew | Row::CancelledMany => net::<T>(cell, runtime),
    }
}

/// The cost of timeouts that do not fire, net of the same without timeouts.
fn net<T: Timeouts>(cell: Cell, runtime: &Runtime) -> Vec<Measured> {
    let each = cell.timeouts.div_ceil(cell.row.tasks());
    let without = Spent::least_of(cell.row, PASSES, each, |each| {
        run(runtime, cell.row.tasks(), |_| task(Without, cell.row, each));
    });
    let system = T::start();
    arm(runtime, cell.pending, move |delay| system.timeout(delay, Never([0; 8])));
    let before = system.counts();
    let with = Spent::least_of(cell.row, PASSES, each, |each| {
        run(runtime, cell.row.tasks(), |_| task(system, cell.row, each));
    });
    let all = cell.row.tasks() * (PASSES * each + warm_up(each));
    let mut measured = counters(&before, &system.counts(), all);
    measured.extend([
        value(quantity::PROCESSOR, with.processor_ns - without.processor_ns),
        value(quantity::PROCESSOR_WITHOUT, without.processor_ns),
        value(quantity::WALL, with.wall_ns),
        value(quantity::WALL_WITHOUT, without.wall_ns),
    ]);
    measured
}

/// The cost and the lateness of timeouts that fire.
fn fired<T: Timeouts>(cell: Cell, runtime: &Runtime) -> Vec<Measured> {
    let each = (cell.timeouts / 10).div_ceil(cell.row.tasks());
    let system = T::start();
    arm(runtime, cell.pending, move |delay| system.timeout(delay, Never([0; 8])));
    let before = system.counts();
    let mut late_us = Vec::new();
    let spent = Spent::least_of(cell.row, 1, each, |each| {
        late_us = run(runtime, cell.row.tasks(), |task| fire(system, task, each)).concat();
    });
    let all = cell.row.tasks() * (each + warm_up(each));
    let mut measured = counters(&before, &system.counts(), all);
    late_us.sort_by(f64::total_cmp);
    let at = |of_100: usize| late_us[(late_us.len() - 1) * of_100 / 100];
    measured.extend([
        value(quantity::PROCESSOR, spent.processor_ns),
        value(quantity::WALL, spent.wall_ns),
        value(quantity::LATE_MIN, at(0)),
        value(quantity::LATE_P50, at(50)),
        value(quantity::LATE_P99, at(99)),
    ]);
    measured
}

/// The growth of the resident set by pending timeouts, net of that by their futures.
fn memory<T: Timeouts>(cell: Cell, runtime: &Runtime) -> Vec<Measured> {
    let system = T::start();
    let empty = resident_bytes();
    arm(runtime, cell.pending, |_| Never([0; 8]));
    let without = resident_bytes();
    arm(runtime, cell.pending, move |delay| system.timeout(delay, Never([0; 8])));
    let grown = (resident_bytes() - without) as f64 - (without - empty) as f64;
    vec![value(quantity::BYTES, grown / cell.pending as f64)]
}

fn value(quantity: &str, value: f64) -> Measured {
    Measured { quantity: quantity.to_owned(), value }
}

/// What the system's counters have grown by for each of `timeouts`.
fn counters(
    before: &[(&'static str, u64)],
    after: &[(&'static str, u64)],
    timeouts: usize,
) -> Vec<Measured> {
    let grown = before.iter().zip(after).map(|((name, before), (_, after))| {
        value(&format!("{}{name}", quantity::COUNTER), (after - before) as f64 / timeouts as f64)
    });
    grown.filter(|counter| counter.value > 0.0).collect()
}

/// What a pass took for each of its timeouts.
#[derive(Clone, Copy)]
struct Spent {
    processor_ns: f64,
    wall_ns: f64,
}

impl Spent {
    /// Runs a shorter pass to warm up, and then `passes` with `each` timeouts a task.
    fn least_of(row: Row, passes: usize, each: usize, mut pass: impl FnMut(usize)) -> Self {
        pass(warm_up(each));
        let timeouts = (row.tasks() * each) as f64;
        let measured = (0..passes).map(|_| {
            let (start, before) = (Instant::now(), processor_time());
            pass(each);
            let processor = processor_time().saturating_sub(before);
            Self {
                processor_ns: processor.as_nanos() as f64 / timeouts,
                wall_ns: start.elapsed().as_nanos() as f64 / timeouts,
            }
        });
        let least = measured.min_by(|a, b| a.processor_ns.total_cmp(&b.processor_ns));
        least.expect("there is a pass at least")
    }
}

/// How many timeouts each task of the first pass has, which is not measured.
fn warm_up(each: usize) -> usize {
    each.div_ceil(5)
}

/// Spawns tasks and waits until all have ended.
fn run<F>(runtime: &Runtime, tasks: usize, task: impl Fn(usize) -> F) -> Vec<F::Output>
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

/// A task whose timeouts do not fire.
async fn task<T: Timeouts>(system: T, row: Row, each: usize) {
    for number in 0..each {
        let returned = if row == Row::Ready {
            system.timeout(LONG, ready(black_box(number))).await
        } else {
            system.timeout(LONG, ready_at_second_poll(number)).await
        };
        assert_eq!(returned.expect("the future is ready in time"), number);
    }
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

/// A task whose timeouts fire. Returns how late each was at the task, in microseconds.
async fn fire<T: Timeouts>(system: T, task: usize, each: usize) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(SEED + task as u64);
    let mut late_us = Vec::with_capacity(each);
    for _ in 0..each {
        let delay = Duration::from_micros(rng.u64(SHORT_US));
        let start = Instant::now();
        let returned = system.timeout(delay, pending::<()>()).await;
        let took = start.elapsed();
        assert!(returned.is_err_and(|error| T::is_elapsed(&error)), "the time is up");
        late_us.push((took.as_secs_f64() - delay.as_secs_f64()) * 1e6);
    }
    late_us
}

/// A future of some bytes, as the code of a connection has, which is never ready.
struct Never([u64; 8]);

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
