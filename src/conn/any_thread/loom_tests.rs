//! Models of what a connection knows of its passes.

use std::sync::Arc;

use loom::thread;

use super::super::side::Passes;
use super::proofs::PassCount;
use crate::link::loom_tests::check;
use crate::link::sync::{AtomicU32, Ordering};

#[test]
fn task_that_knows_of_a_pass_finds_what_was_handed_out_before() {
    check(|| {
        let shared = Arc::new((AtomicU32::new(0), PassCount::new()));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.0.store(1, Ordering::Relaxed);
            other.1.add();
        });
        let (readiness, passes) = &*shared;
        if passes.get() == Passes(1) {
            assert_eq!(readiness.load(Ordering::Relaxed), 1, "the pass proves nothing");
        }
        thread.join().unwrap();
    });
}
