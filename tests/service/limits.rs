//! Starts of a service in a process with low limits of open files, threads, address space or locked
//! memory.
//!
//! The limits hold for a whole process, so each start runs in a child process: this test program,
//! with an environment variable that contains the limit.

#![allow(clippy::print_stdout, reason = "a child prints for its parent how its start ended")]

use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
use std::{env, fs};

use corewheel_glommio::Runtime;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, getuid, kill_process, setrlimit};

use super::*;
use corewheel_test_support::child::this_test;

const LIMIT: &str = "COREWHEEL_TEST_LIMIT";
const MIB: u64 = 1 << 20;

/// What a child process has little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// Open files, with those of the test program.
    Files,
    /// Processes and threads, with the two of the test program.
    Threads,
    /// Address space beyond that of the process before the start, in MiB.
    Memory,
    /// Memory that the kernel keeps resident for the process, in KiB.
    Locked,
}

/// How a start ended: `started` and the runtime, or `refused` and the error.
#[derive(Debug)]
struct End {
    started: Option<String>,
    text: String,
}

/// Starts a service in a child and checks that the child neither panics nor is aborted nor hangs.
fn start(limit: Limit, value: u64, runtime: Runtime, shards: usize) -> End {
    start_with_capacity(limit, value, runtime, shards, 1 << 10)
}

fn start_with_capacity(
    limit: Limit,
    value: u64,
    runtime: Runtime,
    shards: usize,
    capacity: u32,
) -> End {
    let task = format!("{limit:?} {value} {runtime:?} {shards} {capacity}");
    let mut command = this_test("limits::child_with_low_limits_starts_a_service");
    command
        .args(["--test-threads", "1"])
        .env(LIMIT, &task)
        .env("RUST_BACKTRACE", "0")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if matches!(limit, Limit::Threads | Limit::Locked) {
        // The limit is one of a user, and does not hold for root.
        command.uid(user_without_processes());
    }
    let child = command.spawn().unwrap();
    let (sender, ended) = mpsc::channel();
    let id = Pid::from_child(&child);
    thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(PATIENCE) else {
        let _killed = kill_process(id, Signal::KILL);
        panic!("{task}: the child hangs");
    };
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let context = format!("{task}:\n{printed}\n{errors}");
    assert!(output.status.success(), "{:?}, {context}", output.status);
    assert!(!errors.contains("panicked at"), "{context}");
    let end = printed.lines().find_map(|line| line.split_once("END ")?.1.split_once(' '));
    let (how, text) = end.expect(&context);
    let started = (how == "started").then(|| text.split(':').next().unwrap_or_default().to_owned());
    End { started, text: text.to_owned() }
}

#[test]
fn child_with_low_limits_starts_a_service() {
    let Ok(limit) = env::var(LIMIT) else { return };
    let limit: Vec<&str> = limit.split(' ').collect();
    let value: u64 = limit[1].parse().unwrap();
    let (resource, value) = match limit[0] {
        "Files" => (Resource::Nofile, value),
        "Threads" => (Resource::Nproc, value),
        "Locked" => (Resource::Memlock, value << 10),
        _ => (Resource::As, address_space() + value * MIB),
    };
    let named = |runtime: &Runtime| format!("{runtime:?}") == limit[2];
    let runtime = [Runtime::Auto, Runtime::Glommio, Runtime::Tokio, Runtime::Thread];
    let runtime = runtime.into_iter().find(named).unwrap();
    let (shards, capacity) = (limit[3].parse().unwrap(), limit[4].parse().unwrap());
    let builder = TimerService::builder().shards(shards).capacity(capacity);
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).unwrap();
    match builder.runtime(runtime).start() {
        Err(error) => {
            if let (StartError::Shard { source, .. }, false) = (&error, limit[0] == "Locked") {
                let names_memory = error.to_string().contains("memory");
                assert_eq!(source.kind() == ErrorKind::OutOfMemory, names_memory, "{error}");
            }
            println!("END refused {error}");
        }
        Ok(service) => {
            let opened = descriptors();
            let (sender, fired) = mpsc::channel();
            let call = move |_: &_| sender.send(()).unwrap();
            service.handle().on(SHARD).schedule_fn(ms(1), call).unwrap();
            fired.recv_timeout(Duration::from_secs(20)).unwrap();
            let may_open = service.runtime() != Some("tokio") || opened.is_none();
            assert!(may_open || descriptors() <= opened, "the start returned too early");
            println!("END started {}: {}", service.runtime().unwrap(), service.runtime_reason());
            service.shutdown(ShutdownPolicy::Drop).unwrap();
        }
    }
    // The threads of a refused start have ended, or end soon.
    let threads = || fs::read_dir("/proc/self/task").map_or(2, Iterator::count);
    wait_until("the service has no thread", || threads() <= 2);
}

/// How many descriptors this process has; `None` if there is none left to count them.
fn descriptors() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

/// The address space of this process, in bytes.
fn address_space() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

