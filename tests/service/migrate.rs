//! Timers that go to another shard by a cancel and a schedule, as the guide `per_core` shows: none
//! is lost and none has two outcomes, also where shards are full and where a shutdown comes
//! between. What has become of each timer is counted from what the calls and the handler say, and
//! shares nothing with the code.
//!
//! `COREWHEEL_SEED` repeats the random choices of a run, `COREWHEEL_OPS` sets the number of
//! commands of each thread.

#![allow(clippy::print_stdout, reason = "the seed and the sums are printed")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{
    CancelOutcome, Fired, Handle, Payload, Refused, ResetOutcome, ShardId, ShutdownPolicy, TimerId,
    Timers,
};
use fastrand::Rng;

use corewheel_test_support::{FAR, Host, Lab, OTHER, Running, SHARD, builder, check_law, look, ms};

const THREADS: usize = 3;
const SHARDS: u16 = 3;

/// A value of a timer: plain data, which code that is wrong could lose or deliver twice.
#[derive(Clone, Copy)]
struct Job {
    number: usize,
    /// The deadline that the job was scheduled with.
    due: Instant,
}

/// What has become of a timer that was to go to another shard.
enum Put {
    On(TimerId),
    /// Neither shard has room; the value is here.
    Back(Job),
    /// It has ended before, by the outcome that its shard has given it.
    Ended,
}

/// Puts a timer onto another shard, or back where it was if that shard has no room. `keeps` is
/// whether it keeps its deadline exactly, by the `Instant` in its value.
fn put_on(handle: Handle<Job>, timer: TimerId, there: ShardId, keeps: bool) -> Put {
    let Ok(outcome) = handle.cancel(timer).wait() else { return Put::Ended };
    let (remaining, mut job) = match outcome {
        CancelOutcome::Cancelled { remaining, payload: Payload::Value(job) } => (remaining, job),
        CancelOutcome::AlreadyFired | CancelOutcome::Stale => return Put::Ended,
        other => panic!("the reply to a cancel of a value is {other:?}"),
    };
    for shard in [there, timer.shard()] {
        let scheduled = if keeps {
            handle.on(shard).schedule(job.due, job)
        } else {
            handle.on(shard).schedule(remaining, job)
        };
        match scheduled.map_err(Refused::into_value) {
            Ok(timer) => return Put::On(timer),
            Err(back) => job = back,
        }
    }
    Put::Back(job)
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}", self.number)
    }
}

