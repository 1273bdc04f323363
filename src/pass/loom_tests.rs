//! Models of a wait for a pass.

use loom::thread;

use super::*;
use crate::link::loom_tests::check;

#[test]
fn task_that_finds_the_pass_over_finds_what_was_handed_out_before() {
    check(|| {
        let readiness = Arc::new(AtomicBool::new(false));
        let wait = Arc::new(Wait::new(Waker::noop()));
        let (of_reactor, ended) = (Arc::clone(&readiness), Arc::clone(&wait));
        let thread = thread::spawn(move || {
            of_reactor.store(true, Ordering::Relaxed);
            ended.set_over();
        });
        if wait.is_over() {
            assert!(readiness.load(Ordering::Relaxed), "the pass proves nothing");
        }
        thread.join().unwrap();
    });
}
