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

use super::super::limits::{ArmError, ConnEvent, ConnLimits, DeadlineKind};
use super::super::marks::Flags;
use super::super::measured::{ByteCount, Direction};
use super::super::rules::{self, Facts, FactsMut, InProgressCounts, NEVER, RATES, Rare};
use super::limits::share;
use super::stamp::Stamp;
use crate::clock::Timeline;
use crate::clock::when::When;
use crate::face::handle::Handle;
use crate::face::handle::sleep::SharedSleep;
use crate::values::refused::RefusedKind;

/// How often one poll puts its timer off before it lets the task return to its executor.
const TRIES: u32 = 3;

/// What comes of a poll: an event, `None` if the connection is closed, or why there is no timer.
pub(super) type Polled = Poll<Result<Option<ConnEvent>, RefusedKind>>;

/// Whether a change that makes the first deadline earlier wakes the task that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wakes {
    Task,
    /// The caller polls for events before it waits.
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    Nothing,
}

pub(super) struct Inner {
    handle: Handle,
    /// `None` if the service had ended when the connection began.
    time: Option<Timeline>,
    opened: u64,
    /// When something was last read, and when something was last written.
    pub(super) read: Stamp,
    pub(super) written: Stamp,
    /// When the last idle event came; 0 if none has come.
    event_at: Stamp,
    /// The task that waits for events.
    task: AtomicWaker,
    state: Mutex<State>,
}

#[cfg(not(corewheel_loom))]
const _: () = assert!(size_of::<Inner>() <= 264);

struct State {
    limits: Arc<ConnLimits>,
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

/// What is known of a connection at a time.
struct Known<'a> {
    present: u64,
    opened: u64,
    read: u64,
    written: u64,
    state: &'a mut State,
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
            state.filed = time.ceil(rules::first_due(&inner.known(&mut state, now)));
            state.sleep = Some(SharedSleep::new(handle, state.filed));
        }
        Arc::new(inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known<'a>(&self, state: &'a mut State, present: u64) -> Known<'a> {
        Known {
            present,
            opened: self.opened,
            read: self.read.get(),
            written: self.written.get(),
            state,
        }
    }

    /// False if the connection was closed before.
    pub(super) fn close(&self) -> bool {
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

    pub(super) fn is_closed(&self) -> bool {
        self.lock().sleep.is_none()
    }
}

/// Activity.
impl Inner {
    /// The present, or a little later.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.handle.nanos()
    }

    /// Stamps a connection with a time that the caller knows.
    pub(super) fn stamp_at(&self, stamp: &Stamp, now: Instant) {
        let Some(time) = &self.time else { return };
        let at = time.nanos_at(now);
        stamp.set(at);
        // A time before the last idle event may make the next one earlier. Where another thread
        // takes that event at this moment, the next one may count from it instead, and is later.
        if at < self.event_at.get() {
            self.change(Wakes::Task, |_| {});
        }
    }

    /// A read has begun.
    pub(super) fn begin_read(&self) {
        add_one(&mut self.lock().in_progress.reads);
    }

    /// A read has ended, at `now`.
    pub(super) fn end_read(&self, now: u64) {
        let mut state = self.lock();
        self.read.set(now);
        state.in_progress.reads -= 1;
    }

    /// A request has begun.
    pub(super) fn begin_request(&self) {
        add_one(&mut self.lock().in_progress.requests);
    }

    /// A request has ended, at `now`.
    pub(super) fn end_request(&self, now: u64) {
        let mut state = self.lock();
        state.request_ended = state.request_ended.max(now);
        state.in_progress.requests -= 1;
    }

    /// The number of a write that begins; `None` if there is no limit for writes.
    pub(super) fn begin_write(&self, wakes: Wakes) -> Option<u32> {
        let now = self.now();
        self.change(wakes, |known| rules::begin_write(known, now))
    }

    /// False if the write's time was up before.
    pub(super) fn end_write(&self, write: u32) -> bool {
        rules::end_write(self.lock().rare.as_deref_mut(), write)
    }
}

/// Least rates.
impl Inner {
    /// The count of a transfer that begins; `None` if there is no least rate.
    pub(super) fn begin_transfer(
        &self,
        direction: Direction,
        wakes: Wakes,
    ) -> Option<Arc<ByteCount>> {
        let now = self.now();
        self.change(wakes, |known| rules::begin_transfer(known, direction, now))
    }

    pub(super) fn pause_transfer(&self, direction: Direction, count: &Arc<ByteCount>) {
        // The near clock may be ahead, and would count too little time as a pause.
        let Some(now) = self.time.as_ref().map(Timeline::nanos) else { return };
        let mut state = self.lock();
        let mut known = self.known(&mut state, now);
        if let Some(transfer) = rules::transfer_mut(&mut known, direction, count) {
            transfer.pause(now);
        }
    }

    pub(super) fn resume_transfer(
        &self,
        direction: Direction,
        count: &Arc<ByteCount>,
        wakes: Wakes,
    ) {
        let now = self.now();
        self.change(wakes, |known| {
            if let Some(transfer) = rules::transfer_mut(known, direction, count) {
                transfer.resume(now);
            }
        });
    }

    /// False if the transfer's time was up before, or another has taken its place.
    pub(super) fn end_transfer(&self, direction: Direction, count: &Arc<ByteCount>) -> bool {
        let mut state = self.lock();
        let present = state.looked;
        rules::end_transfer(&mut self.known(&mut state, present), direction, count)
    }
}

/// Deadlines.
impl Inner {
    pub(super) fn limits(&self) -> ConnLimits {
        *self.lock().limits
    }

