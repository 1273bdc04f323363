//! Flags of a connection, as bits.
//!
//! The word of 32 bits is full, and a kind needs a bit or two: the next one needs a word of 64
//! bits. That costs each connection of a shard 8 bytes, a tenth of what it takes.

use super::kinds::{DeadlineKind, OPENED_END};

/// Kinds of deadlines, as bits; the bit of a kind is its position.
pub(super) type KindBits = u32;

/// The state of a connection without its times, in 32 bits. The lowest bits are the kinds of the
/// events that have come and were not delivered. The next are the kinds that come once and are
/// over, of those that the limits arm. Then come whether the connection was told to end, and in the
/// highest 8 bits the salt.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Flags(u32);

const KINDS: u32 = DeadlineKind::COUNT as u32;
const SALT: u32 = u32::BITS - u8::BITS;
/// The bit of a connection that was told to end.
const TOLD: u32 = KINDS + OPENED_END as u32;
const _: () = assert!(TOLD < SALT);

impl Flags {
    /// Of a connection that begins.
    pub(super) fn new(salt: u8) -> Self {
        Self(u32::from(salt) << SALT)
    }

    /// Differs between connections that begin at one time, as long as there are few of them.
    pub(super) fn salt(self) -> u8 {
        (self.0 >> SALT) as u8
    }

    /// The kinds of the events that have come and were not delivered.
    pub(super) fn pending(self) -> KindBits {
        self.0 & ((1 << KINDS) - 1)
    }

    pub(super) fn with_pending(self, kinds: KindBits) -> Self {
        debug_assert!(kinds >> KINDS == 0, "{kinds:b} has a bit of no kind");
        Self(self.0 & !((1 << KINDS) - 1) | kinds)
    }

    /// Whether a deadline that the limits arm has come, or was armed or disarmed since.
    pub(super) fn is_over(self, kind: usize) -> bool {
        kind < OPENED_END && self.0 >> KINDS & 1 << kind != 0
    }

    /// Whether the connection was told to end.
    pub(super) fn is_told(self) -> bool {
        self.0 >> TOLD & 1 != 0
    }

    pub(super) fn with_told(self, is_told: bool) -> Self {
        Self(self.0 & !(1 << TOLD) | u32::from(is_told) << TOLD)
    }

    /// With a deadline that is over, or is not. A deadline that the limits do not arm has no bit,
    /// and changes nothing.
    pub(super) fn with_over(self, kind: usize, is_over: bool) -> Self {
        if kind >= OPENED_END {
            return self;
        }
        let bit = KINDS + kind as u32;
        Self(self.0 & !(1 << bit) | u32::from(is_over) << bit)
    }
}
