//! What the handles of a connection share: stamps that any thread stores, and deadlines in a lock.
//!
//! A poll looks at the deadlines when the tick has begun for which they are filed, as a turn of a
//! shard does for the connections that live on it. The sleep only wakes the task.
//!
//! Why not the user's waker in the timer: cloning and dropping a waker run code of the user, which
//! may use the connection, and the timer is polled while the lock is held. The timer has a waker of
//! the connection's own, which wakes the task that waits.
//!
//! Invariants: `filed` is not later than the first deadline. No code of the user runs while the
//! lock is held. A connection that is closed has no timer.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;

use super::super::kinds::{DeadlineKind, Direction, JUDGED};
use super::super::limits::{ConnEvent, ConnLimits, Spans, Wanted};
use super::super::marks::Flags;
use super::super::measured::Progress;
use super::super::moment::{AtomicMoment, Moment};
use super::super::rules::{self, Facts, Held, InProgressCounts, Place, Rare};
use super::super::side::{Connection, Wakes};
use super::share::share;
use crate::clock::{NearClock, Timeline};
use crate::directory::orders::{Group, Member, Terms, Visit};
use crate::face::handle::AnyHandle;
use crate::face::handle::sleep::Sleep;
use crate::link::owners::OwnerCount;
use crate::pass::{self, Limit, Pass, Verdict, Wait, is_simulated};
use crate::stats::tally::Tally;
use crate::values::refused::RefusedKind;

/// How often one poll puts its timer off before it lets the task return to its executor.
const TRIES: u32 = 3;

/// What comes of a poll: an event, `None` if the connection is closed, or why there is no timer.
pub(super) type Polled = Poll<Result<Option<ConnEvent>, RefusedKind>>;

/// What a poll has found.
enum Found {
    Event(ConnEvent),
    /// Nothing to take.
    Nothing,
    /// The task is to poll again: the near clock shows the time of the deadlines and the clock does
    /// not show it, or the task is to poll after a pass what the deadlines guard.
    Again,
    /// The poll is to ask its host for this pass, which has begun.
    Ask(Arc<Wait>),
}

/// What the handles and guards of one connection share.
pub(in crate::conn) struct Inner {
    /// How many handles keep the connection open.
    owners: OwnerCount,
    /// `None` if the service had ended when the connection began.
    time: Option<Timeline>,
    opened: u64,
    /// When the connection was last active in each way. None goes back.
    stamps: [AtomicMoment; 3],
    /// The task that waits for events.
    task: AtomicWaker,
    /// The connections among which its shard finds it; `None` if the service had ended, or has no
    /// such shard.
    group: Option<Arc<Group>>,
    /// The place among the members of the group.
    place: AtomicU32,
    /// Before this time no event has come. Changed under the lock of the state.
    quiet_until: AtomicU64,
    state: Mutex<State>,
}

#[cfg(not(all(test, corewheel_loom)))]
const _: () = assert!(size_of::<Inner>() <= 272);

struct State {
    limits: Arc<Spans>,
    flags: Cell<Flags>,
    in_progress: InProgressCounts,
    rare: Option<Box<Rare>>,
    /// When the clock was last looked at. The rules decide by it.
    looked: u64,
    /// When the tick begins in which a poll looks at the deadlines, in nanoseconds.
    filed: u64,
    /// `None` if the connection is closed.
    sleep: Option<Sleep>,
    /// Of the events that have come and that data in a socket may refute: it has begun after the
    /// last of them has come, or has not begun.
    pass: Pass,
    /// When the last of them was due.
    last_due: u64,
    /// Whether the connection began after the end of the service, and no task was told.
    owes_closed: bool,
    /// Whether the task watches no deadline, and is woken for the first.
    is_unwatched: bool,
}

impl State {
    /// Resets the timer of an open connection to the tick for which it is filed.
    fn reset_sleep(&mut self) {
        if let Some(sleep) = &mut self.sleep {
            sleep.reset_to(self.filed);
        }
    }

    /// What is decided about the events that have come.
    fn judge(&mut self, looks: Option<u64>) -> Verdict {
        let Self { pass, sleep, last_due, .. } = self;
        pass.judge(looks, || {
            let looks = looks.unwrap_or_else(pass::looks);
            sleep.as_ref().is_some_and(|sleep| sleep.is_proven(looks, *last_due))
        })
    }
}

