//! The cost of the public methods on a core, beside the bare wheel and beside the timers of glommio
//! and tokio.
//!
//! Every contender holds as many timers as the row says, due in about an hour. An operation cancels
//! a timer and schedules another, or resets a timer. Futures are polled once, since a future that
//! was never polled is no timer yet.

use std::cell::RefCell;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use corewheel::{Deadline, ResetOutcome, TimerId, Timers};
use corewheel_shard::{Shard, ShardConfig, Tick, TimerKey};
use glommio::timer::Timer;
use tokio::runtime::Builder;

use super::HOUR;
use crate::report::Entrant;
use crate::{Home, Payload};

/// The title of the table.
pub const TABLE: &str = "the public methods on a core, ns";
/// Cancel a timer and schedule another.
pub const CHURN: &str = "API cancel + schedule";
/// Reset a timer.
pub const RESET: &str = "API reset";

const OPERATIONS: usize = 1 << 17;
/// How many operations a loop that knows the time executes for each reading of the clock.
const LOOK_EVERY: usize = 64;

/// The index of a timer, and its new delay.
type Step = (usize, Duration);

/// Each reset is to a later time than the one before, as it is for idle timers.
fn steps(count: usize, are_resets: bool) -> Rc<[Step]> {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0007);
    let delay = |at: u32, rng: &mut fastrand::Rng| {
        let millis = if are_resets { 60_000 } else { rng.u64(1..60_000) };
        HOUR + Duration::from_millis(millis) + Duration::from_micros(10) * at
    };
    (0..OPERATIONS as u32).map(|at| (rng.usize(..count), delay(at, &mut rng))).collect()
}

/// By how much each round's resets are later than those of the round before.
const LATER: Duration = Duration::from_mins(2);

/// Nanoseconds for each step.
fn pass<T>(timers: &mut T, steps: &[Step], later: Duration, each: fn(&mut T, &Step)) -> f64 {
    let start = Instant::now();
    for (picked, delay) in steps {
        each(timers, &(*picked, *delay + later));
    }
    start.elapsed().as_nanos() as f64 / steps.len() as f64
}

/// An entrant with these timers, which executes the steps in each round.
fn entrant<T: 'static>(
    contender: &str,
    steps: &Rc<[Step]>,
    mut timers: T,
    each: fn(&mut T, &Step),
) -> Entrant {
    let steps = Rc::clone(steps);
    let mut later = Duration::ZERO;
    Entrant::new(contender, move || {
        later += LATER;
        pass(&mut timers, &steps, later, each)
    })
}

/// Pending timers, with what they belong to.
struct Held<O, T> {
    owner: O,
    timers: Vec<T>,
    now: Instant,
    done: usize,
}

impl<O, T> Held<O, T> {
    fn new(count: usize, owner: O, begin: impl Fn(&O, Duration) -> T) -> Self {
        let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0007);
        let mut delay = || HOUR + Duration::from_millis(rng.u64(1..60_000));
        let timers = (0..count).map(|_| begin(&owner, delay())).collect();
        Self { owner, timers, now: Instant::now(), done: 0 }
    }

    /// Whether this operation is the first of those for which the time is read once.
    fn begins_loop(&mut self) -> bool {
        self.done += 1;
        self.done % LOOK_EVERY == 1
    }
}

fn home(count: usize) -> Home {
    Home::new(count + 1_024)
}

fn schedule(home: &Home, delay: Duration) -> TimerId {
    home.shard.timers().schedule(delay, Payload::MIN).expect("there is room")
}

fn bare(count: usize) -> Shard<Payload> {
    let config = ShardConfig { capacity: count as u32 + 1_024, ..ShardConfig::default() };
    Shard::new(config).expect("there is memory")
}

fn tick(delay: Duration) -> Tick {
    Tick::new(delay.as_millis() as u64)
}

/// Boxed futures, as those of tokio and glommio are.
fn sleep(timers: &Timers<Payload>, delay: Duration) -> Pin<Box<corewheel::Sleep>> {
    polled(Box::pin(timers.sleep(delay)))
}

fn tokio_sleep(delay: Duration) -> Pin<Box<tokio::time::Sleep>> {
    polled(Box::pin(tokio::time::sleep(delay)))
}

fn polled<F: Future + Unpin>(mut future: F) -> F {
    let poll = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "it is an hour away");
    future
}

/// Makes this thread one of a runtime of tokio, for good.
fn enter_tokio() {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    std::mem::forget(Box::leak(Box::new(runtime)).enter());
}

/// An entrant whose timers are glommio's, which need their executor.
fn of_glommio(steps: &Rc<[Step]>, count: usize, each: fn(&mut Vec<Timer>, &Step)) -> Entrant {
    let executor = glommio::LocalExecutorBuilder::default().make().expect("an executor");
    let begin = |(): &(), delay| polled(Timer::new(delay));
    let timers = Rc::new(RefCell::new(executor.run(async move { Held::new(count, (), begin) })));
    let steps = Rc::clone(steps);
    let mut later = Duration::ZERO;
    // The drop of a glommio timer needs its executor, so both stay until the process ends.
    let executor = std::mem::ManuallyDrop::new(executor);
    std::mem::forget(Rc::clone(&timers));
    Entrant::new("glommio's Timer", move || {
        later += LATER;
        let (timers, steps) = (Rc::clone(&timers), Rc::clone(&steps));
        executor.run(async move { pass(&mut timers.borrow_mut().timers, &steps, later, each) })
    })
}

