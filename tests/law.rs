//! The law, under load: four plain threads and two shards schedule, cancel and reset onto each
//! other, a million operations in all, and every accepted timer has exactly one outcome.
//!
//! A task knows what became of it: it is fired by a handler, brought home by a cancel or by the
//! shutdown, refused, or dropped by its shard after a cancel that asked for no answer. As it is
//! owned, it cannot end twice; that none is lost, and that everybody was told the truth, is what is
//! counted here.
//!
//! `COREWHEEL_OPS` sets the number of operations, `COREWHEEL_SEED` repeats a run's choices.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the seed and the sums are printed")]

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{
    CancelOutcome, Client, Fired, RemoteTask, Runtime, ScheduleError, ShardId, ShutdownPolicy,
    StartError, Task, TimerHandle, TimerService, Timers,
};
use fastrand::Rng;

const THREADS: u64 = 4;
const SHARDS: u64 = 2;
/// Operations of one burst on a shard, between two of its turns.
const BURST: u64 = 50;
/// Handles that others may pick from.
const SHARED_MAX: usize = 256;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(2);

/// How tasks have ended, and what cancellers were told.
#[derive(Default)]
struct Ledger {
    made: AtomicU64,
    fired: AtomicU64,
    home: AtomicU64,
    returned: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    early: AtomicU64,
    /// Shards that are still at it.
    shards_at_work: AtomicUsize,
    /// Handles that anybody may cancel or reset.
    shared: Mutex<Vec<TimerHandle>>,
}

impl Ledger {
    fn swap_shared(&self, rng: &mut Rng, handle: TimerHandle) -> TimerHandle {
        let mut shared = self.shared.lock().unwrap();
        if shared.len() < SHARED_MAX {
            shared.push(handle);
            return handle;
        }
        let index = rng.usize(..shared.len());
        std::mem::replace(&mut shared[index], handle)
    }
}

struct Job {
    /// The earliest moment that anybody has asked for; a reset may make it earlier.
    not_before: Arc<Mutex<Instant>>,
    ledger: Arc<Ledger>,
    ended: bool,
}

impl Job {
    fn new(ledger: &Arc<Ledger>, not_before: Instant) -> Self {
        ledger.made.fetch_add(1, Ordering::Relaxed);
        let not_before = Arc::new(Mutex::new(not_before));
        Self { not_before, ledger: Arc::clone(ledger), ended: false }
    }

