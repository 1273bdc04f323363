//! The capacities of containers: a check of their limits, and the error of a want of memory.

use corewheel_shard::ShardConfig;

use crate::values::error::ConfigError;

/// The largest capacity of any container.
pub(crate) const CAPACITY_MAX: u32 = ShardConfig::CAPACITY_MAX;

/// Checks that a capacity is between 1 and [`CAPACITY_MAX`]. `field` is the name of the setting in
/// the error.
pub(crate) fn check(field: &'static str, count: u32) -> Result<usize, ConfigError> {
    if count == 0 || count > CAPACITY_MAX {
        let limit = format!("it must be between 1 and {CAPACITY_MAX}");
        return Err(ConfigError::new(field, count, limit, "65536 suits most servers"));
    }
    Ok(count as usize)
}

/// The error of a capacity for which there is no memory.
pub(crate) fn no_memory(field: &'static str, count: usize) -> ConfigError {
    ConfigError::new(field, count, "it must fit into memory", "set it lower")
}
