//! A version by which readers see that the values they have read were stored together.
//!
//! One thread stores, and any number of threads read without keeping it waiting:
//!
//! ```text
//! writer                                reader
//! ------                                ------
//! version := odd                        read version, acquire
//! fence(Release)                        read the values
//! store the values                      fence(Acquire)
//! version := even, release              read version: even, and the same?
//! ```
//!
//! A reader that reads one of the values that are being stored finds the version odd or changed,
//! since the two fences are ordered by that value; it reads again. A reader that finds the version
//! of the last store finds its values.

use crossbeam_utils::Backoff;

use super::sync::{AtomicU64, Ordering, fence};

/// The version of values that lie beside it and are stored and loaded relaxed.
#[derive(Debug)]
pub(crate) struct Version(AtomicU64);

impl Version {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Stores values; by one thread only.
    #[inline]
    pub(crate) fn store(&self, store: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version + 1, Ordering::Relaxed);
        // Pairs with the fence in `load`: a reader of one of these values sees that the version is
        // odd or has moved on.
        fence(Ordering::Release);
        store();
        // Release: pairs with the first load in `load`.
        self.0.store(version + 2, Ordering::Release);
    }

    /// Loads values that were stored together.
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
        let is_whole = version.is_multiple_of(2) && version == self.0.load(Ordering::Relaxed);
        is_whole.then_some(values)
    }
}
