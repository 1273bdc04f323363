//! Callbacks that run in another task queue of their glommio executor.
//!
//! For work in the background, which belongs into a queue with few shares: the driver of a shard
//! has a task queue of its own that runs before others, so that timers fire in time. By hand it is
//! a callback that spawns a task, which an executor that ends may keep for ever.
//!
//! A callback that waits for its queue has fired: it cannot be cancelled any more, and neither its
//! wait nor the time that it takes there counts as late or as overrun. Callbacks that wait when the
//! shard is shut down are run then; they are dropped where the shard ends without a shutdown.
//!
//! Between two of them the shard's own queue runs first if a timer is due, so a timer is late by
//! the length of one task, however many wait.
//!
//! Invariants: a shard keeps a [`Deferred`] that knows every callback that waits, since its
//! executor may keep the tasks of a queue for ever.
//!
//! Cost: a box and a task for each callback.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use corewheel::part::{Part, PartHandle};
use corewheel::{Refused, TimerId, Timers, When};
use glommio::TaskQueueHandle;

use crate::host::is_executor_here;

/// The most callbacks of a shard that wait in queues.
const WAITING_MAX: usize = 1 << 20;

/// Schedules a callback of this shard that runs in a task queue of its glommio executor when it is
/// due. It costs two boxes now, and a task when it is due.
///
/// Until it is due it can be cancelled like any timer. The shard itself runs the callback
/// if the queue has been removed, if the shard is being shut down, or if 1,048,576 callbacks wait
/// in queues.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_glommio::{attach, schedule_fn_into};
/// use glommio::{Latency, LocalExecutorBuilder, Shares};
/// use std::time::Duration;
///
/// # let Ok(executor) = LocalExecutorBuilder::default().make() else { return Ok(()) };
/// let service = TimerService::builder().shards(1).start_attached()?;
/// let attachment = service.attach(service.shard_for(0))?;
/// executor.run(async move {
///     let timers = attach(attachment, |_, _| {})?;
///     let shares = Shares::Static(10);
///     let background =
///         glommio::executor().create_task_queue(shares, Latency::NotImportant, "background");
///     let (done, ends) = std::sync::mpsc::channel();
///     let work = move |_: &_| done.send("in the background").unwrap();
///     schedule_fn_into(&timers, background, Duration::from_millis(1), work)?;
///     timers.sleep(Duration::from_millis(2)).await?;
///     while ends.try_recv().is_err() {
///         timers.sleep(Duration::from_millis(1)).await?;
///     }
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// `Full` or `Closed`, with a callback that starts the task.
pub fn schedule_fn_into<T: Send + 'static, W: When>(
    timers: &Timers<T>,
    queue: TaskQueueHandle,
    when: W,
    call: impl FnOnce(&Timers<T>) + 'static,
) -> Result<TimerId, Refused<LocalCall<T>>> {
    timers.schedule_fn(when, move |timers: &Timers<T>| {
        if !is_executor_here() {
            return call(timers);
        }
        let deferred = Deferred::of(timers);
        let number = match deferred.insert(Box::new(call)) {
            Ok(number) => number,
            Err(call) => return call(timers),
        };
        let there = Rc::clone(&deferred);
        let task = async move {
            there.run_call(number);
            there.step_aside().await;
        };
        match glommio::spawn_local_into(task, queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => {
                tracing::warn!(
                    name: "callback-queue-gone",
                    target: "corewheel::glommio",
                    %error, "a timer's task queue is gone; the shard runs the callback"
                );
                deferred.run_call(number);
            }
        }
    })
}

/// A callback that stays on its core.
type LocalCall<T> = Box<dyn FnOnce(&Timers<T>)>;

/// The callbacks of a shard that have fired and wait for their task queue.
struct Deferred<T: Send + 'static> {
    shard: PartHandle,
    timers: Timers<T>,
    /// By their numbers, in the order in which they were deferred.
    calls: RefCell<BTreeMap<u64, LocalCall<T>>>,
    count: Cell<u64>,
}

impl<T: Send + 'static> Deferred<T> {
    fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.shared_part(|shard| Self {
            shard,
            timers: timers.clone(),
            calls: RefCell::default(),
            count: Cell::default(),
        })
    }

    /// Keeps a callback. It comes back if too many wait, or if the shard is closed, after which the
    /// executor may run no task.
    fn insert(&self, call: LocalCall<T>) -> Result<u64, LocalCall<T>> {
        let mut calls = self.calls.borrow_mut();
        if self.shard.is_closed() || calls.len() >= WAITING_MAX {
            return Err(call);
        }
        let number = self.count.get();
        self.count.set(number + 1);
        calls.insert(number, call);
        Ok(number)
    }

    /// Runs a callback, unless the shard has ended before. A panic is counted and published.
    fn run_call(&self, number: u64) {
        let call = self.calls.borrow_mut().remove(&number);
        let Some(call) = call else { return };
        if !self.shard.contain(|| call(&self.timers)) {
            // A turn publishes the panic, and the next one may come much later.
            self.shard.wake();
        }
    }

    /// Lets other queues run if they should, first of all the shard's: while a task is ready to
    /// run, glommio looks at its timers only once in a period of its preempt timer.
    async fn step_aside(&self) {
        if self.shard.wake_if_due() {
            glommio::executor().yield_task_queue_now().await;
        } else {
            glommio::executor().yield_if_needed().await;
        }
    }
}

impl<T: Send + 'static> Part for Deferred<T> {
    fn closing(&self) {
        let numbers: Vec<u64> = self.calls.borrow().keys().copied().collect();
        for number in numbers {
            self.run_call(number);
        }
    }

    fn closed(&self, _is_dead: bool) {
        self.shard.drop_each(self.calls.take().into_values());
    }
}
