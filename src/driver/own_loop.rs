//! A shard in the user's own loop: the caller takes the turns.

use std::fmt;
use std::task::Waker;
use std::time::Instant;

use corewheel_shard::Tick;

use super::Driven;
use crate::directory::here::OnShardThread;
use crate::face::callback::Handler;
use crate::face::host::{Deliveries, take_turn};
use crate::face::report::ShardReport;
use crate::face::timers::Timers;
use crate::shard::shutdown::shut_down;
use crate::shard::turn::Turn;
use crate::values::shutdown::ShutdownPolicy;

/// A shard that runs when it is told to, in a loop around `poll`, `epoll` or anything else; made by
/// [`Attachment::into_loop`](crate::Attachment::into_loop).
///
/// The loop goes: take a [`turn`](Self::turn); if it left more to do, look after whatever else
/// there is and take another; else [`prepare_to_sleep`](Self::prepare_to_sleep), wait until the
/// moment it names or until the waker is woken, and begin again.
///
/// Read the sockets before each turn, also after a wait that lasted longer than it should have: a
/// process that was stopped finds both that deadlines have passed and that data lies in its
/// sockets, and a turn that comes first tells connections that they are idle whose data came in
/// time. The order is: wait, look at all sockets without waiting, note what was read, take the
/// turn.
///
/// Dropped without a shutdown, the shard is dead.
///
/// ```
/// use corewheel::{Fired, LoopSleep, TimerService, Timers, Turn};
/// use std::sync::Arc;
/// use std::task::{Wake, Waker};
/// use std::time::{Duration, Instant};
///
/// /// Ends the wait of the loop. One around `epoll` would write to an eventfd.
/// struct Unpark(std::thread::Thread);
///
/// impl Wake for Unpark {
///     fn wake(self: Arc<Self>) {
///         self.0.unpark();
///     }
/// }
///
/// let service = TimerService::builder().shards(1).start_attached::<u64>()?;
/// let attachment = service.attach(service.shards().next().unwrap())?;
/// let mut fired = 0;
/// let mut shard = attachment.into_loop(move |_: Fired<u64>, timers: &Timers<u64>| {
///     fired += 1;
///     if fired < 3 {
///         timers.schedule(Duration::from_millis(1), fired).expect("there is room");
///     }
/// })?;
/// shard.timers().schedule(Duration::from_millis(1), 0)?;
/// let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
/// loop {
///     let after = shard.turn();
///     if after == Turn::Idle {
///         break; // A server would go on: other threads may still send something.
///     }
///     match shard.prepare_to_sleep(after, &waker) {
///         LoopSleep::No => {} // Here one looks after sockets, without waiting.
///         LoopSleep::Until(at) => {
///             std::thread::park_timeout(at.saturating_duration_since(Instant::now()));
///         }
///         LoopSleep::UntilWoken => std::thread::park(),
///     }
/// }
/// assert!(shard.timers().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardLoop<T: Send + 'static, H> {
    handler: H,
    driven: Driven<T>,
    _here: OnShardThread,
}

/// How long a loop may wait.
#[must_use = "it says whether and how long to wait"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Not at all: something has come in.
    No,
    /// Until then, or until the waker is woken.
    Until(Instant),
    /// Until the waker is woken.
    UntilWoken,
}

impl<T: Send + 'static, H: Handler<T>> ShardLoop<T, H> {
    pub(crate) fn new(driven: Driven<T>, handler: H) -> Self {
        Self { handler, _here: driven.enter(), driven }
    }

    /// Takes in what other threads have sent, delivers what is due and says what is next, each
    /// within the service's budget.
    pub fn turn(&mut self) -> Turn {
        self.timers().core().wake_up();
        take_turn(self.driven.timers(), &mut self.handler)
    }

    /// Tells the other threads that the shard sleeps until what the last turn named, and through
    /// which waker to wake it. The next turn tells them that it is awake.
    ///
    /// A thread that sends something which the shard must see earlier wakes the waker, at the end
    /// of its call; so does a command on this shard's own thread, when it is complete. The waker
    /// must do no more than wake: a client that it uses on the same thread panics, since the lanes
    /// of a client are borrowed while it wakes a shard.
    pub fn prepare_to_sleep(&self, after: Turn, waker: &Waker) -> Sleep {
        let core = self.timers().core();
        let until = match after {
            Turn::More | Turn::Closed => return Sleep::No,
            Turn::Next(tick) => tick,
            Turn::Idle => Tick::NEVER,
        };
        // Whatever the loop did since the turn may have made it earlier.
        let until = core.next_deadline().map_or(until, |next| until.min(next));
        if !core.fall_asleep(until, waker) {
            return Sleep::No;
        }
        if until == Tick::NEVER {
            return Sleep::UntilWoken;
        }
        Sleep::Until(core.time().instant(until))
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        self.driven.timers()
    }

    /// Ends this shard alone. Its lanes are closed, and what is pending goes the way of the policy.
    pub fn shutdown(mut self, policy: ShutdownPolicy) -> ShardReport<T> {
        let Self { handler, driven, .. } = &mut self;
        let timers = driven.timers();
        let report = shut_down(timers.core(), &mut Deliveries { timers, handler }, policy);
        ShardReport::new(report, timers.core().time())
    }
}

impl<T: Send + 'static, H> fmt::Debug for ShardLoop<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardLoop").finish_non_exhaustive()
    }
}
