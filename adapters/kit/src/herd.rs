//! Against a thundering herd: keeps timers from expiring all at once.
//!
//! For servers that restart with many sessions, and clients that reconnect. By hand it is a random
//! time that is added to each delay, at the same cost; a window that is filled evenly is more work.
//!
//! ```
//! use corewheel_kit::herd::Jitter;
//! use corewheel::attach::Turn;
//! use corewheel::clock::ManualClock;
//! use corewheel::{Fired, TimerService};
//! use std::time::Duration;
//!
//! // One shard in a loop of our own, with a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).capacity(4_096).clock(&clock);
//! let service = builder.start_attached_with::<u32>()?;
//! let shard = service.attach(service.shards().next().unwrap())?;
//! let mut shard = shard.into_loop(|_: Fired<u32>, _: &_| {})?;
//! let timers = shard.timers().clone();
//!
//! // The server has restarted. A thousand sessions end in an hour: not in one tick, but spread
//! // evenly over a minute.
//! let hour = timers.now() + Duration::from_secs(3_600);
//! for (session, later) in (0..1_000).zip(Jitter::even(Duration::from_secs(60))) {
//!     timers.schedule(hour + later, session)?;
//! }
//! clock.advance(Duration::from_secs(3_630));
//! while shard.turn() == Turn::More {}
//! assert!((450..550).contains(&timers.len()), "half of the sessions are left");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Timers that were scheduled together expire together: after a restart all sessions expire in one
//! second, and all clients that lost their server reconnect in another. [`Jitter`] makes such
//! timers later by different times. Timers that may wait a little are the opposite case: see
//! [`deadline_with_slack`](corewheel::Timers::deadline_with_slack).
//!
//! Why a value that makes durations, and not an option of each method: every method takes a delay.
//!
//! Invariants: nothing here makes a timer earlier; the same seed makes the same times. Absent by
//! design: a random seed, since a service whose seeds are given can be replayed.
//!
//! Cost: some nanoseconds for each time, and no allocation.

use std::time::Duration;

use corewheel::interval::Interval;

/// Times to add to delays, so that timers that would expire together do not: at random, or spread
/// evenly over a window.
///
/// It is an iterator over the times that never ends. A clone goes on with the same times as the
/// original.
///
/// ```
/// use corewheel_kit::herd::Jitter;
/// use std::time::Duration;
///
/// // Clients that were cut off reconnect after one to six seconds, not all at once.
/// let mut jitter = Jitter::random(Duration::from_secs(5), 0xC0FFEE);
/// for _client in 0..1_000 {
///     let delay = jitter.after(Duration::from_secs(1));
///     assert!((Duration::from_secs(1)..=Duration::from_secs(6)).contains(&delay));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Jitter {
    /// The longest time at random, or the window.
    width: Duration,
    is_even: bool,
    /// The seed of the next time, or its part of the window in 2⁻⁶⁴.
    next: u64,
}

/// A golden section of 2⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Jitter {
    /// Random times, uniformly distributed from zero up to and including `longest`; a longest time
    /// that does not fit (584 years) counts as that long.
    ///
    /// Equal seeds make equal times. Shards, processes and machines whose timers must not
    /// expire together take different seeds.
    pub fn random(longest: Duration, seed: u64) -> Self {
        // The times of seeds that follow one another are not those of one seed, shifted.
        let next = seed.rotate_left(32).wrapping_mul(GOLDEN);
        Self { width: longest, is_even: false, next }
    }

    /// Times from zero up to, but not including, `window`, each far from those before it, so that
    /// they are about evenly spread however many are taken. The first is zero.
    ///
    /// Nothing is random: the n-th time is the fractional part of n golden sections of the window,
    /// a sequence of low discrepancy. Between neighbours among the first `n` times there are at
    /// most three `n`-ths of the window, and no `n`-th part of it holds more than three of them.
    pub fn even(window: Duration) -> Self {
        Self { width: window, is_even: true, next: 0 }
    }

    /// The delay with the next time added; [`Duration::MAX`] if that does not fit.
    pub fn after(&mut self, delay: Duration) -> Duration {
        delay.saturating_add(self.sample())
    }

    fn sample(&mut self) -> Duration {
        if !self.is_even {
            self.next = self.next.wrapping_add(1);
            return Interval::phase_of(self.width, self.next);
        }
        let width = u64::try_from(self.width.as_nanos()).unwrap_or(u64::MAX);
        let nanos = (u128::from(width) * u128::from(self.next)) >> u64::BITS;
        self.next = self.next.wrapping_add(GOLDEN);
        // Less than the window.
        Duration::from_nanos(nanos as u64)
    }
}

impl Iterator for Jitter {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.sample())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_jitter_stays_within_its_longest_is_uniform_and_repeats_with_its_seed() {
        let longest = Duration::from_nanos(9);
        let mut seen = [0; 10];
        for time in Jitter::random(longest, 7).take(100_000) {
            seen[time.as_nanos() as usize] += 1;
        }
        assert!(seen.iter().all(|count| (9_000..11_000).contains(count)), "{seen:?}");
        let take =
            |seed| Jitter::random(Duration::from_secs(1), seed).take(100).collect::<Vec<_>>();
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        assert!(Jitter::random(Duration::ZERO, 1).take(100).all(|time| time.is_zero()));
        let mut endless = Jitter::random(Duration::MAX, 1);
        assert_eq!(endless.after(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn even_jitter_of_any_count_leaves_no_wide_gap_and_no_crowded_part() {
        let window = Duration::from_secs(1);
        for count in [1_u128, 2, 3, 5, 10, 64, 100, 1_000, 4_181, 10_000] {
            let mut times: Vec<_> =
                Jitter::even(window).take(count as usize).map(|time| time.as_nanos()).collect();
            assert_eq!(times[0], 0);
            times.sort_unstable();
            times.push(window.as_nanos());
            let widest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
            assert!(widest * count <= 3 * window.as_nanos(), "{widest} between {count}");
            let mut parts = vec![0; count as usize];
            for time in &times[..count as usize] {
                assert!(*time < window.as_nanos());
                parts[(time * count / window.as_nanos()) as usize] += 1;
            }
            assert!(parts.iter().all(|held| *held <= 3), "of {count}: {parts:?}");
        }
        assert!(Jitter::even(Duration::ZERO).take(9).all(|time| time.is_zero()));
        assert!(Jitter::even(Duration::MAX).take(9).is_sorted_by(|a, b| a != b));
        assert_eq!(Jitter::even(window).skip(1).take(1).count(), 1);
    }
}
