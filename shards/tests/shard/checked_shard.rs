//! A shard that is compared after each operation with a slow and obvious model, an ordered map.
//!
//! The model is an ordered map from places to timers. A place is a tick and a sequence number, so
//! the map lists the timers in the order in which the shard promises to deliver them: by deadline,
//! and within a tick in the order of filing. A timer that is late when it is scheduled has a place
//! behind all others of the tick of the last advance, and is not delivered in the same turn.
//!
//! The model follows the contract and not the code. The contract does not say where within its tick
//! a timer comes that was reset to a later deadline, so the model accepts any order there.
//!
//! An owner may postpone a timer without a call of the shard. The predicate of `pop_expired_unless`
//! then tells the shard when the timer comes up, and the model files the timer anew.
//!
//! With the code it shares the length of a chunk and the least number of entries of a sweep, each
//! restated below. They bound the work of a turn, and no deadline follows from them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use corewheel_shard::{
    ArmOutcome, Budget, CancelOutcome, Counters, Expired, Full, ResetOutcome, Shard, ShardConfig,
    Tick, TimerKey,
};

/// Entries that a turn may look at beyond its budget: the rest of a chunk, and another chunk.
const WORK_SLACK: u64 = 14 + 15;
/// Entries that a turn may take off the wheel without handing them out. The next turn looks at
/// them, whatever its budget.
const LEFT_MAX: u64 = 64;
/// As long as there were never more entries than this, no sweep has begun, and all counted work is
/// that of turns.
const UNSWEPT_MAX: usize = 512;

pub(crate) struct CheckedShard {
    pub(crate) shard: Shard<u64>,
    /// Whether the whole state is compared after each operation, and not only its outcome. Takes
    /// most of the time of a test.
    pub(crate) thorough: bool,
    pending: BTreeMap<TimerKey, Timer>,
    order: BTreeMap<Place, TimerKey>,
    grants: BTreeMap<TimerKey, Grant>,
    /// The later deadlines of timers, by their payloads, which the shard does not know yet.
    postponed: BTreeMap<u64, u64>,
    /// The predicate panics when it has been called so many times more; `None` if it does not.
    pub(crate) calls_to_panic: Option<u32>,
    /// The last generation seen in each slot, and whether its timer has fired.
    slots: BTreeMap<u32, (u32, bool)>,
    expected: Counters,
    sequence: u64,
    now: u64,
    /// Whether the last turn handed out all timers that were due.
    turn_done: bool,
    turn: u64,
    budget: Budget,
    popped: u32,
    work: u64,
    /// How many entries the previous turns may have taken off the wheel and not handed out.
    left_max: u64,
    /// How many granted keys were passed: counted as scheduled and cancelled without an entry.
    passed: u64,
    /// Whether a sweep may have begun, whose work the budget of a turn does not limit.
    swept: bool,
}

#[derive(Clone, Copy)]
struct Timer {
    payload: u64,
    deadline: u64,
    place: Place,
    /// The turn in which the timer was scheduled, if it was late then: that turn does not deliver
    /// it.
    late_in: Option<u64>,
    /// Whether the timer was reset to a later deadline, so that any place within its tick is right.
    reset_later: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    tick: u64,
    /// Whether the timer was late when it was scheduled: it comes after the others of the tick.
    late: bool,
    sequence: u64,
}

#[derive(Clone, Copy)]
enum Grant {
    Plain,
    Reset(u64),
    Cancelled,
}

/// The state of the timer that a key names.
#[derive(Clone, Copy)]
enum Fate {
    Pending(Timer),
    Granted(Grant),
    Fired,
    Stale,
}

