//! Timers that migrate to another shard.

use super::{Client, Request};
use crate::face::reply::Reply;
use crate::shard::request::Bulk;
use crate::values::handle::{ShardId, TimerId};
use crate::values::migration::{MigrateError, MigrateReport};

impl<T: Send + 'static> Client<T> {
    /// Migrates a timer to another shard, with its deadline, and gives its new handle: where a
    /// connection goes, its timers go.
    ///
    /// The timer is on one shard or on its way to the other, and fires once, never early. Timers
    /// with values and callbacks that a client has sent can migrate; the others stay, see
    /// [`MigrateError`]. A timer that is due already migrates like any other, and fires there.
    ///
    /// The old handle goes on to mean the timer: the old shard forwards what clients send to it, in
    /// order, with one hop more for each migration, and
    /// [`Timers::migrated_to`](crate::Timers::migrated_to) gives the new handle. On the old shard's
    /// own core, where an outcome is returned at once, commands by the old handle do nothing and
    /// return `Elsewhere`. A shard remembers as many timers that have left it as it has room for,
    /// and forgets the oldest first; a handle that is forgotten is stale, and the timer goes on by
    /// its new one. From the first such timer on, every request wakes the shard. What a shard
    /// remembers is kept as long as the service, also after the shard has ended.
    ///
    /// A timer that is on that shard already is left as it is. The reply for a timer of another
    /// service is [`MigrateError::Foreign`], at once.
    ///
    /// Cost: a cancel on the old shard, a timer from elsewhere on the new one, and some 40 bytes
    /// that are remembered.
    pub fn migrate(&self, timer: TimerId, to: ShardId) -> Reply<Result<TimerId, MigrateError>> {
        if !timer.is_of(self.service) {
            return Reply::ready(Err(MigrateError::Foreign));
        }
        let (sender, reply) = Reply::of_outcome();
        let bulk = Bulk::Migrate { key: timer.key(), to, reply: sender };
        self.send(timer.shard(), Request::Bulk(Box::new(bulk)));
        reply
    }

    /// Migrates all timers of a shard to others, in turn, each as [`migrate`](Self::migrate) does:
    /// to take the shard out of use, or to spread its load.
    ///
    /// Every timer that is pending when the shard comes to it migrates if it can. Timers that are
    /// due meanwhile fire where they are. So do, later, the callbacks and the sleeps of the shard's
    /// own core, and the deadlines of connections, which migrate with their connection (see
    /// [`ConnTimers::pack`](crate::ConnTimers::pack)). The shard stays open: timers that are
    /// scheduled on it meanwhile may stay behind, so stop scheduling there first, or migrate once
    /// more.
    ///
    /// It takes several turns, within their budget, and the shard does all its other work between
    /// them. Where the others have no room the shard waits a tick and tries again; where no timer
    /// could migrate for a second, the rest stays. One such request of a shard runs at a time.
    pub fn migrate_all(
        &self,
        from: ShardId,
        into: &[ShardId],
    ) -> Reply<Result<MigrateReport, MigrateError>> {
        if self.directory.post(from).is_none() {
            return Reply::ready(Err(MigrateError::NoSuchShard(from)));
        }
        let (sender, reply) = Reply::of_outcome();
        let bulk = Bulk::MigrateAll { into: into.into(), reply: sender };
        self.send(from, Request::Bulk(Box::new(bulk)));
        reply
    }
}
