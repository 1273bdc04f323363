//! The examples that end by themselves, and say by their exit status whether what they show holds.

use std::process::Output;
use std::thread;

use crate::World;
use crate::server::{command_of, run_to_its_end};

/// Runs an example with and without `io_uring`. What it says must end like this, and begin so
/// where it can only run on tokio.
fn check(name: &str, on_tokio: &str, end: &str) {
    thread::scope(|scope| {
        for forbidden in [None, Some("EPERM"), Some("ENOSYS")] {
            scope.spawn(move || {
                let world = World { forbidden, runtime: "auto", expected: "any" };
                let output = run_to_its_end(&mut command_of(world, name));
                let Output { status, stdout, stderr } = output;
                let said = String::from_utf8_lossy(&stdout);
                let failed = String::from_utf8_lossy(&stderr);
                assert!(status.success(), "{name}, {forbidden:?}: {status}\n{said}\n{failed}");
                assert!(said.ends_with(end), "{name}, {forbidden:?}: {said}");
                let begins = forbidden.is_none() || said.starts_with(on_tokio);
                assert!(begins, "{name}, {forbidden:?}: {said}");
            });
        }
    });
}

#[test]
fn requests_are_tried_again_with_a_back_off() {
    check("delay_queue", "", "all of them came to their end\n");
}

#[test]
fn sessions_expire_alone_and_end_as_a_group() {
    check("keyed", "", "all of them came to their end\n");
}

#[test]
fn periodic_work_is_as_it_says() {
    check("periodic", "on tokio\n", "task: 5050\n");
}

#[test]
fn connections_that_move_between_cores_take_their_timers_along() {
    check("moving", "on tokio: ", "the accounts balance\n");
}
