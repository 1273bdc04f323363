//! The mailbox of a shard: rare control messages, new lanes and a pool of granted keys, behind one
//! lock.
//!
//! What is frequent goes over the lanes. A shard looks at its mailbox once a turn, at one flag, and
//! takes the lock only if the flag is set. A sender holds the lock for a few instructions, and
//! never while code of the user runs.
//!
//! The key pool lets a client that connects while the shard sleeps use a key at once.
//!
//! Invariants: a mailbox that is closed accepts no lane and no control message; what was accepted
//! before is taken by the owner when it closes the mailbox.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::lane::{LaneCounts, LaneReceiver, LaneSender, LaneShared, Request, lane};
use super::sync::{Mutex, MutexGuard};
use super::wake_up::{Doorbell, MailFlag};
use crate::values::contain::drop_each;

/// The mailbox of one shard, for lanes of `R` and control messages `C`.
pub(crate) struct Mailbox<R: Request, C> {
    flag: MailFlag,
    mail: Mutex<Mail<R, C>>,
}

/// Whether a mailbox has an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ownership {
    /// No thread owns it yet.
    Waiting,
    Owned,
    /// Its owner has closed it, or it was closed before it had one.
    Closed,
}

/// What lies in a mailbox.
pub(crate) struct Mail<R: Request, C> {
    ownership: Ownership,
    /// Keys for the clients that connect next.
    pool: VecDeque<R::Key>,
    lanes_new: Vec<LaneReceiver<R>>,
    control: Vec<C>,
    /// The lanes that exist, for their counts.
    lanes: Vec<Arc<LaneShared<R>>>,
    /// The sums of the counts of lanes that are gone.
    gone: LaneCounts,
}

/// What an owner takes out of its mailbox.
pub(crate) struct Taken<R: Request, C> {
    pub(crate) lanes: Vec<LaneReceiver<R>>,
    pub(crate) control: Vec<C>,
    /// Keys that no client has; only a mailbox that is closed hands them out.
    pub(crate) keys: VecDeque<R::Key>,
}

impl<R: Request, C> Mailbox<R, C> {
    pub(crate) fn new() -> Self {
        let mail = Mail {
            ownership: Ownership::Waiting,
            pool: VecDeque::new(),
            lanes_new: Vec::new(),
            control: Vec::new(),
            lanes: Vec::new(),
            gone: LaneCounts::default(),
        };
        Self { flag: MailFlag::new(), mail: Mutex::new(mail) }
    }

    fn lock(&self) -> MutexGuard<'_, Mail<R, C>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().ownership == Ownership::Closed
    }
}

/// For senders.
impl<R: Request, C> Mailbox<R, C> {
    /// Leaves a control message and wakes the owner. `Err` with the message if the mailbox is
    /// closed.
    pub(crate) fn send(&self, control: C, doorbell: &Doorbell) -> Result<(), C> {
        {
            let mut mail = self.lock();
            if mail.ownership == Ownership::Closed {
                return Err(control);
            }
            mail.control.push(control);
        }
        self.flag.set(doorbell);
        Ok(())
    }

    /// Makes the owner look into its mailbox, and at what lies beside it.
    pub(crate) fn notify(&self, doorbell: &Doorbell) {
        self.flag.set(doorbell);
    }

    /// Makes a lane of `capacity` requests and at most `window` granted keys, and leaves its other
    /// end to the owner. The client begins with up to half of the pool's keys, so that some are
    /// left for the next client. `None` if the mailbox is closed.
    pub(crate) fn connect(
        &self,
        capacity: usize,
        window: usize,
        doorbell: &Doorbell,
    ) -> Option<LaneSender<R>> {
        let sender = {
            let mut mail = self.lock();
            if mail.ownership == Ownership::Closed {
                return None;
            }
            let count = mail.pool.len().div_ceil(2).min(window);
            let keys = mail.pool.drain(..count).collect::<Vec<_>>();
            let (sender, receiver) = lane(capacity, window, keys);
            mail.lanes.push(Arc::clone(sender.shared()));
            mail.lanes_new.push(receiver);
            sender
        };
        self.flag.set(doorbell);
        Some(sender)
    }

    /// Closes a mailbox that no owner has opened, and drops what lies in it. False if it has or had
    /// an owner, or was closed before.
    pub(crate) fn close_unowned(&self) -> bool {
        let (lanes, control) = {
            let mut mail = self.lock();
            if mail.ownership != Ownership::Waiting {
                return false;
            }
            mail.ownership = Ownership::Closed;
            (std::mem::take(&mut mail.lanes_new), std::mem::take(&mut mail.control))
        };
        for lane in lanes {
            lane.turn_away();
        }
        drop_each(control);
        true
    }

    /// What the clients of all lanes have counted.
    pub(crate) fn lane_counts(&self) -> LaneCounts {
        let mail = self.lock();
        let mut sum = mail.gone;
        for lane in &mail.lanes {
            sum.add(lane.counts());
        }
        sum
    }
}

/// For the owner.
impl<R: Request, C> Mailbox<R, C> {
    /// The calling thread is the owner from now on. False if the mailbox is closed.
    pub(crate) fn open(&self) -> bool {
        let mut mail = self.lock();
        let is_open = mail.ownership != Ownership::Closed;
        if is_open {
            mail.ownership = Ownership::Owned;
        }
        is_open
    }

    /// Whether mail has come since the owner last took it.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.flag.is_set()
    }

    /// Whether mail has come; forgets it, so the owner must call [`take`](Self::take) next.
    #[inline]
    pub(crate) fn take_flag(&self) -> bool {
        self.flag.take()
    }

    /// Takes the mail out, and fills the pool up to `window` keys with what `grant` gives.
    pub(crate) fn take(
        &self,
        window: usize,
        mut grant: impl FnMut() -> Option<R::Key>,
    ) -> Taken<R, C> {
        let mut mail = self.lock();
        while mail.ownership == Ownership::Owned && mail.pool.len() < window {
            let Some(key) = grant() else { break };
            mail.pool.push_back(key);
        }
        Taken {
            lanes: std::mem::take(&mut mail.lanes_new),
            control: std::mem::take(&mut mail.control),
            keys: VecDeque::new(),
        }
    }

    /// A key of the pool, for the owner itself.
    pub(crate) fn take_key(&self) -> Option<R::Key> {
        self.lock().pool.pop_back()
    }

    /// Closes the mailbox and takes out all that lies in it. `note` runs under the lock, so a
    /// sender that finds the mailbox closed finds what `note` has noted, too.
    pub(crate) fn close(&self, note: impl FnOnce()) -> Taken<R, C> {
        let mut mail = self.lock();
        mail.ownership = Ownership::Closed;
        note();
        Taken {
            lanes: std::mem::take(&mut mail.lanes_new),
            control: std::mem::take(&mut mail.control),
            keys: std::mem::take(&mut mail.pool),
        }
    }

    /// Keeps the counts of a lane that is gone.
    pub(crate) fn forget(&self, lane: &Arc<LaneShared<R>>) {
        let mut mail = self.lock();
        mail.gone.add(lane.counts());
        mail.lanes.retain(|known| !Arc::ptr_eq(known, lane));
    }
}
