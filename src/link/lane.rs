//! A lane joins one client to one shard: requests in, granted keys out, both over SPSC rings.
//!
//! Why keys are granted in advance: a client needs the timer's name at once. If it made names up
//! itself, the owner would have to look each one up in a map, which costs two thirds of the
//! throughput at a million timers. So the owner keeps the client supplied with keys of slots that
//! it has reserved for it. No key left means [`Refusal::Full`], decided before anything is sent.
//! Keys are used in the order in which they were granted, so a `Schedule` need not name its key: it
//! is the next one in the owner's queue, and what a dead client leaves is what is left in the
//! queue.
//!
//! A cancel or a reset cannot be refused for want of space. What does not fit into the ring waits
//! beside it, in order, behind a lock; until the owner has come for it, all that follows waits
//! there too, and schedules are refused. So the client need not come back for it: it may block for
//! an answer, sleep or be gone.
//!
//! Closing, by the owner, when it shuts down, dies, or lets go of a lane that was idle for long:
//!
//! ```text
//! client                                owner
//! ------                                -----
//! push onto the lane                    closed := true
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read closed                      ╱ ╲  drain the lane
//! true? wait for the ring's other end,  hand the ring's other end back
//!       take back what was not drained
//! ```
//!
//! Either the client sees that the lane is closed, or the drain sees what was pushed; where both
//! do, the request is gone from the ring and counts as accepted. So each request is either
//! accounted for by the owner or comes back to its sender. The fence is that of the bell.
//!
//! Cost: one at a time, a fence and two cache lines that travel; in chunks, a share of those.
//! `40 · capacity` bytes and more for large tasks.

use std::collections::VecDeque;
use std::sync::Arc;

use corewheel_shard::Tick;
use crossbeam_utils::{Backoff, CachePadded};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::gate::Gate;
use super::overflow::Overflow;
use super::sync::{AtomicU64, Ordering};
use super::wake_up::{Doorbell, Ring};
use crate::values::contain::drop_each;

/// What a lane needs to know of the requests that it carries.
pub(crate) trait Request {
    /// What the owner grants in advance, one for each request that needs one.
    type Key: Copy;

    /// Which of the granted keys the request uses up.
    fn keys(&self) -> Keys;
    /// As how many requests it counts against a turn's budget; at least 1.
    fn weight(&self) -> usize;
    /// The latest tick at which the owner must have received it. A request that may wait for ever,
    /// [`Tick::NEVER`], wakes no owner.
    fn needed_by(&self) -> Tick;
}

/// Which granted keys a request uses up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    None,
    /// The next one, which the owner passes on with the request.
    Next,
    /// As many of the next ones, which the request names itself.
    Named(usize),
}

/// Why a client cannot send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No key, or no space in the ring.
    Full,
    /// The owner has closed the lane.
    Closed,
}

/// What both ends and the statistics share.
pub(crate) struct LaneShared<R: Request> {
    gate: Gate<Consumer<R>>,
    /// Apart from the counts, which the client writes while the owner looks here.
    overflow: CachePadded<Overflow<R>>,
    /// Written by the client alone.
    refused: AtomicU64,
    rung: AtomicU64,
    saved: AtomicU64,
}

/// What a lane's client has counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LaneCounts {
    pub(crate) refused: u64,
    pub(crate) bells_rung: u64,
    pub(crate) bells_saved: u64,
}

impl LaneCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.bells_rung += other.bells_rung;
        self.bells_saved += other.bells_saved;
    }
}

impl<R: Request> LaneShared<R> {
    pub(crate) fn counts(&self) -> LaneCounts {
        LaneCounts {
            refused: self.refused.load(Ordering::Relaxed),
            bells_rung: self.rung.load(Ordering::Relaxed),
            bells_saved: self.saved.load(Ordering::Relaxed),
        }
    }
}

