//! Timeouts that shrink under pressure, all at once and without one of them being touched.
//!
//! A server that runs short of memory or of file descriptors wants to be rid of idle connections
//! sooner than it would like to be. Its timeouts have a minimum and a maximum, the shard has a
//! scale, and a timeout lasts for `min + (max - min) × scale` from when it was started, by the
//! scale as it is now and not as it was then. The idea is that of Envoy's overload manager, where a
//! timer looks at the scale when its minimum is over; here those that wait already follow, too.
//!
//! Why a queue for each minimum and maximum, and not a timer for each timeout: those in it last
//! equally long whatever the scale is, so they are due in the order in which they were started, and
//! only the first one needs a timer. A change moves that one.
//!
//! Invariants: while the queue is not empty, there is one timer, or the class is among those that
//! the next turn looks at. The timer is never later than the first one's deadline; what is started
//! again or cancelled leaves it as it is, so that it may come for nothing, and then it moves on.
//! Absent by design: a walk over the queue, but for [`drain`](ScaledTimeouts::drain).
//!
//! Cost: 32 bytes and the value for each timeout. To start, to restart and to cancel one is a few
//! stores in the queue, and only the first and the last one that wait touch the wheel.

mod part;
mod queue;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use corewheel_shard::{Tick, TimerKey};
use serde::Serialize;

use self::part::{RANGES_MAX, Range, ScaledPart};
use self::queue::Queue;
use crate::clock::saturating_nanos;
use crate::values::capacity::check;

use crate::face::callback::SharedCall;
use crate::face::timers::Timers;
use crate::values::class::ClassId;
use crate::values::error::ConfigError;
use crate::values::expired::InsertError;

/// Timeouts of one shard that last for a minimum, a maximum or something between the two, by the
/// shard's [`Scale`](crate::Scale).
///
/// `!Send`, and as cheap to clone as an [`Rc`]: all clones are one. `V` is what a timeout is for, a
/// connection say; the handler is given it when the time is up.
///
/// The scale is the shard's, for all of its `ScaledTimeouts`: set it by
/// [`Timers::set_scale`] there and by [`Client::set_scale_on`](crate::Client::set_scale_on) or
/// [`TimerService::set_scale`](crate::TimerService::set_scale) from anywhere else. A change costs
/// one timer for each `ScaledTimeouts`, however many timeouts wait. What it makes due is delivered
/// in the order in which it was started, up to the budget of a turn in each turn, taking turns with
/// the shard's other timers; if the scale is set back meanwhile, the rest stays.
///
/// A timeout never ends before its minimum, and what is late about it is what is late about any
/// timer: the statistics count it in the same histogram, from its end or, if it has come about by a
/// change of the scale that it is past, from that change. Its end is rounded up to a tick, and lies
/// in a later turn than its start.
///
/// When the shard is shut down, timeouts end at once by `ShutdownPolicy::Fire`; by the other
/// policies they stay until they are cancelled or [drained](Self::drain). Dropping the last clone
/// drops them. A value that holds these timeouts, to start its own again say, keeps them alive for
/// as long as it waits there; let it hold [`WeakScaledTimeouts`].
///
/// ```
/// use std::cell::RefCell;
/// use std::rc::Rc;
/// use std::time::Duration;
/// use corewheel::{Fired, ManualClock, Scale, ScaledTimeouts, TimerService};
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<()>()?;
/// let shard = service.shards().next().unwrap();
/// let mut shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
///
/// // A connection may idle for a minute, and for five seconds when memory is scarce.
/// let closed = Rc::new(RefCell::new(Vec::new()));
/// let (min, max) = (Duration::from_secs(5), Duration::from_secs(60));
/// let idle = ScaledTimeouts::new(shard.timers(), min, max, {
///     let closed = Rc::clone(&closed);
///     move |connection, _: &ScaledTimeouts<&str, ()>| closed.borrow_mut().push(connection)
/// })?;
/// let a = idle.start("a")?;
/// idle.start("b")?;
/// clock.advance(Duration::from_secs(10));
/// idle.reset(a);
/// let _ = shard.turn();
/// assert!(closed.borrow().is_empty());
///
/// // Memory is scarce: a quarter of the way from 5 to 60 s is 18.75 s, none of it is 5 s.
/// shard.timers().set_scale(Scale::new(0.25)?);
/// assert_eq!(idle.remaining(a), Some(Duration::from_millis(18_750)));
/// shard.timers().set_scale(Scale::ZERO);
/// let _ = shard.turn();
/// assert_eq!(*closed.borrow(), ["b"]);
///
/// // That was enough.
/// shard.timers().set_scale(Scale::ONE);
/// clock.advance(Duration::from_secs(59));
/// let _ = shard.turn();
/// assert_eq!(idle.cancel(a), Some("a"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScaledTimeouts<V: 'static, T: Send + 'static = std::convert::Infallible>(
    Rc<Inner<V, T>>,
);

