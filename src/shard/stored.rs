//! The payload as a shard stores it in the slot of its timer.
//!
//! A value of the user's type lies in the slot: no allocation and no dynamic call, on this core or
//! from another. A callback is boxed once and lies in a table; the slot holds an index then, so
//! that a slot for an 8-byte value stays within 32 bytes.

use std::convert::Infallible;
use std::num::NonZeroU64;

use super::part::PartId;

/// A payload, as the slot of its timer holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored<T> {
    Value(T),
    /// An index into the table of callbacks.
    Call(u32),
    /// A part of the shard, and an index there.
    Part(PartId, u32),
}

// Most timers carry a value, so the other variants must not make the slot larger.
const _: () = assert!(size_of::<Option<Stored<NonZeroU64>>>() == 16);
const _: () = assert!(size_of::<Option<Stored<Infallible>>>() == 8);

impl<T> Stored<T> {
    /// The value; `None` if the payload is in the table.
    #[inline]
    pub(super) fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }
}
