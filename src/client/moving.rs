//! Timers that are to live on another shard.

use super::{Answer, Client};
use crate::across::{Account, Across, CancelMany, Told};
use crate::handle::{ShardId, TimerHandle};
use crate::lane::{Refusal, Request};
use crate::moving::{DrainError, DrainReport, MoveError};
use corewheel_shard::TimerKey;

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
        let across = Across::Move { key: timer.key(), to: shard, answer: sender };
        self.send(timer.shard(), Request::Across(Box::new(across)));
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
        let across = Across::Drain { into: into.into(), answer: sender };
        self.send(shard, Request::Across(Box::new(across)));
        Answer(answer)
    }

    /// Sends what a closed shard has not taken to where its timers have gone. The rest is dropped,
    /// which wakes whoever waits for an answer, so nothing may be borrowed.
    #[cold]
    pub(super) fn send_after(&self, shard: ShardId, unsent: Vec<Request<T>>) {
        let name_now = |key| self.directory.name_now(self.service.home(shard).handle(key));
        for request in unsent {
            match request {
                Request::Cancel { key, answer } => {
                    if let Some(timer) = name_now(key) {
                        self.send_now(timer.shard(), Request::Cancel { key: timer.key(), answer });
                    }
                }
                Request::Reset { key, deadline, answer } => {
                    if let Some(timer) = name_now(key) {
                        let key = timer.key();
                        self.send_now(timer.shard(), Request::Reset { key, deadline, answer });
                    }
                }
                Request::Across(across) => match *across {
                    Across::Move { key, to, answer } => {
                        if let Some(timer) = name_now(key) {
                            let across = Across::Move { key: timer.key(), to, answer };
                            self.send_now(timer.shard(), Request::Across(Box::new(across)));
                        }
                    }
                    Across::Cancel(many) => self.cancel_many_after(many, name_now),
                    Across::Schedule(_) | Across::Drain { .. } => {}
                },
                Request::Schedule { .. } | Request::Call { .. } => {}
            }
        }
    }

    fn cancel_many_after(
        &self,
        mut many: CancelMany<T>,
        name_now: impl Fn(TimerKey) -> Option<TimerHandle>,
    ) {
        for key in many.keys {
            let timer = name_now(key);
            let (answer, told) = many.account.is_some().then(oneshot::channel).unzip();
            if let (Some(account), Some(told)) = (&mut many.account, told) {
                account.note(Told::Later(told));
            }
            if let Some(timer) = timer {
                self.send_now(timer.shard(), Request::Cancel { key: timer.key(), answer });
            }
        }
        drop(many.account.map(Account::tell));
    }

    /// Sends a timer of this core to another shard and tells its new key there.
    ///
    /// Whatever wakes another shard may run what is its user's, also on this thread. So `check`
    /// says whether the timer is still there once the lane is open, and from then on nothing else
    /// runs until the timer is on the lane: a key that is taken is used. `pack` is told the key and
    /// makes the request; it is told another, with the request, if the lane was closed meanwhile.
    ///
    /// If it cannot be sent after all it comes back.
    pub(crate) fn send_timer(
        &self,
        shard: ShardId,
        check: impl Fn() -> Result<(), MoveError>,
        mut pack: impl FnMut(TimerKey, Option<Request<T>>) -> Request<T>,
    ) -> Result<TimerKey, (MoveError, Option<Request<T>>)> {
        self.send_forgotten();
        let mut packed = None;
        let mut lanes = self.lanes.borrow_mut();
        loop {
            let Ok((lane, door)) = self.lane(&mut lanes, shard) else {
                return Err((MoveError::Closed(shard), packed));
            };
            if packed.is_none() {
                check().map_err(|error| (error, None))?;
            }
            match lane.take_key(&door.bell, 0) {
                Err(Refusal::Full) => return Err((MoveError::Full(shard), packed)),
                Err(Refusal::Closed) => {}
                Ok(key) => match lane.send(pack(key, packed.take()), &door.bell) {
                    Ok(()) => return Ok(key),
                    Err(mut back) => packed = back.pop(),
                },
            }
            // It is opened anew above.
            lanes[shard.index()] = None;
        }
    }
}
