//! A lane joins one thread to one shard: requests in, granted keys out, both over SPSC rings.
//!
//! Why keys are granted in advance: a thread needs the timer's key at once. If the thread chose the
//! key itself, the owner would have to look each key up in a map, which costs two thirds of the
//! throughput at a million timers. So the owner reserves slots for the thread and keeps it supplied
//! with their keys. A thread without a key is refused before it sends anything: with
//! [`RefusedKind::Full`] or [`RefusedKind::Reserved`] if the owner has no key to grant, else with
//! [`RefusedKind::Busy`]. The thread uses keys in the order in which they were granted, so a
//! `Schedule` need not carry its key: it is the next key in the owner's queue. When a thread is
//! gone, the queue holds the keys that it has not used.
//!
//! How many keys a thread holds is the lane's [`Window`]: it begins with a fair share, and doubles
//! when the thread needs more. A thread that is refused for want of a key says so to the owner's
//! next turn. The owner takes unused keys back by closing the lane that
//! holds them, since both ends would have to agree on each single key.
//!
//! A request that does not fit into the ring goes into the [overflow](super::overflow) beside it.
//! Until the owner has taken the overflow, all later requests go there too. So the thread has
//! nothing left to do: it may block for a reply, sleep or be dropped. A schedule is refused when as
//! many requests wait as the lane's [`Room`] allows, a cancel or a reset never. The ring begins
//! small, and each time that requests overflow, the thread replaces it by a larger one.
//!
//! The owner closes a lane when it shuts down, when it dies, when the lane was idle for long, and
//! for keys that are not used:
//!
//! ```text
//! thread                                owner
//! ------                                -----
//! push onto the lane                    closed := true
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read closed                      ╱ ╲  receive all requests
//! true? wait for the owner's end,       hand the owner's end back
//!       take back all other requests
//! ```
//!
//! Either the thread sees that the lane is closed, or the owner receives the pushed request. If
//! both happen, the request is no longer in the ring and counts as accepted. So each request is
//! either accepted by the owner or comes back to its sender. The fence is that of the wake-up
//! protocol.
//!
//! A request for a timer can be cancelled while it lies in the lane: see [`marks`]. The owner drops
//! it when it next receives, and takes its key back. The mark rings the doorbell as a push does, so
//! that an owner which sleeps for long drops the request in a while.
//!
//! Cost: for each request a fence and two cache lines that travel between cores. A slot of the ring
//! takes 56 bytes: 32 of the request, or more for a large payload, 8 of its [state word](marks),
//! and 16 of the thread's [table](recent) of positions. A lane that never holds more has 64 slots.

mod marks;
mod receiver;
mod recent;
mod request;
mod ring;
mod sender;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crossbeam_utils::CachePadded;

pub(crate) use self::receiver::{Arrival, LaneReceiver};
pub(crate) use self::request::Request;
use self::ring::RingReceiver;
pub(crate) use self::sender::LaneSender;
pub(crate) use self::window::Window;
use super::gate::Gate;
use super::overflow::Overflow;
use super::sync::{AtomicU64 as SharedU64, Ordering, RingBuffer};
use crate::values::refused::RefusedKind;

/// That an owner has no key left for a thread, and which keys other threads hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exhausted {
    /// Slots that are reserved as keys of other threads. 0 if all slots hold timers.
    pub(crate) keys: u32,
    pub(crate) threads: u32,
}

impl Exhausted {
    /// As a number that is not 0, which stands for `None`.
    fn pack(self) -> u64 {
        (u64::from(self.keys) << 32) | (u64::from(self.threads) + 1)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let threads = (packed & u64::from(u32::MAX)).checked_sub(1)?;
        Some(Self { keys: (packed >> 32) as u32, threads: threads as u32 })
    }

    fn refusal(self) -> RefusedKind {
        match self {
            Self { keys: 0, .. } => RefusedKind::Full,
            Self { keys, threads } => RefusedKind::Reserved { keys, threads },
        }
    }
}

/// The part of a lane that both ends and the statistics share.
pub(crate) struct LaneShared<R: Request> {
    gate: Gate<RingReceiver<R>>,
    /// On cache lines of its own, since the thread writes the counts while the owner reads here.
    beside: CachePadded<Beside<R>>,
    /// Only the thread writes these three counts. They order nothing, so the model checker need not
    /// see them.
    refused: AtomicU64,
    wakeups_made: AtomicU64,
    wakeups_saved: AtomicU64,
    /// An [`Exhausted`], packed, if the owner ran out of keys when it last granted some, else 0.
    /// Only the owner writes it.
    exhausted: SharedU64,
}

/// What both ends read for each request or turn, and seldom write.
struct Beside<R> {
    overflow: Overflow<R, RingReceiver<R>>,
    /// The lane's window. Only the owner writes it. It orders nothing, as `lacks_key`.
    window: AtomicU64,
    /// Whether the thread was refused for want of a key since the owner last looked. If the owner
    /// misses that, it sees it at the next refusal.
    lacks_key: AtomicBool,
}

/// The counts of a lane's thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LaneCounts {
    pub(crate) refused: u64,
    pub(crate) wakeups_made: u64,
    pub(crate) wakeups_saved: u64,
}

impl LaneCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.wakeups_made += other.wakeups_made;
        self.wakeups_saved += other.wakeups_saved;
    }
}

impl<R: Request> LaneShared<R> {
    pub(crate) fn counts(&self) -> LaneCounts {
        LaneCounts {
            refused: self.refused.load(Ordering::Relaxed),
            wakeups_made: self.wakeups_made.load(Ordering::Relaxed),
            wakeups_saved: self.wakeups_saved.load(Ordering::Relaxed),
        }
    }
}

/// How many requests a lane has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// The slots of the ring at the beginning.
    pub(crate) ring: usize,
    /// The most requests that wait, in the ring and beside it, before a schedule is refused.
    pub(crate) max: usize,
}

impl Room {
    /// The slots of a new ring, unless the lane has room for fewer requests.
    const RING: usize = 64;

    pub(crate) fn new(max: usize) -> Self {
        Self { ring: max.min(Self::RING), max }
    }

    /// The slots of the ring that replaces a full one; `None` if the ring is as large as it may be.
    fn next(self) -> Option<usize> {
        (self.ring < self.max).then(|| self.ring.saturating_mul(4).min(self.max))
    }
}

/// Makes a lane whose thread begins with as many of `keys` as the window allows.
pub(crate) fn lane<R: Request>(
    room: Room,
    window: Window,
    keys: impl IntoIterator<Item = R::Key>,
) -> (LaneSender<R>, LaneReceiver<R>) {
    let (request_in, request_out) = ring::ring(room.ring);
    let (grant_in, grant_out) = RingBuffer::new(window.max());
    let shared = Arc::new(LaneShared {
        gate: Gate::new(),
        beside: CachePadded::new(Beside {
            overflow: Overflow::new(),
            window: AtomicU64::new(window.size() as u64),
            lacks_key: AtomicBool::new(false),
        }),
        refused: AtomicU64::new(0),
        wakeups_made: AtomicU64::new(0),
        wakeups_saved: AtomicU64::new(0),
        exhausted: SharedU64::new(0),
    });
    let keys = keys.into_iter().take(window.size());
    let sender = LaneSender::new(request_in, room, grant_out, Arc::clone(&shared));
    let mut receiver = LaneReceiver::new(request_out, grant_in, window, shared);
    keys.for_each(|key| receiver.grant(key));
    (sender, receiver)
}
