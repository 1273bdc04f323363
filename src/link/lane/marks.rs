//! State words: how a request that lies in a lane is cancelled without another request.
//!
//! A word belongs to each slot of a lane's ring. It holds the position of a request, counted from
//! the ring's first request, and what became of the request:
//!
//! ```text
//! thread                            owner
//! ------                            -----
//! the ring has room?                take the request out
//! word := ARMED                     word := TAKEN (swap)
//! push the request                  was it CANCELLED?
//! to cancel it:                       drop the request
//!   word: ARMED -> CANCELLED        release the slot
//!     (compare and exchange)
//!   won? ring the doorbell          about to sleep: is it CANCELLED?
//!   lost? send a cancel
//! ```
//!
//! The word decides: either the compare-and-exchange comes before the swap, and the owner drops the
//! request, or it fails, and the timer is the owner's. The thread stores a word only where the
//! ring has room for its request, so after the owner has released the slot of the request before,
//! which is after the swap. A cancel that comes after its request is gone finds another position in
//! the word, as positions do not come twice.
//!
//! An owner that falls asleep looks at the words after its fence, and the thread issues its fence
//! after it has changed a word, see [`super::super::wake_up`]: either the owner finds the request
//! cancelled, or the thread finds that the owner sleeps.
//!
//! A request that waits beside the ring has no word, and cannot be cancelled there.
//!
//! Relaxed throughout. The push of the request publishes the word. The word orders nothing else:
//! the owner has the request from the ring, and a read-modify-write sees the latest value of its
//! word.
//!
//! Why not a flag in the request itself: safe code cannot reach an element of a ring, and a shared
//! flag for each request would be an allocation.
//!
//! Cost: a store for the thread and a swap for the owner; 8 bytes for each slot of the ring.

use std::sync::Arc;

use super::super::sync::{AtomicWord, Ordering};

const ARMED: u64 = 0;
const CANCELLED: u64 = 1;
const TAKEN: u64 = 2;

fn word(position: u64, state: u64) -> u64 {
    position << 2 | state
}

/// The state words of one ring, for one of its two ends.
#[derive(Clone)]
pub(crate) struct Words(Arc<[AtomicWord]>);

impl Words {
    /// The words of a ring with at most `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let words = (0..slots.next_power_of_two()).map(|_| AtomicWord::new(word(0, TAKEN)));
        Self(words.collect())
    }

    #[inline]
    fn at(&self, position: u64) -> &AtomicWord {
        // Their number is a power of two.
        &self.0[position as usize & (self.0.len() - 1)]
    }

    /// The thread's column. The ring must have room for the request.
    #[inline]
    pub(super) fn arm(&self, position: u64) {
        let state = self.at(position);
        state.store(word(position, ARMED), Ordering::Relaxed);
    }

    /// The owner's column, before it releases the slot. Returns whether the request is cancelled.
    #[inline]
    pub(super) fn take(&self, position: u64) -> bool {
        let state = self.at(position);
        let was = state.swap(word(position, TAKEN), Ordering::Relaxed);
        assert_eq!(was >> 2, position, "a state word is that of the request in its slot");
        was == word(position, CANCELLED)
    }

    /// The owner's column, before it sleeps.
    #[inline]
    pub(super) fn is_cancelled(&self, position: u64) -> bool {
        let state = self.at(position);
        // Relaxed: the fences of the doorbell order it.
        state.load(Ordering::Relaxed) == word(position, CANCELLED)
    }

    /// The thread's column, to cancel. False if the owner has the request, or had it.
    #[inline]
    pub(super) fn cancel(&self, position: u64) -> bool {
        let (armed, cancelled) = (word(position, ARMED), word(position, CANCELLED));
        let state = self.at(position);
        state.compare_exchange(armed, cancelled, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn cancel_of_an_earlier_round_changes_no_later_request() {
        let words = Words::new(3);
        words.arm(0);
        assert!(!words.take(0));
        words.arm(4);
        assert!(!words.cancel(0), "position 4 has the same word");
        assert!(!words.take(4));
    }

    #[test]
    fn request_is_cancelled_or_taken_and_never_both() {
        let words = Words::new(1);
        words.arm(7);
        assert!(words.cancel(7));
        assert!(!words.cancel(7));
        assert!(words.take(7));
        assert!(!words.cancel(7));
    }

    #[test]
    #[should_panic(expected = "a state word is that of the request in its slot")]
    fn word_of_another_request_is_not_taken() {
        let words = Words::new(2);
        words.arm(1);
        words.take(3);
    }
}
