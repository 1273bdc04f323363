//! Where the timers lie that a thread has sent of late, so that the thread can cancel them by their
//! keys in their lane.
//!
//! The table has a place for each slot of the ring. A timer that takes the place of another one is
//! found instead of it, and the other one is cancelled by a request.
//!
//! Cost: a store for each timer that is sent; 16 bytes for each slot of a ring whose thread sends
//! timers with values or callbacks.

use super::Request;

/// A timer, and the position of its request.
type Place<K> = Option<(K, u64)>;

/// The positions of requests for timers in a ring, by the keys of the timers.
pub(super) struct Recent<R: Request>(Box<[Place<R::Key>]>);

impl<R: Request> Recent<R> {
    pub(super) fn new() -> Self {
        Self(Box::default())
    }

    /// Notes where the request of a timer lies, in a ring with `slots` slots.
    #[inline]
    pub(super) fn note(&mut self, key: R::Key, position: u64, slots: usize) {
        if self.0.is_empty() {
            self.reserve(slots);
        }
        let place = R::number_of(key) & (self.0.len() - 1);
        self.0[place] = Some((key, position));
    }

    #[cold]
    fn reserve(&mut self, slots: usize) {
        self.0 = vec![None; slots.next_power_of_two()].into_boxed_slice();
    }

    /// Where the request of a timer lies, if that is known and the thread has sent nothing about
    /// the timer since.
    #[inline]
    pub(super) fn take(&mut self, key: R::Key) -> Option<u64> {
        let place = R::number_of(key) & self.0.len().checked_sub(1)?;
        let (_, position) = self.0[place].take_if(|(known, _)| *known == key)?;
        Some(position)
    }
}
