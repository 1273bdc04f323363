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
//! The futures and streams of this crate do that themselves. A [`Guarded`] is for a limit of the
//! program's own, around a future that reads a socket:
//!
//! ```
//! use corewheel::Handle;
//! use corewheel::fallback::InfallibleSleep;
//! use corewheel::pass::Guarded;
//! use std::time::Duration;
//!
//! /// Gives a future time. `None` if it was not ready at the deadline, and still is not when the
//! /// runtime has looked at its sockets since.
//! async fn within<F: Future>(timers: Handle, limit: Duration, future: F) -> Option<F::Output> {
//!     Guarded::new(future, InfallibleSleep::after(timers, limit)).await.ok()
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
//! What a worker of a multi-thread tokio runtime guards is polled once after its deadline: the
//! runtime looks at its sockets, and wakes the task then. Any other limit is polled at its
//! deadline, and again after its pass.
//!
//! Invariants: a pass begins after its deadline was found passed. A poll for another reason decides
//! nothing. What was pending is late only if it was polled after the look that has ended the pass.
//!
//! Cost: a load for each poll before a deadline has passed; then an allocation and what the host
//! does.

mod guarded;
pub(crate) mod looks;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
mod reader;
#[cfg_attr(not(all(feature = "sim", feature = "tokio", unix)), path = "not_simulated.rs")]
pub(crate) mod simulated;
#[cfg(all(feature = "tokio", unix))]
pub(crate) mod tokio;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub use self::guarded::Guarded;
pub(crate) use self::guarded::{Decided, Limit};
use self::looks::{FIRST, LOOKS};
pub use self::reader::SocketReader;
use self::reader::counts_below;
use crate::link::sync::{AtomicU32, AtomicU64, MaybeWaker, Ordering};
use crate::link::thread_timers::Relay;

/// How often a task is polled again that has used up its budget, or has left something unread,
/// before it is decided that the time of what it waits for is up. A task that always does so must
/// not hold its limits back.
pub const POLLS_MAX: u32 = 250;

/// How long a task is waited for that is to act before a decision, and may be about to run: one
/// that reads a socket, or that takes what has come. It is more than the time for which a system
/// with too few processors lets a thread wait.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How many polls pass between the first one after a pass and a decision by code that does not know
/// what it guards. A task polls the guarded future between two of them, but not always between the
/// first two: `select!` begins at a random branch.
const TURNS: u32 = 2;

/// A future, or a connection, that waits for a pass.
pub(crate) struct Wait {
    /// The number of the look that has ended it; `u64::MAX` before.
    ended_by: AtomicU64,
    waker: MaybeWaker,
    /// The host that was asked.
    host: Option<HostId>,
    /// The polls after the pass that have decided nothing.
    polls: Polls,
    /// Those of them by code that does not know what it guards, up to [`TURNS`].
    turns: AtomicU32,
}

impl Wait {
    fn new(waker: &Waker) -> Self {
        let cell = MaybeWaker::new();
        cell.register(waker);
        Self {
            ended_by: AtomicU64::new(u64::MAX),
            waker: cell,
            host: host(),
            polls: Polls::default(),
            turns: AtomicU32::new(0),
        }
    }

    /// Asks the host of the calling thread for a pass. Where none proves one, the pass is over for
    /// what is polled from now on, and the task is woken. True if the host has no sockets, so that
    /// the pass is over for what was polled before, too.
    pub(crate) fn ask(self: &Arc<Self>) -> bool {
        let asked = ask(self);
        match asked {
            Asked::Waits => {}
            Asked::Unknown => {
                LOOKS.add(0);
                self.end();
            }
            Asked::NotNeeded => self.set_not_needed(),
        }
        asked == Asked::NotNeeded
    }

    fn set_not_needed(&self) {
        self.ended_by.store(FIRST, Ordering::Relaxed);
    }

    /// The pass is over, by the last look that was counted. Runs code of the user, which is the
    /// waker.
    pub(crate) fn end(&self) {
        self.set_over();
        self.waker.wake();
    }

    /// The first half of [`end`](Self::end): another thread may poll before the second.
    pub(crate) fn set_over(&self) {
        // Relaxed: a future that was polled after the look has its readiness by the count of looks.
        self.ended_by.store(looks(), Ordering::Relaxed);
    }

    /// The number of the look that has ended it, or `u64::MAX`.
    fn ended_by(&self) -> u64 {
        // Relaxed: see `set_over`.
        self.ended_by.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.ended_by() != u64::MAX
    }
}

/// How often a task was polled that could not decide. Relaxed: only the task that waits counts.
#[derive(Default, Debug)]
pub(crate) struct Polls(AtomicU32);

impl Polls {
    /// Counts one that could not decide. False if a task is not waited for any more.
    fn count(&self) -> bool {
        counts_below(&self.0, POLLS_MAX)
    }

