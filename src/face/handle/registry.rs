//! The services that handles find by their numbers, and what a handle needs of each.
//!
//! Why a table of the process and not a counted reference in each handle: a handle is copied into
//! every sleep and every timeout, and the count of such a reference would be a cache line that all
//! threads write for each of them.
//!
//! Invariants: a service is in the table from its first handle until it is shut down or dropped.
//!
//! Cost: a thread looks here when it uses a service for the first time, and when it uses one that
//! has ended and that it has not used before.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hashbrown::HashMap;

use crate::clock::Timeline;
use crate::directory::Front;
use crate::link::sync::AtomicBool;
use crate::shard::Directory;
use crate::shard::lanes::Lanes;
use crate::shard::parts::Message;
use crate::shard::request::Request;
use crate::values::class::Classes;
use crate::values::ids::{ServiceId, ShardId, TimerId};

/// A service, for code that does not name the type of its values.
pub(crate) struct Service {
    pub(super) time: Timeline,
    pub(super) classes: Classes,
    fronts: Vec<Arc<Front>>,
    shut_down: Arc<AtomicBool>,
    /// How many threads have been given a shard.
    threads: Mutex<u64>,
    make_lanes: Box<dyn Fn() -> Rc<dyn ThreadLanes> + Send + Sync>,
}

impl Service {
    /// A service that may have no handle, for a thread that drives a shard of it.
    pub(crate) fn new<T: Send + 'static>(directory: &Arc<Directory<T>>) -> Arc<Self> {
        let lanes_to = Arc::clone(directory);
        Arc::new(Self {
            time: directory.time.clone(),
            classes: directory.settings.classes.clone(),
            fronts: directory.fronts(),
            shut_down: Arc::clone(&directory.shut_down),
            threads: Mutex::new(0),
            make_lanes: Box::new(move || Rc::new(Lanes::new(Arc::clone(&lanes_to)))),
        })
    }

    /// The shard for the next thread that drives none, and its number among those of the shard.
    /// Threads get the shards in turn.
    pub(super) fn next_shard(&self) -> (ShardId, usize) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (thread, shards) = (*threads, self.fronts.len().max(1) as u64);
        *threads = thread.wrapping_add(1);
        (ShardId::new((thread % shards) as u16), (thread / shards) as usize)
    }

    /// What all threads know of a shard; `None` if the service has no such shard.
    pub(super) fn front(&self, shard: ShardId) -> Option<&Front> {
        Some(&**self.fronts.get(shard.index())?)
    }

    /// Lanes for the calling thread.
    pub(super) fn lanes(&self) -> Rc<dyn ThreadLanes> {
        (self.make_lanes)()
    }

    /// How many shards the service has; 0 once its shutdown has begun.
    pub(super) fn shard_count(&self) -> usize {
        // Relaxed: a thread that must see it has learned of the shutdown by other means.
        let has_ended = self.shut_down.load(Ordering::Relaxed);
        if has_ended { 0 } else { self.fronts.len() }
    }
}

/// The lanes of the calling thread. Implemented by [`Lanes`].
pub(crate) trait ThreadLanes: Any {
    /// Sends a message to a part of a shard. `Err` with the message if the shard is closed.
    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>>;

    /// Cancels a timer and asks for no reply.
    fn cancel_detached(&self, timer: TimerId);

    /// The lanes, for the code that knows the type of the values.
    fn into_any(self: Rc<Self>) -> Rc<dyn Any>;
}

impl<T: Send + 'static> ThreadLanes for Lanes<T> {
    fn send_message(
        &self,
        shard: ShardId,
        message: Box<dyn Message>,
    ) -> Result<(), Box<dyn Message>> {
        self.send_message(shard, message)
    }

    #[inline]
    fn cancel_detached(&self, timer: TimerId) {
        if !self.cancel_in_lane(timer) {
            self.send(timer.shard(), Request::Cancel { key: timer.key(), reply: None });
        }
    }

    #[inline]
    fn into_any(self: Rc<Self>) -> Rc<dyn Any> {
        self
    }
}

static SERVICES: RwLock<Option<HashMap<ServiceId, Arc<Service>>>> = RwLock::new(None);

/// Enters a service, unless it is entered already or has been shut down.
pub(crate) fn enter<T: Send + 'static>(directory: &Arc<Directory<T>>) {
    let mut services = SERVICES.write().unwrap_or_else(PoisonError::into_inner);
    // Under the lock, since a shutdown sets the flag before it removes the service.
    if directory.shut_down.load(Ordering::Relaxed) {
        return;
    }
    let services = services.get_or_insert_default();
    services.entry(directory.service).or_insert_with(|| Service::new(directory));
}

/// Removes a service that is shut down. Its handles find it closed.
pub(crate) fn leave(service: ServiceId) {
    let mut services = SERVICES.write().unwrap_or_else(PoisonError::into_inner);
    let left = services.as_mut().and_then(|services| services.remove(&service));
    drop(services);
    drop(left);
}

/// Keeps all threads out of the table.
#[cfg(all(test, not(corewheel_loom)))]
pub(crate) fn shut() -> impl Sized {
    SERVICES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A service by its number; `None` if it has no handle or is shut down.
pub(crate) fn find(service: ServiceId) -> Option<Arc<Service>> {
    let services = SERVICES.read().unwrap_or_else(PoisonError::into_inner);
    services.as_ref()?.get(&service).cloned()
}
