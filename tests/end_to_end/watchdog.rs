//! What the watchdog says of a process that was stopped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, sleep};
use std::time::Instant;

use crate::built;
use corewheel_test_support::{PATIENCE, ms};
use rustix::process::{Pid, Signal, kill_process};

/// Stops a server for a while and continues it. Returns what its watchdog has told, and whether it
/// said that the process was stopped.
fn stop_and_continue() -> (Vec<String>, bool) {
    let mut command = Command::new(built::example("stats_trouble"));
    command.arg("none").env_remove("RUST_LOG").stdin(Stdio::piped());
    let mut server =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is built");
    let mut stdout = BufReader::new(server.stdout.take().expect("it is piped"));
    stdout.read_line(&mut String::new()).expect("it prints its address");
    let (sender, lines) = channel();
    let stderr = BufReader::new(server.stderr.take().expect("it is piped"));
    let reader = thread::spawn(move || {
        stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let id = Pid::from_child(&server);
    let start = Instant::now();
    let mut is_said = false;
    // On a busy machine the watchdog may not have begun to look before the first stop.
    while !is_said && start.elapsed() < PATIENCE {
        kill_process(id, Signal::STOP).unwrap();
        sleep(ms(2_500));
        kill_process(id, Signal::CONT).unwrap();
        while !is_said && let Ok(said) = lines.recv_timeout(ms(5_000)) {
            is_said = said.contains("the process was stopped, or got no processor");
        }
    }
    // The next looks are over soon.
    sleep(ms(500));
    drop(server.stdin.take());
    let mut told = String::new();
    stdout.read_to_string(&mut told).expect("it ends");
    server.wait().expect("it ends");
    drop(lines);
    let _ = reader.join();
    (told.lines().map(str::to_owned).collect(), is_said)
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
