//! What is noted of a connection in bits.

use super::limits::DeadlineKind;

pub(super) const HANDSHAKE: usize = DeadlineKind::Handshake.place();
pub(super) const READ_IDLE: usize = DeadlineKind::ReadIdle.place();

/// From the lowest bit: which idle events came first of those that have come (4), which of the
/// deadlines are over that come once and are armed by the limits (2), how many reads are in
/// progress (10).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Marks(u16);

impl Marks {
    const OVER: u32 = 4;
    const READS: u32 = 6;
    const READ: u16 = 1 << Self::READS;

    pub(super) fn is_over(self, kind: usize) -> bool {
        self.0 >> Self::OVER & 1 << kind != 0
    }

    /// It does nothing to a deadline that the limits do not arm.
    pub(super) fn set_over(self, kind: usize) -> Self {
        if kind > HANDSHAKE { self } else { Self(self.0 | 1 << Self::OVER << kind) }
    }

    /// As bits by kind. Deadlines that come once are always the first.
    pub(super) fn first(self) -> u16 {
        !IDLE_KINDS | (self.0 << READ_IDLE & IDLE_KINDS)
    }

    pub(super) fn with_first(self, kinds: u16) -> Self {
        let idle = IDLE_KINDS >> READ_IDLE;
        Self(self.0 & !idle | kinds >> READ_IDLE & idle)
    }

    pub(super) fn reads(self) -> u16 {
        self.0 >> Self::READS
    }

    /// With one more read in progress; `None` if there are too many.
    pub(super) fn with_read(self) -> Option<Self> {
        self.0.checked_add(Self::READ).map(Self)
    }

    pub(super) fn without_read(self) -> Self {
        Self(self.0 - Self::READ)
    }

    pub(super) fn without_reads(self) -> Self {
        Self(self.0 & (Self::READ - 1))
    }
}
const IDLE_KINDS: u16 = 0b1111 << READ_IDLE;
