//! How a shard visits all of its connections, a few in each turn: when their limits have shrunk,
//! when they are to end, and to find the idlest.
//!
//! A [drain](Orders::set_drain) is a visit whose pace is given: the connections are told one after
//! another, so that they are spread evenly over the window whatever their number. Why not a timer
//! for each: a million timers would be reset when the drain begins, and once more at their end.
//!
//! The idlest connections are found by one visit of all, which keeps the `n` idlest so far in a
//! heap. Why no list in the order of activity: each touch would have to change it.
//!
//! Invariants: a turn visits at most [`TURN_MAX`] places, and delivers a timer after each step if
//! any is due. A step visits at most [`STEP_MAX`] places, and tells at most [`TOLD_MAX`]
//! connections. No code of the user runs while anything here is borrowed.
//!
//! Cost: before the first order, that of a part which wants nothing in its turns. Then O(1) for
//! each place, and for the idlest O(log n) for each connection and 24 bytes for each that is looked
//! for. A visit that looks at the deadlines again takes some 1,700 instructions of an optimised
//! build on x86-64, of which more than half compute the first deadline; one that looks for idle
//! connections takes some 700.

use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corewheel_shard::Tick;

use super::core::Core;
use super::part::{Part, Wants};
use super::part_handle::PartHandle;
use super::parts::Parts;
use crate::clock::when::Deadline;
use crate::clock::{Timeline, saturating_nanos};
use crate::directory::orders::{Drain, Group, News, Orders, Visit};

/// The most places that a turn visits.
const TURN_MAX: u32 = 256;
/// The most places that a turn visits before it delivers a timer that is due.
const STEP_MAX: u32 = 32;
/// The most connections that are told to end before that. Each runs code of the user.
const TOLD_MAX: u32 = 4;

/// Connections that a shard visits by their places.
pub(crate) trait Population {
    fn count(&self) -> usize;
    /// More than the last place.
    fn places(&self) -> u32;
    /// Visits the connection at a place. `None` if there is none, or if the visit returns nothing.
    fn visit(&self, place: u32, visit: Visit) -> Option<u64>;
}

impl Population for Arc<Group> {
    fn count(&self) -> usize {
        Group::count(self)
    }

    fn places(&self) -> u32 {
        Group::places(self)
    }

    fn visit(&self, place: u32, visit: Visit) -> Option<u64> {
        self.member(place)?.visit(visit)
    }
}

/// A place in one of the populations. The order is that of the visits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Place {
    population: u32,
    index: u32,
}

/// Tells all connections to end, at an even pace.
struct Draining {
    drain: Drain,
    /// How many connections there were at the beginning, and how many were told since.
    count: u64,
    told: u64,
}

impl Draining {
    /// How many connections are to be told until a time.
    fn wanted(&self, now: u64) -> u64 {
        let Drain { from, until } = self.drain;
        if now >= until {
            return u64::MAX;
        }
        let (passed, window) = (now.saturating_sub(from), u128::from(until - from));
        // Less than the count.
        (u128::from(passed) * u128::from(self.count) / window) as u64 + 1
    }

    /// When the next connection is to be told.
    fn due(&self) -> u64 {
        let Drain { from, until } = self.drain;
        let window = u128::from(until.saturating_sub(from));
        let after = u128::from(self.told) * window / u128::from(self.count.max(1));
        from.saturating_add(after as u64).min(until)
    }
}

/// Finds the idlest connections, and tells them to end.
struct Idlest {
    max: usize,
    /// The idlest so far, the least idle of them first.
    found: BinaryHeap<(u64, Place)>,
}

/// The visits of one shard.
struct Sweep {
    time: Timeline,
    populations: RefCell<Vec<Rc<dyn Population>>>,
    draining: RefCell<Option<Draining>>,
    /// The next place that a drain visits.
    to_drain: Cell<Place>,
    /// The next place whose deadlines are looked at again, and how many are left.
    again: Cell<Place>,
    again_left: Cell<u64>,
    /// Those that wait for the one before.
    idlest: RefCell<VecDeque<Idlest>>,
    /// The next place that the first of them visits.
    to_compare: Cell<Place>,
    /// The idlest, found, from the least idle to the idlest.
    to_tell: RefCell<Vec<(u64, Place)>>,
    /// The time at the beginning of the turn, and the places that it has visited.
    now: Cell<u64>,
    visited: Cell<u32>,
}

