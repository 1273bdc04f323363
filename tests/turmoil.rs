//! The law on everything that a shard can run on, over lanes that are nearly always full, and when
//! the service ends in the middle of it: every timer that is accepted fires, is cancelled or is
//! returned, one of them and once, never early, and the counters say so at every moment.
//!
//! What became of each single timer is written down, and what the threads were told is held against
//! that.
//!
//! * `COREWHEEL_OPS` sets the number of commands, on all hosts together;
//! * `COREWHEEL_SEED` runs them again with the seed of an earlier run, as far as threads can be
//!   repeated.

#[path = "service/support.rs"]
#[allow(dead_code, reason = "the tests of the service use the rest")]
mod support;

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{
    Answer, CancelOutcome, Client, Fired, RemoteTask, ScheduleError, ShardId, ShutdownPolicy,
    ShutdownReport, TimerHandle, Timers, WaitError,
};
use fastrand::Rng;

use support::{Host, Running, check_law, ms};

const THREADS: u64 = 4;
const SHARDS: u16 = 2;
/// Handles that all of them know, to meddle with.
const KNOWN: usize = 512;

/// What became of a timer; two bits of its record for each.
#[derive(Clone, Copy)]
enum End {
    Fired = 0,
    /// Handed back by a cancel.
    TakenBack = 2,
    /// Dropped by a cancel that nobody waited for.
    Dropped = 4,
    /// Handed back by a shutdown or a refusal.
    Returned = 6,
}

/// What is known of every timer.
struct Ledger {
    base: Instant,
    next: AtomicU32,
    ends: Vec<AtomicU8>,
    /// The earliest moment that was ever asked for, in nanoseconds from `base`.
    earliest: Vec<AtomicU64>,
    known: Vec<Mutex<Option<(TimerHandle, u32)>>>,
    seed: u64,
}

/// A task that knows its record, and notes there when it is dropped without any other end.
struct Task {
    id: u32,
    ledger: Arc<Ledger>,
    ended: bool,
}

impl Task {
    fn end(mut self, end: End) {
        self.ended = true;
        self.ledger.note(self.id, end);
    }

    fn fire(self, now: Instant) {
        let earliest = self.ledger.earliest[self.id as usize].load(Ordering::SeqCst);
        let earliest = self.ledger.base + Duration::from_nanos(earliest);
        // Noted first, so that a panic is not taken for a drop.
        let id = self.id;
        self.end(End::Fired);
        assert!(now >= earliest, "timer {id} is early by {:?}", earliest - now);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.ended {
            self.ledger.note(self.id, End::Dropped);
        }
    }
}

impl Ledger {
    fn new(commands: u64, base: Instant, seed: u64) -> Arc<Self> {
        // Each command is a timer at most, and shards add some.
        let size = commands as usize * 2;
        Arc::new(Self {
            base,
            next: AtomicU32::new(0),
            ends: (0..size).map(|_| AtomicU8::new(0)).collect(),
            earliest: (0..size).map(|_| AtomicU64::new(u64::MAX)).collect(),
            known: (0..KNOWN).map(|_| Mutex::new(None)).collect(),
            seed,
        })
    }

    fn note(&self, id: u32, end: End) {
        self.ends[id as usize].fetch_add(1 << end as u8, Ordering::SeqCst);
    }

    fn asked_for(&self, id: u32, at: Instant) {
        let nanos = at.saturating_duration_since(self.base).as_nanos() as u64;
        self.earliest[id as usize].fetch_min(nanos, Ordering::SeqCst);
    }

