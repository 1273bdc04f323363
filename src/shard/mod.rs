//! The code that the thread of one shard runs: its state, its turns and its end.
//!
//! [`State`] is a plain struct. [`Core`] owns it in a `RefCell`, since a callback may call back
//! into the shard. Each command borrows the state, works, releases the state, runs the effects that
//! the work has left and wakes the driver at most once, in this order.
//!
//! A command wakes the driver's waker when the command is complete, with nothing borrowed. The
//! waker must do no more than wake: if it sends by a handle of the service whose shard is woken, it
//! panics, since the lanes of the thread are borrowed meanwhile.
//!
//! The shard is generic over the values of its timers, which lie in the slots of the wheel. It
//! names none of the types that are built from timers; those are [parts](part::Part) of it.

mod base;
pub(crate) mod callback;
mod calls;
mod classes;
mod commands;
mod effect;
pub(crate) mod guard;
pub(crate) mod host;
mod inbox;
mod keys;
pub(crate) mod lanes;
mod lateness;
pub(crate) mod local;
mod measures;
mod nurseries;
mod park;
pub(crate) mod part;
pub(crate) mod part_handle;
pub(crate) mod parts;
mod poll_budget;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod shutdown;
#[cfg(feature = "sim")]
mod simulated;
mod state;
pub(crate) mod stored;
pub(crate) mod sweep;
pub(crate) mod timers;
pub(crate) mod turn;

use std::cell::{RefCell, RefMut};
use std::ops::Deref;
use std::sync::Arc;

pub(crate) use self::base::Base;
use self::request::{Control, Request};
pub(crate) use self::state::State;
use crate::directory;
use crate::directory::orders::Orders;
use crate::stats::host::this_thread;
use crate::values::contain::contain;
use crate::values::error::StartError;
use crate::values::ids::{ShardId, TimerId};

/// The directory of a service whose timers carry `P`.
pub(crate) type Directory<T> = directory::Directory<Request<T>, Control<T>>;
/// The post of one shard, where other threads reach it.
pub(crate) type Post<T> = directory::Post<Request<T>, Control<T>>;

/// One shard, on its own thread.
pub(crate) struct Core<T: 'static> {
    base: Base,
    directory: Arc<Directory<T>>,
    state: RefCell<State<T>>,
    /// Whether a simulation keeps requests in the lanes.
    #[cfg(feature = "sim")]
    holds_lanes: std::cell::Cell<bool>,
}

impl<T: 'static> Deref for Core<T> {
    type Target = Base;

    #[inline]
    fn deref(&self) -> &Base {
        &self.base
    }
}

impl<T: 'static> Core<T> {
    /// Makes the core of a shard, on the thread that will drive it.
    pub(crate) fn open(
        directory: Arc<Directory<T>>,
        id: ShardId,
        has_executor: bool,
    ) -> Result<Self, StartError> {
        let core = Self {
            base: Base::new(&directory, id),
            state: RefCell::new(State::new(Arc::clone(&directory), id)?),
            #[cfg(feature = "sim")]
            holds_lanes: std::cell::Cell::new(false),
            directory,
        };
        if core.post().open(has_executor) {
            core.state.borrow_mut().take_mail(core.time().floor(core.nanos()));
        } else {
            // The service was shut down before the shard was driven.
            core.closed.set(true);
        }
        core.take_orders();
        if !core.time().clock().is_manual() {
            core.post().published.live.set_thread(this_thread());
        }
        core.publish();
        Ok(core)
    }

    /// Whether a timer belongs to another service.
    #[cold]
    pub(crate) fn is_foreign(&self, timer: TimerId) -> bool {
        !timer.is_of(self.directory.service)
    }

    pub(crate) fn directory(&self) -> &Arc<Directory<T>> {
        &self.directory
    }

    /// The post where other threads reach this shard.
    pub(crate) fn post(&self) -> &Post<T> {
        self.directory.post(self.id).expect("a core is made for a shard of the service")
    }

    /// Borrows the state, for commands on the table of callbacks. No code of the user may run
    /// meanwhile.
    #[inline]
    pub(crate) fn state(&self) -> RefMut<'_, State<T>> {
        self.state.borrow_mut()
    }

    /// Runs code of the user, with nothing borrowed. If the code panics, the panic is caught,
    /// logged and counted, and the result is false.
    pub(crate) fn contain(&self, run: impl FnOnce()) -> bool {
        let is_ok = contain(self.id, run);
        if !is_ok {
            self.note_delivery(false, 0);
        }
        is_ok
    }

    /// Drops values of the user one at a time, with nothing borrowed. Each panic is logged and
    /// counted.
    pub(crate) fn drop_each<V>(&self, values: impl IntoIterator<Item = V>) {
        for value in values {
            self.contain(|| drop(value));
        }
    }

    /// Gives an order from this core, at once. A scale replaces one that another thread has set and
    /// that no turn has taken over yet.
    pub(crate) fn order<R>(&self, order: impl FnOnce(&Orders) -> R) {
        order(self.orders());
        self.take_orders();
    }
}
