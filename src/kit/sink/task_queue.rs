//! Handlers and callbacks that run in another task queue of their glommio executor.
//!
//! The driver of a shard has a task queue of its own that runs before others, so that timers fire
//! in time. Work in the background belongs into a queue with few shares: [`on_task_queue`] runs a
//! handler there, `schedule_fn_into` a single callback.
//!
//! A timer that waits for its queue has fired: it cannot be cancelled any more, and neither its
//! wait nor the time that it takes there counts as late or as overrun. Timers that wait when the
//! shard is shut down are run then; they are dropped where the shard ends without a shutdown.
//!
//! Between two of them the shard's own queue runs first if a timer is due, so a timer is late by
//! the length of one task, however many wait.
//!
//! Invariants: a shard keeps a [`Deferred`] that knows every handler and callback that waits, since
//! its executor may keep the tasks of a queue for ever.
//!
//! Cost: a value goes through a queue of bounded length, and one task is spawned for all values
//! that wait together. A callback costs a box and a task.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use glommio::TaskQueueHandle;
use slab::Slab;

use super::SinkPolicy;
use crate::clock::when::When;
use crate::driver::glommio::is_executor_here;
use crate::face::part::Part;
use crate::face::timers::Timers;
use crate::shard::callback::{Fired, Handler, LocalCall};
use crate::stats::ShardCounts;
use crate::values::capacity::check;
use crate::values::class::ClassId;
use crate::values::contain::drop_each;
use crate::values::error::ConfigError;
use crate::values::ids::TimerId;
use crate::values::refused::{Refused, RefusedCall};

/// A [`Handler`] that runs another handler in a task queue of the shard's glommio executor.
///
/// `queue` returns the task queue. It is called once, in the executor, when the first timer fires;
/// for a queue that exists already it is `move || queue`. At most `waiting_max` timers, 1 to 2³⁰,
/// wait for the queue; `policy` says what becomes of more, which are counted as for a sink. The
/// handler is called for one timer at a time, in the order in which they fired; `lateness` does not
/// include the wait. Memory for waiting timers is allocated as it is needed, and kept.
///
/// Timers that wait when the shard is shut down are run by the shutdown, and then the handler is
/// dropped. On a runtime other than glommio, and where the queue has been removed, every value is
/// refused as by a sink that is closed.
///
/// ```no_run
/// use std::time::Duration;
/// use corewheel::sink::{SinkPolicy, on_task_queue};
/// use corewheel::{Fired, Runtime, TimerService, Timers};
/// use glommio::{Latency, Shares};
///
/// let service = TimerService::builder().runtime(Runtime::Glommio).start_with(|_| {
///     let background = || {
///         let shares = Shares::Static(10);
///         glommio::executor().create_task_queue(shares, Latency::NotImportant, "background")
///     };
///     let compact = |fired: Fired<u64>, _: &Timers<u64>| println!("compacting {}", fired.payload);
///     let policy = SinkPolicy::Retry(Duration::from_millis(10));
///     on_task_queue(background, 1_024, policy, compact).expect("1,024 is in range")
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// `waiting_max` is out of its range.
pub fn on_task_queue<T: Send + 'static>(
    queue: impl FnOnce() -> TaskQueueHandle + 'static,
    waiting_max: u32,
    policy: SinkPolicy<T>,
    handler: impl Handler<T>,
) -> Result<impl Handler<T>, ConfigError> {
    let shared = Shared {
        waiting: RefCell::default(),
        waiting_max: check("waiting_max", waiting_max)?,
        handler: Cell::new(Some(handler)),
        has_task: Cell::new(false),
    };
    let queue = Queue::Unmade(Some(Box::new(queue)));
    let mut to_queue = ToQueue { queue, policy, shared: Rc::new(shared), is_known: false };
    Ok(move |fired: Fired<T>, timers: &Timers<T>| to_queue.deliver(fired, timers))
}

struct ToQueue<T: 'static, H> {
    queue: Queue,
    policy: SinkPolicy<T>,
    shared: Rc<Shared<T, H>>,
    /// The shard knows of the handler.
    is_known: bool,
}

enum Queue {
    /// Not made yet; `None` if the closure panicked.
    Unmade(Option<Box<dyn FnOnce() -> TaskQueueHandle>>),
    Made(TaskQueueHandle),
}

