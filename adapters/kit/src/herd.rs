//! Against a thundering herd: keeps timers from expiring all at once.
//!
//! For servers that restart with many sessions, and clients that reconnect. By hand it is a random
//! time that is added to each delay, at the same cost.
//!
//! ```
//! use corewheel_kit::herd::Jitter;
//! use std::time::Duration;
//!
//! // Clients that were cut off reconnect after one to six seconds, not all at once.
//! let mut jitter = Jitter::random(Duration::from_secs(5), 0xC0FFEE);
//! for _client in 0..1_000 {
//!     let delay = jitter.after(Duration::from_secs(1));
//!     assert!((Duration::from_secs(1)..=Duration::from_secs(6)).contains(&delay));
//! }
//! ```
//!
//! Timers that were scheduled together expire together: after a restart all sessions expire in one
//! second, and all clients that lost their server reconnect in another. [`Jitter`] makes such
//! timers later by different times. With a width of a period, `after(Duration::ZERO)` is a first
//! delay for periodic timers that begin together and must not come together. Timers that may wait a
//! little are the opposite case: see
//! [`deadline_with_slack`](corewheel::Handle::deadline_with_slack).
//!
//! Why a value that makes durations, and not an option of each method: every method takes a delay.
//!
//! Invariants: nothing here makes a timer earlier; the same seed makes the same times. Absent by
//! design: a random seed, since a service whose seeds are given can be replayed.
//!
//! Cost: some nanoseconds for each time, and no allocation.

use std::time::Duration;

use fastrand::Rng;

/// Random times to add to delays, so that timers that would expire together do not.
///
/// A clone goes on with the same times as the original.
#[derive(Clone, Debug)]
pub struct Jitter {
    /// The longest time, in nanoseconds.
    longest: u64,
    rng: Rng,
}

impl Jitter {
    /// Random times, uniformly distributed from zero up to and including `longest`; a longest time
    /// that does not fit (584 years) counts as that long.
    ///
    /// Equal seeds make equal times. Shards, processes and machines whose timers must not
    /// expire together take different seeds.
    pub fn random(longest: Duration, seed: u64) -> Self {
        let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Self { longest, rng: Rng::with_seed(seed) }
    }

    /// The delay with the next time added; [`Duration::MAX`] if that does not fit.
    pub fn after(&mut self, delay: Duration) -> Duration {
        delay.saturating_add(Duration::from_nanos(self.rng.u64(..=self.longest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_jitter_stays_within_its_longest_is_uniform_and_repeats_with_its_seed() {
        let take = |longest, seed, count| {
            let mut jitter = Jitter::random(longest, seed);
            (0..count).map(|_| jitter.after(Duration::ZERO)).collect::<Vec<_>>()
        };
        let mut seen = [0; 10];
        for time in take(Duration::from_nanos(9), 7, 100_000) {
            seen[time.as_nanos() as usize] += 1;
        }
        assert!(seen.iter().all(|count| (9_000..11_000).contains(count)), "{seen:?}");
        let second = Duration::from_secs(1);
        assert_eq!(take(second, 3, 100), take(second, 3, 100));
        assert_ne!(take(second, 3, 100), take(second, 4, 100));
        assert!(take(Duration::ZERO, 1, 100).iter().all(Duration::is_zero));
        let mut endless = Jitter::random(Duration::MAX, 1);
        assert_eq!(endless.after(Duration::MAX), Duration::MAX);
    }
}
