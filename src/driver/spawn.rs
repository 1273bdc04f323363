//! Futures that other threads spawn on a shard.
//!
//! A shard keeps its futures itself, each in a place; its executor runs a [`Running`] that takes
//! the future out for one poll at a time. So a shard that ends drops all of its futures, whatever
//! its executor does with tasks that are not done: glommio keeps them for ever, and an executor
//! that a shard is attached to goes on.
//!
//! Invariants: a panic of a future, in a poll or in its `Drop`, is contained here, as glommio dies
//! of one in a poll and aborts the process for one in a drop. A future that is being polled is not
//! in its place; it is dropped when that poll returns if its shard has ended meanwhile. A place
//! whose shard has ended holds nothing of that shard, as the place may be kept for ever.
//!
//! Cost: two allocations a future; a poll moves three words out of the place and back.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::face::part::Part;
use crate::face::timers::Timers;
use crate::shard::timers::LocalFuture;
use crate::values::contain::drop_each;

/// The futures of a shard that are not done.
pub(crate) struct Futures<T: Send + 'static> {
    places: RefCell<Slab<Rc<Place<T>>>>,
    /// The shard has ended: a future that is polled now is to be dropped.
    ended: Cell<bool>,
}

impl<T: Send + 'static> Futures<T> {
    fn of(timers: &Timers<T>) -> Rc<Self> {
        let new = || Self { places: RefCell::default(), ended: Cell::new(false) };
        timers.core().parts().get_or_keep(new)
    }
}

struct Place<T: 'static> {
    /// `None` while the future is polled, when it is done, and when its shard has ended.
    future: Cell<Option<(Timers<T>, LocalFuture)>>,
    /// Wakes the executor's task. `None` before the first poll.
    waker: Cell<Option<Waker>>,
}

impl<T: Send + 'static> Part for Futures<T> {
    fn runs_futures(&self) -> bool {
        true
    }

    /// Drops all futures that were spawned on this shard, which sends `Closed` to the callers that
    /// wait for their outputs.
    ///
    /// Each future is polled once before, unless the executor is dead: a future that waits for the
    /// shard sees that it is closed, and may be done by that.
    fn closed(&self, is_dead: bool) {
        self.ended.set(true);
        let places = self.places.take();
        for (_, place) in places {
            let waker = place.waker.take();
            let Some((timers, mut future)) = place.future.take() else {
                // It is being polled, and its task ends with that.
                drop_each(waker);
                continue;
            };
            let core = timers.core();
            if !is_dead {
                let mut cx = Context::from_waker(Waker::noop());
                core.contain(|| _ = future.as_mut().poll(&mut cx));
            }
            core.drop_each([future]);
            // The executor's task finds its place empty, and ends.
            core.contain(|| waker.into_iter().for_each(Waker::wake));
        }
    }
}

/// One spawned future, as the executor of its shard runs it.
pub(crate) struct Running<T: Send + 'static> {
    futures: Rc<Futures<T>>,
    place: Rc<Place<T>>,
    index: usize,
}

impl<T: Send + 'static> Running<T> {
    pub(crate) fn new(timers: Timers<T>, future: LocalFuture) -> Self {
        let place = Rc::new(Place { future: Cell::default(), waker: Cell::default() });
        let futures = Futures::of(&timers);
        let index = futures.places.borrow_mut().insert(Rc::clone(&place));
        place.future.set(Some((timers, future)));
        Self { futures, place, index }
    }

    /// Leaves the place of a future that is done or dropped.
    fn finish(&self, timers: &Timers<T>, future: LocalFuture) {
        {
            let mut places = self.futures.places.borrow_mut();
            // A shard that has ended has taken all places.
            if places.get(self.index).is_some_and(|known| Rc::ptr_eq(known, &self.place)) {
                places.remove(self.index);
            }
        }
        timers.core().drop_each([future]);
    }
}

impl<T: Send + 'static> Future for Running<T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some((timers, mut future)) = self.place.future.take() else { return Poll::Ready(()) };
        let mut is_pending = false;
        let core = timers.core();
        if !core.contain(|| is_pending = future.as_mut().poll(cx).is_pending()) {
            // The next turn of the shard may come much later.
            core.publish();
        }
        // The future may have kept the executor from its alarms.
        let _is_awake = core.wake_driver_if_due();
        if is_pending && !self.futures.ended.get() {
            self.place.future.set(Some((timers, future)));
            let known = self.place.waker.take().filter(|known| known.will_wake(cx.waker()));
            self.place.waker.set(Some(known.unwrap_or_else(|| cx.waker().clone())));
            return Poll::Pending;
        }
        self.finish(&timers, future);
        Poll::Ready(())
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        if let Some((timers, future)) = self.place.future.take() {
            self.finish(&timers, future);
        }
    }
}
