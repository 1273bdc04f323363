//! Keeps timers from coming as a herd, or makes them come as one where that is cheaper.
//!
//! Timers that were scheduled together fall due together: after a restart all sessions expire in
//! one second, and all clients that lost their server come back in another. [`Jitter`] and
//! [`Spread`] put such timers off by different times. Timers that may wait a little are the
//! opposite case: each for itself wakes its shard, and [slack](Timers::deadline_with_slack) lets
//! those that are close to one another share a tick.
//!
//! Why values that make durations, and not options of each method: what comes out is a delay or a
//! [`Deadline`], and goes wherever those go.
//!
//! Invariants: nothing here makes a timer earlier; the same seed makes the same times. Absent by
//! design: a source of chance of its own.
//!
//! Cost: some nanoseconds for each time, and no allocation.

use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use crate::clock::Timeline;
use crate::clock::{nanos_after, saturating_nanos};
use crate::face::timers::{Deadline, Timers};

/// Times by chance, evenly distributed from zero up to a longest one, to be put on top of delays.
///
/// The seed is the caller's: the same makes the same times. Shards, processes and machines that
/// must not go in step take different ones. A clone goes on with the same times as the original. As
/// an iterator it never ends.
///
/// ```
/// use corewheel::Jitter;
/// use std::time::Duration;
///
/// // Clients that were cut off come back within five seconds after the first, not all at once.
/// let mut jitter = Jitter::up_to(Duration::from_secs(5), 0xC0FFEE);
/// for _client in 0..1_000 {
///     let delay = jitter.after(Duration::from_secs(1));
///     assert!((Duration::from_secs(1)..=Duration::from_secs(6)).contains(&delay));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Jitter {
    rng: fastrand::Rng,
    longest: u64,
}

impl Jitter {
    /// Times from zero up to `longest`, which may be among them; those that do not fit (584 years)
    /// count as that long.
    pub fn up_to(longest: Duration, seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), longest: saturating_nanos(longest) }
    }

    /// The delay with the next time on top; [`Duration::MAX`] if that does not fit.
    pub fn after(&mut self, delay: Duration) -> Duration {
        delay.saturating_add(self.sample())
    }

    pub(crate) fn sample(&mut self) -> Duration {
        Duration::from_nanos(self.rng.u64(0..=self.longest))
    }
}

impl Iterator for Jitter {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.sample())
    }
}

/// Times within a window, each far from those before it, so that however many are taken they lie
/// about evenly: for timers that would all be due at once.
///
/// By no chance at all: the n-th is the fractional part of n golden sections of the window, a
/// sequence of low discrepancy. Between neighbours among the first `n` there is never more than
/// three `n`-ths of the window, and no `n`-th part of it holds more than three. As an iterator it
/// never ends.
///
/// ```
/// use corewheel::{Fired, Spread, TimerService, Timers};
/// use std::time::Duration;
///
/// let service: TimerService<u32> = TimerService::builder().shards(1).start_attached()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let shard = shard.into_loop(|_: Fired<u32>, _: &Timers<u32>| {})?;
/// let timers = shard.timers();
///
/// // The server starts anew: all sessions would end in an hour, in one tick.
/// let hour = timers.deadline_in(Duration::from_hours(1));
/// for (session, by) in (0..1_000).zip(Spread::over(Duration::from_mins(1))) {
///     timers.schedule_to(timers.later(hour, by), session)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Spread {
    window: u64,
    /// The next one's part of the window, in 2⁻⁶⁴.
    part: u64,
}

/// A golden section of 2⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Spread {
    /// Times from zero up to, but not including, this window. The first is zero.
    pub fn over(window: Duration) -> Self {
        Self { window: saturating_nanos(window), part: 0 }
    }

    /// The delay with the next time on top; [`Duration::MAX`] if that does not fit.
    pub fn after(&mut self, delay: Duration) -> Duration {
        delay.saturating_add(self.sample())
    }

    fn sample(&mut self) -> Duration {
        // Less than the window.
        let nanos = (u128::from(self.window) * u128::from(self.part)) >> 64;
        self.part = self.part.wrapping_add(GOLDEN);
        Duration::from_nanos(nanos as u64)
    }
}

