//! The futures of a shard in a loop of the user's own, which has no executor.
//!
//! They are a part of the shard: a future that was woken is an item that the turn delivers. So it
//! is polled within the budget of the turn, in alternation with timers, and no loop falls asleep
//! beside it. Why not an executor of a library: each would need a waker and a budget of its own
//! beside those of the turn.
//!
//! Invariants: a future that is polled is not in its place. A waker first notes its task and then
//! rings the doorbell, whose fence stands in between; a loop that falls asleep looks at what was
//! noted after its own fence. So a loop never sleeps beside a future that was woken.
//!
//! Cost: a box for each future, and for each wake-up a lock, which is free unless two threads wake
//! at the same moment.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use slab::Slab;

use crate::directory::post::Front;
use crate::face::part::{Part, PartHandle, Wants};
use crate::face::timers::Timers;
use crate::link::sync::{Mutex, MutexGuard};
use crate::link::woken::WokenFlag;
use crate::shard::timers::LocalFuture;

/// The tasks of one shard. Made for the first future.
pub(super) struct LoopTasks {
    shard: PartHandle,
    tasks: RefCell<Slab<Task>>,
    woken: Arc<Woken>,
    closing: Cell<bool>,
}

struct Task {
    /// `None` while it is polled.
    future: Option<LocalFuture>,
    waker: Arc<TaskWaker>,
}

/// The tasks that were woken and not polled since, by their places. A place may have been given to
/// another task meanwhile, which is then polled once for nothing.
struct Woken {
    places: Mutex<VecDeque<usize>>,
    front: Arc<Front>,
}

impl Woken {
    fn places(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    place: usize,
    flag: WokenFlag,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.flag.set() {
            self.woken.places().push_back(self.place);
            self.woken.front.doorbell.wake();
        }
    }
}

impl LoopTasks {
    /// Starts a future, which is polled in a turn.
    pub(super) fn start<T: Send + 'static>(timers: &Timers<T>, future: LocalFuture) {
        let tasks = timers.shared_part(|shard| {
            let front = Arc::clone(timers.core().post().front());
            let woken = Arc::new(Woken { places: Mutex::new(VecDeque::new()), front });
            Self { shard, tasks: RefCell::default(), woken, closing: Cell::new(false) }
        });
        let waker = {
            let mut all = tasks.tasks.borrow_mut();
            let entry = all.vacant_entry();
            let (place, woken) = (entry.key(), Arc::clone(&tasks.woken));
            let waker = Arc::new(TaskWaker { place, flag: WokenFlag::new(false), woken });
            entry.insert(Task { future: Some(future), waker: Arc::clone(&waker) });
            waker
        };
        waker.wake();
    }

    fn poll(&self, place: usize) {
        let taken = self.tasks.borrow_mut().get_mut(place).and_then(|task| {
            // Taken before the poll: what wakes the task from here on has it polled again.
            task.waker.flag.take();
            Some((task.future.take()?, Waker::from(Arc::clone(&task.waker))))
        });
        let Some((mut future, waker)) = taken else { return };
        // It contains the panics of the user's future.
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            if let Some(task) = self.tasks.borrow_mut().get_mut(place) {
                task.future = Some(future);
            }
            return;
        }
        let done = self.tasks.borrow_mut().try_remove(place);
        self.shard.drop_each([(future, done.and_then(|task| task.future))]);
    }
}

impl Part for LoopTasks {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        let waits = !self.closing.get() && !self.woken.places().is_empty();
        if waits { Wants::Delivery } else { Wants::Nothing }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        let place = self.woken.places().pop_front();
        if let Some(place) = place {
            self.poll(place);
        }
    }

    /// A future that wakes itself each time must not keep a shutdown from its end.
    fn closing(&self) {
        self.closing.set(true);
    }

    fn closed(&self, _is_dead: bool) {
        let tasks = self.tasks.take();
        self.shard.drop_each(tasks.into_iter().filter_map(|(_, task)| task.future));
        self.woken.places().clear();
    }

    fn runs_futures(&self) -> bool {
        true
    }
}