/// The client's end.
pub(crate) struct LaneSender<R: Request> {
    requests: Producer<R>,
    grants: Consumer<R::Key>,
    /// Keys used since the owner was last made to look.
    keys_used: usize,
    /// The most keys that the owner grants in advance.
    window: usize,
    shared: Arc<LaneShared<R>>,
    /// Tells the lanes of one client apart, which sets it.
    pub(crate) number: u64,
}

/// The owner's end.
pub(crate) struct LaneReceiver<R: Request> {
    requests: Consumer<R>,
    grants: Producer<R::Key>,
    /// The keys that the client has or has used in requests not yet drained, oldest first.
    granted: VecDeque<R::Key>,
    /// What was found beside the ring, or was begun, and is not applied yet; older than what is in
    /// the ring.
    overflowed: VecDeque<R>,
    shared: Arc<LaneShared<R>>,
    /// The last turn that found a request here.
    pub(crate) used_at: Tick,
}

/// A lane of `capacity` requests and at most `window` granted keys, whose client begins with these.
pub(crate) fn lane<R: Request>(
    capacity: usize,
    window: usize,
    keys: impl IntoIterator<Item = R::Key>,
) -> (LaneSender<R>, LaneReceiver<R>) {
    let (request_in, request_out) = RingBuffer::new(capacity);
    let (mut grant_in, grant_out) = RingBuffer::new(window);
    let mut granted = VecDeque::with_capacity(window);
    for key in keys.into_iter().take(window) {
        let pushed = grant_in.push(key);
        assert!(pushed.is_ok(), "the ring has room for a window of keys");
        granted.push_back(key);
    }
    let shared = Arc::new(LaneShared {
        gate: Gate::new(),
        overflow: CachePadded::new(Overflow::new()),
        refused: AtomicU64::new(0),
        rung: AtomicU64::new(0),
        saved: AtomicU64::new(0),
    });
    let sender = LaneSender {
        requests: request_in,
        grants: grant_out,
        keys_used: 0,
        window,
        shared: Arc::clone(&shared),
        number: 0,
    };
    let receiver = LaneReceiver {
        requests: request_out,
        grants: grant_in,
        granted,
        overflowed: VecDeque::new(),
        shared,
        used_at: Tick::ZERO,
    };
    (sender, receiver)
}

impl<R: Request> LaneSender<R> {
    /// Takes a granted key, if there is one and the ring has room for the request it is for, beside
    /// `staged` more. The request must follow.
    #[inline]
    pub(crate) fn take_key(&mut self, bell: &Doorbell, staged: usize) -> Result<R::Key, Refusal> {
        if self.slots() > staged
            && let Ok(key) = self.grants.pop()
        {
            self.keys_used += 1;
            return Ok(key);
        }
        Err(self.refuse(bell))
    }

    /// Takes as many granted keys as this for one request that uses all of them up, or none.
    pub(crate) fn take_keys(
        &mut self,
        count: usize,
        bell: &Doorbell,
    ) -> Result<Vec<R::Key>, Refusal> {
        if self.slots() > 0
            && let Ok(keys) = self.grants.read_chunk(count)
        {
            self.keys_used += count;
            return Ok(keys.into_iter().collect());
        }
        // Whatever is short, the owner must come by before there is more of it.
        Err(self.refuse(bell))
    }

    /// Sends a request for which [`take_key`](Self::take_key) has given the key. `Err` if the lane
    /// is closed and has not accepted it: it comes back, and nothing else does.
    #[inline]
    pub(crate) fn send(&mut self, request: R, bell: &Doorbell) -> Result<(), Vec<R>> {
        let needed_by = request.needed_by();
        let pushed = self.requests.push(request);
        assert!(pushed.is_ok(), "a key was taken without room for its request");
        self.ring(needed_by, bell);
        if self.is_closed() { self.take_back() } else { Ok(()) }
    }

