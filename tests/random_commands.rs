//! Random commands on every host of a shard, over lanes that are nearly always full, also while the
//! service shuts down: every accepted timer fires, is cancelled or is returned, exactly once and
//! never early, and the counts of the shards obey the law at every moment.
//!
//! The test records the end of each timer, and compares the outcomes that the threads got with
//! these records. It shares nothing with the code, and says of a deadline only that no timer is
//! early.
//!
//! * `COREWHEEL_OPS` sets the number of commands, on all hosts together;
//! * `COREWHEEL_SEED` repeats the random choices of an earlier run. The order of the threads may
//!   differ.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::shutdown::ShutdownReport;
use corewheel::sim::Thread;
use corewheel::{
    CancelOutcome, Fired, Payload, Refused, RefusedKind, Reply, ReplyError, ShardId,
    ShutdownPolicy, TimerId, TimerService, Timers,
};
use fastrand::Rng;

use corewheel_test_support::{Host, Running, check_law, ms, seeds};

const THREADS: u64 = 4;
const SHARDS: u16 = 2;
/// The most handles that all threads share.
const SHARED_MAX: usize = 512;

/// The end of a timer. Each end has two bits of the timer's record, which count it.
#[derive(Clone, Copy)]
enum End {
    Fired = 0,
    /// Returned by a cancel.
    Cancelled = 2,
    /// Dropped by a detached cancel.
    Dropped = 4,
    /// Returned by a shutdown or a refusal.
    Returned = 6,
}

/// The records of all timers.
struct Ledger {
    base: Instant,
    /// The id of the next timer.
    next: AtomicU32,
    /// The counted ends of each timer.
    ends: Vec<AtomicU8>,
    /// The earliest deadline that a schedule or a reset has set, in nanoseconds from `base`.
    earliest: Vec<AtomicU64>,
    /// Handles that any thread may cancel and reset, with their ids.
    shared: Vec<Mutex<Option<(TimerId, u32)>>>,
    /// Whether a shutdown fires timers before their deadlines.
    fires_at_end: bool,
    seed: u64,
}

/// A payload that records its end. A drop without another end is recorded as dropped.
struct Job {
    id: u32,
    ledger: Arc<Ledger>,
    ended: bool,
}

impl Job {
    fn end(mut self, end: End) {
        self.ended = true;
        self.ledger.record(self.id, end);
    }

    fn fire(self, now: Instant) {
        let ledger = Arc::clone(&self.ledger);
        let earliest = ledger.earliest[self.id as usize].load(Ordering::SeqCst);
        let earliest = ledger.base + Duration::from_nanos(earliest);
        // Recorded first, so that a panic is not recorded as a drop.
        let id = self.id;
        self.end(End::Fired);
        let may_fire = now >= earliest || ledger.fires_at_end;
        assert!(may_fire, "timer {id} is early by {:?}", earliest - now);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.record(self.id, End::Dropped);
        }
    }
}

impl Ledger {
    fn new(commands: u64, base: Instant, seed: u64, fires_at_end: bool) -> Arc<Self> {
        // Each command makes at most one timer, and the shards make some more.
        let size = commands as usize * 2;
        Arc::new(Self {
            base,
            next: AtomicU32::new(0),
            ends: (0..size).map(|_| AtomicU8::new(0)).collect(),
            earliest: (0..size).map(|_| AtomicU64::new(u64::MAX)).collect(),
            shared: (0..SHARED_MAX).map(|_| Mutex::new(None)).collect(),
            fires_at_end,
            seed,
        })
    }

    fn record(&self, id: u32, end: End) {
        self.ends[id as usize].fetch_add(1 << end as u8, Ordering::SeqCst);
    }

    /// Records a new deadline of a timer before the command that sets it.
    fn record_deadline(&self, id: u32, at: Instant) {
        let nanos = at.saturating_duration_since(self.base).as_nanos() as u64;
        self.earliest[id as usize].fetch_min(nanos, Ordering::SeqCst);
    }

