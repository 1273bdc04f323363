//! What the clones of [`ScaledTimeouts`] share: the queue of values, and the timer of the first. It
//! is a part of the shard.
//!
//! A turn delivers timeouts that are due one by one, alternating with timers. Why not all of them
//! when their timer fires: so many may be due at once that a turn must end before they do.
//!
//! Invariants: while the queue is not empty, there is a timer, or the part wants a delivery. The
//! timer is never later than the deadline of the first timeout; a reset or a cancel leaves it as it
//! is, so it may fire when no timeout is due, and is scheduled again then. Absent by design: a walk
//! over the queue.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::part::{Part, PartHandle, PartTimer, Wants};
use corewheel::settings::Scale;
use corewheel::{Deadline, Refused};
use corewheel_shard::Tick;

use super::queue::Queue;
use super::{ScaledTimeout, ScaledTimeouts};

pub(super) type Handler<V> = Box<dyn FnMut(V, &ScaledTimeouts<V>)>;

pub(super) struct Inner<V: 'static> {
    pub(super) shard: PartHandle,
    pub(super) queue: RefCell<Queue<V>>,
    /// The timer of the first timeout.
    timer: Cell<Option<PartTimer>>,
    /// The first timeout may be due: the part wants a delivery, and its timer does not fire.
    is_due: Cell<bool>,
    /// When the present turn began.
    turn: Cell<Duration>,
    /// `None` while it runs.
    handler: Cell<Option<Handler<V>>>,
    /// The shortest and the longest time of a timeout.
    range: (Duration, Duration),
    /// How long a timeout lasts by the present scale.
    span: Cell<Duration>,
    /// When the span last became shorter. `None` if it never has.
    shrunk_at: Cell<Option<Instant>>,
    capacity: usize,
}

impl<V: 'static> Inner<V> {
    pub(super) fn new(
        shard: PartHandle,
        range: (Duration, Duration),
        capacity: usize,
        handler: Handler<V>,
    ) -> Self {
        Self {
            queue: RefCell::new(Queue::new()),
            timer: Cell::new(None),
            is_due: Cell::new(false),
            turn: Cell::new(shard.since_start()),
            handler: Cell::new(Some(handler)),
            range,
            span: Cell::new(span(range, &shard)),
            shrunk_at: Cell::new(None),
            capacity,
            shard,
        }
    }

    pub(super) fn start(&self, value: V) -> Result<ScaledTimeout, Refused<V>> {
        if self.shard.is_closed() {
            return Err(self.shard.why_closed().of(value));
        }
        if self.queue.borrow().len() >= self.capacity {
            return Err(self.refuse(value));
        }
        let timeout = self.queue.borrow_mut().push(value, self.shard.since_start());
        let is_first = self.timer.get().is_none();
        // The driver is woken when the timeout is counted.
        let _compound = is_first.then(|| self.shard.compound());
        if is_first {
            self.timer.set(self.first_deadline().and_then(|deadline| self.schedule(deadline)));
        }
        if self.timer.get().is_none() {
            let value = self.queue.borrow_mut().remove(timeout);
            return Err(self.refuse(value.expect("nothing has run since it was put in")));
        }
        self.shard.count(|counts| {
            counts.scheduled += 1;
            counts.pending += 1;
        });
        self.shard.publish();
        self.note_first();
        Ok(timeout)
    }

    /// The first timeout may be another one.
    #[inline]
    pub(super) fn note_first(&self) {
        if self.shard.has_class() {
            let first = self.queue.borrow().first_start();
            self.shard.set_oldest(first.map(|start| self.shard.instant_after(start)));
        }
    }

    /// There is no room for a value.
    fn refuse(&self, value: V) -> Refused<V> {
        self.shard.count(|counts| counts.refused += 1);
        Refused::Full(value)
    }

    /// So many timeouts were taken out of the queue, undelivered.
    pub(super) fn note_cancelled(&self, count: usize) {
        self.count_cancelled(count);
        self.note_first();
        self.cancel_timer_if_empty();
    }

    fn count_cancelled(&self, count: usize) {
        self.shard.count(|counts| {
            counts.pending -= count as u64;
            counts.cancelled += count as u64;
        });
        self.shard.publish();
    }

    /// When a timeout is due that started at `start`.
    pub(super) fn deadline(&self, start: Duration) -> Deadline {
        self.shard.deadline(self.shard.instant_after(start.saturating_add(self.span.get())))
    }

    fn first_deadline(&self) -> Option<Deadline> {
        let start = self.queue.borrow().first_start()?;
        Some(self.deadline(start))
    }

    fn schedule(&self, deadline: Deadline) -> Option<PartTimer> {
        // The timeouts count for the class, and not their timer.
        self.shard.schedule_uncounted(deadline, 0).ok()
    }

    /// The timer has fired.
    fn visit(&self) {
        self.timer.set(None);
        let Some(deadline) = self.first_deadline() else { return };
        if self.shard.is_closed() {
            // The shutdown delivers all that is pending.
            return self.is_due.set(true);
        }
        let is_due = self.shard.time_left(deadline).is_zero();
        // The slot of the timer that has just fired is free, and the range takes it at once. So the
        // timeouts that wait have a timer even when the shard is full.
        self.timer.set(self.schedule(if is_due { Tick::NEVER.into() } else { deadline }));
        debug_assert!(self.timer.get().is_some(), "a slot is free, and nothing has run since");
        if is_due || self.timer.get().is_none() {
            self.is_due.set(true);
        }
    }

    /// Whether the first timeout is due in the present turn. If not, the queue has a timer for it.
    fn check_due(&self) -> bool {
        let turn = self.shard.instant_after(self.turn.get());
        let deadline = self.first_deadline();
        let is_over = |deadline| self.shard.instant_of(deadline) <= turn;
        let is_due = deadline.is_some_and(|by| is_over(by) || self.shard.is_closed());
        if let (false, Some(deadline), Some(timer)) = (is_due, deadline, self.timer.get()) {
            let _moved = self.shard.reset(timer, deadline);
        }
        self.is_due.set(is_due);
        is_due
    }

    fn cancel_timer_if_empty(&self) {
        if self.queue.borrow().is_empty() {
            if let Some(timer) = self.timer.take() {
                self.shard.cancel(timer);
            }
        }
    }
}

