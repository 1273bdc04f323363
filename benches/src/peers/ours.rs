//! A shard of corewheel with its default wheel, the hierarchical one, and with the hashed one.
//!
//! The hashed wheel has 65,536 slots, as a user of Netty's wheel would choose for the delays of
//! most workloads here; with Netty's default of 512 the wheel passes every timer a hundred times
//! before the timer fires.

use corewheel_shard::{Budget, Shard, ShardConfig, Tick, TimerKey, WheelKind};

use crate::{Payload, Timers};

/// [`Shard`] as it is by default, but for its capacity, or with a hashed wheel.
pub struct Ours<const HASHED: bool>(Shard<Payload>);

impl<const HASHED: bool> Timers for Ours<HASHED> {
    const NAME: &'static str = if HASHED { "corewheel, hashed" } else { "corewheel" };
    const FIFO: bool = true;
    type Handle = TimerKey;

    fn with_capacity(capacity: usize) -> Self {
        let mut config = ShardConfig { capacity: capacity as u32, ..ShardConfig::default() };
        if HASHED {
            (config.wheel, config.slots) = (WheelKind::Hashed, ShardConfig::SLOTS_MAX);
        }
        Self(Shard::new(config).expect("the configuration is within its limits"))
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

    /// One turn without a limit, since no peer has one.
    #[inline]
    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        self.0.advance(Tick::new(now), Budget::UNLIMITED);
        while let Some(expired) = self.0.pop_expired() {
            fired(expired.payload);
        }
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.0.next_deadline().map(Tick::index)
    }

    fn pending(&self) -> usize {
        self.0.len()
    }
}
