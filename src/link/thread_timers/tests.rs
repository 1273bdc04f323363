//! The timers of a thread beside an obvious twin: a map of deadlines.
//!
//! With the code the twin shares nothing: deadlines and turns are whole ticks, so that nothing is
//! rounded, and when the thread needs an act is asked of it, and compared with the deadlines only.

mod memory;
mod resets;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use corewheel_shard::TickLength;

use super::super::wake_up::Doorbell;
use super::{
    ArmRefusal, Arming, Due, Name, Periods, Progress, Room, TAKEN_MAX, Table, ThreadTimers,
};

const TICK: u64 = 1_000_000;

/// The nanoseconds of a time, which these tests count in ticks.
fn nanos(ticks: u64) -> u64 {
    ticks * TICK
}

fn periods() -> Periods {
    Periods::new(TickLength::from_nanos(NonZeroU64::new(TICK).unwrap()))
}

/// The timers of a thread, and the deadlines that they must have.
struct Pair {
    thread_timers: ThreadTimers<u64>,
    room: Arc<Room>,
    now: u64,
    next: u64,
    /// By what each timer carries.
    pending: BTreeMap<u64, (Name, u64)>,
    fired: BTreeMap<u64, Name>,
    /// The timers that have ended on other threads and are not freed.
    ended_elsewhere: Vec<u64>,
    armed: u64,
}

impl Pair {
    fn new(room: u64) -> Self {
        Self::after(0, room)
    }

    fn after(last: u64, room: u64) -> Self {
        let room = Arc::new(Room::new(room));
        Self {
            thread_timers: ThreadTimers::after(last, periods(), 2, Arc::clone(&room), false),
            room,
            now: 1_000,
            next: 0,
            pending: BTreeMap::new(),
            fired: BTreeMap::new(),
            ended_elsewhere: Vec::new(),
            armed: 0,
        }
    }

    fn arm(&mut self, after: u64) -> Result<u64, ArmRefusal> {
        self.arm_class(after, ((self.next + 1) % 3) as u8)
    }

    fn arm_class(&mut self, after: u64, class: u8) -> Result<u64, ArmRefusal> {
        self.next += 1;
        let (now, deadline) = (nanos(self.now), self.now + after);
        let arming =
            Arming { deadline: nanos(deadline), class, is_guarded: false, carried: self.next };
        let armed = self.thread_timers.arm(arming, || now, || now).map_err(|refused| refused.0)?;
        assert!(!armed.has_time || after > 1, "it has no time");
        self.pending.insert(self.next, (armed.name, deadline));
        self.armed += 1;
        Ok(self.next)
    }

    fn end(&mut self, id: u64) {
        if let Some((name, _)) = self.pending.remove(&id) {
            assert_eq!(self.thread_timers.end(name), Some(id), "a slot has two timers");
            assert_eq!(self.thread_timers.end(name), None, "it is over");
        } else if let Some(name) = self.fired.remove(&id) {
            assert!(self.thread_timers.is_over(name), "{id} has fired");
            assert_eq!(self.thread_timers.end(name), None, "it is over");
        }
    }

    fn end_elsewhere(&mut self, id: u64) {
        let now = nanos(self.now);
        let Some((name, _)) = self.pending.remove(&id) else { return };
        self.thread_timers.end_elsewhere(name, || now).expect("the shard lives");
        self.ended_elsewhere.push(id);
    }

    fn reset(&mut self, id: u64, after: u64) {
        let (now, deadline) = (nanos(self.now), self.now + after);
        let Some((name, known)) = self.pending.get_mut(&id) else { return };
        let reset = self.thread_timers.reset(*name, nanos(deadline), || now, || now);
        *known = deadline;
        assert!(reset.is_some(), "a pending timer has not fired");
    }

    /// Whether a timer is young, as the lists say.
    fn young(&self) -> usize {
        self.thread_timers.lock().young()
    }

