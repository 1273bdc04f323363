//! Timers that arrive from other threads, for keys that were granted in advance.

use super::Shard;
use crate::key::TimerKey;
use crate::outcome::ArmOutcome;
use crate::slab::Armed;
use crate::tick::Tick;

impl<T> Shard<T> {
    /// Reserves a slot for a timer that arrives later, and returns its key. `None` if no slot is
    /// left.
    ///
    /// A granted key takes up capacity and is not pending.
    pub fn grant(&mut self) -> Option<TimerKey> {
        self.slab.grant()
    }

    /// Adds the timer of a granted key, as [`schedule`](Self::schedule) adds one.
    #[inline]
    pub fn arm(&mut self, key: TimerKey, deadline: Tick, payload: T) -> ArmOutcome<T> {
        match self.slab.arm(key, deadline.index(), payload) {
            Armed::At { deadline, entry } => {
                self.counters.scheduled_remote += 1;
                self.file(entry, deadline);
                ArmOutcome::Armed
            }
            Armed::GrantCancelled(payload) => {
                self.counters.scheduled_remote += 1;
                self.counters.cancelled += 1;
                self.counters.overtaken += 1;
                ArmOutcome::Overtaken(payload)
            }
            Armed::NotGranted(payload) => ArmOutcome::NotGranted(payload),
        }
    }

    /// Counts the timer of a granted key as scheduled and cancelled, and takes the key back: the
    /// timer was cancelled before it arrived, and is dropped by the caller. False if the key is not
    /// granted.
    #[inline]
    pub fn pass(&mut self, key: TimerKey) -> bool {
        let is_granted = self.slab.revoke(key);
        if is_granted {
            self.counters.scheduled_remote += 1;
            self.counters.cancelled += 1;
        }
        is_granted
    }

    /// Takes back a granted key whose timer will not arrive. False if the key is not granted.
    pub fn revoke(&mut self, key: TimerKey) -> bool {
        self.slab.revoke(key)
    }
}
