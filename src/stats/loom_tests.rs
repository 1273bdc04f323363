//! A test of the publishing of counts under the model checker.
//!
//! The macro that defines the counts of a shard and of a class defines those of the model too, and
//! the same code stores and loads them under the same version. They are only fewer: with
//! every count of a shard the model would have too many executions.

#![allow(dead_code, unreachable_pub, reason = "the macro defines more than the model uses")]

use loom::sync::Arc;
use loom::thread;

use super::counts::counts;
use crate::link::loom_tests::check_within;
use crate::link::sync::{AtomicU64, Ordering};
use crate::link::version::Version;

counts! {
    /// The counts of a modelled shard.
    struct OfShard, published in PublishedOfShard:
    /// Timers pending now.
    pending: gauge,
    /// Timers scheduled.
    scheduled: sum,
}

counts! {
    /// The counts of a modelled class.
    struct OfClass, published in PublishedOfClass:
    /// Timers of the class pending now.
    pending: gauge,
}

struct Published {
    version: Version,
    counts: PublishedOfShard,
    class: PublishedOfClass,
}

/// Publishes the counts of a shard of which all timers are of one class.
fn store(published: &Published, pending: u64, scheduled: u64) {
    published.version.store(|| {
        published.counts.store(&OfShard { pending, scheduled });
        published.class.store(&OfClass { pending });
    });
}

/// A shard schedules two timers and delivers one, and publishes after each. A reading is of one
/// moment, and never of an earlier moment than the reading before.
#[test]
fn published_counts_are_of_one_moment() {
    check_within(3, || {
        let published = Arc::new(Published {
            version: Version::new(),
            counts: PublishedOfShard::default(),
            class: PublishedOfClass::default(),
        });
        let shard = {
            let published = Arc::clone(&published);
            thread::spawn(move || {
                store(&published, 1, 1);
                store(&published, 1, 2);
            })
        };
        let load = || {
            let load = || (published.class.load(), published.counts.load());
            let (class, counts) = published.version.load(load);
            assert_eq!(class.pending, counts.pending, "the counts are of two moments");
            assert_eq!(counts.pending, counts.scheduled.min(1), "the counts are of two moments");
            counts.scheduled
        };
        let (first, second) = (load(), load());
        assert!(first <= second, "a reading is older than the one before");
        shard.join().unwrap();
        assert_eq!(load(), 2, "a reading lacks what was published");
        let named: Vec<_> = published.counts.load().iter().collect();
        assert_eq!(named, [("pending", 1), ("scheduled", 2)]);
        assert_eq!(published.class.load().iter().count(), 1);
    });
}
