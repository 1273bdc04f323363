//! The code that the thread of one shard runs: its state, its turns, its requests to other shards
//! and its end.
//!
//! [`State`] is a plain struct. [`Core`] owns it in a `RefCell`, since a callback may call back
//! into the shard. Each command borrows the state, works, releases the state, runs the effects that
//! the work has left and wakes the driver at most once, in this order.
//!
//! A command wakes the driver's waker when the command is complete, with nothing borrowed. The
//! waker must do no more than wake: if it uses the client that is waking the shard, that client
//! panics, since its lanes are borrowed meanwhile.
//!
//! The shard is generic over its [`Payload`](payload::Payload) and over the
//! [`Host`](payload::Host) that delivers. It names none of the types that are built from timers;
//! those take part in its turns by [hooks].

mod classes;
mod commands;
mod effect;
pub(crate) mod guard;
pub(crate) mod hooks;
mod keys;
pub(crate) mod lanes;
mod lateness;
mod migrate;
mod nurseries;
mod park;
pub(crate) mod payload;
mod poll_budget;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod shutdown;
#[cfg(feature = "sim")]
mod simulated;
mod slots;
mod state;
pub(crate) mod sweep;
pub(crate) mod turn;

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

use corewheel_shard::Tick;

use self::hooks::Parts;
use self::lanes::Lanes;
use self::payload::Payload;
use self::poll_budget::PollBudget;
use self::request::{Control, Request};
pub(crate) use self::state::State;
use crate::clock::{NearClock, Timeline};
use crate::directory;
use crate::directory::orders::Orders;
use crate::stats::ShardCounts;
use crate::stats::host::this_thread;
use crate::values::contain::contain;
use crate::values::error::StartError;
use crate::values::handle::{Home, ShardId, TimerId};
use crate::values::refused::RefusedKind;
use crate::values::scale::Scale;

/// The directory of a service whose timers carry `P`.
pub(crate) type Directory<P> = directory::Directory<Request<P>, Control<P>>;
/// The post of one shard, where other threads reach it.
pub(crate) type Post<P> = directory::Post<Request<P>, Control<P>>;

/// One shard, on its own thread.
pub(crate) struct Core<P: Payload> {
    id: ShardId,
    home: Home,
    directory: Arc<Directory<P>>,
    outbox: Lanes<P>,
    clock: NearClock,
    state: RefCell<State<P>>,
    parts: Parts,
    /// The tick until which the driver sleeps; [`Tick::ZERO`] while the driver is awake.
    asleep_until: Cell<Tick>,
    /// How many compound commands are running. The driver is woken after the outermost of them.
    compound: Cell<u32>,
    /// Whether the outermost compound command must wake the driver when it ends.
    wake_due: Cell<bool>,
    /// When a command woke the driver; `u64::MAX` if none did since the last turn.
    woken_at: Cell<u64>,
    closed: Cell<bool>,
    /// The factor of the shard's scaled timeouts.
    scale: Cell<Scale>,
    budget: PollBudget,
    /// Whether a simulation keeps requests in the lanes.
    #[cfg(feature = "sim")]
    holds_lanes: Cell<bool>,
}

impl<P: Payload> Core<P> {
    /// Makes the core of a shard, on the thread that will drive it.
    pub(crate) fn open(
        directory: Arc<Directory<P>>,
        id: ShardId,
        has_executor: bool,
    ) -> Result<Self, StartError> {
        let core = Self {
            id,
            home: directory.service.home(id),
            outbox: Lanes::new(Arc::clone(&directory)),
            clock: NearClock::new(directory.time.clock().clone()),
            state: RefCell::new(State::new(Arc::clone(&directory), id)?),
            parts: Parts::default(),
            asleep_until: Cell::new(Tick::ZERO),
            compound: Cell::new(0),
            wake_due: Cell::new(false),
            woken_at: Cell::new(u64::MAX),
            closed: Cell::new(false),
            scale: Cell::default(),
            budget: PollBudget::new(),
            #[cfg(feature = "sim")]
            holds_lanes: Cell::new(false),
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

    #[inline]
    pub(crate) fn id(&self) -> ShardId {
        self.id
    }

    /// The service and the shard, as the handles of this shard's timers carry them.
    #[inline]
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// Whether a timer belongs to another service.
    #[cold]
    pub(crate) fn is_foreign(&self, timer: TimerId) -> bool {
        !timer.is_of(self.directory.service)
    }

    pub(crate) fn directory(&self) -> &Arc<Directory<P>> {
        &self.directory
    }

    /// The conversions between ticks, nanoseconds and instants of the service.
    #[inline]
    pub(crate) fn time(&self) -> &Timeline {
        &self.directory.time
    }

    pub(crate) fn outbox(&self) -> &Lanes<P> {
        &self.outbox
    }

    /// The post where other threads reach this shard.
    pub(crate) fn post(&self) -> &Post<P> {
        self.directory.post(self.id).expect("a core is made for a shard of the service")
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Borrows the state, for commands on the tables of the payload. No code of the user may run
    /// meanwhile.
    #[inline]
    pub(crate) fn state(&self) -> RefMut<'_, State<P>> {
        self.state.borrow_mut()
    }

    /// The present in nanoseconds, from the system.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.clock.ask()
    }

    /// The present in nanoseconds, or up to a few microseconds later. Costs less than
    /// [`nanos`](Self::nanos).
    #[inline]
    pub(crate) fn nanos_near(&self) -> u64 {
        self.clock.nanos()
    }

    /// Why the shard, which is closed, takes no timer.
    pub(crate) fn why_closed(&self) -> RefusedKind {
        self.directory.why_closed()
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
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

    /// Changes the shard's counters.
    pub(crate) fn count(&self, count: impl FnOnce(&mut ShardCounts)) {
        count(&mut self.state.borrow_mut().counts);
    }

    /// The factor of the shard's scaled timeouts.
    pub(crate) fn scale(&self) -> Scale {
        self.scale.get()
    }

    /// Gives an order from this core, at once. A scale replaces one that another thread has set and
    /// that no turn has taken over yet.
    pub(crate) fn order<R>(&self, order: impl FnOnce(&Orders) -> R) {
        order(self.post().orders());
        self.take_orders();
    }
}
