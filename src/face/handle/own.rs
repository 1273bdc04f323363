//! The timers of a thread for one service.
//!
//! They are a list that only grows, so that one is used without a count of its users: it is there
//! for as long as the list is.
//!
//! Cost: O(shards) to find those for one shard. A thread has timers for each shard on which it has
//! armed one, which is a single shard for most.

use std::cell::OnceCell;
use std::sync::Arc;
use std::task::Waker;

use super::place::ThreadTimersName;
use crate::link::thread_timers::ThreadTimers;
use crate::values::ids::ShardId;

/// The timers of this thread for one shard.
pub(super) struct OwnTimers {
    pub(super) shard: ShardId,
    pub(super) name: ThreadTimersName,
    pub(super) thread_timers: Arc<ThreadTimers<Waker>>,
    next: OwnThreadTimers,
}

/// The timers of a thread.
#[derive(Default)]
pub(super) struct OwnThreadTimers(OnceCell<Box<OwnTimers>>);

impl OwnThreadTimers {
    pub(super) fn iter(&self) -> impl Iterator<Item = &OwnTimers> {
        std::iter::successors(self.first(), |own| own.next.first())
    }

    #[inline]
    fn first(&self) -> Option<&OwnTimers> {
        self.0.get().map(|own| &**own)
    }

    #[inline]
    pub(super) fn find(&self, is_looked_for: impl Fn(&OwnTimers) -> bool) -> Option<&OwnTimers> {
        let mut own = self.first()?;
        while !is_looked_for(own) {
            own = own.next.first()?;
        }
        Some(own)
    }

    pub(super) fn add(
        &self,
        shard: ShardId,
        name: ThreadTimersName,
        thread_timers: Arc<ThreadTimers<Waker>>,
    ) {
        let last = self.iter().last().map_or(self, |own| &own.next);
        let own = OwnTimers { shard, name, thread_timers, next: Self::default() };
        let _is_new = last.0.set(Box::new(own));
    }
}

impl Drop for OwnTimers {
    fn drop(&mut self) {
        self.thread_timers.leave();
        // One after the other, as each of many would drop the next one within its own drop.
        let mut next = self.next.0.take();
        while let Some(mut own) = next {
            next = own.next.0.take();
        }
    }
}
