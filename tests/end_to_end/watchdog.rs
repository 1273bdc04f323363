//! What the watchdog says of a process that was stopped.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use corewheel_test_support::child::{Child, lines_of};
use corewheel_test_support::{PATIENCE, ms};

use crate::built;

/// Stops a server for a while and continues it. Returns what its watchdog has told, and whether it
/// said that the process was stopped.
fn stop_and_continue() -> (Vec<String>, bool) {
    let mut command = Command::new(built::example("stats_trouble"));
    command.arg("none").env_remove("RUST_LOG").stderr(Stdio::piped());
    let mut server = Child::start(&mut command);
    server.told("http://");
    let lines = lines_of(server.process.stderr.take().unwrap());
    let start = Instant::now();
    let mut is_said = false;
    // On a busy machine the watchdog may not have begun to look before the first stop.
    while !is_said && start.elapsed() < PATIENCE {
        server.stop();
        sleep(ms(2_500));
        server.go_on();
        while !is_said && let Ok(said) = lines.recv_timeout(ms(5_000)) {
            is_said = said.contains("the process was stopped, or got no processor");
        }
    }
    // The next looks are over soon.
    sleep(ms(500));
    drop(server.process.stdin.take());
    (server.wait().1, is_said)
}

#[test]
fn process_that_was_stopped_has_no_stuck_shard() {
    let mut last = Vec::new();
    // On a busy machine a shard may be stuck besides.
    for _ in 0..5 {
        let (told, is_said) = stop_and_continue();
        assert!(is_said, "the watchdog does not say that the process was stopped");
        if told.is_empty() {
            return;
        }
        last = told;
    }
    panic!("the watchdog told {last:?}");
}
