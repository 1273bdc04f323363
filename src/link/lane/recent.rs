//! Where the timers lie that a thread has sent of late, so that the thread can cancel them by their
//! keys in their lane.
//!
//! The table has a place for each slot of the ring. A timer that takes the place of another one is
//! found instead of it, and the other one is cancelled by a request.
//!
//! Cost: a store for each timer that is sent; 16 bytes for each slot of a ring whose thread sends
//! timers with values or callbacks.

use super::{About, Request};

/// A timer, and the position of its request.
type Place<K> = Option<(K, u64)>;

/// The positions of requests for timers in a ring, by the keys of the timers.
pub(super) struct Recent<R: Request> {
    places: Box<[Place<R::Key>]>,
    /// The first position that counts.
    from: u64,
}

impl<R: Request> Recent<R> {
    pub(super) fn new() -> Self {
        Self { places: Box::default(), from: 0 }
    }

    /// Notes where the request of a timer lies, in a ring with `slots` slots.
    #[inline]
    pub(super) fn note(&mut self, key: R::Key, position: u64, slots: usize) {
        if self.places.is_empty() {
            self.reserve(slots);
        }
        let place = R::number_of(key) & (self.places.len() - 1);
        self.places[place] = Some((key, position));
    }

    #[cold]
    fn reserve(&mut self, slots: usize) {
        self.places = vec![None; slots.next_power_of_two()].into_boxed_slice();
    }

    /// Where the request of a timer lies, if that is known and the thread has sent nothing about
    /// the timer since.
    #[inline]
    pub(super) fn take(&mut self, key: R::Key) -> Option<u64> {
        let place = R::number_of(key) & self.places.len().checked_sub(1)?;
        let (_, position) = self.places[place].take_if(|(known, _)| *known == key)?;
        (position >= self.from).then_some(position)
    }

    /// The thread sends a request about timers, at `position`. The timers must be there when it
    /// comes, as its reply and the counts are about them.
    #[inline]
    pub(super) fn forget(&mut self, timers: About<R::Key>, position: u64) {
        match timers {
            About::One(key) => drop(self.take(key)),
            About::Many => self.from = position,
        }
    }
}
