//! The cost of the public methods on a core, beside the bare wheel and beside the timers of glommio
//! and tokio.
//!
//! Every contender holds as many timers as the row says, due in about an hour. An operation cancels
//! a timer and schedules another, or resets a timer. Futures are polled once, since a future that
//! was never polled is no timer yet.

use std::cell::RefCell;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use corewheel::attach::ShardLoop;
use corewheel::{Fired, ResetOutcome, TimerId, TimerService, Timers};
use corewheel_shard::{Shard, ShardConfig, Tick, TimerKey};
use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;

use super::HOUR;
use crate::Payload;
use crate::figure::{Entrant, Figure};

const OPERATIONS: usize = 1 << 17;
const SEED: u64 = 0x0C0D_E5EE_D000_0007;
/// How many operations a loop that knows the time executes for each reading of the clock.
const LOOK_EVERY: usize = 64;

/// Cancel a timer and schedule another.
pub const CHURN: &str = "API cancel + schedule";
/// Reset a timer.
pub const RESET: &str = "API reset";

/// The index of a timer, and its new delay.
type Step = (usize, Duration);

fn steps(count: usize) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let delay = |rng: &mut fastrand::Rng| HOUR + Duration::from_millis(rng.u64(1..60_000));
    (0..OPERATIONS).map(|_| (rng.usize(..count), delay(&mut rng))).collect()
}

/// Nanoseconds for each step.
fn time<S>(steps: &[S], run: impl FnOnce(&[S])) -> f64 {
    let start = Instant::now();
    run(steps);
    start.elapsed().as_nanos() as f64 / steps.len() as f64
}

/// A shard in a loop that takes no turn meanwhile: no timer is due.
struct Ours {
    timers: Timers<Payload>,
    handles: Vec<TimerId>,
    /// Kept so that the shard lives. A closure that names only the other fields does not capture
    /// this one: the shard ends and every timer is stale. So each closure borrows all of `Ours`.
    _home: Box<dyn std::any::Any>,
}

impl Ours {
    fn new(count: usize) -> Self {
        Self::with(count, count)
    }

    /// A shard with room for `count` timers, and with as many pending timers.
    fn with(count: usize, pending: usize) -> Self {
        let builder = TimerService::builder().shards(1).capacity(count as u32 + 1_024);
        let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
        let shard = service.shards().next().expect("it has one");
        let attachment = service.attach(shard).expect("it is free");
        let deliver = |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("nothing is due");
        let home: ShardLoop<_, _> = attachment.into_loop(deliver).expect("there is memory");
        let timers = home.timers().clone();
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut schedule = |_| {
            let delay = HOUR + Duration::from_millis(rng.u64(1..60_000));
            timers.schedule(delay, Payload::MIN).expect("there is room")
        };
        let handles = (0..pending).map(&mut schedule).collect();
        Self { timers, handles, _home: Box::new((service, home)) }
    }
}

fn bare(count: usize) -> (Shard<Payload>, Vec<TimerKey>) {
    let config = ShardConfig { capacity: count as u32 + 1_024, ..ShardConfig::default() };
    let mut shard = Shard::new(config).expect("there is memory");
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut schedule = |_| {
        let deadline = Tick::new(3_600_000 + rng.u64(1..60_000));
        shard.schedule(deadline, Payload::MIN).expect("there is room")
    };
    let keys = (0..count).map(&mut schedule).collect();
    (shard, keys)
}

/// The same steps for the wheel itself, which counts in ticks.
fn in_ticks(steps: &[Step]) -> Vec<(usize, u64)> {
    steps.iter().map(|(picked, delay)| (*picked, delay.as_millis() as u64)).collect()
}

/// Boxed futures, as those of tokio and glommio are.
struct OurSleeps {
    ours: Ours,
    sleeps: Vec<Pin<Box<corewheel::Sleep>>>,
}

impl OurSleeps {
    fn new(count: usize) -> Self {
        let ours = Ours::with(count, 0);
        let begin = |_| Self::begin(&ours.timers, HOUR);
        let sleeps = (0..count).map(begin).collect();
        Self { ours, sleeps }
    }

    fn begin(timers: &Timers<Payload>, delay: Duration) -> Pin<Box<corewheel::Sleep>> {
        let mut sleep = Box::pin(timers.sleep(delay));
        poll(sleep.as_mut());
        sleep
    }
}

fn poll<F: Future>(future: Pin<&mut F>) {
    let poll = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "it is an hour away");
}

