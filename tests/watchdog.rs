//! What the watchdog says about the thread of a stuck shard, by what the system tells of it: a
//! handler that computes, one that blocks, a thread without a processor, and a stopped process.
//!
//! On a busy host a thread that computes may starve as well. So each test makes its trouble again
//! until the watchdog has named it, for up to a minute.
#![cfg(all(target_os = "linux", not(corewheel_loom)))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

#[path = "end_to_end/built.rs"]
mod built;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use corewheel::class::TimerClass;
use corewheel::settings::WarningLimits;
use corewheel::{Runtime, ShardId, TimerService};
use corewheel_stats::watchdog::{Stuck, ThreadState, Watchdog, watch};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_mins(1);
const REPORT: TimerClass = TimerClass::new("report");
/// From when on a shard is stuck.
const STUCK: Duration = ms(60);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Whether the system says how long a thread has run and waited. Prints a line if not.
fn system_tells() -> bool {
    let tells = fs::metadata("/proc/self/schedstat").is_ok();
    if !tells {
        println!("skipped: the system does not say how long a thread has waited");
    }
    tells
}

/// A service of one shard with a watchdog, and what the watchdog tells.
fn watched() -> (TimerService, Watchdog, Receiver<Stuck>) {
    let (sender, told) = channel();
    let tell = move |stuck: &Stuck| {
        // A test that has ended needs no more of it.
        let _ = sender.send(*stuck);
    };
    let limits = WarningLimits { stuck: STUCK, ..WarningLimits::default() };
    let builder = TimerService::builder().shards(1).class(REPORT).unpinned();
    let service = builder.runtime(Runtime::Thread).warning_limits(limits).start().unwrap();
    let watchdog = watch(service.stats_source(), tell).unwrap();
    (service, watchdog, told)
}

/// Computes until a time has passed.
fn compute(work: Duration) {
    let start = Instant::now();
    while start.elapsed() < work {
        std::hint::spin_loop();
    }
}

/// Runs a callback again and again, until the watchdog has told what is expected.
fn check(call: fn(), is_expected: impl Fn(&Stuck) -> bool) {
    let (service, _watchdog, told) = watched();
    let client = service.handle();
    let timers = client.on(ShardId::new(0)).of_class(REPORT).unwrap();
    let start = Instant::now();
    let mut seen = Vec::new();
    while start.elapsed() < PATIENCE {
        let (ended, end) = channel();
        let call = move |_: &corewheel::Timers| {
            call();
            ended.send(()).expect("the test waits");
        };
        timers.schedule_fn(ms(1), call).expect("there is room");
        end.recv_timeout(PATIENCE).expect("the callback is run");
        // The watchdog may be a moment late.
        sleep(ms(1));
        seen.extend(told.try_iter());
        if seen.iter().any(&is_expected) {
            return;
        }
    }
    panic!("the watchdog told {seen:?}");
}

#[test]
fn handler_that_computes_is_told_as_a_thread_that_runs() {
    if system_tells() {
        check(
            || compute(ms(200)),
            |stuck| {
                stuck.thread == ThreadState::Runs
                    && stuck.is_in_turn
                    && stuck.class == Some("report")
            },
        );
    }
}

#[test]
fn handler_that_blocks_is_told_as_a_thread_that_is_blocked() {
    if system_tells() {
        check(
            || sleep(ms(200)),
            |stuck| {
                stuck.thread == ThreadState::Blocked
                    && stuck.is_in_turn
                    && stuck.class == Some("report")
            },
        );
    }
}

#[test]
fn thread_without_a_processor_is_told_as_starving() {
    if !system_tells() {
        return;
    }
    let stop = AtomicBool::new(false);
    let cores = thread::available_parallelism().unwrap().get();
    thread::scope(|scope| {
        let (service, _watchdog, told) = watched();
        let client = service.handle();
        let timers = client.on(ShardId::new(0));
        // On Linux each thread has a priority of its own, and this is the shard's.
        let (niced, is_niced) = channel();
        let call = move |_: &corewheel::Timers| {
            niced.send(rustix::process::nice(19).is_ok()).expect("the test waits");
        };
        timers.schedule_fn(Duration::ZERO, call).expect("there is room");
        assert_eq!(is_niced.recv_timeout(PATIENCE), Ok(true));
        for _ in 0..cores * 3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let start = Instant::now();
        let mut starves = false;
        while !starves && start.elapsed() < PATIENCE {
            // The shard has no time to deliver as many as it gets.
            for _ in 0..10 {
                drop(timers.schedule_fn(ms(1), |_| compute(ms(2))));
            }
            sleep(ms(20));
            starves = told.try_iter().any(|stuck| stuck.thread == ThreadState::Starves);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(starves, "the watchdog did not tell that the thread starves");
    });
}

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
