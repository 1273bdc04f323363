//! A server in which one thing is wrong on purpose, to see what the statistics page says about it.
//!
//! ```text
//! cargo run --example stats_trouble -- stalled-task
//! ```
//!
//! Open the printed address in a browser. The server has two shards, and two threads send it the
//! timers of requests, most of which are cancelled. The trouble is always on shard 1:
//!
//! | argument | what is wrong |
//! |---|---|
//! | `none` | nothing |
//! | `stalled-task` | a task of the executor blocks it for 300 ms, twice a second |
//! | `slow-handler` | a callback takes 60 ms, five times a second |
//! | `flooded-lane` | a thread sends bursts of 4,000 requests |
//! | `leaking-class` | timers of the class `lease` are never cancelled |
//! | `busy-host` | other processes take all cores, and the shards have the least priority |
//! | `stuck-shard` | a callback does not return for 2.5 s, every five seconds |
//!
//! The server ends when its standard input does.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command")]

use std::error::Error;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::settings::WarningLimits;
use corewheel::stats::ShardStats;
use corewheel::{Handle, Runtime, ShardId, TimerService};
use corewheel_stats::StatsEndpoint;
use corewheel_stats::watchdog::watch;

const REQUEST: TimerClass = TimerClass::new("request");
const REPORT: TimerClass = TimerClass::new("report");
const LEASE: TimerClass = TimerClass::new("lease");
/// The shard that has the trouble.
const TROUBLED: ShardId = ShardId::new(1);
/// How old a lease may become.
const LEASE_AGE_MAX: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_hours(1);
/// How many processes are to take each core.
const PROCESSES_A_CORE: usize = 2;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn main() -> Result<(), Box<dyn Error>> {
    let trouble = std::env::args().nth(1).unwrap_or_else(|| "none".to_owned());
    if trouble == "spin" {
        return spin();
    }
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let spinning = if trouble == "busy-host" { take_cores()? } else { Vec::new() };
    let limits =
        WarningLimits { stuck: ms(1_000), class_age: LEASE_AGE_MAX, ..WarningLimits::default() };
    let builder = TimerService::builder()
        .name("trouble")
        .shards(2)
        .runtime(Runtime::Tokio)
        .unpinned()
        .classes([REQUEST, REPORT, LEASE])
        .lane_capacity(4_096)
        .overrun(ms(20))
        .warning_limits(limits);
    let service = if trouble == "busy-host" {
        // The shards' threads inherit the priority of this thread; the others keep theirs.
        let start = move || least_priority().map(|()| builder.start());
        thread::spawn(start).join().expect("the start does not panic")??
    } else {
        builder.start()?
    };
    let source = service.stats_source();
    thread::spawn(move || watch(source, tell));
    let endpoint = StatsEndpoint::start(service.stats_source(), "127.0.0.1:0")?;
    println!("http://{}/", endpoint.local_addr());
    for shard in service.shards() {
        let handle = service.handle();
        thread::spawn(move || send_requests(handle, shard));
    }
    make_trouble(&trouble, &service)?;
    // Its end says that the server is to end.
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(spinning);
    drop(endpoint);
    Ok(())
}

/// Prints what the watchdog has found.
fn tell(stuck: &ShardStats, is_hung: bool) {
    let (shard, since) = (stuck.shard, stuck.stuck_for());
    let (is_in_turn, class) = (stuck.turn_ns.is_some(), stuck.delivering);
    println!(
        "watchdog: {shard:?}, is_hung: {is_hung}, since: {since:?}, is_in_turn: {is_in_turn}, \
         class: {class:?}"
    );
}

/// Schedules the deadline of a request each millisecond, and cancels nine of ten ten milliseconds
/// later.
fn send_requests(handle: Handle, shard: ShardId) {
    let Ok(timers) = handle.on(shard).of_class(REQUEST) else { return };
    let mut open = std::collections::VecDeque::new();
    for number in 0_u64.. {
        // A request that is refused has no timer.
        if let Ok(timer) = timers.schedule_fn(ms(20 + number % 80), |_| {})
            && !number.is_multiple_of(10)
        {
            open.push_back(timer);
        }
        if open.len() > 10
            && let Some(timer) = open.pop_front()
        {
            handle.cancel_detached(timer);
        }
        sleep(ms(1));
    }
}

fn make_trouble(trouble: &str, service: &TimerService) -> Result<(), Box<dyn Error>> {
    let handle = service.handle();
    match trouble {
        "none" | "busy-host" => {}
        "stalled-task" => {
            drop(service.spawn_on(TROUBLED, |_| async {
                loop {
                    tokio::time::sleep(ms(200)).await;
                    // This is the mistake: it blocks the thread, and the task does not yield.
                    sleep(ms(300));
                }
            })?);
        }
        "slow-handler" => {
            thread::spawn(move || report(handle, ms(60), ms(200)));
        }
        "stuck-shard" => {
            thread::spawn(move || report(handle, ms(2_500), ms(5_000)));
        }
        "flooded-lane" => {
            thread::spawn(move || flood(handle));
        }
        "leaking-class" => {
            thread::spawn(move || leak(handle));
        }
        other => return Err(format!("there is no trouble {other:?}").into()),
    }
    Ok(())
}

/// Schedules callbacks that do not return before `work` is over.
fn report(handle: Handle, work: Duration, period: Duration) {
    let Ok(timers) = handle.on(TROUBLED).of_class(REPORT) else { return };
    loop {
        drop(timers.schedule_fn(ms(1), move |_| sleep(work)));
        sleep(period);
    }
}

/// Sends bursts of requests that fill a lane.
fn flood(handle: Handle) {
    let Ok(timers) = handle.on(TROUBLED).of_class(REPORT) else { return };
    let Ok(timer) = timers.schedule_fn(HOUR, |_| {}) else { return };
    loop {
        for _ in 0..4_000 {
            handle.reset_detached(timer, HOUR);
        }
        sleep(ms(20));
    }
}

/// Forgets the timers that it schedules.
fn leak(handle: Handle) {
    let Ok(timers) = handle.on(TROUBLED).of_class(LEASE) else { return };
    loop {
        drop(timers.schedule_fn(HOUR, |_| {}));
        sleep(ms(5));
    }
}

/// A process that ends with this one.
struct Spinning(Child);

impl Drop for Spinning {
    fn drop(&mut self) {
        // It has ended if it cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives the calling thread, and those that it starts, the least priority.
fn least_priority() -> io::Result<()> {
    #[cfg(unix)]
    rustix::process::nice(19)?;
    Ok(())
}

/// Starts processes that take all cores.
fn take_cores() -> Result<Vec<Spinning>, Box<dyn Error>> {
    let cores = thread::available_parallelism()?.get();
    let program = std::env::current_exe()?;
    let mut spinning = Vec::new();
    for _ in 0..cores * PROCESSES_A_CORE {
        let mut command = Command::new(&program);
        let child = command.arg("spin").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        spinning.push(Spinning(child));
    }
    Ok(spinning)
}

/// Computes until the standard input ends, as the process that started this one has ended then.
fn spin() -> Result<(), Box<dyn Error>> {
    thread::spawn(|| {
        let mut state = 1_u64;
        loop {
            state = std::hint::black_box(state.wrapping_mul(3));
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
