//! The owner's end of a lane.

use std::collections::VecDeque;
use std::sync::Arc;

use corewheel_shard::Tick;

use super::super::overflow::Waiting;
use super::super::sync::{Ordering, Producer};
use super::ring::RingReceiver;
use super::{Exhausted, LaneShared, Request, Window};
use crate::values::contain::drop_each;

/// The most requests of a lane that an owner looks at before it falls asleep. Beside more requests
/// it takes another turn.
const LOOKED_AT_MAX: usize = 1_024;

/// What an owner gets with a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<K> {
    /// The key that the request uses up, if it uses the next one.
    pub(crate) key: Option<K>,
    /// Whether the request was cancelled in the lane. The owner must drop it and take its key back.
    pub(crate) is_cancelled: bool,
}

/// The owner's end.
#[allow(clippy::struct_excessive_bools, reason = "what happened in the last turn, each by itself")]
pub(crate) struct LaneReceiver<R: Request> {
    requests: RingReceiver<R>,
    grants: Producer<R::Key>,
    /// The keys that the thread holds or has used in requests not yet received, oldest first.
    granted: VecDeque<R::Key>,
    /// Requests taken from the overflow. They are older than those in the ring.
    overflowed: VecDeque<R>,
    window: Window,
    /// How many keys the thread held before the last turn.
    keys_before: usize,
    /// How many keys the requests have used that the last turn received.
    keys_used: usize,
    /// Whether the thread was refused for want of a key since the turn before the last.
    lacks_key: bool,
    /// Whether the last turn could not grant all keys that the thread should have.
    is_short: bool,
    /// Whether the owner has granted keys since the last [`shrink`](Self::shrink).
    was_granted: bool,
    shared: Arc<LaneShared<R>>,
    /// When a turn last received a request from this lane, or took the lane over.
    pub(crate) used_at: Tick,
    /// Whether the last turn has received a request from this lane.
    pub(crate) is_in_use: bool,
}

impl<R: Request> LaneReceiver<R> {
    pub(super) fn new(
        requests: RingReceiver<R>,
        grants: Producer<R::Key>,
        window: Window,
        shared: Arc<LaneShared<R>>,
    ) -> Self {
        Self {
            requests,
            grants,
            granted: VecDeque::new(),
            overflowed: VecDeque::new(),
            window,
            keys_before: 0,
            keys_used: 0,
            lacks_key: false,
            is_short: false,
            was_granted: false,
            shared,
            used_at: Tick::ZERO,
            is_in_use: false,
        }
    }

    /// Whether the lane holds requests, or the thread is gone.
    pub(crate) fn has_news(&self) -> bool {
        self.has_requests() || self.requests.is_abandoned()
    }

    /// Whether the lane holds news that cannot wait until the tick `until`. An owner that falls
    /// asleep until then looks here after its fence: what cannot be seen yet wakes it. Requests
    /// that may wait for a while, and cancelled ones, may wait until `soon`.
    ///
    /// When a thread has used half of its keys, or many, or fills its ring, it wakes only an owner
    /// that sleeps. So a lane half as full as that is news as well.
    pub(crate) fn has_news_before(&mut self, until: Tick, soon: Tick) -> bool {
        if !self.has_news() {
            return false;
        }
        let waiting = self.requests.slots();
        let is_filling = waiting * 2 >= self.window.size();
        is_filling
            || waiting > LOOKED_AT_MAX
            || self.has_requests_beside()
            || self.requests.is_abandoned()
            || self.is_needed_before(until, soon)
    }

    /// Whether the ring holds a request that cannot wait until the tick `until`.
    fn is_needed_before(&mut self, until: Tick, soon: Tick) -> bool {
        self.requests.holds_any(|request, is_cancelled| {
            let needed_by = request.needed_by().unwrap_or(soon);
            needed_by < until || is_cancelled && soon < until
        })
    }

    /// How many requests wait.
    pub(crate) fn depth(&self) -> usize {
        let beside = self.overflowed.len() + self.shared.beside.overflow.len();
        self.requests.slots() + beside
    }

    /// Receives up to `max` requests, and returns how many. `apply` gets the place of each request,
    /// which it takes.
    pub(crate) fn receive(
        &mut self,
        max: usize,
        apply: impl FnMut(&mut Option<R>, Arrival<R::Key>),
    ) -> usize {
        self.keys_before = self.granted.len();
        let received = self.receive_some(max, apply);
        self.keys_used = self.keys_before - self.granted.len();
        received
    }

    #[inline]
    fn receive_some(
        &mut self,
        max: usize,
        mut apply: impl FnMut(&mut Option<R>, Arrival<R::Key>),
    ) -> usize {
        let mut left = max - self.receive_overflowed(max, &mut apply);
        if left == 0 {
            return max;
        }
        // The order matters: if there is an overflow now, it is newer than the requests in the
        // ring.
        let overflows = !self.shared.beside.overflow.is_empty();
        let Self { requests, granted, .. } = self;
        requests.take(left, |place, is_cancelled| {
            let Some(request) = place else { return };
            let key = next_key(granted, request);
            apply(place, Arrival { key, is_cancelled });
            left -= 1;
        });
        if overflows && self.requests.is_empty() {
            let Waiting { requests, ring } = self.shared.beside.overflow.take();
            self.overflowed = requests;
            if let Some(ring) = ring {
                self.requests = ring;
            }
            left -= self.receive_overflowed(left, &mut apply);
        }
        max - left
    }

