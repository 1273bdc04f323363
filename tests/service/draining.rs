//! The law while shards are drained: threads and the shards themselves schedule, cancel, reset and
//! move timers, and all the while one shard after the other is emptied into the others. Every timer
//! has exactly one outcome, none is early, and whoever is told that a timer is gone is told the
//! truth.
//!
//! `COREWHEEL_SEED` repeats a run's choices, `COREWHEEL_OPS` sets how many there are.

#![allow(clippy::print_stdout, reason = "the seed and the sums are printed")]

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{
    CancelOutcome, Client, Closed, Fired, RemoteTask, ScheduleError, ShardId, ShutdownPolicy, Task,
    TimerHandle, TimerService, Timers,
};
use fastrand::Rng;

use crate::support::{Host, Running, block_on, builder, check_law, ms, wait_until};

const THREADS: u64 = 3;
const SHARDS: u16 = 3;
const BURST: u64 = 20;

/// How tasks have ended.
#[derive(Default)]
struct Ledger {
    made: AtomicU64,
    fired: AtomicU64,
    home: AtomicU64,
    returned: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    early: AtomicU64,
    lies: AtomicU64,
    shards_at_work: AtomicUsize,
}

/// What its scheduler and its handler know of a timer.
struct Known {
    /// The earliest moment that anybody has asked for.
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

/// A timer of which nobody else knows the name, but those who drain.
struct Mine {
    handle: TimerHandle,
    known: Arc<Known>,
}

impl Mine {
    /// Says beforehand that it may fire this early.
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

/// What a cancel by the only one who does says must be so. A shard that is closed says nothing.
fn settle<E>(ledger: &Ledger, known: &Known, outcome: Result<CancelOutcome<RemoteTask<Job>>, E>) {
    let Ok(outcome) = outcome else { return };
    match outcome {
        CancelOutcome::Cancelled { task: RemoteTask::Value(job), .. } => {
            job.end(|ledger| &ledger.home);
        }
        CancelOutcome::AlreadyFired | CancelOutcome::Stale => {
            let truth = known.ended.load(Ordering::SeqCst);
            ledger.lies.fetch_add(u64::from(!truth), Ordering::Relaxed);
        }
        // By a new name a cancel may come before its timer, which is then dropped.
        CancelOutcome::Overtook => {}
        _ => panic!("all tasks are values, and a client reaches every shard"),
    }
}

/// One operation from elsewhere.
fn remote_operation(
    client: &Client<Job>,
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
            match client.schedule_on(shard, after, job) {
                Ok(handle) => mine.push(Mine { handle, known }),
                Err(ScheduleError::Full(job)) => {
                    job.end(|ledger| &ledger.refused);
                    thread::yield_now();
                }
                Err(ScheduleError::Closed(job)) => job.end(|ledger| &ledger.refused),
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
            // By whichever name it is known from then on.
            let moved = client.move_to(mine[picked].handle, shard);
            if rng.bool()
                && let Ok(Ok(name)) = moved.wait()
            {
                mine[picked].handle = name;
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

/// A shard's part, in callbacks of its own core that schedule the next one.
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
                    Err(error) => error.into_task().end(|ledger| &ledger.refused),
                }
            }
            (5 | 6, Some(picked)) => {
                let Mine { handle, known } = mine.swap_remove(picked);
                match timers.cancel(handle) {
                    CancelOutcome::Cancelled { task: Task::Value(job), .. } => {
                        job.end(|ledger| &ledger.home);
                    }
                    CancelOutcome::Elsewhere(shard) => {
                        assert_ne!(shard, timers.shard_id());
                        timers.client().cancel_detached(handle);
                    }
                    CancelOutcome::AlreadyFired | CancelOutcome::Stale => {
                        let truth = known.ended.load(Ordering::SeqCst);
                        ledger.lies.fetch_add(u64::from(!truth), Ordering::Relaxed);
                    }
                    _ => panic!("all tasks are values, and were scheduled here"),
                }
            }
            (7, Some(picked)) => {
                if let Ok(name) =
                    timers.move_to(mine[picked].handle, ShardId::new(rng.u16(..SHARDS)))
                {
                    // Either name does.
                    if name.shard() == timers.shard_id() {
                        mine[picked].handle = name;
                    }
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
            // It is shut down.
            ledger.shards_at_work.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Empties one shard after the other into the others until it is told to stop.
fn drain_round(service: &TimerService<Job>, stop: &AtomicBool) -> (u64, u64) {
    let client = service.client();
    let (mut drains, mut moved) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        for shard in service.shards() {
            let others: Vec<_> = service.shards().filter(|other| *other != shard).collect();
            let answer: Result<_, Closed> = block_on(client.drain_shard(shard, &others));
            let Ok(report) = answer else { return (drains, moved) };
            let report = report.unwrap();
            assert_eq!(report.sleeps, 0);
            (drains, moved) = (drains + 1, moved + report.moved);
            thread::sleep(ms(1));
        }
    }
    (drains, moved)
}

/// Where `ends` names a policy the service is shut down by it amid all of it.
fn check(host: Host, operations: u64, seed: u64, ends: Option<ShutdownPolicy>) {
    let ledger = Arc::new(Ledger::default());
    // As many names as that are remembered by each shard; these are fewer.
    let builder = builder(usize::from(SHARDS)).capacity(1 << 20);
    let running = Running::start(host, builder, move |_| {
        move |fired: Fired<Job>, timers: &Timers<Job>| {
            // A shutdown may fire what is not due.
            let is_early = timers.now() < *fired.task.known.not_before.lock().unwrap();
            if is_early && ends != Some(ShutdownPolicy::Fire) {
                fired.task.ledger.early.fetch_add(1, Ordering::Relaxed);
            }
            fired.task.end(|ledger| &ledger.fired);
        }
    });
    let client = running.client();
    ledger.shards_at_work.store(usize::from(SHARDS), Ordering::SeqCst);
    for shard in running.service.shards() {
        let part = Part {
            ledger: Arc::clone(&ledger),
            rng: Rng::with_seed(seed ^ u64::from(shard.number())),
            mine: Vec::new(),
            left: operations,
        };
        let start = move |timers: &Timers<Job>| {
            // From here on it is a callback of its own core, and is not moved.
            let begun = timers.schedule_fn(Duration::ZERO, move |timers| part.burst(timers));
            assert!(begun.is_ok() || ends.is_some(), "it has just begun");
        };
        assert!(client.schedule_fn_on(shard, Duration::ZERO, start).is_ok(), "it has just begun");
    }
    let stop = AtomicBool::new(false);
    let ((drains, moved), report) = thread::scope(|scope| {
        let drainer = scope.spawn(|| drain_round(&running.service, &stop));
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
            // What is sent now is answered by nobody.
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
        assert!(joined.iter().all(Result::is_ok), "a thread does its part");
        (drainer.join().expect("all drains are answered"), report)
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
        if let RemoteTask::Value(job) = returned.task {
            job.end(|ledger| &ledger.returned);
        }
    }
    let sum = |of: fn(&corewheel::ShardCounts) -> u64| counts.iter().map(of).sum::<u64>();
    let read = |of: &AtomicU64| of.load(Ordering::SeqCst);
    let accepted = read(&ledger.made) - read(&ledger.refused);
    let (fired, home) = (read(&ledger.fired), read(&ledger.home));
    let (dropped, returned) = (read(&ledger.dropped), read(&ledger.returned));
    println!(
        "{host:?}: {accepted} accepted, {fired} fired, {home} brought home, {dropped} dropped by a \
         cancel, {returned} returned; {drains} drains moved {moved} of {}",
        sum(|counts| counts.moved_out),
    );
    counts.iter().for_each(check_law);
    assert_eq!(read(&ledger.early), 0, "{host:?}: none is early");
    assert_eq!(read(&ledger.lies), 0, "{host:?}: what is said to be gone is gone");
    assert_eq!(accepted, fired + home + dropped + returned, "{host:?}: each has one outcome");
    let cancelled = sum(|counts| counts.cancelled) - sum(|counts| counts.moved_out);
    if ends.is_none_or(|policy| policy == ShutdownPolicy::Return) {
        assert_eq!(cancelled, home + dropped, "{host:?}");
    }
    if ends.is_none() {
        assert_eq!(sum(|counts| counts.returned), returned, "{host:?}");
        assert!(moved > 0 && sum(|counts| counts.moved_out) >= moved, "{host:?}: it was drained");
    }
    assert_eq!(sum(|counts| counts.panicked), 0, "{host:?}");
}

#[test]
fn every_timer_has_one_outcome_while_its_shards_are_drained_into_each_other() {
    let seed =
        env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    let operations = env::var("COREWHEEL_OPS").map_or(2_000, |ops| ops.parse().unwrap());
    println!("COREWHEEL_SEED={seed}");
    for host in Host::all() {
        check(host, operations, seed, None);
    }
}

#[test]
fn every_timer_has_one_outcome_when_the_service_is_shut_down_amid_drains() {
    let seed =
        env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("COREWHEEL_SEED={seed}");
    for host in Host::all() {
        for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
            check(host, 100_000, seed, Some(policy));
        }
    }
}
