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
use std::mem;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;

#[cfg(all(feature = "tokio", unix))]
use super::net::runtime as sockets;
#[cfg(not(all(feature = "tokio", unix)))]
use super::no_net as sockets;
use crate::clock::{Clock, ManualClock, saturating_nanos};
use crate::face::handle::simulated::as_thread;
use crate::face::handle::test_thread::end_thread;
use crate::shard::timers::LocalFuture;

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
    /// A task of this thread has run.
    Ran(ThreadId),
    /// No task could run, so the clock has moved.
    Waited,
    /// No task can run before the limit.
    Resting,
}

/// Where a task runs.
#[derive(Clone)]
pub(super) struct Home {
    /// Each poll is on one of them.
    threads: Arc<[ThreadId]>,
    /// Whether the threads end with their last task.
    ends: bool,
    /// What a thread is in while it runs the task; `None` for a task of no simulated runtime.
    entered: Option<Entered>,
}

pub(super) type Entered = Arc<sockets::Worker>;

impl Home {
    /// A thread that ends with its last task.
    fn of_thread(thread: ThreadId) -> Self {
        Self { threads: Arc::new([thread]), ends: true, entered: None }
    }

    /// The threads of a runtime.
    #[cfg(all(feature = "tokio", unix))]
    pub(super) fn of_runtime(threads: &[ThreadId], entered: Entered) -> Self {
        Self { threads: threads.into(), ends: false, entered: Some(entered) }
    }

    fn is_on(&self, thread: ThreadId) -> bool {
        self.threads.contains(&thread)
    }

    /// Runs code on one of the threads.
    fn run<O>(&self, thread: ThreadId, run: impl FnOnce() -> O) -> O {
        thread.run(|| sockets::within(self.entered.as_ref(), run))
    }
}

/// Tasks that were woken and have not run since.
type Woken = Arc<Mutex<Vec<Arc<TaskWaker>>>>;

struct TaskWaker {
    task: u64,
    home: Home,
    /// Whether it is among `woken`. Locked under its lock.
    is_woken: Mutex<bool>,
    woken: Woken,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A simulation has one thread, and wakers must be `Send` all the same.
        let mut woken = lock(&self.woken);
        if !mem::replace(&mut *lock(&self.is_woken), true) {
            woken.push(Arc::clone(self));
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

/// What is known of a simulated thread.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Until when it is or was stalled, in nanoseconds; `None` if it never was.
    stalled_until: Option<u64>,
    /// How many tasks it has that run on no other thread.
    tasks: u32,
    /// Whether its tasks run in the order in which they became ready, as those of a runtime with
    /// one thread do.
    is_ordered: bool,
}

#[derive(Default)]
struct Threads {
    known: Vec<Known>,
    /// Those whose stall may not be over.
    stalled: Vec<usize>,
}

impl Threads {
    fn is_stalled(&self, thread: ThreadId, now: u64) -> bool {
        self.known[thread.0].stalled_until.is_some_and(|until| until > now)
    }

    /// How many threads of a home run.
    fn running(&self, home: &Home, now: u64) -> usize {
        if self.stalled.is_empty() {
            return home.threads.len();
        }
        home.threads.iter().filter(|thread| !self.is_stalled(**thread, now)).count()
    }

    /// Forgets the stalls that are over.
    fn forget_over(&mut self, now: u64) {
        let known = &self.known;
        self.stalled.retain(|thread| known[*thread].stalled_until.is_some_and(|until| until > now));
    }
}

struct Inner {
    clock: ManualClock,
    /// What reads the clock.
    reading: Clock,
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
    threads: RefCell<Threads>,
    /// The runtimes of one thread each, by their threads.
    reactors: RefCell<Vec<(ThreadId, Entered)>>,
}

/// The executor. Clones are handles of the same one.
#[derive(Clone)]
pub(super) struct Executor(Rc<Inner>);

impl Executor {
    pub(super) fn new(clock: ManualClock, rng: Rng) -> Self {
        let reading = clock.clock();
        Self(Rc::new(Inner {
            begun: Cell::new(reading.nanos()),
            clock,
            reading,
            rng: RefCell::new(rng),
            woken: Woken::default(),
            tasks: RefCell::default(),
            next: Cell::new(0),
            steps: Cell::new(0),
            alarms: RefCell::default(),
            threads: RefCell::default(),
            reactors: RefCell::default(),
        }))
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.reading
    }