/// Operations: each is applied to the shard and to the model, and the outcomes are compared.
impl CheckedShard {
    pub(crate) fn new(config: ShardConfig) -> Self {
        Self {
            shard: Shard::new(config).expect("the tests use valid configurations"),
            thorough: true,
            pending: BTreeMap::new(),
            order: BTreeMap::new(),
            grants: BTreeMap::new(),
            postponed: BTreeMap::new(),
            calls_to_panic: None,
            slots: BTreeMap::new(),
            expected: Counters::default(),
            sequence: 0,
            now: config.start.index(),
            turn_done: true,
            turn: 0,
            budget: Budget { expired_max: 0, work_max: 0 },
            popped: 0,
            work: 0,
            left_max: 0,
            passed: 0,
            swept: false,
        }
    }

    pub(crate) fn schedule(&mut self, deadline: Tick) -> Option<TimerKey> {
        let payload = self.next_sequence();
        let key = if self.is_full() {
            assert_eq!(self.shard.schedule(deadline, payload), Err(Full(payload)));
            self.expected.refused += 1;
            None
        } else {
            let key = self.shard.schedule(deadline, payload).expect("there is room");
            self.record_new_key(key);
            self.expected.scheduled_local += 1;
            self.insert(key, deadline.index(), payload);
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
                assert_eq!(outcome, CancelOutcome::Cancelled { deadline, payload: timer.payload });
                self.remove(key, false);
                self.expected.cancelled += 1;
            }
            Fate::Granted(Grant::Plain | Grant::Reset(_)) => {
                assert_eq!(outcome, CancelOutcome::Overtook);
                self.grants.insert(key, Grant::Cancelled);
            }
            Fate::Fired => {
                assert_eq!(outcome, CancelOutcome::AlreadyFired);
                self.expected.stale += 1;
            }
            Fate::Granted(Grant::Cancelled) | Fate::Stale => {
                assert_eq!(outcome, CancelOutcome::Stale);
                self.expected.stale += 1;
            }
        }
        self.check_key(key);
    }

    pub(crate) fn reset(&mut self, key: TimerKey, deadline: Tick) {
        let outcome = self.shard.reset(key, deadline);
        match self.fate(key) {
            Fate::Pending(timer) => {
                assert_eq!(outcome, ResetOutcome::Reset);
                self.displace(&timer);
                if deadline.index() >= timer.deadline {
                    self.expected.reset_lazy += 1;
                    self.reset_later(key, timer, deadline.index());
                } else {
                    self.expected.reset_relinked += 1;
                    self.insert(key, deadline.index(), timer.payload);
                }
            }
            Fate::Granted(Grant::Plain | Grant::Reset(_)) => {
                assert_eq!(outcome, ResetOutcome::Overtook);
                self.grants.insert(key, Grant::Reset(deadline.index()));
            }
            Fate::Fired => {
                assert_eq!(outcome, ResetOutcome::AlreadyFired);
                self.expected.stale += 1;
            }
            Fate::Granted(Grant::Cancelled) | Fate::Stale => {
                assert_eq!(outcome, ResetOutcome::Stale);
                self.expected.stale += 1;
            }
        }
        self.check_key(key);
    }

    pub(crate) fn grant(&mut self) -> Option<TimerKey> {
        let full = self.is_full();
        let key = self.shard.grant();
        assert_eq!(key.is_none(), full, "a key is granted exactly if there is room");
        if let Some(key) = key {
            self.record_new_key(key);
            self.grants.insert(key, Grant::Plain);
        }
        self.check();
        key
    }

    pub(crate) fn arm(&mut self, key: TimerKey, deadline: Tick) {
        let payload = self.next_sequence();
        let outcome = self.shard.arm(key, deadline, payload);
        match self.grants.remove(&key) {
            None => assert_eq!(outcome, ArmOutcome::NotGranted(payload)),
            Some(Grant::Cancelled) => {
                assert_eq!(outcome, ArmOutcome::Overtaken(payload));
                self.record_end(key, false);
                self.expected.scheduled_remote += 1;
                self.expected.cancelled += 1;
                self.expected.overtaken += 1;
            }
            Some(grant) => {
                assert_eq!(outcome, ArmOutcome::Armed);
                let reset_to = if let Grant::Reset(to) = grant { Some(to) } else { None };
                self.expected.scheduled_remote += 1;
                self.insert(key, reset_to.unwrap_or(deadline.index()), payload);
            }
        }
        self.check_key(key);
    }

    /// Takes a granted key back, every other time as that of a timer that was cancelled before it
    /// arrived.
    pub(crate) fn revoke(&mut self, key: TimerKey) {
        let granted = self.grants.remove(&key).is_some();
        let passes = self.next_sequence().is_multiple_of(2);
        let revoked = if passes { self.shard.pass(key) } else { self.shard.revoke(key) };
        assert_eq!(revoked, granted);
        if granted {
            self.record_end(key, false);
            self.passed += u64::from(passes);
            self.expected.scheduled_remote += u64::from(passes);
            self.expected.cancelled += u64::from(passes);
        }
        self.check_key(key);
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
        self.now = self.now.max(now.index());
        (self.budget, self.popped, self.work) = (budget, 0, 0);
        self.check();
    }

    /// Stores another deadline for a pending timer, which the shard learns when the timer comes up.
    pub(crate) fn postpone(&mut self, key: TimerKey, deadline: Tick) {
        if let Some(timer) = self.pending.get(&key) {
            self.postponed.insert(timer.payload, deadline.index());
        }
    }

    /// Pops one timer; false if `pop_expired_unless` returns none. If the predicate panics, pops
    /// again.
    pub(crate) fn pop(&mut self) -> bool {
        let before = self.work_done();
        let mut came_up = Vec::new();
        let mut left = None;
        let expired = loop {
            let Self { shard, postponed, calls_to_panic, .. } = self;
            let mut was_left = left.take();
            let postpone = |payload: &u64| {
                let is_next = was_left.take().is_none_or(|left| left == *payload);
                assert!(is_next, "the timer whose predicate has panicked comes next");
                let calls = calls_to_panic.take();
                if calls == Some(0) {
                    left = Some(*payload);
                    // Unlike `panic!`, this prints nothing.
                    resume_unwind(Box::new("on purpose"));
                }
                *calls_to_panic = calls.map(|calls| calls - 1);
                let later = postponed.remove(payload)?;
                came_up.push((*payload, later));
                Some(Tick::new(later))
            };
            match catch_unwind(AssertUnwindSafe(|| shard.pop_expired_unless(postpone))) {
                Ok(expired) => break expired,
                Err(panic) if left.is_none() => resume_unwind(panic),
                Err(_) => self.shard.check_invariants(),
            }
        };
        self.work += self.work_done() - before;
        for (payload, later) in came_up {
            self.record_postponed(payload, later);
        }
        if let Some(expired) = &expired {
            self.record_fired(expired);
        } else {
            self.record_end_of_turn();
        }
        let work_max = u64::from(self.budget.work_max).max(self.left_max) + WORK_SLACK;
        let within = self.swept || self.work <= work_max;
        assert!(within, "{} entries under {:?}", self.work, self.budget);
        self.check();
        expired.is_some()
    }

    /// Takes up to `count` timers out with `drain`.
    pub(crate) fn drain(&mut self, count: usize) {
        let drained: Vec<_> = self.shard.drain().take(count).collect();
        assert_eq!(drained.len(), count.min(self.pending.len()));
        for Expired { key, deadline, payload } in drained {
            let timer = self.remove(key, false);
            assert_eq!((deadline.index(), payload), (timer.deadline, timer.payload));
            self.expected.returned += 1;
        }
        self.shard.check_invariants();
        self.check();
    }

    /// Takes turns at the ticks that `next_deadline` returns until no timer is pending.
    pub(crate) fn run_out(&mut self, budget: Budget) {
        let entries = self.shard.entries() as u64 + 2;
        // Every turn processes an entry: at most once a level, or once a round in which another
        // entry is due. In addition, one turn for each level may only find the level finished.
        let turns_max = 2 * entries * (entries + u64::from(u64::BITS)) + 64;
        for _ in 0..turns_max {
            let Some(next) = self.shard.next_deadline() else {
                assert_eq!(self.pending.len(), 0, "pending timers, but no next deadline");
                self.advance(Tick::NEVER, Budget::UNLIMITED);
                assert!(!self.pop());
                assert_eq!(self.shard.entries(), 0, "entries stay after all deadlines");
                return;
            };
            self.advance(next, budget);
            while self.pop() {}
        }
        panic!("{} timers are pending after {turns_max} turns", self.pending.len());
    }
}