/// The part of the handler that its task in the queue uses too, on one thread.
struct Shared<T: 'static, H> {
    /// Timers that have fired, with the class of each.
    waiting: RefCell<VecDeque<(Fired<T>, ClassId)>>,
    waiting_max: usize,
    /// `None` while it runs, and when the shard has ended.
    handler: Cell<Option<H>>,
    /// A task in the queue will run the timers that wait.
    has_task: Cell<bool>,
}

impl<T: Send + 'static, H: Handler<T>> ToQueue<T, H> {
    fn deliver(&mut self, fired: Fired<T>, timers: &Timers<T>) {
        if timers.core().is_closed() {
            // A shutdown fires what is pending; the executor may run no task after it.
            let class = timers.core().class_delivered();
            while self.shared.run_one(timers) {}
            timers.core().count(ShardCounts::note_sent);
            return self.shared.run(fired, class, timers);
        }
        match self.push(fired, timers) {
            None => timers.core().count(ShardCounts::note_sent),
            Some(refused) => self.policy.apply(refused, timers),
        }
    }

    /// The task queue; `None` where no glommio executor runs.
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

    /// Adds a timer to those that wait. `None` if it is accepted.
    fn push(&mut self, fired: Fired<T>, timers: &Timers<T>) -> Option<Refused<T>> {
        let Some(queue) = self.queue() else { return Some(Refused::Closed(fired.payload)) };
        let shared = &self.shared;
        if shared.waiting.borrow().len() >= shared.waiting_max {
            return Some(Refused::Full(fired.payload));
        }
        if !std::mem::replace(&mut self.is_known, true) {
            let shared: Weak<Shared<T, H>> = Rc::downgrade(shared);
            Deferred::of(timers).handlers.borrow_mut().push(shared);
        }
        shared.waiting.borrow_mut().push_back((fired, timers.core().class_delivered()));
        if shared.has_task.replace(true) {
            return None;
        }
        let task = run_waiting(Rc::clone(shared), timers.clone());
        if let Ok(task) = glommio::spawn_local_into(task, queue) {
            drop(task.detach());
            return None;
        }
        // Without a task the queue held no timer before this one.
        shared.has_task.set(false);
        let fired = shared.waiting.borrow_mut().pop_back();
        fired.map(|(fired, _)| Refused::Closed(fired.payload))
    }
}

impl<T: Send + 'static, H: Handler<T>> Shared<T, H> {
    /// Runs the handler for the first timer that waits. False if none waits.
    fn run_one(&self, timers: &Timers<T>) -> bool {
        let next = self.waiting.borrow_mut().pop_front();
        let Some((fired, class)) = next else { return false };
        self.run(fired, class, timers);
        true
    }

    fn run(&self, fired: Fired<T>, class: ClassId, timers: &Timers<T>) {
        // The thread runs it for one timer at a time, and each run puts it back.
        let Some(mut handler) = self.handler.take() else { return };
        run_later(timers, class, || handler(fired, timers));
        self.handler.set(Some(handler));
    }
}

/// A handler whose timers wait for a task queue, as its shard knows it.
trait Waiting<T: 'static> {
    /// Runs the handler for all timers that wait.
    fn run_all(&self, timers: &Timers<T>);
    /// Drops the handler and the timers that wait.
    fn clear(&self, timers: &Timers<T>);
}

impl<T: Send + 'static, H: Handler<T>> Waiting<T> for Shared<T, H> {
    fn run_all(&self, timers: &Timers<T>) {
        while self.run_one(timers) {}
    }

    fn clear(&self, timers: &Timers<T>) {
        timers.core().drop_each(self.waiting.take());
        timers.core().drop_each(self.handler.take());
    }
}

/// Runs the handler for timers that wait, and ends when none waits.
async fn run_waiting<T: Send + 'static, H: Handler<T>>(
    shared: Rc<Shared<T, H>>,
    timers: Timers<T>,
) {
    while shared.run_one(&timers) {
        step_aside(&timers).await;
    }
    shared.has_task.set(false);
}

/// Lets other queues run if they should, first of all the shard's: while a task is ready to run,
/// glommio looks at its timers only once in a period of its preempt timer.
async fn step_aside<T: Send + 'static>(timers: &Timers<T>) {
    if timers.core().wake_driver_if_due() {
        glommio::executor().yield_task_queue_now().await;
    } else {
        glommio::executor().yield_if_needed().await;
    }
}

