//! How the calling thread reaches a service: by a shard that it drives, or else by a client of its
//! own.
//!
//! Each thread has a table of the services that it uses. A client is made when the thread first
//! needs it, and is dropped when the thread ends. Why not one client for all threads: the ring of a
//! lane has one producer.
//!
//! Invariants: no code of the user runs while the table is borrowed.
//!
//! Cost: a search in a table with an entry for each service that the thread uses.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;

use corewheel_shard::{Tick, TimerKey};

use super::registry;
use crate::clock::Timeline;
use crate::face::client::Client;
use crate::face::stored::Stored;
use crate::face::{Core, Post};
use crate::shard::request::{Bulk, NumberedWaker, Request};
use crate::values::class::ClassId;
use crate::values::handle::{ServiceId, ShardId, TimerHandle};
use crate::values::refused::RefusedKind;

/// Commands on timers that wake futures, for a thread that does not drive the timers' shard.
/// Implemented by [`Client`].
pub(crate) trait ThreadClient {
    fn time(&self) -> &Timeline;
    /// The present in nanoseconds, or a little later.
    fn nanos(&self) -> u64;
    /// A timer that wakes a future. `Err` with the waker.
    fn schedule_waker(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        waker: Waker,
    ) -> Result<TimerHandle, (RefusedKind, Waker)>;
    /// Wakes a waker when the lane to a shard has room, or is closed, or else in the next tick if
    /// other clients hold the last keys. `Err` if the shard is closed.
    fn wait_for_room(&self, shard: ShardId, waker: Waker) -> Result<(), RefusedKind>;
    fn cancel(&self, timer: TimerHandle);
    /// Makes a timer due earlier.
    fn reset_to_earlier(&self, timer: TimerHandle, deadline: Tick);
    /// Replaces the waker of a timer, if the given one is newer. If the timer is not pending any
    /// more, the waker is woken.
    fn replace_waker(&self, timer: TimerHandle, waker: NumberedWaker);
    /// Whether a shard has ended.
    fn has_ended(&self, shard: ShardId) -> bool;
}

impl<T: Send + 'static> ThreadClient for Client<T> {
    fn time(&self) -> &Timeline {
        &self.directory().time
    }

    fn nanos(&self) -> u64 {
        self.nanos()
    }

    fn schedule_waker(
        &self,
        class: ClassId,
        shard: ShardId,
        deadline: Tick,
        waker: Waker,
    ) -> Result<TimerHandle, (RefusedKind, Waker)> {
        let sent_us = (self.nanos() / 1_000) as u32;
        let request = Request::Wake { deadline, sent_us, class, waker };
        self.schedule_request(shard, request).map_err(|refused| {
            let kind = refused.kind();
            match refused.into_value() {
                Request::Wake { waker, .. } => (kind, waker),
                _ => unreachable!("a refusal returns what was given"),
            }
        })
    }

    fn wait_for_room(&self, shard: ShardId, waker: Waker) -> Result<(), RefusedKind> {
        self.wait_for_room(shard, waker)
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

    fn has_ended(&self, shard: ShardId) -> bool {
        self.directory().post(shard).is_none_or(Post::has_ended)
    }
}

/// Commands on timers that wake futures, for the thread that drives their shard. Implemented by
/// [`Core`].
pub(crate) trait ThreadShard {
    fn id(&self) -> ShardId;
    fn is_closed(&self) -> bool;
    fn time(&self) -> &Timeline;
    /// The present in nanoseconds, or a little later.
    fn nanos(&self) -> u64;
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
}

