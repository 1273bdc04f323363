//! A pass: the proof that a runtime has handed out what its sockets held when a deadline passed.
//!
//! The wake-up of a timer may overtake the runtime's look at its sockets, above all after the
//! runtime was held up. A socket that the runtime has not looked at says from memory that it is not
//! ready. So a future whose deadline has passed asks for a pass, polls what it guards once more
//! after it, and only then decides that the time is up.
//!
//! Why not `yield_now` of the runtime: a look takes a limited number of events, and another worker
//! may hold the reactor. Outside of a worker the wake-up comes at once. Any other poll of the same
//! task ends the wait.
//!
//! The futures and streams of this crate do that themselves. A [`Pass`] is for a limit of the
//! program's own, around a socket that it reads:
//!
//! ```
//! use corewheel::Handle;
//! use corewheel::fallback::InfallibleSleep;
//! use corewheel::pass::Pass;
//! use std::future::{Future, poll_fn};
//! use std::pin::{Pin, pin};
//! use std::task::{Poll, ready};
//! use std::time::Duration;
//!
//! /// Gives a future time. `None` if it was not ready at the deadline, and still is not when the
//! /// runtime has looked at its sockets since.
//! async fn within<F: Future>(timers: Handle, limit: Duration, future: F) -> Option<F::Output> {
//!     let mut future = pin!(future);
//!     let mut sleep = InfallibleSleep::after(timers, limit);
//!     let mut pass = Pass::default();
//!     poll_fn(|cx| {
//!         let was_over = pass.is_over();
//!         if let Poll::Ready(output) = future.as_mut().poll(cx) {
//!             return Poll::Ready(Some(output));
//!         }
//!         ready!(Pin::new(&mut sleep).poll(cx));
//!         ready!(pass.decide(was_over, true, cx));
//!         Poll::Ready(None)
//!     })
//!     .await
//! }
//!
//! # let service = corewheel::TimerService::builder().shards(1).start()?;
//! # let (timers, limit) = (service.handle(), Duration::from_millis(2));
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! assert_eq!(within(timers, limit, async { "in time" }).await, Some("in time"));
//! assert_eq!(within(timers, limit, std::future::pending::<()>()).await, None);
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A host is a runtime that can prove a pass: with the feature `tokio` and on Unix, a tokio runtime
//! with I/O, and one of a simulation with sockets. Without a host that is known here, one wake-up
//! of the task takes the place of the pass, which is no proof.
//!
//! A [`Timeout`](crate::Timeout) that a worker of a multi-thread tokio runtime has armed is polled
//! once after its deadline: the runtime looks at its sockets, and wakes the task then. Any other
//! limit is polled at its deadline, and again after its pass.
//!
//! Invariants: a pass begins after its deadline was found passed. A poll for another reason decides
//! nothing.
//!
//! Cost: a load for each poll before a deadline has passed; then an allocation and what the host
//! does.

#[cfg(any(all(feature = "tokio", unix), all(test, corewheel_loom)))]
pub(crate) mod looks;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
#[cfg_attr(not(all(feature = "sim", feature = "tokio", unix)), path = "not_simulated.rs")]
pub(crate) mod simulated;
#[cfg(all(feature = "tokio", unix))]
pub(crate) mod tokio;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::link::nursery::Relay;
use crate::link::sync::{AtomicBool, AtomicU32, MaybeWaker, Ordering};

/// How often a future that has used up the budget of its task is polled again, before the decision
/// that its time is up. A future that always uses the budget up must not hold its timeout back.
pub(crate) const POLLS_MAX: u32 = 250;

/// How many polls pass between the first one after a pass and a decision by code that does not know
/// what it guards. A task polls the guarded future between two of them, but not always between the
/// first two: `select!` begins at a random branch.
pub(crate) const TURNS: u32 = 2;

/// A future, or a connection, that waits for a pass.
pub(crate) struct Wait {
    is_over: AtomicBool,
    waker: MaybeWaker,
    /// The host that was asked.
    host: Host,
    /// How often the task had no budget left after the pass.
    polls: AtomicU32,
    /// How often [`Pass::decide_beside`] was pending after the pass.
    turns: AtomicU32,
}

