//! How the calling thread reaches a service: by a shard that it drives, or else by a client of its
//! own, as the thread's [`Reach`] of the service says.
//!
//! Each thread has a table of the services that it uses. A client is made when the thread first
//! needs it, and is dropped when the thread ends. Why not one client for all threads: the ring of a
//! lane has one producer.
//!
//! Invariants: no code of the user runs while the table is borrowed.
//!
//! Cost: a search in a table with an entry for each service that the thread uses.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;

use corewheel_shard::{Tick, TimerKey};

use super::registry;
use crate::clock::{NearClock, Timeline};
use crate::face::client::Client;
use crate::face::stored::Stored;
use crate::face::{Core, Post};
use crate::link::lane::Mark;
use crate::shard::hooks::Message;
use crate::shard::receive::WAKER_KEPT_MAX;
use crate::shard::request::{Bulk, NumberedWaker, Request};
use crate::values::class::ClassId;
use crate::values::handle::{ServiceId, ShardId, TimerHandle};
use crate::values::refused::RefusedKind;

/// Commands on timers that wake futures, for a thread that does not drive the timers' shard.
/// Implemented by [`Client`].
pub(crate) trait ThreadClient {
    /// A timer that wakes a future, and the mark that cancels it in its lane. `Err` with the waker.
    /// It is `now` nanoseconds.
    fn schedule_waker(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        waker: Waker,
        now: u64,
    ) -> Result<(TimerHandle, Mark), (RefusedKind, Waker)>;
    /// Wakes a waker when the lane to a shard has room, or is closed, or else in the next tick if
    /// other clients hold the last keys. `Err` if the shard is closed.
    fn wait_for_room(&self, shard: ShardId, waker: Waker) -> Result<(), RefusedKind>;
    /// Wakes the futures of all clients that wait for room on a shard.
    fn wake_waiting(&self, shard: ShardId);
    fn cancel(&self, timer: TimerHandle);
    /// Makes a timer due earlier.
    fn reset_to_earlier(&self, timer: TimerHandle, deadline: Tick);
    /// Replaces the waker of a timer, if the given one is newer. If the timer is not pending any
    /// more, the waker is woken.
    fn replace_waker(&self, timer: TimerHandle, waker: NumberedWaker);
    /// Sends a message to a part of a shard. `Err` with the message if the shard is closed.
    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>>;
    /// Whether a shard has ended.
    fn has_ended(&self, shard: ShardId) -> bool;
}

impl<T: Send + 'static> ThreadClient for Client<T> {
    fn schedule_waker(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        waker: Waker,
        now: u64,
    ) -> Result<(TimerHandle, Mark), (RefusedKind, Waker)> {
        let needed_by = self.directory().time.deadline_after(now, WAKER_KEPT_MAX);
        let sent_us = (now / 1_000) as u32;
        self.schedule_marked(class, shard, deadline, waker, sent_us, deadline.min(needed_by))
    }

    fn wait_for_room(&self, shard: ShardId, waker: Waker) -> Result<(), RefusedKind> {
        self.wait_for_room(shard, waker)
    }

    fn wake_waiting(&self, shard: ShardId) {
        self.send(shard, Request::Bulk(Box::new(Bulk::WakeWaiting)));
    }

    fn cancel(&self, timer: TimerHandle) {
        self.cancel_detached(timer);
    }

    fn reset_to_earlier(&self, timer: TimerHandle, deadline: Tick) {
        self.send(timer.shard(), Request::Earlier { key: timer.key(), deadline });
    }

    fn replace_waker(&self, timer: TimerHandle, waker: NumberedWaker) {
        let bulk = Bulk::<Stored<T>>::Waker { key: timer.key(), waker };
        self.send(timer.shard(), Request::Bulk(Box::new(bulk)));
    }

    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>> {
        self.send_message(shard, message)
    }

    fn has_ended(&self, shard: ShardId) -> bool {
        self.directory().post(shard).is_none_or(Post::has_ended)
    }
}