/// [`ScaledTimeouts`] that are not kept alive by this; made by [`ScaledTimeouts::downgrade`].
pub struct WeakScaledTimeouts<V: 'static, T: Send + 'static = std::convert::Infallible>(
    Weak<Inner<V, T>>,
);

/// Names one timeout of one [`ScaledTimeouts`], however often it is started again. Harmless for
/// ever: once the timeout has ended it names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScaledTimeout {
    serial: u64,
    index: u32,
}

/// What a [`ScaledTimeouts`] holds and has counted. `started = pending + expired + cancelled`,
/// always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ScaledStats {
    /// Timeouts that wait now.
    pub pending: u64,
    /// Timeouts that were started.
    pub started: u64,
    /// Of those: ended by their time, and given to the handler.
    pub expired: u64,
    /// Of those: cancelled, drained or dropped with the whole.
    pub cancelled: u64,
    /// Times that a timeout was started again.
    pub reset: u64,
    /// Values that came back for want of room, or at the end.
    pub refused: u64,
}

type Handler<V, T> = Box<dyn FnMut(V, &ScaledTimeouts<V, T>)>;

struct Inner<V: 'static, T: Send + 'static> {
    this: Weak<Self>,
    timers: Timers<T>,
    part: Rc<ScaledPart<T>>,
    /// What the timer calls.
    look: SharedCall<T>,
    queue: RefCell<Queue<V>>,
    /// The timer for the first one.
    timer: Cell<Option<TimerKey>>,
    /// The next turn looks at this class, and the timer waits.
    is_due: Cell<bool>,
    /// Gone while it runs.
    handler: Cell<Option<Handler<V, T>>>,
    min: u64,
    max: u64,
    /// How long a timeout lasts at present.
    span: Cell<u64>,
    /// When that last became less, in nanoseconds.
    shrunk_at: Cell<u64>,
    capacity: usize,
    counts: Cell<ScaledStats>,
}

impl<V: 'static, T: Send + 'static> ScaledTimeouts<V, T> {
    /// Timeouts on the shard of `timers` that last from `min` to `max`, for as many values as the
    /// shard can have timers. A `max` that does not fit (584 years) means never.
    ///
    /// The handler is given these timeouts too, which it must not own. It runs on the shard's core
    /// with nothing borrowed, so it may start, restart and cancel as it likes. If it panics, that
    /// is logged and counted, and it is used again.
    ///
    /// # Errors
    ///
    /// `min` is more than `max`, `max` is zero, or the shard has 1,024 `ScaledTimeouts` already;
    /// the error then names `scaled_timeouts`.
    pub fn new(
        timers: &Timers<T>,
        min: Duration,
        max: Duration,
        handler: impl FnMut(V, &Self) + 'static,
    ) -> Result<Self, ConfigError> {
        let capacity = timers.core().directory().settings.shard.capacity;
        Self::with_capacity(timers, min, max, capacity, handler)
    }

