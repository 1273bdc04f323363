//! `hierarchical_hash_wheel_timer`: four levels of 256 slots and an overflow list, with reference
//! counts for timers and a hash map from their ids.
//!
//! The handle holds a reference, as a caller must to get the payload back: the crate's cancel does
//! not return it.

use std::rc::Rc;
use std::time::Duration;

use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow,
};

use crate::{Payload, Timers};

/// A timer, with the number that is its id in the wheel.
#[derive(Debug)]
pub struct Entry {
    id: u64,
    payload: Payload,
}

impl CancellableTimerEntry for Entry {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.id
    }
}

/// A [`QuadWheelWithOverflow`], one unit of which is a tick.
pub struct HashWheel {
    wheel: QuadWheelWithOverflow<Entry>,
    now: u64,
    next_id: u64,
    pending: usize,
}

impl Timers for HashWheel {
    const NAME: &'static str = "hierarchical_hash_wheel_timer";
    const FIFO: bool = false;
    type Handle = Rc<Entry>;

    fn with_capacity(_: usize) -> Self {
        Self { wheel: QuadWheelWithOverflow::new(), now: 0, next_id: 0, pending: 0 }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> Rc<Entry> {
        let entry = Rc::new(Entry { id: self.next_id, payload });
        self.next_id += 1;
        self.pending += 1;
        let delay = Duration::from_millis(deadline - self.now);
        let inserted = self.wheel.insert_ref_with_delay(Rc::clone(&entry), delay);
        inserted.expect("the deadline is not over");
        entry
    }

    fn cancel(&mut self, entry: Rc<Entry>) -> Payload {
        self.wheel.cancel(&entry.id).expect("it is pending");
        self.pending -= 1;
        entry.payload
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        while self.now < now {
            match self.wheel.can_skip() {
                Skip::Empty => self.now = now,
                Skip::Millis(ticks) => {
                    let ticks = u64::from(ticks).min(now - self.now);
                    self.wheel.skip(ticks as u32);
                    self.now += ticks;
                }
                Skip::None => {
                    self.now += 1;
                    for entry in self.wheel.tick() {
                        self.pending -= 1;
                        fired(entry.payload);
                    }
                }
            }
        }
    }

    fn next_deadline(&mut self) -> Option<u64> {
        match self.wheel.can_skip() {
            Skip::Empty => None,
            _ if self.pending == 0 => None,
            Skip::Millis(ticks) => Some(self.now + u64::from(ticks) + 1),
            Skip::None => Some(self.now + 1),
        }
    }

    fn pending(&self) -> usize {
        self.pending
    }
}
