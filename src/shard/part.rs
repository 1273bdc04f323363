//! A container of your own on a shard: a part of the shard, with timers, gauges and messages.
//!
//! Connections and kept values are such parts. A part lives on the shard's thread and may be
//! `!Send`. Its timers carry an index of the part's choice and no value, so that they need no
//! allocation and have the size of the shard's other timers.
//!
//! Why not a callback for each timer: it is boxed, it takes part in no turn, and it has to hold
//! what it works on.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use corewheel_shard::TimerKey;

use crate::clock::when::Deadline;
use crate::stats::ShardCounts;
use crate::values::scale::Scale;

/// What a shard calls in its turns. Every method has a default, which does nothing.
///
/// A part is made by [`Timers::add_part`] or [`Timers::shared_part`]. The shard calls it on the
/// shard's own thread, with nothing borrowed unless a method says otherwise, so the part may use
/// the [`Timers`], its [`PartHandle`] and other containers. A panic is caught and logged, and ends
/// only that call.
///
/// [`PartHandle`]: crate::part::PartHandle
/// [`Timers`]: crate::Timers
/// [`Timers::add_part`]: crate::Timers::add_part
/// [`Timers::shared_part`]: crate::Timers::shared_part
///
/// A part that [takes part in turns](Self::takes_turns) costs the shard some seven dynamic calls
/// for each turn, and one for each delivery of a part. Another part costs nothing but its timers.
pub trait Part: Any {
    /// Whether [`turn_begins`](Self::turn_begins), [`wants`](Self::wants),
    /// [`deliver`](Self::deliver), [`postpone`](Self::postpone), [`publish`](Self::publish) and
    /// [`scale_changed`](Self::scale_changed) are called. The shard asks once, when the part is
    /// made. False by default: such a part has timers, messages and an end.
    fn takes_turns(&self) -> bool {
        false
    }

    /// A turn begins, before it receives requests. `now` is how long the service's clock has run,
    /// as [`PartHandle::since_start`] says it.
    ///
    /// [`PartHandle::since_start`]: crate::part::PartHandle::since_start
    fn turn_begins(&self, _now: Duration) {}

    /// What the part wants of the shard. It is called several times a turn, and before the shard
    /// falls asleep, so it must be cheap and change nothing. It is not called after each timer: a
    /// part that begins to want a delivery in the callback of another's timer calls
    /// [`PartHandle::wake`](crate::part::PartHandle::wake), or delivers after the timers that are
    /// due.
    fn wants(&self) -> Wants {
        Wants::Nothing
    }

    /// Delivers one item: called while the part [wants](Self::wants) a delivery. Deliveries of
    /// parts and of timers alternate, and both use up the budget of the turn. A shutdown that fires
    /// all timers delivers until no part wants a delivery any more. `now` is when the delivery
    /// begins, as for [`turn_begins`](Self::turn_begins).
    fn deliver(self: Rc<Self>, _now: Duration) {}

    /// Until when a timer of the part that has expired is postponed; `None` if it is to be
    /// delivered now. After the shard has begun to shut down, no timer is postponed.
    ///
    /// The state of the shard is borrowed meanwhile: a call of the shard's commands panics.
    fn postpone(&self, _index: u32) -> Option<Deadline> {
        None
    }

    /// Delivers a timer of the part. No other code has run since the timer's slot became free, so
    /// the shard has room for another timer of the part.
    fn expired(self: Rc<Self>, _index: u32) {}

