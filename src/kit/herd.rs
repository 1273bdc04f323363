//! Against a thundering herd: keeps timers from expiring all at once, or lets timers share a tick
//! where that is cheaper.
//!
//! For servers that restart with many sessions, and clients that reconnect. By hand it is a random
//! time that is added to each delay, at the same cost; a window that is filled evenly is more work.
//!
//! ```
//! use corewheel::herd::Jitter;
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
//!
//! // These two timers may wait up to 2 seconds, so that they can share a tick with others.
//! for delay in [30, 31].map(Duration::from_secs) {
//!     timers.schedule(timers.deadline_with_slack(delay, Duration::from_secs(2)), 0)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Timers that were scheduled together expire together: after a restart all sessions expire in one
//! second, and all clients that lost their server reconnect in another. [`Jitter`] makes such
//! timers later by different times. Timers that may wait a little are the opposite case: each of
//! them alone wakes its shard, and [slack](Timers::deadline_with_slack) lets those that are close
//! to one another share a tick.
//!
//! Why values that make durations, and not options of each method: the result is a delay or a
//! [`Deadline`], which every method takes.
//!
//! Invariants: nothing here makes a timer earlier; the same seed makes the same times. Absent by
//! design: a random seed, since a service whose seeds are given can be replayed.
//!
//! Cost: some nanoseconds for each time, and no allocation.

use std::time::Duration;

use corewheel_shard::Tick;

use crate::clock::Timeline;
use crate::clock::when::{Deadline, When};
use crate::clock::{nanos_after, saturating_nanos};
use crate::face::timers::Timers;

/// Times to add to delays, so that timers that would expire together do not: at random, or spread
/// evenly over a window.
///
/// It is an iterator over the times that never ends. A clone goes on with the same times as the
/// original.
///
/// ```
/// use corewheel::herd::Jitter;
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
    /// In nanoseconds: the longest time at random, or the window.
    width: u64,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Random(fastrand::Rng),
    /// The next time's part of the window, in 2⁻⁶⁴.
    Even(u64),
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
        let source = Source::Random(fastrand::Rng::with_seed(seed));
        Self { width: saturating_nanos(longest), source }
    }

    /// Times from zero up to, but not including, `window`, each far from those before it, so that
    /// they are about evenly spread however many are taken. The first is zero.
    ///
    /// Nothing is random: the n-th time is the fractional part of n golden sections of the window,
    /// a sequence of low discrepancy. Between neighbours among the first `n` times there are at
    /// most three `n`-ths of the window, and no `n`-th part of it holds more than three of them.
    pub fn even(window: Duration) -> Self {
        Self { width: saturating_nanos(window), source: Source::Even(0) }
    }

    /// The delay with the next time added; [`Duration::MAX`] if that does not fit.
    pub fn after(&mut self, delay: Duration) -> Duration {
        delay.saturating_add(self.sample())
    }

    pub(crate) fn sample(&mut self) -> Duration {
        Duration::from_nanos(match &mut self.source {
            Source::Random(rng) => rng.u64(0..=self.width),
            Source::Even(part) => {
                let nanos = (u128::from(self.width) * u128::from(*part)) >> 64;
                *part = part.wrapping_add(GOLDEN);
                // Less than the window.
                nanos as u64
            }
        })
    }
}

impl Iterator for Jitter {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.sample())
    }
}

/// Deadlines that timers share.
impl<T: Send + 'static> Timers<T> {
    /// The deadline of a timer that is due at `when`, or up to `slack` later where that lets timers
    /// share a tick: of the ticks in between the one that the highest power of two divides.
    ///
    /// A shard wakes up for each tick in which a timer is due. Timers with the same slack, even
    /// those of different shards, are due in one tick out of about as many as the slack is long,
    /// instead of each in its own tick. The deadline is never early, and never later than the slack
    /// allows. A slack that is shorter than a tick changes nothing, and neither does a slack of a
    /// timer that is never due.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService};
    /// # use std::time::Duration;
    /// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<u64>, _: &_| {})?;
    /// # let timers = shard.timers();
    /// let keep_alive = Duration::from_secs(30);
    /// let deadline = timers.deadline_with_slack(keep_alive, Duration::from_secs(2));
    /// timers.schedule(deadline, 7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "slack")]
    #[inline]
    pub fn deadline_with_slack<W: When>(&self, when: W, slack: Duration) -> Deadline {
        let (core, now) = (self.core(), self.core().nanos_near());
        let earliest = core.time().tick_of(when, || now);
        Deadline(slacken(core.time(), earliest, core.time().nanos_of(when, || now), slack))
    }
}

/// The roundest tick from `earliest` to the end of the slack that begins at `nanos`.
pub(crate) fn slacken(time: &Timeline, earliest: Tick, nanos: u64, slack: Duration) -> Tick {
    if earliest == Tick::NEVER {
        return earliest;
    }
    roundest(earliest, time.floor(nanos_after(nanos, slack)))
}

/// The tick that the highest power of two divides, from `earliest` to `latest`.
fn roundest(earliest: Tick, latest: Tick) -> Tick {
    let (low, high) = (earliest.index(), latest.index());
    if low >= high {
        return earliest;
    }
    // Above the highest bit in which they differ they are the same, and at it `high` has a one.
    let bit = (low ^ high).ilog2();
    let below = (1 << bit) - 1;
    // Without anything below that bit, `low` is rounder still: it does not have the bit.
    if low & below == 0 { earliest } else { Tick::new(high & !below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundest_tick_equals_the_tick_found_by_search() {
        for low in 0..150_u64 {
            for high in 0..150 {
                let roundness = |tick: &u64| if *tick == 0 { 64 } else { tick.trailing_zeros() };
                // Of those that are equally round there is one.
                let expected = (low..=high).max_by_key(roundness).unwrap_or(low);
                let found = roundest(Tick::new(low), Tick::new(high));
                assert_eq!(found, Tick::new(expected), "from {low} to {high}");
            }
        }
        let last = Tick::new(Tick::NEVER.index() - 1);
        assert_eq!(roundest(Tick::new(5), last), Tick::new(1 << 63));
        assert_eq!(roundest(last, last), last);
    }

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
