//! Flags of a connection, as bits.

use super::limits::DeadlineKind;

pub(super) const HANDSHAKE: usize = DeadlineKind::Handshake.named_index();
pub(super) const READ_IDLE: usize = DeadlineKind::ReadIdle.named_index();

/// Kinds of deadlines, as bits; the bit of a kind is its position.
pub(super) type KindBits = u32;

/// What is known of a connection beside its times, in 32 bits. From the lowest bit: the kinds of
/// the events that have come and were not delivered (18), the marks (6), and the salt (8).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Flags(u32);

const KINDS: u32 = DeadlineKind::COUNT as u32;
const MARKS: u32 = 6;
const _: () = assert!(KINDS + MARKS + u8::BITS == u32::BITS);

impl Flags {
    /// Of a connection that begins.
    pub(super) fn new(salt: u8) -> Self {
        Self(u32::from(salt) << (KINDS + MARKS))
    }

    /// Differs between connections that begin at one time, as long as there are few of them.
    pub(super) fn salt(self) -> u8 {
        (self.0 >> (KINDS + MARKS)) as u8
    }

    /// The kinds of the events that have come and were not delivered.
    pub(super) fn pending(self) -> KindBits {
        self.0 & ((1 << KINDS) - 1)
    }

    pub(super) fn with_pending(self, kinds: KindBits) -> Self {
        debug_assert!(kinds >> KINDS == 0, "{kinds:b} has a bit of no kind");
        Self(self.0 & !((1 << KINDS) - 1) | kinds)
    }

    pub(super) fn marks(self) -> Marks {
        Marks((self.0 >> KINDS) as u8 & ((1 << MARKS) - 1))
    }

    pub(super) fn with_marks(self, marks: Marks) -> Self {
        Self(self.0 & !(((1 << MARKS) - 1) << KINDS) | u32::from(marks.0) << KINDS)
    }
}

/// From the lowest bit: which of the idle events that have come are the first of their kind (4),
/// and which of the deadlines that come once and are armed by the limits are over (2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Marks(u8);

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
    pub(super) fn first(self) -> KindBits {
        !IDLE_KINDS | (KindBits::from(self.0) << READ_IDLE & IDLE_KINDS)
    }

    pub(super) fn with_first(self, kinds: KindBits) -> Self {
        let idle = (IDLE_KINDS >> READ_IDLE) as u8;
        Self(self.0 & !idle | (kinds >> READ_IDLE) as u8 & idle)
    }
}

const IDLE_KINDS: KindBits = 0b1111 << READ_IDLE;
