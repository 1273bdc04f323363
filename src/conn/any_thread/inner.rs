//! What the handles of one connection share: stamps that any thread stores, and the deadlines
//! behind a lock.
//!
//! A poll looks at the deadlines when the tick has begun for which they are filed, as a turn of a
//! shard does for the connections that live on it. The timer of a shard only wakes the task.
//!
//! Why not the user's waker in the timer: cloning and dropping a waker run code of the user, which
//! may use the connection, and the timer is polled while the lock is held. The timer has a waker of
//! the connection's own, which wakes the task that waits.
//!
//! Invariants: `filed` is not later than the first deadline. No code of the user runs while the
//! lock is held. A connection that is closed has no timer.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use corewheel_shard::Tick;

use super::super::kinds::DeadlineKind;
use super::super::limits::{ConnEvent, ConnLimits, Spans};
use super::super::marks::Flags;
use super::super::measured::{ByteCount, Direction};
use super::super::rules::{self, Facts, Held, InProgressCounts, Place, RATES, Rare};
use super::super::side::{Connection, Wakes};
use super::share::share;
use super::stamp::Stamp;
use crate::clock::Timeline;
use crate::face::handle::Handle;
use crate::face::handle::sleep::SharedSleep;
use crate::link::owners::OwnerCount;
use crate::values::refused::RefusedKind;

/// How often one poll puts its timer off before it lets the task return to its executor.
const TRIES: u32 = 3;

/// What comes of a poll: an event, `None` if the connection is closed, or why there is no timer.
pub(super) type Polled = Poll<Result<Option<ConnEvent>, RefusedKind>>;

/// What the handles and guards of one connection share.
pub(in crate::conn) struct Inner {
    handle: Handle,
    /// How many handles keep the connection open.
    owners: OwnerCount,
    /// `None` if the service had ended when the connection began.
    time: Option<Timeline>,
    opened: u64,
    /// When something was last read, and when something was last written.
    read: Stamp,
    written: Stamp,
    /// When the last idle event came; 0 if none has come.
    event_at: Stamp,
    /// The task that waits for events.
    task: AtomicWaker,
    state: Mutex<State>,
}

#[cfg(not(all(test, corewheel_loom)))]
const _: () = assert!(size_of::<Inner>() <= 264);

struct State {
    limits: Arc<Spans>,
    flags: Cell<Flags>,
    in_progress: InProgressCounts,
    /// When a request last ended; 0 if none has ended.
    request_ended: u64,
    rare: Option<Box<Rare>>,
    /// When a poll last looked at the clock.
    looked: u64,
    /// The tick in which a poll looks at the deadlines.
    filed: Tick,
    /// `None` if the connection is closed.
    sleep: Option<SharedSleep>,
    /// Whether the connection began after the end of the service, and no task was told.
    owes_closed: bool,
}

impl Inner {
    pub(super) fn new(handle: Handle, limits: ConnLimits) -> Arc<Self> {
        let (now, time) = (handle.nanos(), handle.time());
        let state = State {
            limits: share(limits),
            flags: Cell::new(Flags::new(handle.next_salt())),
            in_progress: InProgressCounts::default(),
            request_ended: 0,
            rare: None,
            looked: now,
            filed: Tick::NEVER,
            sleep: None,
            owes_closed: time.is_none(),
        };
        let inner = Self {
            handle,
            owners: OwnerCount::default(),
            time,
            opened: now,
            read: Stamp::new(now),
            written: Stamp::new(now),
            event_at: Stamp::new(0),
            task: AtomicWaker::new(),
            state: Mutex::new(state),
        };
        if let Some(time) = &inner.time {
            let mut state = inner.lock();
            state.filed = time.ceil(rules::first_due(&inner.facts(&mut state, now)));
            state.sleep = Some(SharedSleep::new(handle, state.filed));
        }
        Arc::new(inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn facts<'a>(
        &self,
        state: &'a mut State,
        present: u64,
    ) -> Facts<'a, &'a mut Option<Box<Rare>>> {
        Facts {
            is_open: state.sleep.is_some(),
            present,
            opened: self.opened,
            read: self.read.get(),
            written: self.written.get(),
            request_ended: state.request_ended,
            in_progress: state.in_progress,
            spans: &state.limits,
            flags: &state.flags,
            place: &mut state.rare,
        }
    }
}

/// Deadlines and events.
impl Inner {
    #[inline]
    fn stamp_of(&self, direction: Direction) -> &Stamp {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.written,
        }
    }

