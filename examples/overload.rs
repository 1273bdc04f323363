//! A server under pressure: idle connections go sooner when memory is scarce, all at once, and have
//! their time again when it is not.
//!
//! The connections are simulated, a hundred thousand idle ones and a thousand that are active now
//! and then. Another thread, as a monitor of the machine's memory would, scales the shard's
//! timeouts down and up again. Whoever goes must have been idle for the minimum, every idle one
//! must go under pressure, and nobody without it; or the exit code is 1. An active one may go as
//! well, if the machine is so busy that it is not active in time.
//!
//! ```text
//! cargo run --release --example overload -- tokio
//! ```

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use corewheel::{
    Client, Runtime, Scale, ScaledStats, ScaledTimeout, ScaledTimeouts, ShardId, ShutdownPolicy,
    TimerService, Timers,
};

const SHARD: ShardId = ShardId::new(0);
const IDLE: u64 = 100_000;
const ACTIVE: u64 = 1_000;
/// How long a connection may be idle, under pressure and without.
const MIN: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_hours(1);
/// How often the active ones are active.
const PERIOD: Duration = Duration::from_millis(50);
/// Far longer than anything takes here.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection, as far as its timeout knows it.
#[derive(Clone)]
struct Connection {
    active_at: Rc<Cell<Instant>>,
    is_active: bool,
}

/// What there is on the shard.
struct Server {
    idle: ScaledTimeouts<Connection>,
    active: Vec<(ScaledTimeout, Connection)>,
    gone: Rc<Gone>,
}

/// Who has gone.
struct Gone {
    idle: Cell<u64>,
    active: Cell<u64>,
    /// The shortest time that a connection was idle for before it went.
    shortest: Cell<Duration>,
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = match std::env::args().nth(1).as_deref() {
        None | Some("auto") => Runtime::Auto,
        Some("glommio") => Runtime::Glommio,
        Some("tokio") => Runtime::Tokio,
        Some("thread") => Runtime::Thread,
        Some(other) => return Err(format!("there is no runtime {other}").into()),
    };
    let service = TimerService::builder().name("overload").shards(1).runtime(runtime).start()?;
    println!("runtime: {} ({})", service.runtime(), service.runtime_reason());
    let client = service.client();

    client.schedule_fn_on(SHARD, Duration::ZERO, |timers| open(timers).expect("there is room"))?;
    let counts = || service.stats().shards[0].counts;
    wait_until("all connections are open", || counts().scaled_pending == IDLE + ACTIVE)?;
    println!("open: {IDLE} idle connections and {ACTIVE} active ones, idle for {MIN:?} to {MAX:?}");

    sleep(MIN * 2);
    check("gone without pressure", look(&client)?.stats.expired, 0)?;
    println!("scale 1: nobody went");

    let (start, turns) = (Instant::now(), counts().turns);
    client.set_scale_on(SHARD, Scale::ZERO)?;
    let mut pressed = look(&client)?;
    while pressed.idle_gone < IDLE && start.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1));
        pressed = look(&client)?;
    }
    let (took, turns) = (start.elapsed(), counts().turns - turns);
    check("idle connections that have gone", pressed.idle_gone, IDLE)?;
    println!("scale 0: {} idle ones went within {took:?} and {turns} turns", pressed.idle_gone);

    client.set_scale_on(SHARD, Scale::ONE)?;
    let mut after = look(&client)?;
    while after.scale != Scale::ONE {
        after = look(&client)?;
    }
    sleep(MIN * 2);
    let end = look(&client)?;
    check("gone without pressure", end.stats.expired, after.stats.expired)?;
    println!("scale 1: nobody went; {} are left", end.stats.pending);

    println!("active ones that went too: {}", end.active_gone);
    check("connections that are left", end.stats.pending, ACTIVE - end.active_gone)?;
    check("connections that have gone", end.stats.expired, IDLE + end.active_gone)?;
    check("delivered", counts().scaled_fired, end.stats.expired)?;
    if end.shortest < MIN {
        return Err(format!("a connection went after {:?} already", end.shortest).into());
    }
    println!("nobody went before {MIN:?}, the first one after {:?}", end.shortest);
    client.schedule_fn_on(SHARD, Duration::ZERO, |_| drop(SERVER.take()))?;
    wait_until("all are closed", || counts().scaled_pending == 0)?;
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    check("panics", report.shards[0].counts.panicked, 0)?;
    Ok(())
}

/// Opens all connections, on the shard.
fn open(timers: &Timers) -> Result<(), Box<dyn Error>> {
    let shortest = Cell::new(Duration::MAX);
    let gone = Rc::new(Gone { idle: Cell::new(0), active: Cell::new(0), shortest });
    let known = Rc::clone(&gone);
    let idle = ScaledTimeouts::new(timers, MIN, MAX, move |connection: Connection, idle| {
        // A real server closes it here.
        let was_idle = idle.timers().now() - connection.active_at.get();
        known.shortest.set(known.shortest.get().min(was_idle));
        let gone = if connection.is_active { &known.active } else { &known.idle };
        gone.set(gone.get() + 1);
    })?;
    let now = timers.now();
    let open = |is_active| Connection { active_at: Rc::new(Cell::new(now)), is_active };
    for _ in 0..IDLE {
        idle.start(open(false))?;
    }
    let mut active = Vec::new();
    for _ in 0..ACTIVE {
        let connection = open(true);
        active.push((idle.start(connection.clone())?, connection));
    }
    SERVER.set(Some(Server { idle, active, gone }));
    be_active(timers);
    Ok(())
}

/// The active connections receive something, and will again.
fn be_active(timers: &Timers) {
    let goes_on = SERVER.with_borrow(|server| {
        let Some(server) = server else { return false };
        let now = timers.now();
        for (timeout, connection) in &server.active {
            if server.idle.reset(*timeout) {
                connection.active_at.set(now);
            }
        }
        true
    });
    if goes_on && timers.schedule_fn(PERIOD, be_active).is_err() {
        // The service is being shut down, and nobody looks any more.
    }
}

/// What the shard says.
struct Look {
    scale: Scale,
    stats: ScaledStats,
    idle_gone: u64,
    active_gone: u64,
    shortest: Duration,
}

fn look(client: &Client) -> Result<Look, Box<dyn Error>> {
    let (sender, seen): (_, Receiver<Look>) = channel();
    client.schedule_fn_on(SHARD, Duration::ZERO, move |timers| {
        SERVER.with_borrow(|server| {
            let Some(Server { idle, gone, .. }) = server else { return };
            let look = Look {
                scale: timers.scale(),
                stats: idle.stats(),
                idle_gone: gone.idle.get(),
                active_gone: gone.active.get(),
                shortest: gone.shortest.get(),
            };
            // Whoever asked may have lost patience.
            let _ = sender.send(look);
        });
    })?;
    Ok(seen.recv_timeout(PATIENCE)?)
}

fn check(what: &str, found: u64, expected: u64) -> Result<(), Box<dyn Error>> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, and not {expected}").into())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > give_up {
            return Err(format!("in vain: {what}").into());
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}
