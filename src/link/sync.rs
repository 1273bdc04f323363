//! The atomics, locks and rings of the protocols between threads: those of the standard library,
//! `rtrb` and crossbeam, or those of the model checker.
//!
//! An atomic outside of this module that the model checker is to see is imported from here.

#[cfg(not(all(test, corewheel_loom)))]
pub(crate) use {
    atomic_waker::AtomicWaker,
    core::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicU64 as AtomicWord, Ordering, fence,
    },
    crossbeam_utils::Backoff,
    real::{any_of, zeros},
    rtrb::{Consumer, Producer, RingBuffer},
    std::sync::{Mutex, MutexGuard},
    std::thread::yield_now,
};

#[cfg(not(all(test, corewheel_loom)))]
#[allow(unused_imports, reason = "the room that uses it comes with some features only")]
pub(crate) use atomic_waker::AtomicWaker as MaybeWaker;

#[cfg(all(test, corewheel_loom))]
pub(crate) use {
    super::loom_tests::ring::{Consumer, Producer, RingBuffer, any_of},
    loom::{
        // A word whose plain store stays one: a store comes after all accesses of the value that it
        // replaces, by the rings of a lane.
        sync::atomic::{AtomicBool, AtomicU32, AtomicU64 as AtomicWord, Ordering, fence},
        sync::{Mutex, MutexGuard},
        thread::yield_now,
    },
    modelled::{AtomicU64, AtomicWaker, Backoff, MaybeWaker, zeros},
};

#[cfg(not(all(test, corewheel_loom)))]
mod real {
    use rtrb::chunks::ReadChunk;

    /// Whether an element of a chunk, which is not taken out, has a property.
    pub(crate) fn any_of<T>(chunk: &ReadChunk<'_, T>, is_so: impl FnMut(&T) -> bool) -> bool {
        let (first, second) = chunk.as_slices();
        first.iter().chain(second).any(is_so)
    }

    /// So many zeros, in memory that the system has zeroed: it is not written here.
    pub(crate) fn zeros(len: usize) -> Box<[super::AtomicU64]> {
        bytemuck::allocation::zeroed_slice_box(len)
    }
}

#[cfg(all(test, corewheel_loom))]
mod modelled {
    use core::task::Waker;

    use super::{AtomicBool, Ordering};

    /// Lets another thread run, without which a thread that waits for it would wait for ever.
    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn new() -> Self {
            Self
        }

        #[allow(clippy::unused_self, reason = "the interface is that of crossbeam")]
        pub(crate) fn snooze(&self) {
            loom::thread::yield_now();
        }
    }

    /// Loom's atomic, with a store that is a swap. Loom does not order a plain store against a
    /// compare-and-swap that has read the value before it, and then lets a load return a value that
    /// this thread has seen replaced. Loom does order a swap. Loads may return old values as
    /// before.
    #[derive(Debug)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.swap(value, order);
        }

        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(current, new, success, failure)
        }

        pub(crate) fn fetch_update(
            &self,
            success: Ordering,
            failure: Ordering,
            next: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.0.fetch_update(success, failure, next)
        }

        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }

        pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_max(value, order)
        }

        #[allow(dead_code, reason = "the room that uses it comes with some features only")]
        pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(value, order)
        }

        #[allow(dead_code, reason = "the room that uses it comes with some features only")]
        pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_or(value, order)
        }

        #[allow(dead_code, reason = "the room that uses it comes with some features only")]
        pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_and(value, order)
        }
    }

    impl Default for AtomicU64 {
        fn default() -> Self {
            Self::new(0)
        }
    }

    pub(crate) fn zeros(len: usize) -> Box<[AtomicU64]> {
        (0..len).map(|_| AtomicU64::new(0)).collect()
    }

    /// Loom's waker cell, made stricter: a `wake` that is not ordered after a registration is an
    /// error. The real cell may find no waker then. Loom's cell is a lock, which would hide that
    /// nothing else orders the two.
    #[derive(Debug)]
    pub(crate) struct AtomicWaker {
        waker: loom::future::AtomicWaker,
        registered: AtomicBool,
    }

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self { waker: loom::future::AtomicWaker::new(), registered: AtomicBool::new(false) }
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.registered.store(true, Ordering::Relaxed);
            self.waker.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            assert!(self.registered.load(Ordering::Relaxed), "a sender that wakes finds the waker");
            self.waker.wake();
        }
    }

    /// A waker cell that may be empty when it is woken.
    #[derive(Debug)]
    pub(crate) struct MaybeWaker(loom::future::AtomicWaker);

    #[allow(dead_code, reason = "the room that uses it comes with some features only")]
    impl MaybeWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }
    }
}
