//! Connections that are accepted on one core and served on another, with their timers. Each timer
//! goes to the core that serves its connection, by a cancel and a schedule; a connection is closed
//! with one message to each core; and the timers of a core go to the others when it is taken out of
//! use. Connections whose deadlines are a `ConnTimers` are packed on one core and adopted on
//! another.
//!
//! ```text
//! cargo run --release --example moving
//! ```
//!
//! To try: an `IDLE` of 10 ms, so that timers are due while they move.
//!
//! The command ends by itself, and fails if a timer has fired too early, twice or not at all.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::PackedConn;
use corewheel::{
    CancelOutcome, ConnLimits, DeadlineKind, Fired, Handle, Payload, Refused, ShardId,
    ShutdownPolicy, TimerId, TimerService, Timers,
};
use corewheel_glommio::Runtime;

const SHARDS: u16 = 3;
/// The core that accepts connections.
const ACCEPTING: ShardId = ShardId::new(0);
/// The core that is taken out of use.
const LEAVING: ShardId = ShardId::new(2);
const CONNECTIONS: u32 = 600;
/// Each connection has two timers.
const TIMERS: u32 = 2 * CONNECTIONS;
const IDLE: Duration = Duration::from_millis(500);
const AGE_MAX: Duration = Duration::from_millis(900);
const PATIENCE: Duration = Duration::from_secs(30);

/// The limit of a connection that a timer enforces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Idle(u32),
    Age(u32),
}

impl Limit {
    fn index(self) -> usize {
        match self {
            Self::Idle(connection) => 2 * connection as usize,
            Self::Age(connection) => 2 * connection as usize + 1,
        }
    }
}

/// A connection: its number, the shard that serves it, and the handles of its timers.
struct Connection {
    number: u32,
    home: ShardId,
    timers: Vec<TimerId>,
}

/// How the timers have ended.
struct Ledger {
    ends: Vec<AtomicU32>,
    fired: AtomicU64,
    early: AtomicU64,
}

impl Ledger {
    fn new() -> Self {
        let ends = (0..TIMERS).map(|_| AtomicU32::new(0)).collect();
        Self { ends, fired: AtomicU64::new(0), early: AtomicU64::new(0) }
    }

    fn end(&self, limit: Limit) {
        self.ends[limit.index()].fetch_add(1, Ordering::Relaxed);
    }
}

/// Accepts connections, and hands each over with its timers.
fn accept(timers_here: &Timers<Limit>, handed_over: &mpsc::Sender<Connection>) {
    for number in 0..CONNECTIONS {
        let home = ShardId::new((number % u32::from(SHARDS)) as u16);
        let mut timers = Vec::new();
        for (after, limit) in [(IDLE, Limit::Idle(number)), (AGE_MAX, Limit::Age(number))] {
            let timer = timers_here.schedule(after, limit).expect("there is room for a million");
            timers.push(timer);
        }
        if handed_over.send(Connection { number, home, timers }).is_err() {
            return;
        }
    }
}

/// Puts a timer onto another core. Returns its id, which is the old one if it has fired before.
fn put_on(handle: Handle<Limit>, timer: TimerId, home: ShardId) -> Result<TimerId, Box<dyn Error>> {
    let (remaining, limit) = match handle.cancel(timer).wait()? {
        CancelOutcome::Cancelled { remaining, payload: Payload::Value(limit) } => {
            (remaining, limit)
        }
        CancelOutcome::AlreadyFired | CancelOutcome::Stale => return Ok(timer),
        other => return Err(format!("a cancel was answered with {other:?}").into()),
    };
    let scheduled = handle.on(home).schedule(remaining, limit);
    // A core that is full gives the limit back, which stays where it was.
    Ok(match scheduled.map_err(Refused::into_value) {
        Ok(timer) => timer,
        Err(limit) => handle.on(timer.shard()).schedule(remaining, limit)?,
    })
}

/// Puts the timers of a connection onto another core. Returns how many have gone there.
fn put_all_on(
    handle: Handle<Limit>,
    timers: &mut [TimerId],
    home: ShardId,
) -> Result<u64, Box<dyn Error>> {
    let mut moved = 0;
    for timer in timers.iter_mut().filter(|timer| timer.shard() != home) {
        *timer = put_on(handle, *timer, home)?;
        moved += u64::from(timer.shard() == home);
    }
    Ok(moved)
}

/// Opens connections on the core that accepts, and packs each for another core.
fn pack(timers: &Timers<Limit>, handed_over: &mpsc::Sender<PackedConn>) {
    for _ in 0..CONNECTIONS {
        let limits = ConnLimits::default().read_idle(IDLE);
        let connection = timers.connection(limits).expect("there is room for a million");
        connection.touch_read();
        let packed = connection.pack().expect("it is open");
        if handed_over.send(packed).is_err() {
            return;
        }
    }
}