struct Tokio {
    runtime: Runtime,
    sleeps: Vec<Pin<Box<Sleep>>>,
}

impl Tokio {
    fn new(count: usize) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let mut rng = fastrand::Rng::with_seed(SEED);
        let sleeps = runtime.block_on(async {
            let begin = |_| Self::begin(HOUR + Duration::from_millis(rng.u64(1..60_000)));
            (0..count).map(begin).collect()
        });
        Self { runtime, sleeps }
    }

    fn begin(delay: Duration) -> Pin<Box<Sleep>> {
        let mut sleep = Box::pin(tokio::time::sleep(delay));
        poll(sleep.as_mut());
        sleep
    }
}

struct Glommio {
    executor: LocalExecutor,
    timers: Rc<RefCell<Vec<Timer>>>,
}

impl Glommio {
    fn new(count: usize) -> Self {
        let executor = LocalExecutorBuilder::default().make().expect("an executor");
        let timers = Rc::new(RefCell::new(Vec::with_capacity(count)));
        let filled = Rc::clone(&timers);
        executor.run(async move {
            let mut rng = fastrand::Rng::with_seed(SEED);
            let begin = |_| Self::begin(HOUR + Duration::from_millis(rng.u64(1..60_000)));
            filled.borrow_mut().extend((0..count).map(begin));
        });
        Self { executor, timers }
    }

    fn begin(delay: Duration) -> Timer {
        let mut timer = Timer::new(delay);
        poll(Pin::new(&mut timer));
        timer
    }

    /// Runs `act` in the executor to which the timers belong.
    fn within(&self, run: impl FnOnce(&mut Vec<Timer>) -> f64 + 'static) -> f64 {
        let timers = Rc::clone(&self.timers);
        self.executor.run(async move { run(&mut timers.borrow_mut()) })
    }
}

impl Drop for Glommio {
    fn drop(&mut self) {
        // The drop of a glommio timer needs its executor.
        self.within(|timers| {
            timers.clear();
            0.0
        });
    }
}

/// The entrants that cancel a timer and schedule another.
pub fn churn(count: usize, glommio: bool) -> Vec<Entrant> {
    let figure = |contender| Figure::new(CHURN, count, contender, "ns");
    let steps = Rc::new(steps(count));
    let mut entrants = Vec::new();

    let mut ours = Ours::new(count);
    let these = Rc::clone(&steps);
    entrants.push(Entrant::new(figure("corewheel"), move || {
        let Ours { timers, handles, .. } = &mut ours;
        time(&these, |steps| {
            for (picked, delay) in steps {
                black_box(timers.cancel(handles[*picked]).payload().expect("it is pending"));
                handles[*picked] = timers.schedule(*delay, Payload::MIN).expect("there is room");
            }
        })
    }));
    let mut ours = Ours::new(count);
    let these = Rc::clone(&steps);
    entrants.push(Entrant::new(figure("corewheel, time known"), move || {
        let Ours { timers, handles, .. } = &mut ours;
        time(&these, |steps| {
            for steps in steps.chunks(LOOK_EVERY) {
                let now = Instant::now();
                for (picked, delay) in steps {
                    let ended = timers.cancel_at(handles[*picked], now);
                    black_box(ended.payload().expect("it is pending"));
                    let begun = timers.schedule(now + *delay, Payload::MIN);
                    handles[*picked] = begun.expect("there is room");
                }
            }
        })
    }));
    let (mut shard, mut keys) = bare(count);
    let these = in_ticks(&steps);
    entrants.push(Entrant::new(figure("the bare wheel"), move || {
        time(&these, |steps| {
            for (picked, ticks) in steps {
                black_box(shard.cancel(keys[*picked]).payload().expect("it is pending"));
                let key = shard.schedule(Tick::new(*ticks), Payload::MIN);
                keys[*picked] = key.expect("there is room");
            }
        })
    }));
    let OurSleeps { ours, mut sleeps } = OurSleeps::new(count);
    let these = Rc::clone(&steps);
    entrants.push(Entrant::new(figure("corewheel's Sleep"), move || {
        // The shard lives as long as its sleeps.
        let ours = &ours;
        time(&these, |steps| {
            for (picked, delay) in steps {
                sleeps[*picked] = OurSleeps::begin(&ours.timers, *delay);
            }
        })
    }));
    let Tokio { runtime, mut sleeps } = Tokio::new(count);
    let these = Rc::clone(&steps);
    entrants.push(Entrant::new(figure("tokio::time::Sleep"), move || {
        runtime.block_on(async {
            time(&these, |steps| {
                for (picked, delay) in steps {
                    sleeps[*picked] = Tokio::begin(*delay);
                }
            })
        })
    }));
    if glommio {
        let glommio = Glommio::new(count);
        entrants.push(Entrant::new(figure("glommio's Timer"), move || {
            let these = Rc::clone(&steps);
            glommio.within(move |timers| {
                time(&these, |steps| {
                    for (picked, delay) in steps {
                        timers[*picked] = Glommio::begin(*delay);
                    }
                })
            })
        }));
    }
    entrants
}