    /// A new payload; `None` if the ledger is full.
    fn job(self: &Arc<Self>, at: Instant) -> Option<Job> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        if id as usize >= self.ends.len() {
            return None;
        }
        self.record_deadline(id, at);
        Some(Job { id, ledger: Arc::clone(self), ended: false })
    }

    fn share(&self, rng: &mut Rng, handle: TimerId, id: u32) {
        *self.shared[rng.usize(..SHARED_MAX)].lock().unwrap() = Some((handle, id));
    }

    fn pick(&self, rng: &mut Rng) -> Option<(TimerId, u32)> {
        *self.shared[rng.usize(..SHARED_MAX)].lock().unwrap()
    }
}

fn delay(rng: &mut Rng) -> Duration {
    match rng.u8(..20) {
        0 => Duration::ZERO,
        1 => Duration::from_secs(rng.u64(1..10_000)),
        2 => Duration::MAX,
        3..=6 => ms(rng.u64(..300)),
        _ => Duration::from_micros(rng.u64(..4_000)),
    }
}

/// The moment `delay` after `now`; `now` if the delay does not fit, since such a timer never fires.
fn moment(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or(now)
}

/// The handler of a shard. It records the end of the timer and sometimes executes random commands.
fn handler(ledger: Arc<Ledger>, shard: ShardId) -> impl FnMut(Fired<Job>, &Timers<Job>) {
    let mut rng = Rng::with_seed(ledger.seed ^ (u64::from(shard.number()) << 32));
    move |fired, timers| {
        let now = timers.now();
        assert!(fired.deadline <= now || ledger.fires_at_end, "a timer is early");
        fired.payload.fire(now);
        if rng.u8(..8) > 0 {
            return;
        }
        let delay = delay(&mut rng);
        let Some(job) = ledger.job(moment(now, delay)) else { return };
        let id = job.id;
        let other = ShardId::new(rng.u16(..SHARDS));
        let scheduled = if rng.bool() {
            timers.schedule(delay, job)
        } else {
            timers.handle().on(other).schedule(delay, job)
        };
        match scheduled {
            Ok(handle) => ledger.share(&mut rng, handle, id),
            Err(error) => error.into_value().end(End::Returned),
        }
        let Some((handle, id)) = ledger.pick(&mut rng) else { return };
        match rng.u8(..4) {
            0 => match timers.cancel(handle) {
                CancelOutcome::Cancelled { payload, .. } => end_cancelled(payload.into_value()),
                CancelOutcome::Elsewhere(_) => timers.handle().cancel_detached(handle),
                _ => {}
            },
            1 => timers.handle().cancel_detached(handle),
            _ => {
                ledger.record_deadline(id, moment(now, delay));
                let _ = timers.reset(handle, delay);
                timers.handle().reset_detached(handle, delay);
            }
        }
    }
}

/// Records the end of a cancelled value. A cancelled callback is dropped instead, and its payload
/// records that itself.
fn end_cancelled(job: Option<Job>) {
    if let Some(job) = job {
        job.end(End::Cancelled);
    }
}

/// The outcomes that a thread got.
#[derive(Default)]
struct Outcomes {
    /// How many timers were accepted.
    accepted: u64,
    /// The ids of timers for which a cancel returned `AlreadyFired`.
    fired: Vec<u32>,
    /// The ids of timers for which a cancel returned `Stale`.
    stale: Vec<u32>,
    /// How many replies were `Closed`, as the service had ended.
    replies_lost: u64,
}

type SendCall<T> = Box<dyn FnOnce(&Timers<T>) + Send>;
/// The id of a timer, and the reply to its cancel.
type Pending = (u32, Reply<CancelOutcome<Payload<Job, SendCall<Job>>>>);

struct Worker {
    ledger: Arc<Ledger>,
    /// The thread as the service sees it.
    client: Thread<Job>,
    service: Arc<TimerService<Job>>,
    rng: Rng,
    pending: Vec<Pending>,
    outcomes: Outcomes,
    closed: bool,
}

impl Worker {
    fn run(mut self, commands: u64) -> Outcomes {
        let mut done = 0;
        while done < commands && !self.closed {
            self.command();
            done += 1;
            if self.pending.len() >= 64 || self.rng.u16(..500) == 0 {
                self.take_replies();
            }
            if self.rng.u16(..2_000) == 0 {
                // The old lanes end; the requests remain valid.
                self.client = Thread::of(&self.service);
            }
        }
        self.take_replies();
        self.outcomes
    }

