//! A shard and its slow, obvious twin, driven in step and compared after each operation.
//!
//! The twin is an ordered map from places to timers. A place is a tick and a sequence number, so
//! that reading the map from its front is what a shard promises: by deadline, and within a tick in
//! the order of filing. A timer that is late when it is scheduled has a place behind all others of
//! the tick that the shard has been told, and is not delivered in the same turn.
//!
//! The twin follows the contract and not the code, so one thing that the contract leaves open is
//! left open here as well: where within its tick a timer comes that was moved later. As long as
//! nothing is scheduled, cancelled or moved, [`Shard::peek`] must go on naming the timer that comes
//! next. On the hashed wheel it may name another where both were moved later onto the same tick.

use std::collections::BTreeMap;

use corewheel_shard::{
    ArmOutcome, Budget, CancelOutcome, Counters, Expired, Full, ResetOutcome, Shard, ShardConfig,
    Tick, TimerKey, WheelKind,
};

/// Entries that are looked at beyond the budget: the rest of a chunk, and of the chunk before.
const WORK_SLACK: u64 = 14 + 15;
/// Entries that a turn may leave off the wheel and the next one looks at whatever its budget.
const LEFT_MAX: u64 = 64;
/// Where there have never been more entries than this, nothing is swept, and all work is that of
/// the turn.
const UNSWEPT_MAX: usize = 512;

pub(crate) struct Twin {
    pub(crate) shard: Shard<u64>,
    /// Whether everything is compared after each operation and not only what it has answered,
    /// which takes most of the time.
    pub(crate) thorough: bool,
    pending: BTreeMap<TimerKey, Timer>,
    order: BTreeMap<Place, TimerKey>,
    /// What the shard has named as next, while nothing has changed since.
    peeked: Option<TimerKey>,
    wheel: WheelKind,
    grants: BTreeMap<TimerKey, Grant>,
    /// The generation last seen in each slot, and whether its timer has fired.
    slots: BTreeMap<u32, (u32, bool)>,
    expected: Counters,
    sequence: u64,
    horizon: u64,
    /// Whether the last turn was brought to its end.
    turn_done: bool,
    turn: u64,
    budget: Budget,
    popped: u32,
    work: u64,
    /// How much the turns before may have left off the wheel.
    left_max: u64,
    /// Whether the sweep may have begun, whose work is not that of a turn.
    swept: bool,
}

#[derive(Clone, Copy)]
struct Timer {
    task: u64,
    deadline: u64,
    place: Place,
    /// The turn in which it was late when it was scheduled: it is not delivered in that one.
    late_in: Option<u64>,
    /// Whether it was moved later, so that its place within its tick is not told.
    moved: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    tick: u64,
    /// Due when it was scheduled: comes after what was filed for the tick.
    late: bool,
    sequence: u64,
}

#[derive(Clone, Copy)]
enum Grant {
    Plain,
    Redirected(u64),
    Doomed,
}

/// What a key names.
#[derive(Clone, Copy)]
enum Fate {
    Pending(Timer),
    Granted(Grant),
    Fired,
    Stale,
}

/// Operations, each done to both and compared.
impl Twin {
    pub(crate) fn new(config: ShardConfig) -> Self {
        Self {
            shard: Shard::new(config).expect("the tests ask for what can be had"),
            thorough: true,
            pending: BTreeMap::new(),
            order: BTreeMap::new(),
            peeked: None,
            wheel: config.wheel,
            grants: BTreeMap::new(),
            slots: BTreeMap::new(),
            expected: Counters::default(),
            sequence: 0,
            horizon: config.start.index(),
            turn_done: true,
            turn: 0,
            budget: Budget { expired_max: 0, work_max: 0 },
            popped: 0,
            work: 0,
            left_max: 0,
            swept: false,
        }
    }

    pub(crate) fn schedule(&mut self, deadline: Tick) -> Option<TimerKey> {
        let task = self.next_sequence();
        let key = if self.is_full() {
            assert_eq!(self.shard.schedule(deadline, task), Err(Full(task)));
            self.expected.refused += 1;
            None
        } else {
            let key = self.shard.schedule(deadline, task).expect("there is room");
            self.note_new_key(key);
            self.expected.scheduled_local += 1;
            self.insert(key, deadline.index(), task);
            Some(key)
        };
        self.check();
        key
    }

