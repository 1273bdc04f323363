//! A lane joins one client to one shard: requests in, granted keys out, both over SPSC rings.
//!
//! Why keys are granted in advance: a client needs the timer's key at once. If the client chose the
//! key itself, the owner would have to look each key up in a map, which costs two thirds of the
//! throughput at a million timers. So the owner reserves slots for the client and keeps it supplied
//! with their keys. A client without a key is refused before it sends anything: with
//! [`Refusal::Full`] if the owner has no key to grant, else with [`Refusal::Busy`]. The client uses
//! keys in the order in which they were granted, so a `Schedule` need not carry its key: it is the
//! next key in the owner's queue. When a client is gone, the queue holds the keys that it has not
//! used.
//!
//! A cancel or a reset cannot be refused for lack of space. A request that does not fit into the
//! ring goes into the [overflow](super::overflow) beside it. Until the owner has taken the
//! overflow, all later requests go there too, and schedules are refused. So the client has nothing
//! left to do: it may block for a reply, sleep or be dropped.
//!
//! The owner closes a lane when it shuts down, when it dies, and when the lane was idle for long:
//!
//! ```text
//! client                                owner
//! ------                                -----
//! push onto the lane                    closed := true
//! fence(SeqCst)                    ╲ ╱  fence(SeqCst)
//! read closed                      ╱ ╲  receive all requests
//! true? wait for the owner's end,       hand the owner's end back
//!       take back all other requests
//! ```
//!
//! Either the client sees that the lane is closed, or the owner receives the pushed request. If
//! both happen, the request is no longer in the ring and counts as accepted. So each request is
//! either accepted by the owner or comes back to its sender. The fence is that of the wake-up
//! protocol.
//!
//! Cost: for a single request a fence and two cache lines that travel between cores; for a chunk of
//! requests as much together. `40 · capacity` bytes, and more for large payloads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use corewheel_shard::Tick;
use crossbeam_utils::CachePadded;

use super::gate::Gate;
use super::overflow::Overflow;
use super::sync::{AtomicBool, Backoff, Consumer, Ordering, Producer, PushError, RingBuffer};
use super::wake_up::{Doorbell, WakeUp};
use crate::values::contain::drop_each;
use crate::values::refused::RefusedKind;

/// A request that a lane can carry.
pub(crate) trait Request {
    /// A key that the owner grants in advance.
    type Key: Copy;

    /// Which of the granted keys the request uses up.
    fn keys(&self) -> Keys;
    /// The number of requests for which it counts against a turn's budget; at least 1.
    fn weight(&self) -> usize;
    /// The latest tick at which the owner must have received it. [`Tick::NEVER`] for a request that
    /// may wait for ever and wakes no owner.
    fn needed_by(&self) -> Tick;
}

/// Which granted keys a request uses up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    None,
    /// The next key. The owner passes it on with the request.
    Next,
    /// This many of the next keys. The request contains them.
    Named(usize),
}

/// Why a client cannot send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The client has no key, and the owner has none to grant.
    Full,
    /// The ring is full, or the owner has keys to grant but has not granted them yet.
    Busy,
    /// The owner has closed the lane.
    Closed,
}

impl Refusal {
    /// The kind of the error that the caller gets.
    pub(crate) fn kind(self) -> RefusedKind {
        match self {
            Self::Full => RefusedKind::Full,
            Self::Busy => RefusedKind::Busy,
            Self::Closed => RefusedKind::Closed,
        }
    }
}

/// The part of a lane that both ends and the statistics share.
pub(crate) struct LaneShared<R: Request> {
    gate: Gate<Consumer<R>>,
    /// On cache lines of its own, since the client writes the counts while the owner reads here.
    overflow: CachePadded<Overflow<R>>,
    /// Only the client writes these three counts. They order nothing, so the model checker need not
    /// see them.
    refused: AtomicU64,
    wakeups_made: AtomicU64,
    wakeups_saved: AtomicU64,
    /// Whether the owner ran out of keys when it last granted some. Only the owner writes it.
    is_exhausted: AtomicBool,
}

/// The counts of a lane's client.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LaneCounts {
    pub(crate) refused: u64,
    pub(crate) wakeups_made: u64,
    pub(crate) wakeups_saved: u64,
}