impl<T: Send + 'static> ThreadShard for Core<T> {
    fn id(&self) -> ShardId {
        self.id()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn time(&self) -> &Timeline {
        self.time()
    }

    fn nanos(&self) -> u64 {
        self.nanos_near()
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
}

thread_local! {
    static TABLE: RefCell<Vec<Rc<Reach>>> = const { RefCell::new(Vec::new()) };
    /// The number of the simulated thread that runs; 0 outside of a simulation.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// How one thread reaches one service.
pub(crate) struct Reach {
    service: ServiceId,
    thread: u32,
    /// The shards that this thread drives.
    shards: RefCell<Vec<Weak<dyn ThreadShard>>>,
    /// The client of this thread, and the shard for timers that may be on any; `None` until the
    /// thread first needs them.
    client: RefCell<Option<(Rc<dyn ThreadClient>, ShardId)>>,
}

/// The ways from the calling thread to one service.
#[derive(Clone)]
pub(crate) enum Way {
    Shard(Rc<dyn ThreadShard>),
    /// A client, and the shard for timers that may be on any.
    Client(Rc<dyn ThreadClient>, ShardId),
}

impl Way {
    /// The present in nanoseconds, or a little later.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match self {
            Self::Shard(shard) => shard.nanos(),
            Self::Client(client, _) => client.nanos(),
        }
    }

    #[inline]
    pub(crate) fn time(&self) -> &Timeline {
        match self {
            Self::Shard(shard) => shard.time(),
            Self::Client(client, _) => client.time(),
        }
    }
}

impl Reach {
    /// The entry of a service in the table of this thread. Makes an entry if there is none and
    /// `make` says so. `None` also when the table of the thread is gone.
    fn of(service: ServiceId, make: bool) -> Option<Rc<Self>> {
        let thread = THREAD.try_with(Cell::get).ok()?;
        let found = TABLE.try_with(|table| {
            let table = table.borrow();
            let mut known = table.iter();
            known.find(|reach| reach.service == service && reach.thread == thread).cloned()
        });
        if let Some(found) = found.ok()? {
            return Some(found);
        }
        if !make {
            return None;
        }
        let (shards, client) = (RefCell::default(), RefCell::default());
        let entry = Rc::new(Self { service, thread, shards, client });
        // Services that have ended leave the table when another one enters it.
        let gone: Vec<_> = TABLE.with(|table| {
            let mut table = table.borrow_mut();
            let gone = table.extract_if(.., |reach| reach.has_ended()).collect();
            table.push(Rc::clone(&entry));
            gone
        });
        drop(gone);
        Some(entry)
    }

    fn has_ended(&self) -> bool {
        registry::find(self.service).is_none()
            && self.shards.borrow().iter().all(|shard| shard.strong_count() == 0)
    }

    /// A shard that this thread drives: the shard `id`, or any if `id` is `None`.
    fn shard(&self, id: Option<ShardId>) -> Option<Rc<dyn ThreadShard>> {
        let shards = self.shards.borrow();
        let mut open = shards.iter().filter_map(Weak::upgrade).filter(|shard| !shard.is_closed());
        open.find(|shard| id.is_none_or(|id| shard.id() == id))
    }

    fn client(&self) -> Option<(Rc<dyn ThreadClient>, ShardId)> {
        if let Some(known) = &*self.client.borrow() {
            return Some(known.clone());
        }
        let service = registry::find(self.service)?;
        let made = (service.client(), service.next_shard());
        self.client.replace(Some(made.clone()));
        Some(made)
    }
}

/// How the calling thread reaches the shard `id` of a service, or any shard if `id` is `None`: by a
/// shard that it drives, or else by its client. `None` if the service has ended, or if the thread
/// ends and its table is gone.
#[inline]
pub(crate) fn find(service: ServiceId, id: Option<ShardId>) -> Option<Way> {
    let reach = Reach::of(service, false).or_else(|| {
        // A thread enters the table when it first uses a service that is open.
        registry::find(service)?;
        Reach::of(service, true)
    })?;
    if let Some(shard) = reach.shard(id) {
        return Some(Way::Shard(shard));
    }
    let (client, shard) = reach.client()?;
    Some(Way::Client(client, shard))
}

/// A client for one command of a thread whose table is gone; `None` if the service has ended.
#[cold]
pub(crate) fn client_for_once(service: ServiceId) -> Option<Rc<dyn ThreadClient>> {
    let is_gone = TABLE.try_with(|_| ()).is_err();
    if is_gone { Some(registry::find(service)?.client()) } else { None }
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
        let reach = Reach::of(core.directory().service, true)?;
        reach.shards.borrow_mut().push(Weak::clone(&shard));
        Some(Self { reach, shard })
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        self.reach.shards.borrow_mut().retain(|shard| !Weak::ptr_eq(shard, &self.shard));
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