impl Wait {
    fn new(waker: &Waker) -> Self {
        let cell = MaybeWaker::new();
        cell.register(waker);
        Self {
            is_over: AtomicBool::new(false),
            waker: cell,
            host: host(),
            polls: AtomicU32::new(0),
            turns: AtomicU32::new(0),
        }
    }

    /// A pass that is over.
    fn over() -> Self {
        let wait = Self::new(Waker::noop());
        wait.set_over();
        wait
    }

    /// The pass is over. Runs code of the user, which is the waker.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn end(&self) {
        self.set_over();
        self.waker.wake();
    }

    /// The first half of [`end`](Self::end): another thread may poll before the second.
    pub(crate) fn set_over(&self) {
        // Release: pairs with the load in `is_over`, so that a future that sees the flag sees the
        // readiness that the reactor has handed out before.
        self.is_over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        // Acquire: pairs with the store in `set_over`.
        self.is_over.load(Ordering::Acquire)
    }
}

/// What a host says to a future that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The host ends the wait.
    #[cfg(all(feature = "tokio", unix))]
    Waits,
    /// There is no host, or it can prove nothing.
    Unknown,
    /// The host has no sockets.
    #[cfg(all(feature = "tokio", unix))]
    NotNeeded,
}

impl Asked {
    /// Whether the host ends the wait and wakes its task.
    pub(crate) fn waits(self) -> bool {
        match self {
            #[cfg(all(feature = "tokio", unix))]
            Self::Waits => true,
            _ => false,
        }
    }
}

/// Names the host of the calling thread; `None` if there is none, or if the thread does not run it.
#[cfg(all(feature = "tokio", unix))]
type Host = Option<HostId>;

/// Names a host.
#[cfg(all(feature = "tokio", unix))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostId {
    Tokio(::tokio::runtime::Id),
    /// A runtime of a simulation.
    Simulated(simulated::Number),
}
/// There is no host.
#[cfg(not(all(feature = "tokio", unix)))]
type Host = Option<std::convert::Infallible>;

fn host() -> Host {
    #[cfg(all(feature = "tokio", unix))]
    return match simulated::host() {
        Some(number) => Some(HostId::Simulated(number)),
        None => tokio::host().map(HostId::Tokio),
    };
    #[cfg(not(all(feature = "tokio", unix)))]
    None
}

/// How many looks at sockets were proven so far, by all runtimes. A future that is polled after
/// this call finds what they have handed out.
#[inline]
pub(crate) fn looks() -> u64 {
    #[cfg(all(feature = "tokio", unix))]
    return tokio::looks();
    #[cfg(not(all(feature = "tokio", unix)))]
    0
}

/// Whether the runtime of the calling thread has handed out what its sockets held at a time, in
/// nanoseconds since the [first epoch](crate::clock::first_epoch), within the first `looks`.
pub(crate) fn is_proven(looks: u64, time: u64) -> bool {
    if let Some(is_proven) = simulated::is_proven(looks, time) {
        return is_proven;
    }
    #[cfg(all(feature = "tokio", unix))]
    return looks > 0 && tokio::is_proven(looks, time);
    #[cfg(not(all(feature = "tokio", unix)))]
    false
}

/// What wakes the futures that timers of the calling thread guard; `None` if no runtime is known
/// that lives as long as the thread.
pub(crate) fn relay_of_thread() -> Option<Arc<dyn Relay<Waker>>> {
    if let Some(relay) = simulated::relay() {
        return Some(relay);
    }
    #[cfg(all(feature = "tokio", unix))]
    return tokio::relay_of_thread();
    #[cfg(not(all(feature = "tokio", unix)))]
    None
}

/// Whether the calling thread runs a simulated runtime with sockets. There a clock that a test
/// moves does not say what is in time.
pub(crate) fn is_simulated() -> bool {
    simulated::host().is_some()
}

