//! Scaled timeouts on each shard, and the scale of the shard.
//!
//! With the code the model shares that a scale is a part of the difference between the shortest
//! and the longest timeout, which is a promise. All scales are quarters of a difference that four
//! divides, so that nothing is rounded but the end, and the ledger knows that.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use corewheel::Timers;
use corewheel::settings::Scale;
use corewheel_kit::scaled::{ScaledTimeout, ScaledTimeouts};

use crate::commands::{Due, Temper};
use crate::ledger::{Id, Job, Ledger, drop_contained};
use crate::world::{World, deliver, shard_of};

/// The shortest and the longest timeout, in nanoseconds. The difference can be divided by four.
const MIN: u64 = 3_000_003;
const MAX: u64 = MIN + 40_000_000;

/// The scaled timeouts of a shard.
pub(crate) struct Scaled {
    timeouts: ScaledTimeouts<Job>,
    on: Timers<Job>,
    /// Each timeout with its start, in nanoseconds.
    known: RefCell<Vec<(Id, ScaledTimeout, u64)>>,
    /// The scale of the shard, in quarters. `None` after another thread has set it.
    pub(crate) quarters: Cell<Option<u8>>,
}

impl Scaled {
    /// Scaled timeouts on a shard with this scale.
    pub(crate) fn new(timers: &Timers<Job>, quarters: Option<u8>) -> Self {
        let (shard, on) = (shard_of(timers), timers.clone());
        let handler = move |job: Job, _: &ScaledTimeouts<Job>| deliver(job, shard, None, &on);
        let (min, max) = (Duration::from_nanos(MIN), Duration::from_nanos(MAX));
        let timeouts = ScaledTimeouts::new(timers, min, max, handler);
        Self {
            timeouts: timeouts.expect("the settings are in range"),
            on: timers.clone(),
            known: RefCell::default(),
            quarters: Cell::new(quarters),
        }
    }

    /// When a timeout is due at the earliest and at the latest that started at `start`.
    fn due(&self, start: u64) -> (u64, u64) {
        match self.quarters.get() {
            Some(quarters) => {
                let span = MIN + (MAX - MIN) / 4 * u64::from(quarters);
                (start + span, start + span)
            }
            None => (start + MIN, start + MAX),
        }
    }

    fn place(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_rem(self.known.borrow().len())
    }

    pub(crate) fn start(&self, world: &World, temper: Temper) {
        let start = world.ledger.now();
        let job = world.ledger.value(shard_of(&self.on), Due::Never, temper);
        let id = job.id;
        world.ledger.is_due_between(id, self.due(start));
        match self.timeouts.start(job) {
            Ok(timeout) => self.known.borrow_mut().push((id, timeout, start)),
            Err(refused) => world.ledger.refuse(refused.into_value()),
        }
    }

    pub(crate) fn reset(&self, world: &World, number: u8) {
        let Some(place) = self.place(number) else { return };
        let (id, timeout, start) = &mut self.known.borrow_mut()[place];
        *start = world.ledger.now();
        world.ledger.is_due_between(*id, self.due(*start));
        let was_live = world.ledger.is_live(*id);
        let was_reset = self.timeouts.reset(*timeout);
        if was_reset != was_live {
            world.ledger.violate(format!("a reset of timeout {id} says {was_reset}"));
        }
    }

    pub(crate) fn cancel(&self, world: &World, number: u8) {
        let Some(place) = self.place(number) else { return };
        let (id, timeout, _) = self.known.borrow()[place];
        let was_live = world.ledger.is_live(id);
        let cancelled = self.timeouts.cancel(timeout);
        if cancelled.is_some() != was_live {
            world.ledger.violate(format!("the cancel of timeout {id} says {was_live}"));
        }
        world.ledger.taken_out(cancelled);
    }

    /// Sets the scale on the shard's own thread, or as another thread does.
    pub(crate) fn set_scale(&self, world: &World, quarters: u8, is_remote: bool) {
        let scale = Scale::new(f64::from(quarters) / 4.0).expect("there are four quarters");
        self.quarters.set((!is_remote).then_some(quarters));
        for (id, _, start) in &*self.known.borrow() {
            world.ledger.is_due_between(*id, self.due(*start));
        }
        if is_remote {
            // A shard that has ended refuses.
            let _refused = self.on.handle().on(self.on.shard_id()).set_scale(scale);
        } else {
            self.on.set_scale(scale);
        }
    }

    pub(crate) fn clear(&self, world: &World) {
        self.may_drop(world);
        self.timeouts.drain().into_iter().for_each(drop_contained);
    }

    /// The values that wait may be dropped from now on.
    pub(crate) fn may_drop(&self, world: &World) {
        self.known.borrow().iter().for_each(|(id, ..)| world.ledger.may_drop(&[*id]));
    }

    /// The shard has ended: the values that wait can be taken out.
    pub(crate) fn end(&self, ledger: &Ledger) {
        ledger.taken_out(self.timeouts.drain());
    }
}
