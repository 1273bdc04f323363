//! The configuration of a shard, and the error for a configuration that cannot be used.

use core::fmt;

use crate::tick::Tick;

/// The kind of wheel that a shard uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WheelKind {
    /// A first level of [`ShardConfig::slots`] and overflow levels above it. Suits nearly every
    /// workload.
    #[default]
    Hierarchical,
    /// One level of [`ShardConfig::slots`]. A timer whose delay is longer than a round is looked at
    /// again in each round until its deadline. Suits workloads in which nearly all delays are
    /// shorter than a round.
    Hashed,
}

/// The configuration of a [`Shard`](crate::Shard).
///
/// ```
/// use corewheel_shard::{Shard, ShardConfig, Tick};
///
/// let config = ShardConfig { capacity: 1_000, start: Tick::new(40), ..ShardConfig::default() };
/// let shard = Shard::<u32>::new(config)?;
/// assert_eq!((shard.capacity(), shard.now()), (1_000, Tick::new(40)));
/// # Ok::<(), corewheel_shard::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardConfig {
    /// The most timers at once, granted keys included: 1 to 2³⁰. [`Shard::new`](crate::Shard::new)
    /// reserves memory for all of them, 33 bytes each for an 8-byte payload; the shard first writes
    /// to this memory as timers are scheduled.
    pub capacity: u32,
    /// The kind of wheel.
    pub wheel: WheelKind,
    /// Slots of the first level, or of the only level: 2 to 65,536, rounded up to a power of two.
    pub slots: u32,
    /// Slots of each level above the first: 2 to 4,096, rounded up to a power of two.
    pub level_slots: u32,
    /// The tick at which the shard begins. It cannot go back to an earlier tick.
    pub start: Tick,
}

impl ShardConfig {
    /// The highest [`capacity`](Self::capacity).
    pub const CAPACITY_MAX: u32 = 1 << 30;
    /// The most [`slots`](Self::slots) of the first level.
    pub const SLOTS_MAX: u32 = 1 << 16;
    /// The most [`level_slots`](Self::level_slots) of a level above the first.
    pub const LEVEL_SLOTS_MAX: u32 = 1 << 12;

    /// Checks that every field is within its limits.
    ///
    /// # Errors
    ///
    /// [`ConfigError::OutOfRange`] for the first field that is out of its limits.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_range("capacity", self.capacity, 1, Self::CAPACITY_MAX)?;
        check_range("slots", self.slots, 2, Self::SLOTS_MAX)?;
        check_range("level_slots", self.level_slots, 2, Self::LEVEL_SLOTS_MAX)
    }
}

impl Default for ShardConfig {
    /// 2²⁰ timers and a hierarchical wheel with 256 slots on every level that begins at tick 0.
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

fn check_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, value, min, max })
    }
}

/// Why [`Shard::new`](crate::Shard::new) cannot make a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field of [`ShardConfig`] is out of its limits.
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// The value of the field.
        value: u32,
        /// The lowest value that the field can have.
        min: u32,
        /// The highest value that the field can have.
        max: u32,
    },
    /// The allocator refused the memory for `capacity` timers.
    OutOfMemory {
        /// The value of [`ShardConfig::capacity`].
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
                write!(f, "there is no memory for a capacity of {capacity}; set it lower")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
