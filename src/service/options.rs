//! The options of a builder, their defaults and their limits.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use corewheel_shard::{ShardConfig, Tick, TickLength, WheelKind};

use crate::clock::{Clock, saturating_nanos};
use crate::driver::host::Engine;
use crate::driver::runtime::Runtime;
use crate::service::cpus;
use crate::values::class::{Classes, label_limit};
use crate::values::error::ConfigError;
use crate::values::ids::ShardId;
use crate::values::settings::{Settings, TurnBudget, WarningLimits};
use crate::values::warning_limits::LANE_PERCENT;

/// The options that a builder collects.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) shards: Option<usize>,
    pub(crate) tick: Duration,
    pub(crate) wheel: WheelKind,
    pub(crate) slots: u32,
    pub(crate) capacity: u32,
    pub(crate) lane_capacity: usize,
    pub(crate) budget: TurnBudget,
    pub(crate) lateness_bound: Option<Duration>,
    pub(crate) overrun: Duration,
    pub(crate) warnings: WarningLimits,
    pub(crate) engine: Arc<dyn Engine>,
    /// Whether the threads of shards are pinned where that can be.
    pub(crate) pins: bool,
    pub(crate) name: String,
    pub(crate) classes: Classes,
    pub(crate) clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        let ShardConfig { wheel, slots, capacity, .. } = ShardConfig::default();
        Self {
            shards: None,
            tick: Duration::from_millis(1),
            wheel,
            slots,
            capacity,
            lane_capacity: 1_024,
            budget: TurnBudget::default(),
            lateness_bound: None,
            overrun: Duration::from_millis(1),
            warnings: WarningLimits::default(),
            engine: Arc::new(Runtime::default()),
            pins: true,
            name: "corewheel".to_owned(),
            classes: Classes::default(),
            clock: Clock::monotonic(),
        }
    }
}

const TICK_MIN: Duration = Duration::from_micros(100);
const TICK_MAX: Duration = Duration::from_secs(1);
const LANE_CAPACITY_MAX: usize = 1 << 20;
/// The part of a shard's capacity that one thread may hold in granted keys.
const GRANT_SHARE: usize = 32;

impl Options {
    pub(crate) fn check(&self, attached: bool) -> Result<Settings, ConfigError> {
        let shards = self.check_shards()?;
        self.check_range()?;
        self.classes.check()?;
        self.warnings.check()?;
        let shard = ShardConfig {
            capacity: self.capacity,
            wheel: self.wheel,
            slots: self.slots,
            start: Tick::ZERO,
            ..ShardConfig::default()
        };
        shard.check().map_err(from_shard)?;
        if self.clock.is_manual() && !attached {
            return Err(ConfigError::new(
                "clock",
                &self.clock,
                "a shard's own thread sleeps by the system's clock",
                "use start_attached and drive the shards in your own loop",
            ));
        }
        let tick_nanos = NonZeroU64::new(saturating_nanos(self.tick)).expect("the tick is checked");
        let capacity = self.capacity as usize;
        Ok(Settings {
            shards,
            tick: TickLength::from_nanos(tick_nanos),
            shard,
            lane_capacity: self.lane_capacity,
            grant_share: capacity / GRANT_SHARE,
            grant_window: (capacity / GRANT_SHARE).clamp(1, self.lane_capacity),
            budget: self.budget,
            lateness_bound: saturating_nanos(self.lateness_bound.unwrap_or(self.tick * 10)),
            overrun: self.overrun,
            warnings: self.warnings,
            lane_flood: self.lane_capacity as u64 * LANE_PERCENT / 100,
            name: self.name.clone(),
            is_runtime_chosen: attached || self.is_executor_known(),
            classes: self.classes.clone(),
            cpus: if attached {
                Vec::new()
            } else {
                self.place(shards, &cpus::allowed(), cpus::count())
            },
        })
    }

    /// The runtimes of which the first starts that gets what it needs.
    pub(crate) fn engines(&self) -> Vec<Arc<dyn Engine>> {
        let mut engines = vec![Arc::clone(&self.engine)];
        engines.extend(self.engine.alternatives());
        engines
    }

    /// Whether all runtimes that may start have an executor, or none has.
    fn is_executor_known(&self) -> bool {
        let engines = self.engines();
        engines.iter().all(|engine| engine.has_executor() == self.engine.has_executor())
    }

    fn check_shards(&self) -> Result<usize, ConfigError> {
        let shards = self.shards.unwrap_or_else(cpus::count);
        if shards == 0 || shards > ShardId::COUNT_MAX {
            let limit = format!("it must be between 1 and {}", ShardId::COUNT_MAX);
            return Err(ConfigError::new("shards", shards, limit, "use one for each core at most"));
        }
        Ok(shards)
    }