    /// The same, for up to so many values at once, 1 to 2³⁰. Memory for them is taken as it is
    /// needed, and kept.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), or the capacity is out of its range.
    pub fn with_capacity(
        timers: &Timers<T>,
        min: Duration,
        max: Duration,
        capacity: u32,
        handler: impl FnMut(V, &Self) + 'static,
    ) -> Result<Self, ConfigError> {
        if max.is_zero() {
            let limit = "a timeout must last for some time when nothing is scarce";
            return Err(ConfigError::new("max", max, limit, "use one tick or more"));
        }
        if min > max {
            let limit = format!("max is {max:?}");
            return Err(ConfigError::new("min", min, limit, "make it no more than that"));
        }
        let capacity = check("capacity", capacity)?;
        let part = ScaledPart::of(timers);
        let this = Rc::new_cyclic(|this: &Weak<Inner<V, T>>| {
            let looked_at = this.clone();
            let look = move |_: &Timers<T>, _| {
                if let Some(inner) = looked_at.upgrade() {
                    inner.look();
                }
            };
            let (min, max) = (saturating_nanos(min), saturating_nanos(max));
            Inner {
                this: this.clone(),
                timers: timers.clone(),
                part: Rc::clone(&part),
                look: Rc::new(look),
                queue: RefCell::new(Queue::new()),
                timer: Cell::new(None),
                is_due: Cell::new(false),
                handler: Cell::new(Some(Box::new(handler))),
                min,
                max,
                span: Cell::new(span(min, max, timers)),
                shrunk_at: Cell::new(0),
                capacity,
                counts: Cell::default(),
            }
        });
        if !part.add_range(this.this.clone()) {
            let limit = format!("a shard has at most {RANGES_MAX} of them");
            let remedy = "share one among all that have the same min and max";
            return Err(ConfigError::new("scaled_timeouts", RANGES_MAX + 1, limit, remedy));
        }
        Ok(Self(this))
    }

    /// Starts a timeout, now.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn start(&self, value: V) -> Result<ScaledTimeout, InsertError<V>> {
        let inner = &*self.0;
        let core = inner.timers.core();
        let refused = || inner.count(|counts| counts.refused += 1);
        if core.is_closed() {
            refused();
            return Err(InsertError::Closed(value));
        }
        let now = core.nanos_near();
        let (index, serial) = {
            let mut queue = inner.queue.borrow_mut();
            if queue.len() >= inner.capacity {
                refused();
                return Err(InsertError::Full(value));
            }
            queue.push(value, now)
        };
        inner.count(|counts| counts.started += 1);
        inner.part.add_pending(1);
        if inner.timer.get().is_none() && !inner.set_timer() {
            let value = inner.queue.borrow_mut().remove(index, serial);
            let value = value.expect("nothing has run since it was put in");
            inner.count(|counts| counts.started -= 1);
            inner.part.remove_pending(1);
            refused();
            return Err(InsertError::Full(value));
        }
        Ok(ScaledTimeout { serial, index })
    }

    /// Starts a timeout again, from now. False if it has ended.
    ///
    /// A few stores: the wheel is not touched.
    pub fn reset(&self, timeout: ScaledTimeout) -> bool {
        let ScaledTimeout { serial, index } = timeout;
        let now = self.0.timers.core().nanos_near();
        let is_there = self.0.queue.borrow_mut().restart(index, serial, now);
        if is_there {
            self.0.count(|counts| counts.reset += 1);
        }
        is_there
    }

    /// Ends a timeout and returns its value. `None` if it has ended.
    pub fn cancel(&self, timeout: ScaledTimeout) -> Option<V> {
        let ScaledTimeout { serial, index } = timeout;
        let value = self.0.queue.borrow_mut().remove(index, serial)?;
        self.0.count(|counts| counts.cancelled += 1);
        self.0.part.remove_pending(1);
        self.0.drop_timer_if_empty();
        Some(value)
    }

    /// Ends all of them, and returns their values in the order in which they would have been due.
    /// O(those that wait).
    pub fn drain(&self) -> Vec<V> {
        let mut values = Vec::with_capacity(self.len());
        {
            let mut queue = self.0.queue.borrow_mut();
            values.extend(std::iter::from_fn(|| Some(queue.pop()?.1)));
        }
        self.0.count(|counts| counts.cancelled += values.len() as u64);
        self.0.part.remove_pending(values.len() as u64);
        self.0.drop_timer_if_empty();
        values
    }

    /// Ends all of them, and drops their values.
    pub fn clear(&self) {
        self.0.timers.core().drop_each(self.drain());
    }

    /// When a timeout ends by the present scale, rounded up to a tick. `None` if it has ended.
    pub fn deadline(&self, timeout: ScaledTimeout) -> Option<Instant> {
        let start = self.0.queue.borrow().get(timeout.index, timeout.serial)?;
        Some(self.0.timers.core().time().instant(self.0.deadline(start)))
    }

    /// How long a timeout still has by the present scale; zero if it is due. `None` if it has
    /// ended.
    pub fn remaining(&self, timeout: ScaledTimeout) -> Option<Duration> {
        let start = self.0.queue.borrow().get(timeout.index, timeout.serial)?;
        let core = self.0.timers.core();
        Some(core.time().remaining(self.0.deadline(start), core.nanos_near()))
    }

    /// How long a timeout lasts by the present scale.
    pub fn span(&self) -> Duration {
        Duration::from_nanos(self.0.span.get())
    }

    /// How long a timeout lasts at least.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.0.min)
    }

    /// How long a timeout lasts at most.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max)
    }

    /// What is held and was counted. Costs a copy.
    pub fn stats(&self) -> ScaledStats {
        ScaledStats { pending: self.len() as u64, ..self.0.counts.get() }
    }

    /// How many timeouts wait.
    pub fn len(&self) -> usize {
        self.0.queue.borrow().len()
    }

    /// Whether no timeout waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many timeouts there is room for, those included that wait.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// The shard's timers.
    pub fn timers(&self) -> &Timers<T> {
        &self.0.timers
    }

    /// The same timeouts, for what must not keep them alive: a value that waits among them.
    pub fn downgrade(&self) -> WeakScaledTimeouts<V, T> {
        WeakScaledTimeouts(Rc::downgrade(&self.0))
    }
}

