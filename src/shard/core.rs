//! A shard and its state, divided by what changes together. The other files have what it does.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;

use corewheel_shard::{Shard, ShardConfig, Tick, TimerKey};
use hashbrown::HashMap;

use super::base::Base;
use super::held::HeldLanes;
use super::measures::Measures;
use super::parts::Message;
use super::request::{
    CancelReply, Directory, Post, RemainingReply, ReplySender, Request, ShutdownOrder, freed_by,
};
use super::stored::Stored;
use super::threads::Threads;
use super::timers::{Calls, Job, SendCall, Taken};
use crate::directory::orders::Orders;
use crate::link::lane::LaneReceiver;
use crate::stats::host::this_thread;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use crate::values::outcome::{CancelOutcome, ResetOutcome};

/// One shard, on its own thread.
pub(crate) struct Core<T: 'static> {
    pub(super) base: Base,
    pub(super) directory: Arc<Directory<T>>,
    pub(super) state: RefCell<State<T>>,
    /// Whether a simulation keeps requests in the lanes.
    pub(super) held_lanes: HeldLanes,
}

/// The state of a shard, divided by what changes together.
pub(super) struct State<T: 'static> {
    pub(super) id: ShardId,
    pub(super) directory: Arc<Directory<T>>,
    pub(super) wheel: Shard<Stored<T>>,
    pub(super) calls: Calls<T>,
    pub(super) threads: Threads,
    pub(super) inbox: Inbox<T>,
    pub(super) mail: Mail<T>,
    pub(super) left: Left<T>,
    pub(super) paused: Paused,
    pub(super) measured: Measures,
}

/// The lanes of a shard, and what their requests ask of later turns.
pub(super) struct Inbox<T: 'static> {
    pub(super) lanes: Vec<LaneReceiver<Request<T>>>,
    /// Until when cancels that no caller waits for may wait, if they have come since the last turn
    /// received requests.
    pub(super) soon: Tick,
    /// Whether a turn has received such a cancel, or a cancel before its timer, since the last one
    /// began to receive.
    pub(super) has_freed: bool,
    /// When a turn receives requests though none may wake the shard: such cancels came in the
    /// second before. `None` if none came.
    pub(super) frees_at: Option<Tick>,
    /// When the shard last looked for idle lanes.
    pub(super) lanes_checked: Tick,
    /// The replies of cancels that came before their timers, by the keys of the timers. The callers
    /// still wait.
    pub(super) overtaken: HashMap<TimerKey, CancelReply<T>>,
}

impl<T: 'static> Inbox<T> {
    pub(super) fn new(soon: Tick) -> Self {
        Self {
            lanes: Vec::new(),
            soon,
            has_freed: false,
            frees_at: None,
            lanes_checked: Tick::ZERO,
            overtaken: HashMap::new(),
        }
    }
}

/// The mail of a shard that was taken and not acted on.
pub(super) struct Mail<T: 'static> {
    /// Messages for the driver.
    pub(super) jobs: Vec<Job<T>>,
    /// The callbacks of the mail, which the turn that takes them runs.
    pub(super) calls: Vec<SendCall<T>>,
    pub(super) shutdown: Option<ShutdownOrder<T>>,
}

impl<T: 'static> Default for Mail<T> {
    fn default() -> Self {
        Self { jobs: Vec::new(), calls: Vec::new(), shutdown: None }
    }
}

/// What a command leaves for when nothing is borrowed.
pub(super) enum Effect<T: 'static> {
    Drop(Taken<T>),
    Cancelled(CancelReply<T>, CancelOutcome<Taken<T>>),
    Reset(ReplySender<ResetOutcome>, ResetOutcome),
    Wake(Waker),
    Remaining(TimerKey, RemainingReply),
    Message(Box<dyn Message>),
}

/// What commands have left to do when nothing is borrowed.
pub(super) struct Left<T: 'static> {
    pub(super) effects: Vec<Effect<T>>,
    /// The wakers of futures that have ended on other threads than they have begun. Dropped with
    /// the effects; apart from them, as there may be many.
    pub(super) unused_wakers: Vec<Waker>,
}

impl<T: 'static> Default for Left<T> {
    fn default() -> Self {
        Self { effects: Vec::new(), unused_wakers: Vec::new() }
    }
}

impl<T: 'static> Left<T> {
    /// Whether effects wait until nothing is borrowed.
    #[inline]
    pub(super) fn has_effects(&self) -> bool {
        !self.effects.is_empty() || !self.unused_wakers.is_empty()
    }
}

/// What a turn's deliveries keep for those of the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Paused {
    /// Whether the last delivery was the work of a part, so that a timer is next.
    pub(super) part_was_last: bool,
    /// Whether the timers of threads come after those of the wheel.
    pub(super) threads_last: bool,
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
            held_lanes: HeldLanes::default(),
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

    pub(crate) fn directory(&self) -> &Arc<Directory<T>> {
        &self.directory
    }

    /// The post where other threads reach this shard.
    pub(crate) fn post(&self) -> &Post<T> {
        self.directory.post(self.id).expect("a core is made for a shard of the service")
    }

    /// Gives an order from this core, at once. A scale replaces one that another thread has set and
    /// that no turn has taken over yet.
    pub(crate) fn order<R>(&self, order: impl FnOnce(&Orders) -> R) {
        order(self.orders());
        self.take_orders();
    }
}

impl<T: 'static> State<T> {
    pub(super) fn new(directory: Arc<Directory<T>>, id: ShardId) -> Result<Self, StartError> {
        let config: ShardConfig = directory.settings.shard;
        let wheel = Shard::new(config).map_err(|error| StartError::Shard {
            shard: id,
            source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error),
        })?;
        let post = directory.post(id).expect("a state is made for a shard of the service");
        Ok(Self {
            id,
            wheel,
            calls: Calls::new(),
            threads: Threads::new(Arc::clone(post.front()), config.capacity),
            inbox: Inbox::new(freed_by(&directory.time, directory.time.nanos())),
            mail: Mail::default(),
            left: Left::default(),
            paused: Paused::default(),
            measured: Measures::new(&directory.settings, Arc::clone(&post.published.live)),
            directory,
        })
    }

    pub(super) fn post(&self) -> &Post<T> {
        self.directory.post(self.id).expect("a state is made for a shard of the service")
    }
}
