//! Moments as nanoseconds since an epoch: half as large as an `Instant`.

use std::time::{Duration, Instant};

/// The moment from which nanoseconds count.
#[derive(Clone, Copy)]
pub(crate) struct Epoch(pub(crate) Instant);

impl Epoch {
    /// Nanoseconds from the epoch to `at`; 0 for a moment before the epoch.
    #[inline]
    pub(crate) fn nanos(self, at: Instant) -> u64 {
        // `as_nanos` computes with 128 bits and takes three times as long.
        let since = at.saturating_duration_since(self.0);
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }

    /// The moment `nanos` after the epoch.
    #[inline]
    pub(crate) fn instant(self, nanos: u64) -> Instant {
        self.0 + Duration::from_nanos(nanos)
    }
}
