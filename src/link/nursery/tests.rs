//! A nursery beside an obvious twin: a map of deadlines, and an owner whose wheel is a map.
//!
//! With the code the twin shares nothing: deadlines and turns are whole ticks, so that nothing is
//! rounded, and when the nursery wants a look is asked of it, and compared with the deadlines only.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::wake_up::Doorbell;
use super::{ArmRefusal, Arming, Due, Nursery, Owner, Periods, Progress, Room, TAKEN_MAX, Table};

const TICK: u64 = 1_000_000;

/// The nanoseconds of a time, which these tests count in ticks.
fn nanos(ticks: u64) -> u64 {
    ticks * TICK
}

/// A shard as simple as can be: the timers that it has taken over, by their keys.
#[derive(Default)]
struct Wheel {
    timers: BTreeMap<u64, (u32, u64)>,
    next_key: u64,
    cancelled: usize,
    resets: usize,
}

impl Owner for Wheel {
    fn take_over(&mut self, slot: u32, deadline: u64, _class: u8) -> u64 {
        self.next_key += 1;
        self.timers.insert(self.next_key, (slot, deadline));
        self.next_key
    }

    fn cancel(&mut self, key: u64) {
        self.cancelled += usize::from(self.timers.remove(&key).is_some());
    }

    fn reset(&mut self, key: u64, deadline: u64) {
        self.timers.get_mut(&key).expect("it has the timer").1 = deadline;
        self.resets += 1;
    }
}

/// A nursery, its owner, and the deadlines that its timers must have.
struct Pair {
    nursery: Nursery<u64>,
    room: Arc<Room>,
    wheel: Wheel,
    now: u64,
    next: u64,
    /// By what each timer carries: the slot and the deadline.
    pending: BTreeMap<u64, (u32, u64)>,
    fired: BTreeMap<u64, u32>,
    /// The timers that have ended on other threads and are not freed.
    ended_elsewhere: Vec<u64>,
    armed: u64,
}

impl Pair {
    fn new(room: u64) -> Self {
        let room = Arc::new(Room::new(room));
        Self {
            nursery: Nursery::new(Periods::new(TICK), 2, Arc::clone(&room), false),
            room,
            wheel: Wheel::default(),
            now: 1_000,
            next: 0,
            pending: BTreeMap::new(),
            fired: BTreeMap::new(),
            ended_elsewhere: Vec::new(),
            armed: 0,
        }
    }

    fn arm(&mut self, after: u64) -> Result<u64, ArmRefusal> {
        self.next += 1;
        let (now, deadline) = (self.now, self.now + after);
        let class = (self.next % 3) as u8;
        let arming = Arming { deadline: nanos(deadline), class, carried: self.next };
        let armed = self.nursery.arm(arming, || nanos(now)).map_err(|refused| refused.0)?;
        self.pending.insert(self.next, (armed.slot, deadline));
        self.armed += 1;
        Ok(self.next)
    }

    fn end(&mut self, id: u64) {
        let now = self.now;
        if let Some((slot, _)) = self.pending.remove(&id) {
            let (carried, _) = self.nursery.end(slot, || nanos(now));
            assert_eq!(carried, Some(id), "a slot has two timers");
        } else if let Some(slot) = self.fired.remove(&id) {
            assert_eq!(self.nursery.end(slot, || nanos(now)).0, None);
        }
    }

    fn end_elsewhere(&mut self, id: u64) {
        let now = self.now;
        let Some((slot, _)) = self.pending.remove(&id) else { return };
        self.nursery.end_elsewhere(slot, || nanos(now)).expect("the owner lives");
        self.ended_elsewhere.push(id);
    }

    fn reset(&mut self, id: u64, after: u64) {
        let (now, deadline) = (self.now, self.now + after);
        let Some((slot, known)) = self.pending.get_mut(&id) else { return };
        let reset = self.nursery.reset(*slot, nanos(deadline), || nanos(now));
        let (slot_, _) = reset.expect("a pending timer has not fired");
        (*slot, *known) = (slot_, deadline);
    }