    /// True if the first deadline of an open connection has become earlier.
    fn file_earlier(&self, state: &mut State) -> bool {
        let Some(time) = &self.time else { return false };
        let present = state.looked;
        let first = time.ceil(rules::first_due(&self.facts(state, present)));
        let is_earlier = state.sleep.is_some() && first < state.filed;
        if is_earlier {
            state.filed = first;
        }
        is_earlier
    }

    /// Takes the next event that has come and is wanted. Otherwise the task waits. True if this
    /// poll has found other events too, which wait for another poll.
    fn poll_found(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> (Polled, bool) {
        // First of all, so that no event and no change comes in between.
        self.task.register(cx.waker());
        let mut state = self.lock();
        let before = state.flags.get().pending();
        let polled = self.poll_locked(&mut state, wanted);
        let is_other_found = state.flags.get().pending() & !before != 0;
        let ended = if matches!(polled, Some(Poll::Ready(Err(refused))) if refused.is_closed()) {
            state.sleep.take()
        } else {
            None
        };
        drop(state);
        drop(ended);
        let polled = polled.unwrap_or_else(|| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        (polled, is_other_found)
    }

    /// `None` if the near clock shows the time of the deadlines, and the clock does not show it.
    fn poll_locked(
        self: &Arc<Self>,
        state: &mut State,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Option<Polled> {
        for _ in 0..TRIES {
            if state.sleep.is_some() {
                self.take_due(state);
            }
            if let Some(event) = self.next_event(state, &wanted) {
                return Some(Poll::Ready(Ok(Some(event))));
            }
            let filed = state.filed;
            let Some(sleep) = &mut state.sleep else {
                let is_owed = std::mem::take(&mut state.owes_closed);
                let closed = if is_owed { Err(self.handle.why_closed()) } else { Ok(None) };
                return Some(Poll::Ready(closed));
            };
            if sleep.deadline_tick() != filed {
                sleep.reset_to(filed);
            }
            let waker = Waker::from(Arc::clone(self));
            let slept = sleep.poll_borrowed(&Context::from_waker(&waker));
            let Poll::Ready(slept) = slept else { return Some(Poll::Pending) };
            // The next poll, here or in another call, needs a timer again.
            sleep.reset_to(filed);
            if let Err(refused) = slept {
                return Some(Poll::Ready(Err(refused)));
            }
        }
        None
    }

    /// Takes the deadlines that are due, if the tick has begun for which the connection is filed.
    fn take_due(&self, state: &mut State) {
        let Some(time) = &self.time else { return };
        let near = self.handle.nanos();
        state.looked = near;
        if time.floor(near) < state.filed {
            return;
        }
        // The near clock may be ahead. An event never comes early.
        let now = time.nanos();
        if time.floor(now) < state.filed {
            return;
        }
        state.looked = now;
        let mut facts = self.facts(state, now);
        if rules::first_due(&facts) <= now {
            rules::take_due(&mut facts);
            self.event_at.set(now);
            facts = self.facts(state, now);
        }
        let first_due = rules::first_due(&facts);
        state.filed = time.ceil(first_due);
    }

    fn next_event(
        &self,
        state: &mut State,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Option<ConnEvent> {
        let pending = state.flags.get().pending();
        if pending == 0 {
            return None;
        }
        let present = state.looked;
        let event = rules::next_event(&self.facts(state, present), wanted);
        if pending & RATES != 0 {
            self.file_earlier(state);
        }
        event
    }
}

impl Connection for Arc<Inner> {
    type Place<'a> = &'a mut Option<Box<Rare>>;
    type Error = RefusedKind;

    fn add_owner(&self) {
        self.owners.add();
    }

    fn drop_owner(&self) {
        if self.owners.remove() {
            self.close();
        }
    }

    fn close(&self) -> bool {
        let sleep = {
            let mut state = self.lock();
            state.flags.set(state.flags.get().with_pending(0));
            state.sleep.take()
        };
        let is_open = sleep.is_some();
        drop(sleep);
        if is_open {
            self.task.wake();
        }
        is_open
    }

    fn time(&self) -> Option<&Timeline> {
        self.time.as_ref()
    }

    #[inline]
    fn now(&self) -> u64 {
        self.handle.nanos()
    }

    #[inline]
    fn stamp_now(&self) -> u64 {
        self.now()
    }

    #[inline]
    fn stamp(&self, direction: Direction, stamp: u64) {
        self.stamp_of(direction).set(stamp);
    }

    fn stamp_at(&self, direction: Direction, at: Instant) {
        let Some(time) = &self.time else { return };
        let at = time.nanos_at(at);
        self.stamp(direction, at);
        // A time before the last idle event may make the next one earlier. Where another thread
        // takes that event at this moment, the next one may count from it instead, and is later.
        if at < self.event_at.get() {
            self.change(Wakes::Task, |_| ((), true));
        }
    }

    #[cfg(any(feature = "hyper", feature = "tokio"))]
    #[inline]
    fn time_of_now(&self, stamp: u64) -> u64 {
        stamp
    }

    fn begin(&self, held: Held) {
        let mut state = self.lock();
        let count = state.in_progress.of_mut(held);
        *count = count.checked_add(1).expect("fewer than 2^32 guards");
    }

    /// The stamp is stored under the lock, so that a poll sees it or what was in progress.
    fn end(&self, held: Held) {
        let now = self.now();
        let mut state = self.lock();
        match held {
            Held::Read => self.read.set(now),
            Held::Request => state.request_ended = state.request_ended.max(now),
        }
        *state.in_progress.of_mut(held) -= 1;
    }

    #[inline]
    fn add(count: &ByteCount, bytes: u64) {
        count.add(bytes);
    }

    /// Looks at the facts as of the last poll.
    fn look<R>(&self, look: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> R) -> R {
        let mut state = self.lock();
        let present = state.looked;
        look(&mut self.facts(&mut state, present))
    }

    /// The task that waits is woken if the first deadline is earlier now: its poll resets the
    /// timer.
    fn change<R>(
        &self,
        wakes: Wakes,
        change: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> (R, bool),
    ) -> R {
        let mut state = self.lock();
        let present = state.looked;
        let (result, may_be_earlier) = change(&mut self.facts(&mut state, present));
        let is_earlier = may_be_earlier && self.file_earlier(&mut state);
        drop(state);
        if is_earlier && wakes == Wakes::Task {
            self.task.wake();
        }
        result
    }

    fn set_limits(&self, limits: ConnLimits) {
        self.lock().limits = share(limits);
        self.change(Wakes::Task, |_| ((), true));
    }

    /// When the deadline is due as of now.
    fn due(&self, kind: usize) -> u64 {
        let now = self.now();
        rules::open_due(&self.facts(&mut self.lock(), now), kind)
    }

    fn take(&self, wanted: impl Fn(DeadlineKind) -> bool) -> Option<ConnEvent> {
        let mut state = self.lock();
        state.sleep.as_ref()?;
        self.take_due(&mut state);
        self.next_event(&mut state, wanted)
    }

    fn poll(&self, cx: &mut Context<'_>, wanted: impl Fn(DeadlineKind) -> bool) -> Polled {
        self.poll_found(cx, wanted).0
    }

    #[cfg(any(feature = "hyper", feature = "tokio"))]
    fn poll_some(&self, cx: &mut Context<'_>, wanted: impl Fn(DeadlineKind) -> bool) -> Polled {
        let (polled, is_other_found) = self.poll_found(cx, wanted);
        if is_other_found {
            self.task.wake();
        }
        polled
    }
}

/// The timer wakes the task that waits.
impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.task.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake();
    }
}

impl Place for &mut Option<Box<Rare>> {
    fn rare(&self) -> Option<&Rare> {
        self.as_deref()
    }

    fn known_rare_mut(&mut self) -> Option<&mut Rare> {
        self.as_deref_mut()
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.get_or_insert_with(|| Box::new(Rare::new()))
    }
}
