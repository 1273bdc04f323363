//! The ring of a lane with the [state words](super::marks) of its requests. A request that uses a
//! key has one, so that it can be cancelled where it lies.
//!
//! Both ends count the requests of the ring, so a request need not carry its position.

use super::super::sync::{Consumer, Producer, RingBuffer, any_of};
use super::Request;
use super::marks::Words;

/// Makes a ring with `slots` slots.
pub(super) fn ring<R: Request>(slots: usize) -> (RingSender<R>, RingReceiver<R>) {
    let (producer, consumer) = RingBuffer::new(slots);
    let words = Words::new(slots);
    let sender = RingSender { requests: producer, words: words.clone(), position: 0 };
    (sender, RingReceiver { requests: consumer, words, position: 0 })
}

/// The thread's end of a ring.
pub(super) struct RingSender<R> {
    requests: Producer<R>,
    words: Words,
    /// How many requests were pushed.
    position: u64,
}

impl<R: Request> RingSender<R> {
    /// How many requests the ring has room for.
    #[inline]
    pub(super) fn slots(&self) -> usize {
        self.requests.slots()
    }

    /// Whether the ring has no room for a request.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.requests.is_full()
    }

    /// Pushes a request. The caller has found room: until then the word may be that of an earlier
    /// request.
    #[inline(always)]
    pub(super) fn push(&mut self, request: R) {
        if request.uses_key() {
            self.words.arm(self.position);
        }
        self.position += 1;
        let pushed = self.requests.push(request);
        debug_assert!(pushed.is_ok(), "there is room");
    }

    /// The position of the next request.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The words of the ring's requests.
    #[inline]
    pub(super) fn words(&self) -> &Words {
        &self.words
    }
}

/// The owner's end of a ring.
pub(crate) struct RingReceiver<R> {
    requests: Consumer<R>,
    words: Words,
    /// How many requests were taken out.
    position: u64,
}

impl<R: Request> RingReceiver<R> {
    /// How many requests the ring holds.
    #[inline]
    pub(super) fn slots(&self) -> usize {
        self.requests.slots()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether the thread's end is dropped.
    pub(super) fn is_abandoned(&self) -> bool {
        self.requests.is_abandoned()
    }

    /// Takes up to `max` requests out, oldest first, until `each` breaks. `each` gets the place of
    /// a request, which it takes, and whether the request is cancelled. The slots are released at
    /// the end.
    ///
    /// Why not the request itself: it would be moved in pieces as its kind is looked at, and the
    /// next move of it would wait for them.
    #[inline]
    pub(super) fn take(&mut self, max: usize, mut each: impl FnMut(&mut Option<R>, bool)) {
        let len = self.requests.slots().min(max);
        let Ok(chunk) = self.requests.read_chunk(len) else { return };
        let mut requests = chunk.into_iter();
        loop {
            let mut place = requests.next();
            let Some(request) = &place else { return };
            let position = self.position;
            self.position += 1;
            let is_cancelled = request.uses_key() && self.words.take(position);
            each(&mut place, is_cancelled);
        }
    }

    /// Whether a request that the ring holds has a property. `is_so` gets the request and whether
    /// it is cancelled.
    pub(super) fn holds_any(&mut self, mut is_so: impl FnMut(&R, bool) -> bool) -> bool {
        let Self { requests, words, position } = self;
        let (len, mut next) = (requests.slots(), *position);
        let is_so = |request: &R| {
            let is_cancelled = request.uses_key() && words.is_cancelled(next);
            next += 1;
            is_so(request, is_cancelled)
        };
        // The chunk is not committed, so the requests stay in the ring.
        requests.read_chunk(len).is_ok_and(|chunk| any_of(&chunk, is_so))
    }
}
