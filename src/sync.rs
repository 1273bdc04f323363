//! The atomics and locks of the protocols between threads: the standard ones, or those of the model
//! checker.

#[cfg(not(corewheel_loom))]
pub(crate) use {
    atomic_waker::AtomicWaker,
    core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    std::sync::Mutex,
};

#[cfg(corewheel_loom)]
pub(crate) use loom::{
    future::AtomicWaker,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};