    /// A turn: looks if the time has come, and fires what is due.
    fn turn(&mut self) {
        let now = nanos(self.now);
        let mut carried = Vec::new();
        while self.nursery.look_by() <= now {
            let (done, more) = self.nursery.look(now, TAKEN_MAX, &mut self.wheel, &mut carried);
            assert!(done <= TAKEN_MAX, "{done} timers under one lock");
            self.nursery.check_invariants();
            if !more {
                break;
            }
        }
        for id in carried {
            let at = self.ended_elsewhere.iter().position(|ended| *ended == id);
            self.ended_elsewhere.swap_remove(at.expect("it has ended elsewhere"));
        }
        let due: Vec<_> = self.wheel.timers.iter().filter(|(_, timer)| timer.1 <= now).collect();
        let due: Vec<_> = due.into_iter().map(|(key, (slot, _))| (*key, *slot)).collect();
        for (key, slot) in due {
            match self.nursery.fire(slot, now) {
                Due::NotBefore(later) => {
                    self.wheel.timers.get_mut(&key).expect("it is there").1 = later;
                }
                Due::Fires(id) => {
                    self.wheel.timers.remove(&key);
                    if let Some((slot, deadline)) = self.pending.remove(&id) {
                        assert!(deadline <= self.now, "{id} of {deadline} fires at {}", self.now);
                        self.fired.insert(id, slot);
                    } else {
                        let ended = self.ended_elsewhere.iter().position(|ended| *ended == id);
                        assert!(ended.is_some(), "{id} fires after its end");
                        self.ended_elsewhere.swap_remove(ended.unwrap());
                    }
                }
                Due::Nothing => panic!("a timer of the wheel has fired before"),
            }
        }
        for (id, (slot, deadline)) in &self.pending {
            assert!(*deadline > self.now, "{id} of {deadline} is late at {}", self.now);
            assert_eq!(self.nursery.look_at(*slot, |carried| carried == id), Progress::Same);
        }
    }
}

#[test]
fn nursery_and_its_twin_agree_after_every_step_of_random_histories() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(1 << 20);
        let spans = [1, 5, 15, 40, 100, 400, 3_000, 30_000];
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
                // The owner is late by some of these.
                (8, _) => {
                    let late = [3, 30, 3_000][rng.usize(..3)];
                    pair.now += rng.u64(1..=late);
                }
                _ => pair.now += 1,
            }
            pair.nursery.check_invariants();
            pair.turn();
        }
        for id in pair.pending.keys().copied().collect::<Vec<_>>() {
            pair.end(id);
        }
        for id in pair.fired.keys().copied().collect::<Vec<_>>() {
            pair.end(id);
        }
        pair.now += 1_001;
        pair.turn();
        assert_eq!(pair.nursery.used(), (0, 0), "seed {seed}: a slot is left");
        assert!(pair.wheel.timers.is_empty(), "seed {seed}: the wheel keeps ended timers");
        let mut of_classes = 0;
        let (counts, is_over) = pair.nursery.settle(|_, counts, _| of_classes += counts.armed);
        assert!(!is_over, "its thread has not ended");
        assert_eq!(counts.armed, pair.armed);
        assert!(of_classes > 0 && of_classes < counts.armed, "{of_classes} timers have a class");
    }
}

#[test]
fn timer_that_ends_before_a_third_of_its_lists_least_time_is_never_taken_over() {
    let mut pair = Pair::new(1 << 20);
    for _ in 0..20_000 {
        let id = pair.arm(30_000).unwrap();
        let short = pair.arm(100).unwrap();
        for _ in 0..5 {
            pair.now += 1;
            pair.turn();
        }
        pair.end(id);
        pair.end(short);
    }
    assert_eq!(pair.wheel.next_key, 0, "a timer was taken over");
}

#[test]
fn late_look_makes_no_timer_late() {
    for late in [5, 20, 100] {
        for delay in 1..300 {
            let mut pair = Pair::new(1 << 20);
            for after in [delay, 7, 40, 90] {
                pair.arm(after).unwrap();
            }
            // The owner is late each time that it looks, but for the deadline itself.
            let end = pair.now + 400;
            while pair.now < end {
                let look_by = pair.nursery.look_by().div_ceil(TICK);
                let due = pair.pending.values().map(|timer| timer.1).min().unwrap_or(end);
                pair.now =
                    (look_by.saturating_add(late)).clamp(pair.now + 1, due.max(pair.now + 1));
                pair.turn();
            }
            assert!(pair.pending.is_empty());
        }
    }
}

#[test]
fn reset_that_is_repeated_keeps_a_timer_young() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(30_000).unwrap();
    for _ in 0..100_000 {
        pair.now += 1;
        pair.reset(id, 30_000);
        pair.turn();
    }
    assert_eq!(pair.wheel.next_key, 0, "it was taken over");
}

