//! Many commands with one message to each shard that they concern.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};

use super::{Client, Request};
use crate::directory::here::is_shard_thread;
use crate::face::callback::RemoteTask;
use crate::link::lane::Refusal;
use crate::shard::request::{Bulk, BulkCancel, BulkReply, BulkSchedule, Replies};
use crate::values::class::ClassId;
use crate::values::contain::Each;
use crate::values::error::{Closed, ScheduleManyError, WaitError};
use crate::values::handle::{ServiceId, ShardId, TimerHandle};
use crate::values::outcome::CancelOutcome;

/// The commands of many that concern one shard.
struct Part {
    shard: ShardId,
    keys: Vec<TimerKey>,
    /// Where each of them stands among all.
    places: Vec<u32>,
}

impl<T: Send + 'static> Client<T> {
    /// Ends timers, of any shards, and tells what became of each, in the order in which they are
    /// given: one message to each shard that has some of them, and one answer from it.
    ///
    /// As many as wanted: a shard takes them as that many requests, so a turn ends no more of them
    /// than its budget allows, and answers when it has seen to all. It cannot be refused.
    ///
    /// A timer that is still under way from another client is answered with `Overtook`; its task is
    /// dropped when it arrives. Nothing is done about timers of other services, which are answered
    /// with `Foreign`.
    ///
    /// Cost: three allocations for each shard, a key and an outcome for each timer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use corewheel::{CancelOutcome, Fired, Runtime, TimerService, Timers};
    ///
    /// let service = TimerService::builder()
    ///     .shards(2)
    ///     .runtime(Runtime::Thread)
    ///     .start_with(|_| |_: Fired<u32>, _: &Timers<u32>| {})?;
    /// let client = service.client();
    /// // A connection that has its timers on both shards is closed.
    /// let minute = Duration::from_secs(60);
    /// let mut timers = Vec::new();
    /// for (n, shard) in client.shards().enumerate() {
    ///     timers.push(client.schedule_on(shard, minute, n as u32)?);
    /// }
    /// let outcomes = client.cancel_many(&timers).wait()?;
    /// assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(done) if done.won())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_many(&self, timers: &[TimerHandle]) -> Answers<CancelOutcome<RemoteTask<T>>> {
        let mut answers = Answers { parts: Vec::new(), count: timers.len() };
        let (parts, foreign) = parts(timers, self.service);
        if !foreign.is_empty() {
            let (mut replies, answer) = Replies::new(foreign.len());
            for _ in &foreign {
                replies.push(BulkReply::Now(CancelOutcome::Foreign));
            }
            drop(replies.send());
            answers.parts.push((foreign, answer));
        }
        for Part { shard, keys, places } in parts {
            let (replies, answer) = Replies::new(keys.len());
            let many = BulkCancel { keys: keys.into_iter(), replies: Some(replies) };
            self.send(shard, Request::Bulk(Box::new(Bulk::Cancel(many))));
            answers.parts.push((places, answer));
        }
        answers
    }

    /// Ends timers, of any shards, and asks for no answer: one message to each shard that has some
    /// of them. It does not wake the shards, which drop the tasks when they next come by; none of
    /// the timers will fire that has not. Nothing is done about timers of other services.
    ///
    /// Cost: two allocations for each shard and a key for each timer.
    pub fn cancel_many_detached(&self, timers: &[TimerHandle]) {
        for Part { shard, keys, .. } in parts(timers, self.service).0 {
            let many = BulkCancel { keys: keys.into_iter(), replies: None };
            self.send(shard, Request::Bulk(Box::new(Bulk::Cancel(many))));
        }
    }

    /// Schedules typed timers on a shard, each to be given to the service's handler there after its
    /// delay: all of them with one message, or none. The handles come in the order of the timers.
    ///
    /// At most [`schedule_many_max`](Self::schedule_many_max) at once.
    ///
    /// # Errors
    ///
    /// `Full`, `Closed` or `TooMany`, with all timers.
    pub fn schedule_many_on(
        &self,
        shard: ShardId,
        timers: impl IntoIterator<Item = (Duration, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Duration, T)>> {
        let timers = timers.into_iter().collect();
        let now = self.clock.nanos();
        self.schedule_all(ClassId::NONE, shard, timers, now, |delay| self.tick_after(now, delay))
    }

    /// The same, each for a moment. Those that have passed fire in the shard's next turn.
    ///
    /// # Errors
    ///
    /// `Full`, `Closed` or `TooMany`, with all timers.
    pub fn schedule_many_at_on(
        &self,
        shard: ShardId,
        timers: impl IntoIterator<Item = (Instant, T)>,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(Instant, T)>> {
        let timers = timers.into_iter().collect();
        self.schedule_all(ClassId::NONE, shard, timers, self.clock.nanos(), |at| self.tick_at(at))
    }

    /// The most timers that one [`schedule_many_on`](Self::schedule_many_on) takes: one more than
    /// half of the places that a shard reserves for a client, which are a 32nd of its capacity and
    /// at most as many as a lane has room for.
    pub fn schedule_many_max(&self) -> usize {
        // An owner fills up a client's keys when half of them are used.
        self.directory.settings.grant_window / 2 + 1
    }

    pub(crate) fn schedule_all<D: Copy>(
        &self,
        class: ClassId,
        shard: ShardId,
        timers: Vec<(D, T)>,
        now: u64,
        tick: impl Fn(D) -> Tick,
    ) -> Result<Vec<TimerHandle>, ScheduleManyError<(D, T)>> {
        let max = self.schedule_many_max();
        if timers.len() > max {
            return Err(ScheduleManyError::TooMany { timers, max });
        }
        if timers.is_empty() {
            return Ok(Vec::new());
        }
        self.send_forgotten();
        let home = self.service.home(shard);
        let mut unsent = timers;
        let sent = self.on_lane(shard, |lane, post| {
            let keys = match lane.take_keys(unsent.len(), &post.doorbell) {
                Ok(keys) => keys,
                Err(Refusal::Closed) => return ControlFlow::Continue(()),
                Err(Refusal::Full) => {
                    post.note_refused(class);
                    return ControlFlow::Break(None);
                }
            };
            let handles: Vec<_> = keys.iter().map(|key| home.handle(*key)).collect();
            let whens: Vec<_> = unsent.iter().map(|(when, _)| *when).collect();
            let timers: Vec<_> = keys
                .into_iter()
                .zip(unsent.drain(..))
                .map(|(key, (when, task))| (key, tick(when), task))
                .collect();
            let many = BulkSchedule {
                earliest: timers.iter().map(|timer| timer.1).min().unwrap_or(Tick::NEVER),
                timers: timers.into_iter(),
                sent_us: (now / 1_000) as u32,
                class,
            };
            let request = Request::Bulk(Box::new(Bulk::Schedule(many)));
            let Err(mut back) = lane.send(request, &post.doorbell) else {
                return ControlFlow::Break(Some(handles));
            };
            let Some(Request::Bulk(back)) = back.pop() else {
                unreachable!("what was just sent comes back")
            };
            let Bulk::Schedule(back) = *back else { unreachable!("what was just sent comes back") };
            unsent = whens.into_iter().zip(back.timers.map(|(_, _, task)| task)).collect();
            ControlFlow::Continue(())
        });
        match sent {
            Ok(Some(handles)) => Ok(handles),
            Ok(None) => Err(ScheduleManyError::Full(unsent)),
            Err(Closed) => Err(ScheduleManyError::Closed(unsent)),
        }
    }
}

/// Sorts timers by their shards, in the order in which the shards first occur, and tells the places
/// of those that are another service's.
fn parts(timers: &[TimerHandle], service: ServiceId) -> (Vec<Part>, Vec<u32>) {
    // Counted first, so that what is taken up does not depend on how they are mixed.
    let mut counts: Vec<u32> = Vec::new();
    for timer in timers.iter().filter(|timer| timer.is_of(service)) {
        let shard = timer.shard().index();
        if counts.len() <= shard {
            counts.resize(shard + 1, 0);
        }
        counts[shard] += 1;
    }
    let mut parts: Vec<Part> = Vec::new();
    let mut part_of = vec![None; counts.len()];
    let mut foreign = Vec::new();
    for (place, timer) in timers.iter().enumerate() {
        if !timer.is_of(service) {
            foreign.push(place as u32);
            continue;
        }
        let shard = timer.shard();
        let part = *part_of[shard.index()].get_or_insert_with(|| {
            let room = counts[shard.index()] as usize;
            let (keys, places) = (Vec::with_capacity(room), Vec::with_capacity(room));
            parts.push(Part { shard, keys, places });
            parts.len() - 1
        });
        parts[part].keys.push(timer.key());
        parts[part].places.push(place as u32);
    }
    (parts, foreign)
}

type Waiting<O> = oneshot::Receiver<Each<BulkReply<O>>>;
type Awaiting<O> = oneshot::AsyncReceiver<Each<BulkReply<O>>>;

/// What shards will say to many commands, made by [`Client::cancel_many`].
///
/// Await it, or [`wait`](Self::wait) for it: an outcome for each command, in the order in which
/// they were given. `Closed` in the place of one means that the service was shut down or the shard
/// died before it answered, as with [`Answer`](crate::Answer).
#[must_use = "the commands are sent, but nobody looks at what became of them"]
pub struct Answers<O> {
    parts: Vec<(Vec<u32>, Waiting<O>)>,
    count: usize,
}

impl<O> Answers<O> {
    /// How many outcomes there will be.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there was nothing to be done.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Blocks this thread until all answers are there.
    ///
    /// # Errors
    ///
    /// `OnShard` on a thread that drives a shard of any service. Shards that are closed have their
    /// place in the result.
    pub fn wait(self) -> Result<Vec<Result<O, Closed>>, WaitError> {
        if is_shard_thread() {
            return Err(WaitError::OnShard);
        }
        let mut outcomes = none_known(self.count);
        for (places, answer) in self.parts {
            let Ok(mut told) = answer.recv() else { continue };
            for (place, told) in places.into_iter().zip(told.take()) {
                outcomes[place as usize] = match told {
                    BulkReply::Now(outcome) => Ok(outcome),
                    BulkReply::Later(answer) => answer.recv().map_err(|_| Closed),
                };
            }
        }
        Ok(outcomes)
    }
}

impl<O> fmt::Debug for Answers<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<O> IntoFuture for Answers<O> {
    type Output = Vec<Result<O, Closed>>;
    type IntoFuture = AnswersFuture<O>;

    fn into_future(self) -> Self::IntoFuture {
        let wait = |(places, answer): (_, Waiting<O>)| (places, answer.into_future());
        AnswersFuture {
            parts: self.parts.into_iter().map(wait).collect(),
            later: Each(Vec::new()),
            outcomes: Each(none_known(self.count)),
        }
    }
}

/// [`Answers`] that are awaited.
#[must_use = "a future does nothing unless it is awaited"]
pub struct AnswersFuture<O> {
    parts: Vec<(Vec<u32>, Awaiting<O>)>,
    later: Each<(u32, oneshot::AsyncReceiver<O>)>,
    outcomes: Each<Result<O, Closed>>,
}

// Nothing in it is pinned.
impl<O> Unpin for AnswersFuture<O> {}

impl<O> Future for AnswersFuture<O> {
    type Output = Vec<Result<O, Closed>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { parts, later: Each(later), outcomes: Each(outcomes) } = self.get_mut();
        // One after the other, as all are waited for: only the one that is looked at last knows the
        // waker, so many answers do not make for many looks at all the others.
        while let Some((places, answer)) = parts.last_mut() {
            // Of a shard that does not answer nothing is noted.
            let told = ready!(Pin::new(answer).poll(cx)).map(|mut told| told.take());
            for (place, told) in places.iter().zip(told.unwrap_or_default()) {
                match told {
                    BulkReply::Now(outcome) => outcomes[*place as usize] = Ok(outcome),
                    BulkReply::Later(answer) => later.push((*place, answer.into_future())),
                }
            }
            parts.pop();
        }
        while let Some((place, answer)) = later.last_mut() {
            let outcome = ready!(Pin::new(answer).poll(cx));
            outcomes[*place as usize] = outcome.map_err(|_| Closed);
            later.pop();
        }
        Poll::Ready(std::mem::take(outcomes))
    }
}

impl<O> fmt::Debug for AnswersFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswersFuture")
            .field("count", &self.outcomes.0.len())
            .finish_non_exhaustive()
    }
}

/// The outcomes before any shard has replied.
fn none_known<O>(count: usize) -> Vec<Result<O, Closed>> {
    std::iter::repeat_with(|| Err(Closed)).take(count).collect()
}
