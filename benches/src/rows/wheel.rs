//! The rows of the wheel: the operations of each, and the numbers of timers.
//!
//! A [`Case`] is a contender, populated for a row. Each call runs and times one pass; where a row
//! has a steady state, the contender stays populated between passes and is brought into that state
//! before the first one. Delays are uniform in 1..60,000 ticks unless a row says otherwise.
//!
//! Operations are generated before the clock is started and read in sequence. The processor
//! overlaps the cache misses of successive operations, so the figures are throughputs.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::{Payload, Timers};

const SEED: u64 = 0x0C0D_E5EE_D000_0000;
const DELAY_MAX: u32 = 60_000;
/// How far a reset puts the deadline off, as for an idle timeout.
const IDLE_TIMEOUT: u64 = 30_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 86_400_000;
/// A local cancel picks one of this many last scheduled timers.
const RECENT: usize = 1_000;
/// The fewest operations in a pass, so that there is enough to time.
const PASS_MIN: usize = 1 << 18;

/// The title of the table.
pub const TABLE: &str = "the wheel, ns";

/// A populated contender: a call runs one pass, and returns the nanoseconds of an operation.
pub type Case = Box<dyn FnMut() -> f64>;

/// A row of the table for a contender.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name in the table.
    pub name: &'static str,
    /// The numbers of timers with which it is measured.
    pub counts: RangeInclusive<usize>,
    /// Populates the contender with so many timers.
    pub case: fn(usize) -> Case,
}

/// All rows for a contender.
pub fn rows<T: Timers>() -> Vec<Row> {
    let row = |name, counts, case| Row { name, counts, case };
    let many = 2..=usize::MAX;
    vec![
        // Cancel a random timer and schedule another. Time does not advance.
        row("W1 cancel + schedule", many.clone(), |count| pass(churn::<T>(0, count))),
        // The cancelled timer is one of the last 1,000 scheduled, beside idle ones.
        row("W1 recent cancel + schedule", many.clone(), |count| pass(churn::<T>(count, RECENT))),
        row("W1 the longest cancel + schedule", 2..=100_000, longest::<T>),
        // Reset a random timer to 30,000 ticks from now, later each time. The time of the contender
        // does not advance.
        row("W2 reset", many.clone(), |count| reset::<T>(count, false)),
        // Each timer is reset once in 1,000 ticks and none fires. The contender handles the old
        // deadlines as they come up.
        row("W2 reset, time going on", many.clone(), |count| reset::<T>(count, true)),
        row("W3 schedule", many.clone(), |count| expire::<T>(uniform(count), true)),
        // Advance tick by tick until all have fired.
        row("W3 expire", many, |count| expire::<T>(uniform(count), false)),
        // From one timer an hour away, sleeping as long as the contender allows, to its firing.
        row("W4 an hour away", 1..=1, |_| far_away::<T>()),
        // Delays log-uniform in 1..86,400,000 ticks, 60,000 ticks of them.
        row("W5 long tail, per tick", 1_000_000..=1_000_000, |count| {
            let mut expire = expire::<T>(log_uniform(count), false);
            Box::new(move || expire() * count as f64 / f64::from(DELAY_MAX))
        }),
    ]
}

