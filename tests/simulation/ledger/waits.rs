//! What tasks wait for: what shards do at once, and timeouts.

use std::sync::Arc;

use super::Ledger;

/// What a task waits for: the shard, `None` if it may be any, and the deadline.
pub(super) type Waiting = (Option<usize>, u64);

impl Ledger {
    /// A shard that works does it before the clock moves. The result is dropped when it is done.
    pub(crate) fn ask(&self, shard: usize) -> Arc<()> {
        let asked = Arc::new(());
        self.asked.borrow_mut().push((shard, Arc::downgrade(&asked)));
        asked
    }

    /// A timeout on a shard, or on any if `shard` is `None`.
    pub(crate) fn timeout(&self, shard: Option<usize>, due: u64) -> usize {
        let mut timeouts = self.timeouts.borrow_mut();
        timeouts.push(Some((shard, due)));
        timeouts.len() - 1
    }

    pub(crate) fn timeout_reset(&self, index: usize, due: u64) {
        if let Some((_, before)) = &mut self.timeouts.borrow_mut()[index] {
            *before = due;
        }
    }

    pub(crate) fn timeout_done(&self, index: usize, is_elapsed: bool) {
        let timeout = self.timeouts.borrow_mut()[index].take();
        let (now, (_, due)) = (self.now(), timeout.expect("a timeout ends once"));
        let is_early = is_elapsed && now < due && !self.fires_all.get();
        self.require(!is_early, || format!("a timeout of {due} ns has elapsed at {now} ns"));
    }

    /// Nothing can run, and the clock has moved: nothing is left that a shard that works had to do
    /// before.
    pub(super) fn check_waits(&self, works: impl Fn(usize) -> bool) {
        let now = self.now();
        let all_work = (0..self.ended.borrow().len()).all(&works);
        let asked = &mut self.asked.borrow_mut();
        asked.retain(|(_, asked)| asked.strong_count() > 0);
        let left = asked.iter().find(|(shard, _)| works(*shard));
        self.require(left.is_none(), || {
            format!("nothing runs until {now} ns, and {left:?} was asked for before")
        });
        let is_late = |timeout: &Option<Waiting>| {
            let works = |shard: Option<usize>| shard.map_or(all_work, &works);
            timeout.is_some_and(|(shard, due)| works(shard) && self.tick_of(due) < now)
        };
        let late = self.timeouts.borrow().iter().position(is_late);
        self.require(late.is_none(), || {
            format!("nothing runs until {now} ns, but timeout {late:?} is due")
        });
    }
}