impl Inner {
    pub(super) fn new(handle: AnyHandle, limits: ConnLimits) -> Arc<Self> {
        let (now, time) = (handle.nanos(), handle.time());
        let state = State {
            limits: share(limits),
            flags: Cell::new(Flags::new(handle.next_salt())),
            in_progress: InProgressCounts::default(),
            rare: None,
            looked: now,
            filed: u64::MAX,
            sleep: None,
            pass: Pass::NONE,
            last_due: 0,
            owes_closed: time.is_none(),
            is_unwatched: false,
        };
        let inner = Self {
            owners: OwnerCount::default(),
            time,
            opened: now,
            stamps: Default::default(),
            task: AtomicWaker::new(),
            group: handle.group(),
            place: AtomicU32::new(0),
            quiet_until: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        if let Some(time) = &inner.time {
            let mut state = inner.lock();
            let first = rules::first_due(&inner.facts(&mut state));
            inner.file_at(&mut state, time.round_up(first));
            let mut sleep = Sleep::new(handle, state.filed);
            sleep.guard();
            state.sleep = Some(sleep);
        }
        let inner = Arc::new(inner);
        if let Some(group) = &inner.group {
            let member: Weak<Self> = Arc::downgrade(&inner);
            let (place, is_draining) = group.enter(member);
            // Relaxed: only the drop of the last handle reads it.
            inner.place.store(place, Ordering::Relaxed);
            if is_draining {
                inner.visit(Visit::Tell);
            }
        }
        inner
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a task that watches no deadline.
    fn watch(&self, mut state: MutexGuard<'_, State>) {
        if std::mem::take(&mut state.is_unwatched) {
            drop(state);
            self.task.wake();
        }
    }

    fn facts<'a>(&self, state: &'a mut State) -> Facts<'a, &'a mut Option<Box<Rare>>> {
        Facts {
            is_open: state.sleep.is_some(),
            present: state.looked,
            opened: self.opened,
            stamps: self.stamps.each_ref().map(AtomicMoment::get),
            in_progress: state.in_progress,
            spans: &state.limits,
            terms: self.group.as_ref().map_or(Terms::default(), |group| group.terms()),
            flags: &state.flags,
            place: &mut state.rare,
        }
    }
}

/// Deadlines and events.
impl Inner {
    /// Files an open connection for its first deadline: if that is earlier now, or `anew`, after
    /// what was due was taken. True if it is filed for another tick.
    fn file(&self, state: &mut State, anew: bool) -> bool {
        let facts = self.facts(state);
        let first = if anew { rules::next_look(&facts) } else { rules::first_due(&facts) };
        self.file_for(state, first, anew)
    }

    /// Files an open connection for its first deadline, as [`file`](Self::file) does.
    fn file_for(&self, state: &mut State, first: u64, anew: bool) -> bool {
        let (Some(time), true) = (&self.time, state.sleep.is_some()) else { return false };
        let filed = time.round_up(first);
        let is_changed = anew || filed < state.filed;
        if is_changed {
            self.file_at(state, filed);
        }
        is_changed
    }

    fn file_at(&self, state: &mut State, filed: u64) {
        state.filed = filed;
        self.set_quiet(state);
    }

    /// Relaxed: a poll that waits takes the lock.
    fn set_quiet(&self, state: &State) {
        let is_quiet = state.flags.get().pending() == 0;
        self.quiet_until.store(if is_quiet { state.filed } else { 0 }, Ordering::Relaxed);
    }

    /// `Err` where the poll returns nothing, with what it is to do.
    fn poll_locked(
        self: &Arc<Self>,
        state: &mut State,
        looks: Option<u64>,
        wanted: impl Wanted,
    ) -> Result<Polled, Found> {
        for _ in 0..TRIES {
            if state.sleep.is_some() {
                self.take_due(state);
            }
            match self.next_decided(state, looks, &wanted) {
                Found::Event(event) => return Ok(Poll::Ready(Ok(Some(event)))),
                Found::Nothing => {}
                found => return Err(found),
            }
            let filed = state.filed;
            let Some(sleep) = &mut state.sleep else {
                let is_owed = std::mem::take(&mut state.owes_closed);
                let closed = if is_owed { Err(RefusedKind::Closed) } else { Ok(None) };
                return Ok(Poll::Ready(closed));
            };
            if sleep.due() != filed {
                sleep.reset_to(filed);
            }
            let waker = Waker::from(Arc::clone(self));
            let slept = sleep.poll_borrowed(&Context::from_waker(&waker));
            let Poll::Ready(slept) = slept else { return Ok(Poll::Pending) };
            // The next poll, here or in another call, needs a timer again.
            sleep.reset_to(filed);
            if let Err(refused) = slept {
                return Ok(Poll::Ready(Err(refused)));
            }
        }
        Err(Found::Again)
    }

