//! The clock of a history, its first violation of a law, and how much it has done.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use corewheel::sim::{Simulation, Time};

/// What the tasks of a history share. `D` is how much they have done.
pub(crate) struct Judge<D> {
    pub(crate) time: Time,
    start: Instant,
    violation: RefCell<Option<String>>,
    done: Cell<D>,
}

impl<D: Copy + Default> Judge<D> {
    /// The times of the history count from now on.
    pub(crate) fn new<T: Send + 'static>(sim: &Simulation<T>) -> Self {
        let (violation, done) = (RefCell::default(), Cell::default());
        Self { time: sim.time(), start: sim.now(), violation, done }
    }

    pub(crate) fn now(&self) -> Duration {
        self.time.now() - self.start
    }

    /// A law is violated. The first text counts.
    pub(crate) fn violate(&self, text: String) {
        self.violation.borrow_mut().get_or_insert(text);
    }

    /// Panics if a law was violated.
    pub(crate) fn check(&self) {
        if let Some(violation) = self.violation.take() {
            panic!("{violation}");
        }
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut D)) {
        let mut done = self.done.get();
        count(&mut done);
        self.done.set(done);
    }

    pub(crate) fn done(&self) -> D {
        self.done.get()
    }
}

/// Lets the time pass. `step` takes each step of the simulation, and checks what it has done.
pub(crate) fn run_for<T: Send + 'static>(
    sim: &mut Simulation<T>,
    time: Duration,
    mut step: impl FnMut(&mut Simulation<T>),
) {
    let end = sim.elapsed() + time;
    while sim.next_at().is_some_and(|at| at <= end) {
        step(sim);
    }
    sim.run_for(end.saturating_sub(sim.elapsed()));
}
