//! Timeouts that become shorter under pressure, all at once, between a minimum and a maximum.
//!
//! For servers that shed idle clients when memory or descriptors run short. By hand it is a timer
//! for each timeout, and a reset of each of them when the pressure changes: O(timeouts) instead of
//! O(ranges), and a timer of the shard for each.
//!
//! ```
//! use std::cell::RefCell;
//! use std::rc::Rc;
//! use std::time::Duration;
//! use corewheel::clock::ManualClock;
//! use corewheel::settings::Scale;
//! use corewheel::{Fired, TimerService};
//! use corewheel_kit::scaled::ScaledTimeouts;
//!
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service = builder.start_attached_with::<()>()?;
//! let shard = service.shards().next().unwrap();
//! let mut shard = service.attach(shard)?.into_loop(|_: Fired<()>, _: &_| {})?;
//! let timers = shard.timers().clone();
//!
//! // A connection may be idle for a minute, and for five seconds when memory is scarce.
//! let closed = Rc::new(RefCell::new(Vec::new()));
//! let seen = Rc::clone(&closed);
//! let (min, max) = (Duration::from_secs(5), Duration::from_secs(60));
//! let note = move |connection, _: &_| seen.borrow_mut().push(connection);
//! let idle = ScaledTimeouts::new(&timers, min, max, note)?;
//! let a = idle.start("a")?;
//! idle.start("b")?;
//! clock.advance(Duration::from_secs(10));
//! idle.reset(a);
//! let _ = shard.turn();
//! assert!(closed.borrow().is_empty());
//!
//! // A quarter of the way from 5 to 60 s is 18.75 s, none of it is 5 s.
//! timers.set_scale(Scale::new(0.25)?);
//! timers.set_scale(Scale::ZERO);
//! let _ = shard.turn();
//! assert_eq!(*closed.borrow(), ["b"]);
//!
//! // There is enough memory again.
//! timers.set_scale(Scale::ONE);
//! clock.advance(Duration::from_secs(59));
//! let _ = shard.turn();
//! assert_eq!(idle.cancel(a), Some("a"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A server that runs short of memory or of file descriptors closes idle connections sooner. Its
//! timeouts have a minimum and a maximum, and the shard has a [`Scale`]. A timeout lasts for
//! `min + (max - min) × scale` from its start or its last reset, by the present scale and not by
//! that at its start. The idea is that of Envoy's overload manager, where a timer looks at the
//! scale when its minimum is over; here, a change of the scale changes pending timeouts, too.
//!
//! Why a queue for each minimum and maximum, and not a timer for each timeout: all timeouts in the
//! queue last equally long whatever the scale is, so they are due in the order in which they were
//! started. The queue asks the shard for a turn when the first of them is due, and has no timer.
//!
//! # Cost
//!
//! 40 bytes and the value for each timeout, and some 10 to 20 in the table that finds it, taken
//! when they are needed, and kept. To start, reset or cancel a timeout is a clock reading and a
//! look-up. A change of the scale is O(ranges of the shard), however many timeouts wait. Each range
//! [takes part in turns](corewheel::part::Part::takes_turns).
//!
//! # Statistics
//!
//! The histogram of lateness includes scaled timeouts. If the [`Timers`] that the timeouts were
//! made with have a class, each timeout counts for it as a timer does: scheduled, fired, cancelled
//! (drained and dropped ones included), refused, late, overrun and pending. Resets are not counted,
//! and the age of a timeout counts from its last one.

// A turn delivers timeouts that are due one by one, alternating with timers. Why not all of them at
// once: so many may be due that a turn must end before they do.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::part::{Part, PartHandle, Wants};
use corewheel::settings::Scale;
use corewheel::{ConfigError, Deadline, Refused, Timers};
use hashlink::LinkedHashMap;

