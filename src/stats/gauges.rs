//! The gauges that the parts of a shard have named.
//!
//! Why a lock and no row of atomics: which names there are is known only as the service runs. The
//! shard stores only what has changed, and a reader copies some numbers under the lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The gauges of one shard, by their names.
#[derive(Debug, Default)]
pub(crate) struct PublishedGauges(Mutex<BTreeMap<&'static str, u64>>);

impl PublishedGauges {
    /// Stores the gauges in place of those before. Gauges of one name add up.
    #[cold]
    pub(crate) fn store(&self, gauges: impl Iterator<Item = (&'static str, u64)> + Clone) {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A name that stays keeps its node, so that a change of its value allocates nothing.
        stored.retain(|name, value| {
            *value = 0;
            gauges.clone().any(|(known, _)| known == *name)
        });
        for (name, value) in gauges {
            let sum = stored.entry(name).or_insert(0);
            *sum = sum.saturating_add(value);
        }
    }

    pub(crate) fn load(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