    pub(crate) fn cancel(&mut self, key: TimerKey) {
        let outcome = self.shard.cancel(key);
        match self.fate(key) {
            Fate::Pending(timer) => {
                let deadline = Tick::new(timer.deadline);
                assert_eq!(outcome, CancelOutcome::Cancelled { deadline, task: timer.task });
                self.remove(key, false);
                self.expected.cancelled += 1;
            }
            Fate::Granted(Grant::Plain | Grant::Redirected(_)) => {
                assert_eq!(outcome, CancelOutcome::Overtook);
                self.grants.insert(key, Grant::Doomed);
            }
            Fate::Fired => {
                assert_eq!(outcome, CancelOutcome::AlreadyFired);
                self.expected.stale += 1;
            }
            Fate::Granted(Grant::Doomed) | Fate::Stale => {
                assert_eq!(outcome, CancelOutcome::Stale);
                self.expected.stale += 1;
            }
        }
        self.check();
    }

    pub(crate) fn reset(&mut self, key: TimerKey, deadline: Tick) {
        let outcome = self.shard.reset(key, deadline);
        match self.fate(key) {
            Fate::Pending(timer) => {
                assert_eq!(outcome, ResetOutcome::Moved);
                assert_eq!(self.shard.deadline(key), Some(deadline));
                self.displace(&timer);
                if deadline.index() >= timer.deadline {
                    self.expected.reset_lazy += 1;
                    self.postpone(key, timer, deadline.index());
                } else {
                    self.expected.reset_relinked += 1;
                    self.insert(key, deadline.index(), timer.task);
                }
            }
            Fate::Granted(Grant::Plain | Grant::Redirected(_)) => {
                assert_eq!(outcome, ResetOutcome::Overtook);
                self.grants.insert(key, Grant::Redirected(deadline.index()));
            }
            Fate::Fired => {
                assert_eq!(outcome, ResetOutcome::AlreadyFired);
                self.expected.stale += 1;
            }
            Fate::Granted(Grant::Doomed) | Fate::Stale => {
                assert_eq!(outcome, ResetOutcome::Stale);
                self.expected.stale += 1;
            }
        }
        self.check();
    }

    pub(crate) fn grant(&mut self) -> Option<TimerKey> {
        let full = self.is_full();
        let key = self.shard.grant();
        assert_eq!(key.is_none(), full, "a key is granted where there is room");
        if let Some(key) = key {
            self.note_new_key(key);
            self.grants.insert(key, Grant::Plain);
        }
        self.check();
        key
    }

    pub(crate) fn arm(&mut self, key: TimerKey, deadline: Tick) {
        let task = self.next_sequence();
        let outcome = self.shard.arm(key, deadline, task);
        match self.grants.remove(&key) {
            None => assert_eq!(outcome, ArmOutcome::NotGranted(task)),
            Some(Grant::Doomed) => {
                assert_eq!(outcome, ArmOutcome::Overtaken(task));
                self.note_end(key, false);
                self.expected.scheduled_remote += 1;
                self.expected.cancelled += 1;
                self.expected.overtaken += 1;
            }
            Some(grant) => {
                assert_eq!(outcome, ArmOutcome::Armed);
                let redirected = if let Grant::Redirected(to) = grant { Some(to) } else { None };
                self.expected.scheduled_remote += 1;
                self.insert(key, redirected.unwrap_or(deadline.index()), task);
            }
        }
        self.check();
    }

    pub(crate) fn revoke(&mut self, key: TimerKey) {
        let granted = self.grants.remove(&key).is_some();
        assert_eq!(self.shard.revoke(key), granted);
        if granted {
            self.note_end(key, false);
        }
        self.check();
    }

    pub(crate) fn advance(&mut self, now: Tick, budget: Budget) {
        self.shard.advance(now, budget);
        if self.turn_done {
            self.left_max = 0;
        } else {
            let left = u64::from(self.budget.work_max).saturating_add(14);
            self.left_max = self.left_max.max(left).min(LEFT_MAX);
        }
        self.turn_done = false;
        self.turn += 1;
        self.horizon = self.horizon.max(now.index());
        (self.budget, self.popped, self.work) = (budget, 0, 0);
        self.check();
    }

