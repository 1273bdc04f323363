//! Seeds of what a test does at random. A test that fails shows its seed in the last line of its
//! output, after the backtrace: a log may keep no more than the end.
//!
//! `COREWHEEL_SEED` repeats the random choices of a run.

use std::cell::Cell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// The seed of what this thread does; `None` if it does nothing at random.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The seed that the caller of the tests gives; `None` if there is none.
pub(crate) fn given() -> Option<u64> {
    let given = std::env::var("COREWHEEL_SEED").ok();
    given.map(|seed| seed.parse().expect("COREWHEEL_SEED is a number"))
}

/// From now on, this thread does what follows from this seed.
#[expect(clippy::print_stderr, reason = "a test that fails shows its seed")]
pub(crate) fn note(seed: u64) {
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
}

/// Runs a history for each of `count` seeds from a random one on, or for the one that is given.
pub(crate) fn each<R>(count: u64, history: impl Fn(u64) -> R) -> Vec<R> {
    let (first, count) = given().map_or_else(|| (fastrand::u64(..), count), |seed| (seed, 1));
    let seeds = (0..count).map(|number| first.wrapping_add(number));
    seeds.inspect(|seed| note(*seed)).map(history).collect()
}
