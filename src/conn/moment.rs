//! A time at which something has happened.

use std::num::NonZeroU64;

use crate::link::sync::{AtomicU64, Ordering};

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
}

/// An `Option<Moment>` that any thread reads. Relaxed: it carries no other data.
#[derive(Default)]
pub(crate) struct AtomicMoment(AtomicU64);

impl AtomicMoment {
    pub(crate) fn get(&self) -> Option<Moment> {
        NonZeroU64::new(self.0.load(Ordering::Relaxed)).map(Moment)
    }

    /// Where one task sets it.
    #[inline]
    pub(crate) fn set(&self, at: Moment) {
        self.0.store(at.0.get(), Ordering::Relaxed);
    }

    /// From any thread, to a time that never goes back. A store would let a thread that was held up
    /// between its reading of the clock and the store take back what another thread has stamped.
    #[inline]
    pub(crate) fn set_later(&self, at: Moment) {
        self.0.fetch_max(at.0.get(), Ordering::Relaxed);
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::{AtomicMoment, Moment};
    use crate::link::loom_tests::{BEGIN, check};

    #[test]
    fn stamps_of_two_threads_leave_the_later_time() {
        check(|| {
            let stamp = Arc::new(AtomicMoment::default());
            let other = Arc::clone(&stamp);
            let thread = thread::spawn(move || other.set_later(Moment::at(BEGIN + 7)));
            stamp.set_later(Moment::at(BEGIN + 5));
            thread.join().unwrap();
            assert_eq!(stamp.get(), Some(Moment::at(BEGIN + 7)));
        });
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_time_differs_from_none_and_keeps_its_order() {
        let nanos = [0, 1, 2, u64::MAX / 2, u64::MAX - 1];
        let times = nanos.map(|nanos| Some(Moment::at(nanos)));
        assert!(times[0] > None && times.is_sorted());
        for (nanos, at) in nanos.into_iter().zip(times) {
            assert_eq!(at.map(Moment::nanos), Some(nanos));
            let atomic = AtomicMoment::default();
            assert_eq!(atomic.get(), None);
            at.inspect(|at| atomic.set(*at));
            assert_eq!(atomic.get(), at);
        }
        assert_eq!(Moment::at(u64::MAX).nanos(), u64::MAX - 1);
    }
}
