//! Random commands during migrations: threads and the shards themselves schedule, cancel, reset and
//! migrate timers, while one shard after the other migrates all of its timers. Every timer has
//! exactly one outcome, no timer is early, and a cancel reports that a timer is gone only if it is.
//!
//! `COREWHEEL_SEED` repeats the random choices of a run, `COREWHEEL_OPS` sets the number of
//! commands.

#![allow(clippy::print_stdout, reason = "the seed and the sums are printed")]

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::sim::Thread;
use corewheel::{
    CancelOutcome, Fired, Payload, Refused, ReplyError, SendCall, ShardId, ShutdownPolicy, TimerId,
    TimerService, Timers,
};
use fastrand::Rng;

use crate::support::{Host, Running, block_on, builder, check_law, ms, wait_until};

const THREADS: u64 = 3;
const SHARDS: u16 = 3;
const BURST: u64 = 20;

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
    /// Cancels that reported a pending timer as gone.
    wrong: AtomicU64,
    shards_at_work: AtomicUsize,
}

/// The facts about a timer that its scheduler and its handler share.
struct Known {
    /// The earliest deadline that a schedule or a reset has set.
    not_before: Mutex<Instant>,
    ended: AtomicBool,
}

struct Job {
    known: Arc<Known>,
    ledger: Arc<Ledger>,
}

impl Job {
    fn new(ledger: &Arc<Ledger>, not_before: Instant) -> Self {
        ledger.made.fetch_add(1, Ordering::Relaxed);
        let known = Known { not_before: Mutex::new(not_before), ended: AtomicBool::new(false) };
        Self { known: Arc::new(known), ledger: Arc::clone(ledger) }
    }

