//! Time as a count of ticks, and the conversions between ticks and nanoseconds.
//!
//! A tick is an index, not a duration: tick `n` begins `n` tick lengths after an epoch that the
//! caller chooses. Each rounding has a name: the caller rounds the current time down
//! ([`TickLength::floor`]) and a deadline up ([`TickLength::ceil`]), so that no timer fires early.

use core::fmt;
use core::num::NonZeroU64;

/// A point in time, counted in ticks from the epoch that the caller chooses.
///
/// [`TickLength`] converts between ticks and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u64);

impl Tick {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// The last tick. A deadline at or beyond it means "never".
    ///
    /// The slab uses the two values above it for slots that hold no timer.
    pub const NEVER: Self = Self(u64::MAX - 2);

    /// The tick with this index, at most [`Tick::NEVER`].
    #[inline]
    pub const fn new(index: u64) -> Self {
        if index > Self::NEVER.0 { Self::NEVER } else { Self(index) }
    }

    /// The index of this tick.
    #[inline]
    pub const fn index(self) -> u64 {
        self.0
    }

    /// The tick that comes `ticks` later, at most [`Tick::NEVER`].
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, ticks: u64) -> Self {
        Self::new(self.0.saturating_add(ticks))
    }

    /// How many ticks this tick is after `earlier`; 0 if `earlier` is not earlier.
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            f.write_str("Tick(never)")
        } else {
            write!(f, "Tick({})", self.0)
        }
    }
}

/// The length of one tick; converts nanoseconds since an epoch to ticks and back.
///
/// The two conversions to ticks differ in their rounding. Round the current time down with
/// [`floor`](Self::floor) before [`Shard::advance`], and a deadline up with [`ceil`](Self::ceil)
/// before [`Shard::schedule`]. Then a timer is never handed out before its deadline in nanoseconds,
/// and is due less than one tick length after it. [`start_of`](Self::start_of) converts
/// [`Shard::next_deadline`] back to nanoseconds, for the timeout of `poll`.
///
/// A conversion takes a multiplication and no division.
///
/// ```
/// use std::num::NonZeroU64;
///
/// use corewheel_shard::{Budget, Shard, ShardConfig, Tick, TickLength};
///
/// let millisecond = TickLength::from_nanos(NonZeroU64::new(1_000_000).unwrap());
/// let mut shard = Shard::new(ShardConfig::default())?;
///
/// // A deadline of 2.5 ms is rounded up to tick 3.
/// let deadline = millisecond.ceil(2_500_000);
/// assert_eq!(deadline, Tick::new(3));
/// shard.schedule(deadline, "timeout")?;
///
/// // A current time of 2.9 ms is rounded down to tick 2, at which the timer is not due.
/// let now = millisecond.floor(2_900_000);
/// assert_eq!(now, Tick::new(2));
/// shard.advance(now, Budget::default());
/// assert!(shard.pop_expired().is_none());
///
/// // The timer is due from 3 ms on.
/// assert_eq!(millisecond.start_of(deadline), 3_000_000);
/// shard.advance(millisecond.floor(3_000_000), Budget::default());
/// assert_eq!(shard.pop_expired().unwrap().payload, "timeout");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Shard::advance`]: crate::Shard::advance
/// [`Shard::schedule`]: crate::Shard::schedule
/// [`Shard::next_deadline`]: crate::Shard::next_deadline
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TickLength {
    nanos: NonZeroU64,
    /// `2^64 / nanos`, rounded down, and `u64::MAX` for a length of 1. A multiplication takes a
    /// fraction of the time of a division, and each command has one.
    inverse: u64,
}

impl TickLength {
    /// A tick length of this many nanoseconds.
    pub const fn from_nanos(nanos: NonZeroU64) -> Self {
        // 2^64 / 1 does not fit; `divide` corrects the result of an inverse that is too small by 1.
        let inverse = (1_u128 << 64) / nanos.get() as u128;
        Self { nanos, inverse: if nanos.get() == 1 { u64::MAX } else { inverse as u64 } }
    }

