//! Simulated runtimes: workers that run tasks, and a driver that looks at the sockets.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::mem;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::super::executor::{Alarm, Executor, Home, ThreadId};
use super::super::join::with_output;
use super::kernel::{Kernel, Looked, Reactor, World};
use crate::clock::saturating_nanos;
use crate::link::thread_timers::Relay;
use crate::pass::looks::Written;
use crate::pass::{self, Wait, simulated};

/// A runtime, as its threads have it.
pub(in crate::sim) struct Worker {
    world: Arc<World>,
    /// The place of its reactor.
    pub(super) index: usize,
    number: u64,
    has_workers: bool,
}

impl Worker {
    /// Takes one look.
    pub(in crate::sim) fn hand_out(&self) {
        self.world.call(|kernel| kernel.hand_out(self.index));
    }

    /// Whether other workers may run tasks while one is in a read.
    pub(in crate::sim) fn reads_long(&self) -> bool {
        self.has_workers && self.reactor(|reactor| reactor.reads_long)
    }

    fn reactor<O>(&self, call: impl FnOnce(&mut Reactor) -> O) -> O {
        self.world.call(|kernel| call(kernel.reactor(self.index)))
    }

    /// Takes looks until the list of the kernel is empty.
    pub(in crate::sim) fn hand_out_all(&self) {
        while self.world.call(|kernel| kernel.hand_out(self.index)) {}
    }
}

impl pass::Runtime for Worker {
    fn number(&self) -> u64 {
        self.number
    }

    fn has_budget(&self) -> bool {
        BUDGET.get() > 0
    }

    fn ask(&self, wait: Arc<Wait>) {
        let asked = Written { waits: vec![wait], ..Written::default() };
        self.world.call(|kernel| kernel.ask(self.index, asked));
    }

    fn is_proven(&self, looks: u64, time: u64) -> bool {
        self.has_workers && self.reactor(|reactor| reactor.proof).is_of(looks, time)
    }

    fn relay(&self) -> Option<Arc<dyn Relay<Waker>>> {
        let (world, index) = (Arc::clone(&self.world), self.index);
        self.has_workers.then(|| Arc::new(Relayed { world, index }) as _)
    }
}

/// Wakes the futures that timers of a runtime's threads guard, after a look.
struct Relayed {
    world: Arc<World>,
    index: usize,
}

debug_fields!([] Relayed, |it| index: it.index);

impl Relay<Waker> for Relayed {
    fn take_over(&self, due: Vec<Waker>, until: u64) -> Result<(), Vec<Waker>> {
        let asked = Written { waits: Vec::new(), due, until };
        self.world.call(|kernel| kernel.ask(self.index, asked));
        Ok(())
    }
}

thread_local! {
    /// The runtime whose task is polled; `None` if the task has none.
    static HERE: RefCell<Option<Arc<Worker>>> = const { RefCell::new(None) };
    /// How much the task that is polled may still do.
    static BUDGET: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Runs code as a task of a runtime, or of none.
pub(in crate::sim) fn within<O>(worker: Option<&Arc<Worker>>, run: impl FnOnce() -> O) -> O {
    struct Restore(Option<Arc<Worker>>, u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            BUDGET.set(self.1);
            let before = self.0.take();
            drop(HERE.with(|here| mem::replace(&mut *here.borrow_mut(), before)));
        }
    }
    let before = HERE.with(|here| mem::replace(&mut *here.borrow_mut(), worker.cloned()));
    let budget = worker.map_or(u32::MAX, |worker| worker.reactor(|reactor| reactor.budget));
    let _restore = Restore(before, BUDGET.replace(budget));
    let host = worker.map(|worker| Arc::clone(worker) as Arc<dyn pass::Runtime>);
    simulated::within(host, run)
}

/// The place of the reactor of the runtime that runs here, in this network.
pub(super) fn here(world: &Arc<World>) -> Option<usize> {
    HERE.with(|here| {
        let here = here.borrow();
        here.as_ref().filter(|worker| Arc::ptr_eq(&worker.world, world)).map(|it| it.index)
    })
}

/// Takes one of the budget; false if the task has used it up.
pub(super) fn takes_budget() -> bool {
    let left = BUDGET.get();
    BUDGET.set(left.saturating_sub(1));
    left > 0
}

/// Gives back what a read or a write that waits has taken.
pub(super) fn give_back() {
    BUDGET.set(BUDGET.get().saturating_add(1));
}

fn next_number() -> u64 {
    static LAST: Mutex<u64> = Mutex::new(0);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last += 1;
    *last
}

/// A runtime of a simulation, as tokio's is: its tasks run on several threads, and its driver looks
/// at the sockets. Made by [`Net::runtime`](super::Net::runtime) and
/// [`Simulation::runtime_of`](super::super::Simulation::runtime_of).
///
/// A socket belongs to the runtime whose task has accepted or connected it. What comes to it lies
/// in the kernel until the driver looks. Until then the socket says from memory that it is not
/// ready.
///
/// A clone is the same runtime. See the [module](super) for an example.
#[derive(Clone)]
pub struct Runtime {
    executor: Executor,
    home: Home,
    threads: Rc<[ThreadId]>,
    worker: Arc<Worker>,
}