/// A user id that no other start of this program has, as the tests run side by side, and hardly a
/// start of another program: it is random.
fn user_without_processes() -> u32 {
    static IDS: LazyLock<AtomicU32> = LazyLock::new(|| {
        let random = RandomState::new().hash_one(std::process::id());
        AtomicU32::new(20_000 + (random % 40_000) as u32)
    });
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// Whether the child can run as a user without processes, which only root can arrange.
fn can_be_another_user() -> bool {
    let can = getuid().is_root();
    if !can {
        println!("skipped: only root can start a process of another user");
    }
    can
}

#[test]
fn auto_start_with_few_files_falls_back_and_reports_the_reason() {
    // The test program has some files open.
    for shards in [1, 2, 4] {
        for files in [8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40] {
            let end = start(Limit::Files, files, Runtime::Auto, shards);
            assert!(end.started.is_some(), "{files} files, {shards} shards: {}", end.text);
            let fell_back = end.started.as_deref() != Some("glommio");
            assert!(!fell_back || !glommio_works() || end.text.contains("ulimit -n"), "{end:?}");
            assert!(files > 8 || shards == 1 || fell_back, "{end:?}");
        }
    }
}

#[test]
fn start_with_few_files_on_a_runtime_that_needs_more_reports_the_limit() {
    for runtime in runtimes().filter(|runtime| *runtime != Runtime::Thread) {
        for (files, shards) in [(4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (8, 4), (12, 4), (16, 8)] {
            let end = start(Limit::Files, files, runtime, shards);
            let count = files.to_string();
            let names_limit = end.text.contains("ulimit -n") && end.text.contains(&count);
            assert!(end.started.is_some() || names_limit, "{runtime:?}, {files} files: {end:?}");
            assert!(end.started.is_none() || (files, shards) != (8, 4), "{end:?}");
        }
        let end = start(Limit::Files, 200, runtime, 4);
        assert!(end.started.is_some(), "{end:?}");
    }
    assert!(start(Limit::Files, 6, Runtime::Thread, 4).started.is_some());
}

#[test]
fn auto_start_with_few_threads_falls_back_or_is_refused_with_the_limit() {
    if !can_be_another_user() {
        return;
    }
    // The test program itself has two threads.
    for (threads, shards, expected) in [
        (2, 1, None),
        (3, 1, Some("tokio")),
        (4, 1, Some(if glommio_works() { "glommio" } else { "tokio" })),
        (4, 2, Some("tokio")),
        (4, 3, None),
        (8, 8, None),
    ] {
        let end = start(Limit::Threads, threads, Runtime::Auto, shards);
        assert_eq!(end.started.as_deref(), expected, "{threads} threads: {end:?}");
        let count = threads.to_string();
        let reasons: &[&str] = match expected {
            Some("glommio") => &[],
            // The threads suffice for glommio, and io_uring is missing.
            Some(_) if (threads, shards) == (4, 1) => &["io_uring"],
            _ => &["ulimit -u", &count],
        };
        assert!(reasons.iter().all(|reason| end.text.contains(reason)), "{end:?}");
    }
}

#[test]
fn start_with_few_threads_is_refused_with_the_limit() {
    if !can_be_another_user() {
        return;
    }
    for runtime in runtimes() {
        for (threads, shards) in [(2, 1), (2, 4), (4, 4)] {
            let end = start(Limit::Threads, threads, runtime, shards);
            let names_limit = end.text.contains("ulimit -u");
            assert!(end.started.is_none() && names_limit, "{runtime:?}, {threads}: {end:?}");
        }
    }
}

#[test]
fn start_with_little_address_space_works_or_is_refused_with_the_limit() {
    for runtime in [Runtime::Auto, Runtime::Glommio, Runtime::Tokio, Runtime::Thread] {
        for shards in [1, 4] {
            for mib in [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96] {
                let end = start(Limit::Memory, mib, runtime, shards);
                let names_limit = end.text.contains("ulimit -v");
                let cannot_run = runtime == Runtime::Glommio && !glommio_works();
                assert!(end.started.is_some() || names_limit || cannot_run, "{mib} MiB: {end:?}");
                assert!(mib > 1 || end.started.is_none(), "{mib} MiB: {end:?}");
            }
        }
    }
    if glommio_works() {
        // Some limit suffices for threads and not for executors of glommio. Which one it is depends
        // on the memory that the allocator takes for each thread.
        let falls_back = |mib| {
            let end = start(Limit::Memory, mib, Runtime::Auto, 4);
            end.started.as_deref() == Some("tokio") && end.text.contains("ulimit -v")
        };
        assert!((12..64).step_by(2).any(falls_back), "the start falls back at no limit");
        let end = start(Limit::Memory, 2_048, Runtime::Auto, 4);
        assert_eq!(end.started.as_deref(), Some("glommio"), "{end:?}");
    }
    assert!(getrlimit(Resource::As).current.is_none(), "only children have limits");
}

#[test]
fn start_without_address_space_for_its_capacity_names_that_limit_and_no_other() {
    for runtime in runtimes() {
        for mib in [50, 100, 150, 300] {
            let end = start_with_capacity(Limit::Memory, mib, runtime, 2, 1 << 22);
            assert!(end.started.is_none(), "{runtime:?}, {mib} MiB: {end:?}");
            let named = ["ulimit -v", "ulimit -u"].map(|limit| end.text.contains(limit));
            assert_eq!(named, [true, false], "{runtime:?}, {mib} MiB: {end:?}");
        }
    }
}

#[test]
fn start_with_little_locked_memory_works_or_names_the_limit() {
    if !can_be_another_user() || !glommio_works() {
        return;
    }
    assert!(start(Limit::Locked, 1_024, Runtime::Glommio, 1).started.is_some());
    // Only some kernels count what rings take.
    let [glommio, auto] =
        [Runtime::Glommio, Runtime::Auto].map(|runtime| start(Limit::Locked, 1_024, runtime, 32));
    let names_limit = |end: &End| end.text.contains("ulimit -l") && end.text.contains("1048576");
    assert!(glommio.started.is_some() || names_limit(&glommio), "{glommio:?}");
    assert!(auto.started.as_deref() == Some("glommio") || names_limit(&auto), "{auto:?}");
    assert!(auto.started.is_some(), "{auto:?}");
}
