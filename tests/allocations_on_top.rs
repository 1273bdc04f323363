//! Steady load on what is built on top of timers allocates nothing either: operations that wait in
//! a purgatory, and scaled timeouts.
//!
//! Whatever this process allocates is counted, so there is one test in it, and the shard is turned
//! by hand.

#![cfg(not(corewheel_loom))]

use std::alloc::System;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{
    Fired, ManualClock, Operation, OperationId, Purgatory, ScaledTimeouts, ShardId, TimerService,
    Timers, Turn, Watch,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TICK: Duration = Duration::from_millis(1);
const WAITING: usize = 4_000;

/// Complete when what it shares with all others says so.
struct Fetch(Rc<Cell<bool>>);

impl Operation for Fetch {
    fn try_complete(&mut self) -> bool {
        self.0.get()
    }

    fn completed(self) {}

    fn expired(self) {}
}

#[test]
fn steady_load_on_top_of_timers_allocates_nothing() {
    let clock = ManualClock::new();
    let builder = TimerService::builder().shards(1).capacity(1 << 16).clock(clock.clock());
    let service: TimerService<()> = builder.start_attached().unwrap();
    let attachment = service.attach(ShardId::new(0)).unwrap();
    let mut home = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {}).unwrap();
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0032);

    let ready = Rc::new(Cell::new(false));
    let purgatory: Purgatory<u64, Fetch, ()> = Purgatory::new(home.timers());
    let watch = |rng: &mut fastrand::Rng| -> OperationId {
        let (delay, keys) = (TICK * rng.u32(1..3_000), [rng.u64(..500), rng.u64(500..1_000)]);
        match purgatory.try_complete_else_watch(Fetch(Rc::clone(&ready)), delay, keys) {
            Ok(Watch::Watched(id)) => id,
            _ => unreachable!("it is not ready, and there is room"),
        }
    };
    let mut operations: Vec<_> = (0..WAITING).map(|_| watch(&mut rng)).collect();

    let again = |n, timeouts: &ScaledTimeouts<usize, ()>| assert!(timeouts.start(n).is_ok());
    let timeouts = ScaledTimeouts::new(home.timers(), TICK * 50, TICK * 500, again).unwrap();
    let mut idle: Vec<_> = (0..WAITING).map(|n| timeouts.start(n).unwrap()).collect();

    let mut steady = |ticks: usize| {
        for _ in 0..ticks {
            clock.advance(TICK);
            for _ in 0..8 {
                let picked = rng.usize(..WAITING);
                // One that has ended is not there to be cancelled; another one comes all the same.
                drop(purgatory.cancel(operations[picked]));
                operations[picked] = watch(&mut rng);
                let picked = rng.usize(..WAITING);
                if let Some(n) = timeouts.cancel(idle[picked]) {
                    idle[picked] = timeouts.start(n).unwrap();
                }
                timeouts.reset(idle[rng.usize(..WAITING)]);
            }
            ready.set(true);
            purgatory.check_and_complete(&rng.u64(..1_000));
            ready.set(false);
            while home.turn() == Turn::More {}
        }
    };
    // The statistics make room for each size of lateness when it first comes.
    steady(20_000);
    let region = Region::new(ALLOCATOR);
    steady(10_000);
    let change = region.change();
    let (waited, idled) = (purgatory.stats(), timeouts.stats());
    assert!(waited.completed > 10_000 && waited.expired > 1_000, "{waited:?}");
    assert!(waited.cancelled > 10_000, "{waited:?}");
    assert!(idled.expired > 10_000 && idled.cancelled > 1_000, "{idled:?}");
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}