    fn end(self, as_what: impl FnOnce(&Ledger) -> &AtomicU64) {
        self.known.ended.store(true, Ordering::SeqCst);
        as_what(&self.ledger).fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.known.ended.swap(true, Ordering::SeqCst) {
            self.ledger.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A timer that only its own thread cancels and resets.
struct Mine {
    handle: TimerId,
    known: Arc<Known>,
}

impl Mine {
    /// Notes a new deadline before the reset that sets it.
    fn allow(&self, at: Instant) {
        let mut earliest = self.known.not_before.lock().unwrap();
        *earliest = (*earliest).min(at);
    }
}

fn delay(rng: &mut Rng) -> Duration {
    match rng.u32(..10) {
        0..=5 => Duration::from_micros(rng.u64(..10_000)),
        6..=8 => ms(rng.u64(10..300)),
        _ => Duration::from_hours(1),
    }
}

/// Checks the outcome of a cancel by the only thread that cancels the timer. A closed shard gives
/// no outcome.
fn settle<E>(
    ledger: &Ledger,
    known: &Known,
    outcome: Result<CancelOutcome<Payload<Job, SendCall<Job>>>, E>,
) {
    let Ok(outcome) = outcome else { return };
    match outcome {
        CancelOutcome::Cancelled { payload: Payload::Value(job), .. } => {
            job.end(|ledger| &ledger.cancelled);
        }
        CancelOutcome::AlreadyFired | CancelOutcome::Stale => {
            let has_ended = known.ended.load(Ordering::SeqCst);
            ledger.wrong.fetch_add(u64::from(!has_ended), Ordering::Relaxed);
        }
        // A cancel with a new handle may come before its timer, which the shard then drops.
        CancelOutcome::Overtook => {}
        _ => panic!("all payloads are values, and a client reaches every shard"),
    }
}

/// Executes one random command of a client.
fn remote_operation(
    client: &Thread<Job>,
    ledger: &Arc<Ledger>,
    rng: &mut Rng,
    mine: &mut Vec<Mine>,
) {
    let shard = ShardId::new(rng.u16(..SHARDS));
    let picked = (!mine.is_empty()).then(|| rng.usize(..mine.len()));
    match (rng.u32(..20), picked) {
        (0..=8, _) | (_, None) => {
            let after = delay(rng);
            let job = Job::new(ledger, client.now() + after);
            let known = Arc::clone(&job.known);
            match client.on(shard).schedule(after, job) {
                Ok(handle) => mine.push(Mine { handle, known }),
                Err(Refused::Full(job) | Refused::Busy(job)) => {
                    job.end(|ledger| &ledger.refused);
                    thread::yield_now();
                }
                Err(refused) => refused.into_value().end(|ledger| &ledger.refused),
            }
        }
        (9 | 10, Some(picked)) => client.cancel_detached(mine.swap_remove(picked).handle),
        (11 | 12, Some(picked)) => {
            let Mine { handle, known } = mine.swap_remove(picked);
            settle(ledger, &known, client.cancel(handle).wait());
        }
        (13, Some(picked)) => {
            let some = mine.split_off(picked.max(mine.len().saturating_sub(20)));
            let handles: Vec<_> = some.iter().map(|mine| mine.handle).collect();
            if rng.bool() {
                client.cancel_many_detached(&handles);
                return;
            }
            let outcomes = client.cancel_many(&handles).wait().unwrap();
            for (mine, outcome) in some.iter().zip(outcomes) {
                settle(ledger, &mine.known, outcome);
            }
        }
        (14, Some(picked)) => {
            // Later commands use the old handle or the new handle.
            let reply = client.migrate(mine[picked].handle, shard);
            if rng.bool()
                && let Ok(Ok(handle)) = reply.wait()
            {
                mine[picked].handle = handle;
            }
        }
        (_, Some(picked)) => {
            let after = delay(rng);
            mine[picked].allow(client.now() + after);
            if rng.u32(..8) == 0 {
                let _ = client.reset(mine[picked].handle, after).wait();
            } else {
                client.reset_detached(mine[picked].handle, after);
            }
        }
    }
}

/// The commands of a shard's own core. Each callback executes some and schedules the next callback.
struct Part {
    ledger: Arc<Ledger>,
    rng: Rng,
    mine: Vec<Mine>,
    left: u64,
}

impl Part {
    fn operation(&mut self, timers: &Timers<Job>) {
        let Self { ledger, rng, mine, .. } = self;
        let picked = (!mine.is_empty()).then(|| rng.usize(..mine.len()));
        match (rng.u32(..10), picked) {
            (0..=4, _) | (_, None) => {
                let after = delay(rng);
                let job = Job::new(ledger, timers.now() + after);
                let known = Arc::clone(&job.known);
                match timers.schedule(after, job) {
                    Ok(handle) => mine.push(Mine { handle, known }),
                    Err(error) => error.into_value().end(|ledger| &ledger.refused),
                }
            }
            (5 | 6, Some(picked)) => {
                let Mine { handle, known } = mine.swap_remove(picked);
                match timers.cancel(handle) {
                    CancelOutcome::Cancelled { payload: Payload::Value(job), .. } => {
                        job.end(|ledger| &ledger.cancelled);
                    }
                    CancelOutcome::Elsewhere(shard) => {
                        assert_ne!(shard, timers.shard_id());
                        timers.handle().cancel_detached(handle);
                    }
                    CancelOutcome::AlreadyFired | CancelOutcome::Stale => {
                        let has_ended = known.ended.load(Ordering::SeqCst);
                        ledger.wrong.fetch_add(u64::from(!has_ended), Ordering::Relaxed);
                    }
                    _ => panic!("all payloads are values, and were scheduled here"),
                }
            }
            (7, Some(picked)) => {
                let to = ShardId::new(rng.u16(..SHARDS));
                // The old handle stays valid if the timer leaves this shard.
                if let Ok(handle) = timers.migrate(mine[picked].handle, to)
                    && handle.shard() == timers.shard_id()
                {
                    mine[picked].handle = handle;
                }
            }
            (_, Some(picked)) => {
                let after = delay(rng);
                mine[picked].allow(timers.now() + after);
                let _ = timers.reset(mine[picked].handle, after);
            }
        }
    }

    fn burst(mut self, timers: &Timers<Job>) {
        for _ in 0..BURST.min(self.left) {
            self.operation(timers);
        }
        self.left = self.left.saturating_sub(BURST);
        if self.left == 0 {
            self.ledger.shards_at_work.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let ledger = Arc::clone(&self.ledger);
        if timers.schedule_fn(ms(1), move |timers| self.burst(timers)).is_err() {
            // The service is shut down.
            ledger.shards_at_work.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Migrates all timers of one shard after the other to the other shards, until `stop` is set.
/// Returns how many `migrate_all` commands and how many migrated timers there were.
fn migrate_all_in_turn(service: &TimerService<Job>, stop: &AtomicBool) -> (u64, u64) {
    let client = Thread::of(service);
    let (mut commands, mut migrated) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        for shard in service.shards() {
            let others: Vec<_> = service.shards().filter(|other| *other != shard).collect();
            let reply: Result<_, ReplyError> = block_on(client.migrate_all(shard, &others));
            let Ok(report) = reply else { return (commands, migrated) };
            let report = report.unwrap();
            assert_eq!(report.sleeps, 0);
            (commands, migrated) = (commands + 1, migrated + report.migrated);
            thread::sleep(ms(1));
        }
    }
    (commands, migrated)
}

/// Starts the commands of each shard's own thread.
fn start_parts(
    running: &Running<Job>,
    ledger: &Arc<Ledger>,
    operations: u64,
    seed: u64,
    may_end: bool,
) {
    let client = running.client();
    ledger.shards_at_work.store(usize::from(SHARDS), Ordering::SeqCst);
    for shard in running.service.shards() {
        let part = Part {
            ledger: Arc::clone(ledger),
            rng: Rng::with_seed(seed ^ u64::from(shard.number())),
            mine: Vec::new(),
            left: operations,
        };
        let start = move |timers: &Timers<Job>| {
            // A callback that is scheduled on its own core does not migrate.
            let begun = timers.schedule_fn(Duration::ZERO, move |timers| part.burst(timers));
            assert!(begun.is_ok() || may_end, "the shard has just started");
        };
        assert!(
            client.on(shard).schedule_fn(Duration::ZERO, start).is_ok(),
            "the shard has just started"
        );
    }
}

/// Runs random commands on a host and checks the outcomes. If `ends` is a policy, the service is
/// shut down by it while the commands run.
fn check(host: Host, operations: u64, seed: u64, ends: Option<ShutdownPolicy>) {
    let ledger = Arc::new(Ledger::default());
    // A shard remembers as many old handles as its capacity, which is more than occur here.
    let builder = builder(usize::from(SHARDS)).capacity(1 << 20);
    let running = Running::start(host, builder, move |_| {
        move |fired: Fired<Job>, timers: &Timers<Job>| {
            // A shutdown may fire timers before their deadlines.
            let is_early = timers.now() < *fired.payload.known.not_before.lock().unwrap();
            if is_early && ends != Some(ShutdownPolicy::Fire) {
                fired.payload.ledger.early.fetch_add(1, Ordering::Relaxed);
            }
            fired.payload.end(|ledger| &ledger.fired);
        }
    });
    start_parts(&running, &ledger, operations, seed, ends.is_some());
    let stop = AtomicBool::new(false);
    let ((commands, migrated), report) = thread::scope(|scope| {
        let migrator = scope.spawn(|| migrate_all_in_turn(&running.service, &stop));
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (client, ledger, stop) = (running.client(), &ledger, &stop);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed.wrapping_add(1_000 + number));
                    let mut mine = Vec::new();
                    for _ in 0..operations {
                        if stop.load(Ordering::SeqCst) {
                            return;
                        }
                        remote_operation(&client, ledger, &mut rng, &mut mine);
                    }
                })
            })
            .collect();
        let report = ends.map(|policy| {
            thread::sleep(ms(20));
            let report = running.service.shutdown(policy).unwrap();
            // The workers go on for a while and send to closed shards.
            thread::sleep(ms(5));
            stop.store(true, Ordering::SeqCst);
            report
        });
        let joined: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let at_work = || ledger.shards_at_work.load(Ordering::SeqCst) > 0;
        if joined.iter().all(Result::is_ok) && ends.is_none() {
            wait_until("the shards are done", || !at_work());
        }
        stop.store(true, Ordering::SeqCst);
        assert!(joined.iter().all(Result::is_ok), "a thread has panicked");
        (migrator.join().expect("each `migrate_all` has a valid report"), report)
    });
    let report = match report {
        None => running.end(ShutdownPolicy::Return),
        Some(report) => {
            running.stop();
            report
        }
    };
    let counts: Vec<_> = report.shards.iter().map(|shard| shard.counts).collect();
    for returned in report.into_returned() {
        if let Payload::Value(job) = returned.payload {
            job.end(|ledger| &ledger.returned);
        }
    }
    let sum = |of: fn(&corewheel::stats::ShardCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let read = |of: &AtomicU64| of.load(Ordering::SeqCst);
    let accepted = read(&ledger.made) - read(&ledger.refused);
    let (fired, by_cancel) = (read(&ledger.fired), read(&ledger.cancelled));
    let (dropped, returned) = (read(&ledger.dropped), read(&ledger.returned));
    println!(
        "{host:?}: {accepted} accepted, {fired} fired, {by_cancel} returned by a cancel, {dropped} \
         dropped by a cancel, {returned} returned by the shutdown; {commands} `migrate_all` \
         migrated {migrated} of {}",
        sum(|counts| counts.migrated_out),
    );
    counts.iter().for_each(check_law);
    assert_eq!(read(&ledger.early), 0, "{host:?}: a timer is early");
    assert_eq!(read(&ledger.wrong), 0, "{host:?}: a cancel reports a pending timer as gone");
    assert_eq!(accepted, fired + by_cancel + dropped + returned, "{host:?}: one outcome each");
    let cancelled = sum(|counts| counts.cancelled) - sum(|counts| counts.migrated_out);
    if ends.is_none_or(|policy| policy == ShutdownPolicy::Return) {
        assert_eq!(cancelled, by_cancel + dropped, "{host:?}");
    }
    if ends.is_none() {
        assert_eq!(sum(|counts| counts.returned), returned, "{host:?}");
        assert!(
            migrated > 0 && sum(|counts| counts.migrated_out) >= migrated,
            "{host:?}: {migrated} timers have migrated"
        );
    }
    assert_eq!(sum(|counts| counts.panicked), 0, "{host:?}");
}

#[test]
fn every_timer_has_one_outcome_while_shards_migrate_into_each_other() {
    let seed =
        env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    let operations = env::var("COREWHEEL_OPS").map_or(2_000, |ops| ops.parse().unwrap());
    println!("COREWHEEL_SEED={seed}");
    for host in Host::all() {
        check(host, operations, seed, None);
    }
}

#[test]
fn every_timer_has_one_outcome_when_a_shutdown_interrupts_migrations() {
    let seed =
        env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("COREWHEEL_SEED={seed}");
    for host in Host::all() {
        for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
            check(host, 100_000, seed, Some(policy));
        }
    }
}
