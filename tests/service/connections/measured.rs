//! A simple model of a measured transfer.

use corewheel::conn::DataRate;

use super::model::NEVER;

/// A transfer that has not ended and has a rate.
pub(super) struct Measured {
    pub(super) number: u32,
    pub(super) rate: DataRate,
    /// Since when it runs, or ran before its pause.
    pub(super) from: u64,
    /// For how long it ran before.
    pub(super) ran: u64,
    pub(super) is_paused: bool,
    pub(super) bytes: u64,
    pub(super) event_at: Option<u64>,
}

impl Measured {
    /// When it is too slow, unless it is paused before.
    pub(super) fn slow_at(&self) -> u64 {
        let nanos = u128::from(self.bytes) * 1_000_000_000;
        let takes = nanos.div_ceil(u128::from(self.rate.bytes_per_second));
        let slow_at = u128::from(self.from) + takes.max(self.rate.grace.as_nanos());
        u64::try_from(slow_at - u128::from(self.ran)).unwrap_or(NEVER)
    }

    pub(super) fn due(&self) -> u64 {
        if self.is_paused || self.event_at.is_some() { NEVER } else { self.slow_at() }
    }
}
