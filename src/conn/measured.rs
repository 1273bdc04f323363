//! Measured transfers: how many bytes were read or written since when, and by when more must be.
//! A write whose time is limited is one of them, without bytes.
//!
//! The party that moves bytes only adds to a count, and says when it waits. When the connection's
//! timer expires, the count says when the deadline really is, and the timer is put off to it.
//!
//! A transfer that goes on after a pause is due no earlier than before the pause. So the timer that
//! was filed for it is early enough, and nothing has to be filed. Only a timer that expires during
//! the pause is put off without regard to the transfer. It leaves the mark [`UNWATCHED`] then, and
//! who resumes the transfer files it again.
//!
//! Why not a timer that expires again and again during a pause, as for idle times that are held
//! back: a transfer that is paused a moment before its deadline would have one in each tick.
//!
//! Where the peer's [socket is asked](by_socket), what the peer has acknowledged counts, and what
//! was added does not.
//!
//! Invariants: adding bytes makes a deadline later or leaves it, and so does a pause. A deadline is
//! rounded up to a nanosecond. A transfer without the mark is due no earlier than the timer is
//! filed for, if it were resumed now.
//!
//! Cost: adding is one relaxed addition; a pause and its end are a compare-and-exchange each. A
//! connection takes some 100 bytes more for each transfer at a time, which the next one uses again.

mod by_socket;

use std::cell::Cell;
use std::sync::Arc;

use self::by_socket::Asked;
pub(super) use self::by_socket::BoundWait;
use super::acknowledged::Acknowledged;
use super::kinds::{Direction, IDLE, Rule, WRITES, rule};
use super::limits::{DataRate, NEVER};
use super::moment::Moment;
use super::rules::Rare;
use crate::clock::saturating_nanos;
use crate::link::sync::{AtomicBool, AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// Up to so many transfers are kept for the next ones.
const KEPT: usize = 4;

/// In place of the time before a pause: the transfer is not paused.
const RUNNING: u64 = NEVER >> 1;
/// The timer does not regard the transfer. The next change of it is to be filed.
const UNWATCHED: u64 = !RUNNING;

/// How far a transfer is. Its guard changes it, and the timer reads it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Above zero.
    bytes_per_second: u64,
    grace: u64,
    bytes: AtomicU64,
    /// When the transfer began, and later by the time for which it was paused.
    start: AtomicU64,
    /// When the wait that goes on has begun.
    resumed: AtomicU64,
    /// For how long it has run before its pause, or [`RUNNING`]; beside it the mark [`UNWATCHED`].
    state: AtomicU64,
    /// Whether no peer is known to be waited for: the transfer says when to look for that, and
    /// holds no idle time back.
    is_presumed: AtomicBool,
}

