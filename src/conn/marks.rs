//! Flags of a connection, as bits.

use super::limits::DeadlineKind;

pub(super) const HANDSHAKE: usize = DeadlineKind::Handshake.named_index();
pub(super) const READ_IDLE: usize = DeadlineKind::ReadIdle.named_index();

/// From the lowest bit: which of the idle events that have come are the first of their kind (4),
/// and which of the deadlines that come once and are armed by the limits are over (2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Marks(u16);

impl Marks {
    const OVER: u32 = 4;

    pub(super) fn is_over(self, kind: usize) -> bool {
        self.0 >> Self::OVER & 1 << kind != 0
    }

    /// With a deadline over. A deadline that the limits do not arm has no bit, and changes nothing.
    pub(super) fn set_over(self, kind: usize) -> Self {
        if kind > HANDSHAKE { self } else { Self(self.0 | 1 << Self::OVER << kind) }
    }

    /// The kinds whose event is the first, as bits. Deadlines that come once are always the first.
    pub(super) fn first(self) -> u16 {
        !IDLE_KINDS | (self.0 << READ_IDLE & IDLE_KINDS)
    }

    pub(super) fn with_first(self, kinds: u16) -> Self {
        let idle = IDLE_KINDS >> READ_IDLE;
        Self(self.0 & !idle | kinds >> READ_IDLE & idle)
    }
}

const IDLE_KINDS: u16 = 0b1111 << READ_IDLE;
