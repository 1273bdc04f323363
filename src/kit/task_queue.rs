//! Timers whose tasks run in another task queue of their glommio executor.
//!
//! The driver of a shard has a queue of its own that goes before others, so that timers are in
//! time. What they start should often not: work in the background belongs into a queue with few
//! shares. [`OnTaskQueue`] moves a handler there, `schedule_fn_into` a single callback.
//!
//! What has been handed over has fired: it cannot be cancelled any more, and neither its wait nor
//! the time that it takes there is counted as late or too long. What waits when the shard is shut
//! down is run then; it is dropped where the shard dies without a shutdown.
//!
//! Between two of them the shard's own queue goes first if a timer is due, so that one is late by
//! what one task takes, however many wait.
//!
//! Cost: a value goes through a queue of bounded length, and one task is spawned for all that wait
//! together. A callback costs a box and a task.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use glommio::TaskQueueHandle;
use slab::Slab;

use crate::driver::glommio::is_executor_here;
use crate::face::callback::{Fired, Handler, LocalCall};
use crate::face::classed::Classed;
use crate::face::timers::Timers;
use crate::kit::sink::{SinkError, SinkPolicy};
use crate::shard::hooks::Part;
use crate::stats::ShardCounts;
use crate::values::capacity::check;
use crate::values::class::ClassId;
use crate::values::contain::drop_each;
use crate::values::error::{ConfigError, ScheduleError};
use crate::values::handle::TimerHandle;

/// A [`Handler`] that runs another one in a task queue of the shard's glommio executor, as that
/// queue has its turns.
///
/// At most `waiting_max` timers wait there; what becomes of more is the policy, as for a sink, and
/// counted as there. One at a time is run, in the order in which they fired. What a
/// handler is told of lateness does not include the wait.
///
/// On another runtime than glommio, and in a queue that is gone, everything is refused as by a sink
/// that is closed.
///
/// ```no_run
/// use std::time::Duration;
/// use corewheel::{Fired, OnTaskQueue, Runtime, SinkPolicy, TimerService, Timers};
/// use glommio::{Latency, Shares};
///
/// let service = TimerService::builder().runtime(Runtime::Glommio).start_with(|_| {
///     let background = || {
///         let shares = Shares::Static(10);
///         glommio::executor().create_task_queue(shares, Latency::NotImportant, "background")
///     };
///     let compact = |fired: Fired<u64>, _: &Timers<u64>| println!("compacting {}", fired.task);
///     let policy = SinkPolicy::Retry(Duration::from_millis(10));
///     OnTaskQueue::new(background, 1_024, policy, compact).expect("1,024 is in range")
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OnTaskQueue<T: 'static, H> {
    queue: Queue,
    policy: SinkPolicy<T>,
    shared: Rc<Shared<T, H>>,
}

enum Queue {
    /// Not made yet.
    Unmade(Option<Box<dyn FnOnce() -> TaskQueueHandle>>),
    Made(TaskQueueHandle),
}

/// What the handler and its task share, on one thread.
struct Shared<T: 'static, H> {
    /// What has fired, with the class of its timer.
    waiting: RefCell<VecDeque<(Fired<T>, ClassId)>>,
    waiting_max: usize,
    /// Taken out while it runs.
    handler: Cell<Option<H>>,
    /// A task is there that will run what waits.
    is_tended: Cell<bool>,
}

