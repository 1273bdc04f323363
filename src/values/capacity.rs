//! How much something may hold: checked, and looked for in memory before it is taken.

use corewheel_shard::ShardConfig;
use slab::Slab;

use crate::values::error::ConfigError;

/// How much something holds where nobody says so.
pub(crate) const CAPACITY: u32 = 1 << 16;
/// The most of anything.
pub(crate) const CAPACITY_MAX: u32 = ShardConfig::CAPACITY_MAX;

/// Refuses what nothing can hold, by the name of the setting.
pub(crate) fn check(field: &'static str, count: u32) -> Result<usize, ConfigError> {
    if count == 0 || count > CAPACITY_MAX {
        let limit = format!("it must be between 1 and {CAPACITY_MAX}");
        return Err(ConfigError::new(field, count, limit, "65536 suits most servers"));
    }
    Ok(count as usize)
}

/// What is said where there is no memory for so many.
pub(crate) fn no_memory(field: &'static str, count: usize) -> ConfigError {
    ConfigError::new(field, count, "it must fit into memory", "set it lower")
}

/// A slab with room for so many, which is reserved and not touched.
pub(crate) fn slab<V>(field: &'static str, count: usize) -> Result<Slab<V>, ConfigError> {
    // A slab cannot be asked for as much as there is; it takes a word more for each at most.
    let mut probe = Vec::<(usize, V)>::new();
    probe.try_reserve_exact(count).map_err(|_| no_memory(field, count))?;
    // Room that nobody looks at may never be asked for.
    drop(std::hint::black_box(probe));
    Ok(Slab::with_capacity(count))
}