    /// Takes the deadlines that are due, if the tick has begun for which the connection is filed.
    fn take_due(&self, state: &mut State) {
        let Some(time) = &self.time else { return };
        let near = NearClock::new(time.clock()).nanos();
        state.looked = near;
        if near < state.filed {
            return;
        }
        // The near clock may be ahead. An event never comes early.
        let now = time.nanos();
        if now < state.filed {
            return;
        }
        state.looked = now;
        let (kinds, last_due) = rules::take_due(&mut self.facts(state));
        if kinds & JUDGED != 0 {
            (state.pass, state.last_due) = (Pass::NONE, last_due.max(state.last_due));
        }
        self.file(state, true);
    }

    /// Takes the next event that has come, is wanted, and that the sockets have not refuted.
    fn next_decided(
        self: &Arc<Self>,
        state: &mut State,
        looks: Option<u64>,
        wanted: impl Wanted,
    ) -> Found {
        if state.flags.get().pending() & JUDGED == 0 {
            state.pass = Pass::NONE;
        }
        if state.flags.get().pending() == 0 {
            return Found::Nothing;
        }
        // A test that moves the clock decides itself what is in time, except with simulated
        // sockets.
        let is_manual = self.time.as_ref().is_some_and(|time| time.clock().is_manual());
        if is_manual && !is_simulated() {
            return self.next_event(state, wanted).map_or(Found::Nothing, Found::Event);
        }
        let (judged, may_be_earlier) = rules::judged(&self.facts(state), &wanted);
        if may_be_earlier {
            self.file(state, false);
        }
        let verdict = if judged == 0 { Verdict::Wait } else { state.judge(looks) };
        let is_next = |kind: DeadlineKind| verdict == Verdict::Late || !kind.is_judged();
        let event = self.next_event(state, |kind, at| is_next(kind) && wanted(kind, at));
        match (event, verdict) {
            (Some(event), _) => Found::Event(event),
            (None, Verdict::Ask) => Found::Ask(state.pass.renew(&Waker::from(Arc::clone(self)))),
            (None, Verdict::Again) => Found::Again,
            (None, Verdict::Wait | Verdict::Late) => Found::Nothing,
        }
    }

