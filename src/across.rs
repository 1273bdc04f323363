//! What a client asks of a shard in one message that stands for many commands, or that is rare.
//!
//! Why not a message for each command: a cancel of 64 timers would cost 64 places in the ring and,
//! where somebody waits for what became of them, 64 channels. Here it is one of each.
//!
//! However much a message asks for, a turn does of it what its budget allows; the rest stays at the
//! head of its lane, so order is kept. Many schedules come with the keys that they use up.
//!
//! Cost: two allocations by the sender for a message, and none by the owner.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use corewheel_shard::{Tick, TimerKey};
use oneshot::SendError;

use crate::class::ClassId;
use crate::contain::Each;
use crate::handle::{ShardId, TimerHandle};
use crate::moving::{DrainError, DrainReport, MoveError};
use crate::task::{CancelOutcome, RemoteTask};

/// Where the timers are that have left a shard. It grows without ever being copied.
pub(crate) type NewNames = BTreeMap<TimerKey, TimerHandle>;

/// What became of one command of many.
pub(crate) enum Told<O> {
    Now(O),
    /// It was sent on to another shard, which will tell.
    Later(oneshot::Receiver<O>),
}

/// The way for the answer to many commands, with what is known so far.
pub(crate) struct Account<O> {
    sender: oneshot::Sender<Each<Told<O>>>,
    told: Each<Told<O>>,
}

pub(crate) type CancelAccount<T> = Account<CancelOutcome<RemoteTask<T>>>;
pub(crate) type MoveAnswer = oneshot::Sender<Result<TimerHandle, MoveError>>;
pub(crate) type DrainAnswer = oneshot::Sender<Result<DrainReport, DrainError>>;

pub(crate) enum Across<T: 'static> {
    Cancel(CancelMany<T>),
    Schedule(ScheduleMany<T>),
    /// To another shard.
    Move {
        key: TimerKey,
        to: ShardId,
        answer: MoveAnswer,
    },
    Drain {
        into: Box<[ShardId]>,
        answer: DrainAnswer,
    },
}

pub(crate) struct CancelMany<T: 'static> {
    pub(crate) keys: IntoIter<TimerKey>,
    /// `None` if nobody waits for it.
    pub(crate) account: Option<CancelAccount<T>>,
}

pub(crate) struct ScheduleMany<T> {
    pub(crate) timers: IntoIter<(TimerKey, Tick, T)>,
    pub(crate) earliest: Tick,
    pub(crate) sent_us: u32,
    pub(crate) class: ClassId,
}

impl<O> Account<O> {
    /// With room for this many outcomes.
    pub(crate) fn new(count: usize) -> (Self, oneshot::Receiver<Each<Told<O>>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, told: Each(Vec::with_capacity(count)) }, receiver)
    }

    pub(crate) fn note(&mut self, told: Told<O>) {
        self.told.0.push(told);
    }

    /// Wakes whoever waits. Where nobody does any more, what was to be told comes back.
    pub(crate) fn tell(self) -> Vec<Told<O>> {
        let back = self.sender.send(self.told).err().map(SendError::into_inner);
        back.map(|mut told| told.take()).unwrap_or_default()
    }
}

impl<T> Across<T> {
    /// How many granted keys it uses up, the next ones of its lane.
    pub(crate) fn keys_used(&self) -> usize {
        match self {
            Self::Schedule(many) => many.timers.len(),
            Self::Cancel(_) | Self::Move { .. } | Self::Drain { .. } => 0,
        }
    }

    /// As how many requests it counts.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Schedule(many) => many.timers.len(),
            Self::Cancel(many) => many.keys.len(),
            Self::Move { .. } | Self::Drain { .. } => 1,
        }
        .max(1)
    }

    /// The latest tick at which the owner must have seen it.
    pub(crate) fn needed_by(&self) -> Tick {
        match self {
            Self::Schedule(many) => many.earliest,
            Self::Cancel(CancelMany { account: None, .. }) => Tick::NEVER,
            Self::Cancel(_) | Self::Move { .. } | Self::Drain { .. } => Tick::ZERO,
        }
    }
}