/// The entrants that reset a timer.
pub fn resets(count: usize, glommio: bool) -> Vec<Entrant> {
    let figure = |contender| Figure::new(RESET, count, contender, "ns");
    let mut steps = steps(count);
    // Each reset is to a later time, as it is for idle timers.
    for (n, (_, delay)) in (0..).zip(&mut steps) {
        *delay = HOUR + Duration::from_mins(1) + Duration::from_micros(10) * n;
    }
    let steps = Rc::new(steps);
    let mut entrants = Vec::new();

    // Each round resets to a later time than the round before.
    let later = |round: &mut u32| {
        *round += 1;
        Duration::from_mins(2) * *round
    };
    let ours = Ours::new(count);
    let (these, mut round) = (Rc::clone(&steps), 0);
    entrants.push(Entrant::new(figure("corewheel"), move || {
        let Ours { timers, handles, .. } = &ours;
        let later = later(&mut round);
        time(&these, |steps| {
            for (picked, delay) in steps {
                let outcome = timers.reset(handles[*picked], *delay + later);
                assert_eq!(outcome, ResetOutcome::Reset, "it is pending");
            }
        })
    }));
    let ours = Ours::new(count);
    let (these, mut round) = (Rc::clone(&steps), 0);
    entrants.push(Entrant::new(figure("corewheel, deadline known"), move || {
        let Ours { timers, handles, .. } = &ours;
        let later = later(&mut round);
        time(&these, |steps| {
            for steps in steps.chunks(LOOK_EVERY) {
                // A server computes a deadline once for many connections that it has read from.
                let idle = timers.deadline(HOUR + later);
                for (picked, _) in steps {
                    let outcome = timers.reset(handles[*picked], idle);
                    assert_eq!(outcome, ResetOutcome::Reset, "it is pending");
                }
            }
        })
    }));
    let (mut shard, keys) = bare(count);
    let (these, mut round) = (in_ticks(&steps), 0);
    entrants.push(Entrant::new(figure("the bare wheel"), move || {
        let later = later(&mut round).as_millis() as u64;
        time(&these, |steps| {
            for (picked, ticks) in steps {
                let outcome = shard.reset(keys[*picked], Tick::new(*ticks + later));
                assert_eq!(outcome, corewheel_shard::ResetOutcome::Reset, "it is pending");
            }
        })
    }));
    let OurSleeps { ours: home, mut sleeps } = OurSleeps::new(count);
    let (these, mut round) = (Rc::clone(&steps), 0);
    entrants.push(Entrant::new(figure("corewheel's Sleep"), move || {
        let later = later(&mut round);
        // The shard lives as long as its sleeps.
        let _home = &home;
        time(&these, |steps| {
            for (picked, delay) in steps {
                sleeps[*picked].reset(*delay + later);
            }
        })
    }));
    let Tokio { runtime, mut sleeps } = Tokio::new(count);
    let (these, mut round) = (Rc::clone(&steps), 0);
    entrants.push(Entrant::new(figure("tokio::time::Sleep"), move || {
        let later = later(&mut round);
        runtime.block_on(async {
            time(&these, |steps| {
                for (picked, delay) in steps {
                    let at = tokio::time::Instant::now() + *delay + later;
                    sleeps[*picked].as_mut().reset(at);
                }
            })
        })
    }));
    if glommio {
        let glommio = Glommio::new(count);
        let mut round = 0;
        entrants.push(Entrant::new(figure("glommio's Timer"), move || {
            let later = later(&mut round);
            let these = Rc::clone(&steps);
            glommio.within(move |timers| {
                time(&these, |steps| {
                    for (picked, delay) in steps {
                        timers[*picked].reset(*delay + later);
                    }
                })
            })
        }));
    }
    entrants
}
