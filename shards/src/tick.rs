//! Time as a count of ticks, and the two roundings between ticks and durations.
//!
//! A tick is an index, not a duration: tick `n` begins `n` tick lengths after the epoch that the
//! caller chose. Rounding always has a name. A point in time that has been reached is rounded
//! down ([`TickLength::floor`]), a point in time that must not be anticipated is rounded up
//! ([`TickLength::ceil`]); with both, a timer that is due by tick count is due by the clock.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// A point in time, counted in ticks from the epoch of whoever drives the shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u64);

impl Tick {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// The last tick. A deadline beyond it means "never" and is taken as this one.
    ///
    /// Two values above it are kept for the states of a slot that holds no timer.
    pub const NEVER: Self = Self(u64::MAX - 2);

    /// The tick with this index. Indices above [`Tick::NEVER`] become [`Tick::NEVER`].
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

    /// How many ticks lie between `earlier` and this one; 0 if `earlier` is not earlier.
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

/// How long one tick lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TickLength {
    nanos: NonZeroU64,
    /// `2^64 / nanos`, rounded down: a multiplication takes a fraction of a division, and each
    /// command has one.
    inverse: u64,
}

impl TickLength {
    /// A tick length of this many nanoseconds.
    pub const fn from_nanos(nanos: NonZeroU64) -> Self {
        // For 1, which does not fit, one less: the remainder makes up for it.
        let inverse = (1_u128 << 64) / nanos.get() as u128;
        Self { nanos, inverse: if nanos.get() == 1 { u64::MAX } else { inverse as u64 } }
    }

    /// The length of one tick in nanoseconds.
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.nanos.get()
    }

    /// The length of one tick.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos.get())
    }

    /// The last tick that has begun when `nanos` nanoseconds have passed since the epoch.
    #[inline]
    pub const fn floor(self, nanos: u64) -> Tick {
        Tick::new(self.divide(nanos).0)
    }

    /// The first tick that does not begin before `nanos` nanoseconds after the epoch.
    ///
    /// `u64::MAX` stands for a point in time that does not fit (584 years) and becomes
    /// [`Tick::NEVER`].
    #[inline]
    pub const fn ceil(self, nanos: u64) -> Tick {
        if nanos == u64::MAX {
            return Tick::NEVER;
        }
        let (ticks, rest) = self.divide(nanos);
        Tick::new(ticks + (rest != 0) as u64)
    }

    /// Whole ticks, and nanoseconds that are left.
    #[inline]
    const fn divide(self, nanos: u64) -> (u64, u64) {
        // The inverse is too small by less than 1, so that this is too small by 1 at most.
        let ticks = ((nanos as u128 * self.inverse as u128) >> 64) as u64;
        let rest = nanos - ticks * self.nanos.get();
        if rest < self.nanos.get() { (ticks, rest) } else { (ticks + 1, rest - self.nanos.get()) }
    }

    /// When `tick` begins, in nanoseconds after the epoch; `u64::MAX` if that does not fit.
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
    fn a_deadline_is_rounded_up_and_the_clock_down() {
        let ms = length(1_000_000);
        assert_eq!(ms.floor(999_999), Tick::ZERO);
        assert_eq!(ms.floor(1_000_000), Tick::new(1));
        assert_eq!(ms.ceil(0), Tick::ZERO);
        assert_eq!(ms.ceil(1), Tick::new(1));
        assert_eq!(ms.ceil(1_000_000), Tick::new(1));
        assert_eq!(ms.ceil(1_000_001), Tick::new(2));
    }

    #[test]
    fn a_timer_that_is_due_by_ticks_is_due_by_the_clock() {
        for len in [1, 3, 7, 100_000, 1_000_000, 1_000_000_000] {
            let length = length(len);
            for deadline in [0, 1, len - 1, len, len + 1, 10 * len + len / 2] {
                let tick = length.ceil(deadline);
                for before in [1, 2, len / 2, len - 1, len, len + 1].into_iter().filter(|b| *b > 0)
                {
                    let Some(now) = deadline.checked_sub(before) else { continue };
                    assert!(tick > length.floor(now), "early: {deadline} at {now} by {len}");
                }
                assert!(tick <= length.floor(deadline + len), "late: {deadline} by {len}");
            }
        }
    }

    #[test]
    fn nanoseconds_are_divided_as_by_a_division() {
        let edges = [1, 2, 3, 7, 99_999, 100_000, 1_000_000, 1 << 32, (1 << 32) + 1, u64::MAX];
        for by in edges {
            for of in edges.iter().flat_map(|edge| edge.saturating_sub(2)..=edge.saturating_add(2))
            {
                for of in [of, of.wrapping_mul(by), of.wrapping_mul(by).wrapping_sub(1)] {
                    assert_eq!(length(by).divide(of), (of / by, of % by), "{of} by {by}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_never() {
        assert_eq!(Tick::new(u64::MAX), Tick::NEVER);
        assert_eq!(length(1).ceil(u64::MAX), Tick::NEVER);
        assert_eq!(length(1_000).ceil(u64::MAX), Tick::NEVER);
        assert_eq!(Tick::NEVER.saturating_add(1), Tick::NEVER);
        assert_eq!(length(1_000).start_of(Tick::NEVER), u64::MAX);
    }
}
