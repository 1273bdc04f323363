//! The iterator that takes all pending timers out of a shard.

use super::Shard;
use crate::outcome::Expired;
use crate::tick::Tick;

/// An iterator that takes all pending timers out of a shard; made by [`Shard::drain`].
#[derive(Debug)]
pub struct Drain<'a, T> {
    pub(super) shard: &'a mut Shard<T>,
    /// The slab slot at which the search for the next timer begins.
    pub(super) from: u32,
}

impl<T> Iterator for Drain<'_, T> {
    type Item = Expired<T>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.shard.slab.next_armed(self.from)?;
        self.from = index + 1;
        let (key, deadline, payload) = self.shard.slab.remove(index);
        self.shard.counters.returned += 1;
        self.shard.count_towards_sweep();
        Some(Expired { key, deadline: Tick::new(deadline), payload })
    }
}