    fn next_event(self: &Arc<Self>, state: &mut State, wanted: impl Wanted) -> Option<ConnEvent> {
        let (event, may_be_earlier) = rules::next_event(&mut self.facts(state), wanted);
        if may_be_earlier {
            self.file(state, false);
        }
        event.inspect(|event| self.with_tally(|tally| event.kind.count_in(tally)))
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

    fn with_tally(&self, count: impl FnOnce(&Tally)) {
        if let Some(group) = &self.group {
            count(group.tally());
        }
    }

    fn close(&self) -> bool {
        let (sleep, ended_by) = {
            let mut state = self.lock();
            let ended_by = rules::ended_by(&self.facts(&mut state));
            state.flags.set(state.flags.get().with_pending(0));
            // Its waker is that of the connection.
            state.pass = Pass::NONE;
            (state.sleep.take(), ended_by)
        };
        let is_open = sleep.is_some();
        drop(sleep);
        if is_open {
            self.with_tally(|tally| tally.count_end(ended_by));
            self.task.wake();
        }
        is_open
    }

    fn time(&self) -> Option<&Timeline> {
        self.time.as_ref()
    }

    #[inline]
    fn now(&self) -> u64 {
        self.time.as_ref().map_or(u64::MAX, |time| NearClock::new(time.clock()).nanos())
    }

    #[inline]
    fn stamp_at(&self, now: Option<u64>) -> Moment {
        Moment::at(now.unwrap_or_else(|| self.now()))
    }

    #[inline]
    fn stamp(&self, direction: Direction, stamp: Moment) {
        self.stamps[direction as usize].set_later(stamp);
    }

    fn stamp_all(&self, stamps: rules::Stamps) {
        for (stamp, at) in self.stamps.iter().zip(stamps) {
            if let Some(at) = at {
                stamp.set_later(at);
            }
        }
    }

    fn begin(&self, held: Held) {
        let count = &mut self.lock().in_progress[held as usize];
        *count = count.checked_add(1).expect("fewer than 2^32 guards");
    }

    /// The stamp is stored under the lock, so that a poll sees it or what was in progress.
    fn end(&self, held: Held, at: Option<Moment>) {
        let at = at.unwrap_or_else(|| self.stamp_at(None));
        let mut state = self.lock();
        self.stamps[held.stamp()].set_later(at);
        let count = &mut state.in_progress[held as usize];
        *count = count.checked_sub(1).expect("each end has a beginning");
    }

    #[inline]
    fn add(progress: &Progress, bytes: u64) {
        progress.add(bytes);
    }

    /// Looks at the facts as of the last poll.
    fn look<R>(&self, look: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> R) -> R {
        look(&mut self.facts(&mut self.lock()))
    }

    /// The timer is reset in its slot if the first deadline is earlier now, so that the task that
    /// waits need not be woken for that, unless it [watches none](Connection::leave_unwatched).
    /// Without a timer, no task waits for this deadline: its next poll arms one.
    fn change<R>(
        &self,
        wakes: Wakes,
        change: impl FnOnce(&mut Facts<'_, Self::Place<'_>>) -> (R, u64),
    ) -> R {
        let mut state = self.lock();
        let (result, earliest) = change(&mut self.facts(&mut state));
        let is_filed = earliest < state.filed
            && match earliest {
                0 => self.file(&mut state, false),
                first => self.file_for(&mut state, first, false),
            };
        if is_filed && wakes == Wakes::Task {
            state.reset_sleep();
            self.watch(state);
        }
        result
    }

    fn with_limits<R>(&self, look: impl FnOnce(&ConnLimits) -> R) -> R {
        look(&self.lock().limits.limits)
    }

    fn store_limits(&self, limits: ConnLimits) {
        let mut state = self.lock();
        state.limits = share(limits);
        self.watch(state);
    }

    fn leave_unwatched(&self) -> bool {
        let mut state = self.lock();
        let is_quiet = state.filed == u64::MAX && state.flags.get().pending() == 0;
        state.is_unwatched = state.sleep.is_some() && is_quiet && state.limits.is_off();
        state.is_unwatched
    }

    fn due(&self, kind: usize) -> u64 {
        let mut state = self.lock();
        state.looked = self.now();
        rules::open_due(&self.facts(&mut state), kind)
    }

    fn take(&self, wanted: impl Wanted) -> Option<ConnEvent> {
        // Relaxed: see `set_quiet`.
        if self.now() < self.quiet_until.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.lock();
        state.sleep.as_ref()?;
        self.take_due(&mut state);
        self.next_event(&mut state, |kind, at| !kind.is_judged() && wanted(kind, at))
    }

    fn poll(&self, cx: &mut Context<'_>, looks: Option<u64>, wanted: impl Wanted) -> Polled {
        // First of all, so that no event and no change comes in between.
        self.task.register(cx.waker());
        let mut state = self.lock();
        let before = state.flags.get().pending();
        let polled = self.poll_locked(&mut state, looks, wanted);
        self.set_quiet(&state);
        // The end of a pass wakes the task for all events that wait for it.
        let asked = if state.pass.has_begun() { JUDGED } else { 0 };
        let is_left = state.flags.get().pending() & !before & !asked != 0;
        let is_ended = matches!(polled, Ok(Poll::Ready(Err(RefusedKind::Closed))));
        let ended = is_ended.then(|| (state.sleep.take(), std::mem::take(&mut state.pass)));
        drop(state);
        drop(ended);
        if is_left {
            // This poll has found events that it does not take, for which another task may wait.
            self.task.wake();
        }
        polled.unwrap_or_else(|found| {
            // No lock is held, as the host may wake others.
            if !matches!(found, Found::Ask(pass) if !pass.ask()) {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
    }
}

/// As the shard visits it. The timer is reset here, so that the task need not be woken for that.
impl Member for Inner {
    fn visit(&self, visit: Visit) -> Option<u64> {
        let time = self.time.as_ref()?;
        let mut state = self.lock();
        // What is in progress holds deadlines back until now, and not only until the last poll. The
        // near clock may be ahead, and an event never comes early.
        state.looked = time.nanos();
        let found = rules::visit(&mut self.facts(&mut state), visit);
        let is_told = visit == Visit::Tell && found.is_some();
        if is_told {
            // Deadlines that were due have come, too, by now.
            (state.pass, state.last_due) = (Pass::NONE, state.looked);
        }
        if visit != Visit::FindIdle && self.file(&mut state, is_told) {
            state.reset_sleep();
        }
        drop(state);
        if is_told {
            self.task.wake();
        }
        found
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // Relaxed: see `new`.
            group.leave(self.place.load(Ordering::Relaxed));
        }
    }
}

/// The timer wakes the task that waits.
impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.task.wake();
    }
}

impl Place for &mut Option<Box<Rare>> {
    fn rare(&self) -> Option<&Rare> {
        self.as_deref()
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.get_or_insert_default()
    }
}
