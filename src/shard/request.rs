//! The messages from other threads to a shard: requests on lanes, and control messages in its
//! mailbox.
//!
//! A bulk request holds many commands. Why not a request for each: a cancel of 64 timers would take
//! 64 places in the ring and, if a caller waits for the outcomes, 64 channels; a bulk request takes
//! one of each. A turn executes as many of its commands as the budget allows, and the rest stays at
//! the head of its lane, so order is kept.
//!
//! Cost: the sender allocates the box of a bulk request and the list of its commands, and the list
//! and the channel of its replies if it waits for them. The shard allocates nothing to execute it.

use std::time::Duration;
use std::vec::IntoIter;

use corewheel_shard::{Tick, TimerKey};
use oneshot::SendError;

use super::parts::Message;
use super::timers::{Job, Remote, SendCall};
use crate::clock::{Timeline, nanos_after};
use crate::directory;
use crate::link::lane;
use crate::link::lane::About;
use crate::stats::{ClassStats, ShardCounts};
use crate::values::class::ClassId;
use crate::values::contain::Each;
use crate::values::ids::{ShardId, TimerId};
use crate::values::outcome::{CancelOutcome, ResetOutcome};
use crate::values::shutdown::ShutdownPolicy;

/// The directory of a service whose timers carry `P`.
pub(crate) type Directory<T> = directory::Directory<Request<T>, Control<T>>;
/// The post of one shard, where other threads reach it.
pub(crate) type Post<T> = directory::Post<Request<T>, Control<T>>;

/// A request of a thread to a shard.
pub(crate) enum Request<T: 'static> {
    /// A timer with a value, for the next granted key.
    Schedule {
        deadline: Tick,
        /// The time of sending in microseconds; the lower 32 bits.
        sent_us: u32,
        class: ClassId,
        value: T,
    },
    /// A timer with a callback, for the next granted key.
    Call {
        deadline: Tick,
        sent_us: u32,
        class: ClassId,
        call: SendCall<T>,
    },
    Cancel {
        key: TimerKey,
        /// `None` if no caller waits for the outcome.
        reply: Option<CancelReply<T>>,
    },
    Reset {
        key: TimerKey,
        deadline: Tick,
        reply: Option<oneshot::Sender<ResetOutcome>>,
    },
    /// Many commands, or a rare command. Boxed, so that it does not enlarge the other requests.
    Bulk(Box<Bulk<T>>),
}

pub(crate) type CancelReply<T> = oneshot::Sender<CancelOutcome<Remote<T>>>;
pub(crate) type CancelReplies<T> = Replies<CancelOutcome<Remote<T>>>;
/// The reply is `None` if the timer is not pending.
pub(crate) type RemainingReply = oneshot::Sender<Option<Duration>>;

/// Many commands, or a rare command.
pub(crate) enum Bulk<T: 'static> {
    Cancel(BulkCancel<T>),
    /// Asks how long it is until a timer is due.
    Remaining {
        key: TimerKey,
        reply: RemainingReply,
    },
    /// A message to a part of the shard. It concerns no timer.
    Message(Box<dyn Message>),
}

pub(crate) struct BulkCancel<T: 'static> {
    pub(crate) keys: IntoIter<TimerKey>,
    pub(crate) replies: CancelReplies<T>,
}

/// The outcomes of a bulk request's commands so far, and the channel to the caller.
pub(crate) struct Replies<O> {
    sender: oneshot::Sender<Each<O>>,
    replies: Each<O>,
}

impl<O> Replies<O> {
    /// With room for `count` outcomes.
    pub(crate) fn new(count: usize) -> (Self, oneshot::AsyncReceiver<Each<O>>) {
        let (sender, receiver) = oneshot::async_channel();
        (Self { sender, replies: Each(Vec::with_capacity(count)) }, receiver)
    }

    pub(crate) fn push(&mut self, reply: O) {
        self.replies.0.push(reply);
    }

    /// Sends the outcomes, which wakes the caller. Returns them if no caller waits any more.
    pub(crate) fn send(self) -> Vec<O> {
        let back = self.sender.send(self.replies).err().map(SendError::into_inner);
        back.map(|mut replies| replies.take()).unwrap_or_default()
    }
}

