//! Statistics of a service, readable from any thread.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::clock::ManualClock;
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached_with::<u64>()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let mut shard = attachment.into_loop(|_, _| {})?;
//! shard.timers().schedule(Duration::from_millis(5), 1)?;
//! shard.timers().schedule(Duration::from_secs(60), 2)?;
//! clock.advance(Duration::from_millis(7));
//! let _next = shard.turn();
//!
//! let stats = service.stats();
//! let shard = &stats.shards[0];
//! assert_eq!((shard.counts.fired, shard.counts.pending, shard.counts.late), (1, 1, 0));
//! assert!(shard.lateness.p99_ns >= 2_000_000, "it was delivered 2 ms after its deadline");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`ServiceStats`] is a plain value, which serde can serialize. The package `corewheel-stats`
//! serves it over HTTP. [`TimerService::stats_source`](crate::TimerService::stats_source) reads
//! the statistics where the service itself is not at hand.
//!
//! A shard keeps its counts in plain numbers and stores them once a turn, relaxed, into a line of
//! atomics of its own; commands on its own core, between turns, store the counts that they change.
//! A reader sends the shard nothing. It takes locks, each for as long as it copies some numbers or
//! a list. Those of the shard's mailbox, of its state and of the list of threads with timers are
//! taken by others seldom. Under that of a thread's timers, the thread arms one and the shard acts.
//! Under that of a class a handler makes a container of it. The shard takes those of its gauges
//! and its late deliveries when it has something new. Only readers take that of the warnings. The
//! counts of one reading were stored together: a reader that comes while the shard stores them
//! reads again.
//!
//! # What is measured
//!
//! [`ShardStats::lateness`] has all deliveries. Of a delivery beyond the service's bound the shard
//! tells in four [parts](ShardStats::late_parts) where its lateness arose, and keeps the last 64.
//! [`ServiceStats::warnings`] says in sentences what needs attention; [`WarningKind`] lists them.
//!
//! # As JSON
//!
//! With the feature `serde` a [`ServiceStats`] is JSON, and `/stats.json` of the endpoint serves
//! it. Five fields more, such as the table of [`WarningKind`], are those of the endpoint: the guide
//! [`statistics`](crate::guide::statistics) has them. The other fields are those of the types here,
//! in their order: a struct is an object, a list or a pair an array, an enum without fields a
//! string, and a `Duration` an object of `secs` and `nanos`. The counts of a shard and of a class
//! are fields of their object, so `shards[0].fired` is a count. Fields that end in `_ns` are
//! nanoseconds; those named `at_ns`, `since_ns` and `last_ns` count from the start of the service,
//! as `uptime` does. `schema` is the version of this form.
//!
//! Cost: publishing is some eighty stores a turn.

pub(crate) mod class;
pub(crate) mod counts;
mod gauges;
pub(crate) mod host;
pub(crate) mod late;
pub(crate) mod live;
#[cfg(all(test, corewheel_loom))]
mod loom_tests;
pub(crate) mod monitor;
pub(crate) mod publish;
pub(crate) mod recent;
pub(crate) mod tally;
pub(crate) mod times;
mod warnings;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::class::ClassStats;
pub use self::counts::ShardCounts;
pub use self::late::LateDelivery;
pub use self::tally::DeadlineStats;
pub use self::times::Times;
use self::warnings::brief;
pub use self::warnings::{Warning, WarningKind};
use crate::values::ids::ShardId;
use crate::values::scale::Scale;
use crate::values::settings::{TurnBudget, WarningLimits};
pub use crate::values::state::ShardState;

/// One shard at one moment.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel::clock::ManualClock;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let service = TimerService::builder().shards(1).clock(&clock).start_attached_with::<u64>()?;
/// let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
/// shard.timers().schedule(Duration::from_millis(5), 1)?;
/// clock.advance(Duration::from_millis(7));
/// let _next = shard.turn();
///
/// let stats = service.stats().shards.remove(0);
/// assert_eq!((stats.counts.fired, stats.lateness.count), (1, 1));
/// for late in &stats.late_deliveries {
///     println!("{} ns late", late.lateness_ns);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardStats {
    /// The id of the shard.
    pub shard: ShardId,
    /// Whether it takes timers.
    pub state: ShardState,
    /// Whether its connections are told to end, since a
    /// [`drain`](crate::TimerService::drain) has begun. A drain does not end.
    pub is_draining: bool,
    /// The [scale](crate::Timers::set_scale) of its timeouts.
    pub scale: Scale,
    /// The counts of the shard.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub counts: ShardCounts,
    /// The counts of the shard for each class of timers, in the order in which the builder was
    /// given the classes.
    pub classes: Vec<ClassStats>,
    /// How long after their deadline, rounded up to a tick, timers and scaled timeouts were
    /// delivered. Of up to 16 futures that are woken one right after the other, each but the first
    /// counts as woken with the last.
    pub lateness: Times,
    /// How long timers from other threads were on the way to the shard.
    pub ring_delay: Times,
    /// How long turns took.
    pub turn_time: Times,
    /// The lateness of the deliveries beyond the service's bound, in the four parts of which each
    /// is the sum, by their names:
    ///
    /// - `arrival`: the timer came to the shard after its deadline. Its sender sent it late, its
    ///   deadline had passed when it was scheduled, or turns left it in its lane, since they took
    ///   other requests.
    /// - `poll_delay`: a turn was due, and the shard's thread did not begin it. The executor ran
    ///   another task, or the thread waited for a processor.
    /// - `handlers`: the handlers and callbacks of other timers took the time, those that were
    ///   delivered before it in its turn, and those of the turn that went on at its deadline.
    /// - `backlog`: the rest, which is earlier turns that had no budget left for it, and the work
    ///   of turns before their first delivery.
    pub late_parts: BTreeMap<&'static str, Times>,
    /// The last 64 deliveries beyond the service's bound, the latest first.
    pub late_deliveries: Vec<LateDelivery>,
    /// For how long a turn has been due and has not ended, in nanoseconds; 0 if none is due. The
    /// earliest timer that is due has waited for as long, or for less if the turn is due for the
    /// wheel's own work. It is computed by the reader, so it grows while the shard is stuck.
    pub overdue_ns: u64,
    /// For how long the turn that runs now has been running, in nanoseconds; `None` between turns.
    pub turn_ns: Option<u64>,
    /// The class of the timer that is delivered now; `None` if it has none, and between turns.
    pub delivering: Option<&'static str>,
    /// The number that the system has for the shard's thread, as tools such as `top -H` show it;
    /// `None` where it says none, for a shard that does not run or has a clock that a test moves,
    /// and for several shards together.
    pub thread_id: Option<u32>,
    /// For how long the shard's thread has run, in nanoseconds; `None` where the system does not
    /// say it, and where there is no [`thread_id`](Self::thread_id).
    pub thread_ran_ns: Option<u64>,
    /// For how long it was ready to run and waited for a processor, in nanoseconds; `None` as
    /// above.
    pub thread_waited_ns: Option<u64>,
    /// The bytes that the shard's timers have touched: slots and entries, without the side tables,
    /// and without the timers of futures.
    pub memory_bytes: u64,
    /// The gauges that [parts](crate::part::Part::publish) of the shard have set, by their names;
    /// after its end, those with which it has ended. As JSON, an object.
    pub gauges: BTreeMap<&'static str, u64>,
}

