//! Tests of the stop flag of a periodic callback under the model checker.

use std::num::NonZeroU32;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::super::stop_flag::{Stop, StopFlag};
use super::check;

/// The result of a stop is true at any moment, and the stopping thread sees the runs before it.
#[test]
fn stop_at_any_moment_returns_the_state_of_the_callback() {
    check(|| {
        let flag = Arc::new(StopFlag::new());
        let (began, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let shard = {
            let (flag, began, ended) = (flag.clone(), began.clone(), ended.clone());
            thread::spawn(move || {
                for generation in [1, 3] {
                    let generation = NonZeroU32::new(generation).unwrap();
                    if !flag.begin() {
                        break;
                    }
                    began.fetch_add(1, Ordering::Relaxed);
                    ended.fetch_add(1, Ordering::Relaxed);
                    if !flag.rest(7, generation) {
                        break;
                    }
                }
                flag.end();
            })
        };
        let found = flag.stop();
        let (runs, done) = (began.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
        match found {
            Stop::Waited(timer) => {
                // How many runs there were before the timer for which the callback waited.
                let waited = timer.map_or(0, |(_, of)| of.get().div_ceil(2) as usize);
                assert_eq!((runs, done), (waited, waited));
                shard.join().unwrap();
                assert_eq!(
                    began.load(Ordering::Relaxed),
                    waited,
                    "the callback does not run again"
                );
            }
            Stop::Runs => {
                shard.join().unwrap();
                assert!(began.load(Ordering::Relaxed) <= runs + 1);
            }
            Stop::Over => assert_eq!((runs, done), (2, 2)),
        }
        assert_ne!(flag.stop(), Stop::Waited(None));
    });
}

/// A thread that finds a callback over sees all of its writes, even if the callback ended itself.
#[test]
fn thread_that_finds_a_callback_over_sees_its_writes() {
    for asks in [false, true] {
        check(move || {
            let (flag, done) = (Arc::new(StopFlag::new()), Arc::new(AtomicUsize::new(0)));
            let elsewhere = {
                let (flag, done) = (flag.clone(), done.clone());
                thread::spawn(move || {
                    let over = if asks { flag.is_over() } else { flag.stop() == Stop::Over };
                    assert!(!over || done.load(Ordering::Relaxed) == 1);
                })
            };
            if flag.begin() {
                done.fetch_add(1, Ordering::Relaxed);
                flag.end();
            }
            elsewhere.join().unwrap();
            assert_eq!(flag.stop(), Stop::Over);
        });
    }
}
