//! The atomics and locks of the protocols between threads: the standard ones, or those of the model
//! checker.

#[cfg(not(corewheel_loom))]
pub(crate) use {
    atomic_waker::AtomicWaker,
    core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    std::sync::Mutex,
};

#[cfg(corewheel_loom)]
pub(crate) use {
    loom::{
        sync::Mutex,
        sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    modelled::AtomicWaker,
};

#[cfg(corewheel_loom)]
mod modelled {
    use core::task::Waker;

    use super::{AtomicBool, Ordering};

    /// The model's waker cell, made stricter: a `wake` that no registration happens before is an
    /// error. The real cell would find no waker then, but the model's is a lock, and so would hide
    /// that nothing else orders the two.
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
            assert!(self.registered.load(Ordering::Relaxed), "whoever rings finds the waker");
            self.waker.wake();
        }
    }
}
