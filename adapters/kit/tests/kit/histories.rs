//! Random histories in which callbacks and handlers call random commands: every operation and every
//! timeout ends exactly once, and none is left at the end. Ends are counted here, and say nothing
//! of when they come, so that no rule of time is shared with the code.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::{Rc, Weak};
use std::time::Duration;

use corewheel::settings::{Scale, TurnBudget};
use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::purgatory::{Operation, Purgatory};
use corewheel_kit::scaled::{ScaledTimeout, ScaledTimeouts};
use fastrand::Rng;

use crate::scaled::{CLASS, class_counts, of_class};
use corewheel_test_support::{Lab, POLICIES, builder, check_law, ms, seeds, shared};

/// How often each operation or timeout has ended, by its number.
#[derive(Clone, Default)]
struct Ends(Rc<RefCell<Vec<u32>>>);

impl Ends {
    fn begin(&self) -> usize {
        let mut ends = self.0.borrow_mut();
        ends.push(0);
        ends.len() - 1
    }

    #[track_caller]
    fn end(&self, number: usize) {
        let ends = &mut self.0.borrow_mut()[number];
        *ends += 1;
        assert_eq!(*ends, 1, "{number} ends twice");
    }

    fn end_all(&self, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            self.end(number);
        }
    }

    fn check(&self, seed: u64) {
        let ends = self.0.borrow();
        assert!(ends.len() > 100, "seed {seed}: there are only {}", ends.len());
        let lost = ends.iter().position(|ends| *ends != 1);
        assert_eq!(lost, None, "seed {seed}: it did not end, of {}", ends.len());
    }
}

/// The state that all operations of a history share.
struct World {
    purgatory: Weak<Purgatory<u32, Wild>>,
    ends: Ends,
    rng: RefCell<Rng>,
    /// How many random commands are left before the next step of the history.
    left: Cell<u32>,
    /// How many random commands are running, each inside the one before; at most 21.
    depth: Cell<u32>,
    panics: Cell<u64>,
}

/// An operation that executes a random command in each of its methods.
struct Wild {
    number: usize,
    world: Rc<World>,
}

impl Operation for Wild {
    fn try_complete(&mut self) -> bool {
        self.world.act();
        self.world.rng.borrow_mut().u32(..4) == 0
    }

    fn completed(self) {
        self.world.ends.end(self.number);
        self.world.act();
        self.world.maybe_panic();
    }

    fn expired(self) {
        self.completed();
    }
}

impl World {
    fn take_back(&self, operations: impl IntoIterator<Item = Wild>) {
        self.ends.end_all(operations.into_iter().map(|operation| operation.number));
    }

    fn maybe_panic(&self) {
        if self.rng.borrow_mut().u32(..20) == 0 {
            self.panics.set(self.panics.get() + 1);
            // Unlike `panic!`, this prints nothing.
            resume_unwind(Box::new("on purpose"));
        }
    }

    fn watch(self: &Rc<Self>, purgatory: &Purgatory<u32, Wild>) {
        let (keys, delay): (Vec<_>, _) = {
            let mut rng = self.rng.borrow_mut();
            ((0..rng.u32(..4)).map(|_| rng.u32(..6)).collect(), ms(rng.u64(..30)))
        };
        let number = self.ends.begin();
        let operation = Wild { number, world: Rc::clone(self) };
        let watched = purgatory.try_complete_else_watch(operation, delay, keys);
        self.take_back(watched.err().map(Refused::into_value));
    }

    fn act(self: &Rc<Self>) {
        let Some(purgatory) = self.purgatory.upgrade() else { return };
        let Some(left) = self.left.get().checked_sub(1) else { return };
        // Deeper recursion could overflow the stack of a test thread.
        if self.depth.get() > 20 {
            return;
        }
        self.left.set(left);
        self.depth.set(self.depth.get() + 1);
        let (what, key) = {
            let mut rng = self.rng.borrow_mut();
            (rng.u32(..23), rng.u32(..6))
        };
        match what {
            0..10 => self.watch(&purgatory),
            10..16 => drop(purgatory.check_and_complete(&key)),
            16 => self.take_back(purgatory.cancel_for_key(&key)),
            17 if key < 2 => self.take_back(purgatory.drain()),
            _ => {}
        }
        self.depth.set(self.depth.get() - 1);
    }
}

