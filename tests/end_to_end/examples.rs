//! Examples that end by themselves and report by their exit status whether their checks hold.

use std::process::Output;
use std::thread;

use crate::World;
use crate::server::{command_of, run_to_its_end};

/// Runs an example with and without `io_uring`. Its output must end with `end`, and without
/// `io_uring` it must begin with `on_tokio`.
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
fn delay_queue_example_retries_requests_with_a_back_off() {
    check("delay_queue", "", "all of them came to their end\n");
}

#[test]
fn jobs_example_runs_each_job_once_or_takes_it_back() {
    check("jobs", "", "all of them came to their end\n");
}

#[test]
fn keyed_example_expires_sessions_alone_and_cancels_them_as_a_group() {
    check("keyed", "", "all of them came to their end\n");
}

#[test]
fn retransmissions_example_sends_packets_until_they_end() {
    check("retransmissions", "", "all of them came to their end\n");
}

#[test]
fn periodic_example_ends_with_the_expected_sum() {
    check("periodic", "on tokio\n", "task: 5050\n");
}

#[test]
fn moving_example_migrates_connections_with_their_timers() {
    check("moving", "on tokio: ", "the accounts balance\n");
}