/// How long a timeout lasts by the shard's scale. At least a nanosecond, so that a timeout that the
/// handler starts is not due in the same turn.
fn span((min, max): (Duration, Duration), shard: &PartHandle) -> Duration {
    shard.scale().between(min, max).max(Duration::from_nanos(1))
}

impl<V: 'static> Part for Inner<V> {
    fn takes_turns(&self) -> bool {
        true
    }

    fn turn_begins(&self, now: Duration) {
        self.turn.set(now);
    }

    fn wants(&self) -> Wants {
        if self.is_due.get() { Wants::Delivery } else { Wants::Nothing }
    }

    fn expired(self: Rc<Self>, _index: u32) {
        self.visit();
    }

    fn deliver(self: Rc<Self>, now: Duration) {
        if !self.check_due() {
            return;
        }
        let popped = self.queue.borrow_mut().pop();
        let Some((start, value)) = popped else { return };
        let deadline = self.shard.instant_of(self.deadline(start));
        // A timeout that a change of the scale has made due was not due before the change.
        let due = self.shrunk_at.get().map_or(deadline, |shrunk_at| deadline.max(shrunk_at));
        let late = self.shard.instant_after(now).saturating_duration_since(due);
        self.shard.begin_delivery(late);
        self.note_first();
        self.cancel_timer_if_empty();
        let mut handler = self.handler.take().expect("a turn is not taken within a turn");
        let this = ScaledTimeouts(self);
        this.0.shard.contain(|| handler(value, &this));
        this.0.handler.set(Some(handler));
        this.0.check_due();
    }

    fn scale_changed(&self, _scale: Scale) {
        let span = span(self.range, &self.shard);
        if self.span.replace(span) > span {
            self.shrunk_at.set(Some(self.shard.now()));
        }
        if !self.is_due.get() {
            if let (Some(timer), Some(deadline)) = (self.timer.get(), self.first_deadline()) {
                // A timeout that the change makes due is not late yet, and nor is its timer.
                let earliest = self.shard.deadline(Duration::ZERO);
                let _moved = self.shard.reset(timer, deadline.max(earliest));
            }
        }
    }
}

impl<V: 'static> Drop for Inner<V> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.shard.cancel(timer);
        }
        let values = self.queue.get_mut().drain();
        self.count_cancelled(values.len());
        self.shard.drop_each(values);
        self.shard.drop_each(self.handler.take());
    }
}
