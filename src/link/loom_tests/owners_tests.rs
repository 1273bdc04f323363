//! Tests of a count of handles under the model checker.

use loom::sync::Arc;
use loom::thread;

use super::super::owners::OwnerCount;
use super::check;

/// One of two threads drops its handle, and the other one clones its own and drops both: one of
/// the three drops is the last.
#[test]
fn handles_that_two_threads_clone_and_drop_have_one_last() {
    check(|| {
        let owners = Arc::new(OwnerCount::default());
        owners.add();
        owners.add();
        let elsewhere = {
            let owners = Arc::clone(&owners);
            thread::spawn(move || {
                owners.add();
                [owners.remove(), owners.remove()]
            })
        };
        let is_last_here = owners.remove();
        let [is_first_last, is_second_last] = elsewhere.join().unwrap();
        assert!(!is_first_last, "the clone was dropped before the handle");
        assert_ne!(is_last_here, is_second_last, "one of the threads drops the last handle");
    });
}
