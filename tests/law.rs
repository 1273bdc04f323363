//! The law under load: four plain threads and two shards send each other a million schedules,
//! cancels and resets, and every accepted timer has exactly one outcome.
//!
//! Each payload counts its own outcome: a handler fires it, a cancel or the shutdown returns it, a
//! schedule is refused with it, or its shard drops it after a detached cancel. A payload is owned,
//! so it cannot end twice. The test compares these counts with those of the shards, so no payload
//! is lost and no outcome is wrong. It shares nothing with the code, and asks for no time.
//!
//! `COREWHEEL_OPS` sets the number of operations, `COREWHEEL_SEED` repeats the random choices of a
//! run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the seed and the sums are printed")]

#[path = "service/support/seeds.rs"]
#[allow(dead_code, reason = "the tests of the service use the rest")]
mod seeds;

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::Handle;
use corewheel::{
    CancelOutcome, Fired, Payload, Refused, ShardId, ShutdownPolicy, StartError, TimerId,
    TimerService, Timers,
};
use corewheel_glommio::Runtime;
use fastrand::Rng;

const THREADS: u64 = 4;
const SHARDS: u64 = 2;
/// Operations of one burst on a shard, between two of its turns.
const BURST: u64 = 50;
/// The most handles that all threads share.
const SHARED_MAX: usize = 256;
/// How long the test waits before it fails. Far longer than the test takes.
const PATIENCE: Duration = Duration::from_mins(2);

/// How many payloads have ended in which way.
#[derive(Default)]
struct Ledger {
    made: AtomicU64,
    fired: AtomicU64,
    cancelled: AtomicU64,
    returned: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    early: AtomicU64,
    /// Shards whose operations are not all executed.
    shards_at_work: AtomicUsize,
    /// Handles that any thread may cancel or reset.
    shared: Mutex<Vec<TimerId>>,
}