impl Progress {
    /// Adds bytes, from any thread.
    #[inline]
    pub(super) fn add(&self, bytes: u64) {
        // Relaxed: the count carries no other data.
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.checked_add(bytes).is_none() {
            self.bytes.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Adds bytes, where only one thread does.
    #[inline]
    pub(super) fn add_here(&self, bytes: u64) {
        let before = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(before.saturating_add(bytes), Ordering::Relaxed);
    }

    /// Sets whether the transfer holds no idle time back.
    pub(super) fn presume(&self, is_presumed: bool) {
        // Relaxed: the flag carries no other data.
        self.is_presumed.store(is_presumed, Ordering::Relaxed);
    }

    /// Takes bytes off, where the transfer that runs is due later than `longest` after `now`. True
    /// if it has become earlier.
    pub(super) fn bound(&self, now: u64, longest: u64) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let bounded = self.bounded(bytes, now, longest);
        // Relaxed: see `pause`.
        self.bytes.store(bounded, Ordering::Relaxed);
        bounded != bytes
    }

    /// The transfer that runs is due later by this time, in nanoseconds. True if the timer is to
    /// be filed for it.
    pub(super) fn extend(&self, time: u64, now: u64) -> bool {
        // Relaxed: see `pause`.
        let start = self.start.load(Ordering::Relaxed);
        self.go_on(start.saturating_add(time), now)
    }

    /// What is left of so many bytes where the transfer that runs is due no later than `longest`
    /// after `now`. The beginning fits what is left: it cannot be moved back by more than the time
    /// since the clock's epoch, and the bytes may be worth more.
    fn bounded(&self, bytes: u64, now: u64, longest: u64) -> u64 {
        let latest = now.saturating_add(longest);
        if self.due_of(bytes) <= latest || !self.is_running() {
            return bytes;
        }
        let left = bytes.min(bytes_in(longest, self.bytes_per_second));
        self.go_on(latest.saturating_sub(self.time_of(left)), now);
        left
    }

    /// How long so many bytes may take.
    fn time_of(&self, bytes: u64) -> u64 {
        time_of(bytes, self.bytes_per_second).max(self.grace)
    }

    /// When more than so many bytes must have been transferred, if the transfer is not paused.
    fn due_of(&self, bytes: u64) -> u64 {
        self.start.load(Ordering::Relaxed).saturating_add(self.time_of(bytes))
    }

    /// When more bytes must have been transferred, if the transfer is not paused.
    pub(super) fn due(&self) -> u64 {
        self.due_of(self.bytes.load(Ordering::Relaxed))
    }

    /// The time until which a wait counts that has ended by `now`. If the server finds the end of
    /// the wait after the deadline, the peer was in time and the server late, which does not know
    /// by how much. Then half of the time that the wait had left does not count, so the next wait
    /// has some time, and a peer gets no more than twice the time. No time after the timer of the
    /// deadline counts, which comes at `timer` of the deadline.
    ///
    /// The time from the deadline to its timer counts: otherwise a peer whose bytes always come
    /// between the two would never be cut.
    #[inline]
    pub(super) fn counted_until(&self, now: u64, timer: impl FnOnce(u64) -> u64) -> u64 {
        // Without the division, in most cases.
        let start = self.start.load(Ordering::Relaxed);
        if now <= start.saturating_add(self.grace) { now } else { self.counted_late(now, timer) }
    }

    #[cold]
    fn counted_late(&self, now: u64, timer: impl FnOnce(u64) -> u64) -> u64 {
        let resumed = self.resumed.load(Ordering::Relaxed);
        let due = self.due().max(resumed);
        if now <= due { now } else { now.min(timer(due)) - (due - resumed) / 2 }
    }

    /// Nothing is demanded from `now` on. The time must not be later than the call. True if the
    /// timer does not regard the transfer, for instance because its event has come.
    #[inline]
    pub(super) fn pause(&self, now: u64) -> bool {
        // Relaxed: only the party that moves bytes pauses and resumes.
        let ran = now.saturating_sub(self.start.load(Ordering::Relaxed)).min(RUNNING - 1);
        let paused =
            |state| if state & RUNNING == RUNNING { ran | state & UNWATCHED } else { state };
        self.exchange(paused) & UNWATCHED != 0
    }

    /// The transfer goes on at `now`. The time must not be earlier than the call. True if the timer
    /// is to be filed for it.
    #[inline]
    pub(super) fn resume(&self, now: u64) -> bool {
        // Relaxed: see `pause`.
        let ran = self.state.load(Ordering::Relaxed) & RUNNING;
        let start = self.start.load(Ordering::Relaxed);
        ran != RUNNING && self.go_on(start.max(now.saturating_sub(ran)), now)
    }

    /// The transfer goes on as one that has begun at `start`, not earlier than before. True if the
    /// timer is to be filed for it.
    #[inline]
    pub(super) fn restart(&self, start: u64) -> bool {
        self.go_on(start, start)
    }

    #[inline]
    fn go_on(&self, start: u64, now: u64) -> bool {
        // Relaxed: see `pause`.
        self.resumed.store(now, Ordering::Relaxed);
        // The exchange after this makes it known to the timer that reads the state.
        self.start.store(start, Ordering::Relaxed);
        self.exchange(|_| RUNNING) & UNWATCHED != 0
    }

    /// Changes the state. Returns the one before.
    #[inline]
    fn exchange(&self, next: impl Fn(u64) -> u64) -> u64 {
        let next = |state| Some(next(state));
        // Release: pairs with the load in `is_running`, for the start that was stored before.
        let (Ok(before) | Err(before)) =
            self.state.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        before
    }

    fn is_running(&self) -> bool {
        // Acquire: pairs with the exchange of `restart`.
        self.state.load(Ordering::Acquire) & RUNNING == RUNNING
    }
}

/// A transfer of a connection.
#[derive(Debug)]
struct Measured {
    /// The kind of its deadline.
    kind: usize,
    /// When its event came; `NEVER` if none has come.
    event_at: Cell<u64>,
    /// Whether its guard has not ended it.
    is_live: bool,
    asked: Cell<Asked>,
    progress: Arc<Progress>,
}

impl Measured {
    /// When more bytes must have been transferred, or the socket is to be asked, if the transfer is
    /// not paused.
    fn due_running(&self) -> u64 {
        match self.asked.get() {
            Asked::Nothing => self.progress.due(),
            Asked::Again(at) => at.max(self.first_look()),
            Asked::Bytes(bytes) => self.progress.due_of(bytes),
        }
    }

