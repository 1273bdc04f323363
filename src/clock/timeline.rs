//! The conversions between ticks, nanoseconds and instants of one service.
//!
//! Only this module rounds: the present is rounded down to a tick, and a deadline is rounded up, so
//! no timer is early. A delay of zero and an instant that has passed give a tick that has begun, so
//! such a timer fires in the next turn. A delay that does not fit (584 years) gives
//! [`Tick::NEVER`].
//!
//! Cost: a multiplication for each conversion. Only [`Timeline::nanos`] and [`Timeline::now`] read
//! a clock.

use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TickLength};

use super::{Clock, nanos_after};

/// The clock of a service and the length of its ticks. Nanoseconds count from the clock's epoch.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    clock: Clock,
    tick: TickLength,
}

impl Timeline {
    pub(crate) fn new(clock: Clock, tick: TickLength) -> Self {
        Self { clock, tick }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The length of a tick.
    pub(crate) fn tick(&self) -> TickLength {
        self.tick
    }

    /// The present, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.nanos()
    }

    /// The present.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The tick that has begun at `nanos`.
    #[inline]
    pub(crate) fn floor(&self, nanos: u64) -> Tick {
        self.tick.floor(nanos)
    }

    /// The first tick that does not begin before `nanos`.
    #[inline]
    pub(crate) fn ceil(&self, nanos: u64) -> Tick {
        self.tick.ceil(nanos)
    }

    /// When the first tick begins that does not begin before `nanos`; `u64::MAX` if that does not
    /// fit.
    #[inline]
    pub(crate) fn round_up(&self, nanos: u64) -> u64 {
        self.start_of(self.ceil(nanos))
    }

    /// The deadline that is `delay` after `now`. A delay of zero gives the tick that has begun.
    #[inline]
    pub(crate) fn deadline_after(&self, now: u64, delay: Duration) -> Tick {
        if delay.is_zero() {
            return self.tick.floor(now);
        }
        self.tick.ceil(nanos_after(now, delay))
    }

    /// The deadline of a timer that is due at an instant.
    #[inline]
    pub(crate) fn deadline_at(&self, at: Instant) -> Tick {
        self.tick.ceil(self.nanos_at(at))
    }

    /// Nanoseconds from the epoch to an instant; 0 for an instant before the epoch.
    #[inline]
    pub(crate) fn nanos_at(&self, at: Instant) -> u64 {
        self.clock.nanos_at(at)
    }

    /// When a tick begins, in nanoseconds; `u64::MAX` if that does not fit.
    #[inline]
    pub(crate) fn start_of(&self, tick: Tick) -> u64 {
        self.tick.start_of(tick)
    }

    /// When a tick begins.
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        self.clock.instant(self.tick.start_of(tick))
    }

    /// The instant `nanos` nanoseconds after the epoch.
    pub(crate) fn instant_of(&self, nanos: u64) -> Instant {
        self.clock.instant(nanos)
    }

    /// The time from `now` to a deadline; zero if the deadline has passed.
    #[inline]
    pub(crate) fn remaining(&self, deadline: Tick, now: u64) -> Duration {
        Duration::from_nanos(self.tick.start_of(deadline).saturating_sub(now))
    }
}