/// What each contender does in a step.
struct Each {
    corewheel: fn(&mut Held<Home, TimerId>, &Step),
    /// What a caller does that knows the time or the deadline, and the name of that contender.
    known: fn(&mut Held<Known, TimerId>, &Step),
    known_name: &'static str,
    bare: fn(&mut Held<RefCell<Shard<Payload>>, TimerKey>, &Step),
    sleep: fn(&mut Held<Home, Pin<Box<corewheel::Sleep>>>, &Step),
    tokio: fn(&mut Held<(), Pin<Box<tokio::time::Sleep>>>, &Step),
    glommio: fn(&mut Vec<Timer>, &Step),
}

/// A shard, with a deadline that was computed once for many steps.
type Known = (Home, Option<Deadline>);

/// The entrants with so many timers.
fn entrants(count: usize, steps: &Rc<[Step]>, glommio: bool, each: Each) -> Vec<Entrant> {
    enter_tokio();
    let bare = Held::new(count, RefCell::new(bare(count)), |shard, delay| {
        shard.borrow_mut().schedule(tick(delay), Payload::MIN).expect("there is room")
    });
    let known = Held::new(count, (home(count), None), |(home, _), delay| schedule(home, delay));
    let sleeps = Held::new(count, home(count), |home, delay| sleep(home.shard.timers(), delay));
    let of_tokio = Held::new(count, (), |(), delay| tokio_sleep(delay));
    let ours = Held::new(count, home(count), schedule);
    let mut entrants = vec![
        entrant("corewheel", steps, ours, each.corewheel),
        entrant(each.known_name, steps, known, each.known),
        entrant("the bare wheel", steps, bare, each.bare),
        entrant("corewheel's Sleep", steps, sleeps, each.sleep),
        entrant("tokio::time::Sleep", steps, of_tokio, each.tokio),
    ];
    if glommio {
        entrants.push(of_glommio(steps, count, each.glommio));
    }
    entrants
}

/// The entrants that cancel a timer and schedule another.
pub fn churn(count: usize, glommio: bool) -> Vec<Entrant> {
    let each = Each {
        corewheel: |held, step| {
            let timers = held.owner.shard.timers();
            black_box(timers.cancel(held.timers[step.0]).payload().expect("it is pending"));
            held.timers[step.0] = schedule(&held.owner, step.1);
        },
        known_name: "corewheel, time known",
        known: |held, step| {
            if held.begins_loop() {
                held.now = Instant::now();
            }
            let timers = held.owner.0.shard.timers();
            black_box(timers.cancel(held.timers[step.0]).payload().expect("it is pending"));
            let begun = timers.schedule(held.now + step.1, Payload::MIN);
            held.timers[step.0] = begun.expect("there is room");
        },
        bare: |held, step| {
            let shard = held.owner.get_mut();
            black_box(shard.cancel(held.timers[step.0]).payload().expect("it is pending"));
            let key = shard.schedule(tick(step.1), Payload::MIN);
            held.timers[step.0] = key.expect("there is room");
        },
        sleep: |held, step| held.timers[step.0] = sleep(held.owner.shard.timers(), step.1),
        tokio: |held, step| held.timers[step.0] = tokio_sleep(step.1),
        glommio: |timers, step| timers[step.0] = polled(Timer::new(step.1)),
    };
    entrants(count, &steps(count, false), glommio, each)
}

/// The entrants that reset a timer.
pub fn resets(count: usize, glommio: bool) -> Vec<Entrant> {
    let each = Each {
        corewheel: |held, step| {
            let outcome = held.owner.shard.timers().reset(held.timers[step.0], step.1);
            assert_eq!(outcome, ResetOutcome::Reset, "it is pending");
        },
        known_name: "corewheel, deadline known",
        known: |held, step| {
            // A server computes a deadline once for many connections that it has read from.
            let is_new = held.begins_loop();
            let (home, known) = &mut held.owner;
            let timers = home.shard.timers();
            if is_new {
                *known = Some(timers.deadline(step.1));
            }
            let outcome = timers.reset(held.timers[step.0], known.expect("it is computed"));
            assert_eq!(outcome, ResetOutcome::Reset, "it is pending");
        },
        bare: |held, step| {
            let outcome = held.owner.get_mut().reset(held.timers[step.0], tick(step.1));
            assert_eq!(outcome, corewheel_shard::ResetOutcome::Reset, "it is pending");
        },
        sleep: |held, step| held.timers[step.0].reset(step.1),
        tokio: |held, step| {
            held.timers[step.0].as_mut().reset(tokio::time::Instant::now() + step.1);
        },
        glommio: |timers, step| timers[step.0].reset(step.1),
    };
    entrants(count, &steps(count, true), glommio, each)
}