impl<T: 'static> Request<T> {
    /// The message to a part; `None` if the request is another.
    pub(crate) fn into_message(self) -> Option<Box<dyn Message>> {
        let Self::Bulk(bulk) = self else { return None };
        if let Bulk::Message(message) = *bulk { Some(message) } else { None }
    }

    /// The class of the timer, if the request schedules one.
    pub(crate) fn class(&self) -> ClassId {
        match self {
            Self::Schedule { class, .. } | Self::Call { class, .. } => *class,
            Self::Cancel { .. } | Self::Reset { .. } | Self::Bulk(_) => ClassId::NONE,
        }
    }

    /// The value of the timer; `None` if the request schedules none with a value.
    pub(crate) fn into_value(self) -> Option<T> {
        if let Self::Schedule { value, .. } = self { Some(value) } else { None }
    }

    /// The callback of the timer; `None` if the request schedules none with a callback.
    pub(crate) fn into_call(self) -> Option<SendCall<T>> {
        if let Self::Call { call, .. } = self { Some(call) } else { None }
    }
}

impl<T: 'static> lane::Request for Request<T> {
    type Key = TimerKey;

    #[inline]
    fn number_of(key: TimerKey) -> usize {
        key.index() as usize
    }

    #[inline]
    fn uses_key(&self) -> bool {
        matches!(self, Self::Schedule { .. } | Self::Call { .. })
    }

    #[inline]
    fn about(&self) -> Option<About<TimerKey>> {
        match self {
            Self::Cancel { key, .. } | Self::Reset { key, .. } => Some(About::One(*key)),
            Self::Bulk(bulk) => match &**bulk {
                Bulk::Message(_) => None,
                _ => Some(About::Many),
            },
            Self::Schedule { .. } | Self::Call { .. } => None,
        }
    }

    #[inline]
    fn weight(&self) -> usize {
        let Self::Bulk(bulk) = self else { return 1 };
        match &**bulk {
            Bulk::Cancel(bulk) => bulk.keys.len().max(1),
            Bulk::Remaining { .. } | Bulk::Message(_) => 1,
        }
    }

    /// A cancel whose outcome no caller waits for may wait: see [`freed_by`].
    #[inline]
    fn needed_by(&self) -> Option<Tick> {
        match self {
            Self::Schedule { deadline, .. }
            | Self::Call { deadline, .. }
            | Self::Reset { reply: None, deadline, .. } => Some(*deadline),
            Self::Cancel { reply: None, .. } => None,
            Self::Cancel { reply: Some(_), .. }
            | Self::Reset { reply: Some(_), .. }
            | Self::Bulk(_) => Some(Tick::ZERO),
        }
    }
}

/// How long a cancel that no caller waits for may wait in its lane, and with it a payload.
const FREED_WITHIN: Duration = Duration::from_secs(1);

/// The tick by which a shard must have received a cancel that no caller waits for, if `now` is the
/// present in nanoseconds.
///
/// A shard that has received such a cancel takes another turn by this tick, so that those that
/// follow need not wake it.
#[inline]
pub(super) fn freed_by(time: &Timeline, now: u64) -> Tick {
    time.floor(nanos_after(now, FREED_WITHIN))
}

/// A control message to a shard.
pub(crate) enum Control<T: 'static> {
    /// A message for the driver.
    Job(Job<T>),
    /// A callback that the next turn runs, without a timer.
    Call(SendCall<T>),
    Shutdown(ShutdownOrder<T>),
}

/// An order to a shard to shut down.
pub(crate) struct ShutdownOrder<T: 'static> {
    pub(crate) policy: ShutdownPolicy,
    pub(crate) report: oneshot::Sender<Report<T>>,
}

/// The report of a shard that has ended. If it is dropped, the payloads in it are dropped one at a
/// time.
pub(crate) struct Report<T: 'static> {
    pub(crate) shard: ShardId,
    pub(crate) counts: ShardCounts,
    pub(crate) classes: Vec<ClassStats>,
    /// The timers that are returned to the caller.
    pub(crate) returned: Each<Returned<T>>,
}

/// A timer that is returned to the caller of the shutdown.
pub(crate) struct Returned<T: 'static> {
    pub(crate) timer: TimerId,
    pub(crate) deadline: Tick,
    pub(crate) payload: Remote<T>,
}
