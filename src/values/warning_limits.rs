//! The thresholds of the warnings of a service.

use std::time::Duration;

use super::error::ConfigError;

/// `executor-stalled`: a turn began later than it was due by more than this.
pub(crate) const EXECUTOR_STALL: Duration = Duration::from_millis(50);

/// `budget-exhausted`: so many turns in a row used their budget for expired timers up.
pub(crate) const EXHAUSTED_TURNS: u64 = 10;

/// `lane-flooded`: a turn left a lane filled by more than this part of its capacity, in per cent.
pub(crate) const LANE_PERCENT: u64 = 50;

/// `host-overcommitted`: the shard's thread was ready and waited for a processor for more than this
/// part of the time, in per cent.
pub(crate) const HOST_WAIT_PERCENT: u64 = 20;

/// `shard-near-capacity`: more than this part of the shard's capacity is pending, in per cent.
pub(crate) const CAPACITY_PERCENT: u128 = 90;

/// From when on a service warns: the thresholds of some [warnings](crate::stats::WarningKind).
///
/// Of the other warnings, `handler-slow` has the builder's
/// [`overrun`](crate::TimerServiceBuilder::overrun) for its threshold, `shard-dead` needs none, and
/// the table of the warnings has those that are fixed.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::settings::WarningLimits;
/// use std::time::Duration;
///
/// let limits = WarningLimits { stuck: Duration::from_millis(300), ..WarningLimits::default() };
/// let service = TimerService::builder().shards(1).warning_limits(limits).start()?;
/// assert!(service.stats().warnings.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WarningLimits {
    /// `shard-stuck`: a turn has been due, or has been running, for longer than this; 1 s by
    /// default.
    pub stuck: Duration,
    /// From when on the watchdog of the package `corewheel-stats` calls a shard hung that is
    /// stuck; 10 s by default.
    pub hung: Duration,
    /// `class-leaks`: the oldest timer of a class is older than this; 24 h by default.
    pub class_age: Duration,
}

impl Default for WarningLimits {
    fn default() -> Self {
        Self {
            stuck: Duration::from_secs(1),
            hung: Duration::from_secs(10),
            class_age: Duration::from_secs(86_400),
        }
    }
}

impl WarningLimits {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let durations = [
            ("warning_limits.stuck", self.stuck),
            ("warning_limits.hung", self.hung),
            ("warning_limits.class_age", self.class_age),
        ];
        for (field, value) in durations {
            if value.is_zero() {
                let limit = "a limit of zero warns always";
                return Err(ConfigError::new(field, value, limit, "use 10ms or more"));
            }
        }
        Ok(())
    }
}
