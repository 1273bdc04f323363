//! Models of a wait for a pass.

use loom::thread;

use super::looks::{FIRST, Looks};
use super::*;
use crate::link::loom_tests::check;
use crate::link::sync::{AtomicBool, Mutex};

#[test]
fn task_that_finds_the_pass_over_finds_what_was_handed_out_before() {
    check(|| {
        let readiness = Arc::new(AtomicBool::new(false));
        let wait = Arc::new(Wait::new(Waker::noop()));
        let (of_reactor, ended) = (Arc::clone(&readiness), Arc::clone(&wait));
        let thread = thread::spawn(move || {
            of_reactor.store(true, Ordering::Relaxed);
            LOOKS.add(0);
            ended.set_over();
        });
        let looks = looks();
        let is_ready = readiness.load(Ordering::Relaxed);
        if wait.ended_by() <= looks {
            assert!(is_ready, "the pass proves nothing");
        }
        thread.join().unwrap();
    });
}

#[test]
fn task_that_is_polled_after_a_proven_look_finds_what_it_has_handed_out() {
    check(|| {
        let (readiness, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(Looks::new()));
        let proof = Arc::new(Mutex::new(None));
        let of_reactor = (Arc::clone(&readiness), Arc::clone(&looks), Arc::clone(&proof));
        let thread = thread::spawn(move || {
            let (readiness, looks, proof) = of_reactor;
            readiness.store(true, Ordering::Relaxed);
            let proven = looks.add(7);
            // That is the reactor's only way to the task but the count.
            *proof.lock().unwrap() = Some(proven);
        });
        let before = looks.count();
        let is_ready = readiness.load(Ordering::Relaxed);
        let proven = *proof.lock().unwrap();
        if proven.is_some_and(|proof| proof.is_of(before, 7)) {
            assert!(is_ready, "the look proves nothing");
        }
        thread.join().unwrap();
    });
}

#[test]
fn looks_of_two_runtimes_at_once_have_numbers_of_their_own() {
    check(|| {
        let looks = Arc::new(Looks::new());
        let of_other = Arc::clone(&looks);
        let thread = thread::spawn(move || of_other.add(7));
        let own = looks.add(7);
        let other = thread.join().unwrap();
        assert_eq!(looks.count(), FIRST + 2);
        let of_first = [own, other].into_iter().filter(|proof| proof.is_of(FIRST + 1, 7)).count();
        assert_eq!(of_first, 1, "a future that was polled between them decides by the first");
    });
}
