//! Deadlines that timers share, for any thread.

use std::time::Duration;

use corewheel_shard::Tick;

use crate::clock::when::{Deadline, When};
use crate::face::handle::Handle;
use crate::kit::herd::slacken;

/// Deadlines that timers share.
impl<T: 'static> Handle<T> {
    /// The deadline of a timer that is due at `when`, or up to `slack` later where that lets timers
    /// share a tick, as [`Timers::deadline_with_slack`](crate::Timers::deadline_with_slack)
    /// computes it. A handle of a service that has ended returns a deadline that never comes.
    pub fn deadline_with_slack<W: When>(&self, when: W, slack: Duration) -> Deadline {
        let deadline = self.with_reach(move |reach| {
            let (time, now) = (reach.time(), reach.nanos());
            slacken(time, time.tick_of(when, || now), time.nanos_of(when, || now), slack)
        });
        Deadline(deadline.unwrap_or(Tick::NEVER))
    }
}
