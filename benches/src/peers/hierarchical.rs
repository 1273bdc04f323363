//! A shard of corewheel with its default wheel, the hierarchical one.

use corewheel_shard::{Budget, Shard, ShardConfig, Tick, TimerKey};

use crate::{Payload, Timers};

/// [`Shard`] as it is by default, but for its capacity.
#[derive(Debug)]
pub struct Hierarchical(Shard<Payload>);

impl Timers for Hierarchical {
    const NAME: &'static str = "corewheel";
    const FIFO: bool = true;
    type Handle = TimerKey;

    fn with_capacity(capacity: usize) -> Self {
        Self(shard(ShardConfig { capacity: capacity as u32, ..ShardConfig::default() }))
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

pub(super) fn shard(config: ShardConfig) -> Shard<Payload> {
    Shard::new(config).expect("the configuration is within its limits")
}

/// One turn without a limit, since no peer has one.
#[inline]
pub(super) fn advance(shard: &mut Shard<Payload>, now: u64, mut fired: impl FnMut(Payload)) {
    shard.advance(Tick::new(now), Budget::UNLIMITED);
    while let Some(expired) = shard.pop_expired() {
        fired(expired.payload);
    }
}