/// Asks the host of the calling thread for a pass. The waker of `wait` is registered.
#[cfg(all(feature = "tokio", unix))]
fn ask(wait: &Arc<Wait>) -> Asked {
    match wait.host {
        Some(HostId::Tokio(id)) => tokio::ask(id, wait),
        Some(HostId::Simulated(_)) => simulated::ask(wait),
        None => Asked::Unknown,
    }
}

/// Asks the host of the calling thread for a pass.
#[cfg(not(all(feature = "tokio", unix)))]
fn ask(_wait: &Arc<Wait>) -> Asked {
    Asked::Unknown
}

/// Spawns tasks in the runtime of a connection.
#[cfg(any(feature = "hyper", feature = "tokio"))]
#[derive(Clone)]
pub(crate) struct Spawner {
    /// The number of a simulated runtime; `None` if it is none.
    simulated: Option<simulated::Number>,
    /// `None` if the runtime is not known.
    #[cfg(all(feature = "tokio", unix))]
    runtime: Option<::tokio::runtime::Handle>,
}

#[cfg(any(feature = "hyper", feature = "tokio"))]
impl Spawner {
    /// Spawns in the runtime that the calling thread is in.
    pub(crate) fn present() -> Self {
        Self {
            simulated: simulated::host(),
            #[cfg(all(feature = "tokio", unix))]
            runtime: ::tokio::runtime::Handle::try_current().ok(),
        }
    }

    /// Runs a task, on any thread. Where the runtime is not known, the task is dropped.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(number) = self.simulated {
            return simulated::spawn(number, task);
        }
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Whether the runtime is one of a simulation.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Drops a task, as no runtime is known.
    #[cfg(not(all(feature = "tokio", unix)))]
    #[expect(clippy::unused_self, reason = "it stands for the one that knows a runtime")]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(task);
    }
}

/// Whether the task that is polled may do more in this poll. Without a budget, a socket says that
/// it is not ready, and wakes the task.
pub(crate) fn has_budget() -> bool {
    if let Some(has_budget) = simulated::has_budget() {
        return has_budget;
    }
    #[cfg(feature = "tokio")]
    return ::tokio::task::coop::has_budget_remaining();
    #[cfg(not(feature = "tokio"))]
    true
}

/// Adds one to a count that is below a limit. False if it is not.
fn counts_below(count: &AtomicU32, limit: u32) -> bool {
    // Relaxed: only the task that waits counts.
    let before = count.load(Ordering::Relaxed);
    let is_below = before < limit;
    if is_below {
        count.store(before + 1, Ordering::Relaxed);
    }
    is_below
}

/// The pass of a deadline that has passed; see the [module](self) for an example.
///
/// [`default`](Self::default) has not begun, and the first poll begins it. For another deadline
/// there is another `Pass`. Each deadline polls its own: all that begin while the runtime is held
/// up share one pass of it.
///
/// # Cost
///
/// None before the first poll. Then an allocation of 80 bytes at most, and a share of a write to a
/// descriptor, which the first pass in a runtime opens. It is closed with the runtime.
#[derive(Default)]
pub struct Pass(Option<Arc<Wait>>);

impl Pass {
    pub(crate) const NONE: Self = Self(None);

