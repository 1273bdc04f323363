//! The instants of the drop-in for `tokio::time`.
//!
//! Why not tokio's `Instant`: where another package turns on tokio's feature `test-util`, its `now`
//! may show a paused clock, which sleeps follow only with this crate's feature `test-util`. Why not
//! that of `std`: a program that calls `into_std` or `from_std` would not compile.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{self, Duration};

/// A moment of the system's monotonic clock, with the methods of `tokio::time::Instant`.
///
/// It converts by [`From`] to and from `tokio::time::Instant` and [`std::time::Instant`], which
/// every method of this crate that takes a [`When`](crate::When) accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    std: time::Instant,
}

/// The present moment.
pub(super) fn present() -> Instant {
    Instant::from_std(crate::fallback::now())
}

impl Instant {
    /// The present moment, by the system's clock. With the feature `test-util`, by the clock of the
    /// tokio runtime that the calling thread is in, which [a test may
    /// pause](super#tests-with-paused-time).
    #[must_use]
    pub fn now() -> Self {
        present()
    }

    /// The moment of an instant of the standard library.
    #[must_use]
    pub fn from_std(std: time::Instant) -> Self {
        Self { std }
    }

    /// The instant of the standard library.
    #[must_use]
    pub fn into_std(self) -> time::Instant {
        self.std
    }

    /// The time from an earlier moment to this one; zero if that moment is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.std.saturating_duration_since(earlier.std)
    }

    /// The time from an earlier moment to this one; `None` if that moment is later.
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.std.checked_duration_since(earlier.std)
    }

    /// The time from an earlier moment to this one; zero if that moment is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.std.saturating_duration_since(earlier.std)
    }

    /// The time from this moment to the present; zero if this moment is in the future.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        present().saturating_duration_since(*self)
    }

    /// The moment `duration` later; `None` if the system cannot represent it.
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.std.checked_add(duration).map(Self::from_std)
    }

    /// The moment `duration` earlier; `None` if the system cannot represent it.
    #[must_use]
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.std.checked_sub(duration).map(Self::from_std)
    }
}

impl From<time::Instant> for Instant {
    fn from(std: time::Instant) -> Self {
        Self { std }
    }
}

impl From<Instant> for time::Instant {
    fn from(instant: Instant) -> Self {
        instant.std
    }
}

impl From<tokio::time::Instant> for Instant {
    fn from(instant: tokio::time::Instant) -> Self {
        Self::from_std(instant.into_std())
    }
}

impl From<Instant> for tokio::time::Instant {
    fn from(instant: Instant) -> Self {
        Self::from_std(instant.std)
    }
}

/// Panics if the system cannot represent the sum.
impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self::from_std(self.std + duration)
    }
}

/// Panics if the system cannot represent the sum.
impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.std += duration;
    }
}

/// The time between two moments; zero if the second is later.
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// Panics if the system cannot represent the difference.
impl Sub<Duration> for Instant {
    type Output = Self;

    #[allow(clippy::unchecked_time_subtraction, reason = "it panics as that of tokio does")]
    fn sub(self, duration: Duration) -> Self {
        Self::from_std(self.std - duration)
    }
}

/// Panics if the system cannot represent the difference.
impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        self.std -= duration;
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.std.fmt(f)
    }
}