impl LaneCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.wakeups_made += other.wakeups_made;
        self.wakeups_saved += other.wakeups_saved;
    }
}

impl<R: Request> LaneShared<R> {
    pub(crate) fn counts(&self) -> LaneCounts {
        LaneCounts {
            refused: self.refused.load(Ordering::Relaxed),
            wakeups_made: self.wakeups_made.load(Ordering::Relaxed),
            wakeups_saved: self.wakeups_saved.load(Ordering::Relaxed),
        }
    }
}

/// The client's end.
pub(crate) struct LaneSender<R: Request> {
    requests: Producer<R>,
    grants: Consumer<R::Key>,
    /// Keys used since this end last woke the owner because keys ran low.
    keys_used: usize,
    /// The most keys that the owner grants in advance.
    window: usize,
    shared: Arc<LaneShared<R>>,
    /// Distinguishes the lanes of one client. The client sets it.
    pub(crate) number: u64,
}

/// The owner's end.
pub(crate) struct LaneReceiver<R: Request> {
    requests: Consumer<R>,
    grants: Producer<R::Key>,
    /// The keys that the client holds or has used in requests not yet received, oldest first.
    granted: VecDeque<R::Key>,
    /// Requests taken from the overflow, and the rest of a bulk request, that are not applied yet.
    /// They are older than those in the ring.
    overflowed: VecDeque<R>,
    shared: Arc<LaneShared<R>>,
    /// When a turn last received a request from this lane, or took the lane over.
    pub(crate) used_at: Tick,
}

