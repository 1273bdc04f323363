//! Three kinds of timers told apart by their classes, on real clocks, and a channel that fills up.
//!
//! ```text
//! cargo run --release --example classes
//! cargo run --release --example classes -- tokio 20000
//! ```
//!
//! A server's shards hold the deadline of each request, which comes from another thread and is
//! mostly cancelled by its answer; the idle timer of each connection, on the shard's own core; and
//! leases, whose ends are worked on by a thread of its own behind a small channel. It says what was
//! counted for each class when all is over, and fails if that does not add up: within a class, with
//! the counts of the shards, and with what the program itself has seen.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::class::TimerClass;
use corewheel::shutdown::ShutdownReport;
use corewheel::stats::{ClassStats, ServiceStats};
use corewheel::{Fired, Handle, Refused, ShutdownPolicy, TimerId, TimerService, Timers};
use corewheel_glommio::Runtime;

const REQUEST: TimerClass = TimerClass::new("request");
const IDLE: TimerClass = TimerClass::new("idle");
const LEASE: TimerClass = TimerClass::new("lease");

/// What the channel of the leases has room for.
const ROOM: usize = 8;
/// How soon a lease is tried again that found it full.
const AGAIN: Duration = Duration::from_millis(3);
/// When a connection that goes idle does.
const SILENCE: Duration = Duration::from_millis(10);
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// Most requests are.
fn is_answered(number: u64) -> bool {
    !number.is_multiple_of(7)
}

/// Some connections do.
fn goes_idle(number: u64) -> bool {
    number.is_multiple_of(3)
}

/// A callback for the thread of a shard.
type Call = Box<dyn FnOnce(&Timers<Job>) + Send>;

/// What a timer holds.
enum Job {
    Request(u64),
    Idle(u64),
    Lease(u64),
}

/// What the program has seen itself, by class.
#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    idle: AtomicU64,
    /// Leases that went into the channel, and those that found it full.
    leases: AtomicU64,
    refused: AtomicU64,
}

/// Handles a timer of a shard. Leases go into the channel, and are tried again where it is full.
fn handle(seen: &Seen, leases: &SyncSender<Job>, fired: Fired<Job>, timers: &Timers<Job>) {
    assert!(fired.deadline <= timers.now(), "a timer is early");
    let (Job::Request(number) | Job::Idle(number) | Job::Lease(number)) = fired.payload;
    tracing::debug!(number, "its time is up");
    let count = match fired.payload {
        Job::Request(_) => &seen.requests,
        Job::Idle(_) => &seen.idle,
        lease @ Job::Lease(_) => match leases.try_send(lease) {
            Ok(()) => &seen.leases,
            Err(TrySendError::Full(lease)) => {
                let leases = timers.of_class(LEASE).expect("it is a class of the service");
                leases.schedule(AGAIN, lease).expect("its timer has left room");
                &seen.refused
            }
            Err(TrySendError::Disconnected(_)) => return,
        },
    };
    count.fetch_add(1, Ordering::Relaxed);
}

/// Schedules until the shard has taken it in.
fn insist<K>(
    mut task: K,
    mut schedule: impl FnMut(K) -> Result<TimerId, Refused<K>>,
) -> Result<TimerId, Box<dyn Error>> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        task = match schedule(task) {
            Ok(timer) => return Ok(timer),
            Err(Refused::Full(task) | Refused::Busy(task)) if Instant::now() < give_up => task,
            Err(error) => return Err(error.to_string().into()),
        };
        thread::sleep(Duration::from_micros(200));
    }
}

/// Requests and leases come from this thread, idle timers from the shards' own cores.
fn drive(
    service: &TimerService<Job>,
    handle: Handle<Job>,
    count: u64,
) -> Result<(), Box<dyn Error>> {
    let shards: Vec<_> = service.shards().collect();
    for (number, shard) in (0..count).zip(shards.into_iter().cycle()) {
        let shard = handle.on(shard);
        let (request, lease) = (shard.of_class(REQUEST)?, shard.of_class(LEASE)?);
        let delay = Duration::from_millis(1 + number % 20);
        insist(Job::Lease(number), |job| lease.schedule(delay, job))?;
        let delay = Duration::from_millis(20);
        let deadline = insist(Job::Request(number), |job| request.schedule(delay, job))?;
        if is_answered(number) {
            handle.cancel_detached(deadline);
        }
        // A connection is opened on its shard.
        let connect: Call = Box::new(move |timers| {
            let silence = if goes_idle(number) { SILENCE } else { Duration::from_hours(1) };
            let idle = timers.of_class(IDLE).expect("it is a class of the service");
            let timer = idle.schedule(silence, Job::Idle(number)).expect("there is room for all");
            // Something was read from it.
            let _moved = timers.reset(timer, silence + Duration::from_millis(5));
        });
        insist(connect, |connect| Ok(shard.schedule_fn(Duration::ZERO, connect)?))?;
    }
    Ok(())
}