/// The nanoseconds of one of so many operations since `start`.
fn each(start: Instant, operations: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn uniform(count: usize) -> Vec<u32> {
    let mut rng = Rng::with_seed(SEED);
    (0..count).map(|_| rng.u32(1..=DELAY_MAX)).collect()
}

fn log_uniform(count: usize) -> Vec<u32> {
    let mut rng = Rng::with_seed(SEED);
    #[expect(clippy::cast_sign_loss, reason = "an exponential has no sign")]
    let mut delay = || (rng.f64() * (DAY as f64).ln()).exp() as u32;
    (0..count).map(|_| delay()).collect()
}

struct Churn<T: Timers> {
    timers: T,
    handles: Vec<T::Handle>,
    /// Which handle is cancelled, and the delay of the timer that replaces it.
    operations: Vec<(u32, u32)>,
}

impl<T: Timers> Churn<T> {
    #[inline]
    fn replace(&mut self, at: usize) {
        let (picked, delay) = self.operations[at];
        let handle = self.handles.swap_remove(picked as usize);
        black_box(self.timers.cancel(handle));
        self.handles.push(self.timers.schedule(u64::from(delay), Payload::MIN));
    }
}

/// A contender with `idle` timers that do not change and `count` timers that are replaced, in which
/// a pass has been executed.
fn churn<T: Timers>(idle: usize, count: usize) -> Churn<T> {
    let mut rng = Rng::with_seed(SEED);
    let mut timers = T::with_capacity(idle + count);
    for _ in 0..idle {
        timers.schedule_unnamed(rng.u64(1..=DELAY_MAX.into()), Payload::MIN);
    }
    let schedule = |_| timers.schedule(rng.u64(1..=DELAY_MAX.into()), Payload::MIN);
    let handles = (0..count).map(schedule).collect();
    // Some contenders leave cancelled entries and sweep them in bursts. A pass of twice the timers
    // contains more than one burst, so that passes are alike.
    let operations = 0..PASS_MIN.max(2 * (idle + count));
    let operations = operations.map(|_| (rng.u32(..count as u32), rng.u32(1..=DELAY_MAX)));
    let mut churn = Churn { timers, handles, operations: operations.collect() };
    (0..churn.operations.len()).for_each(|at| churn.replace(at));
    churn
}

fn pass<T: Timers>(mut churn: Churn<T>) -> Case {
    Box::new(move || {
        let start = Instant::now();
        (0..churn.operations.len()).for_each(|at| churn.replace(at));
        each(start, churn.operations.len())
    })
}

/// The longest single pair, in which a contender that cleans up all at once does so. The same
/// operations are executed from the same state a few times, and each counts as the least of its
/// times: what else runs on the machine holds others up each time.
fn longest<T: Timers>(count: usize) -> Case {
    Box::new(move || {
        let mut least = Vec::new();
        for _ in 0..3 {
            // In the first pass, which is not timed, a contender allocates what it needs.
            let mut churn = churn::<T>(0, count);
            least.resize(churn.operations.len(), Duration::MAX);
            for (at, least) in least.iter_mut().enumerate() {
                let start = Instant::now();
                churn.replace(at);
                *least = start.elapsed().min(*least);
            }
        }
        least.into_iter().max().unwrap_or_default().as_nanos() as f64
    })
}

fn reset<T: Timers>(count: usize, on_time: bool) -> Case {
    let mut rng = Rng::with_seed(SEED);
    let mut timers = T::with_capacity(count);
    // Like idle timers, they were scheduled at some time in the past and have been reset since.
    let schedule = |_| timers.schedule(rng.u64(1..=IDLE_TIMEOUT), Payload::MIN);
    let handles: Vec<_> = (0..count).map(schedule).collect();
    let reset = handles.into_iter().map(|handle| timers.reset(handle, IDLE_TIMEOUT));
    let mut handles: Vec<_> = reset.collect();
    let picks: Vec<_> = (0..PASS_MIN.max(count)).map(|_| rng.usize(..count)).collect();
    // The tick from which the deadlines are counted.
    let mut now = 0;
    let mut pass = move || {
        let start = Instant::now();
        for picks in picks.chunks(count / 1_000) {
            now += 1;
            if on_time {
                timers.advance(now, |_| panic!("{}: a reset timer fired", T::NAME));
            }
            for picked in picks {
                let handle = handles.swap_remove(*picked);
                handles.push(timers.reset(handle, now + IDLE_TIMEOUT));
            }
        }
        let nanos = each(start, picks.len());
        // An index that this pass does not pick is not picked by the next pass either, so its timer
        // would fire after some passes.
        handles.rotate_left(picks[0]);
        nanos
    };
    pass();
    Box::new(pass)
}

/// Schedules all, and advances tick by tick for the greatest uniform delay; times one of the two.
fn expire<T: Timers>(delays: Vec<u32>, is_schedule_timed: bool) -> Case {
    let due = delays.iter().filter(|delay| **delay <= DELAY_MAX).count() as u64;
    Box::new(move || {
        let mut timers = T::with_capacity(delays.len());
        let start = Instant::now();
        for delay in &delays {
            timers.schedule_unnamed(u64::from(*delay), Payload::MIN);
        }
        let scheduled = each(start, delays.len());
        let (start, mut fired) = (Instant::now(), 0);
        for now in 1..=u64::from(DELAY_MAX) {
            timers.advance(now, |payload| fired += payload.get());
        }
        let advanced = each(start, delays.len());
        assert_eq!(fired, due, "{}: what is due has fired", T::NAME);
        if is_schedule_timed { scheduled } else { advanced }
    })
}

fn far_away<T: Timers>() -> Case {
    const TRIPS: u64 = 1_000;
    // Corewheel wakes once a level, another contender once in 255 ticks.
    const WAKES_MAX: u64 = HOUR / 200;
    let (mut timers, mut now) = (T::with_capacity(1), 0);
    Box::new(move || {
        let (mut wakes, mut fired) = (0, 0);
        let start = Instant::now();
        for _ in 0..TRIPS {
            timers.schedule_unnamed(now + HOUR, Payload::MIN);
            while let Some(next) = timers.next_deadline() {
                now = next;
                wakes += 1;
                assert!(wakes <= WAKES_MAX * TRIPS, "{}: it wakes too often", T::NAME);
                timers.advance(now, |payload| fired += payload.get());
            }
        }
        let nanos = each(start, TRIPS as usize);
        assert_eq!(fired, TRIPS, "{}: it fires once", T::NAME);
        nanos
    })
}
