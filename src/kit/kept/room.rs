//! How many commands may be on their way to one value.

use std::sync::Arc;

use crate::link::sync::{AtomicU32, Ordering};

/// The room for commands to one value. Commands that are sent and have not ended take it.
pub(super) struct Room {
    max: u32,
    /// How many commands take room; at most `max`.
    taken: AtomicU32,
}

/// The room that one command takes, until this is dropped.
pub(super) struct Permit(Arc<Room>);

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        Arc::new(Self { max, taken: AtomicU32::new(0) })
    }

    /// Takes room for a command. `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Permit> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        while taken < self.max {
            let more = taken + 1;
            match self.taken.compare_exchange(taken, more, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Permit(Arc::clone(self))),
                Err(now) => taken = now,
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;

    #[test]
    fn room_that_two_threads_take_and_leave_is_counted() {
        check(|| {
            let room = Room::new(2);
            let other = Arc::clone(&room);
            let worker = thread::spawn(move || other.enter().expect("there is room for two"));
            let permits = [room.enter().expect("there is room for two"), worker.join().unwrap()];
            assert!(room.enter().is_none(), "both are counted");
            let workers = permits.map(|permit| thread::spawn(move || drop(permit)));
            for worker in workers {
                worker.join().unwrap();
            }
            let again = [room.enter(), room.enter()];
            assert!(again.iter().all(Option::is_some), "both have left");
        });
    }
}