impl<T: Send + 'static, H: Handler<T>> OnTaskQueue<T, H> {
    /// Runs `handler` in the task queue that `queue` returns. That is called once, in the executor,
    /// when the first timer fires; for a queue that is there already it is `move || queue`.
    ///
    /// At most `waiting_max` timers wait, 1 to 2³⁰; for others see the policy. Memory for them is
    /// taken as it is needed, and kept.
    ///
    /// # Errors
    ///
    /// `waiting_max` is out of its range.
    pub fn new(
        queue: impl FnOnce() -> TaskQueueHandle + 'static,
        waiting_max: u32,
        policy: SinkPolicy<T>,
        handler: H,
    ) -> Result<Self, ConfigError> {
        let shared = Shared {
            waiting: RefCell::default(),
            waiting_max: check("waiting_max", waiting_max)?,
            handler: Cell::new(Some(handler)),
            is_tended: Cell::new(false),
        };
        let queue = Queue::Unmade(Some(Box::new(queue)));
        Ok(Self { queue, policy, shared: Rc::new(shared) })
    }

    /// The queue, if there is an executor of that kind.
    fn queue(&mut self) -> Option<TaskQueueHandle> {
        if !is_executor_here() {
            return None;
        }
        if let Queue::Unmade(make) = &mut self.queue {
            self.queue = Queue::Made(make.take()?());
        }
        match self.queue {
            Queue::Made(queue) => Some(queue),
            Queue::Unmade(_) => None,
        }
    }

    /// Puts a timer where it waits. `None` if it is accepted.
    fn push(&mut self, fired: Fired<T>, timers: &Timers<T>) -> Option<SinkError<T>> {
        let Some(queue) = self.queue() else { return Some(SinkError::Closed(fired.task)) };
        let shared = &self.shared;
        if shared.waiting.borrow().len() >= shared.waiting_max {
            return Some(SinkError::Full(fired.task));
        }
        shared.waiting.borrow_mut().push_back((fired, timers.core().class_delivered()));
        if shared.is_tended.replace(true) {
            return None;
        }
        let task = tend(Rc::clone(shared), timers.clone());
        if let Ok(task) = glommio::spawn_local_into(task, queue) {
            drop(task.detach());
            return None;
        }
        // Nobody tends the queue, so it holds no more than this one.
        shared.is_tended.set(false);
        let fired = shared.waiting.borrow_mut().pop_back();
        fired.map(|(fired, _)| SinkError::Closed(fired.task))
    }
}

impl<T: Send + 'static, H: Handler<T>> Shared<T, H> {
    /// Runs one that waits. False if there is none.
    fn run_one(&self, timers: &Timers<T>) -> bool {
        let next = self.waiting.borrow_mut().pop_front();
        let Some((fired, class)) = next else { return false };
        self.run(class, timers, |handler| handler.expired(fired, timers));
        true
    }

    fn run(&self, class: ClassId, timers: &Timers<T>, run: impl FnOnce(&mut H)) {
        // It is there: the thread runs one at a time, and each puts it back.
        let Some(mut handler) = self.handler.take() else { return };
        run_later(timers, class, || run(&mut handler));
        self.handler.set(Some(handler));
    }
}

/// Runs what waits, and ends when nothing does.
async fn tend<T: Send + 'static, H: Handler<T>>(shared: Rc<Shared<T, H>>, timers: Timers<T>) {
    while shared.run_one(&timers) {
        step_aside(&timers).await;
    }
    shared.is_tended.set(false);
}

/// Lets other queues run if they should, that of the shard first of all: while a task is ready to
/// run, glommio looks at its timers only once in a preempt timer's period.
async fn step_aside<T: Send + 'static>(timers: &Timers<T>) {
    if timers.core().is_wanted() {
        glommio::executor().yield_task_queue_now().await;
    } else {
        glommio::executor().yield_if_needed().await;
    }
}

impl<T: Send + 'static, H: Handler<T>> Handler<T> for OnTaskQueue<T, H> {
    fn expired(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        if timers.core().is_closed() {
            // A shutdown that fires what is pending: nobody may be there to run it later.
            let class = timers.core().class_delivered();
            while self.shared.run_one(timers) {}
            timers.core().count(ShardCounts::note_sent);
            return self.shared.run(class, timers, |handler| handler.expired(fired, timers));
        }
        match self.push(fired, timers) {
            None => timers.core().count(ShardCounts::note_sent),
            Some(refused) => self.policy.settle(refused, timers),
        }
    }

    fn closing(&mut self, timers: &Timers<T>) {
        while self.shared.run_one(timers) {}
        self.shared.run(ClassId::NONE, timers, |handler| handler.closing(timers));
        // The task in the queue may be kept for ever by the executor, with what it shares.
        timers.core().drop_each(self.shared.handler.take());
    }
}

impl<T, H> Drop for OnTaskQueue<T, H> {
    fn drop(&mut self) {
        // Apart from each other, as each may hold something that panics when it is dropped.
        drop_each([std::mem::replace(&mut self.policy, SinkPolicy::Drop)]);
        drop_each([std::mem::replace(&mut self.queue, Queue::Unmade(None))]);
    }
}

impl<T, H> Drop for Shared<T, H> {
    fn drop(&mut self) {
        drop_each(self.waiting.take());
        drop_each(self.handler.take());
    }
}