impl ShardStats {
    /// For how long a turn has been due or has been running, whichever is longer.
    pub fn stuck_for(&self) -> Duration {
        Duration::from_nanos(self.overdue_ns.max(self.turn_ns.unwrap_or(0)))
    }

    /// What keeps the shard, for a sentence.
    fn stuck_text(&self) -> String {
        match (self.turn_ns, self.delivering) {
            (Some(turn), Some(class)) => {
                format!("a turn has been running for {}, now for class {class}", brief(turn))
            }
            (Some(turn), None) => format!("a turn has been running for {}", brief(turn)),
            (None, _) => format!(
                "a turn has been due for {}, and its thread has not begun it",
                brief(self.overdue_ns)
            ),
        }
    }
}

/// A service at one moment: a plain value.
///
/// ```
/// use corewheel::TimerService;
///
/// let service = TimerService::builder().shards(2).start_attached_with::<u64>()?;
/// let stats = service.stats();
/// let pending: u64 = stats.shards.iter().map(|shard| shard.counts.pending).sum();
/// assert!(pending == 0 && stats.deadlines.iter().all(|deadline| deadline.count == 0));
/// for warning in &stats.warnings {
///     println!("{warning:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServiceStats {
    /// The version of this form, [`SCHEMA`](Self::SCHEMA).
    pub schema: u32,
    /// The version of this crate.
    pub version: &'static str,
    /// The service's name.
    pub name: String,
    /// The runtime of its shards: `glommio`, `tokio`, `thread` or `attached`.
    pub runtime: &'static str,
    /// How many processors the process may use.
    pub cores: usize,
    /// The length of a tick in nanoseconds.
    pub tick_ns: u64,
    /// The bound beyond which a delivery counts as late, in nanoseconds.
    pub lateness_bound_ns: u64,
    /// How long a callback may take before it counts as overrun, in nanoseconds.
    pub overrun_ns: u64,
    /// The most requests that wait in one lane.
    pub lane_capacity: usize,
    /// How much one turn may do.
    pub budget: TurnBudget,
    /// The thresholds of the warnings.
    pub warning_limits: WarningLimits,
    /// How long the service has been up; by a [manual clock](crate::clock::ManualClock), what that
    /// has run since it was made.
    pub uptime: Duration,
    /// The warnings that have occurred, by shard and in the order of [`WarningKind::ALL`].
    pub warnings: Vec<Warning>,
    /// Its shards, in order.
    pub shards: Vec<ShardStats>,
    /// The deadlines of connections that have come, and the connections that they have ended. In
    /// the order of [`DeadlineKind`](crate::DeadlineKind), with all kinds from the start.
    pub deadlines: Vec<DeadlineStats>,
    /// How many connections have ended without a deadline: their owner has closed them, for
    /// instance since the peer had. Connections that end with their shard or service are not
    /// counted.
    pub connections_closed: u64,
    /// By how much at most an idle deadline of a connection on a shard is later than its limit
    /// says, in nanoseconds, unless the thread is held up: a touch of the connection is stamped
    /// without a reading of the clock. This is no lateness of the timer. On any thread, stamps are
    /// exact.
    pub activity_stamp_ns: u64,
}

impl ServiceStats {
    /// The version of the form that the statistics have as JSON. It grows when a field changes its
    /// meaning or goes; new fields do not change it.
    pub const SCHEMA: u32 = 1;

    /// The classes of timers, all shards together, in the order in which the builder was given
    /// them.
    pub fn classes(&self) -> Vec<ClassStats> {
        ClassStats::sum(self.shards.iter().map(|shard| &*shard.classes))
    }
}
