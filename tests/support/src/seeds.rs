//! Seeds of what a test does at random. A test that fails shows its seed in the last line of its
//! output, after the backtrace: a log may keep no more than the end.
//!
//! `COREWHEEL_SEED` repeats the random choices of a run.
//!
//! No clock, service or connection of a test begins at the clock's epoch, where a time that is
//! wrongly 0 would be right.

use std::cell::{Cell, RefCell};
use std::panic::{set_hook, take_hook};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use corewheel::clock::ManualClock;
use fastrand::Rng;

thread_local! {
    /// The seed of what this thread does; `None` if it does nothing at random.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    /// Numbers from that seed.
    static RNG: RefCell<Rng> = const { RefCell::new(Rng::with_seed(0)) };
}

/// The seed that the caller of the tests gives; `None` if there is none.
pub fn given() -> Option<u64> {
    let given = std::env::var("COREWHEEL_SEED").ok();
    given.map(|seed| seed.parse().expect("COREWHEEL_SEED is a number"))
}

/// The seed of all tests of this process that have none of their own.
pub fn of_process() -> u64 {
    static OF_PROCESS: OnceLock<u64> = OnceLock::new();
    *OF_PROCESS.get_or_init(|| given().unwrap_or_else(|| fastrand::u64(..)))
}

/// Numbers from the seed of what this thread does: the one that was noted last, or that of the
/// process. Each call returns others.
pub fn rng() -> Rng {
    if SEED.get().is_none() {
        note(of_process());
    }
    RNG.with_borrow_mut(Rng::fork)
}

/// A time in whole seconds, so that each tick begins when it would at the epoch: hours, centuries,
/// or so many that less than 14 years are left until the last nanosecond that a clock can show. The
/// longest delay of a test is shorter than what is left.
pub fn age(rng: &mut Rng) -> Duration {
    const LAST: u64 = u64::MAX / 1_000_000_000;
    let days = |days: u64| days * 24 * 3_600;
    Duration::from_secs(match rng.u32(..4) {
        0 => LAST - rng.u64(days(500)..days(5_000)),
        1 => rng.u64(days(400)..LAST - days(5_000)),
        _ => rng.u64(3_600..days(400)),
    })
}

/// A time at which all windows of a wheel begin whose ticks are milliseconds: none ends within the
/// next 34 years. For tests that count the turns which the end of a window takes. Centuries are
/// left until the last nanosecond that a clock can show, so that a delay can be too long to end.
pub fn windows(rng: &mut Rng) -> Duration {
    Duration::from_millis(1 << 40) * rng.u32(1..=2)
}

/// A clock that has run for a random time.
pub fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.advance(age(&mut rng()));
    clock
}

/// From now on, this thread does what follows from this seed.
#[expect(clippy::print_stderr, reason = "a test that fails shows its seed")]
pub fn note(seed: u64) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            print(info);
            if let Ok(Some(seed)) = SEED.try_with(Cell::get) {
                eprintln!("the seed is COREWHEEL_SEED={seed}");
            }
        }));
    });
    SEED.set(Some(seed));
    RNG.set(Rng::with_seed(!seed));
}

/// Runs a history for each of `count` seeds from a random one on, or for the one that is given.
pub fn each<R>(count: u64, history: impl Fn(u64) -> R) -> Vec<R> {
    let (first, count) = given().map_or_else(|| (fastrand::u64(..), count), |seed| (seed, 1));
    let seeds = (0..count).map(|number| first.wrapping_add(number));
    seeds.inspect(|seed| note(*seed)).map(history).collect()
}