/// Makes a lane of `capacity` requests and at most `window` granted keys, whose client begins with
/// `keys`.
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
        wakeups_made: AtomicU64::new(0),
        wakeups_saved: AtomicU64::new(0),
        is_exhausted: AtomicBool::new(false),
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
    /// Takes a granted key, if there is a key and the ring has room for its request beside `staged`
    /// other requests. The caller must send the request.
    #[inline]
    pub(crate) fn take_key(
        &mut self,
        doorbell: &Doorbell,
        staged: usize,
    ) -> Result<R::Key, Refusal> {
        let has_room = self.slots() > staged;
        if has_room && let Ok(key) = self.grants.pop() {
            self.keys_used += 1;
            return Ok(key);
        }
        Err(self.refuse(has_room, doorbell))
    }

    /// Takes `count` granted keys for one request that uses all of them up. Takes none on an error.
    pub(crate) fn take_keys(
        &mut self,
        count: usize,
        doorbell: &Doorbell,
    ) -> Result<Vec<R::Key>, Refusal> {
        let has_room = self.slots() > 0;
        if has_room && let Ok(keys) = self.grants.read_chunk(count) {
            self.keys_used += count;
            return Ok(keys.into_iter().collect());
        }
        // Only a turn of the owner makes room in the ring or grants keys.
        Err(self.refuse(has_room, doorbell))
    }

    /// Sends a request whose key [`take_key`](Self::take_key) has returned. `Err` with this request
    /// alone if the lane is closed and has not accepted it.
    #[inline]
    pub(crate) fn send(&mut self, request: R, doorbell: &Doorbell) -> Result<(), Vec<R>> {
        let needed_by = request.needed_by();
        let pushed = self.requests.push(request);
        assert!(pushed.is_ok(), "a key was taken without room for its request");
        self.wake_owner(needed_by, doorbell);
        if self.is_closed() { self.take_back() } else { Ok(()) }
    }

    /// Sends all requests of `staged`, whose keys were taken, in chunks and with at most one
    /// wake-up. Requests that a closed lane has not accepted stay in `staged`.
    pub(crate) fn send_all(&mut self, staged: &mut Vec<R>, doorbell: &Doorbell) {
        let needed_by = staged.iter().map(R::needed_by).min();
        let Some(mut needed_by) = needed_by else { return };
        let room = self.slots().min(staged.len());
        if let Ok(chunk) = self.requests.write_chunk_uninit(room) {
            chunk.fill_from_iter(staged.drain(..room));
        }
        // The caller may have staged more cancels than fit into the ring.
        debug_assert!(
            staged.iter().all(|request| request.keys() == Keys::None),
            "keys were taken without room"
        );
        if !staged.is_empty() {
            self.shared.overflow.append(staged.drain(..));
            needed_by = Tick::ZERO;
        }
        self.wake_owner(needed_by, doorbell);
        if self.is_closed()
            && let Err(back) = self.take_back()
        {
            *staged = back;
        }
    }

    /// Sends a cancel or a reset. `Err` with the request if the lane is closed and has not accepted
    /// it.
    pub(crate) fn send_always(&mut self, request: R, doorbell: &Doorbell) -> Result<(), Vec<R>> {
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
            // There is no room before the owner has received requests.
            needed_by = Tick::ZERO;
        }
        self.wake_owner(needed_by, doorbell);
        if self.is_closed() { self.take_back() } else { Ok(()) }
    }

    /// Whether the owner has closed the lane.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.gate.is_closed()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// Takes all requests back that the owner of a closed lane has not accepted. `Err` with them,
    /// oldest first, if there are any.
    #[cold]
    fn take_back(&mut self) -> Result<(), Vec<R>> {
        let backoff = Backoff::new();
        let mut consumer = loop {
            // The owner has closed the gate and is about to hand its end back.
            if let Some(consumer) = self.shared.gate.take() {
                break consumer;
            }
            backoff.snooze();
        };
        let mut back = Vec::new();
        while let Ok(request) = consumer.pop() {
            back.push(request);
        }
        // The next call takes it again and finds the ring empty.
        self.shared.gate.hand_back(consumer);
        back.extend(self.shared.overflow.take());
        if back.is_empty() { Ok(()) } else { Err(back) }
    }

    /// How many requests the ring has room for; 0 while older requests wait in the overflow.
    #[inline]
    fn slots(&self) -> usize {
        if self.shared.overflow.is_empty() { self.requests.slots() } else { 0 }
    }

    /// Issues the fence, and wakes the owner if it sleeps past `needed_by`, or if it sleeps and
    /// keys run low.
    #[inline]
    fn wake_owner(&mut self, needed_by: Tick, doorbell: &Doorbell) {
        let runs_low = self.keys_used * 2 >= self.window;
        let needed_by = if runs_low { Tick::ZERO } else { needed_by };
        if runs_low {
            self.keys_used = 0;
        }
        match doorbell.wake_for(needed_by) {
            WakeUp::Made => count(&self.shared.wakeups_made),
            WakeUp::Saved => count(&self.shared.wakeups_saved),
        }
    }

    /// Counts a refusal, wakes the owner, and returns the reason.
    #[cold]
    fn refuse(&mut self, is_short_of_keys: bool, doorbell: &Doorbell) -> Refusal {
        count(&self.shared.refused);
        self.wake_owner(Tick::ZERO, doorbell);
        if self.is_closed() {
            Refusal::Closed
        } else if is_short_of_keys && self.shared.is_exhausted.load(Ordering::Relaxed) {
            Refusal::Full
        } else {
            Refusal::Busy
        }
    }
}

impl<R: Request> LaneReceiver<R> {
    /// Whether the lane holds requests, or the client is gone.
    pub(crate) fn has_news(&self) -> bool {
        self.has_requests() || self.requests.is_abandoned()
    }

    /// How many requests wait, without those in the overflow that the owner has not taken.
    pub(crate) fn depth(&self) -> usize {
        self.requests.slots() + self.overflowed.len()
    }

