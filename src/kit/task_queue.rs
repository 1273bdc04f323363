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

use glommio::TaskQueueHandle;

use crate::clock::when::When;
use crate::driver::glommio::is_executor_here;
use crate::face::part::Part;
use crate::face::timers::Timers;
use crate::shard::callback::LocalCall;
use crate::values::class::ClassId;
use crate::values::ids::TimerId;
use crate::values::refused::RefusedCall;

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
        let number = match deferred.insert(Box::new(call)) {
            Ok(number) => number,
            Err(call) => return call(timers),
        };
        let there = Rc::clone(&deferred);
        let task = async move {
            there.run_call(number);
            step_aside(&there.timers).await;
        };
        match glommio::spawn_local_into(task, queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => {
                tracing::warn!(
                    name: "callback-queue-gone",
                    target: "corewheel::kit",
                    %error, "a timer's task queue is gone; the shard runs the callback"
                );
                deferred.run_call(number);
            }
        }
    })
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

/// The callbacks of a shard that have fired and wait for their task queue.
struct Deferred<T: Send + 'static> {
    timers: Timers<T>,
    /// By their numbers, in the order in which they were deferred.
    calls: RefCell<BTreeMap<u64, LocalCall<T>>>,
    count: Cell<u64>,
}

impl<T: Send + 'static> Deferred<T> {
    fn of(timers: &Timers<T>) -> Rc<Self> {
        timers.core().parts().get_or_keep(|| Self {
            timers: timers.clone(),
            calls: RefCell::default(),
            count: Cell::default(),
        })
    }

    /// Keeps a callback. It comes back if as many wait as the shard can have timers, or if the
    /// shard is closed, after which the executor may run no task.
    fn insert(&self, call: LocalCall<T>) -> Result<u64, LocalCall<T>> {
        let core = self.timers.core();
        let mut calls = self.calls.borrow_mut();
        if core.is_closed() || calls.len() >= core.capacity() as usize {
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
        let core = self.timers.core();
        core.deliver_as(ClassId::NONE);
        if !core.contain(|| call(&self.timers)) {
            // The next turn of the shard may come much later.
            core.publish();
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
        self.timers.core().drop_each(self.calls.take().into_values());
    }
}
