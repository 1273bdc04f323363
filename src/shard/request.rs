//! The messages from other threads to a shard: requests on lanes, and control messages in its
//! mailbox.

use std::time::Duration;

use corewheel_shard::{Tick, TimerKey};

use super::parts::Message;
use super::timers::{Job, Remote, SendCall};
use crate::clock::{Timeline, nanos_after};
use crate::directory;
use crate::link::lane;
use crate::stats::ShardStats;
use crate::values::class::ClassId;
use crate::values::contain::Each;
use crate::values::error::ReplyError;
use crate::values::ids::TimerId;
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
        reply: Option<ReplySender<ResetOutcome>>,
    },
    /// Asks how long it is until a timer is due.
    Remaining {
        key: TimerKey,
        reply: RemainingReply,
    },
    /// A message to a part of the shard. It concerns no timer.
    Message(Box<dyn Message>),
}

pub(crate) type ReplySender<O> = oneshot::Sender<Result<O, ReplyError>>;
pub(crate) type CancelReply<T> = ReplySender<CancelOutcome<Remote<T>>>;
/// The reply is `None` if the timer is not pending.
pub(crate) type RemainingReply = ReplySender<Option<Duration>>;

impl<T: 'static> Request<T> {
    /// The message to a part; `None` if the request is another.
    pub(crate) fn into_message(self) -> Option<Box<dyn Message>> {
        if let Self::Message(message) = self { Some(message) } else { None }
    }

    /// The class of the timer, if the request schedules one.
    pub(crate) fn class(&self) -> ClassId {
        match self {
            Self::Schedule { class, .. } | Self::Call { class, .. } => *class,
            _ => ClassId::NONE,
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
    fn about(&self) -> Option<TimerKey> {
        match self {
            Self::Cancel { key, .. } | Self::Reset { key, .. } | Self::Remaining { key, .. } => {
                Some(*key)
            }
            Self::Schedule { .. } | Self::Call { .. } | Self::Message(_) => None,
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
            | Self::Remaining { .. }
            | Self::Message(_) => Some(Tick::ZERO),
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
    pub(crate) stats: ShardStats,
    /// The timers that are returned to the caller.
    pub(crate) returned: Each<Returned<T>>,
}

/// A timer that is returned to the caller of the shutdown.
pub(crate) struct Returned<T: 'static> {
    pub(crate) timer: TimerId,
    pub(crate) deadline: Tick,
    pub(crate) payload: Remote<T>,
}
