//! How many commands may be on their way to one value, and the futures that wait for room.
//!
//! Why one lock and not an atomic count: a command is boxed and has a channel for its result, so
//! the lock is a small part of its cost, and a future that finds no room registers under it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::values::contain::each;

/// The room for commands to one value. Commands that are sent and have not ended take it.
pub(super) struct Room {
    max: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    /// How many commands take room; at most `max`.
    taken: usize,
    /// The wakers of futures that wait for room, oldest first.
    waiters: VecDeque<Waker>,
}

/// The room that one command takes, until this is dropped.
pub(super) struct Permit(Arc<Room>);

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a command. `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Permit> {
        self.enter_or(&mut self.lock())
    }

    fn enter_or(self: &Arc<Self>, used: &mut Used) -> Option<Permit> {
        let has_room = used.taken < self.max;
        used.taken += usize::from(has_room);
        has_room.then(|| Permit(Arc::clone(self)))
    }

    /// Waits until there is room, and takes it.
    pub(super) async fn enter_when_free(self: &Arc<Self>) -> Permit {
        poll_fn(|cx| {
            // Cloned and dropped without the lock, since both run code of the user.
            let mut waker = Some(cx.waker().clone());
            let mut used = self.lock();
            let permit = self.enter_or(&mut used);
            let is_known = || used.waiters.back().is_some_and(|last| last.will_wake(cx.waker()));
            if permit.is_none() && !is_known() {
                used.waiters.extend(waker.take());
            }
            drop(used);
            permit.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let woken = {
            let mut used = self.0.lock();
            used.taken -= 1;
            // Half of the room is free when the futures are woken, so that a crowd of them is woken
            // a few times and not once for each command. Each command ends, so half will be free.
            let wakes = used.taken <= self.0.max / 2;
            if wakes { std::mem::take(&mut used.waiters) } else { VecDeque::new() }
        };
        each(woken, Waker::wake);
    }
}