impl Runtime {
    pub(super) fn new(executor: &Executor, world: &Arc<World>, threads: Rc<[ThreadId]>) -> Self {
        let index = world.call(Kernel::add_reactor);
        let worker = Arc::new(Worker {
            world: Arc::clone(world),
            index,
            number: next_number(),
            has_workers: threads.len() > 1,
        });
        let home = Home::of_runtime(&threads, Arc::clone(&worker));
        if let [thread] = *threads {
            executor.add_reactor(thread, Arc::clone(&worker));
        }
        let runtime = Self { executor: executor.clone(), home, threads, worker };
        let driver = runtime.clone();
        // The driver's task ends with the simulation.
        let spawns = {
            let (executor, home) = (executor.clone(), runtime.home.clone());
            simulated::Spawns::new(runtime.worker.number, move |task| {
                executor.spawn_at(&home, task);
            })
        };
        executor.spawn_at(
            &runtime.home,
            Box::pin(async move {
                let _spawns = spawns;
                driver.drive().await;
            }),
        );
        runtime
    }

    /// Looks at the sockets when there is something, unless the driver is held.
    async fn drive(&self) {
        let mut alarm = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let looked = self.worker.world.call(|it| it.look(self.worker.index, waker));
            match looked {
                Looked::Nothing => {}
                Looked::More => cx.waker().wake_by_ref(),
                Looked::Held(until) => {
                    if alarm.insert(Alarm::new(&self.executor, until)).poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Starts a future as a task of the runtime, each poll of which is on any of the runtime's
    /// threads. Runs it as [`Simulation::spawn`](super::super::Simulation::spawn) does, and returns
    /// the same.
    ///
    /// # Panics
    ///
    /// As the future panics that `Simulation::spawn` returns.
    pub fn spawn<F: Future + 'static>(
        &self,
        future: F,
    ) -> impl Future<Output = F::Output> + Unpin + use<F> {
        let (task, output) = with_output(future);
        self.executor.spawn_at(&self.home, Box::pin(task));
        output
    }

    /// Wakes each task with a probability of one half, as other reasons do in a server: a task is
    /// polled whose socket and whose timer have nothing for it.
    pub fn wake_some(&self) {
        let mut rng = self.executor.fork_rng();
        self.executor.wake_some(&self.home, || rng.bool());
    }
}

/// Settings.
///
/// ```
/// use corewheel::sim::net::{Net, Runtime};
///
/// fn busy(net: &Net) -> Runtime {
///     net.runtime(3).events_max(2).budget(8)
/// }
/// ```
impl Runtime {
    /// How many events one look at the sockets takes, at least 1; by default 1,024, as in tokio.
    #[must_use]
    pub fn events_max(self, events: usize) -> Self {
        self.worker.reactor(|reactor| reactor.events_max = events.max(1));
        self
    }

    /// How many reads and writes a task may do in one poll, at least 1; by default 128, as in
    /// tokio. Then its sockets say that they are not ready, and wake it.
    #[must_use]
    pub fn budget(self, calls: u32) -> Self {
        self.worker.reactor(|reactor| reactor.budget = calls.max(1));
        self
    }

    /// Whether other workers may run tasks while one is in a read, which they may not by default.
    /// All of them are one thread of the test. So a server whose tasks read under a lock, as the
    /// two halves of `tokio::io::split` do, would wait for itself.
    #[must_use]
    pub fn reads_long(self, reads_long: bool) -> Self {
        self.worker.reactor(|reactor| reactor.reads_long = reads_long);
        self
    }
}

/// Faults.
impl Runtime {
    /// No look at the sockets is taken for this long, as if another worker held the driver. Tasks
    /// go on, and so do timers. A runtime on a shard's thread has no other worker: there the shard
    /// looks before its timers come, and when it is late, all the same.
    pub fn hold_driver(&self, time: Duration) {
        let until = self.executor.nanos().saturating_add(saturating_nanos(time));
        self.worker.world.call(|kernel| kernel.hold(self.worker.index, until));
    }

    /// No thread of the runtime runs for this long: neither its tasks nor its driver. Of a runtime
    /// on a shard's thread, the shard does not run either.
    pub fn stall(&self, time: Duration) {
        self.threads.iter().for_each(|thread| self.executor.stall(*thread, time));
    }

    /// One of the runtime's threads, chosen by the seed, does not run for this long. The others do.
    pub fn stall_worker(&self, time: Duration) {
        let mut rng = self.executor.fork_rng();
        self.executor.stall(self.threads[rng.usize(..self.threads.len())], time);
    }

    /// When the last stall of all threads, or the last hold of the driver, ends or has ended, from
    /// the start of the simulation; zero if there was none.
    pub fn held_until(&self) -> Duration {
        let of_thread = |thread: &ThreadId| self.executor.stalled_until(*thread).unwrap_or(0);
        let stalled = self.threads.iter().map(of_thread).min().unwrap_or(0);
        let held = self.worker.reactor(|reactor| reactor.held_until);
        Duration::from_nanos(stalled.max(held))
    }
}

debug_fields!([] Runtime, |it| threads: it.threads.len());