    /// Sends all requests of `staged`, for which the keys were taken, in chunks and with one bell.
    /// What a closed lane did not accept stays in `staged`.
    pub(crate) fn send_all(&mut self, staged: &mut Vec<R>, bell: &Doorbell) {
        let needed_by = staged.iter().map(R::needed_by).min();
        let Some(mut needed_by) = needed_by else { return };
        let room = self.slots().min(staged.len());
        if let Ok(chunk) = self.requests.write_chunk_uninit(room) {
            chunk.fill_from_iter(staged.drain(..room));
        }
        // Cancels may have been staged beyond the room that there is.
        debug_assert!(
            staged.iter().all(|request| request.keys() == Keys::None),
            "keys were taken without room"
        );
        if !staged.is_empty() {
            self.shared.overflow.append(staged.drain(..));
            needed_by = Tick::ZERO;
        }
        self.ring(needed_by, bell);
        if self.is_closed()
            && let Err(back) = self.take_back()
        {
            *staged = back;
        }
    }

    /// Sends a cancel or a reset. `Err` if the lane is closed and has not accepted it: it comes
    /// back.
    pub(crate) fn send_always(&mut self, request: R, bell: &Doorbell) -> Result<(), Vec<R>> {
        debug_assert!(
            request.keys() == Keys::None,
            "a request with a key is sent where there is room"
        );
        let mut needed_by = request.needed_by();
        let unsent = if self.shared.overflow.is_empty() {
            self.requests.push(request).err().map(|PushError::Full(request)| request)
        } else {
            Some(request)
        };
        if let Some(request) = unsent {
            self.shared.overflow.append([request]);
            // The owner has work to do before there is room.
            needed_by = Tick::ZERO;
        }
        self.ring(needed_by, bell);
        if self.is_closed() { self.take_back() } else { Ok(()) }
    }

    fn is_closed(&self) -> bool {
        self.shared.gate.is_closed()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// Takes everything back that the owner of a closed lane has not accepted, as an error; oldest
    /// first.
    #[cold]
    fn take_back(&mut self) -> Result<(), Vec<R>> {
        let backoff = Backoff::new();
        let mut consumer = loop {
            // The owner is on its way between closing the gate and handing its end back.
            if let Some(consumer) = self.shared.gate.take() {
                break consumer;
            }
            backoff.snooze();
        };
        let mut back = Vec::new();
        while let Ok(request) = consumer.pop() {
            back.push(request);
        }
        // For the next call, which finds it empty.
        self.shared.gate.hand_back(consumer);
        back.extend(self.shared.overflow.take());
        if back.is_empty() { Ok(()) } else { Err(back) }
    }

    /// How many requests the ring has room for; none while older ones wait beside it.
    #[inline]
    fn slots(&self) -> usize {
        if self.shared.overflow.is_empty() { self.requests.slots() } else { 0 }
    }

    /// Issues the fence, and rings if the owner sleeps past `needed_by` or keys run low.
    #[inline]
    fn ring(&mut self, needed_by: Tick, bell: &Doorbell) {
        let runs_low = self.keys_used * 2 >= self.window;
        let needed_by = if runs_low { Tick::ZERO } else { needed_by };
        if runs_low {
            self.keys_used = 0;
        }
        match bell.ring_for(needed_by) {
            Ring::Rung => count(&self.shared.rung),
            Ring::Saved => count(&self.shared.saved),
        }
    }

    #[cold]
    fn refuse(&mut self, bell: &Doorbell) -> Refusal {
        count(&self.shared.refused);
        self.ring(Tick::ZERO, bell);
        if self.is_closed() { Refusal::Closed } else { Refusal::Full }
    }
}

impl<R: Request> LaneReceiver<R> {
    /// Whether anything waits to be drained, or the client is gone.
    pub(crate) fn has_news(&self) -> bool {
        self.waits() || self.requests.is_abandoned()
    }

    /// How many requests wait, without those beside the ring that the owner has not come for.
    pub(crate) fn depth(&self) -> usize {
        self.requests.slots() + self.overflowed.len()
    }

