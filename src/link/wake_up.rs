//! How a shard sleeps, and how a sender wakes it.
//!
//! The protocol, in two columns; time runs down, and each side's fence stands between its write and
//! its read of what the other writes:
//!
//! ```text
//! sender                                owner, about to sleep
//! ------                                ---------------------
//! push onto the lane                    register the waker
//! fence(SeqCst)                    ╲ ╱  sleeps_until := t
//! read sleeps_until                ╱ ╲  fence(SeqCst)
//! later than what was sent?             look at all lanes
//!   sleeps_until := AWAKE, by CAS       anything there?
//!   the CAS that wins wakes the waker     sleeps_until := AWAKE, another turn
//! ```
//!
//! The fences are in one order, so at least one side sees the other: either the owner finds what
//! was pushed, or the sender finds that the owner sleeps. Both may; then the owner is awake, and
//! the wake is one too many. The compare-and-swap makes it one wake for each sleep, however many
//! send. The waker is registered before `sleeps_until` is written, and the sender's
//! compare-and-swap acquires what that write released, so a sender that rings finds the waker.
//!
//! The same fence of the sender serves the closing of a lane, see [`super::lane`]; and the
//! [`MailFlag`] of a mailbox takes the place of a push.
//!
//! Cost: a sender pays one fence and one load of a line that changes only when the shard falls
//! asleep or wakes.

use core::task::Waker;

use corewheel_shard::Tick;
use crossbeam_utils::CachePadded;

use super::sync::{AtomicBool, AtomicU64, AtomicWaker, Ordering, fence};

const AWAKE: u64 = 0;
/// After every tick.
const LIGHTLY: u64 = u64::MAX;
const _: () = assert!(Tick::NEVER.index() + 1 < LIGHTLY);

/// What [`Doorbell::ring_for`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    /// The owner slept, and this call woke it.
    Rung,
    /// The owner is awake, or will be in time.
    Saved,
}

/// One for each shard, shared by its owner and all who send to it.
#[derive(Debug)]
pub(crate) struct Doorbell {
    /// The tick after the one that the owner sleeps until, [`LIGHTLY`] or [`AWAKE`].
    sleeps_until: CachePadded<AtomicU64>,
    waker: AtomicWaker,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self { sleeps_until: CachePadded::new(AtomicU64::new(AWAKE)), waker: AtomicWaker::new() }
    }

    /// The sender's column, after the push: wakes the owner if it sleeps past `deadline`.
    #[inline]
    pub(crate) fn ring_for(&self, deadline: Tick) -> Ring {
        // Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        let until = self.sleeps_until.load(Ordering::Relaxed);
        if until == AWAKE || until <= deadline.index() + 1 { Ring::Saved } else { self.wake(until) }
    }

    /// Wakes the owner whatever it sleeps for.
    pub(crate) fn ring(&self) -> Ring {
        self.ring_for(Tick::ZERO)
    }

    /// The owner's column up to the fence. It must look at all lanes before it sleeps, and call
    /// [`wake_up`](Self::wake_up) instead if there is anything.
    pub(crate) fn fall_asleep(&self, until: Tick, waker: &Waker) {
        self.sleep(until.index() + 1, waker);
    }

    /// Does what [`fall_asleep`](Self::fall_asleep) does for a sleep that every request ends,
    /// whatever its deadline.
    pub(crate) fn fall_asleep_lightly(&self, waker: &Waker) {
        self.sleep(LIGHTLY, waker);
    }

    fn sleep(&self, until: u64, waker: &Waker) {
        self.waker.register(waker);
        // Release: pairs with the acquiring compare-and-swap in `wake`, for the waker.
        self.sleeps_until.store(until, Ordering::Release);
        // Pairs with the fence in `ring_for`.
        fence(Ordering::SeqCst);
    }

    /// Renews the waker of a sleep that goes on. False if it was rung meanwhile.
    #[allow(dead_code, reason = "a shard on a plain thread is not polled")]
    pub(crate) fn stay_asleep(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        !self.is_awake()
    }

    /// The owner goes on.
    #[inline]
    pub(crate) fn wake_up(&self) {
        self.sleeps_until.store(AWAKE, Ordering::Relaxed);
    }

    #[allow(dead_code, reason = "a shard on a plain thread is not polled")]
    pub(crate) fn is_awake(&self) -> bool {
        self.sleeps_until.load(Ordering::Relaxed) == AWAKE
    }

    #[cold]
    fn wake(&self, until: u64) -> Ring {
        // Acquire: pairs with the store in `fall_asleep`, so that the waker is there.
        let won =
            self.sleeps_until.compare_exchange(until, AWAKE, Ordering::Acquire, Ordering::Relaxed);
        if won.is_err() {
            return Ring::Saved;
        }
        self.waker.wake();
        Ring::Rung
    }
}

/// Says that something lies in a shard's mailbox, so that the shard need not lock the mailbox to
/// know.
///
/// Relaxed throughout: the flag carries nothing. The mail was put into the mailbox under its lock
/// before, and is taken under that lock afterwards.
#[derive(Debug)]
pub(crate) struct MailFlag(CachePadded<AtomicBool>);

impl MailFlag {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(AtomicBool::new(false)))
    }

    /// The sender's column, from the push on: after the mail was put into the mailbox.
    pub(crate) fn set(&self, doorbell: &Doorbell) {
        self.0.store(true, Ordering::Relaxed);
        doorbell.ring();
    }

    /// Whether mail has come since the flag was last taken.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag and says whether it was set. The owner must look into the mailbox next.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.is_set() && self.0.swap(false, Ordering::Relaxed)
    }
}
