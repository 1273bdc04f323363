//! Timers that are to live on another shard.

use super::{Answer, Client, Request};
use crate::shard::request::Bulk;
use crate::values::handle::{ShardId, TimerHandle};
use crate::values::migration::{DrainError, DrainReport, MoveError};

impl<T: Send + 'static> Client<T> {
    /// Moves a timer to another shard, with its deadline, and tells its new name: where a
    /// connection goes, its timers go.
    ///
    /// The timer is on one shard or on its way to the other, and fires once, never early. Typed
    /// values and callbacks that were sent by a client travel; what else there is stays, see
    /// [`MoveError`]. A timer that is due already is moved like any other, and fires there.
    ///
    /// The old name goes on to mean the timer: what clients send to it is sent on, in order, with
    /// one hop more for each time that the timer was moved, and
    /// [`Timers::moved_to`](crate::Timers::moved_to) tells the new one. On the old shard's own
    /// core, where an answer is there at once, commands by the old name do nothing and answer
    /// `Elsewhere`. A shard remembers as many timers that have left it as it has room for, and
    /// forgets the oldest first; a name that is forgotten is stale, and the timer goes on by its
    /// new one. From its first such timer on a shard is woken by whatever is sent to it. What a
    /// shard remembers outlives it, as long as the service.
    ///
    /// To the shard where it is, it is left as it is. A timer of another service is answered at
    /// once, with [`MoveError::Foreign`].
    ///
    /// Cost: a cancel on the old shard, a timer from elsewhere on the new one, and some 40 bytes
    /// that are remembered.
    pub fn move_to(
        &self,
        timer: TimerHandle,
        shard: ShardId,
    ) -> Answer<Result<TimerHandle, MoveError>> {
        if !timer.is_of(self.service) {
            return Answer::ready(Err(MoveError::Foreign));
        }
        let (sender, answer) = oneshot::channel();
        let bulk = Bulk::Migrate { key: timer.key(), to: shard, reply: sender };
        self.send(timer.shard(), Request::Bulk(Box::new(bulk)));
        Answer(answer)
    }

    /// Moves all timers of a shard to others, each in its turn, as
    /// [`move_to`](Self::move_to) does: to take the shard out of use, or to spread its load.
    ///
    /// Every timer that is pending when the shard comes to it is moved if it can be. Those that are
    /// due meanwhile fire where they are, and so do, later, the callbacks and the sleeps of the
    /// shard's own core, which cannot travel, and the deadlines of connections, which go with
    /// their connection (see [`ConnTimers::pack`](crate::ConnTimers::pack)). The shard stays open:
    /// what is scheduled on it while it is drained may be left behind, so stop that first, or drain
    /// it once more.
    ///
    /// It takes several turns, within their budget, and the shard does all else between them. Where
    /// the others have no room it waits a tick and tries again; where nothing can be moved for a
    /// second it leaves what is left. One drain of a shard at a time.
    pub fn drain_shard(
        &self,
        shard: ShardId,
        into: &[ShardId],
    ) -> Answer<Result<DrainReport, DrainError>> {
        let (sender, answer) = oneshot::channel();
        let bulk = Bulk::Drain { into: into.into(), reply: sender };
        self.send(shard, Request::Bulk(Box::new(bulk)));
        Answer(answer)
    }
}
