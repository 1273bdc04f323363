//! Queries for statistics: the memory that a shard has touched, and whether its budget is used up.

use super::Shard;

impl<T> Shard<T> {
    /// The bytes that the shard has written at least once: its slab, its entries and its slots.
    /// The memory for the rest of the capacity is reserved, and the system maps it when it is
    /// written.
    pub fn memory(&self) -> usize {
        self.slab.memory() + self.slots.memory()
    }

    /// Whether the last turn has used up its [`Budget`](crate::Budget), so that timers may be due
    /// that it has not handed out.
    #[inline]
    pub fn is_budget_used_up(&self) -> bool {
        self.expired_left == 0 || self.work_left == 0
    }
}

#[cfg(test)]
mod tests {
    use crate::{Shard, ShardConfig, Tick, WheelKind};

    fn shard(wheel: WheelKind) -> Shard<u64> {
        Shard::new(ShardConfig { wheel, slots: 256, ..ShardConfig::default() }).unwrap()
    }

    #[test]
    fn memory_grows_with_the_timers_and_not_with_the_capacity() {
        let mut shard = shard(WheelKind::Hierarchical);
        let empty = shard.memory();
        for deadline in 1..=1_000 {
            shard.schedule(Tick::new(deadline), deadline).unwrap();
        }
        let grown = shard.memory() - empty;
        assert!((24_000..400_000).contains(&grown), "{grown}");
    }
}
