//! The contenders: each implements [`Timers`], and does no more than that asks for.

mod btree;
mod delay_queue;
mod hash_wheel;
mod heap;
mod nexus;
mod ours;

pub use btree::BTree;
pub use delay_queue::TokioQueue;
pub use hash_wheel::HashWheel;
pub use heap::Heap;
pub use nexus::Nexus;
pub use ours::Ours;

use crate::Timers;
use crate::rows::bytes;
use crate::rows::wheel::{Row, rows};
use crate::verify::verify;

/// A contender, whose type is erased.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// The name in tables.
    pub name: &'static str,
    /// The rows of the wheel.
    pub rows: fn() -> Vec<Row>,
    /// Checks that the contender works correctly.
    pub verify: fn(),
    /// Measures how many bytes each of a number of timers takes from the system: after schedules
    /// alone, or after four times as many cancels, each with a schedule.
    pub bytes: fn(usize, bool) -> f64,
}

impl Contender {
    fn of<T: Timers>() -> Self {
        Self { name: T::NAME, rows: rows::<T>, verify: verify::<T>, bytes: bytes::of::<T> }
    }
}

/// All contenders. The others are compared with the first.
pub fn contenders() -> Vec<Contender> {
    vec![
        Contender::of::<Ours<false>>(),
        Contender::of::<Ours<true>>(),
        Contender::of::<Nexus>(),
        Contender::of::<HashWheel>(),
        Contender::of::<TokioQueue>(),
        Contender::of::<Heap>(),
        Contender::of::<BTree>(),
    ]
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