#[test]
fn old_timer_that_is_reset_to_later_changes_only_its_slot() {
    let mut pair = Pair::new(1 << 20);
    let id = pair.arm(11).unwrap();
    let short = pair.arm(1).unwrap();
    pair.now += 1;
    pair.turn();
    assert_eq!(pair.wheel.next_key, 2, "the look at the shorter one takes both over");
    pair.end(short);
    for _ in 0..1_000 {
        pair.now += 1;
        pair.reset(id, 11);
        pair.turn();
    }
    assert_eq!(pair.wheel.resets, 0, "the owner is told of a later deadline");
    pair.reset(id, 3);
    pair.now += 3;
    pair.turn();
    assert_eq!(
        (pair.wheel.resets, pair.fired.len()),
        (1, 1),
        "the owner is told of an earlier one"
    );
}

#[test]
fn chunks_of_slots_are_freed_when_they_are_empty() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..100_000).map(|_| pair.arm(30_000).unwrap()).collect();
    let allocated = |pair: &Pair| pair.nursery.lock().slots.allocated();
    assert!(allocated(&pair) >= 100_000);
    let mut ids = ids;
    fastrand::Rng::with_seed(1).shuffle(&mut ids);
    for id in ids {
        pair.end(id);
    }
    assert!(allocated(&pair) <= 256, "{} slots are kept", allocated(&pair));
    pair.nursery.check_invariants();
}

#[test]
fn next_timer_takes_the_freed_slot_where_all_chunks_are_full() {
    let mut pair = Pair::new(1 << 20);
    let mut ids: Vec<_> = (0..1_024).map(|_| pair.arm(30_000).unwrap()).collect();
    let mut rng = fastrand::Rng::with_seed(2);
    for round in 0..4_096 {
        // Timers that end one after the other, in turn, and any of them.
        let at = if rng.bool() { round % ids.len() } else { rng.usize(..ids.len()) };
        let (slot, _) = pair.pending[&ids[at]];
        pair.end(ids[at]);
        ids[at] = pair.arm(30_000).unwrap();
        assert_eq!(pair.pending[&ids[at]].0, slot, "the next timer takes the slot");
        pair.nursery.check_invariants();
    }
    assert_eq!(pair.nursery.lock().slots.allocated(), 1_024);
}

#[test]
fn timers_of_two_lists_that_end_and_begin_in_turn_take_each_others_freed_slots() {
    let mut pair = Pair::new(1 << 20);
    let delay = |round: usize| if round % 2 == 0 { 30_000 } else { 100 };
    let mut ids: Vec<_> = (0..2_048).map(|n| pair.arm(delay(n)).unwrap()).collect();
    let mut freed = Vec::new();
    for round in 0..ids.len() {
        // A timer of one list ends, and one of the other list is armed.
        freed.push(pair.pending[&ids[round]].0);
        pair.end(ids[round]);
        ids[round] = pair.arm(delay(round + 1)).unwrap();
        pair.nursery.check_invariants();
        if round > 0 {
            assert_eq!(pair.pending[&ids[round]].0, freed[round - 1], "the slot of its list");
        }
    }
}

#[test]
fn nursery_without_credit_refuses_at_once_and_gives_back_what_it_does_not_use() {
    let mut pair = Pair::new(100);
    let armed: Vec<_> = (0..100).map(|_| pair.arm(30_000).unwrap()).collect();
    assert_eq!(pair.arm(30_000), Err(ArmRefusal::Full));
    pair.end(armed[0]);
    assert!(pair.arm(30_000).is_ok(), "a timer that ends leaves its credit");
    for id in &armed[1..] {
        pair.end(*id);
    }
    pair.nursery.leave();
    assert_eq!(pair.room.take_all(1_000), 99, "a thread that ends gives its credit back at once");
    let (_, is_over) = pair.nursery.settle(|_, _, _| {});
    assert!(!is_over, "a timer is pending");
    assert_eq!(pair.room.take_all(1_000), 0);
}

#[test]
fn credit_beyond_what_a_nursery_keeps_goes_back_when_it_is_settled() {
    let mut pair = Pair::new(1 << 20);
    let armed: Vec<_> = (0..10_000).map(|_| pair.arm(30_000).unwrap()).collect();
    for id in armed {
        pair.end(id);
    }
    pair.nursery.settle(|_, _, _| {});
    assert_eq!(pair.room.free(), (1 << 20) - 1_024);
}

