//! The outputs of futures that a test spawns.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::judge::given;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn spawned_future_gives_its_output_to_the_test_and_to_other_futures() {
    for seed in 0..20 {
        let mut sim = given(seed);
        let timers = sim.service().handle();
        let numbers: Vec<_> = (0..10_u32)
            .map(|number| {
                sim.spawn(async move {
                    timers.sleep(SECOND * number).await.unwrap();
                    // Not `Send`, as the futures of a simulation need not be.
                    Rc::new(number)
                })
            })
            .collect();
        let mut sum = sim.spawn(async move {
            let mut sum = 0;
            for number in numbers {
                sum += *number.await;
            }
            sum
        });
        sim.run_for(SECOND / 2);
        assert_eq!((&mut sum).now_or_never(), None);
        assert_eq!(sim.run(sum), 45);
        assert!(sim.elapsed() >= 9 * SECOND);
    }
}

#[test]
fn spawned_future_runs_to_its_end_after_its_handle_was_dropped() {
    let mut sim = given(1);
    let (time, has_ended) = (sim.time(), Rc::new(Cell::new(false)));
    let ended = Rc::clone(&has_ended);
    drop(sim.spawn(async move {
        time.sleep(SECOND).await;
        ended.set(true);
    }));
    sim.run_for(2 * SECOND);
    assert!(has_ended.get());
}

#[test]
fn returned_future_is_ready_when_the_output_is_there() {
    let mut sim = given(1);
    let time = sim.time();
    let mut task = sim.spawn(async move { time.sleep(SECOND).await });
    sim.run_for(SECOND / 2);
    assert_eq!((&mut task).now_or_never(), None);
    sim.run_for(SECOND);
    assert_eq!(task.now_or_never(), Some(()));
}

#[test]
fn output_that_never_comes_is_a_panic_that_says_so() {
    let sim = given(1);
    let task = sim.spawn(std::future::pending::<u8>());
    drop(sim);
    let mut other = given(2);
    let panic = catch_unwind(AssertUnwindSafe(|| other.run(task))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("the simulation runs until the future is done"), "{message}");
}