    /// Whether the pass is over: what is polled from now on is polled after it.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.is_over())
    }

    /// Whether the pass has begun, and is over or that of the host of the calling thread. The host
    /// that was asked before may be driven by no thread, so another one is asked.
    pub(crate) fn has_begun_here(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.is_over() || wait.host == host())
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a pass. At its end, its host wakes the waker. If the host does not, the pass is over
    /// already, and the caller wakes it. Runs no code of the user but the clone of the waker, and
    /// the drop of that of the pass before.
    pub(crate) fn begin(&mut self, waker: &Waker) -> Asked {
        let wait = Arc::new(Wait::new(waker));
        let asked = ask(&wait);
        if !asked.waits() {
            wait.set_over();
        }
        // The drop of the pass before takes its waker from its host.
        *self = Self(Some(wait));
        asked
    }

    /// Whether a future that is pending could have done more if its task had more budget. Then the
    /// caller wakes the task, whose next poll may decide.
    fn is_cut_short(&mut self) -> bool {
        if has_budget() {
            return false;
        }
        let wait = self.0.get_or_insert_with(|| Arc::new(Wait::over()));
        counts_below(&wait.polls, POLLS_MAX)
    }

    /// Ready when it is decided that the time of a future is up. The caller has polled the future
    /// after it has got `was_over` from [`is_over`](Self::is_over), and the future is pending.
    ///
    /// The first call begins the pass, and its host wakes the task at its end. A poll that finds
    /// the budget of the task used up decides nothing, since a socket says then that it is not
    /// ready; after 250 such polls, the next one decides.
    ///
    /// `is_needed` is false for a deadline by a clock that a test moves, which needs no pass. In a
    /// simulation with sockets there is a pass all the same.
    #[cold]
    pub fn decide(&mut self, was_over: bool, is_needed: bool, cx: &Context<'_>) -> Poll<()> {
        if (is_needed || is_simulated()) && !was_over && self.waits(cx) {
            return Poll::Pending;
        }
        if self.is_cut_short() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Ready when a pass is over that has begun with the first poll. Until then it is pending, and
    /// its host wakes the task.
    pub fn poll_over(&mut self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_over() && self.waits(cx) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Ready when it is decided that the time of something is up that the caller does not poll. It
    /// is for a timer that a library polls beside what it guards, in the same task and in any
    /// order, as hyper polls its sleeps beside its socket.
    ///
    /// After the pass it is pending in two more polls, and wakes the task. Between these the task
    /// has polled what the timer guards. `is_needed` and the budget of the task are as for
    /// [`decide`](Self::decide).
    ///
    /// ```
    /// use corewheel::fallback::InfallibleSleep;
    /// use corewheel::pass::Pass;
    /// use std::future::Future;
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll, ready};
    ///
    /// /// A timer for a library that knows nothing of passes.
    /// struct Timer {
    ///     sleep: InfallibleSleep,
    ///     pass: Pass,
    /// }
    ///
    /// impl Future for Timer {
    ///     type Output = ();
    ///
    ///     fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
    ///         ready!(Pin::new(&mut self.sleep).poll(cx));
    ///         self.pass.decide_beside(true, cx)
    ///     }
    /// }
    /// # let service = corewheel::TimerService::builder().shards(1).start()?;
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # let limit = std::time::Duration::from_millis(2);
    /// # let sleep = InfallibleSleep::after(service.handle(), limit);
    /// # let began = std::time::Instant::now();
    /// # runtime.block_on(Timer { sleep, pass: Pass::default() });
    /// # assert!(began.elapsed() >= limit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cold]
    pub fn decide_beside(&mut self, is_needed: bool, cx: &Context<'_>) -> Poll<()> {
        let is_needed = is_needed || is_simulated();
        if is_needed && !self.is_over() && self.waits(cx) {
            return Poll::Pending;
        }
        let turns = self.0.as_ref().filter(|_| is_needed).map(|wait| &wait.turns);
        if turns.is_some_and(|turns| counts_below(turns, TURNS)) || self.is_cut_short() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Begins a pass, or waits on, unless the host has no sockets. The task is woken.
    fn waits(&mut self, cx: &Context<'_>) -> bool {
        let Some(wait) = self.0.as_ref().filter(|_| self.has_begun_here()) else {
            return match self.begin(cx.waker()) {
                #[cfg(all(feature = "tokio", unix))]
                Asked::Waits => true,
                Asked::Unknown => {
                    cx.waker().wake_by_ref();
                    true
                }
                #[cfg(all(feature = "tokio", unix))]
                Asked::NotNeeded => false,
            };
        };
        wait.waker.register(cx.waker());
        if wait.is_over() {
            // It has ended since the future was polled.
            cx.waker().wake_by_ref();
        }
        true
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(wait) = &self.0 {
            // The host holds the wait until the pass is over, and must not hold the task.
            wait.waker.register(Waker::noop());
        }
    }
}

debug_fields!([] Pass, |it| has_begun: it.0.is_some(), is_over: it.is_over());