    /// Receives up to `max` requests, and returns how many. `apply` gets each request, the key that
    /// it uses up if it uses the next one, and how many commands it may do.
    ///
    /// A bulk request counts as many requests as it has commands. If `apply` returns the rest of
    /// it, the next call begins with that rest.
    pub(crate) fn receive(
        &mut self,
        max: usize,
        mut apply: impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) -> usize {
        let mut left = max - self.receive_overflowed(max, &mut apply);
        if left == 0 {
            return max;
        }
        // The order matters: if there is an overflow now, it is newer than the requests in the
        // ring.
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
            left -= self.receive_overflowed(left, &mut apply);
        }
        max - left
    }

    /// How many keys the owner should grant so that the client has `window` keys again; 0 while it
    /// has more than half of them.
    pub(crate) fn wants_keys(&self, window: usize) -> usize {
        let held = self.granted.len();
        // The owner grants half a window at a time, so that keys travel in chunks too.
        if held * 2 > window { 0 } else { window.saturating_sub(held).min(self.grants.slots()) }
    }

    /// Sets whether the owner has no key left for this client. A client without a key is refused
    /// with `Full` then, and with `Busy` otherwise.
    pub(crate) fn set_exhausted(&self, is_exhausted: bool) {
        // Relaxed: the flag orders nothing, and a client that reads the old value is refused with
        // the kind that was true a moment ago.
        if self.shared.is_exhausted.load(Ordering::Relaxed) != is_exhausted {
            self.shared.is_exhausted.store(is_exhausted, Ordering::Relaxed);
        }
    }

    pub(crate) fn grant(&mut self, key: R::Key) {
        let pushed = self.grants.push(key);
        assert!(pushed.is_ok(), "keys are granted only as far as there is room");
        self.granted.push_back(key);
    }

    /// Whether the client is gone and all of its requests are received.
    pub(crate) fn is_finished(&self) -> bool {
        // The order matters: an owner that sees that the client is gone also sees its last request.
        self.requests.is_abandoned() && !self.has_requests()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// The owner's column of the closing up to the fence. The owner must call
    /// [`receive_rest`](Self::receive_rest) and [`hand_back`](Self::hand_back) next.
    pub(crate) fn close(&self) {
        self.shared.gate.close();
    }

    /// Closes a lane from which no shard has received. Its client has no keys. The requests are
    /// dropped, so that callers that wait for a reply get an error.
    pub(crate) fn close_unread(mut self) {
        self.close();
        let mut requests = Vec::new();
        self.receive_rest(|request, _, _| {
            requests.push(request);
            None
        });
        self.hand_back();
        // After `hand_back`: the drop of a reply wakes its caller, and code in that waker may at
        // once take back requests of this lane.
        drop_each(requests);
    }

    /// Receives all requests that a closed lane holds.
    pub(crate) fn receive_rest(
        &mut self,
        mut apply: impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) {
        while self.has_requests() {
            self.receive(usize::MAX, &mut apply);
        }
    }

    /// By when the owner must receive the first request that it has not received;
    /// [`Tick::NEVER`] if there is none that the owner must receive.
    #[cfg(all(feature = "sim", not(corewheel_loom)))]
    pub(crate) fn needed_by(&mut self) -> Tick {
        if !self.overflowed.is_empty() || !self.shared.overflow.is_empty() {
            return Tick::ZERO;
        }
        let len = self.requests.slots();
        // The chunk is not committed, so the requests stay in the ring.
        let chunk = self.requests.read_chunk(len).ok();
        let requests = chunk.iter().map(rtrb::chunks::ReadChunk::as_slices);
        let requests = requests.flat_map(|(first, second)| first.iter().chain(second));
        requests.map(R::needed_by).min().unwrap_or(Tick::NEVER)
    }

    /// The model checker runs no simulation.
    #[cfg(all(feature = "sim", corewheel_loom))]
    pub(crate) fn needed_by(&mut self) -> Tick {
        unreachable!("a lane of {} requests is simulated", self.depth())
    }

    /// Hands the owner's end of the ring to the client of a closed lane. Returns the keys that the
    /// client has not used.
    pub(crate) fn hand_back(self) -> VecDeque<R::Key> {
        self.shared.gate.hand_back(self.requests);
        self.granted
    }

    fn receive_overflowed(
        &mut self,
        max: usize,
        apply: &mut impl FnMut(R, Option<R::Key>, usize) -> Option<R>,
    ) -> usize {
        let mut left = max;
        while left > 0
            && let Some(request) = self.overflowed.pop_front()
        {
            let weight = request.weight();
            // A request of the overflow needs no key: it is no schedule, or the rest of a bulk
            // schedule, which contains its keys.
            if let Some(rest) = apply(request, None, left) {
                self.overflowed.push_front(rest);
                return max;
            }
            left -= weight;
        }
        max - left
    }

    /// Whether the lane holds requests.
    fn has_requests(&self) -> bool {
        !self.requests.is_empty() || !self.overflowed.is_empty() || !self.shared.overflow.is_empty()
    }
}

/// Adds 1 to a counter that only this thread writes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
