//! What a service tells all connections of a shard: the scale of their limits, a drain, and that
//! the idlest of them are to end.
//!
//! A connection reads the scale and the drain when it looks at its deadlines. An order that makes
//! deadlines earlier is also news for the shard, which visits its connections one after another, a
//! few in each turn.
//!
//! Connections whose tasks run on any thread lie on no shard. Each enters a [`Group`] of one shard
//! when it begins and leaves the group when it ends, so that the shard finds it. A shard has
//! several groups, and the threads that open such connections have them in turn. Why not one for
//! all of them: each connection would take its lines from the core of another thread, twice.
//!
//! Why not a message to each connection: an idle connection would have to wait for one, and a touch
//! would have to look for it.
//!
//! Invariants: an order is stored before it is news. A shard takes the news before it visits the
//! members of a group, and a member that enters reads the orders under the lock of the group. So a
//! member is visited after an order, or knows the order from the beginning.
//!
//! Cost: 16 bytes in the group for each member, which takes a lock when it enters and when it
//! leaves. A look costs two loads. A shard has 6 kB of groups.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use slab::Slab;

use crate::clock::nanos_after;
use crate::stats::tally::Tally;
use crate::values::scale::Scale;

/// A shard has so many groups: most runtimes have at most 8 workers for each shard.
pub(crate) const GROUPS: usize = 8;

/// No drain has an end.
const NEVER: u64 = u64::MAX;

/// Why a shard visits a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    /// Its deadlines may be earlier now. The visit returns `None`.
    LookAgain,
    /// It is to end. The visit returns the present time, or `None` if the connection was told
    /// before.
    Tell,
    /// The visit returns since when the connection has been idle, in nanoseconds; `None` if it is
    /// not idle, or was told to end.
    FindIdle,
}

/// A connection whose tasks run on any thread, as its shard finds it.
pub(crate) trait Member: Send + Sync {
    fn visit(&self, visit: Visit) -> Option<u64>;
}

/// The orders by which a connection computes its deadlines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) scale: Scale,
    /// When the drain ends, in nanoseconds; `u64::MAX` if there is none.
    pub(crate) drain_until: u64,
}

/// Without orders.
impl Default for Terms {
    fn default() -> Self {
        Self { scale: Scale::ONE, drain_until: NEVER }
    }
}

impl Terms {
    pub(crate) fn is_draining(self) -> bool {
        self.drain_until != NEVER
    }
}

/// All connections end between two times, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drain {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Drain {
    pub(crate) fn beginning(from: u64, window: Duration) -> Self {
        // The end of time means that there is no drain.
        Self { from, until: nanos_after(from, window).min(NEVER - 1) }
    }
}

/// Orders that the shard has not seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct News {
    pub(crate) drain: Option<Drain>,
    /// Whether the scale has shrunk, even if it has grown before or since.
    pub(crate) looks_again: bool,
    /// How many of the idlest connections are to be told to end.
    pub(crate) idlest: usize,
}

/// The orders of one shard, and the members that follow them.
pub(crate) struct Orders {
    words: Arc<Words>,
    news: Mutex<News>,
    groups: [Arc<Group>; GROUPS],
    /// The deadlines that have come of the connections that lie on the shard.
    tally: CachePadded<Tally>,
}

/// What the members of all groups read.
struct Words {
    /// The bits of the number.
    scale: AtomicU64,
    drain_until: AtomicU64,
}

impl Words {
    #[inline]
    fn scale(&self) -> Scale {
        // Relaxed: the number carries no other data. A member that reads an old one is visited.
        Scale::from_bits(self.scale.load(Ordering::Relaxed))
    }

    #[inline]
    fn terms(&self) -> Terms {
        // Relaxed: see `scale`.
        Terms { scale: self.scale(), drain_until: self.drain_until.load(Ordering::Relaxed) }
    }
}

