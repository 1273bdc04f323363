//! The activity stamp of a connection whose tasks run on any thread: when it was last active.

use super::super::moment::Moment;
use crate::link::sync::{AtomicU64, Ordering};

/// The bits of a time that any thread may stamp; `None` before the first stamp. It never goes back.
#[derive(Default)]
pub(super) struct Stamp(AtomicU64);

impl Stamp {
    #[inline]
    pub(super) fn set(&self, at: Moment) {
        // Relaxed: the stamp carries no other data. A store would let a thread that was held up
        // between its reading of the clock and the store take back what another thread has stamped.
        self.0.fetch_max(Moment::to_bits(Some(at)), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Moment> {
        Moment::from_bits(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::{Moment, Stamp};
    use crate::link::loom_tests::{BEGIN, check};

    #[test]
    fn stamps_of_two_threads_leave_the_later_time() {
        check(|| {
            let stamp = Arc::new(Stamp::default());
            let other = Arc::clone(&stamp);
            let thread = thread::spawn(move || other.set(Moment::at(BEGIN + 7)));
            stamp.set(Moment::at(BEGIN + 5));
            thread.join().unwrap();
            assert_eq!(stamp.get(), Some(Moment::at(BEGIN + 7)));
        });
    }
}
