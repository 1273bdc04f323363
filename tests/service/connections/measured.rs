//! A simple model of a measured transfer, and limits by chance.
//!
//! With the code it shares that the time of a number of bytes is rounded up to a nanosecond, which
//! is a promise. It adds up for how long a transfer has run, where the code moves its beginning by
//! each pause.

use super::model::NEVER;
use super::*;

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

    pub(super) fn pause(&mut self, now: u64) {
        if !self.is_paused {
            (self.is_paused, self.ran, self.from) = (true, self.ran + now - self.from, now);
        }
    }

    pub(super) fn resume(&mut self, now: u64) {
        if self.is_paused {
            (self.is_paused, self.from) = (false, now);
        }
    }

    pub(super) fn due(&self) -> u64 {
        if self.is_paused || self.event_at.is_some() { NEVER } else { self.slow_at() }
    }
}

/// Limits by chance, most of them below 60 ticks or milliseconds.
pub(super) fn random_limits(rng: &mut Rng, unit: Duration) -> ConnLimits {
    let mut limit = |most: f64| match rng.u32(..3) {
        0 => Duration::ZERO,
        _ => unit.mul_f64(rng.f64() * most) + Duration::from_nanos(1),
    };
    let limits = ConnLimits {
        read_idle: limit(60.0),
        write_idle: limit(60.0),
        all_idle: limit(60.0),
        heartbeat: limit(60.0),
        request_idle: limit(60.0),
        write_timeout: limit(60.0),
        handshake: limit(180.0),
        max_age: limit(600.0),
        max_age_jitter: limit(300.0),
        max_age_grace: limit(60.0),
        max_age_least: limit(400.0),
        handshake_least: limit(100.0),
        read_idle_least: limit(40.0),
        write_idle_least: limit(40.0),
        all_idle_least: limit(40.0),
        ..NONE
    };
    let bytes_max = 10_000_000_000 / unit.as_nanos() as u64;
    let mut rate = || match rng.u32(..4) {
        0 => DataRate::OFF,
        _ => DataRate::new(rng.u64(1..=bytes_max), unit.mul_f64(rng.f64() * 40.0)),
    };
    limits.min_read_rate(rate()).min_write_rate(rate())
}
