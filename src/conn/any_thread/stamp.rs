//! The activity stamp of a connection whose tasks run on any thread: when it was last active.

use crate::link::sync::{AtomicU64, Ordering};

/// A time in nanoseconds that any thread may stamp. It never goes back.
pub(super) struct Stamp(AtomicU64);

impl Stamp {
    pub(super) fn new(nanos: u64) -> Self {
        Self(AtomicU64::new(nanos))
    }

    #[inline]
    pub(super) fn set(&self, nanos: u64) {
        // Relaxed: the stamp carries no other data. A store would let a thread that was held up
        // between its reading of the clock and the store take back what another thread has stamped.
        self.0.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::Stamp;
    use crate::link::loom_tests::check;

    #[test]
    fn stamps_of_two_threads_leave_the_later_time() {
        check(|| {
            let stamp = Arc::new(Stamp::new(1));
            let other = Arc::clone(&stamp);
            let thread = thread::spawn(move || other.set(7));
            stamp.set(5);
            thread.join().unwrap();
            assert_eq!(stamp.get(), 7);
        });
    }
}
