//! The cancel of many timers: one request to each shard that has some of them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use corewheel_shard::TimerKey;

use super::Handle;
use crate::face::reply::Reply;
use crate::shard::request::{Bulk, BulkCancel, Replies, Request};
use crate::shard::timers::{Payload, SendCall};
use crate::values::contain::Each;
use crate::values::error::ReplyError;
use crate::values::ids::{ServiceId, ShardId, TimerId};
use crate::values::outcome::CancelOutcome;

/// The commands of a bulk whose timers are on one shard.
struct Part {
    shard: ShardId,
    keys: Vec<TimerKey>,
    /// The index of each command in the bulk.
    places: Vec<u32>,
}

/// Commands about many timers.
impl<T: Send + 'static> Handle<T> {
    /// Cancels timers of any shards; the reply has the outcome of each, in the order of the
    /// ids. Each shard that has some of the timers gets one request and sends one reply. A group of
    /// timers that end together, as those of a connection, is a list of their ids.
    ///
    /// The reply itself is never an error. An outcome is [`ReplyError::Closed`] where the shard of
    /// its timer has ended before it replied: for all timers of the service after a shutdown, and
    /// after the service was dropped. The shutdown has given each of them its outcome.
    ///
    /// The number of ids is not limited, and the command is never refused. Each cancel counts
    /// as a request, so a turn executes no more cancels than its budget allows. The shard sends
    /// its reply after the last cancel.
    ///
    /// The outcome for a timer that has not arrived yet from another thread is `Overtook`; its
    /// payload is dropped when it arrives. A timer of another service is left as it is, and its
    /// outcome is `Foreign`.
    ///
    /// Cost: five allocations for each shard and some for the whole; a key, an index and room for
    /// two outcomes for each timer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use corewheel::{CancelOutcome, Fired, Runtime, TimerService, Timers};
    ///
    /// let service = TimerService::builder()
    ///     .shards(2)
    ///     .runtime(Runtime::Thread)
    ///     .start_with(|_| |_: Fired<u32>, _: &Timers<u32>| {})?;
    /// let handle = service.handle();
    /// // A connection that has its timers on both shards is closed.
    /// let minute = Duration::from_secs(60);
    /// let mut timers = Vec::new();
    /// for (n, shard) in handle.shards().enumerate() {
    ///     timers.push(handle.on(shard).schedule(minute, n as u32)?);
    /// }
    /// let outcomes = handle.cancel_many(&timers).wait()?;
    /// assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(done) if done.won())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_many(&self, timers: &[TimerId]) -> Reply<Outcomes<T>> {
        let (parts, foreign) = parts(timers, self.service);
        let mut replies = BulkReplies::new(timers.len());
        for place in foreign {
            replies.outcomes.0[place as usize] = Ok(CancelOutcome::Foreign);
        }
        // Without lanes all shards have ended.
        let Ok(lanes) = self.lanes() else { return Reply::gathered(replies) };
        for Part { shard, keys, places } in parts {
            let (sender, receiver) = Replies::new(keys.len());
            let many = BulkCancel { keys: keys.into_iter(), replies: sender };
            lanes.send(shard, Request::Bulk(Box::new(Bulk::Cancel(many))));
            replies.parts.push((places, receiver));
        }
        Reply::gathered(replies)
    }
}

/// Sorts timers by their shards, in the order in which the shards first occur. Returns also the
/// indices of the timers of other services.
fn parts(timers: &[TimerId], service: ServiceId) -> (Vec<Part>, Vec<u32>) {
    // Counted first, so that the allocations do not depend on how the shards are mixed.
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

/// The outcome of each of many cancels. `Closed` in the place of a cancel means that its shard has
/// ended before it replied.
pub(crate) type Outcomes<T> = Vec<Result<CancelOutcome<Payload<T, SendCall<T>>>, ReplyError>>;

type ShardReply<O> = oneshot::AsyncReceiver<Each<O>>;

/// The replies of several shards to many commands.
struct BulkReplies<O> {
    /// For each shard, the places of its commands among all, and its reply.
    parts: Vec<(Vec<u32>, ShardReply<O>)>,
    outcomes: Each<Result<O, ReplyError>>,
}

impl<O> BulkReplies<O> {
    /// Before any shard has replied.
    fn new(count: usize) -> Self {
        let unknown = std::iter::repeat_with(|| Err(ReplyError::Closed)).take(count).collect();
        Self { parts: Vec::new(), outcomes: Each(unknown) }
    }
}

// Nothing in it is pinned.
impl<O> Unpin for BulkReplies<O> {}

impl<O> Future for BulkReplies<O> {
    type Output = Vec<Result<O, ReplyError>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { parts, outcomes: Each(outcomes) } = self.get_mut();
        // One reply after the other, since all are waited for: only the reply that is polled last
        // knows the waker, so a reply that arrives causes no poll of all the others.
        while let Some((places, reply)) = parts.last_mut() {
            // The commands of a shard that does not reply stay `Closed`.
            let told = ready!(Pin::new(reply).poll(cx)).map(|mut told| told.take());
            for (place, told) in places.iter().zip(told.unwrap_or_default()) {
                outcomes[*place as usize] = Ok(told);
            }
            parts.pop();
        }
        Poll::Ready(std::mem::take(outcomes))
    }
}