    /// Writes the part's gauges, at the end of a turn.
    ///
    /// The state of the shard is borrowed meanwhile: a call of the shard's commands panics.
    fn publish(&self, _gauges: &mut Gauges<'_>) {}

    /// The shard's [scale](crate::Timers::set_scale) has changed.
    fn scale_changed(&self, _scale: Scale) {}

    /// The shard begins to shut down: it takes no timer and no message any more, and still has its
    /// timers.
    fn closing(&self) {}

    /// The shard has ended and has no timers any more. `is_dead` if its driver ended without a
    /// shutdown.
    fn closed(&self, _is_dead: bool) {}

    /// Whether the part runs futures of its users. Such a part is closed after the others.
    fn runs_futures(&self) -> bool {
        false
    }
}

/// What a [`Part`] wants of its shard.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::part::{Gauges, Part, PartHandle, Wants};
/// use std::cell::RefCell;
/// use std::rc::Rc;
/// use std::time::Duration;
///
/// /// Lines that are written one at a time, among the deliveries of timers.
/// struct Lines {
///     shard: PartHandle,
///     waiting: RefCell<Vec<&'static str>>,
/// }
///
/// impl Lines {
///     fn write(&self, line: &'static str) {
///         self.waiting.borrow_mut().push(line);
///         self.shard.wake();
///     }
/// }
///
/// impl Part for Lines {
///     fn takes_turns(&self) -> bool {
///         true
///     }
///
///     fn wants(&self) -> Wants {
///         if self.waiting.borrow().is_empty() { Wants::Nothing } else { Wants::Delivery }
///     }
///
///     fn deliver(self: Rc<Self>, _now: Duration) {
///         println!("{:?}", self.waiting.borrow_mut().pop());
///     }
///
///     fn publish(&self, gauges: &mut Gauges<'_>) {
///         gauges.set("lines_waiting", self.waiting.borrow().len() as u64);
///     }
/// }
///
/// let service = TimerService::builder().shards(1).start_attached()?;
/// let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
/// let lines = shard.timers().add_part(|shard| Lines { shard, waiting: RefCell::default() });
/// lines.write("one");
/// let _next = shard.turn();
/// assert!(lines.waiting.borrow().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wants {
    /// Nothing, until one of its timers expires or a message comes.
    #[default]
    Nothing,
    /// A turn, at this time at the latest.
    TurnBy(Deadline),
    /// To deliver an item in this turn. No driver falls asleep meanwhile.
    Delivery,
    /// To deliver an item in the next turn, which follows at once: the part has delivered enough in
    /// this one.
    NextTurn,
}

/// Where a [`Part`] writes its gauges.
pub struct Gauges<'a> {
    pub(super) part: PartId,
    pub(super) counts: &'a mut ShardCounts,
    pub(super) named: &'a mut Vec<(PartId, &'static str, u64)>,
}

impl Gauges<'_> {
    /// Sets a gauge of the shard, which its statistics show in
    /// [`ShardStats::gauges`](crate::stats::ShardStats::gauges). The gauges of one name of all
    /// parts add up.
    pub fn set(&mut self, name: &'static str, value: u64) {
        let own = (self.part, name);
        match self.named.iter_mut().find(|(part, name, _)| (*part, *name) == own) {
            Some((.., known)) => *known = value,
            None => self.named.push((self.part, name, value)),
        }
    }

    /// The counts that have rows of their own.
    pub(crate) fn counts(&mut self) -> &mut ShardCounts {
        self.counts
    }
}

debug_fields!([] Gauges<'_>, |_it|);

/// A timer of a [`Part`]. When the timer is gone, the name stands for nothing, and using it does no
/// harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartTimer(pub(super) TimerKey);

/// The number of a part within its shard, in three bytes: the slot of a timer has room for no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartId([u8; 3]);

impl PartId {
    /// # Panics
    ///
    /// If there are more than 2²⁴ parts.
    pub(super) fn new(number: usize) -> Self {
        assert!(number < 1 << 24, "a shard has at most 16,777,216 parts at a time");
        let [low, middle, high, ..] = number.to_le_bytes();
        Self([low, middle, high])
    }

    #[inline]
    pub(super) fn number(self) -> usize {
        let [low, middle, high] = self.0;
        usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16
    }

    /// The part and the index of one of its timers, as one word.
    #[inline]
    pub(super) fn with_index(self, index: u32) -> u64 {
        (self.number() as u64) << 32 | u64::from(index)
    }
}
