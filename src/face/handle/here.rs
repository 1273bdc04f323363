//! How the calling thread reaches a service: by its timers for the shard that it drives, or else
//! for one that it is given, as the thread's [`Reach`] of the service says.
//!
//! Each thread has a table of the services that it uses. Its thread timers are made when the thread
//! first arms a timer, and are left when the thread ends. Why not one set for all threads: its lock
//! would travel between their caches.
//!
//! A timer that was armed on another thread is found by the name of its thread timers. A thread
//! remembers those of other threads that it has met.
//!
//! Invariant: no code of the user runs while the table, or what it holds, is borrowed.
//!
//! Cost: a comparison for the service that the thread has used first. It finds others by a search
//! of its table, which has an entry for each of them.

mod room;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;

pub(crate) use self::room::Unarmed;
use super::own::OwnThreadTimers;
use super::place::Place;
use super::reaches::Reaches;
use super::registry;
use super::registry::{Service, ThreadLanes};
use super::simulated::ThreadNumber;
use crate::clock::{NearClock, Timeline};
use crate::directory::Front;
use crate::directory::orders::{GROUPS, Group};
use crate::link::thread_timers::{
    ArmRefusal, Armed, Arming, Name, Ring, TAKEN_MAX, ThreadTimers, ThreadTimersId,
};
use crate::pass;
use crate::shard::Core;
use crate::shard::local::LocalShard;
use crate::values::class::{ClassId, TimerClass};
use crate::values::contain::drop_each;
use crate::values::error::ConfigError;
use crate::values::ids::{ServiceId, ShardId};
use crate::values::refused::RefusedKind;

/// The timers of other threads that this thread has met, by the numbers of their shards and
/// their own.
type Others = Vec<Vec<Option<(u32, Arc<ThreadTimers<Waker>>)>>>;

#[cfg(all(test, corewheel_loom))]
loom::thread_local! {
    pub(super) static TABLE: Reaches = Reaches::new();
}

thread_local! {
    #[cfg(not(all(test, corewheel_loom)))]
    pub(super) static TABLE: Reaches = const { Reaches::new() };
}

/// How one thread reaches one service.
pub(crate) struct Reach {
    service: ServiceId,
    pub(super) thread: ThreadNumber,
    time: Timeline,
    pub(super) clock: NearClock,
    /// The shards that this thread drives.
    shards: RefCell<Vec<Weak<dyn LocalShard>>>,
    /// Whether `shards` has an element.
    drives_any: Cell<bool>,
    reached: OnceCell<Arc<Service>>,
    /// The shard for timers that may be on any, if this thread drives none, and the number of this
    /// thread among those of the shard.
    given: OnceCell<(ShardId, usize)>,
    /// Empty until the thread first sends a command or a message.
    lanes: OnceCell<Rc<dyn ThreadLanes>>,
    own: OwnThreadTimers,
    others: RefCell<Others>,
    next_salt: Cell<u8>,
}

impl Reach {
    /// The entry of a service in the table of this thread. `None` also when the table of the thread
    /// is gone.
    fn known(service: ServiceId) -> Option<Rc<Self>> {
        let known =
            |table: &Reaches| table.first(service).cloned().or_else(|| table.other(service));
        TABLE.try_with(known).ok().flatten()
    }

    /// Whether this is how the running thread reaches a service.
    #[inline]
    pub(super) fn is_of(&self, service: ServiceId) -> bool {
        self.thread.is_present() && self.service == service
    }

    /// Whether this is of a simulated thread.
    pub(super) fn is_simulated(&self) -> bool {
        self.thread.is_simulated()
    }

    /// An entry that is in no table.
    fn new(service: ServiceId, time: Timeline) -> Rc<Self> {
        Rc::new(Self {
            service,
            thread: ThreadNumber::present(),
            clock: NearClock::new(time.clock().clone()),
            time,
            shards: RefCell::default(),
            drives_any: Cell::new(false),
            reached: OnceCell::new(),
            given: OnceCell::new(),
            lanes: OnceCell::new(),
            own: OwnThreadTimers::default(),
            others: RefCell::default(),
            next_salt: Cell::new(0),
        })
    }