    /// A turn of the keeper. Returns the timers that fire, in order.
    fn turn(&mut self) -> Vec<u64> {
        let now = nanos(self.now);
        let (mut due, mut carried, mut order) = (Vec::new(), Vec::new(), Vec::new());
        while self.thread_timers.act_by() <= now {
            let (done, more) = self.thread_timers.act(now, TAKEN_MAX, &mut due, &mut carried);
            assert!(done <= TAKEN_MAX, "{done} timers under one lock");
            self.thread_timers.check_invariants();
            if !more {
                break;
            }
        }
        for id in carried {
            let at = self.ended_elsewhere.iter().position(|ended| *ended == id);
            self.ended_elsewhere.swap_remove(at.expect("it has ended elsewhere"));
        }
        let mut last = 0;
        for Due { carried: id, at: due, class, .. } in due {
            assert!(due >= last, "the tick of {due} fires after that of {last}");
            assert_eq!(u64::from(class), id % 3, "the class of {id}");
            last = due;
            order.push(id);
            if let Some((name, deadline)) = self.pending.remove(&id) {
                assert!(deadline <= self.now, "{id} of {deadline} fires at {}", self.now);
                assert_eq!(due, nanos(deadline), "the tick of {id}");
                self.fired.insert(id, name);
            } else {
                let ended = self.ended_elsewhere.iter().position(|ended| *ended == id);
                self.ended_elsewhere.swap_remove(ended.expect("it fires after its end"));
            }
        }
        for (id, (name, deadline)) in &self.pending {
            assert!(*deadline > self.now, "{id} of {deadline} is late at {}", self.now);
            assert!(!self.thread_timers.is_over(*name), "{id} is pending");
            assert_eq!(self.thread_timers.look_at(*name, |carried| carried == id), Progress::Same);
        }
        for name in self.fired.values() {
            assert_eq!(self.thread_timers.look_at(*name, |_| true), Progress::Fired);
        }
        order
    }
}

#[test]
fn timers_and_their_twin_agree_after_every_step_of_random_histories() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(1 << 20);
        let spans = [1, 5, 15, 40, 100, 400, 3_000, 30_000, 5_000_000];
        let mut all_fired = 0;
        for _ in 0..2_000 {
            let span = spans[rng.usize(..spans.len())];
            let after = rng.u64(0..=span);
            let known: Vec<_> = pair.pending.keys().copied().collect();
            let pick = (!known.is_empty()).then(|| known[rng.usize(..known.len())]);
            match (rng.u8(..10), pick) {
                (0..4, _) | (_, None) => drop(pair.arm(after + 1)),
                (4, Some(id)) => pair.end(id),
                (5, Some(id)) => pair.end_elsewhere(id),
                (6, Some(id)) => pair.reset(id, after + 1),
                (7, _) => {
                    let fired: Vec<_> = pair.fired.keys().copied().collect();
                    for id in fired {
                        pair.end(id);
                    }
                }
                // The keeper is late by some of these.
                (8, _) => {
                    let late = [3, 30, 3_000, 300_000][rng.usize(..4)];
                    pair.now += rng.u64(1..=late);
                }
                _ => pair.now += 1,
            }
            pair.thread_timers.check_invariants();
            all_fired += pair.turn().len() as u64;
        }
        for id in pair.pending.keys().copied().collect::<Vec<_>>() {
            pair.end(id);
        }
        pair.now += 1_001;
        all_fired += pair.turn().len() as u64;
        assert_eq!(pair.thread_timers.pending(), 0, "seed {seed}: a slot is left");
        assert!(pair.ended_elsewhere.is_empty(), "seed {seed}: a timer has not ended");
        let mut of_classes = super::Counts::default();
        let (counts, is_over) = pair.thread_timers.settle(|_, counts| of_classes.add(counts));
        assert!(!is_over, "its thread has not ended");
        assert_eq!(counts.armed, pair.armed);
        assert_eq!((counts.fired, counts.pending_after(0)), (all_fired, 0), "seed {seed}");
        assert!(of_classes.armed > 0 && of_classes.armed < counts.armed, "{of_classes:?}");
        assert_eq!(of_classes.pending_after(0), 0, "seed {seed}");
    }
}

#[test]
fn timer_that_ends_before_a_third_of_its_lists_least_time_is_never_filed() {
    let mut pair = Pair::new(1 << 20);
    for _ in 0..20_000 {
        let ids = [30_000, 100].map(|after| pair.arm(after).unwrap());
        for _ in 0..5 {
            pair.now += 1;
            pair.turn();
        }
        assert_eq!(pair.young(), 2, "a timer was filed");
        for id in ids {
            pair.end(id);
        }
    }
}

