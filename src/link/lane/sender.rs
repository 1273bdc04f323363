//! The client's end of a lane.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use corewheel_shard::Tick;

use super::super::overflow::Waiting;
use super::super::sync::{Backoff, Consumer, Ordering, yield_now};
use super::super::wake_up::{Doorbell, WakeUp};
use super::recent::Recent;
use super::ring::{RingSender, ring};
use super::{Exhausted, Keys, LaneShared, Refusal, Request, Room};

/// The client's end.
pub(crate) struct LaneSender<R: Request> {
    requests: RingSender<R>,
    /// Its `ring` is the number of slots of the ring that `requests` belongs to.
    room: Room,
    /// How many requests may wait outside of this ring: in the overflow, and in the ring before.
    /// Without meaning while the overflow is empty.
    beside: usize,
    grants: Consumer<R::Key>,
    recent: Recent<R>,
    /// How often this end was refused since it last took a key.
    refused_in_a_row: u32,
    /// Keys used since this end last woke the owner because keys ran low.
    keys_used: usize,
    shared: Arc<LaneShared<R>>,
    /// Distinguishes the lanes of one client. The client sets it.
    pub(crate) number: u64,
}

/// The wakers that are left over when a future waits for room.
#[must_use = "the caller wakes and drops them"]
pub(crate) struct LeftOver {
    /// The wakers of a lane that is closed. The caller must wake them.
    pub(crate) missed: Vec<Waker>,
    /// A waker that was registered before. The caller must drop it.
    pub(crate) unused: Option<Waker>,
}

impl<R: Request> LaneSender<R> {
    pub(super) fn new(
        requests: RingSender<R>,
        room: Room,
        grants: Consumer<R::Key>,
        shared: Arc<LaneShared<R>>,
    ) -> Self {
        Self {
            requests,
            room,
            beside: 0,
            grants,
            recent: Recent::new(),
            refused_in_a_row: 0,
            keys_used: 0,
            shared,
            number: 0,
        }
    }

    /// Takes a granted key, if there is a key and the lane has room for its request beside
    /// `staged` other requests. The caller must send the request.
    #[inline]
    pub(crate) fn take_key(
        &mut self,
        doorbell: &Doorbell,
        staged: usize,
    ) -> Result<R::Key, Refusal> {
        let has_room = self.has_room(staged);
        if has_room && let Ok(key) = self.grants.pop() {
            self.keys_used += 1;
            self.refused_in_a_row = 0;
            return Ok(key);
        }
        Err(self.refuse(usize::from(has_room), doorbell))
    }

    /// Takes `count` granted keys for one request that uses all of them up. Takes none on an error.
    pub(crate) fn take_keys(
        &mut self,
        count: usize,
        doorbell: &Doorbell,
    ) -> Result<Vec<R::Key>, Refusal> {
        let has_room = self.has_room(0);
        if has_room && let Ok(keys) = self.grants.read_chunk(count) {
            self.keys_used += count;
            self.refused_in_a_row = 0;
            return Ok(keys.into_iter().collect());
        }
        // Only a turn of the owner makes room in the lane or grants keys.
        Err(self.refuse(if has_room { count } else { 0 }, doorbell))
    }

    /// Sends a request for the timer of a key that [`take_key`](Self::take_key) has returned;
    /// `None` if it is for many. `Err` with this request alone if the lane is closed and has not
    /// accepted it.
    #[inline]
    pub(crate) fn send(
        &mut self,
        key: Option<R::Key>,
        request: R,
        doorbell: &Doorbell,
    ) -> Result<(), Vec<R>> {
        let (needed_by, position) = (request.needed_by(), self.requests.position());
        self.push(request, needed_by, doorbell)?;
        // Unless it lies beside the ring.
        if self.requests.position() > position
            && let Some(key) = key
        {
            self.recent.note(key, position, self.room.ring);
        }
        Ok(())
    }

    /// Cancels a timer that this end has sent, if it can be cancelled where it lies.
    #[inline]
    pub(crate) fn cancel(&mut self, key: R::Key) -> bool {
        let position = self.recent.take(key);
        position.is_some_and(|position| self.requests.words().cancel(position))
    }

