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
//! use corewheel_kit::TimersExt;
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
//! let idle = timers.scaled(min, max, move |connection, _| seen.borrow_mut().push(connection))?;
//! let a = idle.start("a")?;
//! idle.start("b")?;
//! clock.advance(Duration::from_secs(10));
//! idle.reset(a);
//! let _ = shard.turn();
//! assert!(closed.borrow().is_empty());
//!
//! // A quarter of the way from 5 to 60 s is 18.75 s, none of it is 5 s.
//! timers.set_scale(Scale::new(0.25)?);
//! assert_eq!(idle.remaining(a), Some(Duration::from_millis(18_750)));
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
//! timeouts have a minimum and a maximum, and the shard has a
//! [`Scale`](corewheel::settings::Scale). A timeout lasts for
//! `min + (max - min) × scale` from its start or its last reset, by the present scale and not by
//! that at its start. The idea is that of Envoy's overload manager, where a timer looks at the
//! scale when its minimum is over; here, a change of the scale changes pending timeouts, too.
//!
//! Why a queue for each minimum and maximum, and not a timer for each timeout: all timeouts in the
//! queue last equally long whatever the scale is, so they are due in the order in which they were
//! started, and only the first one needs a timer. A change of the scale resets that one.
//!
//! # Cost
//!
//! 32 bytes and the value for each timeout. To start, reset or cancel a timeout is a clock reading
//! and a few stores; only the first and the last timeout of a queue touch the wheel. A change of
//! the scale is O(ranges of the shard), however many timeouts wait. Each range
//! [takes part in turns](corewheel::part::Part::takes_turns).
//!
//! # Statistics
//!
//! The histogram of lateness includes scaled timeouts. If the [`Timers`] that the timeouts were
//! made with have a class, each timeout counts for it as a timer does: scheduled, fired, cancelled
//! (drained and dropped ones included), refused, late, overrun and pending. Resets are not counted,
//! and the age of a timeout counts from its last one.

mod queue;
mod range;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{ConfigError, Refused, Timers};

use self::range::Inner;
use crate::capacity::check;

/// Timeouts of one shard that last for a minimum, a maximum or a time in between, by the shard's
/// [`Scale`](corewheel::settings::Scale); made by [`TimersExt::scaled`](crate::TimersExt::scaled).
/// See the [module](self).
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScaledTimeout {
    serial: u64,
    index: u32,
}

impl<V> ScaledTimeouts<V> {
    pub(crate) fn new<T: Send + 'static>(
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
        let (range, capacity) = ((min, max), check("capacity", capacity)?);
        let make = |shard| Inner::new(shard, range, capacity, Box::new(handler));
        Ok(Self(timers.add_part(make)))
    }

    /// Starts a timeout, now.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the value.
    pub fn start(&self, value: V) -> Result<ScaledTimeout, Refused<V>> {
        self.0.start(value)
    }

    /// Starts a timeout again, from now. False if it has ended.
    ///
    /// A clock reading and a few stores: the wheel is not touched.
    pub fn reset(&self, timeout: ScaledTimeout) -> bool {
        let now = self.0.shard.since_start();
        let is_reset = self.0.queue.borrow_mut().restart(timeout, now);
        self.0.note_first();
        is_reset
    }

    /// Cancels a timeout and returns its value. A timeout that is due and not delivered can still
    /// be cancelled. `None` if it has ended.
    pub fn cancel(&self, timeout: ScaledTimeout) -> Option<V> {
        let value = self.0.queue.borrow_mut().remove(timeout)?;
        self.0.note_cancelled(1);
        Some(value)
    }

    /// Cancels all timeouts and returns their values, the one that is due first at the beginning.
    /// O(timeouts).
    pub fn drain(&self) -> Vec<V> {
        let values = self.0.queue.borrow_mut().drain();
        self.0.note_cancelled(values.len());
        values
    }

    /// How much time is left of a timeout by the present scale; zero if it is due. `None` if it has
    /// ended.
    pub fn remaining(&self, timeout: ScaledTimeout) -> Option<Duration> {
        let start = self.0.queue.borrow().get(timeout)?;
        Some(self.0.shard.time_left(self.0.deadline(start)))
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

impl fmt::Debug for ScaledTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scaled timeout {}", self.serial)
    }
}
