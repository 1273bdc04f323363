//! The hooks of the simulation in a shard: requests that stay in the lanes, and checks of what the
//! shard holds.

use corewheel_shard::Tick;

use super::core::{Core, State};
use super::threads::unused_slots;

impl<T: 'static> Core<T> {
    /// Whether the turns of the shard leave requests in their lanes from now on, as if the requests
    /// were still on the way. Mail and the end of the shard are not affected.
    pub(crate) fn hold_lanes(&self, holds: bool) {
        if self.held_lanes.replace(holds) && !holds {
            // The driver may have fallen asleep beside requests.
            self.post().doorbell.wake();
        }
    }

    /// Checks what holds between turns.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    pub(crate) fn check_invariants(&self) {
        let state = self.state.borrow();
        state.wheel.check_invariants();
        let shard = self.id;
        let (calls, timers) = (state.calls.len(), state.wheel.len());
        assert!(calls <= timers, "shard {shard} keeps {calls} callbacks for {timers} timers");
        assert!(!state.left.has_effects(), "shard {shard} has effects that nothing will run");
        assert!(
            state.mail.jobs.is_empty() || !self.is_closed(),
            "shard {shard} has ended with futures"
        );
        let granted = state.wheel.granted();
        let overtaken = state.inbox.overtaken.len();
        assert!(overtaken <= granted, "shard {shard} keeps {overtaken} replies for {granted} keys");
        state.check_threads();
        let is_closed = self.is_closed();
        assert!(
            !is_closed || state.wheel.is_empty(),
            "shard {shard} has ended with pending timers"
        );
        assert!(!is_closed || granted == 0, "shard {shard} has ended with {granted} granted keys");
    }

    /// Checks that a shard whose driver sleeps has nothing to do now.
    ///
    /// # Panics
    ///
    /// If the shard has something to do, with a sentence and the values.
    pub(crate) fn check_asleep(&self) {
        if self.is_closed() {
            return;
        }
        let (shard, now) = (self.id, self.time().floor(self.nanos()));
        let until = self.asleep_until.get();
        assert!(until > Tick::ZERO, "shard {shard} is neither awake nor asleep");
        for thread_timers in self.post().threads.all().0.into_iter().flatten() {
            let act_by = thread_timers.act_by();
            // A thread that is over waits for any turn, with an act at 0.
            let is_over = act_by == 0;
            assert!(
                is_over || self.time().ceil(act_by) >= until,
                "shard {shard} sleeps until {until:?}, past an act at {act_by:?}"
            );
        }
        let earliest = self.state.borrow().wheel.earliest_deadline().unwrap_or(Tick::NEVER);
        assert!(earliest >= until, "shard {shard} sleeps until {until:?}, past {earliest:?}");
        assert!(
            earliest > now,
            "shard {shard} sleeps at {now:?}, but a timer of {earliest:?} is due"
        );
    }
}

impl<T: 'static> State<T> {
    /// Checks what holds between turns.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, with a sentence and the values.
    fn check_threads(&self) {
        let (lent, unused) = (self.threads.lent, unused_slots(&self.wheel));
        let shard = self.id;
        let is_closed = self.post().has_ended();
        assert!(is_closed || lent <= unused, "shard {shard} lends {lent} slots of {unused}");
        for thread_timers in self.threads.known.iter().flatten() {
            thread_timers.check_invariants();
        }
    }
}
