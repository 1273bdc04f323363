//! How many commands may be on their way to one value, and the futures that wait for room.
//!
//! Why one lock and not an atomic count: a command is boxed and has a channel for its result, so
//! the lock is a small part of its cost, and a future that finds no room registers under it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::values::contain::{drop_each, each};

/// The room for commands to one value. Commands that are sent and have not ended take it.
pub(super) struct Room {
    max: usize,
    taken: Mutex<Taken>,
}

struct Taken {
    /// At most `max`.
    count: usize,
    /// The futures that wait for room, by their numbers.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

/// The room that one command takes, until this is dropped.
pub(super) struct Permit(Arc<Room>);

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken { count: 0, waiting: BTreeMap::new(), next: 0 });
        Arc::new(Self { max, taken })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a command. `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Permit> {
        let mut taken = self.lock();
        let has_room = taken.count < self.max;
        taken.count += usize::from(has_room);
        has_room.then(|| Permit(Arc::clone(self)))
    }

    /// Waits until there is room, and takes it.
    pub(super) async fn enter_when_free(self: &Arc<Self>) -> Permit {
        let mut waiter = Waiter { room: self, number: None };
        std::future::poll_fn(|cx| waiter.poll(cx)).await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let woken = {
            let mut taken = self.0.lock();
            taken.count -= 1;
            if taken.count <= self.0.max / 2 {
                // Half of the room is free when the futures are woken, so that a crowd of them is
                // woken a few times and not once for each command.
                std::mem::take(&mut taken.waiting)
            } else {
                // Closures that wait may keep more than half, so one future has this room.
                taken.waiting.pop_first().into_iter().collect()
            }
        };
        each(woken.into_values(), Waker::wake);
    }
}

/// A future that waits for room.
struct Waiter<'a> {
    room: &'a Arc<Room>,
    /// The number of its waker, which is gone when it has been woken. `None` before the first poll.
    number: Option<u64>,
}

impl Waiter<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Permit> {
        self.leave();
        // Cloned and dropped without the lock, since both run code of the user.
        let waker = cx.waker().clone();
        {
            let mut taken = self.room.lock();
            if taken.count == self.room.max {
                let number = taken.next;
                taken.next += 1;
                taken.waiting.insert(number, waker);
                self.number = Some(number);
                return Poll::Pending;
            }
            taken.count += 1;
        }
        Poll::Ready(Permit(Arc::clone(self.room)))
    }

    fn leave(&mut self) {
        let Some(number) = self.number.take() else { return };
        let left = self.room.lock().waiting.remove(&number);
        drop_each(left);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        let (left, next) = {
            let mut taken = self.room.lock();
            let left = taken.waiting.remove(&number);
            // It was woken and takes nothing: another future has the room.
            let has_room = left.is_none() && taken.count < self.room.max;
            (left, if has_room { taken.waiting.pop_first() } else { None })
        };
        drop_each(left);
        each(next.map(|(_, waker)| waker), Waker::wake);
    }
}