impl Sweep {
    fn new(orders: &Arc<Orders>, time: Timeline) -> Self {
        let groups = orders.groups().iter().cloned();
        let populations = groups.map(|group| Rc::new(group) as Rc<dyn Population>).collect();
        Self {
            time,
            populations: RefCell::new(populations),
            draining: RefCell::default(),
            to_drain: Cell::default(),
            again: Cell::default(),
            again_left: Cell::default(),
            idlest: RefCell::default(),
            to_compare: Cell::default(),
            to_tell: RefCell::default(),
            now: Cell::new(0),
            visited: Cell::new(0),
        }
    }

    /// The visits of a shard.
    fn of(parts: &Parts, orders: &Arc<Orders>, time: &Timeline) -> Rc<Self> {
        parts.get_or_keep(|| Self::new(orders, time.clone()))
    }

    /// Visits other connections too from now on.
    fn add(&self, population: Rc<dyn Population>) {
        self.populations.borrow_mut().push(population);
    }

    /// Begins the visits that orders ask for, at `now`.
    fn begin(&self, news: News, now: u64) {
        // This may be the first turn of which the visits know.
        self.now.set(now);
        let populations = self.populations.borrow();
        if news.looks_again {
            // A visit of all that has begun goes on where it is, so that orders which come again
            // and again do not keep it from the last places.
            let places: u64 = populations.iter().map(|known| u64::from(known.places())).sum();
            // One more for the step from the last place to the first.
            self.again_left.set(places + 1);
        }
        if let Some(drain) = news.drain {
            let count = populations.iter().map(|known| known.count() as u64).sum();
            self.to_drain.take();
            *self.draining.borrow_mut() = Some(Draining { drain, count, told: 0 });
        }
        if news.idlest > 0 {
            let idlest = Idlest { max: news.idlest, found: BinaryHeap::new() };
            self.idlest.borrow_mut().push_back(idlest);
        }
    }

    /// The next place of a walk, with its population; `None` after the last, and then the walk
    /// begins again. The walk goes on before the visit, whose panic must not repeat it.
    fn next_of(&self, walk: &Cell<Place>) -> Option<(Rc<dyn Population>, Place)> {
        let populations = self.populations.borrow();
        let mut place = walk.take();
        loop {
            let population = populations.get(place.population as usize)?;
            if place.index < population.places() {
                walk.set(Place { index: place.index + 1, ..place });
                return Some((Rc::clone(population), place));
            }
            place = Place { population: place.population + 1, index: 0 };
        }
    }

    /// Counts a visit. False if the turn, or the step, has made enough.
    fn may_visit(&self, step: &mut u32) -> bool {
        let may = *step < STEP_MAX && self.visited.get() < TURN_MAX;
        if may {
            *step += 1;
            self.visited.set(self.visited.get() + 1);
        }
        may
    }

    /// Tells the next connections of a drain.
    fn drain(&self) {
        let (mut step, mut told) = (0, 0);
        while told < TOLD_MAX && self.is_drain_due() && self.may_visit(&mut step) {
            let Some((population, place)) = self.next_of(&self.to_drain) else {
                *self.draining.borrow_mut() = None;
                return;
            };
            if population.visit(place.index, Visit::Tell).is_some() {
                told += 1;
                if let Some(draining) = &mut *self.draining.borrow_mut() {
                    draining.told += 1;
                }
            }
        }
    }

    fn is_drain_due(&self) -> bool {
        let draining = self.draining.borrow();
        draining.as_ref().is_some_and(|known| known.told < known.wanted(self.now.get()))
    }

