//! A simple model of a measured transfer, and limits by chance.
//!
//! With the code it shares that the time of a number of bytes is rounded up to a nanosecond, which
//! is a promise. It adds up for how long a transfer has run, where the code moves its beginning by
//! each pause.

use corewheel::conn::DataRate;
use fastrand::Rng;

use super::model::NEVER;
use super::stamps::MS;
use super::{ConnLimits, Duration, NONE};

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

/// Limits by chance, most of them below 60 ticks or milliseconds.
pub(super) fn random_limits(rng: &mut Rng, tick: u64) -> ConnLimits {
    let unit = tick.max(MS);
    let mut limit = || match rng.u32(..3) {
        0 => Duration::ZERO,
        _ => Duration::from_nanos(rng.u64(1..unit * 60)),
    };
    let limits = ConnLimits {
        read_idle: limit(),
        write_idle: limit(),
        all_idle: limit(),
        heartbeat: limit(),
        request_idle: limit(),
        write_timeout: limit(),
        handshake: limit() * 3,
        max_age: limit() * 10,
        max_age_jitter: Duration::ZERO,
        max_age_grace: limit(),
        ..NONE
    };
    // A power of two, less one: its part is what the first bits of the connection's part say.
    let jitter = Duration::from_nanos((1 << rng.u32(..40)) - 1);
    let mut rate = || match rng.u32(..4) {
        0 => DataRate::OFF,
        _ => DataRate::new(rng.u64(1..3_000), Duration::from_nanos(rng.u64(..unit * 40))),
    };
    limits.min_read_rate(rate()).min_write_rate(rate()).max_age_jitter(jitter)
}