/// Works on leases that have ended, and looks that each of them comes once.
fn work_on(ended: &Receiver<Job>, count: u64) -> Result<(), String> {
    let mut leases: HashSet<u64> = (0..count).collect();
    while !leases.is_empty() {
        match ended.recv_timeout(PATIENCE).map_err(|error| error.to_string())? {
            Job::Lease(number) if leases.remove(&number) => {}
            Job::Lease(number) => return Err(format!("lease {number} has ended twice")),
            Job::Request(_) | Job::Idle(_) => return Err("it is no lease".to_owned()),
        }
    }
    Ok(())
}

/// Waits until the statistics say that something is done.
fn wait_for(
    service: &TimerService<Job>,
    is_done: impl Fn(&ServiceStats) -> bool,
) -> Result<(), &'static str> {
    let give_up = Instant::now() + PATIENCE;
    while !is_done(&service.stats()) {
        if Instant::now() > give_up {
            return Err("what must come does not come");
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What each shard has counted for each class, and all of them together.
fn print(report: &ShutdownReport<Job>, all: &[ClassStats]) {
    println!(
        "{:>5} {:>9} {:>10} {:>8} {:>10} {:>9} {:>6} {:>8}",
        "shard", "class", "scheduled", "fired", "cancelled", "returned", "late", "refused"
    );
    let line = |shard: &str, class: &ClassStats| {
        println!(
            "{:>5} {:>9} {:>10} {:>8} {:>10} {:>9} {:>6} {:>8}",
            shard,
            class.class,
            class.scheduled,
            class.fired,
            class.cancelled,
            class.returned,
            class.late,
            class.refused
        );
    };
    for shard in &report.shards {
        for class in &shard.classes {
            line(&shard.shard.to_string(), class);
        }
    }
    for class in all {
        line("all", class);
    }
}

fn check(what: &str, found: u64, expected: u64) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, but it should be {expected}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let runtime = match arguments.next().as_deref() {
        None | Some("auto") => Runtime::Auto,
        Some("glommio") => Runtime::Glommio,
        Some("tokio") => Runtime::Tokio,
        Some("thread") => Runtime::Thread,
        Some(other) => return Err(format!("there is no runtime {other}").into()),
    };
    let count: u64 = arguments.next().map_or(Ok(2_000), |count| count.parse())?;
    if !(64..=100_000).contains(&count) {
        return Err("the second argument is a number from 64 to 100000".into());
    }
    let seen = Arc::new(Seen::default());
    let (sender, ended) = sync_channel(ROOM);
    let for_shards = Arc::clone(&seen);
    let service = TimerService::builder()
        .shards(2)
        .runtime(runtime)
        .classes([REQUEST, IDLE, LEASE])
        .start_with(move |_| {
            let (seen, sender) = (Arc::clone(&for_shards), sender.clone());
            move |fired: Fired<Job>, timers: &Timers<Job>| handle(&seen, &sender, fired, timers)
        })?;
    println!("{count} of each class on {}", service.stats().runtime);

    drive(&service, service.handle(), count)?;
    // No worker has received a lease from the channel so far, so the channel fills up.
    wait_for(&service, |_| seen.refused.load(Ordering::Relaxed) > 0)?;
    let staying = count - (0..count).filter(|number| goes_idle(*number)).count() as u64;
    let worker = thread::spawn(move || work_on(&ended, count));
    worker.join().map_err(|_| "the worker has panicked")??;
    wait_for(&service, |stats| {
        let [request, idle, lease] = stats.classes()[..] else { return false };
        let opened = idle.scheduled == count && idle.pending == staying;
        opened && request.pending + lease.pending == 0
    })?;
    let oldest = service.stats().classes()[1].oldest;
    println!("the oldest connection has been there for {:.1?}", oldest.unwrap_or_default());
    let report = service.shutdown(ShutdownPolicy::Return)?;
    let all = service.stats().classes();
    print(&report, &all);

    for class in report.shards.iter().flat_map(|shard| &shard.classes).chain(&all) {
        let ended = class.fired + class.cancelled + class.returned + class.dropped;
        check(class.class, class.pending + ended, class.scheduled)?;
        check("pending after the end", class.pending, 0)?;
    }
    let [request, idle, lease] = &all[..] else { return Err("there are three classes".into()) };
    // An answer can come too late.
    let answered = (0..count).filter(|number| is_answered(*number)).count() as u64;
    let late = answered - request.cancelled.min(answered);
    check("requests", request.scheduled, count)?;
    check("requests out of time", request.fired, count - answered + late)?;
    check("requests seen", seen.requests.load(Ordering::Relaxed), request.fired)?;
    check("connections", idle.scheduled, count)?;
    check("idle connections", idle.fired, count - staying)?;
    check("idle connections seen", seen.idle.load(Ordering::Relaxed), idle.fired)?;
    check("connections at the end", idle.returned, staying)?;
    let again = seen.refused.load(Ordering::Relaxed);
    println!("{count} leases sent, {again} times into a full channel");
    check("leases", lease.scheduled, count + again)?;
    check("leases sent", seen.leases.load(Ordering::Relaxed), count)?;
    let returned = u64::try_from(report.into_returned().count())?;
    check("timers handed back", returned, all.iter().map(|class| class.returned).sum())?;
    println!("it adds up");
    Ok(())
}
