//! The capacities of containers: checks of their limits and of the memory that they need.

use corewheel::ConfigError;
use corewheel_shard::ShardConfig;
use slab::Slab;

/// The capacity of a container whose caller sets none.
pub(crate) const CAPACITY: u32 = 1 << 16;
/// The largest capacity of any container.
const CAPACITY_MAX: u32 = ShardConfig::CAPACITY_MAX;

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

/// Makes a slab with room for `count` values. The memory is reserved and not written.
pub(crate) fn slab<V>(field: &'static str, count: usize) -> Result<Slab<V>, ConfigError> {
    // A slab has no fallible reserve, so a vector probes for the memory. A slab takes at most one
    // word more for each value.
    let mut probe = Vec::<(usize, V)>::new();
    probe.try_reserve_exact(count).map_err(|_| no_memory(field, count))?;
    // Without `black_box`, the compiler may remove the allocation.
    drop(std::hint::black_box(probe));
    Ok(Slab::with_capacity(count))
}