    /// Whether the task that is polled has used up its budget, and is waited for. Then the caller
    /// wakes it. A poll with a budget begins the count anew.
    pub(crate) fn are_cut_short(&self) -> bool {
        let has_budget = has_budget();
        if has_budget {
            self.0.store(0, Ordering::Relaxed);
        }
        !has_budget && self.count()
    }
}

/// What a host says to a future that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The host ends the wait.
    Waits,
    /// There is no host, or it can prove nothing.
    Unknown,
    /// The host has no sockets.
    NotNeeded,
}

/// What is decided about a deadline that has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The time is up.
    Late,
    /// The pass goes on, and its host wakes the task.
    Wait,
    /// The next poll may decide. The caller wakes its task.
    Again,
    /// The caller begins a pass.
    Ask,
}

/// Names a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostId {
    #[cfg(all(feature = "tokio", unix))]
    Tokio(::tokio::runtime::Id),
    /// A runtime of a simulation.
    Simulated(u64),
}

/// A simulated runtime, as its tasks see it.
pub(crate) trait Runtime: Send + Sync {
    /// Tells it apart from other runtimes of the process.
    fn number(&self) -> u64;
    /// Whether the task that is polled may do more in this poll.
    fn has_budget(&self) -> bool;
    /// Ends the wait when what the sockets hold now was handed out.
    fn ask(&self, wait: Arc<Wait>);
    /// Whether what the sockets held at a time was handed out, within the first `looks`.
    fn is_proven(&self, _looks: u64, _time: u64) -> bool {
        false
    }
    /// What wakes the futures that timers of its threads guard; `None` for one thread.
    fn relay(&self) -> Option<Arc<dyn Relay<Waker>>> {
        None
    }
}

/// The number of the simulated runtime that the calling thread runs; `None` if it runs none.
fn simulated_host() -> Option<u64> {
    simulated::here(|runtime| runtime.number())
}

/// The host of the calling thread; `None` if there is none, or if the thread does not run it.
fn host() -> Option<HostId> {
    if let Some(number) = simulated_host() {
        return Some(HostId::Simulated(number));
    }
    #[cfg(all(feature = "tokio", unix))]
    return tokio::host().map(HostId::Tokio);
    #[cfg(not(all(feature = "tokio", unix)))]
    None
}

/// How many looks at sockets were proven so far, by all runtimes. A future that is polled after
/// this call finds what they have handed out.
#[inline]
pub(crate) fn looks() -> u64 {
    LOOKS.count()
}

/// Whether the runtime of the calling thread has handed out what its sockets held at a time, in
/// nanoseconds since the [first epoch](crate::clock::first_epoch), within the first `looks`.
pub(crate) fn is_proven(looks: u64, time: u64) -> bool {
    if let Some(is_proven) = simulated::here(|runtime| runtime.is_proven(looks, time)) {
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
    if let Some(relay) = simulated::here(|runtime| runtime.relay()).flatten() {
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
    simulated_host().is_some()
}

/// Asks the host of the calling thread for a pass.
fn ask(wait: &Arc<Wait>) -> Asked {
    match wait.host {
        #[cfg(all(feature = "tokio", unix))]
        Some(HostId::Tokio(id)) => tokio::ask(id, wait),
        Some(HostId::Simulated(_)) => {
            let asked = simulated::here(|runtime| runtime.ask(Arc::clone(wait)));
            asked.map_or(Asked::Unknown, |()| Asked::Waits)
        }
        None => Asked::Unknown,
    }
}

/// Spawns tasks in the runtime of a connection.
#[cfg(any(feature = "hyper", feature = "tokio"))]
#[derive(Clone)]
pub(crate) enum Spawner {
    #[cfg(all(feature = "tokio", unix))]
    Tokio(::tokio::runtime::Handle),
    /// In a runtime of a simulation, which has this number.
    Simulated(u64),
    /// The runtime is not known.
    None,
}

#[cfg(any(feature = "hyper", feature = "tokio"))]
impl Spawner {
    /// Spawns in the runtime that the calling thread is in.
    pub(crate) fn present() -> Self {
        if let Some(number) = simulated_host() {
            return Self::Simulated(number);
        }
        #[cfg(all(feature = "tokio", unix))]
        if let Ok(runtime) = ::tokio::runtime::Handle::try_current() {
            return Self::Tokio(runtime);
        }
        Self::None
    }

    /// Runs a task, on any thread. Where the runtime is not known, the task is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            #[cfg(all(feature = "tokio", unix))]
            Self::Tokio(runtime) => drop(runtime.spawn(task)),
            Self::Simulated(number) => simulated::spawn(*number, task),
            Self::None => {}
        }
    }

    /// Whether the runtime is one of a simulation.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }
}