/// Timeouts of one shard that last for a minimum, a maximum or a time in between, by the shard's
/// [`Scale`]. See the [module](self).
///
/// `V` is the type of the values, such as a connection; the handler is given the value when its
/// timeout ends. It is `!Send`; a clone shares the timeouts, and other threads use them by a
/// [`Kept`](corewheel::kept::Kept).
///
/// The scale belongs to the shard, and applies to all of its `ScaledTimeouts`. It is set with
/// [`Timers::set_scale`] on the shard, and with
/// [`Handle::set_scale`](corewheel::Handle::set_scale) or
/// [`TimerService::set_scale`](corewheel::TimerService::set_scale) from any thread. Timeouts that a
/// change makes due are delivered in the order in which they were started, alternating with the
/// shard's other timers, up to the budget of a turn in each turn. If the scale is set back
/// meanwhile, the rest stays.
///
/// A timeout never ends before its minimum. It is late as any timer is: the histogram counts from
/// its end, or from the change of the scale if that made it due. Its end is rounded up to a tick,
/// and lies in a later turn than its start.
///
/// When the shard is shut down by `ShutdownPolicy::Fire`, all timeouts end at once. By the other
/// policies they stay until they are cancelled or [drained](Self::drain). Dropping the last clone
/// drops the values. A value that holds these `ScaledTimeouts` keeps them alive as long as it waits
/// there; to avoid that, put them into an `Rc` and give the value a [`std::rc::Weak`].
pub struct ScaledTimeouts<V: 'static>(Rc<Inner<V>>);

/// Names one timeout of one [`ScaledTimeouts`], however often it is reset. Once the timeout has
/// ended, the name stands for nothing, and using it does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScaledTimeout(u64);

type Handler<V> = Box<dyn FnMut(V, &ScaledTimeouts<V>)>;

struct Inner<V: 'static> {
    shard: PartHandle,
    /// When each was started, in this order, and its value. All last equally long at any time, so
    /// this is also the order in which they are due: no change of the scale changes it.
    queue: RefCell<LinkedHashMap<ScaledTimeout, (Duration, V)>>,
    /// How many were started.
    started: Cell<u64>,
    /// The tick in which the present turn began.
    turn: Cell<Deadline>,
    handler: RefCell<Handler<V>>,
    /// The shortest and the longest time of a timeout.
    range: (Duration, Duration),
    /// How long a timeout lasts by the present scale.
    span: Cell<Duration>,
    /// When the span last became shorter. `None` if it never has.
    shrunk_at: Cell<Option<Instant>>,
    capacity: usize,
}

