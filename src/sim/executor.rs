//! The executor of a simulation: all tasks of all simulated threads, and the alarms, on one thread.
//!
//! Why not an executor of a library: the simulation picks the task that runs next by its seed,
//! stops the tasks of one simulated thread while the others go on, and moves the clock itself.
//!
//! Invariants: tasks run with nothing borrowed. The clock moves only when no task can run, and in
//! [`Executor::leap`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;

use crate::clock::{ManualClock, saturating_nanos};
use crate::driver::executor::Host;
use crate::face::handle::here::{as_thread, end_thread};
use crate::shard::stored::LocalFuture;

/// The end of time, in nanoseconds: a century after the start. What is due later never is.
pub(super) const END: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// A simulated thread: that of a shard, or one of the test's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadId(usize);

impl ThreadId {
    /// Runs code as this thread: handles find the shard that it drives, or its thread.
    pub(super) fn run<O>(self, run: impl FnOnce() -> O) -> O {
        as_thread(self.number(), run)
    }

    /// The number by which handles tell threads apart.
    fn number(self) -> u32 {
        self.0 as u32 + 1
    }
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stepped {
    /// This task of this thread has run.
    Ran(u64, ThreadId),
    /// No task could run, so the clock has moved.
    Waited,
    /// No task can run before the limit.
    Resting,
}

/// Tasks that were woken and have not run since.
type Woken = Arc<Mutex<Vec<Arc<TaskWaker>>>>;

struct TaskWaker {
    task: u64,
    thread: ThreadId,
    woken: Woken,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        // A simulation has one thread, and wakers must be `Send` all the same.
        let all = Arc::clone(&self.woken);
        let mut woken = lock(&all);
        if woken.iter().all(|other| other.task != self.task) {
            woken.push(self);
        }
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    /// `None` while the task runs.
    future: Option<LocalFuture>,
    waker: Arc<TaskWaker>,
}

struct Inner {
    clock: ManualClock,
    /// What the clock showed when the simulation began.
    begun: Cell<u64>,
    rng: RefCell<Rng>,
    woken: Woken,
    tasks: RefCell<BTreeMap<u64, Task>>,
    /// The number of the next task or alarm.
    next: Cell<u64>,
    /// How many times a task has run.
    steps: Cell<u64>,
    /// By the time at which they go off, in nanoseconds, and by their numbers.
    alarms: RefCell<BTreeMap<(u64, u64), Waker>>,
    /// Until when each thread is stalled, in nanoseconds.
    stalled_until: RefCell<Vec<u64>>,
}

/// The executor. Clones are handles of the same one.
#[derive(Clone)]
pub(super) struct Executor(Rc<Inner>);

impl Executor {
    pub(super) fn new(clock: ManualClock, rng: Rng) -> Self {
        Self(Rc::new(Inner {
            begun: Cell::new(clock.nanos()),
            clock,
            rng: RefCell::new(rng),
            woken: Woken::default(),
            tasks: RefCell::default(),
            next: Cell::new(0),
            steps: Cell::new(0),
            alarms: RefCell::default(),
            stalled_until: RefCell::default(),
        }))
    }

    pub(super) fn clock(&self) -> &ManualClock {
        &self.0.clock
    }

    /// Nanoseconds since the simulation began.
    pub(super) fn nanos(&self) -> u64 {
        self.0.clock.nanos() - self.0.begun.get()
    }

    /// The simulation begins now.
    pub(super) fn begin(&self) {
        self.0.begun.set(self.0.clock.nanos());
    }

    pub(super) fn fork_rng(&self) -> Rng {
        self.0.rng.borrow_mut().fork()
    }

    pub(super) fn add_thread(&self) -> ThreadId {
        let mut stalled_until = self.0.stalled_until.borrow_mut();
        stalled_until.push(0);
        ThreadId(stalled_until.len() - 1)
    }