    /// Sends all requests of `staged`, in chunks and with at most one wake-up. `keys` are those
    /// that were taken for timers, with the places of their requests. Requests that a closed lane
    /// has not accepted stay in `staged`.
    pub(crate) fn send_all(
        &mut self,
        staged: &mut Vec<R>,
        keys: &[(usize, R::Key)],
        doorbell: &Doorbell,
    ) {
        let needed_by = staged.iter().map(R::needed_by).min();
        let Some(mut needed_by) = needed_by else { return };
        let room = self.slots().min(staged.len());
        self.note_all(staged, keys, room);
        self.requests.push_all(staged.drain(..room));
        if !staged.is_empty() {
            self.overflow(staged.drain(..));
            needed_by = Tick::ZERO;
        }
        self.wake_owner(needed_by, doorbell);
        if self.is_closed()
            && let Err(back) = self.take_back()
        {
            *staged = back;
        }
    }

    /// Notes where the timers of `staged` will lie, the first `room` of which are pushed next.
    fn note_all(&mut self, staged: &[R], keys: &[(usize, R::Key)], room: usize) {
        let (mut keys, position) = (keys.iter().peekable(), self.requests.position());
        for (place, request) in staged.iter().enumerate() {
            if let Some((_, key)) = keys.next_if(|(timer, _)| *timer == place) {
                if place < room {
                    self.recent.note(*key, position + place as u64, self.room.ring);
                }
            } else if let Some(timers) = request.about() {
                self.recent.forget(timers, position + place as u64);
            }
        }
    }

    /// Sends a cancel or a reset. `Err` with the request if the lane is closed and has not accepted
    /// it.
    pub(crate) fn send_always(&mut self, request: R, doorbell: &Doorbell) -> Result<(), Vec<R>> {
        debug_assert!(
            request.keys() == Keys::None,
            "a request with a key is sent where there is room"
        );
        if let Some(timers) = request.about() {
            self.recent.forget(timers, self.requests.position());
        }
        let needed_by = request.needed_by();
        self.push(request, needed_by, doorbell)
    }

    /// Registers the waker of a future whose request was refused as busy or reserved, and wakes the
    /// owner if it sleeps. The owner wakes the future when the client has a key, or finds out that
    /// there is none, or closes the lane; if other clients hold the last keys, in the next tick.
    ///
    /// The wakers run code of the user, so the caller deals with those that are left over, with
    /// nothing borrowed.
    pub(crate) fn wait_for_room(&mut self, waker: Waker, doorbell: &Doorbell) -> LeftOver {
        let waiters = &self.shared.beside.waiters;
        let unused = waiters.register(waker);
        // It issues the fence, as after a push.
        let _wake_up = doorbell.wake();
        let missed = if self.is_closed() { waiters.take(usize::MAX) } else { Vec::new() };
        LeftOver { missed, unused }
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
        let mut push = |request, is_cancelled: bool| {
            debug_assert!(!is_cancelled, "a request that is not accepted cannot be cancelled");
            back.push(request);
        };
        consumer.take(usize::MAX, |request, is_cancelled| {
            push(request, is_cancelled);
            ControlFlow::Continue(())
        });
        let Waiting { requests, ring } = self.shared.beside.overflow.take();
        for request in requests {
            push(request, false);
        }
        // The next call takes the end of this client's ring again, and finds the ring empty.
        self.shared.gate.hand_back(ring.unwrap_or(consumer));
        if back.is_empty() { Ok(()) } else { Err(back) }
    }

    /// Pushes a request onto the ring or appends it to the overflow, and wakes the owner if it
    /// sleeps past `needed_by` or need be. `Err` with the request if the lane is closed and has not
    /// accepted it.
    #[inline(always)]
    fn push(&mut self, request: R, mut needed_by: Tick, doorbell: &Doorbell) -> Result<(), Vec<R>> {
        let unsent = if self.shared.beside.overflow.is_empty() {
            self.requests.push(request).err()
        } else {
            Some(request)
        };
        if let Some(request) = unsent {
            // There is no room in the ring before the owner has received requests.
            needed_by = Tick::ZERO;
            self.overflow(std::iter::once(request));
        }
        self.wake_owner(needed_by, doorbell);
        if self.is_closed() {
            self.take_back()?;
        }
        Ok(())
    }

