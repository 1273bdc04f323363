//! How a shard parks and is woken by its own thread; the protocol with other threads is that of
//! [`crate::link::wake_up`].

use std::task::Waker;

use corewheel_shard::Tick;

use super::payload::Payload;
use super::{Core, State};
use crate::link::lane::LaneReceiver;
use crate::stats::ShardCounts;

/// While it lives, a command of several steps is running: the driver is woken after it, once.
pub(crate) struct Compound<'a, P: Payload>(&'a Core<P>);

impl<P: Payload> Drop for Compound<'_, P> {
    fn drop(&mut self) {
        let Self(core) = self;
        core.compound.set(core.compound.get() - 1);
        if core.compound.get() == 0 && core.wake_due.replace(false) {
            core.post().doorbell.ring();
        }
    }
}

impl<P: Payload> Core<P> {
    /// Begins a command of several steps: what it schedules wakes the driver when it is complete.
    #[inline]
    pub(crate) fn compound(&self) -> Compound<'_, P> {
        self.compound.set(self.compound.get() + 1);
        Compound(self)
    }

    /// Wakes the driver if it sleeps past a deadline that has just come up.
    #[inline]
    pub(crate) fn note_deadline(&self, deadline: Tick) {
        if self.asleep_until.get() > Tick::ZERO {
            self.note_deadline_asleep(deadline);
        }
    }

    #[cold]
    fn note_deadline_asleep(&self, deadline: Tick) {
        if deadline < self.asleep_until.get() {
            self.wake_driver();
        } else {
            self.publish_asleep();
        }
    }

    /// Wakes the driver if it sleeps.
    pub(super) fn wake_driver(&self) {
        if self.asleep_until.replace(Tick::ZERO) == Tick::ZERO {
            return;
        }
        if self.compound.get() > 0 {
            self.wake_due.set(true);
        } else {
            self.post().doorbell.ring();
        }
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.asleep_until.get() > Tick::ZERO
    }

    /// Goes to sleep by the protocol of wake-ups. False if something came meanwhile.
    pub(crate) fn fall_asleep(&self, until: Tick, waker: &Waker) -> bool {
        let post = self.post();
        self.asleep_until.set(until);
        if self.sleeps_lightly() {
            post.doorbell.fall_asleep_lightly(waker);
        } else {
            post.doorbell.fall_asleep(until, waker);
        }
        if self.has_news() {
            self.wake_up();
            return false;
        }
        true
    }

    /// The driver goes on.
    pub(crate) fn wake_up(&self) {
        self.asleep_until.set(Tick::ZERO);
        self.post().doorbell.wake_up();
    }

    /// Whether anything has come since the last turn, for a driver that spins.
    pub(crate) fn has_news(&self) -> bool {
        let state = self.state.borrow();
        self.post().mailbox.has_mail() || state.lanes.iter().any(LaneReceiver::has_news)
    }

    /// Publishes what a command has changed while the driver sleeps. Its next turn may be far off,
    /// and until then the statistics would show a shard that its own tasks keep busy as idle.
    #[inline]
    pub(super) fn publish_command(&self) {
        if self.asleep_until.get() > Tick::ZERO {
            self.publish_asleep();
        }
    }

    #[cold]
    fn publish_asleep(&self) {
        let State { wheel, classes, .. } = &mut *self.state.borrow_mut();
        let published = &self.post().published;
        published.store_commands(wheel.counters(), |published| classes.publish(published));
    }

    /// Publishes a gauge of a part that has changed, if no turn will soon.
    #[inline]
    pub(crate) fn publish_gauge(&self, write: impl FnOnce(&mut ShardCounts)) {
        if self.asleep_until.get() > Tick::ZERO || self.closed.get() {
            let counts = &mut self.state.borrow_mut().counts;
            write(counts);
            self.post().published.store_gauges(counts);
        }
    }
}