    /// Starts a task on a thread. It runs in a later step. Returns its number.
    pub(super) fn spawn(&self, thread: ThreadId, future: LocalFuture) -> u64 {
        let task = self.next_number();
        let woken = Arc::clone(&self.0.woken);
        let waker = Arc::new(TaskWaker { task, thread, woken });
        Waker::from(Arc::clone(&waker)).wake();
        self.0.tasks.borrow_mut().insert(task, Task { future: Some(future), waker });
        task
    }

    /// Drops the tasks of a thread, in the order in which they were started.
    pub(super) fn kill(&self, thread: ThreadId) {
        let killed: Vec<_> = {
            let mut tasks = self.0.tasks.borrow_mut();
            tasks.extract_if(.., |_, task| task.waker.thread == thread).collect()
        };
        thread.run(|| drop(killed));
        thread.run(|| end_thread(thread.number()));
    }

    /// Lets no task of a thread run for this long.
    pub(super) fn stall(&self, thread: ThreadId, stall: Duration) {
        let until = self.nanos().saturating_add(saturating_nanos(stall));
        let mut stalled_until = self.0.stalled_until.borrow_mut();
        stalled_until[thread.0] = stalled_until[thread.0].max(until);
    }

    /// Until when the thread is or was stalled; 0 if it never was.
    pub(super) fn stalled_until(&self, thread: ThreadId) -> u64 {
        self.0.stalled_until.borrow()[thread.0]
    }

    pub(super) fn is_stalled(&self, thread: ThreadId) -> bool {
        self.stalled_until(thread) > self.nanos()
    }

    /// How many times a task has run.
    pub(super) fn steps(&self) -> u64 {
        self.0.steps.get()
    }

    /// Moves the clock while no task runs.
    pub(super) fn leap(&self, by: Duration) {
        let left = Duration::from_nanos(END.saturating_sub(self.nanos()));
        self.0.clock.advance(by.min(left));
        self.ring_alarms();
    }

    /// Whether a task of this thread has been woken and has not run since.
    pub(super) fn is_woken(&self, thread: ThreadId) -> bool {
        lock(&self.0.woken).iter().any(|waker| waker.thread == thread)
    }

    /// Runs one task that was woken, picked by the seed. If no task can run, moves the clock to the
    /// next alarm or to the end of a stall, unless that is later than `limit`.
    pub(super) fn step(&self, limit: u64) -> Stepped {
        if let Some(waker) = self.pick() {
            let stepped = Stepped::Ran(waker.task, waker.thread);
            self.run(waker);
            return stepped;
        }
        match self.next_change() {
            Some(at) if at <= limit => {
                self.leap(Duration::from_nanos(at - self.nanos()));
                Stepped::Waited
            }
            _ => Stepped::Resting,
        }
    }

    /// When the next task can run; `None` if none can at any moment.
    pub(super) fn next_at(&self) -> Option<u64> {
        let now = self.nanos();
        let stalled_until = self.0.stalled_until.borrow();
        let woken = lock(&self.0.woken);
        if woken.iter().any(|waker| stalled_until[waker.thread.0] <= now) {
            return Some(now);
        }
        drop((stalled_until, woken));
        self.next_change()
    }

    /// When the next alarm goes off or the next stall ends.
    fn next_change(&self) -> Option<u64> {
        let now = self.nanos();
        let alarm = self.0.alarms.borrow().keys().next().map(|(at, _)| *at);
        let stall = self.0.stalled_until.borrow().iter().copied().filter(|at| *at > now).min();
        alarm.into_iter().chain(stall).min().filter(|at| *at <= END)
    }

    fn next_number(&self) -> u64 {
        self.0.next.replace(self.0.next.get() + 1)
    }

    fn pick(&self) -> Option<Arc<TaskWaker>> {
        let now = self.nanos();
        let stalled_until = self.0.stalled_until.borrow();
        let mut woken = lock(&self.0.woken);
        let can_run = |waker: &Arc<TaskWaker>| stalled_until[waker.thread.0] <= now;
        let count = woken.iter().filter(|waker| can_run(waker)).count();
        if count == 0 {
            return None;
        }
        let picked = self.0.rng.borrow_mut().usize(..count);
        let runnable = woken.iter().enumerate().filter(|(_, waker)| can_run(waker));
        let (index, _) = runnable.into_iter().nth(picked)?;
        Some(woken.remove(index))
    }