/// How often each job has ended.
struct Ledger {
    ends: Vec<AtomicU32>,
    early: AtomicU64,
    put: AtomicU64,
    came_back: AtomicU64,
    fired: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Self {
            ends: (0..jobs).map(|_| AtomicU32::new(0)).collect(),
            early: AtomicU64::new(0),
            put: AtomicU64::new(0),
            came_back: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    fn end(&self, job: Job) {
        self.ends[job.number].fetch_add(1, Ordering::SeqCst);
    }

    fn ends_of(&self, number: usize) -> u32 {
        self.ends[number].load(Ordering::SeqCst)
    }
}

fn delay(rng: &mut Rng) -> Duration {
    match rng.u32(..10) {
        0..=4 => Duration::from_micros(rng.u64(..8_000)),
        5..=7 => ms(rng.u64(8..100)),
        _ => FAR,
    }
}

/// The random commands of one thread, on timers of its own. `numbers` are those of its jobs.
fn work(
    handle: Handle<Job>,
    ledger: &Ledger,
    rng: &mut Rng,
    numbers: std::ops::Range<usize>,
    may_end: bool,
) {
    let mut mine: Vec<(usize, TimerId)> = Vec::new();
    for number in numbers.clone() {
        if ledger.stop.load(Ordering::SeqCst) {
            // The jobs that were never scheduled have ended here.
            (number..numbers.end).for_each(|left| {
                ledger.ends[left].fetch_add(1, Ordering::SeqCst);
            });
            return;
        }
        let shard = ShardId::new(rng.u16(..SHARDS));
        let after = delay(rng);
        let job = Job { number, due: handle.now() + after };
        match handle.on(shard).schedule(after, job).map_err(Refused::into_value) {
            Ok(timer) => mine.push((number, timer)),
            Err(job) => ledger.end(job),
        }
        for _ in 0..2 {
            if mine.is_empty() {
                break;
            }
            let (number, timer) = mine.swap_remove(rng.usize(..mine.len()));
            let has_ended = match rng.u32(..8) {
                0 => match handle.cancel(timer).wait() {
                    Ok(CancelOutcome::Cancelled { payload, .. }) => {
                        ledger.end(payload.into_value().expect("each timer has a value"));
                        false
                    }
                    Ok(CancelOutcome::AlreadyFired | CancelOutcome::Stale) => true,
                    Ok(other) => panic!("the reply to a cancel is {other:?}"),
                    Err(_closed) => false,
                },
                1 => {
                    // To later, so that the deadline in the value stays the earliest.
                    let reset = handle.reset(timer, handle.now() + FAR).wait();
                    let has_ended =
                        matches!(reset, Ok(ResetOutcome::AlreadyFired | ResetOutcome::Stale));
                    if reset == Ok(ResetOutcome::Reset) {
                        mine.push((number, timer));
                    }
                    has_ended
                }
                _ => match put_on(handle, timer, ShardId::new(rng.u16(..SHARDS)), rng.bool()) {
                    Put::On(timer) => {
                        ledger.put.fetch_add(1, Ordering::Relaxed);
                        mine.push((number, timer));
                        false
                    }
                    Put::Back(job) => {
                        ledger.came_back.fetch_add(1, Ordering::Relaxed);
                        ledger.end(job);
                        false
                    }
                    Put::Ended => !may_end,
                },
            };
            // A shutdown may have the timer already, and tells it in its report.
            if has_ended && !may_end {
                assert_eq!(ledger.ends_of(number), 1, "job {number} has ended, says its shard");
            }
        }
    }
}

/// Lets threads put timers onto other shards of a host. If `ends` is a policy, the service is shut
/// down by it while they do.
fn check(host: Host, operations: usize, seed: u64, ends: Option<ShutdownPolicy>) {
    let ledger = Ledger::new(THREADS * operations);
    let noted = Arc::clone(&ledger);
    // Far fewer slots than timers: shards are full again and again.
    let running = Running::start(host, builder(usize::from(SHARDS)).capacity(64), move |_| {
        let ledger = Arc::clone(&noted);
        move |fired: Fired<Job>, timers: &Timers<Job>| {
            // A shutdown may fire timers before their deadlines.
            if timers.now() < fired.payload.due && ends.is_none() {
                ledger.early.fetch_add(1, Ordering::Relaxed);
            }
            ledger.fired.fetch_add(1, Ordering::Relaxed);
            ledger.end(fired.payload);
        }
    });
    let handle = running.service.handle();
    let report = thread::scope(|scope| {
        for number in 0..THREADS {
            let ledger = &ledger;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed.wrapping_add(number as u64));
                let numbers = number * operations..(number + 1) * operations;
                work(handle, ledger, &mut rng, numbers, ends.is_some());
            });
        }
        ends.map(|policy| {
            thread::sleep(ms(10));
            let report = running.service.shutdown(policy).unwrap();
            // The threads go on for a while and send to closed shards.
            thread::sleep(ms(2));
            ledger.stop.store(true, Ordering::SeqCst);
            report
        })
    });
    let report = match report {
        None => running.end(ShutdownPolicy::Return),
        Some(report) => {
            running.stop();
            report
        }
    };
    report.shards.iter().for_each(|shard| check_law(&shard.counts));
    report.returned.into_iter().for_each(|one| {
        ledger.end(one.payload.into_value().expect("each timer has a value"));
    });
    let read = |of: &AtomicU64| of.load(Ordering::SeqCst);
    let (put, fired) = (read(&ledger.put), read(&ledger.fired));
    println!("{host:?}, {ends:?}: {put} put, {fired} fired, {} refused", read(&ledger.came_back));
    let wrong = (0..ledger.ends.len()).find(|number| ledger.ends_of(*number) != 1);
    let times = wrong.map(|number| (number, ledger.ends_of(number)));
    assert_eq!(times, None, "{host:?}, {ends:?}: a job and how often it has ended");
    assert_eq!(read(&ledger.early), 0, "{host:?}: a timer is early");
    assert!(ends.is_some() || put > 0 && fired > 0, "{host:?}: {put} were put, {fired} fired");
}

fn seed() -> u64 {
    let seed =
        env::var("COREWHEEL_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("COREWHEEL_SEED={seed}");
    seed
}

#[test]
fn timers_put_on_other_shards_by_threads_each_end_once() {
    let operations = env::var("COREWHEEL_OPS").map_or(400, |ops| ops.parse().unwrap());
    let seed = seed();
    for host in Host::all() {
        check(host, operations, seed, None);
    }
}

#[test]
fn timers_on_their_way_to_other_shards_each_end_once_at_a_shutdown() {
    let seed = seed();
    for host in Host::all() {
        for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire] {
            check(host, 20_000, seed, Some(policy));
        }
    }
}

#[test]
fn timer_put_on_another_shard_fires_there_at_its_deadline() {
    let mut lab = Lab::<u32>::new(builder(2));
    let (timers, client) = (lab.timers().clone(), lab.client());
    let due = timers.now() + ms(10);
    let timer = timers.schedule(due, 7).unwrap();
    lab.advance(ms(4));
    // On the shard's own core the cancel has its outcome at once.
    let outcome = timers.cancel(timer);
    let CancelOutcome::Cancelled { remaining, payload: Payload::Value(7) } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(remaining, ms(6));
    let there = client.on(OTHER).schedule(due, 7).unwrap();
    let mut old = client.cancel(timer);
    lab.settle();
    assert!(matches!(look(&mut old), Some(Ok(CancelOutcome::Stale))), "the old id is stale");
    assert_eq!((there.shard(), lab.counts().pending), (OTHER, 0));
    lab.advance(ms(5));
    assert_eq!(lab.fired(), []);
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [(7, 10)]);
    assert_eq!((lab.counts().fired, lab.counts_of(OTHER).fired), (0, 1));
    assert_eq!(timer.shard(), SHARD);
}