#[test]
fn late_keeper_fires_each_timer_when_it_is_due_at_last() {
    for late in [5, 20, 100] {
        for delay in 1..300 {
            let mut pair = Pair::new(1 << 20);
            for after in [delay, 7, 40, 90] {
                pair.arm(after).unwrap();
            }
            // The keeper is late each time that it acts, but for the deadline itself.
            let end = pair.now + 400;
            while pair.now < end {
                let act_by = pair.thread_timers.act_by().div_ceil(TICK);
                let due = pair.pending.values().map(|timer| timer.1).min().unwrap_or(end);
                pair.now = (act_by.saturating_add(late)).clamp(pair.now + 1, due.max(pair.now + 1));
                pair.turn();
            }
            assert!(pair.pending.is_empty());
        }
    }
}

#[test]
fn ticks_fire_in_order_after_a_stall_wherever_their_timers_lie() {
    let mut pair = Pair::new(1 << 20);
    let mut rng = fastrand::Rng::with_seed(3);
    // Old ones in coarse levels, young ones in lists, and those of the next ticks.
    for after in [50_000, 5_000, 300, 60] {
        for _ in 0..300 {
            pair.arm(rng.u64(1..=after)).unwrap();
        }
        pair.now += 13;
        pair.turn();
    }
    pair.now += 60_000;
    // The turn checks the order.
    assert!(pair.turn().len() > 500);
    assert!(pair.pending.is_empty());
}

#[test]
fn next_timer_takes_the_slot_that_was_freed_last() {
    let mut pair = Pair::new(1 << 20);
    let mut ids: Vec<_> = (0..1_024).map(|n| pair.arm(100 + n * 30).unwrap()).collect();
    let mut rng = fastrand::Rng::with_seed(2);
    for round in 0..4_096 {
        // Timers that end one after the other, in turn, and any of them.
        let at = if rng.bool() { round % ids.len() } else { rng.usize(..ids.len()) };
        let Name { slot, number } = pair.pending[&ids[at]].0;
        pair.end(ids[at]);
        ids[at] = pair.arm(30_000).unwrap();
        let next = pair.pending[&ids[at]].0;
        assert_eq!(next.slot, slot, "the next timer takes the slot");
        assert!(next.number > number, "a number is used twice");
        pair.thread_timers.check_invariants();
    }
    assert_eq!(pair.thread_timers.lock().allocated()[2], 1_024, "a slot was made anew");
}

#[test]
fn old_name_of_a_slot_used_again_names_no_timer_near_the_end_of_32_bits_either() {
    for last in [0, u64::from(u32::MAX) - 5, (1 << 63) - 5, u64::MAX - 50] {
        let mut pair = Pair::after(last, 1 << 20);
        let mut old = Vec::new();
        for _ in 0..10 {
            let id = pair.arm(5).unwrap();
            let name = pair.pending[&id].0;
            pair.end(id);
            old.push(name);
        }
        let id = pair.arm(5).unwrap();
        let name = pair.pending[&id].0;
        for old in &old {
            assert_eq!(old.slot, name.slot);
            assert_eq!(pair.thread_timers.look_at(*old, |_| true), Progress::Fired, "{old:?}");
            assert_eq!(pair.thread_timers.end(*old), None, "{old:?} ends a later timer");
            assert!(pair.thread_timers.reset(*old, 0, || 0, || 0).is_none(), "{old:?} is reset");
            assert_eq!(pair.thread_timers.replace(*old, 7), Err(7), "{old:?}");
            pair.thread_timers.end_elsewhere(*old, || 0).unwrap();
        }
        assert!(!pair.thread_timers.end_some(&mut Vec::new()));
        assert_eq!(pair.thread_timers.look_at(name, |_| true), Progress::Same, "after {last}");
        pair.now += 5;
        assert_eq!(pair.turn(), [id]);
        assert!(old.iter().all(|old| pair.thread_timers.is_over(*old)), "they are over");
    }
}

#[test]
fn old_name_names_no_timer_after_its_slot_was_used_4_billion_times_and_more() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(5).unwrap();
    let old = pair.pending[&id].0;
    pair.end(id);
    for power in [8, 16, 31, 32, 33, 48, 63] {
        // As after so many timers in this slot.
        pair.thread_timers.lock().last = (1 << power) + old.number.get() - 1;
        let id = pair.arm(5).unwrap();
        let name = pair.pending[&id].0;
        assert_eq!(old.slot, name.slot);
        assert!(pair.thread_timers.is_over(old), "after 2^{power} timers");
        assert_eq!(pair.thread_timers.end(old), None, "after 2^{power} timers");
        pair.end(id);
    }
}

