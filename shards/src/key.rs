//! The key that names a timer within its shard.

use core::fmt;
use core::num::NonZeroU32;

/// Names one timer of one shard: a slot of its slab and the generation of that slot.
///
/// A key never names another timer. Once its timer has fired or was cancelled, the slot has another
/// generation, and every operation reports the key as stale or, until the slot is used again, as
/// already fired. A slot whose generations are used up (2³¹ timers in this slot) is retired and
/// never starts again from the first generation.
///
/// `TimerKey` and `Option<TimerKey>` have 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerKey {
    index: u32,
    generation: NonZeroU32,
}

impl TimerKey {
    /// The key with these parts, which [`index`](Self::index) and
    /// [`generation`](Self::generation) of a key return.
    ///
    /// A key with parts that the shard has not handed out is reported as stale.
    #[inline]
    pub const fn from_parts(index: u32, generation: NonZeroU32) -> Self {
        Self { index, generation }
    }

    /// The index of the slot in the slab, less than [`ShardConfig::capacity`] for a key that a
    /// shard has handed out.
    ///
    /// [`ShardConfig::capacity`]: crate::ShardConfig::capacity
    #[inline]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// The generation of the slot: odd for a key that a shard has handed out.
    #[inline]
    pub const fn generation(self) -> NonZeroU32 {
        self.generation
    }
}

impl fmt::Debug for TimerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}v{}", self.index, self.generation)
    }
}

const _: () = assert!(size_of::<TimerKey>() == 8 && size_of::<Option<TimerKey>>() == 8);