    /// The length of one tick in nanoseconds.
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.nanos.get()
    }

    /// Rounds down: the tick that has begun and not ended `nanos` nanoseconds after the epoch.
    ///
    /// For the current time.
    #[inline]
    pub const fn floor(self, nanos: u64) -> Tick {
        Tick::new(self.divide(nanos))
    }

    /// Rounds up: the first tick that begins `nanos` nanoseconds after the epoch or later.
    ///
    /// For a deadline. `u64::MAX` stands for a point in time that does not fit into 64 bits (584
    /// years) and becomes [`Tick::NEVER`], as do points in time less than a tick length before it.
    #[inline]
    pub const fn ceil(self, nanos: u64) -> Tick {
        // The time that is rounded up, rounded down.
        match nanos.checked_add(self.nanos.get() - 1) {
            Some(nanos) => Tick::new(self.divide(nanos)),
            None => Tick::NEVER,
        }
    }

    /// `nanos` by the tick length, rounded down.
    #[inline]
    const fn divide(self, nanos: u64) -> u64 {
        // The inverse is too small by at most 1, so this quotient is too small by at most 1.
        let ticks = ((nanos as u128 * self.inverse as u128) >> 64) as u64;
        let rest = nanos - ticks * self.nanos.get();
        ticks + (rest >= self.nanos.get()) as u64
    }

    /// When `tick` begins, in nanoseconds after the epoch; `u64::MAX` if that does not fit into 64
    /// bits.
    #[inline]
    pub const fn start_of(self, tick: Tick) -> u64 {
        tick.0.saturating_mul(self.nanos.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(nanos: u64) -> TickLength {
        TickLength::from_nanos(NonZeroU64::new(nanos).unwrap())
    }

    #[test]
    fn ceil_rounds_up_and_floor_rounds_down() {
        let ms = length(1_000_000);
        assert_eq!(ms.floor(999_999), Tick::ZERO);
        assert_eq!(ms.floor(1_000_000), Tick::new(1));
        assert_eq!(ms.ceil(0), Tick::ZERO);
        assert_eq!(ms.ceil(1), Tick::new(1));
        assert_eq!(ms.ceil(1_000_000), Tick::new(1));
        assert_eq!(ms.ceil(1_000_001), Tick::new(2));
    }

    #[test]
    fn ceil_of_deadline_is_never_early_and_at_most_one_tick_late() {
        for len in [1, 3, 7, 100_000, 1_000_000, 1_000_000_000] {
            let length = length(len);
            for deadline in [0, 1, len - 1, len, len + 1, 10 * len + len / 2] {
                let tick = length.ceil(deadline);
                for before in [1, 2, len / 2, len - 1, len, len + 1].into_iter().filter(|b| *b > 0)
                {
                    let Some(now) = deadline.checked_sub(before) else { continue };
                    assert!(
                        tick > length.floor(now),
                        "{deadline} ns is due at {now} ns with ticks of {len} ns"
                    );
                }
                assert!(
                    tick <= length.floor(deadline + len),
                    "{deadline} ns is due late with ticks of {len} ns"
                );
            }
        }
    }

    #[test]
    fn divide_by_inverse_equals_division() {
        let edges = [1, 2, 3, 7, 99_999, 100_000, 1_000_000, 1 << 32, (1 << 32) + 1, u64::MAX];
        for by in edges {
            for of in edges.iter().flat_map(|edge| edge.saturating_sub(2)..=edge.saturating_add(2))
            {
                for of in [of, of.wrapping_mul(by), of.wrapping_mul(by).wrapping_sub(1)] {
                    assert_eq!(length(by).divide(of), of / by, "{of} divided by {by}");
                    let rounded_up = Tick::new(of.div_ceil(by));
                    let fits = of <= u64::MAX - (by - 1);
                    let expected = if fits { rounded_up } else { Tick::NEVER };
                    assert_eq!(length(by).ceil(of), expected, "{of} divided by {by}, rounded up");
                }
            }
        }
    }

    #[test]
    fn values_beyond_the_last_tick_become_never() {
        assert_eq!(Tick::new(u64::MAX), Tick::NEVER);
        assert_eq!(length(1).ceil(u64::MAX), Tick::NEVER);
        assert_eq!(length(1_000).ceil(u64::MAX), Tick::NEVER);
        assert_eq!(Tick::NEVER.saturating_add(1), Tick::NEVER);
        assert_eq!(length(1_000).start_of(Tick::NEVER), u64::MAX);
    }
}
