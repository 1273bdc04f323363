//! How many handles keep something open that several threads share.
//!
//! Why not the count of an `Arc`: it also counts the references that keep nothing open, and a
//! second `Arc` around the first is one more allocation.

use super::sync::{AtomicU32, Ordering};

/// A count of handles. Relaxed throughout: the count orders nothing, and the last handle closes
/// what it has kept open under a lock.
#[derive(Debug, Default)]
pub(crate) struct OwnerCount(AtomicU32);

impl OwnerCount {
    /// Counts a new handle.
    ///
    /// # Panics
    ///
    /// There are 2³¹ handles.
    pub(crate) fn add(&self) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "there are fewer than 2^31 handles");
    }

    /// A handle was dropped. True if it was the last.
    pub(crate) fn remove(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) == 1
    }
}
