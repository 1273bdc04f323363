//! The wake-up protocol: how a shard falls asleep, and how a sender wakes it.
//!
//! The protocol, in two columns; time runs down, and each side's fence stands between its own write
//! and its read of the other side's write:
//!
//! ```text
//! sender                                owner, about to sleep
//! ------                                ---------------------
//! push onto the lane                    register the waker
//! fence(SeqCst)                    ╲ ╱  sleeps_until := t
//! read sleeps_until                ╱ ╲  fence(SeqCst)
//! later than the request's deadline?    check all lanes
//!   sleeps_until := AWAKE, by CAS       is there a request?
//!   the CAS that wins wakes the waker     sleeps_until := AWAKE, another turn
//! ```
//!
//! The fences have one total order, so at least one side sees the other: either the owner finds the
//! pushed request, or the sender finds that the owner sleeps. If both do, the owner is awake
//! already, and the wake-up is superfluous. The compare-and-swap limits the wake-ups to one for
//! each sleep, however many threads send. The owner registers its waker before it writes
//! `sleeps_until`, and the sender's compare-and-swap acquires the release of that write, so a
//! sender that wakes the owner finds the waker.
//!
//! The closing of a lane uses the same fence of the sender, see [`super::lane`]. For a mailbox, the
//! store of its [`MailFlag`] takes the place of the push.
//!
//! Cost: a sender pays one fence and one load of a cache line that changes only when the shard
//! falls asleep or wakes.

use core::task::Waker;

use corewheel_shard::Tick;
use crossbeam_utils::CachePadded;

use super::sync::{AtomicBool, AtomicU64, AtomicWaker, Ordering, fence};

const AWAKE: u64 = 0;

/// Whether [`Doorbell::wake_for`] woke the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WakeUp {
    /// The owner slept, and this call woke it.
    Made,
    /// The owner is awake, or will be awake in time.
    Saved,
}

/// The doorbell of one shard, shared by its owner and all senders.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// One more than the tick until which the owner sleeps, or [`AWAKE`].
    sleeps_until: CachePadded<AtomicU64>,
    waker: AtomicWaker,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self { sleeps_until: CachePadded::new(AtomicU64::new(AWAKE)), waker: AtomicWaker::new() }
    }

    /// The sender's column, after the push: wakes the owner if it sleeps past what `deadline`
    /// returns, which is called only if it sleeps.
    #[inline]
    pub(crate) fn wake_for(&self, deadline: impl FnOnce() -> Tick) -> WakeUp {
        // Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        let until = self.sleeps_until.load(Ordering::Relaxed);
        if until == AWAKE || until <= deadline().index() + 1 {
            WakeUp::Saved
        } else {
            self.wake_from(until)
        }
    }

    /// Wakes the owner if it sleeps.
    pub(crate) fn wake(&self) -> WakeUp {
        self.wake_for(|| Tick::ZERO)
    }

    /// The owner's column up to the fence. The owner must check all lanes before it sleeps, and
    /// call [`set_awake`](Self::set_awake) instead of sleeping if there is a request.
    pub(crate) fn fall_asleep(&self, until: Tick, waker: &Waker) {
        self.waker.register(waker);
        let until = until.index() + 1;
        // Release: pairs with the acquiring compare-and-swap in `wake_from`, for the waker.
        self.sleeps_until.store(until, Ordering::Release);
        // Pairs with the fence in `wake_for`.
        fence(Ordering::SeqCst);
    }

    /// Replaces the waker of a sleep that goes on. False if a sender woke the owner meanwhile.
    pub(crate) fn stay_asleep(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        !self.is_awake()
    }

    /// Called by the owner when it stops sleeping.
    #[inline]
    pub(crate) fn set_awake(&self) {
        self.sleeps_until.store(AWAKE, Ordering::Relaxed);
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.sleeps_until.load(Ordering::Relaxed) == AWAKE
    }

    /// Wakes the owner if its sleep is still the one until `until`.
    #[cold]
    fn wake_from(&self, until: u64) -> WakeUp {
        // Acquire: pairs with the store in `fall_asleep`, so that the waker is there.
        let won =
            self.sleeps_until.compare_exchange(until, AWAKE, Ordering::Acquire, Ordering::Relaxed);
        if won.is_err() {
            return WakeUp::Saved;
        }
        self.waker.wake();
        WakeUp::Made
    }
}

/// The flag of a shard's mailbox: set while mail waits, so that the shard locks the mailbox for
/// mail only then.
///
/// Relaxed throughout: the flag orders nothing. The sender puts the mail into the mailbox under its
/// lock before it sets the flag, and the owner takes the mail under that lock after it has cleared
/// the flag. If the owner clears a flag that a sender has just set again, the sender has had the
/// lock before, and the owner takes that mail too. Both change the flag by a swap, which sees the
/// latest value: with plain stores, the model of a sleep that ends with its shard finds an owner
/// that sleeps beside the mail of the second of two senders. Mail is rare.
#[derive(Debug)]
pub(crate) struct MailFlag(CachePadded<AtomicBool>);

impl MailFlag {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(AtomicBool::new(false)))
    }

    /// The sender's column, with the flag as the push. The sender calls it after it has put the
    /// mail into the mailbox.
    pub(crate) fn set(&self, doorbell: &Doorbell) {
        self.0.swap(true, Ordering::Relaxed);
        doorbell.wake();
    }

    /// Whether a sender has set the flag since the owner last took it.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag and returns whether it was set. If so, the owner must take the mail next.
    /// Only the owner may call it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let was_set = self.is_set();
        if was_set {
            self.0.swap(false, Ordering::Relaxed);
        }
        was_set
    }
}
