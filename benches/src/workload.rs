//! The workloads: the operations of each row, and the numbers of timers.
//!
//! A [`Case`] is a contender, populated for a row of the table. Each call of [`Case::round`]
//! runs and times one pass; where a row has a steady state, the contender stays populated between
//! passes and is brought into that state before the first one. Delays are uniform in 1..60,000
//! ticks unless a row says otherwise.
//!
//! Operations are generated before the clock is started and read in sequence. The processor
//! overlaps the cache misses of successive operations, so the figures are throughputs.

use std::time::{Duration, Instant};

use crate::{Payload, Timers};

const SEED: u64 = 0x0C0D_E5EE_D000_0000;
const DELAY_MAX: u64 = 60_000;
/// How far a reset puts the deadline off, as for an idle timeout.
const IDLE_TIMEOUT: u64 = 30_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 86_400_000;
/// A local cancel picks one of this many last scheduled timers.
const RECENT: usize = 1_000;
/// The fewest operations in a pass, so that there is enough to time.
const PASS_MIN: usize = 1 << 18;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// W1: cancel a random timer and schedule another. Time does not advance.
    Churn,
    /// W1, where the cancelled timer is one of the last 1,000 scheduled, beside `n` idle ones.
    ChurnRecent,
    /// The longest single pair of W1, in which a contender that cleans up all at once does so.
    ChurnLongest,
    /// W2: reset a random timer to 30,000 ticks from now, later each time. The contender's time
    /// does not advance.
    Reset,
    /// W2 while the contender's time advances: each timer is reset once in 1,000 ticks and none
    /// fires. The contender handles the old deadlines as they come up.
    ResetOnTime,
    /// W3, its first half: schedule all.
    Schedule,
    /// W3, its second half: advance tick by tick until all have fired.
    Expire,
    /// W4: from one timer an hour away, sleeping as long as the contender allows, to its firing.
    FarAway,
    /// W5: delays log-uniform in 1..86,400,000 ticks, 60,000 ticks of them.
    LongTail,
}

impl Row {
    /// All rows.
    pub const ALL: [Self; 9] = [
        Self::Churn,
        Self::ChurnRecent,
        Self::ChurnLongest,
        Self::Reset,
        Self::ResetOnTime,
        Self::Schedule,
        Self::Expire,
        Self::FarAway,
        Self::LongTail,
    ];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Churn => "W1 cancel + schedule",
            Self::ChurnRecent => "W1 recent cancel + schedule",
            Self::ChurnLongest => "W1 the longest cancel + schedule",
            Self::Reset => "W2 reset",
            Self::ResetOnTime => "W2 reset, time going on",
            Self::Schedule => "W3 schedule",
            Self::Expire => "W3 expire",
            Self::FarAway => "W4 an hour away",
            Self::LongTail => "W5 long tail, per tick",
        }
    }

    /// Whether this row is measured with this many timers.
    pub const fn applies_to(self, count: usize) -> bool {
        match self {
            Self::FarAway => count == 1,
            Self::LongTail => count == 1_000_000,
            Self::ChurnLongest => 1 < count && count <= 100_000,
            _ => count > 1,
        }
    }
}

/// Whether the benches only show that they run, without measurements: `cargo bench -- --test`.
pub fn only_tested() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

/// The numbers of timers: 1, 1k, 100k, 1M; 10M too if `COREWHEEL_BENCH_LARGE=1` is in the
/// environment.
pub fn sizes() -> Vec<usize> {
    if only_tested() {
        return vec![1, 1_000, 100_000];
    }
    let mut sizes = vec![1, 1_000, 100_000, 1_000_000];
    if std::env::var_os("COREWHEEL_BENCH_LARGE").is_some_and(|value| value == "1") {
        sizes.push(10_000_000);
    }
    sizes
}

/// One timed pass.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The duration of the pass.
    pub elapsed: Duration,
    /// How many operations the pass contained, as the row counts them.
    pub operations: u64,
}

impl Sample {
    /// Nanoseconds for each operation.
    pub fn nanos(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / self.operations as f64
    }
}

/// A contender that is populated for one row.
pub trait Case {
    /// Runs and times one pass.
    fn round(&mut self) -> Sample;
}

