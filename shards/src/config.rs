//! How a shard is to be made, and what is wrong with it if it cannot.

use core::fmt;

use crate::tick::Tick;

/// Which wheel a shard turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WheelKind {
    /// A first level of [`ShardConfig::slots`] and overflow levels above it. Right for nearly
    /// everything.
    #[default]
    Hierarchical,
    /// One level of [`ShardConfig::slots`]; what does not fit into a round waits for later rounds
    /// and is walked past in each. Right where nearly all delays are shorter than a round.
    Hashed,
}

/// How a [`Shard`](crate::Shard) is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardConfig {
    /// The most timers at once, granted keys included: 1 to 2³⁰. Room for them is reserved at once,
    /// 33 bytes each for an 8-byte task, and touched as it comes into use.
    pub capacity: u32,
    /// Which wheel.
    pub wheel: WheelKind,
    /// Slots of the first level, or of the only one: 2 to 65,536, rounded up to a power of two.
    pub slots: u32,
    /// Slots of each level above the first: 2 to 4,096, rounded up to a power of two.
    pub level_slots: u32,
    /// Where time begins.
    pub start: Tick,
}

impl ShardConfig {
    /// The most timers a shard can be made for.
    pub const CAPACITY_MAX: u32 = 1 << 30;
    /// The most slots of a first level.
    pub const SLOTS_MAX: u32 = 1 << 16;
    /// The most slots of a level above the first.
    pub const LEVEL_SLOTS_MAX: u32 = 1 << 12;

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is out of its limits.
    pub fn check(&self) -> Result<(), ConfigError> {
        in_range("capacity", self.capacity, 1, Self::CAPACITY_MAX)?;
        in_range("slots", self.slots, 2, Self::SLOTS_MAX)?;
        in_range("level_slots", self.level_slots, 2, Self::LEVEL_SLOTS_MAX)
    }
}

impl Default for ShardConfig {
    /// 2²⁰ timers, a hierarchical wheel with 256 slots on every level, time beginning at 0.
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            wheel: WheelKind::default(),
            slots: 256,
            level_slots: 256,
            start: Tick::ZERO,
        }
    }
}

fn in_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, value, min, max })
    }
}

/// Why a shard cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field of [`ShardConfig`] is out of its limits.
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it was set to.
        value: u32,
        /// The least it can be.
        min: u32,
        /// The most it can be.
        max: u32,
    },
    /// The allocator refused the room for `capacity` timers.
    OutOfMemory {
        /// What [`ShardConfig::capacity`] was set to.
        capacity: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, min, max } => {
                write!(f, "{field} is {value}; set it to between {min} and {max}")
            }
            Self::OutOfMemory { capacity } => {
                write!(f, "capacity is {capacity}, for which there is no memory; set it lower")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