    /// Enters the table of this thread. False if the table is gone.
    fn enter_table(self: &Rc<Self>) -> bool {
        // Services that have ended leave the table when another one enters it.
        let gone: Result<Vec<_>, _> = TABLE.try_with(|table| {
            let gone = table.take_gone(Self::has_ended);
            table.add(Rc::clone(self));
            gone
        });
        gone.is_ok()
    }

    /// The entry of a service that is open. A thread enters the table when it first uses a service.
    ///
    /// Where the table is gone, as the thread ends, the entry is used once. Its timers and lanes
    /// are left when it is dropped, as those of a thread that has ended, and their timers go on.
    #[cold]
    fn of_open(service: ServiceId) -> Option<Rc<Self>> {
        let entry = Self::new(service, registry::find(service)?.time.clone());
        entry.enter_table();
        Some(entry)
    }

    fn has_ended(&self) -> bool {
        registry::find(self.service).is_none()
            && self.shards.borrow().iter().all(|shard| shard.strong_count() == 0)
    }

    #[inline]
    pub(crate) fn time(&self) -> &Timeline {
        &self.time
    }

    /// The present in nanoseconds, or a little later.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.nanos()
    }

    /// A number that differs from those before, among 256.
    pub(crate) fn next_salt(&self) -> u8 {
        self.next_salt.replace(self.next_salt.get().wrapping_add(1))
    }

    /// The group for the connections of this thread on a shard; on that of this thread's timers, if
    /// `shard` is `None`.
    pub(crate) fn group(&self, shard: Option<ShardId>) -> Option<Arc<Group>> {
        // A thread that drives a shard is given none.
        let own = self.shard();
        let thread = self.given.get().map_or(0, |(_, thread)| *thread);
        let front = self.service()?.front(shard.or(own)?)?;
        Some(Arc::clone(&front.orders().groups()[thread % GROUPS]))
    }

    /// The service; `None` if it has ended and this thread has armed no timer before.
    #[inline]
    fn service(&self) -> Option<&Arc<Service>> {
        if self.reached.get().is_none() {
            let service = registry::find(self.service)?;
            drop(self.reached.set(service));
        }
        self.reached.get()
    }

    /// How many shards the service has; 0 if it has ended.
    pub(super) fn front(&self, shard: ShardId) -> Option<&Front> {
        self.service()?.front(shard)
    }

    pub(super) fn shard_count(&self) -> usize {
        self.service().map_or(0, |service| service.shard_count())
    }

    /// A class of the service. `None` if the service has ended.
    pub(super) fn find_class(&self, class: TimerClass) -> Option<Result<ClassId, ConfigError>> {
        Some(self.service().filter(|service| service.shard_count() > 0)?.classes.find(class))
    }

    /// The lanes of this thread; `None` if the service has ended.
    pub(super) fn lanes(&self) -> Option<Rc<dyn ThreadLanes>> {
        self.lanes.get().cloned().or_else(|| self.open_lanes())
    }

    #[cold]
    fn open_lanes(&self) -> Option<Rc<dyn ThreadLanes>> {
        let lanes = registry::find(self.service)?.lanes();
        Some(Rc::clone(self.lanes.get_or_init(|| lanes)))
    }

    /// The shard for timers that may be on any: one that this thread drives, or else one that it is
    /// given.
    #[inline]
    pub(super) fn shard(&self) -> Option<ShardId> {
        if self.drives_any.get() {
            if let Some(shard) = self.driven(None) {
                return Some(shard.id());
            }
        }
        match self.given.get() {
            Some((shard, _)) => Some(*shard),
            None => self.ask_for_shard(),
        }
    }

    /// A shard that this thread drives: the shard `id`, or any if `id` is `None`.
    #[cold]
    pub(super) fn driven(&self, id: Option<ShardId>) -> Option<Rc<dyn LocalShard>> {
        let shards = self.shards.borrow();
        let mut open = shards.iter().filter_map(Weak::upgrade).filter(|shard| !shard.is_closed());
        open.find(|shard| id.is_none_or(|id| shard.id() == id))
    }

    #[cold]
    fn ask_for_shard(&self) -> Option<ShardId> {
        // A service that has ended gives none.
        let given = registry::find(self.service)?.next_shard();
        let _ = self.given.set(given);
        Some(given.0)
    }

    /// Whether the shard of a handle has ended, as far as this thread knows.
    pub(crate) fn is_shard_closed(&self, shard: Option<ShardId>) -> bool {
        let shard = shard.or_else(|| self.shard());
        let (Some(shard), Some(service)) = (shard, self.service()) else { return true };
        service.front(shard).is_none_or(Front::has_ended)
    }

    /// Whether a time may have passed, as far as this thread knows without a reading.
    #[inline]
    pub(crate) fn may_have_passed(&self, nanos: u64) -> bool {
        self.clock.may_have_passed(nanos)
    }

    /// Whether a time has surely passed, given a time that [`nanos`](Self::nanos) has returned.
    /// False where only the system's clock can say.
    #[inline]
    pub(crate) fn has_passed(&self, nanos: u64, returned: u64) -> bool {
        self.clock.has_passed(nanos, returned)
    }

    /// Arms a timer of this thread for a shard, or for any if `shard` is `None`. Also returns
    /// whether the timer has time: otherwise its deadline may have passed. Runs code of the user
    /// only if nothing `is_borrowed`.
    #[inline]
    pub(crate) fn arm(
        &self,
        shard: Option<ShardId>,
        arming: Arming<Waker>,
        is_borrowed: bool,
    ) -> Result<(Place, bool), Unarmed> {
        let Some(shard) = shard.or_else(|| self.shard()) else {
            return Err(RefusedKind::Closed.into());
        };
        match self.try_to_arm(shard, arming, is_borrowed) {
            Ok(armed) => Ok(armed),
            Err((refusal, arming)) => self.arm_in_steps(shard, refusal, arming, is_borrowed),
        }
    }

    /// Has the runtime of this thread wake the futures that its timers guard, where that is known.
    pub(crate) fn find_relay(&self) {
        if self.own.iter().all(|own| own.thread_timers.relay().is_some()) {
            return;
        }
        let Some(relay) = pass::relay_of_thread() else { return };
        for own in self.own.iter() {
            own.thread_timers.set_relay(Arc::clone(&relay));
        }
    }

    /// Arms a timer, if the thread has timers for the shard and a slot that is lent to it. `Err`
    /// with what has refused the timer: `None` where it has none.
    #[inline(always)]
    fn try_to_arm(
        &self,
        shard: ShardId,
        arming: Arming<Waker>,
        is_borrowed: bool,
    ) -> Result<(Place, bool), (Option<ArmRefusal>, Arming<Waker>)> {
        let Some(own) = self.own.find(|own| own.shard == shard) else { return Err((None, arming)) };
        let Armed { name, ring, has_time } = own
            .thread_timers
            .arm(arming, || self.clock.recent(), || self.nanos())
            .map_err(|(why, arming)| (Some(why), arming))?;
        self.ring(shard, ring);
        if own.thread_timers.has_many_ended() && !is_borrowed {
            self.end_ended();
        }
        Ok((Place { thread_timers: own.name, timer: name }, has_time))
    }

    /// Arms a timer for which the thread first makes its timers, or asks for a slot.
    #[cold]
    fn arm_in_steps(
        &self,
        shard: ShardId,
        refusal: Option<ArmRefusal>,
        arming: Arming<Waker>,
        is_borrowed: bool,
    ) -> Result<(Place, bool), Unarmed> {
        let mut refused = (refusal, arming);
        loop {
            match refused.0 {
                None => self.enter(shard)?,
                Some(refusal) => {
                    let class = ClassId::from_bits(refused.1.class);
                    self.ask_for_room(shard, class, refusal, is_borrowed)?;
                }
            }
            refused = match self.try_to_arm(shard, refused.1, is_borrowed) {
                Ok(armed) => return Ok(armed),
                Err(refused) => refused,
            };
        }
    }

    /// Rings a shard, if that is asked for.
    #[inline]
    fn ring(&self, shard: ShardId, ring: Ring) {
        if let Some(act_by) = ring {
            self.ring_for(shard, act_by);
        }
    }

    #[cold]
    fn ring_for(&self, shard: ShardId, act_by: u64) {
        let act_by = self.time.ceil(act_by);
        let driven = if self.drives_any.get() { self.driven(Some(shard)) } else { None };
        if let Some(driven) = driven {
            // The shard sees it before it sleeps, or is woken as by any command.
            driven.note_deadline(act_by);
        } else if let Some(front) = self.front(shard) {
            front.threads.ring(act_by, &front.doorbell);
        }
    }

    /// Runs code with the thread timers of a timer, which runs no code of the user, and then rings
    /// the shard as that says. `None` if they are gone.
    pub(crate) fn with<R>(
        &self,
        place: Place,
        run: impl FnOnce(&ThreadTimers<Waker>, Name) -> (R, Ring),
    ) -> Option<R> {
        let (result, ring) = match self.own.find(|own| own.name == place.thread_timers) {
            Some(own) => run(&own.thread_timers, place.timer),
            None => self.with_other(place, |thread_timers| run(thread_timers, place.timer))?,
        };
        self.ring(place.thread_timers.shard(), ring);
        Some(result)
    }

    /// Runs code with the timers of another thread.
    fn with_other<R>(
        &self,
        place: Place,
        run: impl FnOnce(&ThreadTimers<Waker>) -> R,
    ) -> Option<R> {
        let ThreadTimersId { index, generation } = place.thread_timers.id();
        let (shard, index) = (place.thread_timers.shard().index(), usize::from(index));
        let is_known = {
            let others = self.others.borrow();
            let known = others.get(shard).and_then(|others| others.get(index)?.as_ref());
            known.is_some_and(|(known, _)| *known == generation)
        };
        let forgotten = if is_known { None } else { self.meet(place)? };
        let result = {
            let others = self.others.borrow();
            let (_, thread_timers) = others[shard][index].as_ref().expect("it is known");
            run(thread_timers)
        };
        // The last reference to thread timers that are gone, which carry nothing any more.
        drop(forgotten);
        Some(result)
    }

    /// Remembers the timers of another thread. Returns the one that had its place before, if there
    /// was one; `None` if they are gone.
    #[cold]
    #[allow(clippy::option_option, reason = "the outer one is for the question mark")]
    fn meet(&self, place: Place) -> Option<Option<(u32, Arc<ThreadTimers<Waker>>)>> {
        let front = self.front(place.thread_timers.shard())?;
        let thread_timers = front.threads.find(place.thread_timers.id())?;
        let ThreadTimersId { index, generation } = place.thread_timers.id();
        let (shard, index) = (place.thread_timers.shard().index(), usize::from(index));
        let mut others = self.others.borrow_mut();
        if others.len() <= shard {
            others.resize_with(shard + 1, Vec::new);
        }
        let others = &mut others[shard];
        if others.len() <= index {
            others.resize_with(index + 1, || None);
        }
        Some(others[index].replace((generation, thread_timers)))
    }

    /// Gives a timer another deadline. False if the timer is over.
    pub(crate) fn reset(&self, place: Place, deadline: u64) -> bool {
        let reset = |thread_timers: &ThreadTimers<Waker>, timer| {
            thread_timers
                .reset(timer, deadline, || self.clock.recent(), || self.nanos())
                .map_or((false, None), |ring| (true, ring))
        };
        self.with(place, reset).unwrap_or(false)
    }

    /// Ends a timer, and drops its waker if it was armed on this thread. `may_have_fired` if its
    /// deadline may have passed: a timer that has fired is ended without a lock.
    #[inline]
    pub(crate) fn end(&self, place: Place, may_have_fired: bool) {
        let Some(own) = self.own.find(|own| own.name == place.thread_timers) else {
            return self.end_elsewhere(place, may_have_fired);
        };
        if may_have_fired && own.thread_timers.is_over(place.timer) {
            return;
        }
        // The waker is dropped last, which runs code of the user.
        let _waker = own.thread_timers.end(place.timer);
    }

    /// Whether a timer is over, without a lock. One that has just fired may not show.
    #[inline]
    pub(crate) fn is_timer_over(&self, place: Place) -> bool {
        match self.own.find(|own| own.name == place.thread_timers) {
            Some(own) => own.thread_timers.is_over(place.timer),
            None => self
                .with_other(place, |thread_timers| thread_timers.is_over(place.timer))
                .unwrap_or(true),
        }
    }

    /// Ends a timer of another thread.
    #[inline(never)]
    fn end_elsewhere(&self, place: Place, may_have_fired: bool) {
        // Looked at only then, as it takes a line of the other thread's cache.
        let end = |thread_timers: &ThreadTimers<Waker>| {
            if may_have_fired && thread_timers.is_over(place.timer) {
                return Ok(None);
            }
            thread_timers.end_elsewhere(place.timer, || self.nanos())
        };
        match self.with_other(place, end) {
            Some(Ok(ring)) => self.ring(place.thread_timers.shard(), ring),
            Some(Err(())) => self.end_all(place),
            None => {}
        }
    }

    /// Ends the timers of a thread whose shard has ended.
    #[cold]
    fn end_all(&self, place: Place) {
        let mut wakers = Vec::new();
        while self.with_other(place, |thread_timers| thread_timers.end_some(&mut wakers))
            == Some(true)
        {
            drop_each(wakers.drain(..));
        }
        drop_each(wakers);
    }

    /// Ends the timers of this thread that have ended on other threads. Runs code of the user.
    #[cold]
    fn end_ended(&self) {
        let mut wakers = Vec::with_capacity(TAKEN_MAX as usize);
        for own in self.own.iter() {
            loop {
                let more = own.thread_timers.end_some(&mut wakers);
                drop_each(wakers.drain(..));
                if !more {
                    break;
                }
            }
        }
    }
}