impl<T, H> fmt::Debug for OnTaskQueue<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnTaskQueue")
            .field("waiting", &self.shared.waiting.borrow().len())
            .field("waiting_max", &self.shared.waiting_max)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Timers<T> {
    /// Schedules a callback, to be run in a task queue of this glommio executor after `delay`. It
    /// is boxed, and costs a task when its time has come.
    ///
    /// Until then it can be cancelled like any other. Where the queue is gone, or the shard is
    /// being shut down, the callback is run by the shard itself; also where as many wait in queues
    /// already as the shard can have timers.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with a callback that starts the task.
    pub fn schedule_fn_into(
        &self,
        queue: TaskQueueHandle,
        delay: Duration,
        call: impl FnOnce(&Self) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let deadline = self.core().deadline_after(delay);
        self.core().schedule_call(ClassId::NONE, deadline, in_queue(queue, call))
    }
}

/// A callback that runs another one in a task queue.
fn in_queue<T: Send + 'static>(
    queue: TaskQueueHandle,
    call: impl FnOnce(&Timers<T>) + 'static,
) -> LocalCall<T> {
    Box::new(move |timers| {
        if !is_executor_here() {
            return call(timers);
        }
        let deferred = Deferred::of(timers);
        let index = match deferred.insert(Box::new(call)) {
            Ok(index) => index,
            Err(call) => return call(timers),
        };
        let there = Rc::clone(&deferred);
        let task = async move {
            there.run(index);
            step_aside(&there.timers).await;
        };
        match glommio::spawn_local_into(task, queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => {
                tracing::warn!(%error, "a timer's task queue is gone; the shard runs the task");
                deferred.run(index);
            }
        }
    })
}

/// Callbacks that have fired and wait for their task queue. Those for which no task has come when
/// the shard is shut down are run then; where the shard dies without a shutdown they are dropped.
struct Deferred<T: Send + 'static> {
    timers: Timers<T>,
    /// Each with its number in the order in which they were deferred.
    calls: RefCell<Slab<(u64, LocalCall<T>)>>,
    count: Cell<u64>,
}

impl<T: Send + 'static> Deferred<T> {
    fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.core().parts().get_or_register(|_| Self {
            timers: timers.clone(),
            calls: RefCell::default(),
            count: Cell::default(),
        })
    }

    /// Keeps a callback. It comes back if as many wait as the shard can have timers, or if the
    /// shard is closed, so that no task may come for it any more.
    fn insert(&self, call: LocalCall<T>) -> Result<usize, LocalCall<T>> {
        let core = self.timers.core();
        let mut calls = self.calls.borrow_mut();
        let capacity = core.directory().settings.shard.capacity as usize;
        if core.is_closed() || calls.len() >= capacity {
            return Err(call);
        }
        let number = self.count.get();
        self.count.set(number + 1);
        Ok(calls.insert((number, call)))
    }

    /// Runs a callback, unless the end of the shard was there first.
    fn run(&self, index: usize) {
        let call = self.calls.borrow_mut().try_remove(index);
        if let Some((_, call)) = call {
            run_later(&self.timers, ClassId::NONE, || call(&self.timers));
        }
    }

    /// All that are left, in the order in which they were deferred.
    fn take_all(&self) -> Vec<LocalCall<T>> {
        let mut calls: Vec<_> = self.calls.borrow_mut().drain().collect();
        calls.sort_unstable_by_key(|(number, _)| *number);
        calls.into_iter().map(|(_, call)| call).collect()
    }
}

impl<T: Send + 'static> Part for Deferred<T> {
    fn closing(&self) {
        for call in self.take_all() {
            run_later(&self.timers, ClassId::NONE, || call(&self.timers));
        }
    }

    fn closed(&self, _is_dead: bool) {
        for call in self.take_all() {
            self.timers.core().contain(|| drop(call));
        }
    }
}

/// Runs what was due before, for a timer of this class; a panic is counted and published.
fn run_later<T: Send + 'static>(timers: &Timers<T>, class: ClassId, run: impl FnOnce()) {
    let core = timers.core();
    core.deliver_as(class);
    let calm = core.contain(run);
    core.deliver_as(ClassId::NONE);
    if !calm {
        // The shard's next turn may be far off.
        core.publish();
    }
}

impl<T: Send + 'static> Classed<'_, T> {
    /// As [`Timers::schedule_fn_into`].
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with a callback that starts the task.
    pub fn schedule_fn_into(
        &self,
        queue: TaskQueueHandle,
        delay: Duration,
        call: impl FnOnce(&Timers<T>) + 'static,
    ) -> Result<TimerHandle, ScheduleError<LocalCall<T>>> {
        let core = self.timers().core();
        core.schedule_call(self.id(), core.deadline_after(delay), in_queue(queue, call))
    }
}