    /// Hands out one timer; false if there is none.
    pub(crate) fn pop(&mut self) -> bool {
        let before = self.work_done();
        let named = self.peeked.take().or_else(|| self.shard.peek());
        let expired = self.shard.pop_expired();
        match &expired {
            Some(expired) => self.check_named(named, expired.key),
            None => self.peeked = named,
        }
        self.work += self.work_done() - before;
        if let Some(expired) = &expired {
            self.note_fired(expired);
        } else {
            self.note_turn_over();
        }
        let work_max = u64::from(self.budget.work_max).max(self.left_max) + WORK_SLACK;
        let within = self.swept || self.work <= work_max;
        assert!(within, "{} entries under {:?}", self.work, self.budget);
        self.check();
        expired.is_some()
    }

    /// Takes `count` timers out, or as many as there are.
    pub(crate) fn drain(&mut self, count: usize) {
        let drained: Vec<_> = self.shard.drain().take(count).collect();
        assert_eq!(drained.len(), count.min(self.pending.len()));
        for Expired { key, deadline, task } in drained {
            let timer = self.remove(key, false);
            assert_eq!((deadline.index(), task), (timer.deadline, timer.task));
            self.expected.returned += 1;
        }
        self.check();
    }

    /// Turns until nothing is pending, each time at the tick that the shard asks for.
    pub(crate) fn run_out(&mut self, budget: Budget) {
        let entries = self.shard.entries() as u64 + 2;
        // Every turn does something about an entry: at most once a level, or once a round in which
        // another is due; and for each level that is begun, a turn may only find it to be done.
        let turns_max = 2 * entries * (entries + u64::from(u64::BITS)) + 64;
        for _ in 0..turns_max {
            let Some(next) = self.shard.next_deadline() else {
                assert_eq!(self.pending.len(), 0, "nothing is next and something pending");
                return;
            };
            self.advance(next, budget);
            while self.pop() {}
        }
        panic!("{} timers are pending after {turns_max} turns", self.pending.len());
    }
}

/// Questions.
impl Twin {
    pub(crate) fn now(&self) -> u64 {
        self.horizon
    }

    /// The pending timer with this number, counted from the oldest slot.
    pub(crate) fn nth_pending(&self, number: usize) -> Option<(TimerKey, u64)> {
        let number = number.checked_rem(self.pending.len())?;
        self.pending.iter().nth(number).map(|(key, timer)| (*key, timer.deadline))
    }

    fn is_full(&self) -> bool {
        self.pending.len() + self.grants.len() == self.shard.capacity()
    }

    fn fate(&self, key: TimerKey) -> Fate {
        if let Some(timer) = self.pending.get(&key) {
            Fate::Pending(*timer)
        } else if let Some(grant) = self.grants.get(&key) {
            Fate::Granted(*grant)
        } else if self.slots.get(&key.index()) == Some(&(key.generation().get(), true)) {
            Fate::Fired
        } else {
            Fate::Stale
        }
    }

    fn work_done(&self) -> u64 {
        let counters = self.shard.counters();
        counters.fired + counters.cascaded + counters.swept
    }

    fn check(&mut self) {
        if self.thorough {
            self.shard.check_invariants();
            self.compare();
        }
    }

    /// Compares all that can be seen.
    pub(crate) fn compare(&mut self) {
        let len = self.pending.len();
        assert_eq!((self.shard.len(), self.shard.is_empty()), (len, len == 0));
        assert_eq!((self.shard.granted(), self.shard.retired()), (self.grants.len(), 0));
        assert_eq!(self.shard.now().index(), self.horizon);
        let counters = *self.shard.counters();
        (self.expected.cascaded, self.expected.swept) = (counters.cascaded, counters.swept);
        assert_eq!(counters, self.expected);
        assert_eq!(counters.pending(), len as u64);
        let filed = counters.scheduled_local + counters.scheduled_remote - counters.overtaken
            + counters.reset_relinked;
        let entries = filed - counters.fired - counters.swept;
        assert_eq!(self.shard.entries() as u64, entries, "each entry is accounted for");
        let next = self.shard.next_deadline().map(Tick::index);
        assert_eq!(next.is_none(), len == 0, "something is next exactly if something is pending");
        let peeked = self.shard.peek();
        assert_eq!(peeked.is_none(), len == 0, "one is the first exactly if one is pending");
        if let Some(first) = peeked {
            self.check_next(first);
        }
        if let (Some(first), Some(_)) = (peeked, self.peeked) {
            self.check_named(self.peeked, first);
        }
        self.peeked = peeked;
        let earliest = self.order.keys().next().map(|place| place.tick);
        if let (Some(next), Some(earliest)) = (next, earliest) {
            let bound = earliest.max(self.horizon);
            assert!(next <= bound, "next is {next}, and a timer is due at {bound}");
        }
    }
}

