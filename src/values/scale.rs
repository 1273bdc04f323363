//! How far the timeouts of a shard are from their minimum to their maximum.

use std::fmt;
use std::time::Duration;

use crate::values::error::ConfigError;

/// How long the limits of a shard's connections last, and timeouts between a minimum and a maximum:
/// a number from 0 to 1.
///
/// At 1, where every shard begins, they last for their maximum; at 0 for their minimum.
/// [`Part::scale_changed`](crate::part::Part::scale_changed) tells a structure of your own.
///
/// ```
/// use corewheel::settings::Scale;
///
/// // Three quarters of the memory are in use; from a half on, timeouts shrink.
/// let in_use = 0.75_f64;
/// let scale = Scale::new((2.0 * (1.0 - in_use)).clamp(0.0, 1.0))?;
/// assert_eq!(scale.get(), 0.5);
/// # Ok::<(), corewheel::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Scale(f64);

/// It is never `NaN`.
impl Eq for Scale {}

impl Scale {
    /// Timeouts last for their minimum.
    pub const ZERO: Self = Self(0.0);
    /// Timeouts last for their maximum.
    pub const ONE: Self = Self(1.0);

    /// A scale between 0 and 1.
    ///
    /// # Errors
    ///
    /// `factor` is not a number, less than 0 or more than 1.
    pub fn new(factor: f64) -> Result<Self, ConfigError> {
        if (0.0..=1.0).contains(&factor) {
            // -0.0 becomes 0.0, so that equal scales have equal bits.
            return Ok(Self(factor.abs()));
        }
        let limit = "it must be between 0, for the minimum, and 1, for the maximum";
        Err(ConfigError::new("scale", factor, limit, "clamp it to 0.0..=1.0"))
    }

    /// The number, from 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }

    /// How long a timeout from `min` to `max` lasts: `min + (max - min) × scale`, rounded to a
    /// nanosecond. A `max` that is less than `min` counts as `min`, and a time that does not fit
    /// (584 years) as that long.
    ///
    /// ```
    /// use corewheel::settings::Scale;
    /// use std::time::Duration;
    ///
    /// let [min, max] = [5, 60].map(Duration::from_secs);
    /// assert_eq!(Scale::new(0.25)?.between(min, max), Duration::from_millis(18_750));
    /// assert_eq!(Scale::ZERO.between(min, max), min);
    /// # Ok::<(), corewheel::ConfigError>(())
    /// ```
    pub fn between(self, min: Duration, max: Duration) -> Duration {
        let [min, max] = [min, max].map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        Duration::from_nanos(min + self.of(max.saturating_sub(min)))
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// The scale that [`to_bits`](Self::to_bits) has been given.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(f64::from_bits(bits))
    }

    /// This part of `whole`, rounded to the nearest integer. Exact for 0 and 1, and monotonic.
    pub(crate) fn of(self, whole: u64) -> u64 {
        // The bits of precision of an `f64`.
        const BITS: u32 = f64::MANTISSA_DIGITS;
        #[allow(clippy::cast_sign_loss, reason = "it is not negative")]
        let part = (self.0 * f64::from(BITS).exp2()).round() as u64;
        ((u128::from(whole) * u128::from(part) + (1 << (BITS - 1))) >> BITS) as u64
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Debug for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scale({})", self.0)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_integer_is_exact_at_both_ends_and_rounded_between_them() {
        for whole in [0, 1, 7, 1_000_000, u64::MAX] {
            assert_eq!(Scale::ZERO.of(whole), 0);
            assert_eq!(Scale::ONE.of(whole), whole);
        }
        let half = Scale::new(0.5).unwrap();
        assert_eq!((half.of(7), half.of(8), half.of(u64::MAX)), (4, 4, 1 << 63));
        assert_eq!(Scale::new(0.1).unwrap().of(3_600_000_000_000), 360_000_000_000);
        assert_eq!(Scale::new(1e-12).unwrap().of(1_000), 0, "it is rounded to zero");
        let mut before = 0;
        for n in 0..=1_000 {
            let part = Scale::new(f64::from(n) / 1_000.0).unwrap().of(1_000_003);
            assert!(part >= before && part <= 1_000_003, "{n}");
            before = part;
        }
    }

    #[test]
    fn number_outside_0_to_1_is_refused_by_field() {
        for factor in [-0.1, 1.000_001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = Scale::new(factor).unwrap_err();
            assert_eq!(error.field(), "scale");
            assert!(error.to_string().contains(&format!("{factor:?}")), "{error}");
        }
        assert_eq!(Scale::new(-0.0).unwrap().get().to_bits(), 0);
    }
}
