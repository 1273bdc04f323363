//! The thread's end of a lane.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use corewheel_shard::Tick;

use super::super::overflow::Waiting;
use super::super::sync::{Backoff, Consumer, Ordering, yield_now};
use super::super::wake_up::{Doorbell, WakeUp};
use super::recent::Recent;
use super::ring::{RingSender, ring};
use super::{Exhausted, LaneShared, Request, Room};
use crate::values::refused::RefusedKind;

/// The thread's end.
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
}

/// A reserved slot of a lane: the key that its request uses up, and room for the request.
#[must_use = "a key that is taken and not used shifts the keys of all later timers"]
pub(crate) struct Slot<'a, R: Request> {
    key: R::Key,
    /// Whether the ring has the room, and not the overflow.
    in_ring: bool,
    lane: &'a mut LaneSender<R>,
    doorbell: &'a Doorbell,
}

impl<R: Request> Slot<'_, R> {
    /// Builds the request in the slot and sends it. Returns the key; `Err` with the request if the
    /// lane is closed and has not accepted it.
    #[inline]
    pub(crate) fn send(self, build: impl FnOnce(&R::Key) -> R) -> Result<R::Key, R> {
        let Self { key, in_ring, lane, doorbell } = self;
        if in_ring {
            lane.recent.note(key, lane.requests.position(), lane.room.ring);
        }
        let timed = || unreachable!("a timer is needed by its deadline");
        lane.push(build(&key), in_ring, doorbell, timed)?;
        Ok(key)
    }
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
        }
    }

    /// Reserves a slot for a request that uses one granted key, if there is a key and the lane has
    /// room. The caller must send the request, since keys are used in the order of the grants.
    #[inline]
    pub(crate) fn reserve<'a>(
        &'a mut self,
        doorbell: &'a Doorbell,
    ) -> Result<Slot<'a, R>, RefusedKind> {
        let in_ring = self.has_slot();
        let has_room = in_ring || self.has_room_beside();
        if has_room {
            if let Ok(key) = self.grants.pop() {
                self.keys_used += 1;
                self.refused_in_a_row = 0;
                return Ok(Slot { key, in_ring, lane: self, doorbell });
            }
        }
        Err(self.refuse(has_room, doorbell))
    }

    /// Cancels a timer that this end has sent, if it can be cancelled where it lies. Wakes the
    /// owner if it sleeps past the tick that `soon` returns, by which it must drop the timer.
    #[inline]
    pub(crate) fn cancel(
        &mut self,
        key: R::Key,
        doorbell: &Doorbell,
        soon: impl FnOnce() -> Tick,
    ) -> bool {
        let position = self.recent.take(key);
        let is_cancelled = position.is_some_and(|at| self.requests.words().cancel(at));
        if is_cancelled {
            self.count_wake_up(doorbell.wake_for(soon));
        }
        is_cancelled
    }

    /// Sends a cancel or a reset. Wakes the owner for a request that may wait for a while if it
    /// sleeps past the tick that `soon` returns. `Err` with the request if the lane is closed and
    /// has not accepted it.
    #[inline]
    pub(crate) fn send_always(
        &mut self,
        request: R,
        doorbell: &Doorbell,
        soon: impl FnOnce() -> Tick,
    ) -> Result<(), R> {
        debug_assert!(!request.uses_key(), "a request with a key is sent where there is room");
        // The timer must be there when the request comes, as its reply and the counts are about it.
        if let Some(key) = request.about() {
            self.recent.take(key);
        }
        let in_ring = self.has_slot();
        self.push(request, in_ring, doorbell, soon)
    }

    /// Whether the owner has closed the lane.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.gate.is_closed()
    }

    pub(crate) fn shared(&self) -> &Arc<LaneShared<R>> {
        &self.shared
    }

    /// Takes the request back that was just pushed, if the owner of the closed lane has not
    /// accepted it. All requests before it are accepted, since each was taken back at once if not.
    #[cold]
    fn take_back(&mut self) -> Result<(), R> {
        let backoff = Backoff::new();
        let mut consumer = loop {
            // The owner has closed the gate and is about to hand its end back.
            if let Some(consumer) = self.shared.gate.take() {
                break consumer;
            }
            backoff.snooze();
        };
        let mut back = None;
        let mut note = |request, is_cancelled: bool| {
            debug_assert!(!is_cancelled, "a request that is not accepted cannot be cancelled");
            let before = std::mem::replace(&mut back, request);
            debug_assert!(before.is_none(), "the requests before were accepted or taken back");
        };
        consumer.take(usize::MAX, |place, is_cancelled| note(place.take(), is_cancelled));
        let Waiting { requests, ring } = self.shared.beside.overflow.take();
        for request in requests {
            note(Some(request), false);
        }
        // The next call takes the end of this thread's ring again, and finds the ring empty.
        self.shared.gate.hand_back(ring.unwrap_or(consumer));
        back.map_or(Ok(()), Err)
    }

    /// Pushes a request onto the ring, which has room if it is `in_ring`, or appends it to the
    /// overflow. Wakes the owner if it sleeps past the time at which the request is needed, or need
    /// be. `Err` with the request if the lane is closed and has not accepted it.
    #[inline(always)]
    fn push(
        &mut self,
        request: R,
        in_ring: bool,
        doorbell: &Doorbell,
        soon: impl FnOnce() -> Tick,
    ) -> Result<(), R> {
        let needed_by = if in_ring {
            let needed_by = request.needed_by();
            self.requests.push(request);
            needed_by
        } else {
            // There is no room in the ring before the owner has received requests.
            self.overflow(request);
            Some(Tick::ZERO)
        };
        self.wake_owner(|| needed_by.unwrap_or_else(soon), doorbell);
        if self.is_closed() { self.take_back() } else { Ok(()) }
    }

    /// Appends a request to the overflow. If it is the first there, the ring is replaced by a
    /// larger one, unless it is as large as it may be.
    #[cold]
    fn overflow(&mut self, request: R) {
        let overflow = &self.shared.beside.overflow;
        if !overflow.is_empty() {
            // The owner may take the overflow now. Then this is the first request of the next one,
            // and the next overflow replaces the ring.
            self.beside += 1;
            overflow.append(request, None);
            return;
        }
        self.beside = 1;
        let Some(larger) = self.room.next() else {
            overflow.append(request, None);
            return;
        };
        self.beside += self.room.ring - self.requests.slots();
        let (sender, receiver) = ring(larger);
        overflow.append(request, Some(receiver));
        // After the append: the old producer's drop makes the old ring look abandoned.
        self.requests = sender;
        self.recent = Recent::new();
        self.room.ring = larger;
    }

    /// Whether the ring takes another request: it has room, and no older request waits in the
    /// overflow. Only this end changes that for the worse.
    #[inline]
    fn has_slot(&self) -> bool {
        self.shared.beside.overflow.is_empty() && !self.requests.is_full()
    }

    /// Whether a schedule may wait beside the ring.
    #[cold]
    fn has_room_beside(&self) -> bool {
        let beside = if self.shared.beside.overflow.is_empty() { 0 } else { self.beside };
        let in_ring = self.room.ring - self.requests.slots();
        in_ring + beside < self.room.max
    }

    /// Issues the fence, and wakes the owner if it sleeps past what `needed_by` returns, or if it
    /// sleeps and keys run low.
    #[inline]
    fn wake_owner(&mut self, needed_by: impl FnOnce() -> Tick, doorbell: &Doorbell) {
        // Relaxed: an old window only makes an awake owner of a sleeping one, or leaves that to the
        // refusal of the thread's next request.
        let window = self.shared.beside.window.load(Ordering::Relaxed);
        let runs_low = self.keys_used as u64 >= KEYS_USED_MAX.min(window.div_ceil(2));
        if runs_low {
            self.keys_used = 0;
        }
        let needed_by = || if runs_low { Tick::ZERO } else { needed_by() };
        self.count_wake_up(doorbell.wake_for(needed_by));
    }

    #[inline]
    fn count_wake_up(&self, wake_up: WakeUp) {
        match wake_up {
            WakeUp::Made => count(&self.shared.wakeups_made),
            WakeUp::Saved => count(&self.shared.wakeups_saved),
        }
    }

    /// Counts a refusal, wakes the owner, and returns the reason. The thread lacks a key, or else
    /// room in the lane.
    #[cold]
    fn refuse(&mut self, lacks_key: bool, doorbell: &Doorbell) -> RefusedKind {
        count(&self.shared.refused);
        if lacks_key {
            // Relaxed: an owner that this refusal wakes sees it, and another sees it soon.
            self.shared.beside.lacks_key.store(true, Ordering::Relaxed);
        }
        self.wake_owner(|| Tick::ZERO, doorbell);
        if self.is_closed() {
            return RefusedKind::Closed;
        }
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        if self.refused_in_a_row >= REFUSED_MAX {
            yield_now();
        }
        let exhausted = Exhausted::unpack(self.shared.exhausted.load(Ordering::Relaxed));
        match exhausted {
            Some(exhausted) if lacks_key => exhausted.refusal(),
            _ => RefusedKind::Busy,
        }
    }
}

/// A thread that has used this many keys wakes a sleeping owner, even if it holds many more. So
/// the thread of an owner with a long lane may wait for a processor for a while, and the thread has
/// keys meanwhile.
const KEYS_USED_MAX: u64 = 8_192;

/// A thread that is refused this often in a row gives up the rest of its time on the processor, at
/// this refusal and each further one: the owner may wait for that processor.
const REFUSED_MAX: u32 = 16;

/// Adds 1 to a counter that only this thread writes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