impl<T, H> Drop for ToQueue<T, H> {
    fn drop(&mut self) {
        // Each is dropped alone, since each may hold a value that panics in `Drop`.
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

impl<T: Send + 'static> Timers<T> {
    /// Schedules a callback that runs in a task queue of this glommio executor when it is due. It
    /// costs a box now, and a task when it is due.
    ///
    /// Until it is due it can be cancelled like any timer. The shard itself runs the callback
    /// if the queue has been removed or the shard is being shut down. It also does if as many
    /// callbacks wait in queues as the shard can have timers.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with a callback that starts the task.
    pub fn schedule_fn_into<W: When>(
        &self,
        queue: TaskQueueHandle,
        when: W,
        call: impl FnOnce(&Self) + 'static,
    ) -> Result<TimerId, RefusedCall<LocalCall<T>>> {
        let deadline = self.core().tick_of(when);
        let scheduled = self.core().schedule_call(self.class(), deadline, in_queue(queue, call));
        scheduled.map_err(RefusedCall::from)
    }
}

/// A callback that runs another callback in a task queue.
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
            there.run_call(index);
            step_aside(&there.timers).await;
        };
        match glommio::spawn_local_into(task, queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => {
                tracing::warn!(
                    name: "sink-queue-gone",
                    target: "corewheel::kit",
                    %error, "a timer's task queue is gone; the shard runs the callback"
                );
                deferred.run_call(index);
            }
        }
    })
}

/// The callbacks of a shard that have fired and wait for their task queue, and its handlers whose
/// timers do. What waits when the shard is shut down is run then; it is dropped where the shard
/// ends without a shutdown.
struct Deferred<T: Send + 'static> {
    timers: Timers<T>,
    /// Each with its number in the order in which they were deferred.
    calls: RefCell<Slab<(u64, LocalCall<T>)>>,
    count: Cell<u64>,
    /// Handlers that are gone have left nothing that waits.
    handlers: RefCell<Vec<Weak<dyn Waiting<T>>>>,
}

impl<T: Send + 'static> Deferred<T> {
    fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.core().parts().get_or_keep(|| Self {
            timers: timers.clone(),
            calls: RefCell::default(),
            count: Cell::default(),
            handlers: RefCell::default(),
        })
    }

    /// Keeps a callback. It comes back if as many wait as the shard can have timers, or if the
    /// shard is closed, after which the executor may run no task.
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

    /// Runs a callback, unless the shard has ended before.
    fn run_call(&self, index: usize) {
        let call = self.calls.borrow_mut().try_remove(index);
        if let Some((_, call)) = call {
            run_later(&self.timers, ClassId::NONE, || call(&self.timers));
        }
    }

    /// Takes the callbacks that wait, in the order in which they were deferred.
    fn take_calls(&self) -> Vec<LocalCall<T>> {
        let mut calls: Vec<_> = self.calls.borrow_mut().drain().collect();
        calls.sort_unstable_by_key(|(number, _)| *number);
        calls.into_iter().map(|(_, call)| call).collect()
    }

    fn each_handler(&self, call: impl Fn(&dyn Waiting<T>)) {
        // Outside of the borrow, as handlers run.
        let handlers = self.handlers.borrow().clone();
        handlers.iter().filter_map(Weak::upgrade).for_each(|handler| call(&*handler));
    }
}

impl<T: Send + 'static> Part for Deferred<T> {
    fn closing(&self) {
        self.each_handler(|handler| handler.run_all(&self.timers));
        for call in self.take_calls() {
            run_later(&self.timers, ClassId::NONE, || call(&self.timers));
        }
    }

    fn closed(&self, _is_dead: bool) {
        self.each_handler(|handler| handler.clear(&self.timers));
        for call in self.take_calls() {
            self.timers.core().contain(|| drop(call));
        }
    }
}

/// Runs a handler or a callback for a timer of this class that has fired before; a panic is counted
/// and published.
fn run_later<T: Send + 'static>(timers: &Timers<T>, class: ClassId, run: impl FnOnce()) {
    let core = timers.core();
    core.deliver_as(class);
    let calm = core.contain(run);
    core.deliver_as(ClassId::NONE);
    if !calm {
        // The next turn of the shard may come much later.
        core.publish();
    }
}