/// Populates a contender for a row, with `count` timers.
pub fn case<T: Timers>(row: Row, count: usize) -> Box<dyn Case> {
    match row {
        Row::Churn => Box::new(Churn::<T>::new(0, count)),
        Row::ChurnRecent => Box::new(Churn::<T>::new(count, RECENT)),
        Row::ChurnLongest => Box::new(Longest::<T> { count, contender: std::marker::PhantomData }),
        Row::Reset => Box::new(Reset::<T>::new(count, false)),
        Row::ResetOnTime => Box::new(Reset::<T>::new(count, true)),
        Row::Schedule => Box::new(Expire::<T>::new(count, Timed::Schedule)),
        Row::Expire => Box::new(Expire::<T>::new(count, Timed::Advance)),
        Row::FarAway => Box::new(FarAway { timers: T::with_capacity(1), now: 0 }),
        Row::LongTail => Box::new(LongTail::<T>::new(count)),
    }
}

/// One cancel and one schedule.
#[derive(Clone, Copy)]
struct Replacement {
    picked: u32,
    delay: u32,
}

struct Churn<T: Timers> {
    timers: T,
    handles: Vec<T::Handle>,
    operations: Vec<Replacement>,
}

impl<T: Timers> Churn<T> {
    /// A case with `idle` timers that do not change and `count` timers that are replaced.
    fn new(idle: usize, count: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut timers = T::with_capacity(idle + count);
        for _ in 0..idle {
            timers.schedule_unnamed(rng.u64(1..=DELAY_MAX), Payload::MIN);
        }
        let mut schedule = |_| timers.schedule(rng.u64(1..=DELAY_MAX), Payload::MIN);
        let handles = (0..count).map(&mut schedule).collect();
        // Some contenders leave cancelled entries and sweep them in bursts. A pass of twice the
        // timers contains more than one burst, so that passes are alike.
        let operations = (0..PASS_MIN.max(2 * (idle + count))).map(|_| Replacement {
            picked: rng.u32(..count as u32),
            delay: rng.u32(1..=DELAY_MAX as u32),
        });
        let mut case = Self { timers, handles, operations: operations.collect() };
        case.round();
        case
    }
}

impl<T: Timers> Case for Churn<T> {
    fn round(&mut self) -> Sample {
        let start = Instant::now();
        for operation in &self.operations {
            let handle = self.handles.swap_remove(operation.picked as usize);
            std::hint::black_box(self.timers.cancel(handle));
            self.handles.push(self.timers.schedule(u64::from(operation.delay), Payload::MIN));
        }
        Sample { elapsed: start.elapsed(), operations: self.operations.len() as u64 }
    }
}

struct Longest<T> {
    count: usize,
    contender: std::marker::PhantomData<T>,
}

impl<T: Timers> Case for Longest<T> {
    /// Executes the same operations from the same state a few times. Each operation counts as the
    /// least of its times: what else runs on the machine holds others up each time.
    fn round(&mut self) -> Sample {
        const REPETITIONS: usize = 3;
        let mut least = Vec::new();
        for _ in 0..REPETITIONS {
            // The first pass is not timed: in it, a contender allocates what it needs.
            let Churn { mut timers, mut handles, operations } = Churn::<T>::new(0, self.count);
            least.resize(operations.len(), Duration::MAX);
            for (operation, least) in operations.iter().zip(&mut least) {
                let handle = handles.swap_remove(operation.picked as usize);
                let start = Instant::now();
                std::hint::black_box(timers.cancel(handle));
                handles.push(timers.schedule(u64::from(operation.delay), Payload::MIN));
                *least = start.elapsed().min(*least);
            }
        }
        Sample { elapsed: least.into_iter().max().unwrap_or_default(), operations: 1 }
    }
}

struct Reset<T: Timers> {
    timers: T,
    handles: Vec<T::Handle>,
    picks: Vec<u32>,
    /// The tick from which the deadlines are counted.
    now: u64,
    moves_per_tick: usize,
    on_time: bool,
}

impl<T: Timers> Reset<T> {
    fn new(count: usize, on_time: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut timers = T::with_capacity(count);
        // Like idle timers, they were scheduled at some time in the past and have been reset since.
        let mut schedule = |_| timers.schedule(rng.u64(1..=IDLE_TIMEOUT), Payload::MIN);
        let handles: Vec<_> = (0..count).map(&mut schedule).collect();
        let reset = handles.into_iter().map(|handle| timers.reset(handle, IDLE_TIMEOUT));
        let handles = reset.collect();
        let picks = (0..PASS_MIN.max(count)).map(|_| rng.u32(..count as u32));
        let picks = picks.collect();
        let mut case =
            Self { timers, handles, picks, now: 0, moves_per_tick: count / 1_000, on_time };
        case.round();
        case
    }
}