    fn run(&self, waker: Arc<TaskWaker>) {
        let number = waker.task;
        let future = self.0.tasks.borrow_mut().get_mut(&number).and_then(|task| task.future.take());
        // A task that is done or killed may be woken by an old waker.
        let Some(mut future) = future else { return };
        self.0.steps.set(self.0.steps.get() + 1);
        let thread = waker.thread;
        let waker = Waker::from(waker);
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let is_pending = thread.run(&mut poll);
        let mut ended = Some(future);
        {
            let mut tasks = self.0.tasks.borrow_mut();
            // The task may have killed its own thread.
            if let Some(task) = tasks.get_mut(&number) {
                if is_pending {
                    task.future = ended.take();
                } else {
                    tasks.remove(&number);
                }
            }
        }
        thread.run(|| drop(ended));
        if !is_pending {
            self.end_if_idle(thread);
        }
    }

    /// Ends a thread that has no task any more, as the end of its last task does.
    fn end_if_idle(&self, thread: ThreadId) {
        let has_tasks = self.0.tasks.borrow().values().any(|task| task.waker.thread == thread);
        if !has_tasks {
            thread.run(|| end_thread(thread.number()));
        }
    }

    fn ring_alarms(&self) {
        let now = self.nanos();
        loop {
            let due = {
                let mut alarms = self.0.alarms.borrow_mut();
                alarms.first_entry().filter(|alarm| alarm.key().0 <= now).map(OccupiedEntry::remove)
            };
            match due {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    /// Drops all tasks, those of the last threads first, so that the test's own tasks end before
    /// the shards.
    pub(super) fn kill_all(&self) {
        for thread in (0..self.0.stalled_until.borrow().len()).rev() {
            self.kill(ThreadId(thread));
        }
        self.0.alarms.take();
        lock(&self.0.woken).clear();
    }
}

/// An alarm at a point of the simulated time. Dropped, it does not go off.
pub(super) struct Alarm {
    executor: Executor,
    at: u64,
    number: u64,
}

impl Alarm {
    /// An alarm this many nanoseconds after the simulation began.
    pub(super) fn new(executor: &Executor, at: u64) -> Self {
        Self { executor: executor.clone(), at, number: executor.next_number() }
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.executor.nanos() >= self.at {
            return Poll::Ready(());
        }
        let key = (self.at, self.number);
        self.executor.0.alarms.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let waker = self.executor.0.alarms.borrow_mut().remove(&(self.at, self.number));
        drop(waker);
    }
}

/// The host of a shard's driver.
pub(super) struct SimulatedHost {
    executor: Executor,
    thread: ThreadId,
    alarm: Option<Alarm>,
}

impl SimulatedHost {
    pub(super) fn new(executor: &Executor, thread: ThreadId) -> Self {
        Self { executor: executor.clone(), thread, alarm: None }
    }
}

impl Host for SimulatedHost {
    fn arm(&mut self, after: Duration) {
        let at = self.executor.nanos().saturating_add(saturating_nanos(after));
        self.alarm = Some(Alarm::new(&self.executor, at));
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.alarm.as_ref().map_or(Poll::Pending, |alarm| alarm.poll(cx))
    }

    /// The tasks of the shard that were woken run before the driver goes on, or after it, as the
    /// seed says.
    async fn read_sockets(&mut self, _connections: usize) {
        self.step_aside().await;
    }

    async fn step_aside(&mut self) {
        let mut has_yielded = false;
        poll_fn(|cx| {
            if has_yielded {
                return Poll::Ready(());
            }
            has_yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, future: LocalFuture) {
        self.executor.spawn(self.thread, future);
    }
}