#[test]
fn owner_that_has_seen_what_has_changed_is_not_asked_to_look_again() {
    let mut pair = Pair::new(1 << 20);
    let [id, reset, _] = [15, 15, 1].map(|delay| pair.arm(delay).unwrap());
    pair.now += 1;
    pair.turn();
    pair.end(id);
    pair.reset(reset, 5);
    assert_ne!(pair.nursery.look_by(), u64::MAX);
    pair.now += 1_000;
    pair.turn();
    assert_eq!(pair.nursery.look_by(), u64::MAX, "nothing is left to look at");
}

#[test]
fn look_sees_timers_that_have_ended_before_the_owner_must_see_them() {
    let mut pair = Pair::new(1 << 20);
    let [id, _] = [11, 1].map(|delay| pair.arm(delay).unwrap());
    pair.now += 1;
    pair.turn();
    pair.end(id);
    assert!(pair.nursery.look_by() > nanos(pair.now));
    let Pair { nursery, wheel, now, .. } = &mut pair;
    nursery.look(nanos(*now), TAKEN_MAX, wheel, &mut Vec::new());
    assert_eq!(wheel.cancelled, 1);
}

#[test]
fn look_before_it_is_due_publishes_when_the_owner_must_see_what_it_has_left() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..80).map(|_| pair.arm(300).unwrap()).collect();
    while pair.wheel.timers.len() < ids.len() {
        pair.now += 1;
        pair.turn();
    }
    for id in ids {
        pair.end_elsewhere(id);
    }
    // The owner looks for room, by the beginning of its tick.
    let begun = nanos(pair.now) - 1;
    pair.nursery.look(begun, TAKEN_MAX, &mut pair.wheel, &mut Vec::new());
    pair.nursery.check_invariants();
    assert_ne!(pair.nursery.look_by(), u64::MAX);
}

#[test]
fn timers_that_wait_for_room_are_served_in_order_and_refused_if_there_is_too_little() {
    let table = Table::<u64>::new(0);
    let doorbell = Doorbell::new();
    let ask = |asked, carried| table.ask_for_room(asked, carried, &doorbell);
    assert_eq!([7, 8, 9].map(|carried| ask(None, carried)), [0, 1, 2].map(|at| (Ok(at), None)));
    assert_eq!(ask(Some(1), 88), (Ok(1), Some(8)), "it waits by what it carries now");
    assert!(table.is_short());
    assert_eq!((table.begin_serving(), table.is_short()), (3, false));
    assert_eq!(ask(None, 10), (Ok(3), None));
    assert!(table.is_short(), "one that asks meanwhile is looked for again");
    assert_eq!(table.end_serving(3, false), [7, 88, 9]);
    assert_eq!(ask(Some(0), 7), (Ok(4), None), "there was room, which others took");
    assert_eq!(table.begin_serving(), 2);
    assert_eq!(table.end_serving(2, true), [10, 7]);
    let refused = (Err(ArmRefusal::Full), Some(7));
    assert_eq!([ask(Some(4), 7), ask(Some(3), 7)], [refused, refused]);
    assert_eq!(ask(None, 7), (Ok(5), None), "another timer asks again");
    assert_eq!(table.close_unowned(), [7]);
    assert_eq!(ask(Some(5), 7), (Err(ArmRefusal::Closed), Some(7)));
}

#[test]
fn slot_whose_timer_fires_while_it_is_listed_is_used_again_after_the_next_look() {
    for ends_before_the_look in [true, false] {
        let mut pair = Pair::new(1 << 20);
        let id = pair.arm(15).unwrap();
        let slot = pair.pending[&id].0;
        let (end, mut carried) = (nanos(pair.now + 15), Vec::new());
        pair.nursery.look(end, TAKEN_MAX, &mut pair.wheel, &mut carried);
        // The thread resets it after the look of the turn that fires it.
        assert!(pair.nursery.reset(slot, nanos(pair.now + 14), || end).is_some());
        assert!(matches!(pair.nursery.fire(slot, end), Due::Fires(_)));
        pair.wheel.timers.clear();
        if ends_before_the_look {
            assert_eq!(pair.nursery.end(slot, || end).0, None);
            pair.nursery.check_invariants();
            assert_eq!(pair.nursery.used(), (0, 1), "the slot is listed");
        }
        pair.nursery.look(end, TAKEN_MAX, &mut pair.wheel, &mut carried);
        if !ends_before_the_look {
            assert_eq!(pair.nursery.end(slot, || end).0, None);
        }
        pair.nursery.check_invariants();
        assert_eq!(pair.nursery.used(), (0, 0));
    }
}

