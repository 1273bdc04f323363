//! Runs lists of commands for many seeds, and shortens the list of a seed that fails.

use std::cell::Cell;
use std::fmt::{Debug, Write as _};
use std::io::{Write as _, stderr};
use std::panic::{set_hook, take_hook};
use std::sync::Once;

use fastrand::Rng;

use crate::values::contain::attempt;

/// The most runs that look for a shorter list.
const RUNS_MAX: u32 = 500;

/// A part of the message of a panic that aborts the process: that of a value which panics when it
/// is dropped while the thread unwinds.
const ABORTS: &str = "in a destructor during cleanup";

thread_local! {
    /// The seed whose panics this thread does not print; `None` if it runs none.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// For each seed, makes a list of commands by `plan` and passes it to `run`.
///
/// A `run` that panics has failed. Then parts of its list are left out, as long as the rest fails
/// too; so commands should choose among what is there (the seventh timer, counted modulo the number
/// of timers) instead of naming what an earlier command has made. `run` must depend on its
/// arguments only. While it runs, panics of this thread are not printed, also those of callbacks
/// that panic on purpose.
///
/// ```should_panic
/// use corewheel::sim::explore;
///
/// // The sum of a list that adds and takes away is never below zero.
/// explore(
///     0..1_000,
///     |rng| (0..20).map(|_| rng.i32(-3..10)).collect::<Vec<_>>(),
///     |_seed, commands| {
///         let mut sum = 0;
///         for command in commands {
///             sum += command;
///             assert!(sum >= 0, "the sum is {sum}");
///         }
///     },
/// );
/// ```
///
/// # Panics
///
/// If a run fails, with its seed, the panic's message and the shortened list.
pub fn explore<C: Clone + Debug>(
    seeds: impl IntoIterator<Item = u64>,
    plan: impl Fn(&mut Rng) -> Vec<C>,
    run: impl Fn(u64, &[C]),
) {
    for seed in seeds {
        let commands = plan(&mut Rng::with_seed(seed));
        let Some(message) = failure(&run, seed, &commands) else { continue };
        let (commands, message) = shorten(&run, seed, commands, message);
        let mut list = String::new();
        for command in &commands {
            writeln!(list, "    {command:?}").expect("a string takes every text");
        }
        panic!("seed {seed}: {message}\nafter {} commands:\n{list}", commands.len());
    }
}

/// Leaves parts of a list out as long as the rest fails: halves, quarters and so on (Zeller and
/// Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
fn shorten<C: Clone>(
    run: &impl Fn(u64, &[C]),
    seed: u64,
    mut commands: Vec<C>,
    mut message: String,
) -> (Vec<C>, String) {
    let mut part = commands.len().div_ceil(2);
    let mut runs = 0;
    while part > 0 && runs < RUNS_MAX {
        let mut start = 0;
        let mut is_shorter = false;
        while start < commands.len() && runs < RUNS_MAX {
            let end = (start + part).min(commands.len());
            let rest: Vec<C> = [&commands[..start], &commands[end..]].concat();
            runs += 1;
            match failure(run, seed, &rest) {
                Some(other) => {
                    (commands, message) = (rest, other);
                    is_shorter = true;
                }
                None => start = end,
            }
        }
        if !is_shorter {
            part /= 2;
        }
    }
    (commands, message)
}

/// The message of the panic with which a run fails; `None` if it does not.
fn failure<C>(run: &impl Fn(u64, &[C]), seed: u64, commands: &[C]) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            let seed = SEED.with(Cell::get);
            let said = info.payload().downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| info.payload().downcast_ref::<&str>().copied());
            let aborts = said.is_some_and(|text| text.contains(ABORTS));
            if aborts {
                if let Some(seed) = seed {
                    // Nothing can be shortened, since the process ends.
                    SEED.set(None);
                    let _ = writeln!(stderr(), "seed {seed} aborts the process");
                }
            }
            if aborts || seed.is_none() {
                print(info);
            }
        }));
    });
    SEED.set(Some(seed));
    let failure = attempt(|| run(seed, commands)).err();
    SEED.set(None);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorten_finds_the_commands_that_fail_together() {
        let run = |_, commands: &[u32]| {
            let has = |command| commands.contains(&command);
            assert!(!(has(3) && has(40) && has(77)), "all three are there");
        };
        let all: Vec<u32> = (0..100).collect();
        let (commands, message) = shorten(&run, 0, all, String::new());
        assert_eq!(
            (commands.as_slice(), message.as_str()),
            (&[3, 40, 77][..], "all three are there")
        );
    }

    #[test]
    fn explore_names_the_seed_that_fails() {
        let plan = |rng: &mut Rng| vec![rng.u32(..)];
        let found = failure(
            &|_, _: &[()]| {
                explore(0..9, plan, |seed, _| assert!(seed < 5, "five"));
            },
            0,
            &[()],
        );
        assert_eq!(found.as_deref(), Some("seed 5: five\nafter 0 commands:\n"));
    }
}