    /// What the clock showed when the simulation began, in nanoseconds.
    #[cfg(all(feature = "tokio", unix))]
    pub(super) fn begun(&self) -> u64 {
        self.0.begun.get()
    }

    /// Nanoseconds since the simulation began.
    pub(super) fn nanos(&self) -> u64 {
        self.0.reading.nanos() - self.0.begun.get()
    }

    /// The simulation begins now.
    pub(super) fn begin(&self) {
        self.0.begun.set(self.0.reading.nanos());
    }

    pub(super) fn fork_rng(&self) -> Rng {
        self.0.rng.borrow_mut().fork()
    }

    pub(super) fn add_thread(&self) -> ThreadId {
        let known = &mut self.0.threads.borrow_mut().known;
        known.push(Known::default());
        ThreadId(known.len() - 1)
    }

    /// Starts a task on a thread. It runs in a later step. Returns its number.
    pub(super) fn spawn(&self, thread: ThreadId, future: LocalFuture) -> u64 {
        self.spawn_at(&Home::of_thread(thread), future)
    }

    /// Starts a task. It runs in a later step. Returns its number.
    pub(super) fn spawn_at(&self, home: &Home, future: LocalFuture) -> u64 {
        let task = self.next_number();
        if let [thread] = *home.threads {
            self.0.threads.borrow_mut().known[thread.0].tasks += 1;
        }
        let (home, woken) = (home.clone(), Arc::clone(&self.0.woken));
        let waker = Arc::new(TaskWaker { task, home, is_woken: Mutex::new(false), woken });
        waker.wake_by_ref();
        self.0.tasks.borrow_mut().insert(task, Task { future: Some(future), waker });
        task
    }

    /// Drops the tasks of a thread, in the order in which they were started.
    pub(super) fn kill(&self, thread: ThreadId) {
        let killed: Vec<_> = {
            let mut tasks = self.0.tasks.borrow_mut();
            let is_on = |task: &Task| task.waker.home.is_on(thread);
            let killed = tasks.iter().filter(|(_, task)| is_on(task)).map(|(id, _)| *id);
            let killed: Vec<_> = killed.collect();
            killed.into_iter().filter_map(|id| Some((id, tasks.remove(&id)?))).collect()
        };
        for (_, task) in killed {
            self.count_ended(&task.waker.home);
            let home = task.waker.home.clone();
            home.run(thread, || drop(task));
        }
        thread.run(|| end_thread(thread.number()));
    }

    /// Lets no task of a thread run for this long.
    pub(super) fn stall(&self, thread: ThreadId, stall: Duration) {
        let now = self.nanos();
        let until = Some(now.saturating_add(saturating_nanos(stall)));
        let mut threads = self.0.threads.borrow_mut();
        threads.forget_over(now);
        let stalled_until = &mut threads.known[thread.0].stalled_until;
        *stalled_until = until.max(*stalled_until);
        if !threads.stalled.contains(&thread.0) {
            threads.stalled.push(thread.0);
        }
    }

    /// Until when the thread is or was stalled; `None` if it never was.
    pub(super) fn stalled_until(&self, thread: ThreadId) -> Option<u64> {
        self.0.threads.borrow().known[thread.0].stalled_until
    }

    pub(super) fn is_stalled(&self, thread: ThreadId) -> bool {
        self.0.threads.borrow().is_stalled(thread, self.nanos())
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
        lock(&self.0.woken).iter().any(|waker| waker.home.is_on(thread))
    }

    #[cfg(all(feature = "tokio", unix))]
    pub(super) fn add_reactor(&self, thread: ThreadId, entered: Entered) {
        self.0.threads.borrow_mut().known[thread.0].is_ordered = true;
        self.0.reactors.borrow_mut().push((thread, entered));
    }

