//! The cost of the public methods on a core, beside the bare wheel and beside the timers of glommio
//! and tokio.
//!
//! Every contender holds as many timers as the row says, due in about an hour. An operation cancels
//! a timer and schedules another, or resets a timer. Futures are polled once, since a future that
//! was never polled is no timer yet.

use std::hint::black_box;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use corewheel::{Deadline, ResetOutcome, TimerId, When};
use corewheel_shard::{Shard, ShardConfig, Tick};
use glommio::timer::Timer;
use tokio::runtime::Builder;

use super::HOUR;
use super::wheel::Case;
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
fn steps(count: usize, are_resets: bool) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0007);
    let delay = |at: u32, rng: &mut fastrand::Rng| {
        let millis = if are_resets { 60_000 } else { rng.u64(1..60_000) };
        HOUR + Duration::from_millis(millis) + Duration::from_micros(10) * at
    };
    (0..OPERATIONS as u32).map(|at| (rng.usize(..count), delay(at, &mut rng))).collect()
}

/// By how much each round's resets are later than those of the round before.
const LATER: Duration = Duration::from_mins(2);

/// Pending timers of `owner`. Each call executes the steps of a row, and returns the nanoseconds of
/// one: each resets a timer, or cancels it and begins another. A future is cancelled by its drop.
fn rounds<O: 'static, T: 'static>(
    (count, are_resets): (usize, bool),
    mut owner: O,
    begin: impl Fn(&mut O, Duration) -> T + 'static,
    cancel: impl Fn(&mut O, &T) + 'static,
    reset: impl Fn(&mut O, &mut T, Duration) + 'static,
) -> Case {
    let steps = steps(count, are_resets);
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0007);
    let mut delay = || HOUR + Duration::from_millis(rng.u64(1..60_000));
    let mut timers: Vec<_> = (0..count).map(|_| begin(&mut owner, delay())).collect();
    let mut later = Duration::ZERO;
    Box::new(move || {
        later += LATER;
        let start = Instant::now();
        for (picked, delay) in &steps {
            let timer = &mut timers[*picked];
            if are_resets {
                reset(&mut owner, timer, *delay + later);
            } else {
                cancel(&mut owner, timer);
                *timer = begin(&mut owner, *delay + later);
            }
        }
        start.elapsed().as_nanos() as f64 / steps.len() as f64
    })
}

/// A shard whose caller reads the time, or computes a deadline, once for many steps.
struct Known {
    home: Home,
    now: Instant,
    deadline: Option<Deadline>,
    done: usize,
}

impl Known {
    /// Whether this operation is the first of those for which the time is read once.
    fn begins_loop(&mut self) -> bool {
        self.done += 1;
        self.done % LOOK_EVERY == 1
    }
}

fn schedule(home: &Home, delay: impl When) -> TimerId {
    home.shard.timers().schedule(delay, Payload::MIN).expect("there is room")
}

fn cancel(home: &Home, timer: TimerId) {
    black_box(home.shard.timers().cancel(timer).payload().expect("it is pending"));
}

fn reset(home: &Home, timer: TimerId, delay: impl When) {
    let outcome = home.shard.timers().reset(timer, delay);
    assert_eq!(outcome, ResetOutcome::Reset, "it is pending");
}

fn tick(delay: Duration) -> Tick {
    Tick::new(delay.as_millis() as u64)
}

fn polled<F: Future + Unpin>(mut future: F) -> F {
    let poll = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "it is an hour away");
    future
}

/// The entrants with so many timers, which reset a timer in each step, or cancel it and schedule
/// another.
pub fn entrants(count: usize, are_resets: bool, glommio: bool) -> Vec<Entrant> {
    // This thread is one of a runtime of tokio from now on.
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    std::mem::forget(Box::leak(Box::new(runtime)).enter());
    let (row, home) = ((count, are_resets), || Home::new(count + 1_024));
    let ours = rounds(
        row,
        home(),
        |home, delay| schedule(home, delay),
        |home, timer| cancel(home, *timer),
        |home, timer, delay| reset(home, *timer, delay),
    );
    let known = rounds(
        row,
        Known { home: home(), now: Instant::now(), deadline: None, done: 0 },
        |known, delay| {
            if known.begins_loop() {
                known.now = Instant::now();
            }
            schedule(&known.home, known.now + delay)
        },
        |known, timer| cancel(&known.home, *timer),
        |known, timer, delay| {
            // A server computes a deadline once for many connections that it has read from.
            if known.begins_loop() || known.deadline.is_none() {
                known.deadline = Some(known.home.shard.timers().deadline(delay));
            }
            reset(&known.home, *timer, known.deadline.expect("it is computed"));
        },
    );
    let config = ShardConfig { capacity: count as u32 + 1_024, ..ShardConfig::default() };
    let bare = rounds(
        row,
        Shard::new(config).expect("there is memory"),
        |shard, delay| shard.schedule(tick(delay), Payload::MIN).expect("there is room"),
        |shard, timer| {
            black_box(shard.cancel(*timer).payload().expect("it is pending"));
        },
        |shard, timer, delay| {
            let outcome = shard.reset(*timer, tick(delay));
            assert_eq!(outcome, corewheel_shard::ResetOutcome::Reset, "it is pending");
        },
    );
    // A boxed future, as those of tokio and glommio are.
    let sleeps = rounds(
        row,
        home(),
        |home, delay| polled(Box::pin(home.shard.timers().sleep(delay))),
        |_, _| {},
        |_, timer, delay| timer.reset(delay),
    );
    let of_tokio = rounds(
        row,
        (),
        |(), delay| polled(Box::pin(tokio::time::sleep(delay))),
        |(), _| {},
        |(), timer, delay| timer.as_mut().reset(tokio::time::Instant::now() + delay),
    );
    let is_known = if are_resets { "corewheel, deadline known" } else { "corewheel, time known" };
    let mut entrants = vec![
        Entrant::new("corewheel", ours),
        Entrant::new(is_known, known),
        Entrant::new("the bare wheel", bare),
        Entrant::new("corewheel's Sleep", sleeps),
        Entrant::new("tokio::time::Sleep", of_tokio),
    ];
    if glommio {
        let executor = glommio::LocalExecutorBuilder::default().make().expect("an executor");
        let begin = |(): &mut (), delay| polled(Timer::new(delay));
        let reset = |(): &mut (), timer: &mut Timer, delay| timer.reset(delay);
        let timers = executor.run(async { rounds(row, (), begin, |(), _| {}, reset) });
        // The drop of a glommio timer needs its executor, so both stay until the process ends.
        let (executor, mut timers) = (ManuallyDrop::new(executor), ManuallyDrop::new(timers));
        let round = move || executor.run(async { timers() });
        entrants.push(Entrant::new("glommio's Timer", round));
    }
    entrants
}
