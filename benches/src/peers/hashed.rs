//! A shard of corewheel with the hashed wheel, as wide as the delays of most workloads here.
//!
//! 65,536 slots, as a user of Netty's wheel would choose for such delays; with its default of 512
//! the wheel passes every timer a hundred times before the timer fires.

use corewheel_shard::{Shard, ShardConfig, Tick, TimerKey, WheelKind};

use super::hierarchical::{advance, shard};
use crate::{Payload, Timers};

/// [`Shard`] with a hashed wheel.
#[derive(Debug)]
pub struct Hashed(Shard<Payload>);

impl Timers for Hashed {
    const NAME: &'static str = "corewheel, hashed";
    const FIFO: bool = true;
    type Handle = TimerKey;

    fn with_capacity(capacity: usize) -> Self {
        Self(shard(ShardConfig {
            capacity: capacity as u32,
            wheel: WheelKind::Hashed,
            slots: ShardConfig::SLOTS_MAX,
            ..ShardConfig::default()
        }))
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> TimerKey {
        self.0.schedule(Tick::new(deadline), payload).expect("there is room")
    }

    fn cancel(&mut self, key: TimerKey) -> Payload {
        self.0.cancel(key).payload().expect("it is pending")
    }

    fn reset(&mut self, key: TimerKey, deadline: u64) -> TimerKey {
        let _ = self.0.reset(key, Tick::new(deadline));
        key
    }

    fn advance(&mut self, now: u64, fired: impl FnMut(Payload)) {
        advance(&mut self.0, now, fired);
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.0.next_deadline().map(Tick::index)
    }

    fn pending(&self) -> usize {
        self.0.len()
    }
}
