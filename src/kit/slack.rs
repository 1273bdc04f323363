//! Deadlines that timers share, for any thread.

use std::time::Duration;

use crate::clock::when::{Deadline, When};
use crate::face::handle::Handle;
use crate::kit::herd::slacken;

/// Deadlines that timers share.
impl<T: 'static> Handle<T> {
    /// The deadline of a timer that is due at `when`, or up to `slack` later where that lets timers
    /// share a tick, as [`Timers::deadline_with_slack`](crate::Timers::deadline_with_slack)
    /// computes it. A handle of a service that has ended returns a deadline that never comes.
    pub fn deadline_with_slack<W: When>(&self, when: W, slack: Duration) -> Deadline {
        let earliest = self.deadline(when);
        let Some(time) = self.time() else { return earliest };
        let nanos = time.nanos_of(when, || self.nanos());
        Deadline(slacken(&time, earliest.0, nanos, slack))
    }
}
