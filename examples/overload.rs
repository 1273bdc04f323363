//! A server under pressure: idle connections end sooner when memory is scarce, all at once, and
//! have their time again when it is not.
//!
//! The connections are simulated: a hundred thousand idle ones, and a thousand that are active
//! every 50 ms. The main thread sets the scale of the shard's timeouts, as a monitor of the
//! machine's memory would. The exit code is 1 if a connection ends before the minimum, if a
//! connection ends without pressure, or if an idle connection stays under pressure. On a busy
//! machine an active connection may end under pressure too, if the shard does not run in time.
//!
//! ```text
//! cargo run --release --example overload -- tokio
//! ```
//!
//! To try: a `MIN` below `PERIOD`. Active connections end under pressure then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use corewheel::class::TimerClass;
use corewheel::settings::Scale;
use corewheel::{Handle, ShardId, ShutdownPolicy, TimerService, Timers};
use corewheel_glommio::Runtime;
use corewheel_kit::scaled::{ScaledTimeout, ScaledTimeouts};

const SHARD: ShardId = ShardId::new(0);
const IDLE: TimerClass = TimerClass::new("idle");
const ACTIVE: TimerClass = TimerClass::new("active");
const IDLE_COUNT: u64 = 100_000;
const ACTIVE_COUNT: u64 = 1_000;
/// How long a connection may be idle, under pressure and without.
const MIN: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_hours(1);
/// How often the active connections are active.
const PERIOD: Duration = Duration::from_millis(50);
/// Far longer than anything takes here.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection: when it was last active.
type Connection = Rc<Cell<Instant>>;

/// The timeouts of the connections on the shard.
struct Server {
    _idle: ScaledTimeouts<Connection>,
    active: ScaledTimeouts<Connection>,
    active_connections: Vec<(ScaledTimeout, Connection)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = match std::env::args().nth(1).as_deref() {
        None | Some("auto") => Runtime::Auto,
        Some("glommio") => Runtime::Glommio,
        Some("tokio") => Runtime::Tokio,
        Some("thread") => Runtime::Thread,
        Some(other) => return Err(format!("there is no runtime {other}").into()),
    };
    let builder = TimerService::builder().name("overload").shards(1).runtime(runtime);
    let service = builder.classes([IDLE, ACTIVE]).start()?;
    println!("runtime: {} ({})", service.stats().runtime, service.runtime_reason());
    let handle = service.handle();
    let shard = handle.on(SHARD);
    // How many connections of each class have ended.
    let ended = || [0, 1].map(|class| service.stats().shards[0].classes[class].fired);

    let shortest = Arc::new(AtomicU64::new(u64::MAX));
    let seen = Arc::clone(&shortest);
    let open = move |timers: &Timers| open(timers, &seen).map_err(|error| error.to_string());
    let (_, opened) = shard.schedule_task(Duration::ZERO, open)?;
    opened.wait()??;
    println!("open: {IDLE_COUNT} idle connections and {ACTIVE_COUNT} active ones");

    sleep(MIN * 2);
    check("ended without pressure", ended(), [0, 0])?;
    println!("scale 1: no connection ended");

    let start = Instant::now();
    shard.set_scale(Scale::ZERO)?;
    while ended()[0] < IDLE_COUNT && start.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1));
    }
    check("idle ones that ended", ended()[0], IDLE_COUNT)?;
    println!("scale 0: {} idle connections ended within {:?}", ended()[0], start.elapsed());

    shard.set_scale(Scale::ONE)?;
    two_turns(shard)?;
    let before = ended();
    sleep(MIN * 2);
    check("ended without pressure", ended(), before)?;
    let left = ACTIVE_COUNT - before[1];
    println!("scale 1: no connection ended; {} active ones did before, {left} are left", before[1]);

    let report = service.shutdown(ShutdownPolicy::Drop)?;
    let [idle, active] = [0, 1].map(|class| report.shards[0].classes[class]);
    check("idle connections", (idle.fired, idle.cancelled), (IDLE_COUNT, 0))?;
    check("active connections", active.fired + active.cancelled, ACTIVE_COUNT)?;
    check("panics", report.shards[0].counts.panicked, 0)?;
    let shortest = Duration::from_nanos(shortest.load(Ordering::Relaxed));
    if shortest < MIN {
        return Err(format!("a connection ended after {shortest:?}").into());
    }
    println!("the shortest time before an end was {shortest:?}, the minimum is {MIN:?}");
    Ok(())
}

/// Opens all connections, on the shard.
fn open(timers: &Timers, shortest: &Arc<AtomicU64>) -> Result<(), Box<dyn Error>> {
    let of_class = |class| -> Result<ScaledTimeouts<Connection>, Box<dyn Error>> {
        let (clock, shortest) = (timers.clone(), Arc::clone(shortest));
        // A real server closes the connection here.
        let end = move |connection: Connection, _: &_| {
            let idle = clock.now() - connection.get();
            shortest.fetch_min(idle.as_nanos() as u64, Ordering::Relaxed);
        };
        Ok(ScaledTimeouts::new(&timers.of_class(class)?, MIN, MAX, end)?)
    };
    let (idle, active) = (of_class(IDLE)?, of_class(ACTIVE)?);
    let now = timers.now();
    for _ in 0..IDLE_COUNT {
        idle.start(Rc::new(Cell::new(now)))?;
    }
    let mut active_connections = Vec::new();
    for _ in 0..ACTIVE_COUNT {
        let connection = Rc::new(Cell::new(now));
        active_connections.push((active.start(Rc::clone(&connection))?, connection));
    }
    be_active(timers, Server { _idle: idle, active, active_connections });
    Ok(())
}

/// The active connections receive something, and again after a period.
fn be_active(timers: &Timers, server: Server) {
    let now = timers.now();
    for (timeout, connection) in &server.active_connections {
        if server.active.reset(*timeout) {
            connection.set(now);
        }
    }
    // The shard refuses the callback when it is shut down, and drops the server with it.
    drop(timers.schedule_fn(PERIOD, move |timers| be_active(timers, server)));
}

/// Waits until the shard has published a turn with all that was sent to it before.
fn two_turns(shard: Handle) -> Result<(), Box<dyn Error>> {
    for _ in 0..2 {
        let (_, turn) = shard.schedule_task(Duration::ZERO, |_| ())?;
        turn.wait()?;
    }
    Ok(())
}

fn check<V: PartialEq + std::fmt::Debug>(
    name: &str,
    found: V,
    expected: V,
) -> Result<(), Box<dyn Error>> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{name}: {found:?}, and not {expected:?}").into())
}