    /// Takes one look at the sockets of a thread's runtimes. False if there is no runtime.
    pub(super) fn look(&self, thread: ThreadId) -> bool {
        for (_, entered) in self.0.reactors.borrow().iter().filter(|(on, _)| *on == thread) {
            entered.hand_out();
        }
        self.0.threads.borrow().known[thread.0].is_ordered
    }

    /// Hands out all that the sockets of a thread's runtimes hold.
    pub(super) fn hand_out_all(&self, thread: ThreadId) {
        for (_, entered) in self.0.reactors.borrow().iter().filter(|(on, _)| *on == thread) {
            entered.hand_out_all();
        }
    }

    /// Wakes each task of a runtime for which `picks` returns true.
    #[cfg(all(feature = "tokio", unix))]
    pub(super) fn wake_some(&self, home: &Home, mut picks: impl FnMut() -> bool) {
        let tasks = self.0.tasks.borrow();
        let of_home =
            tasks.values().filter(|task| Arc::ptr_eq(&task.waker.home.threads, &home.threads));
        of_home.filter(|_| picks()).for_each(|task| task.waker.wake_by_ref());
    }

    /// Runs one task that was woken, picked by the seed. If no task can run, moves the clock to the
    /// next alarm or to the end of a stall, unless that is later than `limit`.
    pub(super) fn step(&self, limit: u64) -> Stepped {
        if let Some((waker, thread)) = self.pick() {
            let stepped = Stepped::Ran(thread);
            self.run(waker, thread);
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
        let threads = self.0.threads.borrow();
        let woken = lock(&self.0.woken);
        if woken.iter().any(|waker| threads.running(&waker.home, now) > 0) {
            return Some(now);
        }
        drop((threads, woken));
        self.next_change()
    }

    /// When the next alarm goes off or the next stall ends.
    fn next_change(&self) -> Option<u64> {
        let now = self.nanos();
        let alarm = self.0.alarms.borrow().keys().next().map(|(at, _)| *at);
        let mut threads = self.0.threads.borrow_mut();
        threads.forget_over(now);
        let ends = threads.stalled.iter().filter_map(|thread| threads.known[*thread].stalled_until);
        alarm.into_iter().chain(ends).min().filter(|at| *at <= END)
    }

    fn next_number(&self) -> u64 {
        self.0.next.replace(self.0.next.get() + 1)
    }

    /// A task that was woken, and the thread on which it runs.
    fn pick(&self) -> Option<(Arc<TaskWaker>, ThreadId)> {
        let now = self.nanos();
        let mut threads = self.0.threads.borrow_mut();
        threads.forget_over(now);
        let mut woken = lock(&self.0.woken);
        let mut rng = self.0.rng.borrow_mut();
        let index = if threads.stalled.is_empty() {
            (!woken.is_empty()).then(|| rng.usize(..woken.len()))?
        } else {
            let can_run = |waker: &Arc<TaskWaker>| threads.running(&waker.home, now) > 0;
            let count = woken.iter().filter(|waker| can_run(waker)).count();
            let picked = (count > 0).then(|| rng.usize(..count))?;
            let runnable = woken.iter().enumerate().filter(|(_, waker)| can_run(waker));
            runnable.into_iter().nth(picked)?.0
        };
        let thread = woken[index].home.threads[0];
        let is_ordered = threads.known[thread.0].is_ordered;
        let first = || woken.iter().position(|waker| waker.home.is_on(thread));
        let index = if is_ordered { first()? } else { index };
        let waker = woken.remove(index);
        *lock(&waker.is_woken) = false;
        let running = threads.running(&waker.home, now);
        let place = if running > 1 { rng.usize(..running) } else { 0 };
        let mut on = waker.home.threads.iter().filter(|thread| !threads.is_stalled(**thread, now));
        let thread = *on.nth(place)?;
        Some((waker, thread))
    }

    /// Runs a task that was woken. What it calls may let others run beside it: [`preempt`].
    fn run(&self, waker: Arc<TaskWaker>, thread: ThreadId) {
        let home = &waker.home;
        let running = || (self.clone(), Arc::clone(&home.threads), thread);
        let lets_others_run = home.entered.as_ref().is_some_and(|worker| worker.reads_long());
        RUNNING.set(lets_others_run.then(running));
        self.run_alone(waker, thread);
        RUNNING.take();
    }

    fn run_alone(&self, waker: Arc<TaskWaker>, thread: ThreadId) {
        let number = waker.task;
        let future = self.0.tasks.borrow_mut().get_mut(&number).and_then(|task| task.future.take());
        // A task that is done or killed may be woken by an old waker.
        let Some(mut future) = future else { return };
        self.0.steps.set(self.0.steps.get() + 1);
        let home = waker.home.clone();
        let waker = Waker::from(waker);
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let is_pending = home.run(thread, &mut poll);
        let mut ended = Some(future);
        let mut is_removed = false;
        {
            let mut tasks = self.0.tasks.borrow_mut();
            // The task may have killed its own thread.
            if let Some(task) = tasks.get_mut(&number) {
                if is_pending {
                    task.future = ended.take();
                } else {
                    tasks.remove(&number);
                    is_removed = true;
                }
            }
        }
        home.run(thread, || drop(ended));
        if is_removed {
            self.count_ended(&home);
            self.end_if_idle(&home);
        }
    }

    /// Runs one task of a runtime on a thread beside `busy`. False if none can run there.
    #[cfg(all(feature = "tokio", unix))]
    fn run_beside(&self, threads: &Arc<[ThreadId]>, busy: ThreadId) -> bool {
        let now = self.nanos();
        let is_free = |thread: &&ThreadId| {
            **thread != busy && !self.0.threads.borrow().is_stalled(**thread, now)
        };
        let free: Vec<_> = threads.iter().filter(is_free).collect();
        let picked = {
            let (mut woken, tasks) = (lock(&self.0.woken), self.0.tasks.borrow());
            // The task of the busy thread has no future here.
            let can_run = |waker: &Arc<TaskWaker>| {
                let task = tasks.get(&waker.task).filter(|task| task.future.is_some());
                task.is_some() && Arc::ptr_eq(&waker.home.threads, threads)
            };
            let index = woken.iter().position(can_run).filter(|_| !free.is_empty());
            index.map(|index| woken.remove(index))
        };
        let Some(waker) = picked else { return false };
        *lock(&waker.is_woken) = false;
        let thread = free[self.0.rng.borrow_mut().usize(..free.len())];
        self.run_alone(waker, *thread);
        true
    }

    /// A task has ended.
    fn count_ended(&self, home: &Home) {
        if let [thread] = *home.threads {
            self.0.threads.borrow_mut().known[thread.0].tasks -= 1;
        }
    }

    /// Ends a thread that has no task any more, as the end of its last task does.
    fn end_if_idle(&self, home: &Home) {
        if let [thread] = *home.threads {
            if home.ends && self.0.threads.borrow().known[thread.0].tasks == 0 {
                thread.run(|| end_thread(thread.number()));
            }
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

    fn threads(&self) -> usize {
        self.0.threads.borrow().known.len()
    }

    /// Drops all tasks, those of the last threads first, so that the test's own tasks end before
    /// the shards.
    pub(super) fn kill_all(&self) {
        for thread in (0..self.threads()).rev() {
            self.kill(ThreadId(thread));
        }
        self.0.alarms.take();
        self.0.reactors.take();
        lock(&self.0.woken).clear();
    }
}

/// A runtime with several threads, and the one that polls a task of it.
type Running = (Executor, Arc<[ThreadId]>, ThreadId);

thread_local! {
    /// `None` while no such task is polled, and while others run beside it.
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// Called where the thread of a task may lose its processor: at times, other threads of its runtime
/// run some tasks meanwhile. Each read of a [`Stream`](super::net::Stream) is such a place, if the
/// runtime [reads long](super::net::Runtime::reads_long), and code that is tested may have others.
#[cfg(all(feature = "tokio", unix))]
pub fn preempt() {
    let Some((executor, threads, busy)) = RUNNING.take() else { return };
    let count = executor.0.rng.borrow_mut().u8(..32);
    // None in most calls.
    let mut left = if count < 8 { count } else { 0 };
    while left > 0 && executor.run_beside(&threads, busy) {
        left -= 1;
    }
    RUNNING.set(Some((executor, threads, busy)));
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
