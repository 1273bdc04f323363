//! Limits that connections share, so that each connection holds 8 bytes and not 456 for them.
//!
//! Connections that begin one after another on a thread mostly have equal limits, and change them
//! to equal ones when they know their peer. So each thread keeps the last few limits that it was
//! given, and a connection with equal ones shares them.
//!
//! Why not a table of all limits: connections of a service end on any thread, and a table would
//! need a lock.
//!
//! Cost: a few comparisons for each connection; limits that differ from the last are allocated.

use std::cell::RefCell;
use std::sync::Arc;

use super::super::limits::{ConnLimits, Spans};

/// Those of connections that begin, and those that a few kinds of peers are given.
const KEPT: usize = 4;

/// The limits that were given last, the latest first.
type Last = RefCell<[Option<Arc<Spans>>; KEPT]>;

thread_local! {
    static LAST: Last = const { RefCell::new([const { None }; KEPT]) };
}

/// The limits, shared with the connections before if one of those has equal ones.
pub(super) fn share(limits: ConnLimits) -> Arc<Spans> {
    let share = |last: &Last| {
        let last = &mut *last.borrow_mut();
        let is_equal =
            |kept: &Option<Arc<Spans>>| kept.as_ref().is_some_and(|it| it.limits == limits);
        let found = last.iter().position(is_equal);
        last[..=found.unwrap_or(KEPT - 1)].rotate_right(1);
        if found.is_none() {
            last[0] = None;
        }
        Arc::clone(last[0].get_or_insert_with(|| Arc::new(Spans::new(limits))))
    };
    // When the thread ends, its last limits are gone before its last connection begins.
    LAST.try_with(share).unwrap_or_else(|_| Arc::new(Spans::new(limits)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn limits_that_are_equal_to_one_of_the_last_are_shared() {
        let limits = |seconds| ConnLimits::default().read_idle(Duration::from_secs(seconds));
        let kept: Vec<_> = (0..KEPT as u64).map(|seconds| share(limits(seconds))).collect();
        for _ in 0..2 {
            for (seconds, kept) in (0..).zip(&kept) {
                assert!(Arc::ptr_eq(kept, &share(limits(seconds))));
                assert_eq!(kept.limits, limits(seconds));
            }
        }
        let other = share(limits(100));
        assert_eq!(other.limits, limits(100));
        assert!(!Arc::ptr_eq(&kept[0], &share(limits(0))), "only the last are kept");
        assert!(Arc::ptr_eq(&other, &share(limits(100))));
    }
}