/// Adopts the connections. Returns how many were idle for long enough after that.
async fn serve(timers: Timers<Limit>, accepted: mpsc::Receiver<PackedConn>) -> usize {
    let adopted = accepted.into_iter().map(|packed| timers.adopt(packed));
    let connections: Vec<_> = adopted.collect::<Result<_, _>>().expect("there is room");
    let mut idle = 0;
    for connection in connections {
        // The idle time goes on from the read on the other core.
        let event = connection.next().await;
        idle += usize::from(event.is_some_and(|event| event.kind == DeadlineKind::ReadIdle));
    }
    idle
}

fn main() -> Result<(), Box<dyn Error>> {
    let ledger = Arc::new(Ledger::new());
    let service = {
        let ledger = Arc::clone(&ledger);
        // The future below runs on both.
        let builder = TimerService::builder().runtime(Runtime::GlommioOrTokio);
        builder.shards(usize::from(SHARDS)).start_with(move |_| {
            let ledger = Arc::clone(&ledger);
            move |fired: Fired<Limit>, timers: &Timers<Limit>| {
                if timers.now() < fired.deadline {
                    ledger.early.fetch_add(1, Ordering::Relaxed);
                }
                ledger.end(fired.payload);
                ledger.fired.fetch_add(1, Ordering::Relaxed);
            }
        })?
    };
    println!("on {}: {}", service.stats().runtime, service.runtime_reason());

    let handle = service.handle();
    let (handed_over, accepted) = mpsc::channel();
    let accepting = handle.on(ACCEPTING);
    accepting.schedule_fn(Duration::ZERO, move |timers| accept(timers, &handed_over))?;
    let mut connections: Vec<Connection> = accepted.iter().collect();
    let mut moved = 0;
    for Connection { home, timers, .. } in &mut connections {
        moved += put_all_on(handle, timers, *home)?;
    }
    println!("{CONNECTIONS} connections accepted, {moved} timers put onto the cores that serve");

    let (handed_over, accepted) = mpsc::channel();
    accepting.schedule_fn(Duration::ZERO, move |timers| pack(timers, &handed_over))?;
    let served = service.spawn_on(ShardId::new(1), move |timers| serve(timers, accepted))?;

    // Every third connection is closed, and its timers are cancelled on the cores that have them.
    let mut cancelled = 0;
    let mut fired_before = 0;
    for connection in connections.extract_if(.., |connection| connection.number % 3 == 1) {
        for outcome in handle.cancel_many(&connection.timers).wait()? {
            match outcome? {
                CancelOutcome::Cancelled { payload: Payload::Value(limit), .. } => {
                    ledger.end(limit);
                    cancelled += 1;
                }
                CancelOutcome::AlreadyFired | CancelOutcome::Stale => fired_before += 1,
                other => return Err(format!("a cancel was answered with {other:?}").into()),
            }
        }
    }
    println!("{cancelled} timers cancelled with their connections, {fired_before} fired before");

    // One core is taken out of use.
    let mut left_core = 0;
    for connection in connections.iter_mut().filter(|connection| connection.home == LEAVING) {
        connection.home = ACCEPTING;
        left_core += put_all_on(handle, &mut connection.timers, connection.home)?;
    }
    println!("{left_core} timers have left {LEAVING:?}");

    let idle = served.wait()?;
    println!("{CONNECTIONS} connections packed and adopted, {idle} of them found idle there");
    if idle != CONNECTIONS as usize {
        return Err(format!("{idle} of {CONNECTIONS} adopted connections were found idle").into());
    }

    let left = u64::from(TIMERS) - cancelled;
    let begun = Instant::now();
    while ledger.fired.load(Ordering::Relaxed) < left && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    let shutdown = service.shutdown(ShutdownPolicy::Return)?;
    let packed: u64 = shutdown.shards.iter().map(|shard| shard.counts.migrated_out).sum();
    let returned = shutdown.returned.len() as u64;

    // Each timer has ended exactly once.
    let fired = ledger.fired.load(Ordering::Relaxed);
    println!("{fired} fired, {cancelled} cancelled, {returned} returned; {packed} packed");
    let early = ledger.early.load(Ordering::Relaxed);
    if early > 0 {
        return Err(format!("{early} timers were early").into());
    }
    let wrong = ledger.ends.iter().filter(|ends| ends.load(Ordering::Relaxed) != 1).count() as u64;
    if wrong != returned || fired + cancelled + returned != u64::from(TIMERS) {
        return Err(format!("{wrong} of {TIMERS} timers have not ended exactly once").into());
    }
    if returned > 0 {
        return Err(format!("{returned} timers have not ended in {PATIENCE:?}").into());
    }
    if packed != u64::from(CONNECTIONS) {
        return Err(format!("{packed} of {CONNECTIONS} connections count as migrated").into());
    }
    println!("the accounts balance");
    Ok(())
}