/// Runs code, once, with how the calling thread reaches a service. `None` where [`find`] finds
/// nothing.
#[inline]
pub(crate) fn with<R>(service: ServiceId, mut run: impl FnMut(&Reach) -> R) -> Option<R> {
    let found = TABLE.try_with(|table| {
        let other;
        let reach = if let Some(first) = table.first(service) {
            first
        } else {
            other = table.other(service).or_else(|| Reach::of_open(service))?;
            &other
        };
        Some(run(reach))
    });
    match found {
        Ok(found) => found,
        Err(_) => without_table(service, run),
    }
}

/// Runs code with how a thread reaches a service whose table is gone.
#[cold]
#[inline(never)]
fn without_table<R>(service: ServiceId, mut run: impl FnMut(&Reach) -> R) -> Option<R> {
    Some(run(&*Reach::of_open(service)?))
}

/// How the calling thread reaches a service. `None` if the service has ended, and the thread has
/// not used it before or ends.
#[inline]
pub(crate) fn find(service: ServiceId) -> Option<Rc<Reach>> {
    Reach::known(service).or_else(|| Reach::of_open(service))
}

/// The lanes of the calling thread to a service. `None` unless the thread has used this service
/// first, and has opened lanes.
#[inline(always)]
pub(super) fn known_lanes(service: ServiceId) -> Option<Rc<dyn ThreadLanes>> {
    let known = TABLE.try_with(|table| table.first(service)?.lanes.get().cloned());
    known.ok().flatten()
}

/// The shard is found on this thread, until the returned value is dropped.
pub(crate) struct OnThread {
    reach: Rc<Reach>,
    shard: Weak<dyn LocalShard>,
}

impl OnThread {
    /// Enters a shard that the calling thread drives.
    pub(crate) fn enter<T: Send + 'static>(core: &Rc<Core<T>>) -> Option<Self> {
        let shard: Weak<dyn LocalShard> = Rc::downgrade(core) as _;
        let service = core.directory().service;
        let reach = Reach::known(service).or_else(|| {
            let entry = Reach::new(service, core.time().clone());
            entry.enter_table().then_some(entry)
        })?;
        // A sleep of a service without a handle may be dropped on another thread.
        registry::enter(core.directory());
        let _known = reach.reached.set(Service::new(core.directory()));
        reach.shards.borrow_mut().push(Weak::clone(&shard));
        reach.drives_any.set(true);
        Some(Self { reach, shard })
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        let mut shards = self.reach.shards.borrow_mut();
        shards.retain(|shard| !Weak::ptr_eq(shard, &self.shard));
        self.reach.drives_any.set(!shards.is_empty());
    }
}
