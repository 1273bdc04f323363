//! A time at which something has happened.

use std::num::NonZeroU64;

/// A time in nanoseconds since the clock's epoch. `Option<Moment>` takes 8 bytes: it is the type of
/// each stamp and mark, and `None` says that the thing has not happened.
///
/// Why not 0 in place of `None`: the epoch is a time at which a connection may have been active,
/// and to a connection that begins later it says that the connection has been idle since then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Moment(NonZeroU64);

const _: () = assert!(size_of::<Option<Moment>>() == 8);

impl Moment {
    /// The last nanosecond of the clock counts as the one before.
    #[inline]
    pub(crate) fn at(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    #[inline]
    pub(crate) fn nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// For an atomic that holds an `Option<Moment>`. `None` is less than each time.
    #[inline]
    pub(crate) fn to_bits(at: Option<Self>) -> u64 {
        at.map_or(0, |at| at.0.get())
    }

    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_differs_from_none_and_keeps_its_order() {
        let nanos = [0, 1, 2, u64::MAX / 2, u64::MAX - 1];
        let times = nanos.map(|nanos| Some(Moment::at(nanos)));
        assert!(times[0] > None && times.is_sorted());
        for (nanos, at) in nanos.into_iter().zip(times) {
            assert_eq!(at.map(Moment::nanos), Some(nanos));
            assert_eq!(Moment::from_bits(Moment::to_bits(at)), at);
        }
        assert_eq!(Moment::at(u64::MAX).nanos(), u64::MAX - 1);
        assert_eq!(Moment::from_bits(Moment::to_bits(None)), None);
    }
}
