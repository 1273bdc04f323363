//! The mailbox of a shard: rare control messages, new lanes and the key pool, under one lock.
//!
//! Frequent requests go over the lanes. Once a turn a shard reads one flag of its mailbox, and it
//! takes the lock for mail only if the flag is set. It also takes it to remove a closed lane
//! ([`Mailbox::forget`]) and to use a key of the pool ([`Mailbox::take_key`]). A thread that opens
//! a lane makes it under the lock ([`Mailbox::connect`]); all others hold the lock for a few
//! instructions. No code of the user runs meanwhile.
//!
//! The key pool gives a thread that connects while the shard sleeps a key at once.
//!
//! Invariants: a closed mailbox accepts no lane and no control message. The owner takes all
//! messages that were accepted before when it closes the mailbox.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::lane::{LaneCounts, LaneReceiver, LaneSender, LaneShared, Request, Room, Window, lane};
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
    /// No thread has opened the mailbox yet.
    Waiting,
    Owned,
    /// The owner has closed the mailbox, or it was closed before a thread opened it.
    Closed,
}

/// The contents of a mailbox.
pub(crate) struct Mail<R: Request, C> {
    ownership: Ownership,
    /// The key pool: keys for the threads that connect next.
    pool: VecDeque<R::Key>,
    lanes_new: Vec<LaneReceiver<R>>,
    control: Vec<C>,
    /// All open lanes, for their counts.
    lanes: Vec<Arc<LaneShared<R>>>,
    /// The sums of the counts of the lanes that were closed.
    gone: LaneCounts,
}

/// The mail that an owner takes out of its mailbox.
pub(crate) struct Taken<R: Request, C> {
    pub(crate) lanes: Vec<LaneReceiver<R>>,
    pub(crate) control: Vec<C>,
    /// The keys of the pool. Empty unless the owner closes the mailbox.
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

    /// Makes the owner take its mail and read its post, though no mail is new.
    pub(crate) fn notify(&self, doorbell: &Doorbell) {
        self.flag.set(doorbell);
    }

    /// Makes a lane with room for `room` requests, and leaves the owner's end of it in the mailbox.
    /// The lane's window begins with an equal share of `keys` among the open lanes, or with `first`
    /// keys if these are fewer, and holds `window_max` keys at most. The thread begins with up to
    /// half of the pool's keys, so that the next thread finds keys too. `None` if the mailbox is
    /// closed.
    pub(crate) fn connect(
        &self,
        room: Room,
        keys: usize,
        first: usize,
        window_max: usize,
        doorbell: &Doorbell,
    ) -> Option<LaneSender<R>> {
        let sender = {
            let mut mail = self.lock();
            if mail.ownership == Ownership::Closed {
                return None;
            }
            let window = Window::share_of(keys, mail.lanes.len() + 1, window_max);
            let window = window.beginning_with(first);
            let count = mail.pool.len().div_ceil(2).min(window.size());
            let keys = mail.pool.drain(..count).collect::<Vec<_>>();
            let (sender, receiver) = lane(room, window, keys);
            mail.lanes.push(Arc::clone(sender.shared()));
            mail.lanes_new.push(receiver);
            sender
        };
        self.flag.set(doorbell);
        Some(sender)
    }

    /// Closes a mailbox that no thread has opened, and drops its mail. False if the mailbox has or
    /// had an owner, or was closed before.
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
            lane.close_unread();
        }
        drop_each(control);
        true
    }

    /// The sums of the counts of all lanes, open and closed.
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
    /// Makes the calling thread the owner. False if the mailbox is closed.
    pub(crate) fn open(&self) -> bool {
        let mut mail = self.lock();
        let is_open = mail.ownership != Ownership::Closed;
        if is_open {
            mail.ownership = Ownership::Owned;
        }
        is_open
    }

    /// Whether mail has come since the owner last took the flag.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.flag.is_set()
    }

    /// Clears the flag and returns whether mail has come. If so, the owner must call
    /// [`take`](Self::take) next.
    #[inline]
    pub(crate) fn take_flag(&self) -> bool {
        self.flag.take()
    }

    /// Takes the mail out, and fills the key pool up to `window` keys with keys from `grant`, until
    /// `grant` returns `None`.
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

    /// Takes a key out of the pool, for the owner itself. `None` if the pool is empty.
    pub(crate) fn take_key(&self) -> Option<R::Key> {
        self.lock().pool.pop_back()
    }

    /// Closes the mailbox and takes all of its contents out. `note` runs under the lock, so a
    /// sender that finds the mailbox closed also sees the writes of `note`.
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

    /// Removes a closed lane, and keeps its counts.
    pub(crate) fn forget(&self, lane: &Arc<LaneShared<R>>) {
        let mut mail = self.lock();
        mail.gone.add(lane.counts());
        mail.lanes.retain(|known| !Arc::ptr_eq(known, lane));
    }
}