/// Queries.
impl CheckedShard {
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The pending timer with this number, modulo how many are pending, in the order of the keys.
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

    /// Compares what the queries of this key return with the model, and then the rest.
    fn check_key(&mut self, key: TimerKey) {
        let known = self.pending.get(&key);
        let deadline = self.shard.deadline(key).map(Tick::index);
        assert_eq!(deadline, known.map(|timer| timer.deadline), "the deadline of {key:?}");
        assert_eq!(self.shard.payload(key), known.map(|timer| &timer.payload));
        self.check();
    }

    fn check(&mut self) {
        if self.thorough {
            self.shard.check_invariants();
            self.compare();
        }
    }

    /// Compares the results of all queries with the model.
    pub(crate) fn compare(&mut self) {
        let len = self.pending.len();
        assert_eq!((self.shard.len(), self.shard.is_empty()), (len, len == 0));
        assert_eq!((self.shard.granted(), self.shard.retired()), (self.grants.len(), 0));
        assert_eq!(self.shard.now().index(), self.now);
        let counters = *self.shard.counters();
        (self.expected.cascaded, self.expected.swept) = (counters.cascaded, counters.swept);
        (self.expected.refiled, self.expected.searched) = (counters.refiled, counters.searched);
        assert_eq!(counters, self.expected);
        assert_eq!(counters.pending(), len as u64);
        let scheduled = counters.scheduled_local + counters.scheduled_remote;
        let filed = scheduled - counters.overtaken - self.passed
            + counters.reset_relinked
            + counters.refiled;
        let entries = filed - counters.fired - counters.swept;
        assert_eq!(self.shard.entries() as u64, entries, "the counters contradict `entries`");
        let next = self.shard.next_deadline().map(Tick::index);
        assert_eq!(next.is_none(), len == 0, "a next deadline exactly if a timer is pending");
        self.check_soonest();
        let earliest = self.order.keys().next().map(|place| place.tick);
        if let (Some(next), Some(earliest)) = (next, earliest) {
            let bound = earliest.max(self.now);
            assert!(next <= bound, "the next deadline is {next}, but a timer is due at {bound}");
        }
    }
}