    fn command(&mut self) {
        let delay = delay(&mut self.rng);
        let at = moment(self.client.now(), delay);
        match self.rng.u8(..20) {
            kind @ 0..=10 => self.schedule(delay, at, kind <= 8),
            kind => {
                let Some((handle, id)) = self.ledger.pick(&mut self.rng) else { return };
                match kind {
                    11..=12 => self.pending.push((id, self.client.cancel(handle))),
                    13..=15 => self.client.cancel_detached(handle),
                    16 => {
                        self.ledger.record_deadline(id, at);
                        drop(self.client.reset(handle, delay));
                    }
                    _ => {
                        self.ledger.record_deadline(id, at);
                        self.client.reset_detached(handle, delay);
                    }
                }
            }
        }
    }

    /// Schedules a value, or a callback.
    fn schedule(&mut self, delay: Duration, at: Instant, is_value: bool) {
        let Some(job) = self.ledger.job(at) else { return };
        let (shard, id) = (ShardId::new(self.rng.u16(..SHARDS)), job.id);
        let client = self.client.on(shard);
        let scheduled = if is_value {
            let is_by_delay = self.rng.bool() || delay == Duration::MAX;
            let scheduled =
                if is_by_delay { client.schedule(delay, job) } else { client.schedule(at, job) };
            scheduled.map_err(|error| end_refused(error, |job| job.end(End::Returned)))
        } else {
            let call = move |timers: &Timers<Job>| job.fire(timers.now());
            client.schedule_fn(delay, call).map_err(|error| end_refused(error, drop))
        };
        match scheduled {
            Ok(handle) => {
                self.outcomes.accepted += 1;
                self.ledger.share(&mut self.rng, handle, id);
            }
            Err(RefusedKind::Full | RefusedKind::Busy) => thread::yield_now(),
            Err(_) => self.closed = true,
        }
    }

    fn take_replies(&mut self) {
        for (id, reply) in self.pending.drain(..) {
            match reply.wait() {
                Ok(CancelOutcome::Cancelled { payload, .. }) => end_cancelled(payload.into_value()),
                Ok(CancelOutcome::AlreadyFired) => self.outcomes.fired.push(id),
                Ok(CancelOutcome::Stale) => self.outcomes.stale.push(id),
                Err(ReplyError::Closed) => self.outcomes.replies_lost += 1,
                Ok(other) => panic!("timer {id}: {:?}", other.payload().map(drop)),
                Err(error) => panic!("timer {id}: {error}"),
            }
        }
    }
}

/// Ends a refused value, and returns the reason.
fn end_refused<V>(refused: Refused<V>, end: impl FnOnce(V)) -> RefusedKind {
    let kind = refused.kind();
    end(refused.into_value());
    kind
}

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// Runs random commands on several threads. The service is shut down when they are done, or by
/// `early` while they run.
fn check(host: Host, commands: u64, early: Option<ShutdownPolicy>) {
    let shuts_down_early = early.is_some();
    let seed = seeds::of_process();
    seeds::note(seed);
    // The limits are so low that the threads reach each of them.
    let lane_capacity = if shuts_down_early { 2 } else { 256 };
    let builder = corewheel_test_support::builder(usize::from(SHARDS)).capacity(1 << 14);
    let builder = builder.lane_capacity(lane_capacity);
    let fires_at_end = early == Some(ShutdownPolicy::Fire);
    let ledger = Ledger::new(commands, Instant::now(), seed, fires_at_end);
    let known = Arc::clone(&ledger);
    let running = Running::start(host, builder, move |shard| handler(Arc::clone(&known), shard));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let worker = Worker {
                ledger: Arc::clone(&ledger),
                client: Thread::of(&running.service),
                service: Arc::clone(&running.service),
                rng: Rng::with_seed(seed.wrapping_add(number)),
                pending: Vec::new(),
                outcomes: Outcomes::default(),
                closed: false,
            };
            thread::spawn(move || worker.run(commands / THREADS))
        })
        .collect();
    let done = Arc::new(AtomicBool::new(false));
    let auditor = {
        let (done, source) = (Arc::clone(&done), running.service.stats_source());
        thread::spawn(move || {
            let mut readings = 0;
            let mut last = [0; SHARDS as usize];
            while !done.load(Ordering::SeqCst) {
                for (shard, last) in source().shards.iter().zip(&mut last) {
                    check_law(&shard.counts);
                    assert!(shard.counts.fired >= *last, "the count of fired timers falls");
                    *last = shard.counts.fired;
                    readings += 1;
                }
                thread::yield_now();
            }
            readings
        })
    };
    let join = |threads: Vec<thread::JoinHandle<Outcomes>>| {
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    };
    let (outcomes, report) = if let Some(policy) = early {
        let third = (commands / 3) as u32;
        corewheel_test_support::wait_until("a third of the commands is executed", || {
            ledger.next.load(Ordering::SeqCst) > third
                || threads.iter().all(thread::JoinHandle::is_finished)
        });
        let report = running.service.shutdown(policy).unwrap();
        (join(threads), report)
    } else {
        let outcomes = join(threads);
        (outcomes, running.service.shutdown(ShutdownPolicy::Return).unwrap())
    };
    done.store(true, Ordering::SeqCst);
    assert!(auditor.join().unwrap() > 0, "{host:?}: no thread has read the counts");
    running.stop();
    audit(host, &ledger, outcomes, report, shuts_down_early);
}