/// Commands on timers that wake futures, for the thread that drives their shard. Implemented by
/// [`Core`].
pub(crate) trait ThreadShard {
    fn id(&self) -> ShardId;
    fn is_closed(&self) -> bool;
    /// A timer that wakes a future. `Err` with the waker if the shard is full.
    fn schedule_waker(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Result<TimerHandle, Waker>;
    fn cancel(&self, key: TimerKey);
    /// Makes a timer due earlier.
    fn reset_to_earlier(&self, key: TimerKey, deadline: Tick);
    fn replace_waker(&self, key: TimerKey, waker: NumberedWaker);
    /// Gives a message to a part of the shard, and wakes the driver for it.
    fn receive(&self, message: Box<dyn Message>);
}

impl<T: Send + 'static> ThreadShard for Core<T> {
    fn id(&self) -> ShardId {
        self.id()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn schedule_waker(
        &self,
        class: ClassId,
        deadline: Tick,
        waker: Waker,
    ) -> Result<TimerHandle, Waker> {
        let waker = NumberedWaker::first(waker);
        let index = self.state().tables.wakers.insert(waker);
        match self.schedule(class, deadline, Stored::Waker(index as u32)) {
            Ok(key) => Ok(self.handle_of(key)),
            Err(_) => Err(self.state().tables.wakers.remove(index).waker),
        }
    }

    fn cancel(&self, key: TimerKey) {
        if let Some(Stored::Waker(index)) = self.cancel_unread(key) {
            let waker = self.state().tables.wakers.try_remove(index as usize);
            // Dropping a waker runs code of the user, so nothing is borrowed meanwhile.
            drop(waker);
        }
    }

    fn reset_to_earlier(&self, key: TimerKey, deadline: Tick) {
        self.reset_to_earlier(key, deadline);
    }

    fn replace_waker(&self, key: TimerKey, waker: NumberedWaker) {
        self.replace_waker(key, waker);
    }

    fn receive(&self, message: Box<dyn Message>) {
        message.receive(self.parts());
        self.note_deadline(Tick::ZERO);
    }
}

#[cfg(all(test, corewheel_loom))]
loom::thread_local! {
    static TABLE: RefCell<Vec<Rc<Reach>>> = RefCell::new(Vec::new());
}

thread_local! {
    #[cfg(not(all(test, corewheel_loom)))]
    static TABLE: RefCell<Vec<Rc<Reach>>> = const { RefCell::new(Vec::new()) };
    /// The number of the simulated thread that runs; 0 outside of a simulation.
    #[cfg(feature = "sim")]
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

#[inline]
fn thread() -> u32 {
    #[cfg(feature = "sim")]
    return THREAD.get();
    #[cfg(not(feature = "sim"))]
    0
}

/// How one thread reaches one service.
pub(crate) struct Reach {
    service: ServiceId,
    thread: u32,
    time: Timeline,
    clock: NearClock,
    /// The shards that this thread drives.
    shards: RefCell<Vec<Weak<dyn ThreadShard>>>,
    /// Whether `shards` has an element.
    drives_any: Cell<bool>,
    /// The client of this thread, and the shard for timers that may be on any. Empty until the
    /// thread first needs them.
    client: OnceCell<(Rc<dyn ThreadClient>, ShardId)>,
    next_salt: Cell<u8>,
}

impl Reach {
    /// The entry of a service in the table of this thread. `None` also when the table of the thread
    /// is gone.
    #[inline]
    fn known(service: ServiceId) -> Option<Rc<Self>> {
        let thread = thread();
        let found = TABLE.try_with(|table| {
            let table = table.borrow();
            let mut known = table.iter();
            known.find(|reach| reach.service == service && reach.thread == thread).cloned()
        });
        found.ok().flatten()
    }

    /// Makes an entry in the table of this thread. `None` when the table is gone.
    #[cold]
    fn make(service: ServiceId, time: Timeline) -> Option<Rc<Self>> {
        let entry = Rc::new(Self {
            service,
            thread: thread(),
            clock: NearClock::new(time.clock().clone()),
            time,
            shards: RefCell::default(),
            drives_any: Cell::new(false),
            client: OnceCell::new(),
            next_salt: Cell::new(0),
        });
        // Services that have ended leave the table when another one enters it.
        let gone: Vec<_> = TABLE
            .try_with(|table| {
                let mut table = table.borrow_mut();
                let gone = table.extract_if(.., |reach| reach.has_ended()).collect();
                table.push(Rc::clone(&entry));
                gone
            })
            .ok()?;
        drop(gone);
        Some(entry)
    }

    /// The entry of a service that is open. A thread enters the table when it first uses a service.
    #[cold]
    fn of_open(service: ServiceId) -> Option<Rc<Self>> {
        let time = registry::find(service)?.time();
        Self::make(service, time)
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

    /// A shard that this thread drives: the shard `id`, or any if `id` is `None`.
    #[inline]
    pub(crate) fn shard(&self, id: Option<ShardId>) -> Option<Rc<dyn ThreadShard>> {
        if self.drives_any.get() { self.find_shard(id) } else { None }
    }

    #[cold]
    fn find_shard(&self, id: Option<ShardId>) -> Option<Rc<dyn ThreadShard>> {
        let shards = self.shards.borrow();
        let mut open = shards.iter().filter_map(Weak::upgrade).filter(|shard| !shard.is_closed());
        open.find(|shard| id.is_none_or(|id| shard.id() == id))
    }

    /// The client of this thread, and the shard for timers that may be on any; made if there is
    /// none. `None` if the service has ended.
    #[inline]
    pub(crate) fn client(&self) -> Option<(&dyn ThreadClient, ShardId)> {
        if self.client.get().is_none() {
            self.make_client()?;
        }
        self.client.get().map(|(client, shard)| (&**client, *shard))
    }

    #[cold]
    fn make_client(&self) -> Option<()> {
        let service = registry::find(self.service)?;
        let made = (service.client(), service.next_shard());
        drop(self.client.set(made));
        Some(())
    }
}

/// How the calling thread reaches a service. `None` if the thread has not used the service before
/// and the service has ended, or if the thread ends and its table is gone.
#[inline]
pub(crate) fn find(service: ServiceId) -> Option<Rc<Reach>> {
    Reach::known(service).or_else(|| Reach::of_open(service))
}

/// A client for one command of a thread whose table is gone; `None` if the service has ended.
#[cold]
pub(crate) fn client_for_once(service: ServiceId) -> Option<Rc<dyn ThreadClient>> {
    let is_gone = TABLE.try_with(|_| ()).is_err();
    if is_gone { Some(registry::find(service)?.client()) } else { None }
}

/// Sends a message to a part of a shard, from any thread. `Err` with the message if the shard is
/// closed or the service has ended.
pub(crate) fn send_message(
    service: ServiceId,
    shard: ShardId,
    message: Box<dyn Message>,
) -> Result<(), Box<dyn Message>> {
    let Some(reach) = find(service) else {
        return match client_for_once(service) {
            Some(client) => client.send_message(shard, message),
            None => Err(message),
        };
    };
    if let Some(here) = reach.shard(Some(shard)) {
        here.receive(message);
        return Ok(());
    }
    match reach.client() {
        Some((client, _)) => client.send_message(shard, message),
        None => Err(message),
    }
}

/// The shard is found on this thread, until the returned value is dropped.
pub(crate) struct OnThread {
    reach: Rc<Reach>,
    shard: Weak<dyn ThreadShard>,
}

impl OnThread {
    /// Enters a shard that the calling thread drives.
    pub(crate) fn enter<T: Send + 'static>(core: &Rc<Core<T>>) -> Option<Self> {
        let shard: Weak<dyn ThreadShard> = Rc::downgrade(core) as _;
        let service = core.directory().service;
        let reach = Reach::known(service).or_else(|| Reach::make(service, core.time().clone()))?;
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

/// Runs code as the simulated thread with this number, which reaches services in its own ways.
#[cfg(feature = "sim")]
pub(crate) fn as_thread<O>(number: u32, run: impl FnOnce() -> O) -> O {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            THREAD.set(self.0);
        }
    }
    let _restore = Restore(THREAD.replace(number));
    run()
}
