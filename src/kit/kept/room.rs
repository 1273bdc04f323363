//! How many commands may be on their way to one value, and the futures that wait for room.
//!
//! Why one lock and not an atomic count: a command is boxed and has a channel for its result, so
//! the lock is a small part of its cost, and a future that finds no room registers under it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::link::waiters::Waiters;
use crate::values::contain::each;

/// The room for commands to one value. Commands that are sent and have not ended take it.
pub(super) struct Room {
    max: usize,
    /// How many commands take room; at most `max`.
    taken: Mutex<usize>,
    /// Changed under the lock of `taken`.
    waiters: Waiters,
}

/// The room that one command takes, until this is dropped.
pub(super) struct Permit(Arc<Room>);

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::new(0), waiters: Waiters::new() })
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a command. `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Permit> {
        self.enter_or(|| {})
    }

    /// Takes room for a command, or else calls `full` under the lock.
    fn enter_or(self: &Arc<Self>, full: impl FnOnce()) -> Option<Permit> {
        let mut taken = self.lock();
        if *taken == self.max {
            full();
            return None;
        }
        *taken += 1;
        Some(Permit(Arc::clone(self)))
    }

    /// Waits until there is room, and takes it.
    pub(super) async fn enter_when_free(self: &Arc<Self>) -> Permit {
        poll_fn(|cx| {
            // Cloned and dropped without the lock, since both run code of the user.
            let waker = cx.waker().clone();
            let mut unused = None;
            let permit = self.enter_or(|| unused = self.waiters.register(waker));
            drop(unused);
            permit.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let woken = {
            let mut taken = self.0.lock();
            *taken -= 1;
            // Half of the room is free when the futures are woken, so that a crowd of them is woken
            // a few times and not once for each command. Each command ends, so half will be free.
            let wakes = *taken <= self.0.max / 2 && !self.0.waiters.is_empty();
            if wakes { self.0.waiters.take(usize::MAX) } else { Vec::new() }
        };
        each(woken, Waker::wake);
    }
}