    /// A new task; none when the ledger is full.
    fn task(self: &Arc<Self>, at: Instant) -> Option<Task> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        if id as usize >= self.ends.len() {
            return None;
        }
        self.asked_for(id, at);
        Some(Task { id, ledger: Arc::clone(self), ended: false })
    }

    fn know(&self, rng: &mut Rng, handle: TimerHandle, id: u32) {
        *self.known[rng.usize(..KNOWN)].lock().unwrap() = Some((handle, id));
    }

    fn meddle(&self, rng: &mut Rng) -> Option<(TimerHandle, u32)> {
        *self.known[rng.usize(..KNOWN)].lock().unwrap()
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

/// A moment that stands for never where the delay does not fit.
fn moment(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or(now)
}

/// What a shard does when a timer fires there: now and then it has its own part in the turmoil.
fn handler(ledger: Arc<Ledger>, shard: ShardId) -> impl FnMut(Fired<Task>, &Timers<Task>) {
    let mut rng = Rng::with_seed(ledger.seed ^ (u64::from(shard.number()) << 32));
    move |fired, timers| {
        let now = timers.now();
        assert!(fired.deadline <= now, "a shard is early");
        fired.task.fire(now);
        if rng.u8(..8) > 0 {
            return;
        }
        let delay = delay(&mut rng);
        let Some(task) = ledger.task(moment(now, delay)) else { return };
        let id = task.id;
        let other = ShardId::new(rng.u16(..SHARDS));
        let scheduled = if rng.bool() {
            timers.schedule(delay, task)
        } else {
            timers.client().schedule_on(other, delay, task)
        };
        match scheduled {
            Ok(handle) => ledger.know(&mut rng, handle, id),
            Err(error) => error.into_task().end(End::Returned),
        }
        let Some((handle, id)) = ledger.meddle(&mut rng) else { return };
        match rng.u8(..4) {
            0 => match timers.cancel(handle) {
                CancelOutcome::Cancelled { task, .. } => end_cancelled(task.into_value()),
                CancelOutcome::Elsewhere(_) => timers.client().cancel_detached(handle),
                _ => {}
            },
            1 => timers.client().cancel_detached(handle),
            _ => {
                ledger.asked_for(id, moment(now, delay));
                let _ = timers.reset(handle, delay);
                timers.client().reset_detached(handle, delay);
            }
        }
    }
}

/// A callback that was taken back is dropped, and its task notes that itself.
fn end_cancelled(task: Option<Task>) {
    if let Some(task) = task {
        task.end(End::TakenBack);
    }
}

/// What a thread was told about timers.
#[derive(Default)]
struct Told {
    accepted: u64,
    fired: Vec<u32>,
    gone: Vec<u32>,
    /// Answers that never came, as the service had ended.
    unanswered: u64,
}

type Asked = (u32, Answer<CancelOutcome<RemoteTask<Task>>>);

struct Meddler {
    ledger: Arc<Ledger>,
    client: Client<Task>,
    rng: Rng,
    asked: Vec<Asked>,
    told: Told,
    closed: bool,
}

impl Meddler {
    fn run(mut self, commands: u64) -> Told {
        let mut done = 0;
        while done < commands && !self.closed {
            done += self.command();
            if self.asked.len() >= 64 || self.rng.u16(..500) == 0 {
                self.listen();
            }
            if self.rng.u16(..2_000) == 0 {
                // Another client takes over, and what this one has sent goes its way.
                self.client = self.client.clone();
            }
        }
        self.listen();
        self.told
    }

    /// One command or a batch of them; returns how many.
    fn command(&mut self) -> u64 {
        let delay = delay(&mut self.rng);
        let at = moment(self.client.now(), delay);
        match self.rng.u8(..20) {
            0..=7 => self.schedule(delay, at),
            8 => return self.batch(delay, at),
            9..=10 => self.schedule_call(delay, at),
            kind => {
                let Some((handle, id)) = self.ledger.meddle(&mut self.rng) else { return 1 };
                match kind {
                    11..=12 => self.asked.push((id, self.client.cancel(handle))),
                    13..=15 => self.client.cancel_detached(handle),
                    16 => {
                        self.ledger.asked_for(id, at);
                        drop(self.client.reset(handle, delay));
                    }
                    _ => {
                        self.ledger.asked_for(id, at);
                        self.client.reset_detached(handle, delay);
                    }
                }
            }
        }
        1
    }

    fn schedule(&mut self, delay: Duration, at: Instant) {
        let Some(task) = self.ledger.task(at) else { return };
        let (shard, id) = (ShardId::new(self.rng.u16(..SHARDS)), task.id);
        let scheduled = if self.rng.bool() || delay == Duration::MAX {
            self.client.schedule_on(shard, delay, task)
        } else {
            self.client.schedule_at_on(shard, at, task)
        };
        let scheduled = scheduled.map_err(|error| error.map_task(|task| task.end(End::Returned)));
        self.note(scheduled, id);
    }

    fn schedule_call(&mut self, delay: Duration, at: Instant) {
        let Some(task) = self.ledger.task(at) else { return };
        let (shard, id) = (ShardId::new(self.rng.u16(..SHARDS)), task.id);
        let call = move |timers: &Timers<Task>| task.fire(timers.now());
        let scheduled = self.client.schedule_fn_on(shard, delay, call);
        self.note(scheduled.map_err(|error| error.map_task(drop)), id);
    }

    fn batch(&mut self, delay: Duration, at: Instant) -> u64 {
        let shard = ShardId::new(self.rng.u16(..SHARDS));
        let count = self.rng.u64(1..40);
        let mut batch = self.client.batch(shard);
        let mut outcomes = Vec::new();
        for _ in 0..count {
            if self.rng.u8(..4) == 0 {
                let Some((handle, id)) = self.ledger.meddle(&mut self.rng) else { continue };
                if self.rng.bool() {
                    batch.cancel_detached(handle);
                } else {
                    self.ledger.asked_for(id, at);
                    batch.reset_detached(handle, delay);
                }
                continue;
            }
            let Some(task) = self.ledger.task(at) else { continue };
            let id = task.id;
            let scheduled = batch.schedule(delay, task);
            // Others may be quicker than the batch.
            if let Ok(handle) = scheduled {
                self.ledger.know(&mut self.rng, handle, id);
            }
            let ended = |task: Task| task.end(End::Returned);
            outcomes.push((scheduled.map_err(|error| error.map_task(ended)), id));
        }
        let refused = batch.send().map_or_else(|refused| refused, |()| Vec::new());
        self.told.accepted -= refused.len() as u64;
        for refused in refused {
            refused.task.end(End::Returned);
        }
        for (scheduled, id) in outcomes {
            self.note(scheduled, id);
        }
        count
    }

    fn note(&mut self, scheduled: Result<TimerHandle, ScheduleError<()>>, id: u32) {
        match scheduled {
            Ok(handle) => {
                self.told.accepted += 1;
                self.ledger.know(&mut self.rng, handle, id);
            }
            Err(ScheduleError::Full(())) => thread::yield_now(),
            Err(ScheduleError::Closed(())) => self.closed = true,
        }
    }

    fn listen(&mut self) {
        for (id, answer) in self.asked.drain(..) {
            match answer.wait() {
                Ok(CancelOutcome::Cancelled { task, .. }) => end_cancelled(task.into_value()),
                Ok(CancelOutcome::AlreadyFired) => self.told.fired.push(id),
                Ok(CancelOutcome::Stale) => self.told.gone.push(id),
                Err(WaitError::Closed) => self.told.unanswered += 1,
                Ok(other) => panic!("timer {id}: {:?}", other.task().map(drop)),
                Err(error) => panic!("timer {id}: {error}"),
            }
        }
    }
}

trait MapTask<K> {
    fn map_task(self, f: impl FnOnce(K)) -> ScheduleError<()>;
}

impl<K> MapTask<K> for ScheduleError<K> {
    fn map_task(self, f: impl FnOnce(K)) -> ScheduleError<()> {
        match self {
            Self::Full(task) => {
                f(task);
                ScheduleError::Full(())
            }
            Self::Closed(task) => {
                f(task);
                ScheduleError::Closed(())
            }
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// Runs them all at once. The service is shut down when they are done, or in the middle of it.
#[expect(clippy::print_stdout, reason = "whoever runs it again needs the seed")]
fn check(host: Host, commands: u64, in_the_middle: bool) {
    let seed = setting("COREWHEEL_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("{host:?}: {commands} commands, COREWHEEL_SEED={seed}");
    // Small enough for all limits to be met now and then, or all the time.
    let lane_capacity = if in_the_middle { 2 } else { 256 };
    let builder = support::builder(usize::from(SHARDS)).capacity(1 << 14);
    let builder = builder.lane_capacity(lane_capacity);
    let ledger = Ledger::new(commands, Instant::now(), seed);
    let known = Arc::clone(&ledger);
    let running = Running::start(host, builder, move |shard| handler(Arc::clone(&known), shard));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let meddler = Meddler {
                ledger: Arc::clone(&ledger),
                client: running.client(),
                rng: Rng::with_seed(seed.wrapping_add(number)),
                asked: Vec::new(),
                told: Told::default(),
                closed: false,
            };
            thread::spawn(move || meddler.run(commands / THREADS))
        })
        .collect();
    let done = Arc::new(AtomicBool::new(false));
    let auditor = {
        let (done, source) = (Arc::clone(&done), running.service.stats_source());
        thread::spawn(move || {
            let mut readings = 0;
            let mut last = [0; SHARDS as usize];
            while !done.load(Ordering::SeqCst) {
                for (shard, last) in source.read().shards.iter().zip(&mut last) {
                    check_law(&shard.counts);
                    assert!(shard.counts.fired >= *last, "what has fired has fired");
                    *last = shard.counts.fired;
                    readings += 1;
                }
                thread::yield_now();
            }
            readings
        })
    };
    let join = |threads: Vec<thread::JoinHandle<Told>>| -> Vec<Told> {
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    };
    let (told, report) = if in_the_middle {
        let half = (commands / 3) as u32;
        support::wait_until("half of it", || {
            ledger.next.load(Ordering::SeqCst) > half
                || threads.iter().all(thread::JoinHandle::is_finished)
        });
        let report = running.service.shutdown(ShutdownPolicy::Return).unwrap();
        (join(threads), report)
    } else {
        let told = join(threads);
        (told, running.service.shutdown(ShutdownPolicy::Return).unwrap())
    };
    done.store(true, Ordering::SeqCst);
    assert!(auditor.join().unwrap() > 0, "{host:?}: the counters were read meanwhile");
    running.stop();
    audit(host, &ledger, told, report, in_the_middle);
}

fn audit(
    host: Host,
    ledger: &Ledger,
    told: Vec<Told>,
    report: ShutdownReport<Task>,
    in_the_middle: bool,
) {
    let counts: Vec<_> = report.shards.iter().map(|shard| shard.counts).collect();
    let sum = |count: fn(&corewheel::ShardCounts) -> u64| counts.iter().map(count).sum::<u64>();
    let mut returned = 0;
    for one in report.into_returned() {
        returned += 1;
        match one.task {
            RemoteTask::Value(task) => task.end(End::Returned),
            RemoteTask::Callback(call) => drop(call),
            RemoteTask::LeftAtHome => panic!("nothing of a shard's own is a callback"),
        }
    }
    counts.iter().for_each(check_law);
    assert_eq!(sum(|c| c.panicked), 0, "{host:?}: nothing is early");
    assert_eq!(sum(|c| c.pending), 0, "{host:?}");
    assert_eq!(sum(|c| c.returned), returned, "{host:?}");
    let timers = (ledger.next.load(Ordering::SeqCst) as usize).min(ledger.ends.len());
    let mut fired = 0;
    for id in 0..timers {
        let ends = ledger.ends[id].load(Ordering::SeqCst);
        assert!(
            [End::Fired, End::TakenBack, End::Dropped, End::Returned]
                .into_iter()
                .any(|end| ends == 1 << end as u8),
            "{host:?}: timer {id} has the ends {ends:#010b}"
        );
        fired += u64::from(ends == 1 << End::Fired as u8);
    }
    assert_eq!(sum(|c| c.fired), fired, "{host:?}");
    let accepted: u64 = told.iter().map(|told| told.accepted).sum();
    assert!(sum(|c| c.scheduled_remote) >= accepted, "{host:?}: {accepted} were accepted");
    for told in &told {
        assert!(in_the_middle || told.unanswered == 0, "{host:?}: {}", told.unanswered);
        for id in &told.fired {
            let ends = ledger.ends[*id as usize].load(Ordering::SeqCst);
            assert_eq!(ends, 1 << End::Fired as u8, "{host:?}: {id} is said to have fired");
        }
        for id in &told.gone {
            let ends = ledger.ends[*id as usize].load(Ordering::SeqCst);
            assert!(ends > 0, "{host:?}: {id} is said to be gone");
        }
    }
}

/// Of each host.
fn commands() -> u64 {
    setting("COREWHEEL_OPS").unwrap_or(600_000) / Host::all().count() as u64
}

#[test]
fn every_timer_has_one_end_whoever_does_what_to_it() {
    for host in Host::all() {
        check(host, commands(), false);
    }
}

#[test]
fn every_timer_has_one_end_when_the_service_ends_in_the_middle_of_it() {
    for host in Host::all() {
        check(host, commands() / 4, true);
    }
}