    fn end(mut self, as_what: impl FnOnce(&Ledger) -> &AtomicU64) {
        self.ended = true;
        as_what(&self.ledger).fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A timer that its scheduler remembers, with what it needs to move it.
struct Mine {
    handle: TimerHandle,
    not_before: Arc<Mutex<Instant>>,
}

fn delay(rng: &mut Rng) -> Duration {
    match rng.u32(..10) {
        0 => Duration::ZERO,
        1..=6 => Duration::from_micros(rng.u64(..20_000)),
        7 | 8 => Duration::from_millis(rng.u64(20..2_000)),
        _ => Duration::from_hours(1),
    }
}

/// Says beforehand that a timer may fire this early.
fn allow(not_before: &Mutex<Instant>, at: Instant) {
    let mut earliest = not_before.lock().unwrap();
    *earliest = (*earliest).min(at);
}

/// One operation from elsewhere. `blocks` if this thread may wait for answers.
fn remote_operation(
    client: &Client<Job>,
    ledger: &Arc<Ledger>,
    rng: &mut Rng,
    mine: &mut Vec<Mine>,
    blocks: bool,
) {
    let shard = ShardId::new(rng.u16(..SHARDS as u16));
    let picked = (!mine.is_empty()).then(|| rng.usize(..mine.len()));
    match (rng.u32(..10), picked) {
        (0..=3, _) | (_, None) => {
            let after = delay(rng);
            let job = Job::new(ledger, client.now() + after);
            let not_before = Arc::clone(&job.not_before);
            match client.schedule_on(shard, after, job) {
                Ok(handle) => {
                    ledger.swap_shared(rng, handle);
                    mine.push(Mine { handle, not_before });
                }
                Err(ScheduleError::Full(job)) => {
                    job.end(|ledger| &ledger.refused);
                    thread::yield_now();
                }
                Err(ScheduleError::Closed(_)) => panic!("nobody has closed it"),
            }
        }
        (4 | 5, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            client.cancel_detached(handle);
        }
        (6, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            let answer = client.cancel(handle);
            // On a shard nobody looks at the answer: the task is dropped with it.
            if blocks && let CancelOutcome::Cancelled { task, .. } = answer.wait().unwrap() {
                let RemoteTask::Value(job) = task else { panic!("all tasks are values") };
                job.end(|ledger| &ledger.home);
            }
        }
        (7, _) => {
            // Somebody else's, which may not even have come to its shard.
            let stranger = ledger.shared.lock().unwrap().first().copied();
            if let Some(stranger) = stranger {
                let replacement = mine.first().map_or(stranger, |mine| mine.handle);
                client.cancel_detached(ledger.swap_shared(rng, replacement));
            }
        }
        (_, Some(picked)) => {
            let after = delay(rng);
            allow(&mine[picked].not_before, client.now() + after);
            if blocks && rng.u32(..10) == 0 {
                let _ = client.reset(mine[picked].handle, after).wait().unwrap();
            } else {
                client.reset_detached(mine[picked].handle, after);
            }
        }
    }
    mine.truncate(1_000);
}

/// One operation of a shard on itself.
fn local_operation(
    timers: &Timers<Job>,
    ledger: &Arc<Ledger>,
    rng: &mut Rng,
    mine: &mut Vec<Mine>,
) {
    let picked = (!mine.is_empty()).then(|| rng.usize(..mine.len()));
    match (rng.u32(..10), picked) {
        (0..=4, _) | (_, None) => {
            let after = delay(rng);
            let job = Job::new(ledger, timers.now() + after);
            let not_before = Arc::clone(&job.not_before);
            match timers.schedule(after, job) {
                Ok(handle) => {
                    ledger.swap_shared(rng, handle);
                    mine.push(Mine { handle, not_before });
                }
                Err(error) => error.into_task().end(|ledger| &ledger.refused),
            }
        }
        (5..=7, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            match timers.cancel(handle) {
                CancelOutcome::Cancelled { task: Task::Value(job), .. } => {
                    job.end(|ledger| &ledger.home);
                }
                // One that the shard has sent to itself may still be under way.
                CancelOutcome::Overtook | CancelOutcome::AlreadyFired | CancelOutcome::Stale => {}
                _ => panic!("a shard knows its own timers"),
            }
        }
        (_, Some(picked)) => {
            let after = delay(rng);
            allow(&mine[picked].not_before, timers.now() + after);
            let _ = timers.reset(mine[picked].handle, after);
        }
    }
    mine.truncate(1_000);
}

/// A shard's part: bursts of operations, on itself and on the other, in callbacks that schedule the
/// next one.
struct Part {
    ledger: Arc<Ledger>,
    rng: Rng,
    mine: Vec<Mine>,
    left: u64,
}

impl Part {
    fn burst(mut self, timers: &Timers<Job>) {
        for _ in 0..BURST.min(self.left) {
            if self.rng.bool() {
                local_operation(timers, &self.ledger, &mut self.rng, &mut self.mine);
            } else {
                let client = timers.client();
                remote_operation(client, &self.ledger, &mut self.rng, &mut self.mine, false);
                // Those of the other shard are not this one's to cancel locally.
                self.mine.retain(|mine| mine.handle.shard() == timers.shard_id());
            }
        }
        self.left = self.left.saturating_sub(BURST);
        if self.left == 0 {
            self.ledger.shards_at_work.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let next = timers.schedule_fn(Duration::ZERO, move |timers| self.burst(timers));
        assert!(next.is_ok(), "there is room for one callback");
    }
}

/// Stops the watcher, also when a part of the test fails.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads the statistics until it is told to stop, and holds every reading against the law.
fn watch(service: &TimerService<Job>, stop: &AtomicBool) -> u64 {
    let mut readings = 0;
    while !stop.load(Ordering::Relaxed) {
        for shard in service.stats().shards {
            let counts = shard.counts;
            let scheduled = counts.scheduled_local + counts.scheduled_remote;
            let ended = counts.fired + counts.cancelled + counts.returned;
            assert_eq!(scheduled.checked_sub(ended), Some(counts.pending), "{counts:?}");
            assert!(counts.pending <= counts.capacity, "{counts:?}");
            readings += 1;
        }
        thread::sleep(Duration::from_micros(200));
    }
    readings
}

fn operations() -> u64 {
    env::var("COREWHEEL_OPS").map_or(1_000_000, |ops| ops.parse().expect("COREWHEEL_OPS counts"))
}

fn seed() -> u64 {
    env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap())
}

fn check(runtime: Runtime, operations: u64) {
    let ledger = Arc::new(Ledger::default());
    let builder = TimerService::builder()
        .shards(SHARDS as usize)
        .capacity(1 << 17)
        .lane_capacity(256)
        .runtime(runtime);
    let started = builder.start_with(|_| {
        |fired: Fired<Job>, timers: &Timers<Job>| {
            if timers.now() < *fired.task.not_before.lock().unwrap() {
                fired.task.ledger.early.fetch_add(1, Ordering::Relaxed);
            }
            fired.task.end(|ledger| &ledger.fired);
        }
    });
    let service = match started {
        Ok(service) => service,
        Err(StartError::Runtime { reason, .. }) => {
            eprintln!("{runtime:?} is left out: {reason}");
            return;
        }
        Err(error) => panic!("{runtime:?}: {error}"),
    };
    let seed = seed();
    println!("{runtime:?}: COREWHEEL_SEED={seed}");
    let share = operations / (THREADS + SHARDS);

    ledger.shards_at_work.store(SHARDS as usize, Ordering::Relaxed);
    let client = service.client();
    for shard in service.shards() {
        let part = Part {
            ledger: Arc::clone(&ledger),
            rng: Rng::with_seed(seed ^ u64::from(shard.number())),
            mine: Vec::new(),
            left: share,
        };
        let start = move |timers: &Timers<Job>| part.burst(timers);
        assert!(client.schedule_fn_on(shard, Duration::ZERO, start).is_ok(), "it has just begun");
    }
    let stop = AtomicBool::new(false);
    let readings = thread::scope(|scope| {
        let stopper = Stopper(&stop);
        let watcher = scope.spawn(|| watch(&service, &stop));
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let client = service.client();
                let ledger = Arc::clone(&ledger);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed.wrapping_add(1_000 + number));
                    let mut mine = Vec::new();
                    for _ in 0..share {
                        remote_operation(&client, &ledger, &mut rng, &mut mine, true);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("a thread does its part");
        }
        let begun = Instant::now();
        while ledger.shards_at_work.load(Ordering::Relaxed) > 0 {
            let calm = service.stats().shards.iter().all(|shard| shard.counts.panicked == 0);
            assert!(calm, "{runtime:?}: a shard's part has panicked");
            assert!(begun.elapsed() < PATIENCE, "{runtime:?}: the shards do not come to their end");
            thread::sleep(Duration::from_millis(1));
        }
        drop(stopper);
        watcher.join().expect("every reading holds")
    });
    settle_accounts(runtime, service, &ledger, readings);
}

/// Shuts the service down and compares what everybody has counted.
fn settle_accounts(
    runtime: Runtime,
    service: TimerService<Job>,
    ledger: &Arc<Ledger>,
    readings: u64,
) {
    let report = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(report.dead, [], "{runtime:?}: all shards live to the end");
    let counts: Vec<_> = report.shards.iter().map(|shard| shard.counts).collect();
    for returned in report.into_returned() {
        if let RemoteTask::Value(job) = returned.task {
            job.end(|ledger| &ledger.returned);
        }
    }
    let sum = |of: fn(&corewheel::ShardCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let accepted = read(&ledger.made) - read(&ledger.refused);
    let fired = read(&ledger.fired);
    let (home, dropped) = (read(&ledger.home), read(&ledger.dropped));
    let returned = read(&ledger.returned);
    println!(
        "{runtime:?}: {accepted} accepted, {} refused, {fired} fired, {home} brought home, \
         {dropped} dropped by a cancel, {returned} returned, {readings} readings",
        read(&ledger.refused),
    );
    assert_eq!(read(&ledger.early), 0, "{runtime:?}: none is early");
    assert_eq!(accepted, fired + home + dropped + returned, "{runtime:?}: each has one outcome");
    // The shards' own callbacks count as timers too, and all of them have fired.
    let calls = sum(|counts| counts.scheduled_local + counts.scheduled_remote) - accepted;
    assert_eq!(sum(|counts| counts.fired), fired + calls, "{runtime:?}");
    assert_eq!(sum(|counts| counts.cancelled), home + dropped, "{runtime:?}");
    assert_eq!(sum(|counts| counts.returned), returned, "{runtime:?}");
    assert_eq!(sum(|counts| counts.pending), 0, "{runtime:?}");
    assert_eq!(sum(|counts| counts.panicked), 0, "{runtime:?}");
    assert!(readings > 0, "{runtime:?}: the statistics were read");
}

#[test]
fn a_million_operations_from_everywhere_leave_each_timer_one_outcome() {
    let runtimes = [Runtime::Thread, Runtime::Tokio, Runtime::Glommio];
    for runtime in runtimes {
        check(runtime, operations() / runtimes.len() as u64);
    }
}