/// The twin's own book-keeping.
impl Twin {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn note_new_key(&mut self, key: TimerKey) {
        let generation = key.generation().get();
        assert_eq!(generation % 2, 1, "{key:?} names an occupied slot");
        let before = self.slots.insert(key.index(), (generation, false));
        let fresh = before.is_none_or(|(before, _)| before < generation);
        assert!(fresh, "{key:?} was handed out before");
    }

    fn note_end(&mut self, key: TimerKey, fired: bool) {
        self.slots.insert(key.index(), (key.generation().get(), fired));
    }

    fn insert(&mut self, key: TimerKey, deadline: u64, task: u64) {
        self.swept |= self.shard.entries() > UNSWEPT_MAX;
        let sequence = self.next_sequence();
        let late = deadline <= self.horizon;
        let place = Place { tick: deadline.max(self.horizon), late, sequence };
        let late_in = late.then_some(self.turn);
        self.put(key, Timer { task, deadline, place, late_in, moved: false });
    }

    fn put(&mut self, key: TimerKey, timer: Timer) {
        assert_eq!(self.order.insert(timer.place, key), None, "a place is taken once");
        self.peeked = None;
        self.pending.insert(key, timer);
        self.expected.pending_max = self.expected.pending_max.max(self.pending.len() as u64);
    }

    fn displace(&mut self, timer: &Timer) {
        self.peeked = None;
        self.order.remove(&timer.place);
    }

    fn remove(&mut self, key: TimerKey, fired: bool) -> Timer {
        let timer = self.pending.remove(&key).expect("only a pending timer ends");
        self.displace(&timer);
        self.note_end(key, fired);
        timer
    }

    fn postpone(&mut self, key: TimerKey, mut timer: Timer, deadline: u64) {
        timer.deadline = deadline;
        if deadline > timer.place.tick {
            (timer.place.tick, timer.place.late) = (deadline, false);
            timer.moved = true;
        }
        self.put(key, timer);
    }

    fn note_fired(&mut self, expired: &Expired<u64>) {
        self.check_next(expired.key);
        let timer = self.remove(expired.key, true);
        assert_eq!((expired.deadline.index(), expired.task), (timer.deadline, timer.task));
        assert!(timer.deadline <= self.horizon, "{expired:?} is early at {}", self.horizon);
        assert!(self.popped < self.budget.expired_max, "more fire than may");
        self.popped += 1;
        self.expected.fired += 1;
        let same_turn = timer.late_in == Some(self.turn);
        assert!(!same_turn, "{expired:?} was due already, and fires in the same turn");
    }

    /// Checks that a pending timer may be the one that is handed out next.
    fn check_next(&self, key: TimerKey) {
        let first = *self.order.keys().next().expect("what is next is pending");
        let Timer { place, moved, .. } = self.pending[&key];
        assert_eq!((place.tick, place.late), (first.tick, first.late), "out of order");
        let mut rest = self.order.range(first..place).map(|(_, key)| self.pending[key].moved);
        assert!(moved || rest.all(|moved| moved), "out of order within a tick");
    }

    /// Checks that the shard has named the timer that comes next.
    fn check_named(&self, named: Option<TimerKey>, next: TimerKey) {
        let timers =
            named.and_then(|named| Some((self.pending.get(&named)?, &self.pending[&next])));
        let open = timers.is_some_and(|(named, next)| {
            let same_tick = named.place.tick == next.place.tick;
            self.wheel == WheelKind::Hashed && named.moved && next.moved && same_tick
        });
        assert!(open || named == Some(next), "{next:?} comes next, and {named:?} was named");
    }

    fn note_turn_over(&mut self) {
        let unlimited = self.budget.work_max == u32::MAX && self.popped < self.budget.expired_max;
        let behind = self.shard.is_behind();
        if unlimited || !behind {
            let due = self.order.range(..=self.place_max()).map(|(_, key)| &self.pending[key]);
            for timer in due {
                let deferred = behind && timer.late_in == Some(self.turn);
                assert!(deferred, "due at {}, and nothing more fires", timer.deadline);
            }
        }
        // An empty shard is not behind, and yet may have stale entries before it.
        let done = unlimited || (!behind && !self.pending.is_empty());
        self.turn_done |= done;
    }

    /// The last place that is due.
    fn place_max(&self) -> Place {
        Place { tick: self.horizon, late: true, sequence: u64::MAX }
    }
}