impl<V: 'static, T: Send + 'static> WeakScaledTimeouts<V, T> {
    /// The timeouts, if anything else still keeps them alive.
    pub fn upgrade(&self) -> Option<ScaledTimeouts<V, T>> {
        self.0.upgrade().map(ScaledTimeouts)
    }
}

/// How long a timeout lasts by the shard's scale. Some time, so that what a handler starts is not
/// due in the same turn.
fn span<T: Send + 'static>(min: u64, max: u64, timers: &Timers<T>) -> u64 {
    (min + timers.core().scale().of(max - min)).max(1)
}

impl<V: 'static, T: Send + 'static> Inner<V, T> {
    fn deadline(&self, start: u64) -> Tick {
        let at = start.saturating_add(self.span.get());
        self.timers.core().time().ceil(at)
    }

    /// The deadline of the first one.
    fn first_deadline(&self) -> Option<Tick> {
        let start = self.queue.borrow().first_start()?;
        Some(self.deadline(start))
    }

    /// Schedules the timer for the first one. False if the shard has no room for it.
    fn set_timer(&self) -> bool {
        let Some(deadline) = self.first_deadline() else { return true };
        let core = self.timers.core();
        // The driver is woken when the timer is known.
        let _compound = core.compound();
        let timer = core.schedule_shared(ClassId::NONE, deadline, &self.look, 0);
        self.timer.set(timer);
        timer.is_some()
    }

    /// The timer has fired.
    fn look(&self) {
        self.timer.set(None);
        let Some(deadline) = self.first_deadline() else { return };
        let core = self.timers.core();
        if core.is_closed() {
            // What is pending fires at once.
            return self.set_due();
        }
        let is_due = deadline <= core.time().floor(core.nanos_near());
        // The slot of the timer that has just fired is free, and is not let go: what waits must not
        // be left without a timer.
        let deadline = if is_due { Tick::NEVER } else { deadline };
        self.timer.set(core.schedule_shared(ClassId::NONE, deadline, &self.look, 0));
        debug_assert!(self.timer.get().is_some(), "a slot is free, and nothing has run since");
        if is_due || self.timer.get().is_none() {
            self.set_due();
        }
    }