    fn check_range(&self) -> Result<(), ConfigError> {
        if !(TICK_MIN..=TICK_MAX).contains(&self.tick) {
            let limit = format!("it must be between {TICK_MIN:?} and {TICK_MAX:?}");
            return Err(ConfigError::new("tick", self.tick, limit, "1ms suits most servers"));
        }
        if self.lane_capacity == 0 || self.lane_capacity > LANE_CAPACITY_MAX {
            let limit = format!("it must be between 1 and {LANE_CAPACITY_MAX}");
            let remedy = "1024 suits most servers";
            return Err(ConfigError::new("lane_capacity", self.lane_capacity, limit, remedy));
        }
        let budgets = [
            ("budget.requests_max", self.budget.requests_max),
            ("budget.expired_max", self.budget.expired_max),
            ("budget.work_max", self.budget.work_max),
        ];
        for (field, value) in budgets {
            if value == 0 {
                let limit = "a turn that may do nothing never ends its work";
                return Err(ConfigError::new(field, value, limit, "use 1 or more"));
            }
        }
        if let Some(bound) = self.lateness_bound {
            if bound < self.tick {
                return Err(ConfigError::new(
                    "lateness_bound",
                    bound,
                    format!(
                        "a timer can be a tick late by rounding, and the tick is {:?}",
                        self.tick
                    ),
                    "use at least one tick",
                ));
            }
        }
        if self.overrun.is_zero() {
            let limit = "every callback takes some time";
            return Err(ConfigError::new("overrun", self.overrun, limit, "use 1us or more"));
        }
        if let Some(limit) = label_limit(&self.name) {
            return Err(ConfigError::new("name", &self.name, limit, "use a short word"));
        }
        Ok(())
    }

    /// The cpu of each shard's thread, of those that the process may use. `count` is how many it
    /// has time for.
    fn place(&self, shards: usize, allowed: &[usize], count: usize) -> Vec<Option<usize>> {
        // With a quota, the processes of a machine would all pin their threads to its first cpus.
        if !self.pins || allowed.is_empty() || count < allowed.len() {
            return vec![None; shards];
        }
        if shards > allowed.len() {
            tracing::warn!(
                name: "more-shards-than-cpus",
                target: "corewheel::service",
                shards,
                cpus = allowed.len(),
                "there are more shards than cpus that this process may use"
            );
        }
        allowed.iter().copied().cycle().take(shards).map(Some).collect()
    }
}

/// An error of the shard's configuration, in the builder's words.
fn from_shard(error: corewheel_shard::ConfigError) -> ConfigError {
    use corewheel_shard::ConfigError as Shard;
    match error {
        Shard::OutOfRange { field, value, min, max } => {
            let limit = format!("it must be between {min} and {max}");
            let remedy = if field == "slots" { "256 suits" } else { "1048576 suits" };
            ConfigError::new(field, value, limit, format!("{remedy} most servers"))
        }
        Shard::OutOfMemory { capacity } => {
            ConfigError::new("capacity", capacity, "it must fit into memory", "set it lower")
        }
        // It says all of it.
        error => ConfigError::new("capacity", error, "a shard cannot be made so", "change it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Options), field: &str) {
        let mut options = Options::default();
        change(&mut options);
        let error = options.check(false).expect_err("this setting is refused");
        assert_eq!(error.field(), field, "{error}");
    }

    #[test]
    fn bad_setting_is_refused_by_its_name() {
        check(|o| o.shards = Some(0), "shards");
        check(|o| o.shards = Some(100_000), "shards");
        check(|o| o.tick = Duration::ZERO, "tick");
        check(|o| o.tick = Duration::from_micros(99), "tick");
        check(|o| o.tick = Duration::from_secs(2), "tick");
        check(|o| o.slots = 0, "slots");
        check(|o| o.slots = 1 << 17, "slots");
        check(|o| o.capacity = 0, "capacity");
        check(|o| o.capacity = u32::MAX, "capacity");
        check(|o| o.lane_capacity = 0, "lane_capacity");
        check(|o| o.budget.requests_max = 0, "budget.requests_max");
        check(|o| o.budget.expired_max = 0, "budget.expired_max");
        check(|o| o.budget.work_max = 0, "budget.work_max");
        check(|o| o.lateness_bound = Some(Duration::from_micros(5)), "lateness_bound");
        check(|o| o.overrun = Duration::ZERO, "overrun");
        check(|o| o.name = String::new(), "name");
        check(|o| o.warnings.stuck = Duration::ZERO, "warning_limits.stuck");
        check(|o| o.clock = crate::clock::ManualClock::new().clock(), "clock");
    }

    #[test]
    fn defaults_are_accepted() {
        let settings = Options::default().check(false).unwrap();
        assert!(settings.shards >= 1);
        assert_eq!(settings.cpus.len(), settings.shards);
        assert_eq!(settings.tick.nanos(), 1_000_000);
    }

    #[test]
    fn threads_are_pinned_to_the_cpus_of_the_set_but_not_with_a_quota_of_them() {
        let place = |shards, count| Options::default().place(shards, &[1, 3, 64], count);
        assert_eq!(place(2, 3), [Some(1), Some(3)]);
        assert_eq!(place(4, 3), [Some(1), Some(3), Some(64), Some(1)]);
        assert_eq!(place(2, 2), [None, None]);
        // A build that cannot pin threads knows no cpus.
        assert_eq!(Options::default().place(2, &[], 1), [None, None]);
        let unpinned = Options { pins: false, ..Options::default() };
        assert_eq!(unpinned.place(2, &[1, 3], 2), [None, None]);
    }

    #[test]
    fn client_of_small_shard_is_granted_one_key() {
        let options = Options { capacity: 4, ..Options::default() };
        assert_eq!(options.check(false).unwrap().grant_window, 1);
    }
}
