//! Tests of the flag of a woken task under the model checker.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::super::woken::WokenFlag;
use super::check;

/// Two wakers, each with an event, and an owner that takes the flag at any moment: it sees each
/// event then, or finds the flag set afterwards. Each waker that is the first to set the flag is
/// answered by one `take`.
#[test]
fn events_of_two_wakers_are_seen_or_leave_the_flag_set() {
    check(|| {
        let flag = Arc::new(WokenFlag::new(false));
        let events = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let wakers = events.clone().map(|event| {
            let flag = Arc::clone(&flag);
            thread::spawn(move || {
                event.store(true, Ordering::Relaxed);
                flag.set()
            })
        });
        let is_taken = flag.take();
        let seen = events.map(|event| event.load(Ordering::Relaxed));
        let firsts = wakers.map(|waker| waker.join().unwrap()).map(usize::from);
        let is_left = flag.is_set();
        assert!(is_left || seen == [true; 2], "seen {seen:?}, and nothing wakes the owner again");
        let taken = usize::from(is_taken) + usize::from(is_left);
        assert_eq!(firsts.iter().sum::<usize>(), taken, "one of the wakers asks for each take");
    });
}
