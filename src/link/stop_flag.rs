//! The stop flag of a periodic callback: any thread can set it, and then knows whether the callback
//! will run again.
//!
//! Why not a message: its reply would have to wait for the shard's next turn, and a full lane could
//! refuse it. Instead, one word holds the state of the callback, and the thread that changes the
//! word decides:
//!
//! ```text
//!   shard                                       any thread
//!   begin: waits ──► runs                       stop: waits ──► over, no run follows
//!   rest:  runs  ──► waits, for another timer         runs  ──► stopping, the run is the last
//!          stopping stays, and the shard ends the callback
//! ```
//!
//! While the callback waits, the word holds the index of its timer and a generation that is not 0,
//! so that a thread that stops the callback can also cancel the timer.

use std::num::NonZeroU32;

use super::sync::{AtomicU64, Ordering};

/// These words hold no timer, since the generation of a timer is not 0.
const RUNS: u64 = 0;
const STOPPING: u64 = 1 << 32;
const OVER: u64 = 2 << 32;
/// The callback waits for its first timer, which the word does not hold.
const FIRST: u64 = 3 << 32;

#[derive(Debug)]
pub(crate) struct StopFlag(AtomicU64);

/// The state in which [`StopFlag::stop`] found the callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The callback waited for this timer, or for its first timer (`None`), and will not run again.
    Waited(Option<(u32, NonZeroU32)>),
    /// The callback is running for the last time.
    Runs,
    /// The callback had ended before.
    Over,
}

impl StopFlag {
    /// The flag of a callback that waits for its first timer.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(FIRST))
    }

    /// Called by the shard before it runs the callback. False if the shard must not run it.
    pub(crate) fn begin(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let waits = word == FIRST || timer(word).is_some();
        // Only a stop can have changed the word since the load. Relaxed: a stop that finds the
        // callback running sees none of its writes.
        waits && self.0.compare_exchange(word, RUNS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Called by the shard after a run: the callback waits for this timer next. False if a thread
    /// stopped the callback meanwhile.
    pub(crate) fn rest(&self, index: u32, generation: NonZeroU32) -> bool {
        let word = u64::from(index) << 32 | u64::from(generation.get());
        // Release: pairs with the load in `stop`, whose caller sees all writes of the run.
        self.0.compare_exchange(RUNS, word, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Called by the shard when the callback will not run any more.
    pub(crate) fn end(&self) {
        // Release: pairs with the loads in `stop` and `is_over`.
        self.0.store(OVER, Ordering::Release);
    }

    /// Stops the callback. One of several concurrent stops finds that it waited.
    pub(crate) fn stop(&self) -> Stop {
        // Acquire: pairs with `rest` and `end`. The exchange is relaxed: no word of a timer occurs
        // twice, so the exchange replaces the very store that this load has read. A thread that
        // reads the new word is ordered after that `rest`, whose release sequence contains the
        // exchange.
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

    /// Whether the callback will not run any more.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with `end`.
        self.0.load(Ordering::Acquire) == OVER
    }
}

fn timer(word: u64) -> Option<(u32, NonZeroU32)> {
    NonZeroU32::new(word as u32).map(|generation| ((word >> 32) as u32, generation))
}
