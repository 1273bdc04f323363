//! A service with a million timers that are due in an hour: it does not wake and makes no system
//! call.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::glommio_works;
use crate::server::example;
use corewheel_test_support::PATIENCE;

const TIMERS: &str = "1000000";
/// The start is finished when no thread has run for this long.
const SETTLES: Duration = Duration::from_secs(2);
/// How long the test watches the process.
const WATCHES: Duration = Duration::from_secs(10);

/// The number of voluntary context switches of each thread of a process.
fn switches(process: u32) -> BTreeMap<PathBuf, u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let count = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).unwrap();
        let count = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
        // An involuntary switch does not show that the thread has woken.
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.and_then(count).unwrap()
    };
    tasks.map(|task| task.unwrap().path()).map(|path| (path.clone(), count(&path))).collect()
}

/// The id of the process that `strace` traces.
fn traced(tracer: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

fn check(runtime: &str) {
    let log = std::env::temp_dir().join(format!("corewheel-{runtime}-{}", std::process::id()));
    let tracing = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok();
    let mut command = if tracing {
        let mut command = Command::new("strace");
        command.args(["-f", "-o"]).arg(&log).arg(example("idle_timers"));
        command
    } else {
        println!("strace is not installed: only switches are counted, on {runtime}");
        Command::new(example("idle_timers"))
    };
    let piped = command.args([runtime, TIMERS]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready", "{runtime}");
    let process = if tracing { traced(child.id()) } else { child.id() };
    let look = || (switches(process), fs::read_to_string(&log).unwrap_or_default());
    let start = Instant::now();
    let mut before = look();
    loop {
        thread::sleep(SETTLES);
        let now = look();
        if now == before {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{runtime}: the process never comes to rest");
        before = now;
    }
    let (before, called_before) = before;
    thread::sleep(WATCHES);
    let (after, called_after) = look();
    drop(child.stdin.take());
    assert_eq!(said.next().unwrap().unwrap(), format!("{TIMERS} were pending"), "{runtime}");
    assert!(child.wait().unwrap().success(), "{runtime}");
    let _ = fs::remove_file(&log);
    assert_eq!(before, after, "{runtime}: a thread has woken");
    let new = called_after.strip_prefix(&called_before).unwrap();
    assert_eq!(new, "", "{runtime}: the process has made system calls");
    assert!(!tracing || !called_before.is_empty(), "{runtime}: the trace is empty");
}

#[test]
fn million_timers_an_hour_away_cause_no_wake_up_and_no_system_call() {
    let glommio = glommio_works();
    let runtimes = ["tokio", "thread", "compio", "glommio"];
    thread::scope(|scope| {
        for runtime in runtimes.into_iter().filter(|runtime| glommio || *runtime != "glommio") {
            scope.spawn(move || check(runtime));
        }
    });
}
