//! The stop flag of a periodic callback: any thread sets it, and learns whether the callback will
//! run again.
//!
//! Why not a message: it would have to wait for the shard's next turn to be answered, and could be
//! refused. One word says what the callback is doing, and the thread that changes the word has
//! decided:
//!
//! ```text
//!   shard                                       any thread
//!   begin: waits ──► runs                       stop: waits ──► over, it will not run
//!   rest:  runs  ──► waits, for another timer         runs  ──► stopping, this run is the last
//!          stopping stays, and the shard ends it
//! ```
//!
//! While the callback waits, the word names its timer by an index and a generation that is not 0,
//! so that a thread that stops it can also take the timer away.

use std::num::NonZeroU32;

use super::sync::{AtomicU64, Ordering};

/// Words that name no timer, since a generation is not 0.
const RUNS: u64 = 0;
const STOPPING: u64 = 1 << 32;
const OVER: u64 = 2 << 32;
/// Waits for the timer that it began with, which is not named here.
const FIRST: u64 = 3 << 32;

#[derive(Debug)]
pub(crate) struct StopFlag(AtomicU64);

/// What a stop has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It waited for this timer, or for the first, and will not run.
    Waited(Option<(u32, NonZeroU32)>),
    /// It runs, for the last time.
    Runs,
    Over,
}

impl StopFlag {
    /// Of a callback that waits for its first timer.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    /// The shard is about to run it. False if it must not.
    pub(crate) fn begin(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let waits = word == FIRST || timer(word).is_some();
        // Only a stop can have come between. Relaxed: a stop that finds it running is told nothing
        // of what it does.
        waits && self.0.compare_exchange(word, RUNS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The shard has run it, and it waits for this timer next. False if it was stopped meanwhile.
    pub(crate) fn rest(&self, index: u32, generation: NonZeroU32) -> bool {
        let word = u64::from(index) << 32 | u64::from(generation.get());
        // Release: pairs with the load in `stop`, whose caller may count on what was done.
        self.0.compare_exchange(RUNS, word, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// It will not run any more.
    pub(crate) fn end(&self) {
        // Release: pairs with the loads in `stop` and `is_over`.
        self.0.store(OVER, Ordering::Release);
    }

    pub(crate) fn stop(&self) -> Stop {
        // Acquire: pairs with `rest` and `end`. The exchange is relaxed, as no timer comes twice:
        // it replaces what was loaded. A thread that finds its word is ordered after the `rest`
        // before it, as that one's release goes on through it.
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (next, found) = match word {
                OVER => return Stop::Over,
                STOPPING => return Stop::Runs,
                RUNS => (STOPPING, Stop::Runs),
                word => (OVER, Stop::Waited(timer(word))),
            };
            match self.0.compare_exchange(word, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => return found,
                Err(other) => word = other,
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with `end`.
        self.0.load(Ordering::Acquire) == OVER
    }
}

fn timer(word: u64) -> Option<(u32, NonZeroU32)> {
    NonZeroU32::new(word as u32).map(|generation| ((word >> 32) as u32, generation))
}
