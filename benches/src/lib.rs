//! The cost of corewheel and of its peers: the contenders, the workloads, and a check that each
//! contender works correctly.
//!
//! Why a crate of its own: only this crate depends on the peers, so users of corewheel do not
//! download them.
//!
//! Invariants: time is simulated, a tick is a number; all contenders get the same operations,
//! generated before the clock is started; a contender is timed only after [`verify`] has passed.
//! Absent by design: a figure from another run. Absolute figures differ between machines;
//! ratios within a run can be compared.

pub mod figure;
mod memory;
pub mod peers;
pub mod plot;
pub mod sections;
pub mod verdict;
mod verify;
mod workload;

use std::hint;
use std::num::NonZeroU64;
use std::thread;

use core_affinity::CoreId;
use corewheel::attach::Turn;
use corewheel::{Fired, TimerService};
pub use corewheel_timeouts::process::resident_bytes;
pub use memory::{Held, resident_bytes_per_timer};
pub use verify::verify;
pub use workload::{Case, Row, Sample, case, only_tested, sizes};

/// The payload of a timer: eight bytes with a niche, like a box.
pub type Payload = NonZeroU64;

/// The operations of every contender. Ticks are counted from 0.
pub trait Timers: Sized + 'static {
    /// The name in tables.
    const NAME: &'static str;
    /// Whether timers of one tick fire in the order in which they were scheduled.
    const FIFO: bool;
    /// Identifies a pending timer. It is not `Copy`, because some contenders' handles are not.
    type Handle: 'static;

    /// An empty contender for at most `capacity` timers.
    fn with_capacity(capacity: usize) -> Self;

    /// Adds a timer.
    fn schedule(&mut self, deadline: u64, payload: Payload) -> Self::Handle;

    /// Adds a timer that is never cancelled or reset.
    fn schedule_unnamed(&mut self, deadline: u64, payload: Payload) {
        drop(self.schedule(deadline, payload));
    }

    /// Cancels a pending timer and returns its payload.
    fn cancel(&mut self, handle: Self::Handle) -> Payload;

    /// Resets a pending timer. The handle may change.
    fn reset(&mut self, handle: Self::Handle, deadline: u64) -> Self::Handle;

    /// Sets the time and delivers all timers that are due.
    fn advance(&mut self, now: u64, fired: impl FnMut(Payload));

    /// A tick that is not later than the first deadline; `None` if nothing is pending.
    fn next_deadline(&mut self) -> Option<u64>;

    /// How many timers are pending.
    fn pending(&self) -> usize;
}

/// A contender, whose type is erased.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// The name in tables.
    pub name: &'static str,
    /// Populates the contender for a row of the table, with a number of timers.
    pub case: fn(Row, usize) -> Box<dyn Case>,
    /// Checks that the contender works correctly.
    pub verify: fn(),
    /// Measures how many bytes each of a number of timers takes from the system.
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

/// All contenders. The others are compared with the first.
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
/// This is the last core: interrupts and other work tend to be on the first. Returns false if the
/// system does not allow it.
pub fn pin_to_one_core() -> bool {
    let last = core_affinity::get_core_ids().and_then(|cores| cores.last().copied());
    last.is_some_and(core_affinity::set_for_current)
}

/// The numbers below `count`, in an order that is too long for a predictor to learn.
pub fn random_order(count: usize) -> impl FnMut() -> usize {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0010);
    let order: Vec<u32> = (0..1 << 18).map(|_| rng.u32(..count as u32)).collect();
    let mut at = 0;
    move || {
        at = (at + 1) % order.len();
        order[at] as usize
    }
}

/// A service with one shard for values that never fire. A loop on this core takes its turns without
/// a pause, so that figures of its lanes contain no sleep of the operating system.
///
/// # Panics
///
/// If the service does not start.
pub fn polled_service<T: Send + 'static>(home: CoreId, capacity: u32) -> TimerService<T> {
    let builder = TimerService::builder().shards(1).capacity(capacity);
    let service = builder.start_attached_with::<T>().expect("the service starts");
    let shard = service.shards().next().expect("it has a shard");
    let attachment = service.attach(shard).expect("no thread drives the shard");
    thread::spawn(move || {
        core_affinity::set_for_current(home);
        let handler = |_: Fired<T>, _: &corewheel::Timers<T>| unreachable!("nothing is due");
        let mut shard = attachment.into_loop(handler).expect("the service has not ended");
        while shard.turn() != Turn::Closed {
            hint::spin_loop();
        }
    });
    service
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