    /// Takes up to `max` requests off the lane, each with the key that it uses up, if it does.
    /// Returns how many.
    ///
    /// One that holds many commands counts as that many. `apply` is told how many it may do, and
    /// returns the rest of a request, which then comes first the next time.
    pub(crate) fn drain(
        &mut self,
        max: usize,
        mut apply: impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) -> usize {
        let mut left = max - self.drain_overflowed(max, &mut apply);
        if left == 0 {
            return max;
        }
        // In this order: what is in the ring when there is an overflow is older than it.
        let overflows = !self.shared.overflow.is_empty();
        let len = self.requests.slots().min(left);
        if let Ok(chunk) = self.requests.read_chunk(len) {
            for request in chunk {
                let key = match request.keys() {
                    Keys::None => None,
                    Keys::Next => {
                        let key = self.granted.pop_front();
                        Some(key.expect("a client uses only keys that it was granted"))
                    }
                    Keys::Named(count) => {
                        self.granted.drain(..count);
                        None
                    }
                };
                let weight = request.weight();
                if let Some(rest) = apply(request, key, left) {
                    self.overflowed.push_front(rest);
                    return max;
                }
                left -= weight;
                if left == 0 {
                    break;
                }
            }
        }
        if overflows && self.requests.is_empty() {
            self.overflowed = self.shared.overflow.take();
            left -= self.drain_overflowed(left, &mut apply);
        }
        max - left
    }

    /// Keys short of `window` that the client could be granted.
    pub(crate) fn wants_keys(&self, window: usize) -> usize {
        let held = self.granted.len();
        // Topped up by half windows, so that grants too travel in chunks.
        if held * 2 > window { 0 } else { window.saturating_sub(held).min(self.grants.slots()) }
    }

    pub(crate) fn grant(&mut self, key: R::Key) {
        let pushed = self.grants.push(key);
        assert!(pushed.is_ok(), "keys are granted only as far as there is room");
        self.granted.push_back(key);
    }

    /// Whether the client is gone and everything that it has sent is drained.
    pub(crate) fn is_finished(&self) -> bool {
        // In this order: what was sent last is visible once the other end is seen to be gone.
        self.requests.is_abandoned() && !self.waits()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// The owner's column of the closing, up to the drain.
    pub(crate) fn close(&self) {
        self.shared.gate.close();
    }

    /// Closes a lane that no shard has ever looked at: its client was granted nothing, and what it
    /// asked is dropped, which tells those who wait for an answer.
    pub(crate) fn turn_away(mut self) {
        self.close();
        let mut asked = Vec::new();
        self.drain_last(|request, _, _| {
            asked.push(request);
            None
        });
        self.hand_back();
        // It wakes the callers that wait for a reply, and these may at once want back what is in
        // the lane.
        drop_each(asked);
    }

    /// Drains all that a lane holds that has been closed.
    pub(crate) fn drain_last(
        &mut self,
        mut apply: impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) {
        while self.waits() {
            self.drain(usize::MAX, &mut apply);
        }
    }

    /// The rest of it: hands the ring's end back. Returns the keys that were not used.
    pub(crate) fn hand_back(self) -> VecDeque<R::Key> {
        self.shared.gate.hand_back(self.requests);
        self.granted
    }

    fn drain_overflowed(
        &mut self,
        max: usize,
        apply: &mut impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) -> usize {
        let mut left = max;
        while left > 0
            && let Some(request) = self.overflowed.pop_front()
        {
            let weight = request.weight();
            // What is beside the ring is never a schedule, or one that has its keys.
            if let Some(rest) = apply(request, None, left) {
                self.overflowed.push_front(rest);
                return max;
            }
            left -= weight;
        }
        max - left
    }

    /// Whether anything is left to be drained.
    fn waits(&self) -> bool {
        !self.requests.is_empty() || !self.overflowed.is_empty() || !self.shared.overflow.is_empty()
    }
}

/// Adds one to a counter that only this thread writes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