    /// Whether the transfer goes on and its event has not come.
    fn is_on(&self) -> bool {
        self.event_at.get() == NEVER && self.progress.is_running()
    }

    /// Whether the transfer holds idle times back while it goes on.
    fn holds(&self) -> bool {
        // Relaxed: see `presume`.
        !self.progress.is_presumed.load(Ordering::Relaxed)
    }

    /// When the transfer is too slow; `NEVER` after its event.
    fn due(&self) -> u64 {
        if self.is_on() { self.due_running() } else { NEVER }
    }

    /// Whether its event that was not taken is still true. Otherwise the event is withdrawn, and
    /// comes again if the transfer is too slow again. It is not true during a pause: the owner has
    /// not looked for what had come.
    fn keep_event(&self, known: Option<&Acknowledged>) -> bool {
        self.forget_socket_unless_asked(known);
        let event_at = self.event_at.get();
        let is_true =
            event_at != NEVER && self.progress.is_running() && self.due_running() <= event_at;
        if event_at != NEVER && !is_true {
            self.event_at.set(NEVER);
            // A transfer that is paused has no deadline for which the timer could be filed now.
            self.unwatch(false);
        }
        is_true
    }

    /// Has the timer disregard the transfer: if it is paused, or in any case if `always` is set.
    fn unwatch(&self, always: bool) {
        let is_it = |state| always || state & RUNNING != RUNNING;
        self.progress.exchange(|state| if is_it(state) { state | UNWATCHED } else { state });
    }
}

/// The transfers of a connection.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    all: Vec<Measured>,
    /// What is known of the peer; `None` if no socket was asked.
    known: Option<Box<Acknowledged>>,
}

impl Transfers {
    fn of(&self, kind: usize) -> impl Iterator<Item = &Measured> {
        self.all.iter().filter(move |transfer| transfer.is_live && transfer.kind == kind)
    }

    /// The writes whose time is limited and not up. One whose socket is to be asked is among them.
    fn writes(&self) -> impl Iterator<Item = &Measured> {
        let known = self.known.as_deref();
        let is_on = move |write: &&Measured| write.progress.is_running() && !write.is_late(known);
        self.of(WRITES).filter(is_on)
    }

    /// When the first transfer of a kind is too slow.
    pub(super) fn due(&self, kind: usize) -> u64 {
        self.of(kind).map(Measured::due).min().unwrap_or(NEVER)
    }

    /// Whether one of these writes holds idle times back.
    pub(super) fn is_writing(&self) -> bool {
        self.writes().any(Measured::holds)
    }

    /// When the first of these writes has begun; `NEVER` if none goes on.
    pub(super) fn first_start(&self) -> u64 {
        let starts = self.writes().map(|write| write.progress.start.load(Ordering::Relaxed));
        starts.min().unwrap_or(NEVER)
    }

    /// Whether one of these writes holds idle times back, and is not late by `now`.
    pub(super) fn is_in_time(&self, now: u64) -> bool {
        let known = self.known.as_deref();
        self.writes().any(|write| write.holds() && write.late_at(known) > now)
    }

    /// Whether the event of a write is true. What is known of a peer may refute it.
    pub(super) fn keep_write_event(&self) -> bool {
        let known = self.known.as_deref();
        self.of(WRITES).any(|write| write.is_late(known) || write.put_off(known))
    }

    /// Begins a transfer.
    pub(super) fn begin(&mut self, kind: usize, rate: DataRate, now: u64) -> Arc<Progress> {
        let ended = self.all.iter().position(|transfer| !transfer.is_live);
        let mut progress =
            ended.map_or_else(Arc::default, |ended| self.all.swap_remove(ended).progress);
        // What a guard that was not dropped refers to is still that guard's.
        if Arc::get_mut(&mut progress).is_none() {
            progress = Arc::default();
        }
        let own = Arc::get_mut(&mut progress).expect("no guard has it yet");
        own.bytes_per_second = rate.bytes_per_second;
        own.grace = saturating_nanos(rate.grace);
        progress.bytes.store(0, Ordering::Relaxed);
        progress.is_presumed.store(false, Ordering::Relaxed);
        progress.restart(now);
        self.all.reserve_exact(1);
        self.all.push(Measured {
            kind,
            event_at: Cell::new(NEVER),
            is_live: true,
            asked: Cell::new(Asked::Nothing),
            progress: Arc::clone(&progress),
        });
        progress
    }