    /// Looks again at the deadlines of the next connections.
    fn look_again(&self) {
        let mut step = 0;
        while self.again_left.get() > 0 && self.may_visit(&mut step) {
            self.again_left.set(self.again_left.get() - 1);
            // After the last place, from the beginning, up to where the visit began.
            if let Some((population, place)) = self.next_of(&self.again) {
                population.visit(place.index, Visit::LookAgain);
            }
        }
    }

    /// Looks for the idlest connections among the next ones.
    fn find_idlest(&self) {
        let mut step = 0;
        while self.may_visit(&mut step) {
            let Some((population, place)) = self.next_of(&self.to_compare) else {
                let found = self.idlest.borrow_mut().pop_front();
                let mut found = found.map_or_else(Vec::new, |known| known.found.into_vec());
                found.sort_unstable_by(|a, b| b.cmp(a));
                *self.to_tell.borrow_mut() = found;
                return;
            };
            let since = population.visit(place.index, Visit::FindIdle);
            let mut idlest = self.idlest.borrow_mut();
            let Some(known) = idlest.front_mut() else { return };
            let Some(since) = since else { continue };
            known.found.push((since, place));
            if known.found.len() > known.max {
                known.found.pop();
            }
        }
    }

    /// Tells the idlest connections that were found, unless they were active since.
    fn tell_idlest(&self) {
        let (mut step, mut told) = (0, 0);
        while told < TOLD_MAX && !self.to_tell.borrow().is_empty() && self.may_visit(&mut step) {
            let Some((since, place)) = self.to_tell.borrow_mut().pop() else { return };
            let population = self.populations.borrow().get(place.population as usize).cloned();
            let Some(population) = population else { return };
            let visit = |visit| population.visit(place.index, visit);
            if visit(Visit::FindIdle) == Some(since) {
                told += u32::from(visit(Visit::Tell).is_some());
            }
        }
    }
}

impl Sweep {
    fn has_work(&self) -> bool {
        self.is_drain_due()
            || self.again_left.get() > 0
            || !self.to_tell.borrow().is_empty()
            || !self.idlest.borrow().is_empty()
    }
}

impl Part for Sweep {
    fn takes_turns(&self) -> bool {
        true
    }

    fn turn_begins(&self, now: Duration) {
        self.now.set(saturating_nanos(now));
        self.visited.set(0);
    }

    fn wants(&self) -> Wants {
        if self.has_work() {
            let has_visited_enough = self.visited.get() >= TURN_MAX;
            return if has_visited_enough { Wants::NextTurn } else { Wants::Delivery };
        }
        let draining = self.draining.borrow();
        let due = draining.as_ref().map(|known| self.time.ceil(known.due()));
        due.map_or(Wants::Nothing, |due| Wants::TurnBy(Deadline(due)))
    }

    /// One step.
    fn deliver(self: Rc<Self>, _now: Duration) {
        if self.is_drain_due() {
            self.drain();
        } else if !self.to_tell.borrow().is_empty() {
            self.tell_idlest();
        } else if !self.idlest.borrow().is_empty() {
            self.find_idlest();
        } else {
            self.look_again();
        }
    }

    fn closed(&self, _is_dead: bool) {
        self.populations.take();
    }
}

impl PartHandle {
    /// Has the shard visit these connections, too.
    pub(crate) fn add_population(&self, population: Rc<dyn Population>) {
        let shard = self.shard();
        Sweep::of(shard.parts(), shard.orders(), shard.time()).add(population);
    }
}

impl<T: 'static> Core<T> {
    /// Takes over the orders of the shard's post, and begins the visits that they ask for.
    pub(super) fn take_orders(&self) {
        let orders = self.post().orders();
        let (scale, news) = (orders.scale(), orders.take_news());
        let before = self.scale.replace(scale);
        if before != scale {
            self.parts.each(|_, part| {
                part.scale_changed(scale);
                true
            });
        }
        if news != News::default() {
            Sweep::of(&self.parts, orders, self.time()).begin(news, self.nanos());
            self.note_deadline(Tick::ZERO);
        }
    }
}
