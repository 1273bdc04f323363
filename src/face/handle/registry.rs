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
use std::task::Waker;

use corewheel_shard::Tick;
use hashbrown::HashMap;

use crate::clock::Timeline;
use crate::directory::closed_kind;
use crate::directory::orders::{GROUPS, Group};
use crate::link::nursery::{ArmRefusal, Number, Table};
use crate::shard::lanes::Lanes;
use crate::shard::parts::Message;
use crate::shard::request::Request;
use crate::shard::{Directory, Post};
use crate::values::class::{ClassId, TimerClass};
use crate::values::error::ConfigError;
use crate::values::ids::{LastServices, ServiceId, ShardId, TimerId};
use crate::values::refused::RefusedKind;

/// The number of a timer that waits for room, and a waker that is not kept.
pub(crate) type Asked = (Result<Number, ArmRefusal>, Option<Waker>);

/// A service, for code that does not name the type of its values.
pub(crate) trait Service: Send + Sync {
    fn time(&self) -> Timeline;
    /// The shard for the next thread that drives none, and its number among those of the shard.
    /// Threads get the shards in turn.
    fn next_shard(&self) -> (ShardId, usize);
    /// The timers of the threads of a shard; `None` if the service has no such shard.
    fn nurseries(&self, shard: ShardId) -> Option<&Table<Waker>>;
    /// How many classes of timers the service has.
    fn classes(&self) -> usize;
    /// Wakes a shard if it sleeps past the act that a thread needs.
    fn ring(&self, shard: ShardId, act_by: Tick);
    /// Has a shard look for room for a timer that has found none, see [`Table::ask_for_room`].
    fn ask_for_room(&self, shard: ShardId, asked: Option<Number>, waker: Waker) -> Asked;
    /// Counts a timer that was refused for want of room.
    fn note_refused(&self, shard: ShardId, class: ClassId);
    /// Whether a shard has ended, or the service has no such shard.
    fn has_ended(&self, shard: ShardId) -> bool;
    fn find_class(&self, class: TimerClass) -> Result<ClassId, ConfigError>;
    /// Logs, once, that a future waits for a shard that no thread drives yet, if that is so.
    fn note_waiting(&self, shard: ShardId);
    /// Lanes for the calling thread.
    fn lanes(&self) -> Rc<dyn ThreadLanes>;
    /// How many shards the service has; 0 once its shutdown has begun.
    fn shard_count(&self) -> usize;
    /// The group of connections of a shard for a thread of a number; `None` if the service has no
    /// such shard.
    fn group(&self, shard: ShardId, thread: usize) -> Option<Arc<Group>>;
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

struct Entry<T: Send + 'static> {
    directory: Arc<Directory<T>>,
    /// How many threads have been given a shard.
    threads: Mutex<u64>,
}

impl<T: Send + 'static> Service for Entry<T> {
    fn time(&self) -> Timeline {
        self.directory.time.clone()
    }

    fn next_shard(&self) -> (ShardId, usize) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = *threads;
        *threads = thread.wrapping_add(1);
        let among = thread / self.directory.shard_count().max(1) as u64;
        (self.directory.shard_for(thread), among as usize)
    }

    fn nurseries(&self, shard: ShardId) -> Option<&Table<Waker>> {
        Some(&self.directory.post(shard)?.nurseries)
    }

    fn classes(&self) -> usize {
        self.directory.settings.classes.len()
    }

    fn ring(&self, shard: ShardId, act_by: Tick) {
        if let Some(post) = self.directory.post(shard) {
            post.nurseries.ring(act_by, &post.doorbell);
        }
    }

    fn ask_for_room(&self, shard: ShardId, asked: Option<Number>, waker: Waker) -> Asked {
        match self.directory.post(shard) {
            Some(post) => post.nurseries.ask_for_room(asked, waker, &post.doorbell),
            None => (Err(ArmRefusal::Closed), Some(waker)),
        }
    }

    fn note_refused(&self, shard: ShardId, class: ClassId) {
        if let Some(post) = self.directory.post(shard) {
            post.nurseries.note_refused();
            post.note_refused(class);
        }
    }

    fn has_ended(&self, shard: ShardId) -> bool {
        self.directory.post(shard).is_none_or(Post::has_ended)
    }

    fn find_class(&self, class: TimerClass) -> Result<ClassId, ConfigError> {
        self.directory.settings.classes.find(class)
    }

    fn note_waiting(&self, shard: ShardId) {
        if let Some(post) = self.directory.post(shard) {
            post.note_waiting(shard);
        }
    }

    fn lanes(&self) -> Rc<dyn ThreadLanes> {
        Rc::new(Lanes::new(Arc::clone(&self.directory)))
    }

    fn shard_count(&self) -> usize {
        // Relaxed: a thread that must see it has learned of the shutdown by other means.
        let has_ended = self.directory.shut_down.load(Ordering::Relaxed);
        if has_ended { 0 } else { self.directory.shard_count() }
    }

    fn group(&self, shard: ShardId, thread: usize) -> Option<Arc<Group>> {
        Some(Arc::clone(&self.directory.post(shard)?.orders().groups()[thread % GROUPS]))
    }
}

/// A service that may have no handle, for a thread that drives a shard of it.
pub(crate) fn of_directory<T: Send + 'static>(directory: &Arc<Directory<T>>) -> Arc<dyn Service> {
    Arc::new(Entry { directory: Arc::clone(directory), threads: Mutex::new(0) })
}

static SERVICES: RwLock<Option<HashMap<ServiceId, Arc<dyn Service>>>> = RwLock::new(None);

/// The last services that had handles when they were dropped without a shutdown.
static DROPPED: Mutex<LastServices> = Mutex::new(LastServices::new());

/// Enters a service, unless it is entered already or has been shut down.
pub(crate) fn enter<T: Send + 'static>(directory: &Arc<Directory<T>>) {
    let mut services = SERVICES.write().unwrap_or_else(PoisonError::into_inner);
    // Under the lock, since a shutdown sets the flag before it removes the service.
    if directory.shut_down.load(Ordering::Relaxed) {
        return;
    }
    let services = services.get_or_insert_default();
    services.entry(directory.service).or_insert_with(|| of_directory(directory));
}

/// Removes a service that is shut down. Its handles find it closed, or dropped.
pub(crate) fn leave(service: ServiceId, is_dropped: bool) {
    let mut services = SERVICES.write().unwrap_or_else(PoisonError::into_inner);
    let left = services.as_mut().and_then(|services| services.remove(&service));
    drop(services);
    if is_dropped && left.is_some() {
        DROPPED.lock().unwrap_or_else(PoisonError::into_inner).note(service);
    }
    drop(left);
}

/// Why a service that is not in the table takes no timer.
#[cold]
pub(crate) fn why_closed(service: ServiceId) -> RefusedKind {
    let dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    closed_kind(dropped.contains(service))
}

/// Keeps all threads out of the table.
#[cfg(all(test, not(corewheel_loom)))]
pub(crate) fn shut() -> impl Sized {
    SERVICES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A service by its number; `None` if it has no handle or is shut down.
pub(crate) fn find(service: ServiceId) -> Option<Arc<dyn Service>> {
    let services = SERVICES.read().unwrap_or_else(PoisonError::into_inner);
    services.as_ref()?.get(&service).cloned()
}