impl<V> ScaledTimeouts<V> {
    /// Timeouts on this shard that last from `min` to `max` by the shard's
    /// [scale](Timers::set_scale), for as many values as the shard can have timers. A `max` that
    /// does not fit (584 years) means never.
    ///
    /// The handler runs on this core with nothing borrowed, and is given the timeouts too, so it
    /// may start, reset and cancel timeouts. If it panics, the shard logs and counts the panic, and
    /// the handler is called for the next timeout.
    ///
    /// # Errors
    ///
    /// `min` is more than `max`, or `max` is zero.
    pub fn new<T: Send + 'static>(
        timers: &Timers<T>,
        min: Duration,
        max: Duration,
        handler: impl FnMut(V, &Self) + 'static,
    ) -> Result<Self, ConfigError> {
        ConfigError::if_zero("max", max)?;
        if min > max {
            let limit = format!("max is {max:?}");
            return Err(ConfigError::new("min", min, limit, "make it no more than that"));
        }
        Ok(Self(timers.add_part(|shard| Inner {
            queue: RefCell::default(),
            started: Cell::new(0),
            turn: Cell::new(shard.tick().into()),
            handler: RefCell::new(Box::new(handler)),
            range: (min, max),
            span: Cell::new(span((min, max), &shard)),
            shrunk_at: Cell::new(None),
            capacity: timers.capacity() as usize,
            shard,
        })))
    }

    /// Starts a timeout, now.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn start(&self, value: V) -> Result<ScaledTimeout, Refused<V>> {
        if self.0.shard.is_closed() {
            return Err(Refused::Closed(value));
        }
        if self.len() >= self.0.capacity {
            self.0.shard.count(|counts| counts.refused += 1);
            return Err(Refused::Full(value));
        }
        let timeout = ScaledTimeout(self.0.started.replace(self.0.started.get() + 1));
        let start = self.0.start();
        self.0.queue.borrow_mut().insert(timeout, (start, value));
        self.0.shard.count(|counts| {
            counts.scheduled += 1;
            counts.pending += 1;
        });
        self.0.shard.publish();
        self.0.note_first();
        if self.len() == 1 {
            self.0.wake();
        }
        Ok(timeout)
    }

    /// Starts a timeout again, from now. False if it has ended.
    ///
    /// A clock reading and a look-up.
    pub fn reset(&self, timeout: ScaledTimeout) -> bool {
        let start = self.0.start();
        let is_there = self.0.queue.borrow_mut().to_back(&timeout).map(|it| it.0 = start).is_some();
        self.0.note_first();
        is_there
    }

    /// Cancels a timeout and returns its value. A timeout that is due and not delivered can still
    /// be cancelled. `None` if it has ended.
    pub fn cancel(&self, timeout: ScaledTimeout) -> Option<V> {
        let (_, value) = self.0.queue.borrow_mut().remove(&timeout)?;
        self.0.note_cancelled(1);
        Some(value)
    }

    /// Cancels all timeouts and returns their values, the one that is due first at the beginning.
    /// O(timeouts).
    pub fn drain(&self) -> Vec<V> {
        self.0.drain()
    }

    /// How many timeouts wait.
    pub fn len(&self) -> usize {
        self.0.queue.borrow().len()
    }

    /// Whether no timeout waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V> Inner<V> {
    /// Of a timeout that starts now. A clock that goes back changes no order.
    fn start(&self) -> Duration {
        let now = self.shard.since_start();
        self.queue.borrow().back().map_or(now, |(_, (last, _))| now.max(*last))
    }

    /// The start of the first one.
    fn first(&self) -> Option<Duration> {
        Some(self.queue.borrow().front()?.1.0)
    }

    fn first_deadline(&self) -> Option<Deadline> {
        let end = self.first()?.saturating_add(self.span.get());
        Some(self.shard.deadline(self.shard.instant_after(end)))
    }

    /// Whether a timeout is due in the present turn. A shutdown delivers all that is pending.
    fn is_due(&self, deadline: Deadline) -> bool {
        deadline <= self.turn.get() || self.shard.is_closed()
    }

    /// Wakes the driver if it sleeps past the first timeout.
    fn wake(&self) {
        let Some(deadline) = self.first_deadline() else { return };
        self.shard.wake_past(deadline);
    }

    /// The first timeout may be another one.
    fn note_first(&self) {
        if self.shard.has_class() {
            self.shard.set_oldest(self.first().map(|start| self.shard.instant_after(start)));
        }
    }

    /// Takes all values out, in order.
    fn drain(&self) -> Vec<V> {
        let values: Vec<_> = self.queue.take().into_iter().map(|(_, (_, value))| value).collect();
        self.note_cancelled(values.len());
        values
    }

    /// So many timeouts were taken out of the queue, undelivered.
    fn note_cancelled(&self, count: usize) {
        self.shard.count(|counts| {
            counts.pending -= count as u64;
            counts.cancelled += count as u64;
        });
        self.shard.publish();
        self.note_first();
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

    fn turn_begins(&self, _now: Duration) {
        self.turn.set(self.shard.tick().into());
    }

    fn wants(&self) -> Wants {
        match self.first_deadline() {
            None => Wants::Nothing,
            Some(first) if self.is_due(first) => Wants::Delivery,
            Some(first) => Wants::TurnBy(first),
        }
    }

    fn deliver(self: Rc<Self>, now: Duration) {
        let Some(first) = self.first_deadline().filter(|first| self.is_due(*first)) else { return };
        let Some((_, (_, value))) = self.queue.borrow_mut().pop_front() else { return };
        let deadline = self.shard.instant_of(first);
        // A timeout that a change of the scale has made due was not due before the change.
        let due = self.shrunk_at.get().map_or(deadline, |shrunk_at| deadline.max(shrunk_at));
        let late = self.shard.instant_after(now).saturating_duration_since(due);
        self.shard.begin_delivery(late);
        self.note_first();
        let this = ScaledTimeouts(self);
        // A turn is not taken within a turn.
        this.0.shard.contain(|| this.0.handler.borrow_mut()(value, &this));
    }

    fn scale_changed(&self, _scale: Scale) {
        let span = span(self.range, &self.shard);
        if self.span.replace(span) > span {
            self.shrunk_at.set(Some(self.shard.now()));
        }
        self.wake();
    }
}

impl<V: 'static> Drop for Inner<V> {
    fn drop(&mut self) {
        self.shard.drop_each(self.drain());
        self.shard.drop_each([self.handler.replace(Box::new(|_, _| {}))]);
    }
}

impl<V: 'static> Clone for ScaledTimeouts<V> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<V> fmt::Debug for ScaledTimeouts<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScaledTimeouts").field("len", &self.len()).finish_non_exhaustive()
    }
}
