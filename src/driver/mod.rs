//! Drivers, which take the turns of a shard: on the executor of a host, on a plain thread, or in a
//! loop of the user.
//!
//! A driver decides nothing about timers. It takes a [turn](crate::shard::turn) and then waits, for
//! as long as the turn says or until the shard is woken. The loops over executors differ only in
//! their host: the alarm that they set, how they step aside for other tasks, and how they spawn.

pub mod attach;
pub(crate) mod executor;
pub mod host;
pub(crate) mod limits;
mod manual;
pub(crate) mod own_loop;
pub(crate) mod runtime;
pub(crate) mod spawn;
mod thread;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;

use std::rc::Rc;

use crate::directory::here::OnShardThread;
use crate::face::handle::here::OnThread;
use crate::face::timers::Timers;
use crate::shard::Core;
use crate::shard::guard::DeadOnDrop;

/// A shard that a driver drives. If the driver ends without a shutdown, the shard is dead.
pub(crate) struct Driven<T: Send + 'static> {
    timers: Timers<T>,
    _guard: DeadOnDrop<T>,
}

impl<T: Send + 'static> Driven<T> {
    pub(crate) fn new(core: Core<T>) -> Self {
        let core = Rc::new(core);
        Self { timers: Timers::new(Rc::clone(&core)), _guard: DeadOnDrop::new(core) }
    }

    pub(crate) fn timers(&self) -> &Timers<T> {
        &self.timers
    }

    /// Another guard for the shard, which may outlive the driver.
    pub(crate) fn guard(&self) -> DeadOnDrop<T> {
        DeadOnDrop::new(Rc::clone(self.timers.core()))
    }

    /// The calling thread drives the shard from now on, until the returned value is dropped.
    pub(crate) fn enter(&self) -> Entered {
        let found = OnThread::enter(self.timers.core());
        Entered { _found: found, _guard: OnShardThread::enter(self.guard()) }
    }
}

/// The calling thread drives a shard while this lives.
pub(crate) struct Entered {
    /// Handles find the shard on this thread.
    _found: Option<OnThread>,
    _guard: OnShardThread,
}