/// Whether the task that is polled may do more in this poll. Without a budget, a socket says that
/// it is not ready, and wakes the task.
pub(crate) fn has_budget() -> bool {
    if let Some(has_budget) = simulated::here(|runtime| runtime.has_budget()) {
        return has_budget;
    }
    #[cfg(feature = "tokio")]
    return ::tokio::task::coop::has_budget_remaining();
    #[cfg(not(feature = "tokio"))]
    true
}

/// The pass of a deadline that has passed, for what a [`Guarded`] is not: a timer that a library
/// polls beside what it guards, or a deadline that is decided by more than a poll.
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
    fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.is_over())
    }

    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// What is decided about what a caller has polled since there were so many `looks`, and has
    /// found pending; `None` of a caller that does not know what the deadline guards. `is_proven`
    /// says whether no pass is needed.
    ///
    /// A poll that finds the budget of the task used up decides nothing, since a socket says then
    /// that it is not ready. Nor does one before the end of the pass, or one of the first two of a
    /// caller that does not know. After [`POLLS_MAX`] such polls, the next one decides.
    #[cold]
    pub(crate) fn judge(
        &mut self,
        looks: Option<u64>,
        is_proven: impl FnOnce() -> bool,
    ) -> Verdict {
        if self.0.is_none() && is_proven() {
            if looks.is_some() && has_budget() {
                return Verdict::Late;
            }
            self.renew(Waker::noop()).set_not_needed();
        }
        // The host that was asked before may be driven by no thread, so another one is asked.
        let is_of_here = |wait: &&Arc<Wait>| wait.is_over() || wait.host == host();
        let Some(wait) = self.0.as_ref().filter(is_of_here) else { return Verdict::Ask };
        if !wait.is_over() {
            return Verdict::Wait;
        }
        let is_after = match looks {
            Some(looks) => wait.ended_by() <= looks,
            None => !counts_below(&wait.turns, TURNS),
        };
        let decides = is_after && has_budget() || !wait.polls.count();
        if decides { Verdict::Late } else { Verdict::Again }
    }

    /// Begins another pass in place of the present one, without the host, which the caller
    /// [asks](Wait::ask) next: that runs code of other users.
    pub(crate) fn renew(&mut self, waker: &Waker) -> Arc<Wait> {
        let wait = Arc::new(Wait::new(waker));
        // The drop of the pass before takes its waker from its host.
        *self = Self(Some(Arc::clone(&wait)));
        wait
    }

    /// Ready when it is decided that the time is up: see [`judge`](Self::judge). Until then the
    /// task is woken.
    #[cold]
    pub(crate) fn poll(
        &mut self,
        looks: Option<u64>,
        is_proven: impl FnOnce() -> bool,
        cx: &Context<'_>,
    ) -> Poll<()> {
        let mut verdict = self.judge(looks, is_proven);
        if verdict == Verdict::Ask && self.renew(cx.waker()).ask() {
            verdict = self.judge(looks, || true);
        }
        match verdict {
            Verdict::Late => return Poll::Ready(()),
            Verdict::Ask => {}
            Verdict::Again => cx.waker().wake_by_ref(),
            Verdict::Wait => self.register(cx.waker()),
        }
        Poll::Pending
    }

    /// Has the end of the pass wake a task.
    fn register(&self, waker: &Waker) {
        let Some(wait) = &self.0 else { return };
        wait.waker.register(waker);
        if wait.is_over() {
            // It has ended since it was judged.
            waker.wake_by_ref();
        }
    }

    /// Ready when a pass is over that has begun with the first poll. Until then it is pending, and
    /// its host wakes the task. A task without a budget is polled again, up to 250 times.
    pub fn poll_over(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.poll(Some(u64::MAX), || false, cx)
    }

    /// Ready when it is decided that the time of something is up that the caller does not poll. It
    /// is for a timer that a library polls beside what it guards, in the same task and in any
    /// order, as hyper polls its sleeps beside its socket.
    ///
    /// After the pass it is pending in two more polls, and wakes the task. Between these the task
    /// has polled what the timer guards. A poll that finds the budget of the task used up decides
    /// nothing, since a socket says then that it is not ready; after 250 such polls, the next one
    /// decides.
    ///
    /// `is_needed` is false for a deadline by a clock that a test moves, which needs no pass. In a
    /// simulation with sockets there is a pass all the same.
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
    pub fn decide_beside(&mut self, is_needed: bool, cx: &Context<'_>) -> Poll<()> {
        let is_needed = is_needed || is_simulated();
        let looks = (!is_needed).then_some(u64::MAX);
        self.poll(looks, || !is_needed, cx)
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

debug_fields!([] Pass, |it| has_begun: it.has_begun(), is_over: it.is_over());