/// The search for the soonest timer.
impl CheckedShard {
    /// Compares the soonest of the accepted timers with the model, after some operations: the index
    /// of the search must stay right over the others.
    fn check_soonest(&mut self) {
        const ACCEPT: fn(&u64) -> bool = |payload| payload % 3 != 0;
        if !self.sequence.wrapping_add(self.now).is_multiple_of(2) {
            return;
        }
        let found = self.shard.soonest(ACCEPT);
        let accepted = self.pending.iter().filter(|(_, timer)| ACCEPT(&timer.payload));
        let earliest = accepted.filter_map(|(key, _)| self.shard.deadline(*key)).min();
        let deadline = found.and_then(|key| self.shard.deadline(key));
        assert_eq!(deadline, earliest, "the search names the soonest of the accepted timers");
        let is_accepted = found.is_none_or(|key| self.shard.payload(key).is_some_and(ACCEPT));
        assert!(is_accepted, "the search names a timer that is not accepted");
    }
}

/// The state of the model.
impl CheckedShard {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn record_new_key(&mut self, key: TimerKey) {
        let generation = key.generation().get();
        assert_eq!(generation % 2, 1, "{key:?} names an occupied slot");
        let before = self.slots.insert(key.index(), (generation, false));
        let higher = before.is_none_or(|(before, _)| before < generation);
        assert!(higher, "{key:?} was handed out before");
    }

