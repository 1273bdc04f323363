//! A version number by which readers see that the values they have read were stored together.
//!
//! One thread stores, and any number of threads read without making it wait:
//!
//! ```text
//! writer                                reader
//! ------                                ------
//! version := odd                        read version, acquire
//! fence(Release)                        read the values
//! store the values                      fence(Acquire)
//! version := even, release              read version: even and unchanged?
//! ```
//!
//! A reader that reads a value while the writer stores finds the version odd or changed, since that
//! value orders the two fences; the reader then reads again. A reader that finds the version of the
//! last store finds the values of the last store.

use super::sync::{AtomicU64, Backoff, Ordering, fence};

/// The version of values that are kept beside it and are stored and loaded relaxed.
#[derive(Debug)]
pub(crate) struct Version(AtomicU64);

impl Version {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Stores values. Only one thread may call it.
    #[inline]
    pub(crate) fn store(&self, store: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version + 1, Ordering::Relaxed);
        // Pairs with the fence in `load`: a reader of one of these values sees an odd or a later
        // version.
        fence(Ordering::Release);
        store();
        // Release: pairs with the first load in `load`.
        self.0.store(version + 2, Ordering::Release);
    }

    /// Loads values that were stored together, and tries again until it has such values.
    pub(crate) fn load<V>(&self, mut load: impl FnMut() -> V) -> V {
        let backoff = Backoff::new();
        loop {
            if let Some(values) = self.try_load(&mut load) {
                return values;
            }
            backoff.snooze();
        }
    }

    /// Loads values; `None` if they were not stored together.
    pub(super) fn try_load<V>(&self, load: &mut impl FnMut() -> V) -> Option<V> {
        // Acquire: pairs with the last store of the version in `store`.
        let version = self.0.load(Ordering::Acquire);
        let values = load();
        // Pairs with the fence in `store`.
        fence(Ordering::Acquire);
        let is_whole = version % 2 == 0 && version == self.0.load(Ordering::Relaxed);
        is_whole.then_some(values)
    }
}