impl<T: Timers> Case for Reset<T> {
    fn round(&mut self) -> Sample {
        let start = Instant::now();
        for picks in self.picks.chunks(self.moves_per_tick) {
            self.now += 1;
            if self.on_time {
                self.timers.advance(self.now, |_| panic!("{}: a reset timer fired", T::NAME));
            }
            for picked in picks {
                let handle = self.handles.swap_remove(*picked as usize);
                self.handles.push(self.timers.reset(handle, self.now + IDLE_TIMEOUT));
            }
        }
        let elapsed = start.elapsed();
        // An index that this pass does not pick is not picked by the next pass either, so its timer
        // would fire after some passes.
        self.handles.rotate_left(self.picks[0] as usize);
        Sample { elapsed, operations: self.picks.len() as u64 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    Schedule,
    Advance,
}

struct Expire<T: Timers> {
    deadlines: Vec<u32>,
    timed: Timed,
    contender: std::marker::PhantomData<T>,
}

impl<T: Timers> Expire<T> {
    fn new(count: usize, timed: Timed) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let deadlines = (0..count).map(|_| rng.u32(1..=DELAY_MAX as u32)).collect();
        Self { deadlines, timed, contender: std::marker::PhantomData }
    }
}

impl<T: Timers> Case for Expire<T> {
    fn round(&mut self) -> Sample {
        let mut timers = T::with_capacity(self.deadlines.len());
        let start = Instant::now();
        for deadline in &self.deadlines {
            timers.schedule_unnamed(u64::from(*deadline), Payload::MIN);
        }
        let scheduled = start.elapsed();
        let start = Instant::now();
        let mut fired = 0;
        for now in 1..=DELAY_MAX {
            timers.advance(now, |payload| fired += payload.get());
        }
        let advanced = start.elapsed();
        let operations = self.deadlines.len() as u64;
        assert_eq!(fired, operations, "{}: all have fired", T::NAME);
        let elapsed = if self.timed == Timed::Schedule { scheduled } else { advanced };
        Sample { elapsed, operations }
    }
}

struct FarAway<T> {
    timers: T,
    now: u64,
}

impl<T: Timers> Case for FarAway<T> {
    fn round(&mut self) -> Sample {
        const TRIPS: u64 = 1_000;
        // Corewheel wakes once a level, another contender once in 255 ticks.
        const WAKES_MAX: u64 = HOUR / 200;
        let mut wakes = 0;
        let mut fired = 0;
        let start = Instant::now();
        for _ in 0..TRIPS {
            self.timers.schedule_unnamed(self.now + HOUR, Payload::MIN);
            while let Some(next) = self.timers.next_deadline() {
                self.now = next;
                wakes += 1;
                assert!(wakes <= WAKES_MAX * TRIPS, "{}: it wakes too often", T::NAME);
                self.timers.advance(self.now, |payload| fired += payload.get());
            }
        }
        let elapsed = start.elapsed();
        assert_eq!(fired, TRIPS, "{}: it fires once", T::NAME);
        Sample { elapsed, operations: TRIPS }
    }
}

struct LongTail<T> {
    delays: Vec<u32>,
    due: u64,
    contender: std::marker::PhantomData<T>,
}

impl<T: Timers> LongTail<T> {
    fn new(count: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let log_max = (DAY as f64).ln();
        #[expect(clippy::cast_sign_loss, reason = "an exponential has no sign")]
        let mut delay = || (rng.f64() * log_max).exp() as u32;
        let delays: Vec<_> = (0..count).map(|_| delay()).collect();
        let due = delays.iter().filter(|delay| u64::from(**delay) <= DELAY_MAX).count() as u64;
        Self { delays, due, contender: std::marker::PhantomData }
    }
}

impl<T: Timers> Case for LongTail<T> {
    fn round(&mut self) -> Sample {
        let mut timers = T::with_capacity(self.delays.len());
        for delay in &self.delays {
            timers.schedule_unnamed(u64::from(*delay), Payload::MIN);
        }
        let mut fired = 0;
        let start = Instant::now();
        for now in 1..=DELAY_MAX {
            timers.advance(now, |payload| fired += payload.get());
        }
        let elapsed = start.elapsed();
        assert_eq!(fired, self.due, "{}: what is due has fired", T::NAME);
        Sample { elapsed, operations: DELAY_MAX }
    }
}
