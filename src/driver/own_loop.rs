//! A shard in the user's own loop: the caller takes the turns.

use std::task::Waker;
use std::time::Instant;

use corewheel_shard::Tick;

use super::{Driven, Entered};
use crate::clock::Timeline;
use crate::face::report::ShutdownReport;
use crate::face::timers::Timers;
use crate::shard::deliver::Deliveries;
use crate::shard::handler::Fired;
use crate::shard::shutdown::shut_down;
use crate::shard::turn::{Next, take_turn};
use crate::values::contain::Contained;
use crate::values::shutdown::ShutdownPolicy;

/// A shard in a loop around `poll`, `epoll` or anything else, whose turns the caller takes; made by
/// [`Attachment::into_loop`](super::attach::Attachment::into_loop).
///
/// The loop takes a [`turn`](Self::turn). If that has left work behind, the loop sees to its other
/// tasks and takes another turn; else it calls [`prepare_to_sleep`](Self::prepare_to_sleep), waits
/// until the instant that this returns or until the waker is woken, and begins again.
///
/// # Order
///
/// A server reads its sockets before each turn. After a stall both deadlines have passed and data
/// lies in the sockets; a turn that came first would time out connections whose data came in time.
/// So a loop around `poll` or `epoll` has these steps. It waits. If the wait has timed out, or has
/// returned as many events as fit, it looks once more with a timeout of zero. It reads, and resets
/// or touches the timers. It takes the turn, and prepares to sleep.
///
/// # The handler
///
/// The handler, those of containers (keyed timers, connections, scaled timeouts) and callbacks are
/// `'static`: they send to a channel, or share the state of the loop by an [`Rc`](std::rc::Rc). A
/// panic of any of them is caught, counted and logged, and leaves the state as it was at that
/// moment.
///
/// A struct that holds the loop names it `ShardLoop<T>` if the handler is a function pointer:
/// `into_loop(handler as fn(Fired<T>, &Timers<T>))`.
///
/// # Ending
///
/// [`TimerService::shutdown`](crate::TimerService::shutdown) on another thread makes a turn return
/// [`Turn::Closed`]; the loop keeps taking turns until then, and the timers are in the report of
/// the service. [`shutdown`](Self::shutdown) ends this shard alone and returns its own report; the
/// service then lists the shard among those that had ended before. A loop that is dropped without
/// either leaves its shard dead.
///
/// # Example
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::attach::Turn;
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
/// let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
/// let attachment = service.attach(service.shards().next().unwrap())?;
/// let mut shard = attachment.into_loop(|fired, timers| {
///     if fired.payload < 3 {
///         timers.schedule(Duration::from_millis(1), fired.payload + 1).expect("there is room");
///     }
/// })?;
/// shard.timers().schedule(Duration::from_millis(1), 0)?;
/// let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
/// loop {
///     let after = shard.turn();
///     match shard.prepare_to_sleep(after, &waker) {
///         Turn::More => {} // A server looks at its sockets here, without waiting.
///         Turn::Next(at) => {
///             std::thread::park_timeout(at.saturating_duration_since(Instant::now()));
///         }
///         // A server would park: other threads may still send timers.
///         Turn::Idle | Turn::Closed => break,
///     }
/// }
/// assert!(shard.timers().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardLoop<T: Send + 'static, H = fn(Fired<T>, &Timers<T>)> {
    handler: Contained<H>,
    driven: Driven<T>,
    _here: Entered,
}

/// When a loop takes its next turn.
#[must_use = "it says when the next turn is due"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// At once, after the other tasks of the loop: the turn or the loop has left work behind, or a
    /// request has come in.
    More,
    /// At this instant, or when a timer is scheduled or the waker is woken before.
    Next(Instant),
    /// When a timer is scheduled or the waker is woken.
    Idle,
    /// Never: the shard is shut down.
    Closed,
}

impl Turn {
    fn new(next: Next, time: &Timeline) -> Self {
        match next {
            Next::Now => Self::More,
            // A timer that never fires keeps no loop awake.
            Next::At(tick) if time.start_of(tick) == u64::MAX => Self::Idle,
            Next::At(tick) => Self::Next(time.instant(tick)),
            Next::WhenWoken => Self::Idle,
            Next::Never => Self::Closed,
        }
    }
}

impl<T: Send + 'static, H: FnMut(Fired<T>, &Timers<T>) + 'static> ShardLoop<T, H> {
    pub(crate) fn new(driven: Driven<T>, handler: H) -> Self {
        Self { handler: Contained::new(handler), _here: driven.enter(), driven }
    }

    /// Receives what other threads have sent, delivers what is due and says when the next turn is
    /// due, each within the [`TurnBudget`](crate::settings::TurnBudget) of the service.
    pub fn turn(&mut self) -> Turn {
        let timers = self.driven.timers();
        timers.core().wake_up();
        let next = take_turn(timers, &mut self.handler, Tick::NEVER);
        Turn::new(next, timers.core().time())
    }

    /// Ends this shard alone. Its lanes are closed, and `policy` says what becomes of its pending
    /// timers. The handler is dropped.
    pub fn shutdown(mut self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let timers = self.driven.timers();
        let handler = &mut self.handler;
        let report = shut_down(timers.core(), &mut Deliveries { timers, handler }, policy);
        let mut ended = ShutdownReport::new();
        ended.add(report, timers.core().time());
        ended
    }
}

impl<T: Send + 'static, H> ShardLoop<T, H> {
    /// Tells other threads that the shard sleeps until the instant that the last turn named, and by
    /// which waker to wake it. The next turn tells them that it is awake.
    ///
    /// Returns how long the loop may wait. `More`: not at all, since a request has come in, or the
    /// loop has left something for a turn since the last one, such as a command to a
    /// [`Kept`](crate::kept::Kept). `Next`: until that instant, or until the waker is woken.
    /// `Idle`: until the waker is woken. The instant is earlier than that of the last turn if an
    /// earlier timer was scheduled since.
    ///
    /// A thread wakes the waker when it sends a request that the shard must receive earlier. A
    /// command on the shard's own thread wakes it, too, if its timer is due earlier or if it leaves
    /// something for a turn. The waker must only wake: it must not use a handle of this service.
    pub fn prepare_to_sleep(&self, after: Turn, waker: &Waker) -> Turn {
        let core = self.timers().core();
        let latest = match after {
            Turn::More | Turn::Closed => return after,
            Turn::Next(at) => core.time().deadline_at(at),
            Turn::Idle => Tick::NEVER,
        };
        let next = core.fall_asleep(latest, waker).map_or(Next::Now, Next::At);
        Turn::new(next, core.time())
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        self.driven.timers()
    }
}

debug_fields!([T: Send + 'static, H] ShardLoop<T, H>, |_it|);