#[test]
fn operations_with_random_callbacks_end_exactly_once() {
    seeds::each(200, |seed| {
        let mut rng = Rng::with_seed(seed);
        let budget = TurnBudget { expired_max: rng.u32(1..8), ..TurnBudget::default() };
        let mut lab = Lab::<()>::new(builder(1).budget(budget).capacity(rng.u32(4..64)));
        let purgatory = Rc::new(Purgatory::new(lab.timers()));
        let world = Rc::new(World {
            purgatory: Rc::downgrade(&purgatory),
            ends: Ends::default(),
            rng: RefCell::new(rng.fork()),
            left: Cell::new(0),
            depth: Cell::new(0),
            panics: Cell::new(0),
        });
        for _ in 0..200 {
            world.left.set(200);
            world.depth.set(0);
            match rng.u32(..4) {
                0 => world.watch(&purgatory),
                1 => world.act(),
                2 => drop(purgatory.check_and_complete(&rng.u32(..6))),
                _ => lab.advance(Duration::from_micros(rng.u64(1..5_000))),
            }
            let stats = purgatory.stats();
            let ended = stats.completed + stats.expired + stats.cancelled;
            assert_eq!(stats.accepted, stats.delayed + ended, "seed {seed}: {stats:?}");
            assert_eq!(lab.timers().len() as u64, stats.delayed, "seed {seed}: a timer for each");
        }
        // During the shutdown the operations execute random commands, or none.
        world.left.set(if rng.bool() { 200 } else { 0 });
        let policy = POLICIES[rng.usize(..3)];
        let report = lab.end(policy);
        check_law(&report.shards[0].counts);
        let panicked = report.shards[0].counts.panicked;
        assert_eq!(panicked, world.panics.get(), "seed {seed}: there is another panic");
        let rest = purgatory.drain();
        assert!(rest.is_empty() || policy != ShutdownPolicy::Fire, "seed {seed}");
        world.take_back(rest);
        let stats = purgatory.stats();
        assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0), "seed {seed}");
        world.ends.check(seed);
    });
}

type Timeouts = ScaledTimeouts<usize>;

#[test]
fn scaled_timeouts_with_random_handlers_end_exactly_once() {
    seeds::each(200, |seed| {
        let mut rng = Rng::with_seed(seed);
        let budget = TurnBudget {
            expired_max: rng.u32(1..8),
            time_max: rng.bool().then_some(Duration::ZERO),
            ..TurnBudget::default()
        };
        let builder = builder(1).class(CLASS).budget(budget).capacity(rng.u32(2..40));
        let mut lab = Lab::<()>::new(builder);
        let (ends, known) = (Ends::default(), Rc::<RefCell<Vec<ScaledTimeout>>>::default());
        let (inner, (handled, count)) = (RefCell::new(rng.fork()), shared::<Cell<(u64, u64)>>());
        let shard = lab.timers().clone();
        let act = move |timeouts: &Timeouts, ends: &Ends, rng: &mut Rng| {
            let key = rng.choice(&*known.borrow()).copied();
            match rng.u32(..16) {
                0..6 => {
                    let number = ends.begin();
                    match timeouts.start(number) {
                        Ok(key) => known.borrow_mut().push(key),
                        Err(refused) => ends.end(refused.into_value()),
                    }
                }
                6..8 => drop(key.map(|key| timeouts.reset(key))),
                8 => ends.end_all(key.and_then(|key| timeouts.cancel(key))),
                9 if rng.u32(..8) == 0 => ends.end_all(timeouts.drain()),
                10..13 => shard.set_scale(Scale::new(rng.f64()).unwrap()),
                13 => drop(shard.schedule(ms(rng.u64(..9)), ())),
                _ => {}
            }
        };
        let handle = {
            let (ends, act) = (ends.clone(), act.clone());
            move |number, timeouts: &Timeouts| {
                ends.end(number);
                let mut rng = inner.borrow_mut();
                act(timeouts, &ends, &mut rng);
                let (calls, panics) = count.get();
                let panics_now = rng.u32(..20) == 0;
                count.set((calls + 1, panics + u64::from(panics_now)));
                if panics_now {
                    resume_unwind(Box::new("on purpose"));
                }
            }
        };
        let max = ms(rng.u64(1..60));
        let timeouts =
            ScaledTimeouts::new(&of_class(&lab), max / rng.u32(1..9), max, handle).unwrap();
        for step in 0..600 {
            if rng.u32(..3) == 0 {
                lab.advance(Duration::from_micros(rng.u64(1..9_000)));
                // To read the statistics takes longer than all else.
                if step % 4 == 0 {
                    assert_eq!(class_counts(&lab).pending, timeouts.len() as u64, "seed {seed}");
                }
            } else {
                act(&timeouts, &ends, &mut rng);
            }
        }
        let policy = POLICIES[rng.usize(..3)];
        let panicked = lab.settled().panicked;
        assert_eq!(panicked, handled.get().1, "seed {seed}: there is another panic");
        let report = lab.end(policy);
        check_law(&report.shards[0].counts);
        let fired = lab.service.stats().shards[0].classes[0].fired;
        assert_eq!(fired, handled.get().0, "seed {seed}");
        let rest = timeouts.drain();
        assert!(rest.is_empty() || policy != ShutdownPolicy::Fire, "seed {seed}");
        ends.end_all(rest);
        assert_eq!(class_counts(&lab).pending, 0, "seed {seed}");
        ends.check(seed);
    });
}
