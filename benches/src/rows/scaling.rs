//! Scaling with cores: the same work on one shard, and on as many as the machine has cores.
//!
//! Each shard has a core of its own and shares nothing with the others, so twice the shards should
//! do twice the work.

use std::hint::black_box;
use std::time::Duration;

use core_affinity::CoreId;
use corewheel::{Fired, ShardId, TimerService, Timers};

use super::{HOUR, growth};
use crate::Payload;
use crate::report::Entrant;

const PENDING: usize = 10_000;
const OPERATIONS: u64 = 1 << 20;

/// The title of the table.
pub const TABLE: &str = "all shards together, million operations a second";
/// A cancel and a schedule on each shard's own core.
pub const ROW: &str = "local cancel + schedule";

/// Million operations a second of all shards together, each on a core of its own.
pub fn local(cores: &[CoreId]) -> Vec<Entrant> {
    let cores = cores.to_vec();
    let round = move || {
        let builder = TimerService::builder().shards(cores.len()).capacity(2 * PENDING as u32);
        let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
        let slowest = growth::run(cores.len(), OPERATIONS, |thread| {
            core_affinity::set_for_current(cores[thread]);
            let attachment = service.attach(ShardId::new(thread as u16)).expect("it is free");
            let deliver = |_: Fired<Payload>, _: &Timers<Payload>| {};
            let home = attachment.into_loop(deliver).expect("there is memory");
            let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0009);
            let delay = |rng: &mut fastrand::Rng| HOUR + Duration::from_millis(rng.u64(1..60_000));
            let schedule =
                |delay| home.timers().schedule(delay, Payload::MIN).expect("there is room");
            let mut handles: Vec<_> = (0..PENDING).map(|_| schedule(delay(&mut rng))).collect();
            let mut replace = move || {
                let timer = &mut handles[rng.usize(..PENDING)];
                black_box(home.timers().cancel(*timer).payload().expect("it is pending"));
                let begun = home.timers().schedule(delay(&mut rng), Payload::MIN);
                *timer = begun.expect("there is room");
            };
            (0..OPERATIONS).for_each(|_| replace());
            replace
        });
        (OPERATIONS * cores.len() as u64) as f64 / slowest.as_secs_f64() / 1e6
    };
    vec![Entrant::new("corewheel", round)]
}
