//! A service with a million timers that are due in an hour: it does not wake and makes no system
//! call.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::PATIENCE;
use corewheel_test_support::child::Child;

use crate::server::example;
use crate::{at_once, glommio_works};

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
    let mut child = Child::start(command.args([runtime, TIMERS]));
    assert_eq!(child.told(""), "ready");
    let id = child.process.id();
    let process = if tracing { traced(id) } else { id };
    let look = || (switches(process), fs::read_to_string(&log).unwrap_or_default());
    let (start, mut before) = (Instant::now(), look());
    loop {
        thread::sleep(SETTLES);
        let now = std::mem::replace(&mut before, look());
        if now == before {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the process never comes to rest");
    }
    let (before, called_before) = before;
    thread::sleep(WATCHES);
    let (after, called_after) = look();
    drop(child.process.stdin.take());
    assert_eq!(child.wait(), (Some(0), vec![format!("{TIMERS} were pending")]));
    let _ = fs::remove_file(&log);
    assert_eq!(before, after, "a thread has woken");
    let new = called_after.strip_prefix(&called_before).unwrap();
    assert_eq!(new, "", "the process has made system calls");
    assert!(!tracing || !called_before.is_empty(), "the trace is empty");
}

#[test]
fn million_timers_an_hour_away_cause_no_wake_up_and_no_system_call() {
    let runtimes = ["tokio", "thread", "compio", "glommio"];
    at_once(runtimes.into_iter().filter(|it| *it != "glommio" || glommio_works()), check);
}