    pub(super) fn set_limits(&self, limits: ConnLimits) {
        let limits = share(limits);
        self.change(Wakes::Task, |known| known.state.limits = limits);
    }

    pub(super) fn deadline(&self, kind: usize) -> Option<Instant> {
        let time = self.time.as_ref()?;
        let now = self.now();
        let mut state = self.lock();
        state.sleep.as_ref()?;
        let due = rules::due(&self.known(&mut state, now), kind);
        (due < NEVER).then(|| time.instant_of(due))
    }

    /// When a time is, in nanoseconds since the epoch.
    pub(super) fn nanos_of(&self, when: impl When) -> u64 {
        self.time.as_ref().map_or(NEVER, |time| time.nanos_of(when, || self.now()))
    }

    /// Arms a deadline that comes once, or disarms it with `NEVER`.
    pub(super) fn arm(&self, kind: usize, due: u64, wakes: Wakes) -> Result<bool, ArmError> {
        self.change(wakes, |known| {
            let is_open = known.state.sleep.is_some();
            if is_open { Ok(rules::arm(known, kind, due)) } else { Err(ArmError::Closed) }
        })
    }

    /// Changes deadlines. The task that waits is woken if the first of them is earlier now: its
    /// poll resets the timer.
    fn change<R>(&self, wakes: Wakes, change: impl FnOnce(&mut Known<'_>) -> R) -> R {
        let mut state = self.lock();
        let present = state.looked;
        let mut known = self.known(&mut state, present);
        let result = change(&mut known);
        let first_due = rules::first_due(&known);
        let first = self.time.as_ref().map_or(Tick::NEVER, |time| time.ceil(first_due));
        let is_earlier = state.sleep.is_some() && first < state.filed;
        if is_earlier {
            state.filed = first;
        }
        drop(state);
        if is_earlier && wakes == Wakes::Task {
            self.task.wake();
        }
        result
    }
}

/// Events.
impl Inner {
    /// Takes an event of greatest age, if it has come.
    pub(super) fn take_max_age(&self) -> Option<ConnEvent> {
        let mut state = self.lock();
        state.sleep.as_ref()?;
        self.look(&mut state);
        self.next_event(&mut state, |kind| kind == DeadlineKind::MaxAge)
    }

    /// Takes the next event that has come. Otherwise the task waits.
    pub(super) fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Polled {
        self.poll_kinds(cx, |_| true).0
    }

    /// Takes the next event that has come and is wanted. Otherwise the task waits. True if this
    /// poll has found other events too, which wait for another poll.
    pub(super) fn poll_kinds(
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
        let ended = if matches!(polled, Some(Poll::Ready(Err(RefusedKind::Closed)))) {
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

    /// Wakes the task that waits.
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(super) fn wake_task(&self) {
        self.task.wake();
    }

    /// `None` if the near clock shows the time of the deadlines, and the clock does not show it.
    fn poll_locked(
        self: &Arc<Self>,
        state: &mut State,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Option<Polled> {
        for _ in 0..TRIES {
            if state.sleep.is_some() {
                self.look(state);
            }
            if let Some(event) = self.next_event(state, &wanted) {
                return Some(Poll::Ready(Ok(Some(event))));
            }
            let filed = state.filed;
            let Some(sleep) = &mut state.sleep else {
                let is_owed = std::mem::take(&mut state.owes_closed);
                let closed = if is_owed { Err(RefusedKind::Closed) } else { Ok(None) };
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
    fn look(&self, state: &mut State) {
        let Some(time) = &self.time else { return };
        let near = self.now();
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
        let mut known = self.known(state, now);
        if rules::first_due(&known) <= now {
            let events = rules::take_due(&mut known);
            rules::add_events(&known, events);
            self.event_at.set(now);
            known = self.known(state, now);
        }
        let first_due = rules::first_due(&known);
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
        let known = self.known(state, present);
        let event = rules::next_event(&known, wanted);
        if pending & RATES != 0 {
            let first =
                self.time.as_ref().map_or(Tick::NEVER, |time| time.ceil(rules::first_due(&known)));
            state.filed = state.filed.min(first);
        }
        event
    }
}

/// Adds one to a count of guards.
///
/// # Panics
///
/// There are 2³² of them, of which nearly all were forgotten.
fn add_one(count: &mut u32) {
    *count = count.checked_add(1).expect("fewer than 2^32 guards");
}

/// Keeps a connection open. The handles of the connection share it.
pub(super) struct Owner(pub(super) Arc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
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

impl Facts for Known<'_> {
    fn present(&self) -> u64 {
        self.present
    }

    fn opened(&self) -> u64 {
        self.opened
    }

    fn read(&self) -> u64 {
        self.read
    }

    fn written(&self) -> u64 {
        self.written
    }

    fn request_ended(&self) -> u64 {
        self.state.request_ended
    }

    fn in_progress(&self) -> InProgressCounts {
        self.state.in_progress
    }

    fn span(&self, kind: usize) -> u64 {
        rules::span_of(&self.state.limits, kind)
    }

    fn limits(&self) -> &ConnLimits {
        &self.state.limits
    }

    fn flags(&self) -> Flags {
        self.state.flags.get()
    }

    fn set_flags(&self, flags: Flags) {
        self.state.flags.set(flags);
    }

    fn rare(&self) -> Option<&Rare> {
        self.state.rare.as_deref()
    }
}

impl FactsMut for Known<'_> {
    fn known_rare_mut(&mut self) -> Option<&mut Rare> {
        self.state.rare.as_deref_mut()
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.state.rare.get_or_insert_with(|| Box::new(Rare::new()))
    }
}
