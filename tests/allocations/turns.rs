//! Steady load allocates nothing: neither timers of a shard's own core nor requests of a client.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corewheel::{Fired, TimerId, TimerService, Timers};
use corewheel_kit::repeat::{PeriodicRun, Repeat};
use corewheel_test_support::{Lab, SHARD};

use crate::check_allocates_nothing;

const PENDING: usize = 20_000;
const TICK: Duration = Duration::from_millis(1);
const PAYLOAD: NonZeroU64 = NonZeroU64::MIN;

pub(crate) fn steady_load_of_timers_and_requests_allocates_nothing() {
    let again = |fired: Fired<NonZeroU64>, timers: &Timers<NonZeroU64>| {
        // Each timer that fires is scheduled again.
        timers.schedule(TICK * 7_000, fired.payload).unwrap();
    };
    let builder = TimerService::builder().shards(1).capacity(4 * PENDING as u32);
    let mut lab = Lab::with_handler(builder, |_| again);
    let (timers, client) = (lab.timers().clone(), lab.service.handle());
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0021);
    let delay = |rng: &mut fastrand::Rng| TICK * rng.u32(1..10_000);
    let mut handles: Vec<TimerId> =
        (0..PENDING).map(|_| timers.schedule(delay(&mut rng), PAYLOAD).unwrap()).collect();
    let mut remote: Vec<TimerId> = Vec::with_capacity(64);
    // Periodic callbacks at a fixed rate, with a fixed delay and by a plan.
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
            0..4 => drop(repeat.begin(&timers, call).unwrap()),
            _ => drop(Repeat::by_plan(&timers, at, plan, call).unwrap()),
        }
    }

    let mut steady = |ticks: usize| {
        for _ in 0..ticks {
            lab.clock.advance(TICK);
            for _ in 0..20 {
                let picked = rng.usize(..PENDING);
                // A timer that has fired cannot be cancelled; the handler has scheduled another.
                if timers.cancel(handles[picked]).won() {
                    handles[picked] = timers.schedule(delay(&mut rng), PAYLOAD).unwrap();
                }
                let picked = rng.usize(..PENDING);
                let _ = timers.reset(handles[picked], delay(&mut rng));
            }
            for timer in remote.drain(..) {
                client.cancel_detached(timer);
            }
            while remote.len() < 16 {
                remote.push(client.on(SHARD).schedule(delay(&mut rng), PAYLOAD).unwrap());
            }
            lab.settle();
        }
    };
    steady(20_000);
    let ran = runs.load(Ordering::Relaxed);
    check_allocates_nothing(|| steady(10_000));
    let ran = runs.load(Ordering::Relaxed) - ran;
    assert!(ran > 8 * 10_000 / 4, "the periodic callbacks do not run");
    let counts = lab.service.stats().shards[0].counts;
    assert!(counts.fired > 5_000 && counts.cancelled > 180_000, "{counts:?}");
}