#[test]
fn thread_without_credit_refuses_at_once_and_gives_back_what_it_does_not_use() {
    let mut pair = Pair::new(100);
    let armed: Vec<_> = (0..100).map(|_| pair.arm(30_000).unwrap()).collect();
    assert_eq!(pair.arm(30_000), Err(ArmRefusal::Full));
    pair.end(armed[0]);
    assert!(pair.arm(30_000).is_ok(), "a timer that ends leaves its credit");
    for id in &armed[1..] {
        pair.end(*id);
    }
    pair.thread_timers.leave();
    assert_eq!(pair.room.take_all(1_000), 99, "a thread that ends gives its credit back at once");
    let (_, is_over) = pair.thread_timers.settle(|_, _| {});
    assert!(!is_over, "a timer is pending");
    assert_eq!(pair.room.take_all(1_000), 0);
    pair.now += 30_000;
    assert_eq!(pair.turn().len(), 1);
    assert!(pair.thread_timers.settle(|_, _| {}).1, "its last timer has fired");
    assert_eq!(pair.room.take_all(1_000), 1, "its credit is back");
}

#[test]
fn credit_beyond_what_a_thread_keeps_goes_back_when_it_is_settled() {
    let mut pair = Pair::new(1 << 20);
    let armed: Vec<_> = (0..10_000).map(|_| pair.arm(30_000).unwrap()).collect();
    for id in armed {
        pair.end(id);
    }
    pair.thread_timers.settle(|_, _| {});
    assert_eq!(pair.room.free(), (1 << 20) - 1_024);
}

#[test]
fn keeper_that_has_acted_is_not_asked_to_act_again() {
    let mut pair = Pair::new(1 << 20);
    let ids = [15, 300, 40_000].map(|delay| pair.arm(delay).unwrap());
    pair.now += 1;
    pair.turn();
    pair.reset(ids[0], 5);
    pair.end_elsewhere(ids[1]);
    pair.end(ids[2]);
    assert_ne!(pair.thread_timers.act_by(), u64::MAX);
    pair.now += 10_000;
    pair.turn();
    assert_eq!(pair.thread_timers.act_by(), u64::MAX, "nothing is left to act for");
}

#[test]
fn timers_that_wait_for_room_are_served_in_order_and_refused_if_there_is_too_little() {
    let table = Table::<u64>::new(0);
    let doorbell = Doorbell::new();
    let number = |at| super::Number::new(at + 1).unwrap();
    let ask =
        |asked: Option<u64>, carried| table.ask_for_room(asked.map(number), carried, &doorbell);
    assert_eq!(
        [7, 8, 9].map(|carried| ask(None, carried)),
        [0, 1, 2].map(|at| (Ok(number(at)), None))
    );
    assert_eq!(ask(Some(1), 88), (Ok(number(1)), Some(8)), "it waits by what it carries now");
    assert!(table.is_short());
    assert_eq!((table.begin_serving(), table.is_short()), (3, false));
    assert_eq!(ask(None, 10), (Ok(number(3)), None));
    assert!(table.is_short(), "one that asks meanwhile is looked for again");
    assert_eq!(table.end_serving(3, false), [7, 88, 9]);
    assert_eq!(ask(Some(0), 7), (Ok(number(4)), None), "there was room, which others took");
    assert_eq!(table.begin_serving(), 2);
    assert_eq!(table.end_serving(2, true), [10, 7]);
    let refused = (Err(ArmRefusal::Full), Some(7));
    assert_eq!([ask(Some(4), 7), ask(Some(3), 7)], [refused, refused]);
    assert_eq!(ask(None, 7), (Ok(number(5)), None), "another timer asks again");
    assert_eq!(table.close_unowned(), [7]);
    assert_eq!(ask(Some(5), 7), (Err(ArmRefusal::Closed), Some(7)));
}

