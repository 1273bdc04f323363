//! One timer for all bodies of a connection, which ends them without a task.
//!
//! The timer's waker is the alarm itself: when the timer fires, the thread of its shard looks at
//! the bodies and ends those that are due. So a body ends in time that no task polls, and whose
//! task waits for something else.
//!
//! Why not a timer for each body: most bodies end long before their limits, and a timer for each
//! would be a request to the shard and a cancel. The alarm stays armed for a body that has ended,
//! and a later body, whose limit is due later, arms nothing.
//!
//! Invariants: the alarm is armed for no later than the first deadline of its bodies, or a pass
//! over them is about to begin. No lock is held while a body is ended or a waker is woken.
//!
//! Cost: a pass is O(bodies); with the same limits for all bodies, there is one in each such time.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use slab::Slab;

use super::limits::NEVER;
use crate::clock::Clock;
use crate::face::handle::AnyHandle;
use crate::face::handle::here::Reach;
use crate::fallback::SleepOrKept;

/// A body with limits, as its alarm sees it.
pub(super) trait Watched: Send + Sync {
    /// When the body is over, in nanoseconds; `NEVER` while nothing is awaited.
    fn due(&self) -> u64;
    /// Ends the body if it is over at this time.
    fn expire(&self, now: u64);
}

pub(super) struct Alarm {
    handle: AnyHandle,
    clock: Clock,
    bodies: Mutex<Slab<Weak<dyn Watched>>>,
    /// When the sleep is over; `NEVER` if none is armed.
    armed: AtomicU64,
    /// `None` unless it was needed.
    sleep: Mutex<Option<SleepOrKept>>,
    /// A pass is in progress.
    is_passing: AtomicBool,
    /// A pass is to begin.
    is_woken: AtomicBool,
}

impl Alarm {
    pub(super) fn new(handle: AnyHandle) -> Arc<Self> {
        Arc::new(Self {
            handle,
            clock: handle.clock(),
            bodies: Mutex::default(),
            armed: AtomicU64::new(NEVER),
            sleep: Mutex::default(),
            is_passing: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
        })
    }

    /// The present, or a little later, so that a wait that begins now is not over early.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.handle.with_reach(Reach::nanos).unwrap_or_else(|| self.clock.nanos())
    }

    pub(super) fn add(&self, body: Weak<dyn Watched>) -> usize {
        self.lock_bodies().insert(body)
    }

    pub(super) fn remove(&self, key: usize) {
        self.lock_bodies().try_remove(key);
    }

    /// A body is due at this time, and says so from now on.
    #[inline]
    pub(super) fn ensure(self: &Arc<Self>, due: u64) {
        // A pass clears this before it asks the bodies, so it sees the body or this sees that.
        if due < self.armed.load(Ordering::SeqCst) {
            self.arm_earlier(due);
        }
    }

    #[cold]
    fn arm_earlier(self: &Arc<Self>, due: u64) {
        self.armed.fetch_min(due, Ordering::SeqCst);
        self.wake_by_ref();
    }

    /// Forgets the timer, which holds the alarm.
    pub(super) fn close(&self) {
        drop(self.lock_sleep().take());
    }

    fn lock_bodies(&self) -> MutexGuard<'_, Slab<Weak<dyn Watched>>> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sleep(&self) -> MutexGuard<'_, Option<SleepOrKept>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the bodies that are over, and arms the timer for the next one.
    fn pass(self: &Arc<Self>) {
        self.armed.store(NEVER, Ordering::SeqCst);
        // The near clock may be ahead, and a body never ends early.
        let (now, mut next, mut over) = (self.clock.nanos(), NEVER, Vec::new());
        let bodies = self.lock_bodies();
        for body in bodies.iter().filter_map(|(_, body)| body.upgrade()) {
            match body.due() {
                due if due <= now => over.push(body),
                due => next = next.min(due),
            }
        }
        drop(bodies);
        for body in over {
            body.expire(now);
        }
        if next == NEVER {
            return;
        }
        self.armed.fetch_min(next, Ordering::SeqCst);
        let deadline = self.clock.instant(next);
        let waker = Waker::from(Arc::clone(self));
        let mut place = self.lock_sleep();
        let sleep = match &mut *place {
            Some(sleep) => {
                sleep.reset(deadline);
                sleep
            }
            none => none.insert(SleepOrKept::new(self.handle, deadline)),
        };
        if pin!(sleep).poll(&mut Context::from_waker(&waker)).is_ready() {
            // Relative to other threads, this is a wake-up like any other.
            self.is_woken.store(true, Ordering::SeqCst);
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        // The thread that passes sees the flag, or has cleared its own before this looks.
        while self.is_woken.load(Ordering::SeqCst) && !self.is_passing.swap(true, Ordering::SeqCst)
        {
            while self.is_woken.swap(false, Ordering::SeqCst) {
                self.pass();
            }
            self.is_passing.store(false, Ordering::SeqCst);
        }
    }
}