#[test]
fn closing_nursery_gives_every_timer_to_its_owner_and_refuses_others() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..1_000).map(|n| pair.arm(20 + n * 30).unwrap()).collect();
    pair.end(ids[0]);
    pair.end_elsewhere(ids[1]);
    let mut carried = Vec::new();
    while pair.nursery.close(&mut pair.wheel, &mut carried) {
        // A timer that ends meanwhile makes no room for another one.
        let (young, _) = pair.nursery.used();
        if young == 700 {
            pair.end(*ids.last().unwrap());
        }
        assert_eq!(pair.arm(50), Err(ArmRefusal::Closed), "while {young} timers are young");
    }
    assert_eq!(carried, [ids[1]], "what has ended elsewhere is dropped");
    assert_eq!(pair.wheel.timers.len(), 998);
    assert_eq!(pair.arm(50), Err(ArmRefusal::Closed));
    let slot = pair.pending[&ids[2]].0;
    assert_eq!(pair.nursery.look_at(slot, |_| true), Progress::Closed);
    // Timers end after their owner, here and elsewhere.
    let used = pair.nursery.used().1;
    assert_eq!(pair.nursery.end(slot, || 0).0, Some(ids[2]));
    assert_eq!(pair.nursery.used(), (0, used - 1), "its slot is free at once");
    let slot = pair.pending[&ids[3]].0;
    assert_eq!(pair.nursery.end_elsewhere(slot, || 0), Err(()));
    while pair.nursery.end_some(|| 0, &mut carried).0 {}
    assert_eq!(carried, [ids[1], ids[3]]);
}

#[test]
fn owner_ends_what_the_nurserys_thread_has_begun_to_end_and_not_finished() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..200).map(|_| pair.arm(30_000).unwrap()).collect();
    for id in ids {
        pair.end_elsewhere(id);
    }
    let mut carried = Vec::new();
    let (more, _) = pair.nursery.end_some(|| nanos(pair.now), &mut carried);
    assert!(more, "{} of them are one chunk", carried.len());
    pair.ended_elsewhere.retain(|id| !carried.contains(id));
    pair.now += 1_000;
    pair.turn();
    assert_eq!((pair.nursery.used(), pair.ended_elsewhere.len()), ((0, 0), 0));
}

#[test]
fn timers_that_end_once_the_nursery_is_closed_do_not_fire() {
    let mut pair = Pair::new(1 << 20);
    let ids: Vec<_> = (0..1_000).map(|_| pair.arm(30_000).unwrap()).collect();
    while pair.nursery.close(&mut pair.wheel, &mut Vec::new()) {}
    let due: Vec<_> = pair.wheel.timers.values().map(|timer| timer.0).collect();
    assert_eq!(due.len(), ids.len());
    for id in &ids[1..] {
        pair.end(*id);
    }
    let mut fired = Vec::new();
    for slot in due {
        // Most of their chunks are freed.
        match pair.nursery.fire(slot, u64::MAX) {
            Due::Fires(id) => fired.push(id),
            Due::Nothing => {}
            Due::NotBefore(later) => panic!("a timer is postponed to {later}"),
        }
    }
    assert_eq!(fired, [ids[0]]);
}

#[test]
fn place_of_a_nursery_is_used_again_under_another_name() {
    let table = Table::<u64>::new(100);
    let nursery = || Nursery::new(Periods::new(TICK), 0, Arc::clone(table.room()), false);
    let (first, _) = table.enter(nursery()).unwrap();
    let (second, _) = table.enter(nursery()).unwrap();
    let version = table.version();
    table.remove(first.index);
    assert_ne!(version, table.version(), "the owner sees the change");
    assert!(table.find(first).is_none());
    let (third, _) = table.enter(nursery()).unwrap();
    assert_eq!(third.index, first.index);
    assert!(table.find(first).is_none() && table.find(third).is_some());
    assert!(table.find(second).is_some());
    table.close();
    assert!(table.enter(nursery()).is_err_and(|is_closed| is_closed));
}