impl Ledger {
    fn swap_shared(&self, rng: &mut Rng, handle: TimerId) -> TimerId {
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
    /// The earliest deadline that a schedule or a reset has set.
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

    fn end(mut self, counter: impl FnOnce(&Ledger) -> &AtomicU64) {
        self.ended = true;
        counter(&self.ledger).fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A timer that its scheduler may cancel and reset.
struct Mine {
    handle: TimerId,
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

/// Notes a new deadline of a timer before the reset that sets it.
fn allow(not_before: &Mutex<Instant>, at: Instant) {
    let mut earliest = not_before.lock().unwrap();
    *earliest = (*earliest).min(at);
}

/// Executes one random operation of a client. `blocks` if this thread may wait for replies.
fn remote_operation(
    client: &Handle<Job>,
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
            match client.on(shard).schedule(after, job) {
                Ok(handle) => {
                    ledger.swap_shared(rng, handle);
                    mine.push(Mine { handle, not_before });
                }
                Err(Refused::Full(job) | Refused::Busy(job)) => {
                    job.end(|ledger| &ledger.refused);
                    thread::yield_now();
                }
                Err(refused) => panic!("the shard is open: {refused}"),
            }
        }
        (4 | 5, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            client.cancel_detached(handle);
        }
        (6, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            let reply = client.cancel(handle);
            // On a shard's thread no code reads the reply, and the payload is dropped with it.
            if blocks && let CancelOutcome::Cancelled { payload, .. } = reply.wait().unwrap() {
                let Payload::Value(job) = payload else { panic!("all payloads are values") };
                job.end(|ledger| &ledger.cancelled);
            }
        }
        (7, _) => {
            // A timer of another thread. Its shard may not have received the schedule yet.
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

/// Executes one random operation of a shard on itself.
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
                Err(error) => error.into_value().end(|ledger| &ledger.refused),
            }
        }
        (5..=7, Some(picked)) => {
            let Mine { handle, .. } = mine.swap_remove(picked);
            match timers.cancel(handle) {
                CancelOutcome::Cancelled { payload: Payload::Value(job), .. } => {
                    job.end(|ledger| &ledger.cancelled);
                }
                // A timer that the shard has sent to itself may still be in the lane.
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

/// The operations of a shard, on itself and on the other shard. Each callback executes a burst of
/// them and schedules the next callback.
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
                let client = &timers.handle();
                remote_operation(client, &self.ledger, &mut self.rng, &mut self.mine, false);
                // A local cancel needs a timer of this shard.
                self.mine.retain(|mine| mine.handle.shard() == timers.shard_id());
            }
        }
        self.left = self.left.saturating_sub(BURST);
        if self.left == 0 {
            self.ledger.shards_at_work.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let next = timers.schedule_fn(Duration::ZERO, move |timers| self.burst(timers));
        assert!(next.is_ok(), "the shard has room for a callback");
    }
}

/// Stops the thread that reads the statistics, even if the test panics.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads the statistics until `stop` is set, and checks the law for each reading. Returns how many
/// readings there were.
fn watch(service: &TimerService<Job>, stop: &AtomicBool) -> u64 {
    let mut readings = 0;
    while !stop.load(Ordering::Relaxed) {
        for shard in service.stats().shards {
            let counts = shard.counts;
            let scheduled = counts.scheduled_local + counts.scheduled_remote;
            let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
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

fn check(runtime: Runtime, operations: u64) {
    let ledger = Arc::new(Ledger::default());
    let builder = TimerService::builder()
        .shards(SHARDS as usize)
        .capacity(1 << 17)
        .lane_capacity(256)
        .runtime(runtime);
    let started = builder.start_with(|_| {
        |fired: Fired<Job>, timers: &Timers<Job>| {
            if timers.now() < *fired.payload.not_before.lock().unwrap() {
                fired.payload.ledger.early.fetch_add(1, Ordering::Relaxed);
            }
            fired.payload.end(|ledger| &ledger.fired);
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
    let seed = seeds::of_process();
    seeds::note(seed);
    let share = operations / (THREADS + SHARDS);

    ledger.shards_at_work.store(SHARDS as usize, Ordering::Relaxed);
    let client = service.handle();
    for shard in service.shards() {
        let part = Part {
            ledger: Arc::clone(&ledger),
            rng: Rng::with_seed(seed ^ u64::from(shard.number())),
            mine: Vec::new(),
            left: share,
        };
        let start = move |timers: &Timers<Job>| part.burst(timers);
        assert!(
            client.on(shard).schedule_fn(Duration::ZERO, start).is_ok(),
            "the shard has just started"
        );
    }
    let stop = AtomicBool::new(false);
    let readings = thread::scope(|scope| {
        let stopper = Stopper(&stop);
        let watcher = scope.spawn(|| watch(&service, &stop));
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let client = service.handle();
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
            worker.join().expect("a worker does not panic");
        }
        let begun = Instant::now();
        while ledger.shards_at_work.load(Ordering::Relaxed) > 0 {
            let panicked = service.stats().shards.iter().any(|shard| shard.counts.panicked > 0);
            assert!(!panicked, "{runtime:?}: a callback has panicked");
            assert!(begun.elapsed() < PATIENCE, "{runtime:?}: the shards do not finish");
            thread::sleep(Duration::from_millis(1));
        }
        drop(stopper);
        watcher.join().expect("the law holds for every reading")
    });
    compare_counts(runtime, service, &ledger, readings);
}

/// Shuts the service down and compares the counts of the payloads with those of the shards.
fn compare_counts(
    runtime: Runtime,
    service: TimerService<Job>,
    ledger: &Arc<Ledger>,
    readings: u64,
) {
    let report = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(report.dead, [], "{runtime:?}: no shard is dead");
    let counts: Vec<_> = report.shards.iter().map(|shard| shard.counts).collect();
    for returned in report.into_returned() {
        if let Payload::Value(job) = returned.payload {
            job.end(|ledger| &ledger.returned);
        }
    }
    let sum = |of: fn(&corewheel::stats::ShardCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let accepted = read(&ledger.made) - read(&ledger.refused);
    let fired = read(&ledger.fired);
    let (by_cancel, dropped) = (read(&ledger.cancelled), read(&ledger.dropped));
    let returned = read(&ledger.returned);
    println!(
        "{runtime:?}: {accepted} accepted, {} refused, {fired} fired, {by_cancel} returned by a \
         cancel, {dropped} dropped by a cancel, {returned} returned by the shutdown, {readings} \
         readings",
        read(&ledger.refused),
    );
    assert_eq!(read(&ledger.early), 0, "{runtime:?}: a timer is early");
    assert_eq!(accepted, fired + by_cancel + dropped + returned, "{runtime:?}: one outcome each");
    // The callbacks of the shards count as timers too, and all of them have fired.
    let calls = sum(|counts| counts.scheduled_local + counts.scheduled_remote) - accepted;
    assert_eq!(sum(|counts| counts.fired), fired + calls, "{runtime:?}");
    assert_eq!(sum(|counts| counts.cancelled), by_cancel + dropped, "{runtime:?}");
    assert_eq!(sum(|counts| counts.returned), returned, "{runtime:?}");
    assert_eq!(sum(|counts| counts.pending), 0, "{runtime:?}");
    assert_eq!(sum(|counts| counts.panicked), 0, "{runtime:?}");
    assert!(readings > 0, "{runtime:?}: the statistics were read");
}

#[test]
fn random_operations_from_all_threads_leave_each_timer_one_outcome() {
    let runtimes = [Runtime::Thread, Runtime::Tokio, Runtime::Glommio];
    for runtime in runtimes {
        check(runtime, operations() / runtimes.len() as u64);
    }
}
