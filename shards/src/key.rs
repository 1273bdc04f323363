//! The name of a timer within its shard.

use core::fmt;
use core::num::NonZeroU32;

/// Names one timer of one shard: a slot of its slab and the generation of that slot.
///
/// A key stays harmless for ever. Once its timer has fired or was cancelled, the slot's generation
/// has moved on and every use of the key is answered as stale. A slot whose generations are used
/// up (2³¹ timers in this one slot) is retired rather than wrapped, so that a key never comes to
/// mean somebody else's timer.
///
/// 8 bytes, and so is `Option<TimerKey>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerKey {
    index: u32,
    generation: NonZeroU32,
}

impl TimerKey {
    /// The key with these parts, as read back from [`index`](Self::index) and
    /// [`generation`](Self::generation).
    ///
    /// Parts that no shard has handed out make a key that is answered as stale.
    #[inline]
    pub const fn from_parts(index: u32, generation: NonZeroU32) -> Self {
        Self { index, generation }
    }

    /// The slot of the slab.
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