    /// Ends a transfer. Returns its kind, and whether it was in time; `None` if it has ended.
    pub(super) fn end(&mut self, progress: &Arc<Progress>) -> Option<(usize, bool)> {
        let is_it =
            |transfer: &Measured| transfer.is_live && Arc::ptr_eq(&transfer.progress, progress);
        let at = self.all.iter().position(is_it)?;
        let transfer = &mut self.all[at];
        let ended = (transfer.kind, !transfer.is_late(self.known.as_deref()));
        transfer.is_live = false;
        if self.all.len() > KEPT {
            self.all.swap_remove(at);
        }
        Some(ended)
    }

    /// Ends all transfers of a kind.
    pub(super) fn end_all(&mut self, kind: usize) {
        for transfer in &mut self.all {
            transfer.is_live &= transfer.kind != kind;
        }
    }

    /// Takes the deadlines of a kind that are due. False if none is.
    pub(super) fn take_due(&self, kind: usize, now: u64) -> bool {
        let mut is_any = false;
        for transfer in self.of(kind).filter(|transfer| transfer.due() <= now) {
            // The guard sees the mark, unless it has changed the transfer before.
            transfer.unwatch(true);
            if transfer.due() <= now {
                transfer.event_at.set(now);
                is_any = true;
            }
        }
        is_any
    }

    /// When the last event of a kind came; `None` if none is left.
    pub(super) fn came_at(&self, kind: usize) -> Option<Moment> {
        let events = self.of(kind).map(|transfer| transfer.event_at.get());
        events.filter(|at| *at != NEVER).max().map(Moment::at)
    }

    /// Whether an event of a rate that was not taken is still true.
    pub(super) fn keep_event(&self, kind: usize) -> bool {
        let known = self.known.as_deref();
        self.of(kind).any(|transfer| transfer.keep_event(known))
    }

    /// The timer does not regard the transfers that are paused, or any if `all` is set.
    pub(super) fn unwatch(&self, all: bool) {
        self.all.iter().for_each(|transfer| transfer.unwatch(all));
    }
}

/// When an event came that a look at the socket may refute; `None` of another one.
pub(super) fn came_at(rare: Option<&Rare>, kind: usize) -> Option<Moment> {
    match rule(kind) {
        Rule::Idle { .. } => rare?.event_at[kind - IDLE.start],
        Rule::Writes | Rule::Rate(_) => rare?.transfers.came_at(kind),
        Rule::Opened { .. } | Rule::After | Rule::Armed => None,
    }
}

/// How long a number of bytes takes at a rate, in nanoseconds, rounded up; `NEVER` if that does not
/// fit.
fn time_of(bytes: u64, bytes_per_second: u64) -> u64 {
    // A division of 128 bits takes several times as long.
    if let Some(nanos) = bytes.checked_mul(SECOND) {
        return nanos.div_ceil(bytes_per_second);
    }
    let nanos = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(bytes_per_second));
    u64::try_from(nanos).unwrap_or(NEVER)
}

/// How many bytes a time is worth at a rate, rounded down.
fn bytes_in(nanos: u64, bytes_per_second: u64) -> u64 {
    let bytes = u128::from(nanos) * u128::from(bytes_per_second) / u128::from(SECOND);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use std::time::Duration;

    use loom::thread;

    use super::{Arc, DataRate, NEVER, SECOND, Transfers};
    use crate::link::loom_tests::{BEGIN, check};

    #[test]
    fn bytes_that_two_threads_add_are_both_counted() {
        check(|| {
            let mut transfers = Transfers::default();
            let count = transfers.begin(0, DataRate::new(1, Duration::ZERO), BEGIN);
            let other = Arc::clone(&count);
            let thread = thread::spawn(move || other.add(7));
            count.add(5);
            thread.join().unwrap();
            assert_eq!(transfers.due(0), BEGIN + 12 * SECOND);
        });
    }

    #[test]
    fn transfer_that_is_resumed_while_the_timer_expires_is_regarded_or_filed() {
        check(|| {
            let mut transfers = Transfers::default();
            let progress = transfers.begin(0, DataRate::new(1, Duration::ZERO), BEGIN);
            progress.pause(BEGIN + 1);
            let thread = thread::spawn(move || progress.resume(BEGIN + 100));
            transfers.unwatch(false);
            let due = transfers.due(0);
            let is_filed = thread.join().unwrap();
            assert!(due == NEVER || due == BEGIN + 99, "the pause does not count at {due}");
            assert!(is_filed || due == BEGIN + 99, "the deadline does not come");
        });
    }
}
