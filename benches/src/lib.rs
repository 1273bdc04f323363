//! What corewheel costs, beside its peers: the contenders, the workloads and the check that each
//! contender does what it is timed for.
//!
//! Why a crate of its own: the peers are dependencies here and nowhere else, so nobody who uses
//! corewheel downloads them.
//!
//! Invariants: time is simulated, a tick is a number; all contenders see the same operations,
//! generated before the clock is started; a contender is timed only after [`verify`] has passed.
//! Absent by design: a figure from another run. Absolute figures do not travel between machines,
//! ratios within one run do.

pub mod figure;
mod memory;
pub mod peers;
pub mod sections;
mod verify;
mod workload;

use std::num::NonZeroU64;

pub use memory::{Held, resident_bytes, resident_bytes_per_timer};
pub use verify::verify;
pub use workload::{Case, Row, Sample, case, only_tested, sizes};

/// What a timer carries: eight bytes with a niche, like a box.
pub type Payload = NonZeroU64;

/// What every contender can do. Ticks are counted from 0.
pub trait Timers: Sized + 'static {
    /// As it is called in tables.
    const NAME: &'static str;
    /// Whether timers of one tick fire in the order in which they were scheduled.
    const FIFO: bool;
    /// Names one pending timer. It is not `Copy`, because not every contender's is.
    type Handle: 'static;

    /// An empty one that will hold at most `capacity` timers.
    fn with_capacity(capacity: usize) -> Self;

    /// Adds a timer.
    fn schedule(&mut self, deadline: u64, payload: Payload) -> Self::Handle;

    /// Adds a timer that nobody is going to cancel or move.
    fn schedule_unnamed(&mut self, deadline: u64, payload: Payload) {
        drop(self.schedule(deadline, payload));
    }

    /// Ends a pending timer and returns what it carried.
    fn cancel(&mut self, handle: Self::Handle) -> Payload;

    /// Moves a pending timer. The handle may become another one.
    fn reset(&mut self, handle: Self::Handle, deadline: u64) -> Self::Handle;

    /// Says what time it is and hands out all that is due.
    fn advance(&mut self, now: u64, fired: impl FnMut(Payload));

    /// A tick that is not later than the first deadline; `None` if nothing is pending.
    fn next_deadline(&mut self) -> Option<u64>;

    /// How many timers are pending.
    fn pending(&self) -> usize;
}

/// One contender, its type put away.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// As it is called in tables.
    pub name: &'static str,
    /// Populates one for a row of the table, at a number of timers.
    pub case: fn(Row, usize) -> Box<dyn Case>,
    /// Checks that it does what it is timed for.
    pub verify: fn(),
    /// What it takes from the system for each of a number of timers.
    pub resident_bytes_per_timer: fn(usize, Held) -> f64,
}

impl Contender {
    fn of<T: Timers>() -> Self {
        Self {
            name: T::NAME,
            case: case::<T>,
            verify: verify::<T>,
            resident_bytes_per_timer: resident_bytes_per_timer::<T>,
        }
    }
}

/// All of them; the first is what the others are compared with.
pub fn contenders() -> Vec<Contender> {
    vec![
        Contender::of::<peers::hierarchical::Hierarchical>(),
        Contender::of::<peers::hashed::Hashed>(),
        Contender::of::<peers::nexus::Nexus>(),
        Contender::of::<peers::hash_wheel::HashWheel>(),
        Contender::of::<peers::delay_queue::TokioQueue>(),
        Contender::of::<peers::heap::Heap>(),
        Contender::of::<peers::btree::BTree>(),
    ]
}

/// Keeps this thread on one core, so that no figure contains a migration.
///
/// The last core: interrupts and a machine's other work tend to be on the first. False if the
/// system does not allow it.
pub fn pin_to_one_core() -> bool {
    let last = core_affinity::get_core_ids().and_then(|cores| cores.last().copied());
    last.is_some_and(core_affinity::set_for_current)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_contender_does_what_it_is_timed_for() {
        for contender in super::contenders() {
            (contender.verify)();
        }
    }
}
