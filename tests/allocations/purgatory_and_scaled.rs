//! Pending operations of a purgatory and scaled timeouts allocate nothing under steady load.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::TimerService;
use corewheel::class::TimerClass;
use corewheel_kit::purgatory::{Operation, Purgatory};
use corewheel_kit::scaled::ScaledTimeouts;
use corewheel_test_support::Lab;

use crate::{AGE, check_allocates_nothing};

const CLASS: TimerClass = TimerClass::new("containers");
const TICK: Duration = Duration::from_millis(1);
/// Tables of 4,096 places are nearly full with so many, so they grow in the first ticks, and then
/// never again.
const WAITING: usize = 3_500;

/// Completes when the shared flag is set.
struct Fetch(Rc<Cell<bool>>);

impl Operation for Fetch {
    fn try_complete(&mut self) -> bool {
        self.0.get()
    }

    fn completed(self) {}

    fn expired(self) {}
}

pub(crate) fn steady_load_of_operations_and_scaled_timeouts_allocates_nothing() {
    let builder = TimerService::builder().shards(1).capacity(1 << 16).class(CLASS);
    let mut lab: Lab = Lab::aged(builder, AGE);
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0032);

    let ready = Rc::new(Cell::new(false));
    let timers = lab.timers().of_class(CLASS).unwrap();
    let purgatory = Purgatory::<u64, Fetch>::new(&timers);
    let watch = |rng: &mut fastrand::Rng| {
        let (delay, keys) = (TICK * rng.u32(1..3_000), [rng.u64(..500), rng.u64(500..1_000)]);
        let watched = purgatory.try_complete_else_watch(Fetch(Rc::clone(&ready)), delay, keys);
        assert!(matches!(watched, Ok(false)), "it is not ready, and there is room");
    };
    (0..WAITING).for_each(|_| watch(&mut rng));

    let again = |n, timeouts: &ScaledTimeouts<usize>| assert!(timeouts.start(n).is_ok());
    let timeouts = ScaledTimeouts::new(&timers, TICK * 50, TICK * 500, again).unwrap();
    let mut idle: Vec<_> = (0..WAITING).map(|n| timeouts.start(n).unwrap()).collect();

    let mut steady = |ticks: usize| {
        for _ in 0..ticks {
            lab.clock.advance(TICK);
            for _ in 0..8 {
                // What is cancelled is returned in a vector, which allocates.
                watch(&mut rng);
                let picked = rng.usize(..WAITING);
                if let Some(n) = timeouts.cancel(idle[picked]) {
                    idle[picked] = timeouts.start(n).unwrap();
                }
                timeouts.reset(idle[rng.usize(..WAITING)]);
            }
            ready.set(true);
            purgatory.check_and_complete(&rng.u64(..1_000));
            ready.set(false);
            lab.settle();
        }
    };
    // The histogram allocates when a lateness of a new size is recorded first.
    steady(8_000);
    check_allocates_nothing(|| steady(4_000));
    let (waited, class) = (purgatory.stats(), lab.service.stats().shards[0].classes[0]);
    let fired = class.fired - waited.expired;
    assert!(waited.completed > 4_000 && waited.expired > 400, "{waited:?}");
    assert!(fired > 4_000 && class.cancelled > 400, "{class:?}");
}
