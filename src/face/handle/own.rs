//! The nurseries of a thread for one service.
//!
//! They are a list that only grows, so that one is used without a count of its users: it is there
//! for as long as the list is.
//!
//! Cost: O(nurseries) to find one. A thread has one for each shard on which it has armed timers,
//! and most have one.

use std::cell::OnceCell;
use std::sync::Arc;
use std::task::Waker;

use super::place::NurseryName;
use crate::link::nursery::Nursery;
use crate::values::ids::ShardId;

/// The nursery of this thread for one shard.
pub(super) struct OwnNursery {
    pub(super) shard: ShardId,
    pub(super) name: NurseryName,
    pub(super) nursery: Arc<Nursery<Waker>>,
    next: OwnNurseries,
}

/// The nurseries of a thread.
#[derive(Default)]
pub(super) struct OwnNurseries(OnceCell<Box<OwnNursery>>);

impl OwnNurseries {
    pub(super) fn iter(&self) -> impl Iterator<Item = &OwnNursery> {
        std::iter::successors(self.first(), |own| own.next.first())
    }

    #[inline]
    fn first(&self) -> Option<&OwnNursery> {
        self.0.get().map(|own| &**own)
    }

    #[inline]
    pub(super) fn find(&self, is_looked_for: impl Fn(&OwnNursery) -> bool) -> Option<&OwnNursery> {
        let mut own = self.first()?;
        while !is_looked_for(own) {
            own = own.next.first()?;
        }
        Some(own)
    }

    pub(super) fn add(&self, shard: ShardId, name: NurseryName, nursery: Arc<Nursery<Waker>>) {
        let last = self.iter().last().map_or(self, |own| &own.next);
        let own = OwnNursery { shard, name, nursery, next: Self::default() };
        let _is_new = last.0.set(Box::new(own));
    }
}

impl Drop for OwnNursery {
    fn drop(&mut self) {
        self.nursery.leave();
        // One after the other, as each of many would drop the next one within its own drop.
        let mut next = self.next.0.take();
        while let Some(mut own) = next {
            next = own.next.0.take();
        }
    }
}
