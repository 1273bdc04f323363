//! The thresholds of the warnings of a service.

use std::time::Duration;

use super::error::ConfigError;

/// From when on a service warns: the thresholds of the [warnings](crate::stats::WarningKind).
///
/// Of the other warnings, `handler-slow` has the builder's
/// [`overrun`](crate::TimerServiceBuilder::overrun) for its threshold, and `shard-dead` needs none.
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
    /// `executor-stalled`: a turn began later than it was due by more than this; 50 ms by default.
    pub executor_stall: Duration,
    /// `budget-exhausted`: so many turns in a row used their budget for expired timers up; 10 by
    /// default.
    pub exhausted_turns: u32,
    /// `lane-flooded`: a turn left a lane filled by more than this part of its capacity, in per
    /// cent; 50 by default.
    pub lane_percent: u8,
    /// `host-overcommitted`: the shard's thread was ready and waited for a processor for more than
    /// this part of the time, in per cent; 20 by default.
    pub host_wait_percent: u8,
    /// `shard-stuck`: a turn has been due, or has been running, for longer than this; 1 s by
    /// default.
    pub stuck: Duration,
    /// From when on the watchdog of the package `corewheel-stats` calls a shard hung that is
    /// stuck; 10 s by default.
    pub hung: Duration,
    /// `shard-near-capacity`: more than this part of the shard's capacity is pending, in per cent;
    /// 90 by default.
    pub capacity_percent: u8,
    /// `class-leaks`: the oldest timer of a class is older than this; 24 h by default.
    pub class_age: Duration,
}

impl Default for WarningLimits {
    fn default() -> Self {
        Self {
            executor_stall: Duration::from_millis(50),
            exhausted_turns: 10,
            lane_percent: 50,
            host_wait_percent: 20,
            stuck: Duration::from_secs(1),
            hung: Duration::from_secs(10),
            capacity_percent: 90,
            class_age: Duration::from_secs(86_400),
        }
    }
}

impl WarningLimits {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let percents = [
            ("warning_limits.lane_percent", self.lane_percent),
            ("warning_limits.host_wait_percent", self.host_wait_percent),
            ("warning_limits.capacity_percent", self.capacity_percent),
        ];
        for (field, value) in percents {
            if !(1..=100).contains(&value) {
                let limit = "it must be between 1 and 100";
                return Err(ConfigError::new(field, value, limit, "use 100 for nearly never"));
            }
        }
        let durations = [
            ("warning_limits.executor_stall", self.executor_stall),
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
        if self.exhausted_turns == 0 {
            let (field, limit) = ("warning_limits.exhausted_turns", "a row has at least one turn");
            return Err(ConfigError::new(field, 0, limit, "10 suits most servers"));
        }
        Ok(())
    }
}
