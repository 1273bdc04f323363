//! Steady load allocates nothing: not on a shard's own core, and not on the way from another
//! thread.
//!
//! Whatever this process allocates is counted, so there is one test in it, and the shard is turned
//! by hand.

#![cfg(not(corewheel_loom))]

use std::alloc::System;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corewheel::{
    Fired, ManualClock, PeriodicRun, Repeat, ShardId, TimerHandle, TimerService, Timers, Turn,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PENDING: usize = 20_000;
const TICK: Duration = Duration::from_millis(1);
const SHARD: ShardId = ShardId::new(0);
const TASK: NonZeroU64 = NonZeroU64::MIN;

#[test]
fn steady_load_allocates_nothing() {
    let clock = ManualClock::new();
    let service: TimerService<NonZeroU64> = TimerService::builder()
        .shards(1)
        .capacity(4 * PENDING as u32)
        .clock(clock.clock())
        .start_attached()
        .unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let again = |one: Fired<NonZeroU64>, timers: &Timers<NonZeroU64>| {
        // As many come as go.
        timers.schedule(TICK * 7_000, one.task).unwrap();
    };
    let mut home = attachment.into_loop(again).unwrap();
    let timers = home.timers().clone();
    let mut client = service.client();
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0021);
    let delay = |rng: &mut fastrand::Rng| TICK * rng.u32(1..10_000);
    let mut handles: Vec<TimerHandle> =
        (0..PENDING).map(|_| timers.schedule(delay(&mut rng), TASK).unwrap()).collect();
    let mut remote: Vec<TimerHandle> = Vec::with_capacity(64);
    // At a fixed rate, with a fixed delay and by a plan, from here and from elsewhere.
    let runs = Arc::new(AtomicU64::new(0));
    for n in 0..8 {
        let (counted, at) = (Arc::clone(&runs), timers.now() + TICK);
        let call = move |_: &mut PeriodicRun<'_, NonZeroU64>| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let rate = Repeat::at_fixed_rate(TICK * 3).unwrap();
        let repeat = if n < 2 { rate } else { Repeat::with_fixed_delay(TICK * 3).unwrap() };
        let plan = |at| Some(at + TICK * 3);
        match n {
            0..4 => drop(timers.repeat(repeat, call).unwrap()),
            4 | 5 => drop(timers.repeat_by_plan(at, plan, call).unwrap()),
            6 => drop(client.repeat_on(SHARD, repeat, call).unwrap()),
            _ => drop(client.repeat_by_plan_on(SHARD, at, plan, call).unwrap()),
        }
    }

    let mut steady = |ticks: usize| {
        for _ in 0..ticks {
            clock.advance(TICK);
            for _ in 0..20 {
                let picked = rng.usize(..PENDING);
                // One that has fired is not there to be moved or cancelled, and was replaced.
                if timers.cancel(handles[picked]).won() {
                    handles[picked] = timers.schedule(delay(&mut rng), TASK).unwrap();
                }
                let picked = rng.usize(..PENDING);
                let _ = timers.reset(handles[picked], delay(&mut rng));
            }
            for timer in remote.drain(..) {
                client.cancel_detached(timer);
            }
            while remote.len() < 8 {
                remote.push(client.schedule_on(SHARD, delay(&mut rng), TASK).unwrap());
            }
            let mut batch = client.batch(SHARD);
            while remote.len() < 16 {
                remote.push(batch.schedule(delay(&mut rng), TASK).unwrap());
            }
            batch.send().unwrap();
            while home.turn() == Turn::More {}
        }
    };
    steady(60_000);
    let ran = runs.load(Ordering::Relaxed);
    let region = Region::new(ALLOCATOR);
    steady(20_000);
    let change = region.change();
    assert!(runs.load(Ordering::Relaxed) - ran > 8 * 20_000 / 4, "periodic callbacks run");
    let counts = service.stats().shards[0].counts;
    assert!(counts.fired > 10_000 && counts.cancelled > 500_000, "{counts:?}");
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}
