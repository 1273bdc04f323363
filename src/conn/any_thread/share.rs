//! Limits that connections share, so that each connection holds 8 bytes and not 456 for them.
//!
//! Connections that begin one after another on a thread mostly have equal limits. So each thread
//! keeps the last limits that it was given, and a connection with equal ones shares them.
//!
//! Why not a table of all limits: connections of a service end on any thread, and a table would
//! need a lock.
//!
//! Cost: a comparison for each connection; limits that differ from the last are allocated.

use std::cell::RefCell;
use std::sync::Arc;

use super::super::limits::{ConnLimits, Spans};

thread_local! {
    static LAST: RefCell<Option<Arc<Spans>>> = const { RefCell::new(None) };
}

/// The limits, shared with the connection before if that has equal ones.
pub(super) fn share(limits: ConnLimits) -> Arc<Spans> {
    let share = |last: &RefCell<Option<Arc<Spans>>>| {
        let mut last = last.borrow_mut();
        if let Some(last) = last.as_ref().filter(|last| last.limits == limits) {
            return Arc::clone(last);
        }
        Arc::clone(last.insert(Arc::new(Spans::new(limits))))
    };
    // When the thread ends, its last limits are gone before its last connection begins.
    LAST.try_with(share).unwrap_or_else(|_| Arc::new(Spans::new(limits)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn limits_that_are_equal_to_the_last_are_shared() {
        let limits = ConnLimits::default().read_idle(Duration::from_secs(1));
        let (first, second) = (share(limits), share(limits));
        assert!(Arc::ptr_eq(&first, &second));
        let other = share(limits.write_idle(Duration::from_secs(1)));
        assert_eq!((first.limits, other.limits.write_idle), (limits, Duration::from_secs(1)));
        assert!(!Arc::ptr_eq(&first, &share(limits)), "only the last are kept");
    }
}