    /// Appends requests to the overflow. If they are the first there, the ring is replaced by a
    /// larger one, unless it is as large as it may be.
    #[cold]
    fn overflow(&mut self, requests: impl ExactSizeIterator<Item = R>) {
        let count = requests.len();
        let overflow = &self.shared.beside.overflow;
        if !overflow.is_empty() {
            // The owner may take the overflow now. Then this is the first request of the next one,
            // and the next overflow replaces the ring.
            self.beside += count;
            overflow.append(requests, None);
            return;
        }
        self.beside = count;
        let Some(larger) = self.room.next() else {
            overflow.append(requests, None);
            return;
        };
        self.beside += self.room.ring - self.requests.slots();
        let (sender, receiver) = ring(larger);
        overflow.append(requests, Some(receiver));
        // After the append: the old producer's drop makes the old ring look abandoned.
        self.requests = sender;
        self.recent = Recent::new();
        self.room.ring = larger;
    }

    /// How many requests the ring has room for; 0 while older requests wait in the overflow.
    #[inline]
    fn slots(&self) -> usize {
        if self.shared.beside.overflow.is_empty() { self.requests.slots() } else { 0 }
    }

    /// Whether the lane has room for a schedule beside `staged` requests.
    #[inline]
    fn has_room(&self, staged: usize) -> bool {
        self.slots() > staged || self.has_room_beside(staged)
    }

    #[cold]
    fn has_room_beside(&self, staged: usize) -> bool {
        let beside = if self.shared.beside.overflow.is_empty() { 0 } else { self.beside };
        let in_ring = self.room.ring - self.requests.slots();
        in_ring + beside + staged < self.room.max
    }

    /// Issues the fence, and wakes the owner if it sleeps past `needed_by`, or if it sleeps and
    /// keys run low.
    #[inline]
    fn wake_owner(&mut self, needed_by: Tick, doorbell: &Doorbell) {
        // Relaxed: an old window only makes an awake owner of a sleeping one, or leaves that to the
        // refusal of the client's next request.
        let window = self.shared.beside.window.load(Ordering::Relaxed);
        let runs_low = self.keys_used as u64 >= KEYS_USED_MAX.min(window.div_ceil(2));
        let needed_by = if runs_low { Tick::ZERO } else { needed_by };
        if runs_low {
            self.keys_used = 0;
        }
        match doorbell.wake_for(needed_by) {
            WakeUp::Made => count(&self.shared.wakeups_made),
            WakeUp::Saved => count(&self.shared.wakeups_saved),
        }
    }

    /// Counts a refusal, wakes the owner, and returns the reason. The client lacks `keys` keys, or
    /// none but room in the lane.
    #[cold]
    fn refuse(&mut self, keys: usize, doorbell: &Doorbell) -> Refusal {
        count(&self.shared.refused);
        if keys > 0 {
            // Relaxed: an owner that this refusal wakes sees it, and another sees it soon.
            self.shared.beside.keys_needed.store(keys as u64, Ordering::Relaxed);
        }
        self.wake_owner(Tick::ZERO, doorbell);
        if self.is_closed() {
            return Refusal::Closed;
        }
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        if self.refused_in_a_row >= REFUSED_MAX {
            yield_now();
        }
        let exhausted = Exhausted::unpack(self.shared.exhausted.load(Ordering::Relaxed));
        match exhausted {
            Some(exhausted) if keys > 0 => exhausted.refusal(),
            _ => Refusal::Busy,
        }
    }
}

/// A client that has used this many keys wakes a sleeping owner, even if it holds many more. So
/// the thread of an owner with a long lane may wait for a processor for a while, and the client has
/// keys meanwhile.
const KEYS_USED_MAX: u64 = 8_192;

/// A client that is refused this often in a row gives up the rest of its time on the processor, at
/// this refusal and each further one: the owner may wait for that processor.
const REFUSED_MAX: u32 = 16;

/// Adds 1 to a counter that only this thread writes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