impl Orders {
    pub(super) fn new() -> Self {
        let scale = AtomicU64::new(Scale::ONE.to_bits());
        let words = Arc::new(Words { scale, drain_until: AtomicU64::new(NEVER) });
        let group = |_| {
            let (members, tally) = (Mutex::default(), Tally::default());
            Arc::new(Group { words: Arc::clone(&words), members, tally })
        };
        let groups = std::array::from_fn(group);
        Self { words, news: Mutex::default(), groups, tally: CachePadded::default() }
    }

    /// The tally of the connections that lie on the shard.
    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The tallies of all connections.
    pub(super) fn tallies(&self) -> impl Iterator<Item = &Tally> + Clone {
        self.groups.iter().map(|group| &group.tally).chain([&*self.tally])
    }

    pub(crate) fn groups(&self) -> &[Arc<Group>; GROUPS] {
        &self.groups
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn scale(&self) -> Scale {
        self.words.scale()
    }

    #[inline]
    pub(crate) fn terms(&self) -> Terms {
        self.words.terms()
    }

    /// Sets the scale. True if that is news.
    pub(crate) fn set_scale(&self, scale: Scale) -> bool {
        let mut news = self.news();
        let before = self.scale();
        // Relaxed: see `Words::scale`. Stores come one after another, under the lock.
        self.words.scale.store(scale.to_bits(), Ordering::Relaxed);
        // A connection may have begun since the shard last took a scale over.
        news.looks_again |= scale < before;
        scale != before
    }

    /// Begins a drain, which replaces the drain before. True, as it is news.
    pub(crate) fn set_drain(&self, drain: Drain) -> bool {
        let mut news = self.news();
        // Relaxed: this lock, and then that of a group, order it for members that enter after the
        // shard has begun its visits of the group. It visits the others.
        self.words.drain_until.store(drain.until, Ordering::Relaxed);
        news.drain = Some(drain);
        true
    }

    /// So many more of the idlest connections are to be told to end. True if that is news.
    pub(crate) fn add_idlest(&self, count: usize) -> bool {
        let idlest = &mut self.news().idlest;
        *idlest = idlest.saturating_add(count);
        count > 0
    }

    /// Takes the orders that the shard has not seen.
    pub(crate) fn take_news(&self) -> News {
        std::mem::take(&mut self.news())
    }
}

/// Members that mostly one thread has opened, with what they count. It shares no cache line, nor
/// the pair of lines that a processor fetches, with other data.
#[repr(align(128))]
pub(crate) struct Group {
    words: Arc<Words>,
    members: Mutex<Slab<Weak<dyn Member>>>,
    tally: Tally,
}

impl Group {
    #[inline]
    pub(crate) fn terms(&self) -> Terms {
        self.words.terms()
    }

    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    fn members(&self) -> MutexGuard<'_, Slab<Weak<dyn Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a member that was just made. Returns its place, and whether a drain has begun: the
    /// drain does not visit the member then.
    pub(crate) fn enter(&self, member: Weak<dyn Member>) -> (u32, bool) {
        let mut members = self.members();
        (members.insert(member) as u32, self.terms().is_draining())
    }

    pub(crate) fn leave(&self, place: u32) {
        let _left = self.members().try_remove(place as usize);
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> usize {
        self.members().len()
    }

    /// More than the last place of a member.
    pub(crate) fn places(&self) -> u32 {
        self.members().capacity() as u32
    }

    /// The member at a place; `None` if there is none.
    pub(crate) fn member(&self, place: u32) -> Option<Arc<dyn Member>> {
        self.members().get(place as usize)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_taken_once_and_counts_of_idlest_add_up() {
        let orders = Orders::new();
        assert_eq!(orders.take_news(), News::default());
        let drain = Drain { from: 3, until: 9 };
        assert!(orders.set_drain(Drain { from: 1, until: 2 }) && orders.set_drain(drain));
        assert!(orders.add_idlest(4) && orders.add_idlest(usize::MAX) && !orders.add_idlest(0));
        let news = News { drain: Some(drain), looks_again: false, idlest: usize::MAX };
        assert_eq!((orders.take_news(), orders.take_news()), (news, News::default()));
        assert_eq!(orders.terms().drain_until, 9);
    }
}