fn audit(
    host: Host,
    ledger: &Ledger,
    outcomes: Vec<Outcomes>,
    report: ShutdownReport<Job>,
    shuts_down_early: bool,
) {
    let counts: Vec<_> = report.shards.iter().map(|shard| shard.counts).collect();
    let sum =
        |count: fn(&corewheel::stats::ShardCounts) -> u64| counts.iter().map(count).sum::<u64>();
    let mut returned = 0;
    for timer in report.returned {
        returned += 1;
        match timer.payload {
            Payload::Value(job) => job.end(End::Returned),
            Payload::Callback(call) => drop(call),
            Payload::Local => panic!("no shard schedules a local callback"),
        }
    }
    counts.iter().for_each(check_law);
    assert_eq!(sum(|c| c.panicked), 0, "{host:?}: no timer is early");
    assert_eq!(sum(|c| c.pending), 0, "{host:?}");
    assert_eq!(sum(|c| c.returned), returned, "{host:?}");
    let timers = (ledger.next.load(Ordering::SeqCst) as usize).min(ledger.ends.len());
    let ends = |id: usize| ledger.ends[id].load(Ordering::SeqCst);
    let mut fired = 0;
    for id in 0..timers {
        let ends = ends(id);
        assert!(
            [End::Fired, End::Cancelled, End::Dropped, End::Returned]
                .into_iter()
                .any(|end| ends == 1 << end as u8),
            "{host:?}: timer {id} has the ends {ends:#010b}"
        );
        fired += u64::from(ends == 1 << End::Fired as u8);
    }
    assert_eq!(sum(|c| c.fired), fired, "{host:?}");
    let accepted: u64 = outcomes.iter().map(|outcomes| outcomes.accepted).sum();
    assert!(sum(|c| c.scheduled_remote) >= accepted, "{host:?}: {accepted} were accepted");
    for outcomes in &outcomes {
        let lost = outcomes.replies_lost;
        assert!(shuts_down_early || lost == 0, "{host:?}: {lost}");
        for id in &outcomes.fired {
            let is_fired = ends(*id as usize) == 1 << End::Fired as u8;
            assert!(is_fired, "{host:?}: timer {id} was reported as fired");
        }
        for id in &outcomes.stale {
            assert!(ends(*id as usize) > 0, "{host:?}: timer {id} was reported as stale");
        }
    }
}

/// The number of commands on each host.
fn commands() -> u64 {
    setting("COREWHEEL_OPS").unwrap_or(600_000) / Host::all().count() as u64
}

#[test]
fn every_timer_has_one_outcome_under_random_commands() {
    for host in Host::all() {
        check(host, commands(), None);
    }
}

#[test]
fn every_timer_has_one_outcome_when_a_shutdown_interrupts_random_commands() {
    for host in Host::all() {
        for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire] {
            check(host, commands() / 8, Some(policy));
        }
    }
}