#[test]
fn closing_thread_keeps_its_timers_until_they_are_taken_out_and_refuses_others() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..1_000).map(|n| pair.arm(20 + n * 30).unwrap()).collect();
    pair.end(ids[0]);
    pair.end_elsewhere(ids[1]);
    let mut carried = Vec::new();
    while pair.thread_timers.close(&mut carried) {}
    assert_eq!(carried, [ids[1]], "what has ended elsewhere is dropped");
    assert_eq!(pair.arm(50), Err(ArmRefusal::Closed));
    pair.end(ids[2]);
    assert_eq!(pair.arm(50), Err(ArmRefusal::Closed), "a timer that ends makes no room");
    let name = pair.pending[&ids[3]].0;
    assert_eq!(pair.thread_timers.look_at(name, |_| true), Progress::Same);
    let mut out = Vec::new();
    while pair.thread_timers.take_out(&mut out) {
        pair.thread_timers.lock().check_invariants();
    }
    assert_eq!(out.len(), 997);
    assert_eq!(pair.thread_timers.look_at(name, |_| true), Progress::Closed);
    assert_eq!((pair.thread_timers.pending(), pair.thread_timers.act_by()), (0, u64::MAX));
    // Timers end after their shard, here and elsewhere.
    assert_eq!(pair.thread_timers.end(name), None);
    assert_eq!(pair.thread_timers.end_elsewhere(pair.pending[&ids[4]].0, || 0), Err(()));
    while pair.thread_timers.end_some(&mut carried) {}
    assert_eq!(carried, [ids[1]]);
}

#[test]
fn closing_thread_fires_all_timers_in_order_if_it_is_asked_to() {
    let mut pair = Pair::new(1 << 20);
    let never = pair.arm(u64::MAX / TICK - pair.now).unwrap();
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..500 {
        pair.arm(rng.u64(1..1 << 30)).unwrap();
        pair.now += 1;
        pair.turn();
    }
    let count = pair.pending.len();
    while pair.thread_timers.close(&mut Vec::new()) {}
    let (mut due, mut last) = (Vec::new(), 0);
    while pair.thread_timers.act(u64::MAX, TAKEN_MAX, &mut due, &mut Vec::new()).1 {}
    assert_eq!(due.len(), count);
    assert_eq!(due.last().unwrap().carried, never);
    for due in due {
        assert!(due.at >= last, "{due:?} after {last}");
        last = due.at;
    }
}

#[test]
fn keeper_ends_what_the_thread_has_begun_to_end_and_not_finished() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..200).map(|_| pair.arm(30_000).unwrap()).collect();
    for id in ids {
        pair.end_elsewhere(id);
    }
    let mut carried = Vec::new();
    assert!(pair.thread_timers.end_some(&mut carried), "{} of them are one chunk", carried.len());
    pair.ended_elsewhere.retain(|id| !carried.contains(id));
    pair.now += 1_000;
    pair.turn();
    assert_eq!((pair.thread_timers.pending(), pair.ended_elsewhere.len()), (0, 0));
}

#[test]
fn oldest_timer_of_a_class_is_known_in_whatever_order_timers_end() {
    let mut pair = Pair::new(1 << 20);
    let mut armed = BTreeMap::new();
    for _ in 0..300 {
        pair.now += 1;
        armed.insert(pair.arm(20_000).unwrap(), pair.now);
    }
    let mut rng = fastrand::Rng::with_seed(5);
    while !pair.pending.is_empty() {
        let known: Vec<_> = pair.pending.keys().copied().collect();
        pair.end(known[rng.usize(..known.len())]);
        for class in 1..=2 {
            let mut oldest = None;
            pair.thread_timers.unseen(|number, _, since| {
                oldest = if u64::from(number) == class { since } else { oldest };
            });
            let of_class = pair.pending.keys().find(|id| *id % 3 == class);
            assert_eq!(oldest, of_class.map(|id| nanos(armed[id])), "class {class}");
        }
    }
}

#[test]
fn place_of_thread_timers_is_used_again_under_another_name() {
    let table = Table::<u64>::new(100);
    let thread_timers = || ThreadTimers::new(periods(), 0, Arc::clone(table.room()), false);
    let (first, _) = table.enter(thread_timers()).unwrap();
    let (second, _) = table.enter(thread_timers()).unwrap();
    let version = table.version();
    table.remove(first.index);
    assert_ne!(version, table.version(), "the owner sees the change");
    assert!(table.find(first).is_none());
    let (third, _) = table.enter(thread_timers()).unwrap();
    assert_eq!(third.index, first.index);
    assert!(table.find(first).is_none() && table.find(third).is_some());
    assert!(table.find(second).is_some());
    // After its last generation the place is used no more.
    table.remove(third.index);
    table.age(first.index, 1);
    let (last, _) = table.enter(thread_timers()).unwrap();
    assert_eq!((last.index, last.generation), (first.index, u32::MAX));
    table.remove(last.index);
    let (other, _) = table.enter(thread_timers()).unwrap();
    assert_ne!(other.index, first.index);
    assert!(table.find(last).is_none() && table.find(other).is_some());
    table.close();
    assert!(table.enter(thread_timers()).is_err_and(|is_closed| is_closed));
}
