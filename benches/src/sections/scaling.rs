//! Scaling with cores: the same work on one shard, two, and so on up to the machine's cores.
//!
//! Each shard has a core of its own and shares nothing with the others, so twice the shards should
//! do twice the work.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use corewheel::{Fired, TimerService, Timers};

use super::HOUR;
use crate::Payload;
use crate::figure::{Entrant, Figure};

const PENDING: usize = 10_000;
const OPERATIONS: usize = 1 << 20;
const SEED: u64 = 0x0C0D_E5EE_D000_0009;

/// A cancel and a schedule on each shard's own core.
pub const LOCAL: &str = "local cancel + schedule, all shards together";

/// The cores that this process may use. Call it before a thread is pinned.
pub fn cores() -> Vec<CoreId> {
    core_affinity::get_core_ids().unwrap_or_default()
}

/// Entrants for one shard, two, four and so on, and for all cores.
pub fn local(cores: &[CoreId]) -> Vec<Entrant> {
    let mut counts: Vec<_> =
        (0..usize::BITS).map(|n| 1 << n).take_while(|n| *n < cores.len()).collect();
    counts.push(cores.len());
    let entrant = |shards: usize| {
        let cores = cores[..shards].to_vec();
        let figure = Figure::new(LOCAL, shards, "corewheel", "M/s");
        Entrant::new(figure, move || run(&cores))
    };
    counts.into_iter().map(entrant).collect()
}

/// Million operations a second of all shards together, each on a core of its own.
fn run(cores: &[CoreId]) -> f64 {
    let capacity = 2 * PENDING as u32;
    let builder = TimerService::builder().shards(cores.len()).capacity(capacity);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    let ready = Arc::new(Barrier::new(cores.len()));
    let work = |(shard, core): (corewheel::ShardId, CoreId)| {
        let attachment = service.attach(shard).expect("it is free");
        let ready = Arc::clone(&ready);
        thread::spawn(move || {
            core_affinity::set_for_current(core);
            let handler = |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("nothing is due");
            let home = attachment.into_loop(handler).expect("there is memory");
            churn(home.timers(), &ready)
        })
    };
    let threads: Vec<_> = service.shards().zip(cores.iter().copied()).map(work).collect();
    let slowest: Option<Duration> =
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).max();
    let operations = (OPERATIONS * cores.len()) as f64;
    operations / slowest.expect("there is one").as_secs_f64() / 1e6
}

fn churn(timers: &Timers<Payload>, ready: &Barrier) -> Duration {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let delay = |rng: &mut fastrand::Rng| HOUR + Duration::from_millis(rng.u64(1..60_000));
    let begin =
        |rng: &mut fastrand::Rng| timers.schedule(delay(rng), Payload::MIN).expect("there is room");
    let mut handles: Vec<_> = (0..PENDING).map(|_| begin(&mut rng)).collect();
    let mut run = || {
        for _ in 0..OPERATIONS {
            let picked = rng.usize(..PENDING);
            black_box(timers.cancel(handles[picked]).payload().expect("it is pending"));
            handles[picked] = begin(&mut rng);
        }
    };
    run();
    ready.wait();
    let start = Instant::now();
    run();
    start.elapsed()
}
