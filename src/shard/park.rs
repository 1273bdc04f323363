//! How a shard parks, and how commands on its own thread wake it. Other threads wake it by the
//! protocol of [`crate::link::wake_up`].

use std::task::Waker;

use corewheel_shard::Tick;

use super::core::{Core, Inbox};
use crate::link::lane::LaneReceiver;

impl<T: 'static> Core<T> {
    /// Wakes the driver if it sleeps past `deadline`. Called after each schedule and reset.
    #[inline]
    pub(crate) fn note_deadline(&self, deadline: Tick) {
        if self.asleep_until.get() > Tick::ZERO {
            self.note_deadline_asleep(deadline);
        }
    }

    #[cold]
    pub(super) fn note_deadline_asleep(&self, deadline: Tick) {
        if deadline < self.asleep_until.get() {
            self.wake_driver();
        } else {
            self.publish_asleep();
            self.wake_for_effects();
        }
    }

    /// Wakes the driver if a command has left effects for the next turn. A schedule does if it
    /// closes a lane for its keys, and a request comes on that lane at the same time.
    #[cold]
    pub(super) fn wake_for_effects(&self) {
        if self.state.borrow().left.has_effects() {
            self.wake_driver();
        }
    }

    /// Falls asleep by the wake-up protocol: until `latest`, or until an earlier tick at which the
    /// shard wants a turn by now. Returns until when. `None` if mail or a request has come, or if
    /// the shard's own thread has left something for a turn.
    ///
    /// Each driver calls it after its last chance for code of the user to run, so that it need not
    /// look at what that code has left.
    pub(crate) fn fall_asleep(&self, latest: Tick, waker: &Waker) -> Option<Tick> {
        let until = self.next_deadline().map_or(latest, |next| latest.min(next));
        let post = self.post();
        self.asleep_until.set(until);
        // The doorbell clones a waker and drops another, which runs code of the user.
        post.doorbell.fall_asleep(until, waker);
        let has_news = self.has_news_before(until);
        let is_woken = self.asleep_until.get() != until;
        let has_work = self.state.borrow().left.has_effects() || self.parts.wanted().has_work;
        if has_news || is_woken || has_work {
            self.wake_up();
            return None;
        }
        Some(until)
    }

    /// Whether mail or a request has come since the last turn that cannot wait until a tick. Timers
    /// that are due later may wait: otherwise a shard to which threads send all the time would
    /// never sleep, and receive timers that are about to be cancelled.
    fn has_news_before(&self, until: Tick) -> bool {
        if self.post().mailbox.has_mail() || self.has_act_before(until) {
            return true;
        }
        if self.held_lanes.get() {
            return false;
        }
        let Inbox { lanes, soon, overtaken, .. } = &mut self.state.borrow_mut().inbox;
        if !overtaken.is_empty() {
            // A caller waits for a timer that another thread has sent.
            return lanes.iter().any(LaneReceiver::has_news);
        }
        lanes.iter_mut().any(|lane| lane.has_news_before(until, *soon))
    }

    /// Publishes the counts after a command while the driver sleeps. Otherwise the statistics would
    /// not show the command before the next turn, which may be far off.
    #[inline]
    pub(super) fn publish_command(&self) {
        if self.asleep_until.get() > Tick::ZERO {
            self.publish_asleep();
        }
    }

    #[cold]
    pub(super) fn publish_asleep(&self) {
        let state = &mut *self.state.borrow_mut();
        let counters = state.counters();
        let classes = &mut state.measured.classes;
        let published = &self.post().published;
        published.store_commands(&counters, |published| classes.publish(published));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corewheel_test_support::Alarm;

    use super::super::core::Effect;
    use super::super::request::Request;
    use super::*;
    use crate::{ShardId, TimerService};

    /// A schedule leaves effects if it closes a lane to which a thread sends at that moment.
    #[test]
    fn driver_does_not_fall_asleep_beside_effects_of_a_command() {
        let service = TimerService::builder().shards(1).start_attached_with::<u8>().unwrap();
        let attachment = service.attach(ShardId::new(0)).unwrap();
        let mut shard = attachment.into_loop(|_, _| {}).unwrap();
        let _next = shard.turn();
        let core = std::rc::Rc::clone(shard.timers().core());
        assert_eq!(core.fall_asleep(Tick::NEVER, Waker::noop()), Some(Tick::NEVER));
        core.wake_up();
        let (alarm, waker) = Alarm::new();
        core.state.borrow_mut().left.effects.push(Effect::Wake(waker));
        assert_eq!(core.fall_asleep(Tick::NEVER, Waker::noop()), None);
        assert!(!core.is_asleep() && alarm.count() == 0);
        let _next = shard.turn();
        assert_eq!(alarm.count(), 1);
        assert_eq!(core.fall_asleep(Tick::NEVER, Waker::noop()), Some(Tick::NEVER));
    }

    /// A thread sends a timer while the shard receives the cancel that another thread sends by the
    /// timer's id.
    #[test]
    fn driver_does_not_fall_asleep_beside_a_timer_whose_cancel_came_before_it() {
        let service = TimerService::builder().shards(1).start_attached_with::<u8>().unwrap();
        let attachment = service.attach(ShardId::new(0)).unwrap();
        let mut shard = attachment.into_loop(|_, _| {}).unwrap();
        let _next = shard.turn();
        let core = std::rc::Rc::clone(shard.timers().core());
        let sender = service.handle();
        let hour = Duration::from_secs(3_600);
        let _ = sender.on(core.id()).schedule(hour, 1);
        let _next = shard.turn();
        let timer = sender.on(core.id()).schedule(hour, 2).unwrap();
        assert!(core.fall_asleep(Tick::NEVER, Waker::noop()).is_some(), "the timer may wait");
        core.wake_up();
        let (reply, outcome) = oneshot::channel();
        let cancel = Request::Cancel { key: timer.key(), reply: Some(reply) };
        core.state.borrow_mut().apply(cancel, None, core.nanos());
        assert!(outcome.try_recv().is_err(), "the timer has not come");
        assert_eq!(core.fall_asleep(Tick::NEVER, Waker::noop()), None);
        let _next = shard.turn();
        assert!(outcome.try_recv().unwrap().unwrap().won());
    }
}