    fn record_end(&mut self, key: TimerKey, fired: bool) {
        self.slots.insert(key.index(), (key.generation().get(), fired));
    }

    fn insert(&mut self, key: TimerKey, deadline: u64, payload: u64) {
        self.swept |= self.shard.entries() > UNSWEPT_MAX;
        let sequence = self.next_sequence();
        let late = deadline <= self.now;
        let place = Place { tick: deadline.max(self.now), late, sequence };
        let late_in = late.then_some(self.turn);
        self.put(key, Timer { payload, deadline, place, late_in, reset_later: false });
    }

    fn put(&mut self, key: TimerKey, timer: Timer) {
        assert_eq!(self.order.insert(timer.place, key), None, "two timers have the same place");
        self.pending.insert(key, timer);
    }

    fn displace(&mut self, timer: &Timer) {
        self.order.remove(&timer.place);
    }

    fn remove(&mut self, key: TimerKey, fired: bool) -> Timer {
        let timer = self.pending.remove(&key).expect("only a pending timer ends");
        self.displace(&timer);
        self.record_end(key, fired);
        timer
    }

    fn reset_later(&mut self, key: TimerKey, mut timer: Timer, deadline: u64) {
        timer.deadline = deadline;
        if deadline > timer.place.tick {
            (timer.place.tick, timer.place.late) = (deadline, false);
            timer.reset_later = true;
        }
        self.put(key, timer);
    }

    /// The predicate was called for a timer, whose entry is filed anew.
    fn record_postponed(&mut self, payload: u64, later: u64) {
        let (&key, &timer) =
            self.pending.iter().find(|(_, timer)| timer.payload == payload).unwrap();
        self.check_next(key);
        self.displace(&timer);
        self.insert(key, Tick::new(later).index(), payload);
    }

    fn record_fired(&mut self, expired: &Expired<u64>) {
        self.check_next(expired.key);
        let timer = self.remove(expired.key, true);
        assert_eq!((expired.deadline.index(), expired.payload), (timer.deadline, timer.payload));
        assert!(self.popped < self.budget.expired_max, "more timers fire than the budget allows");
        self.popped += 1;
        self.expected.fired += 1;
    }

    /// Checks that the shard may hand out this pending timer next.
    fn check_next(&self, key: TimerKey) {
        let first = *self.order.keys().next().expect("a pending timer has a place");
        let Timer { place, reset_later, deadline, late_in, .. } = self.pending[&key];
        assert!(deadline <= self.now, "{key:?} is early at {}", self.now);
        assert_ne!(late_in, Some(self.turn), "{key:?} was scheduled late in the same turn");
        assert_eq!((place.tick, place.late), (first.tick, first.late), "out of order");
        let mut rest = self.order.range(first..place).map(|(_, key)| self.pending[key].reset_later);
        assert!(reset_later || rest.all(|reset_later| reset_later), "out of order within a tick");
    }

    fn record_end_of_turn(&mut self) {
        let unlimited = self.budget.work_max == u32::MAX && self.popped < self.budget.expired_max;
        let behind = self.shard.is_behind();
        if unlimited || !behind {
            let due = self.order.range(..=self.place_max()).map(|(_, key)| &self.pending[key]);
            for timer in due {
                let deferred = behind && timer.late_in == Some(self.turn);
                assert!(deferred, "a timer is due at {}, but the turn has ended", timer.deadline);
            }
        }
        // An empty shard is not behind, even if it still has stale entries to process.
        let done = unlimited || (!behind && !self.pending.is_empty());
        self.turn_done |= done;
    }

    /// The highest place of a timer that is due.
    fn place_max(&self) -> Place {
        Place { tick: self.now, late: true, sequence: u64::MAX }
    }
}
