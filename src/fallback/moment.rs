//! An instant in 8 bytes, for futures that say their deadline but are seldom asked for it.

use std::time::{Duration, Instant};

use crate::clock::{Clock, first_epoch, instant_after, saturating_nanos};

/// An instant, as nanoseconds since the [`first_epoch`]. Most deadlines are never asked for as an
/// [`Instant`], which is computed only then, and without the clock.
/// One that is more than 292 years away is taken for the furthest that fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(i64);

impl Moment {
    /// The moment this many nanoseconds after the epoch of `clock`.
    #[inline]
    pub(crate) fn by(clock: &Clock, nanos: u64) -> Self {
        Self(at_most_max(nanos.saturating_add(clock.since_first)))
    }

    #[inline]
    pub(crate) fn of(instant: Instant) -> Self {
        let first = first_epoch();
        let nanos = |duration| at_most_max(saturating_nanos(duration));
        Self(match instant.checked_duration_since(first) {
            Some(after) => nanos(after),
            None => -nanos(first.duration_since(instant)),
        })
    }

    /// Whether it stands for the furthest that fits, so that it may be later.
    pub(crate) fn is_furthest(self) -> bool {
        self.0 == i64::MAX
    }

    pub(crate) fn instant(self) -> Instant {
        let (first, nanos) = (first_epoch(), self.0.unsigned_abs());
        if self.0 >= 0 {
            return instant_after(first, nanos);
        }
        first.checked_sub(Duration::from_nanos(nanos)).unwrap_or(first)
    }
}

fn at_most_max(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::nanos_after;

    #[test]
    fn moment_is_the_instant_of_which_it_was_made() {
        let clock = Clock::monotonic();
        let [hour, never] = [Duration::from_secs(3_600), Duration::MAX];
        let now = clock.now();
        let before = now.checked_sub(hour).unwrap_or(now);
        for instant in [now, now + hour, before, first_epoch(), clock.instant(3)] {
            assert_eq!(Moment::of(instant).instant(), instant);
        }
        assert_eq!(Moment::by(&clock, 3).instant(), clock.instant(3));
        assert!(Moment::by(&clock, nanos_after(0, never)).instant() > now + 1_000 * hour);
    }
}
