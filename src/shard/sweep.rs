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
//! Cost: nothing before the first order. Then O(1) for each place, and for the idlest O(log n) for
//! each connection and 24 bytes for each that is looked for.

use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use corewheel_shard::Tick;

use super::Core;
use super::hooks::{Part, Parts};
use super::payload::Payload;
use crate::clock::Timeline;
use crate::directory::orders::{Drain, News, Orders};

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
    /// The deadlines of the connection at a place may be earlier now.
    fn look_again(&self, place: u32);
    /// Tells the connection at a place to end. False if there is none, or if it was told before.
    fn tell(&self, place: u32) -> bool;
    /// Since when the connection at a place has been idle; `None` if there is none, if it is not
    /// idle, or if it was told to end.
    fn idle_since(&self, place: u32) -> Option<u64>;
}

/// The members of a shard's orders.
struct Members(Arc<Orders>);

impl Population for Members {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn places(&self) -> u32 {
        self.0.places()
    }

    fn look_again(&self, place: u32) {
        if let Some(member) = self.0.member(place) {
            member.look_again();
        }
    }

    fn tell(&self, place: u32) -> bool {
        self.0.member(place).is_some_and(|member| member.tell())
    }

    fn idle_since(&self, place: u32) -> Option<u64> {
        self.0.member(place)?.idle_since()
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
    next: Place,
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
    next: Place,
    /// The idlest so far, the least idle of them first.
    found: BinaryHeap<(u64, Place)>,
}

/// The visits of one shard.
pub(crate) struct Sweep {
    time: Timeline,
    populations: RefCell<Vec<Rc<dyn Population>>>,
    draining: RefCell<Option<Draining>>,
    /// The next place whose deadlines are looked at again, and how many are left.
    again: Cell<(Place, u64)>,
    /// Those that wait for the one before.
    idlest: RefCell<VecDeque<Idlest>>,
    /// The idlest, found, from the least idle to the idlest.
    to_tell: RefCell<Vec<(u64, Place)>>,
    /// The time at the beginning of the turn, and the places that it has visited.
    now: Cell<u64>,
    visited: Cell<u32>,
}

impl Sweep {
    fn new(orders: &Arc<Orders>, time: Timeline) -> Self {
        let members: Rc<dyn Population> = Rc::new(Members(Arc::clone(orders)));
        Self {
            time,
            populations: RefCell::new(vec![members]),
            draining: RefCell::default(),
            again: Cell::default(),
            idlest: RefCell::default(),
            to_tell: RefCell::default(),
            now: Cell::new(0),
            visited: Cell::new(0),
        }
    }

    /// The visits of a shard.
    pub(crate) fn of(parts: &Parts, orders: &Arc<Orders>, time: &Timeline) -> Rc<Self> {
        parts.get_or_register(|_| Self::new(orders, time.clone()))
    }

    /// Visits other connections too from now on.
    pub(crate) fn add(&self, population: Rc<dyn Population>) {
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
            self.again.set((self.again.get().0, places + 1));
        }
        if let Some(drain) = news.drain {
            let count = populations.iter().map(|known| known.count() as u64).sum();
            let next = Place::default();
            *self.draining.borrow_mut() = Some(Draining { drain, count, told: 0, next });
        }
        if news.idlest > 0 {
            let (next, found) = (Place::default(), BinaryHeap::new());
            let idlest = Idlest { max: news.idlest, next, found };
            self.idlest.borrow_mut().push_back(idlest);
        }
    }

    /// The population of a place, and the place after it; `None` after the last.
    fn at(&self, mut place: Place) -> Option<(Rc<dyn Population>, Place, Place)> {
        let populations = self.populations.borrow();
        loop {
            let population = populations.get(place.population as usize)?;
            if place.index < population.places() {
                let next = Place { index: place.index + 1, ..place };
                return Some((Rc::clone(population), place, next));
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
            let Some(next) = self.draining.borrow().as_ref().map(|draining| draining.next) else {
                return;
            };
            let Some((population, place, next)) = self.at(next) else {
                *self.draining.borrow_mut() = None;
                return;
            };
            // Before the visit, whose panic must not repeat it.
            if let Some(draining) = &mut *self.draining.borrow_mut() {
                draining.next = next;
            }
            if population.tell(place.index) {
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
        while self.again.get().1 > 0 && self.may_visit(&mut step) {
            let (place, left) = self.again.get();
            let Some((population, place, next)) = self.at(place) else {
                // From the beginning, up to where the visit began.
                self.again.set((Place::default(), left - 1));
                continue;
            };
            self.again.set((next, left - 1));
            population.look_again(place.index);
        }
    }

    /// Looks for the idlest connections among the next ones.
    fn find_idlest(&self) {
        let mut step = 0;
        while self.may_visit(&mut step) {
            let next = self.idlest.borrow().front().map(|known| self.at(known.next));
            let Some(next) = next else { return };
            let Some((population, place, next)) = next else {
                let found = self.idlest.borrow_mut().pop_front();
                let mut found = found.map_or_else(Vec::new, |known| known.found.into_vec());
                found.sort_unstable_by(|a, b| b.cmp(a));
                *self.to_tell.borrow_mut() = found;
                return;
            };
            let since = population.idle_since(place.index);
            let mut idlest = self.idlest.borrow_mut();
            let Some(known) = idlest.front_mut() else { return };
            known.next = next;
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
            let Some((population, found, _)) = self.at(place) else { continue };
            if found == place && population.idle_since(place.index) == Some(since) {
                told += u32::from(population.tell(place.index));
            }
        }
    }
}

impl Part for Sweep {
    fn turn_begins(&self, now: u64) {
        self.now.set(now);
        self.visited.set(0);
    }

    fn next_turn(&self) -> Tick {
        let draining = self.draining.borrow();
        draining.as_ref().map_or(Tick::NEVER, |known| self.time.ceil(known.due()))
    }

    fn has_work(&self) -> bool {
        self.is_drain_due()
            || self.again.get().1 > 0
            || !self.to_tell.borrow().is_empty()
            || !self.idlest.borrow().is_empty()
    }

    /// One step. False if the turn has visited enough.
    fn deliver(&self, _now: u64, _tick: Tick) -> bool {
        if self.visited.get() >= TURN_MAX {
            return false;
        }
        if self.is_drain_due() {
            self.drain();
        } else if !self.to_tell.borrow().is_empty() {
            self.tell_idlest();
        } else if !self.idlest.borrow().is_empty() {
            self.find_idlest();
        } else {
            self.look_again();
        }
        true
    }

    fn closed(&self, _is_dead: bool) {
        self.populations.take();
    }
}

impl<P: Payload> Core<P> {
    /// Takes over the orders of the shard's post, and begins the visits that they ask for.
    pub(super) fn take_orders(&self) {
        let orders = self.post().orders();
        let (scale, news) = (orders.scale(), orders.take_news());
        let before = self.scale.replace(scale);
        if before != scale {
            self.parts.for_each(|part| part.scale_changed(scale));
        }
        if news != News::default() {
            Sweep::of(&self.parts, orders, self.time()).begin(news, self.nanos());
            self.note_deadline(Tick::ZERO);
        }
    }
}