impl Iterator for Spread {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.sample())
    }
}

/// Deadlines that others share, or do not.
impl<T: Send + 'static> Timers<T> {
    /// A deadline `delay` from now, or up to `slack` later where that lets timers share a tick: the
    /// roundest tick there is in between.
    ///
    /// A shard wakes for each tick that something is due in. Timers that share their slack, even
    /// those of different shards, are due in one tick out of about as many as the slack is long,
    /// instead of in one each. Never early, and never later than the slack allows. A slack that is
    /// shorter than a tick changes nothing; nor does any for what is never due.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService, Timers};
    /// # use std::time::Duration;
    /// # let service: TimerService<u64> = TimerService::builder().shards(1).start_attached()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
    /// # let timers = shard.timers();
    /// let keep_alive = Duration::from_secs(30);
    /// let deadline = timers.deadline_with_slack(keep_alive, Duration::from_secs(2));
    /// timers.schedule_to(deadline, 7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "slack")]
    #[inline]
    pub fn deadline_with_slack(&self, delay: Duration, slack: Duration) -> Deadline {
        let core = self.core();
        let now = core.nanos_near();
        let earliest = core.time().deadline_after(now, delay);
        Deadline(slacken(core.time(), earliest, nanos_after(now, delay), slack))
    }

    /// The same from a moment on.
    pub fn deadline_at_with_slack(&self, at: Instant, slack: Duration) -> Deadline {
        let core = self.core();
        let nanos = core.time().nanos_at(at);
        Deadline(slacken(core.time(), core.deadline_at(at), nanos, slack))
    }

    /// The deadline that comes `by` after another, rounded up to a tick. One that does not fit
    /// means never.
    ///
    /// It is counted from the beginning of the other's tick. That of a deadline without any delay
    /// began up to a tick ago; what is to come `by` from now is
    /// [`deadline_in(by)`](Self::deadline_in).
    #[inline]
    pub fn later(&self, deadline: Deadline, by: Duration) -> Deadline {
        let time = self.core().time();
        Deadline(time.ceil(nanos_after(time.start_of(deadline.0), by)))
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
    fn the_roundest_tick_is_the_one_that_a_search_finds() {
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
    fn jitter_is_never_negative_never_too_long_even_and_the_same_for_the_same_seed() {
        let longest = Duration::from_nanos(9);
        let mut seen = [0; 10];
        for time in Jitter::up_to(longest, 7).take(100_000) {
            seen[time.as_nanos() as usize] += 1;
        }
        assert!(seen.iter().all(|count| (9_000..11_000).contains(count)), "{seen:?}");
        let take = |seed| Jitter::up_to(Duration::from_secs(1), seed).take(100).collect::<Vec<_>>();
        assert_eq!(take(3), take(3));
        assert_ne!(take(3), take(4));
        assert!(Jitter::up_to(Duration::ZERO, 1).take(100).all(|time| time.is_zero()));
        let mut endless = Jitter::up_to(Duration::MAX, 1);
        assert_eq!(endless.after(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn a_spread_is_even_however_many_are_taken() {
        let window = Duration::from_secs(1);
        for count in [1_u128, 2, 3, 5, 10, 64, 100, 1_000, 4_181, 10_000] {
            let mut times: Vec<_> =
                Spread::over(window).take(count as usize).map(|time| time.as_nanos()).collect();
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
        assert!(Spread::over(Duration::ZERO).take(9).all(|time| time.is_zero()));
        assert!(Spread::over(Duration::MAX).take(9).is_sorted_by(|a, b| a != b));
        assert_eq!(Spread::over(window).skip(1).take(1).count(), 1);
    }
}
