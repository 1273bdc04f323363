//! How a shard counts and times its turns and deliveries.

use std::time::Duration;

use super::core::Core;
use super::lateness::TurnEnd;
use super::measures::Measures;

impl<T: 'static> Core<T> {
    /// Notes the beginning of a turn.
    #[inline]
    pub(super) fn begin_turn(&self, now: u64) {
        let bound = self.directory.settings.lateness_bound;
        let late_until = self.time().floor(now.saturating_sub(bound));
        let Measures { times, live, .. } = &mut self.state.borrow_mut().measured;
        times.begin(now, late_until, self.woken_at.replace(u64::MAX));
        live.begin_turn(now);
    }

    /// Notes the end of a turn that has delivered what it could.
    pub(super) fn end_turn(&self, end: &TurnEnd) {
        let now = self.nanos_near();
        let state = &mut *self.state.borrow_mut();
        state.lend();
        let Measures { times, counts, live, .. } = &mut state.measured;
        let next_due = times.end(end, now, self.time(), counts);
        live.end_turn(next_due);
    }

    /// Counts a delivery if it took too long; `took` is in nanoseconds.
    #[inline]
    pub(super) fn note_delivery(&self, took: u64) {
        if Duration::from_nanos(took) > self.directory.settings.overrun {
            self.note_overrun(took);
        }
    }

    /// Counts a delivery that took too long, also for the class of its timer. For a class it logs
    /// the first one and each that makes twice as many as were logged before.
    #[cold]
    fn note_overrun(&self, took: u64) {
        let overrun = {
            let state = &mut *self.state.borrow_mut();
            state.measured.counts.overrun += 1;
            state.measured.counts.overrun_last_ns = took;
            state.measured.classes.count(state.measured.live.delivering(), |counts| {
                counts.overrun += 1;
                counts.overrun
            })
        };
        let Some(overrun) = overrun else { return };
        if overrun.is_power_of_two() {
            if let Some(class) = self.directory.settings.classes.name(self.class_delivered()) {
                let (shard, took) = (self.id.number(), Duration::from_nanos(took));
                tracing::warn!(
                    name: "delivery-slow",
                    target: "corewheel::shard",
                    shard, class, ?took, overrun, "the delivery of a timer took too long"
                );
            }
        }
    }
}