    /// How many keys the owner should grant so that the thread has its window of keys again; 0
    /// while it has more than half of them. The window grows first if the thread needs more.
    #[inline]
    pub(crate) fn wants_keys(&mut self) -> usize {
        // Relaxed: the flag orders nothing.
        let lacks_key = &self.shared.beside.lacks_key;
        self.lacks_key = lacks_key.load(Ordering::Relaxed);
        if self.lacks_key {
            lacks_key.store(false, Ordering::Relaxed);
        }
        if self.lacks_key || self.keys_used >= self.window.size() {
            self.grow();
        }
        self.is_short = false;
        let held = self.granted.len();
        // The owner grants half a window at a time, so that keys travel in chunks too.
        if held * 2 > self.window.size() {
            return 0;
        }
        // The thread has used keys of a window that was half full at least.
        let uses_window = self.keys_used > 0 && self.keys_before * 2 >= self.window.size();
        if uses_window && self.window.grow_to_share() {
            self.publish_window();
        }
        self.window.size().saturating_sub(held).min(self.grants.slots())
    }

    /// Whether the thread has no key, and was refused for want of one since the last turn.
    pub(crate) fn lacks_key(&self) -> bool {
        self.lacks_key && self.granted.is_empty()
    }

    /// The keys that the thread holds or has used in requests not yet received.
    pub(crate) fn keys_held(&self) -> usize {
        self.granted.len()
    }

    /// Whether the thread holds a key with a property.
    pub(crate) fn holds_any(&self, is_so: impl Fn(&R::Key) -> bool) -> bool {
        self.granted.iter().any(is_so)
    }

    /// Whether the thread holds keys, no request waits, and the last turn received none or was
    /// before `tick`.
    pub(crate) fn is_idle(&self, tick: Tick) -> bool {
        let is_in_use = self.is_in_use && self.used_at == tick;
        !self.granted.is_empty() && !is_in_use && !self.has_requests()
    }

    /// Notes that the owner could not grant all keys that the thread should have.
    pub(crate) fn set_short(&mut self) {
        self.is_short = true;
    }

    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Sets whether the owner has no key left for this thread. A thread without a key is refused
    /// with `Full` or `Reserved` then, and with `Busy` otherwise.
    pub(crate) fn set_exhausted(&self, exhausted: Option<Exhausted>) {
        // Relaxed: the word orders nothing, and a thread that reads the old value is refused with
        // the kind that was true a moment ago.
        let exhausted = exhausted.map_or(0, Exhausted::pack);
        if self.shared.exhausted.load(Ordering::Relaxed) != exhausted {
            self.shared.exhausted.store(exhausted, Ordering::Relaxed);
        }
    }

    /// Halves the window of a thread that got no key since the last call.
    pub(crate) fn shrink(&mut self) {
        if !std::mem::take(&mut self.was_granted) {
            self.window.shrink();
            self.publish_window();
        }
    }

    /// Makes the window larger if it is too small for what the thread needed of late.
    #[cold]
    fn grow(&mut self) {
        let size = self.window.size();
        // A new thread that has not got its keys yet needs no larger window.
        if self.keys_used >= size || self.keys_before * 2 >= size {
            self.window.grow_to(size.saturating_mul(2));
        }
        if self.window.size() > size {
            self.publish_window();
        }
    }

    fn publish_window(&self) {
        self.shared.beside.window.store(self.window.size() as u64, Ordering::Relaxed);
    }

    pub(crate) fn grant(&mut self, key: R::Key) {
        let pushed = self.grants.push(key);
        assert!(pushed.is_ok(), "keys are granted only as far as there is room");
        self.granted.push_back(key);
        self.was_granted = true;
    }

    /// Whether the thread is gone and all of its requests are received.
    pub(crate) fn is_finished(&self) -> bool {
        // The order matters: an owner that sees that the thread is gone also sees its last request.
        self.requests.is_abandoned() && !self.has_requests()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// The owner's column of the closing: closes the lane, and receives all requests that it holds.
    /// The owner must call [`hand_back`](Self::hand_back) next.
    pub(crate) fn close(&mut self, mut apply: impl FnMut(&mut Option<R>, Arrival<R::Key>)) {
        self.shared.gate.close();
        while self.has_requests() {
            self.receive(usize::MAX, &mut apply);
        }
    }

    /// Closes a lane from which no shard has received. Its thread has no keys. The requests are
    /// dropped, so that callers that wait for a reply get an error.
    pub(crate) fn close_unread(mut self) {
        let mut requests = Vec::new();
        self.close(|place, _| requests.extend(place.take()));
        self.hand_back();
        // After `hand_back`: the drop of a reply wakes its caller, and code in that waker may at
        // once take back requests of this lane.
        drop_each(requests);
    }

    /// Hands the owner's end of the ring to the thread of a closed lane. Returns the keys that the
    /// thread has not used.
    pub(crate) fn hand_back(self) -> VecDeque<R::Key> {
        self.shared.gate.hand_back(self.requests);
        self.granted
    }

    fn receive_overflowed(
        &mut self,
        max: usize,
        apply: &mut impl FnMut(&mut Option<R>, Arrival<R::Key>),
    ) -> usize {
        let count = max.min(self.overflowed.len());
        for request in self.overflowed.drain(..count) {
            let key = next_key(&mut self.granted, &request);
            apply(&mut Some(request), Arrival { key, is_cancelled: false });
        }
        count
    }

    /// Whether the lane holds requests.
    fn has_requests(&self) -> bool {
        self.has_requests_beside() || !self.requests.is_empty()
    }

    /// Whether the lane holds requests that are not in the ring.
    fn has_requests_beside(&self) -> bool {
        !self.overflowed.is_empty() || !self.shared.beside.overflow.is_empty()
    }
}

/// Takes the key that a request uses up, if it uses one.
#[inline]
fn next_key<R: Request>(granted: &mut VecDeque<R::Key>, request: &R) -> Option<R::Key> {
    request
        .uses_key()
        .then(|| granted.pop_front().expect("a thread uses only keys that it was granted"))
}