    fn set_due(&self) {
        if !self.is_due.replace(true) {
            self.part.add_due(self.this.clone());
        }
    }

    fn drop_timer_if_empty(&self) {
        if self.queue.borrow().is_empty()
            && let Some(timer) = self.timer.take()
        {
            self.timers.core().cancel_shared(timer);
        }
    }

    fn count(&self, count: impl FnOnce(&mut ScaledStats)) {
        let mut counts = self.counts.get();
        count(&mut counts);
        self.counts.set(counts);
    }
}

impl<V: 'static, T: Send + 'static> Range for Inner<V, T> {
    fn rescale(&self) {
        let span = span(self.min, self.max, &self.timers);
        let core = self.timers.core();
        let now = core.nanos_near();
        if self.span.replace(span) > span {
            self.shrunk_at.set(now);
        }
        if !self.is_due.get()
            && let (Some(timer), Some(deadline)) = (self.timer.get(), self.first_deadline())
        {
            // What a change makes due is not late by then, and nor is its timer.
            let _moved = core.reset(timer, deadline.max(core.time().floor(now)));
        }
    }

    fn is_due(&self, tick: Tick) -> bool {
        let core = self.timers.core();
        match self.first_deadline() {
            Some(deadline) if deadline <= tick || core.is_closed() => return true,
            Some(deadline) => {
                if let Some(timer) = self.timer.get() {
                    let _moved = core.reset(timer, deadline);
                }
            }
            None => {}
        }
        self.is_due.set(false);
        false
    }

    fn deliver(&self, now: u64) {
        let popped = self.queue.borrow_mut().pop();
        let Some((start, value)) = popped else { return };
        let core = self.timers.core();
        let deadline = core.time().start_of(self.deadline(start));
        // What a change has made due was not due before.
        let due = deadline.max(self.shrunk_at.get());
        self.part.note_fired(now.saturating_sub(due));
        self.part.remove_pending(1);
        self.count(|counts| counts.expired += 1);
        self.drop_timer_if_empty();
        // Before the handler, which may panic.
        self.part.add_due(self.this.clone());
        let Some(this) = self.this.upgrade().map(ScaledTimeouts) else { return };
        let mut running = Running { place: &self.handler, handler: self.handler.take() };
        if let Some(handler) = &mut running.handler {
            handler(value, &this);
        }
    }
}

/// A handler that is put back when it has run, however it ends.
struct Running<'a, H> {
    place: &'a Cell<Option<H>>,
    handler: Option<H>,
}

impl<H> Drop for Running<'_, H> {
    fn drop(&mut self) {
        self.place.set(self.handler.take());
    }
}

impl<V: 'static, T: Send + 'static> Drop for Inner<V, T> {
    fn drop(&mut self) {
        let core = self.timers.core();
        if let Some(timer) = self.timer.take() {
            core.cancel_shared(timer);
        }
        let queue = std::mem::replace(self.queue.get_mut(), Queue::new());
        self.part.remove_pending(queue.len() as u64);
        core.drop_each(queue.into_values());
        core.drop_each(self.handler.take());
    }
}

impl<V: 'static, T: Send + 'static> Clone for ScaledTimeouts<V, T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<V: 'static, T: Send + 'static> Clone for WeakScaledTimeouts<V, T> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<V: 'static, T: Send + 'static> fmt::Debug for WeakScaledTimeouts<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakScaledTimeouts(..)")
    }
}

impl<V: 'static, T: Send + 'static> fmt::Debug for ScaledTimeouts<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScaledTimeouts")
            .field("min", &self.min())
            .field("max", &self.max())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ScaledTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scaled timeout {}", self.serial)
    }
}
