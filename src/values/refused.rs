//! What a shard or a container gives back when it does not accept a value, and why.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A value was not accepted, and comes back.
///
/// Every command that takes a value or a callback refuses with this type. [`kind`](Self::kind) is
/// the reason alone, without the value: an [`Error`] that is `Copy`, `Send`, `Sync` and `'static`.
/// By it `?` converts a refusal into `Box<dyn Error>` and `Box<dyn Error + Send + Sync>`, whatever
/// the value is. For that a refusal is no [`Error`] itself; where an error of another type is to be
/// made, `map_err(|refused| refused.kind())` comes first.
///
/// ```
/// # use corewheel::{Refused, RefusedKind, TimerService};
/// # use std::time::Duration;
/// let builder = TimerService::builder().shards(1).capacity(1);
/// # let service = builder.start_attached_with::<&str>()?;
/// # let shard = service.attach(service.shards().next().unwrap())?.into_loop(|_, _| {})?;
/// # let timers = shard.timers();
/// timers.schedule(Duration::from_secs(1), "first").map_err(|refused| refused.kind())?;
/// match timers.schedule(Duration::from_secs(1), "second") {
///     Err(Refused::Full(request)) => assert_eq!(request, "second", "shed, or tried later"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused<V> {
    /// There is no room: the shard holds as many timers as its capacity, or the container as many
    /// values. Shed load, or try again when some are gone.
    Full(V),
    /// The shard has no slot left for the timer, as slots are reserved as keys of other threads
    /// that are in use. Keys that are not used come back when others need them. Send from fewer
    /// threads, or raise the capacity.
    Reserved {
        /// What was not accepted.
        value: V,
        /// How many slots are reserved.
        keys: u32,
        /// How many threads hold the keys.
        threads: u32,
    },
    /// The lane from this thread to the shard is full for a moment, or the shard has not looked at
    /// it yet, as may be at the first schedule of a thread. Try again when the shard has taken its
    /// next turn, or let [`schedule_when_room`](crate::Handle::schedule_when_room) wait for
    /// it. Do not try again while you hold a lock that the shard's handler or callbacks take: the
    /// shard takes no turn before they return.
    Busy(V),
    /// No thread drives the shard yet: the service was made with
    /// [`start_attached`](crate::TimerServiceBuilder::start_attached), and the shard is not
    /// [attached](crate::TimerService::attach). Comes in place of `Busy` from methods that name
    /// `Busy` among their errors. Attach the shard, and try again then;
    /// [`schedule_when_room`](crate::Handle::schedule_when_room) waits for it.
    NotAttached(V),
    /// The service is shut down or was dropped, or this shard of it has ended. Keep the
    /// [`TimerService`](crate::TimerService) as long as its timers are needed: no handle keeps it
    /// alive.
    Closed(V),
    /// The service has no such shard.
    NoSuchShard(V),
}

/// The [`RefusedKind`], boxed.
impl<V> From<Refused<V>> for Box<dyn Error + Send + Sync> {
    fn from(refused: Refused<V>) -> Self {
        refused.kind().into()
    }
}

/// The [`RefusedKind`], boxed.
impl<V> From<Refused<V>> for Box<dyn Error> {
    fn from(refused: Refused<V>) -> Self {
        refused.kind().into()
    }
}

/// Shows the kind alone.
/// Why a value was not accepted: a [`Refused`] without its value, and the error of what has no
/// value to give back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RefusedKind {
    /// There is no room. See [`Refused::Full`].
    Full,
    /// Slots are reserved for other threads. See [`Refused::Reserved`].
    Reserved {
        /// How many slots are reserved.
        keys: u32,
        /// How many threads hold the keys.
        threads: u32,
    },
    /// The lane to the shard is full for a moment. See [`Refused::Busy`].
    Busy,
    /// No thread drives the shard yet. See [`Refused::NotAttached`].
    NotAttached,
    /// The service is shut down or was dropped, or this shard of it has ended.
    Closed,
    /// The service has no such shard.
    NoSuchShard,
}

impl RefusedKind {
    /// The refusal of a value for this reason: for a container of your own.
    pub fn of<V>(self, value: V) -> Refused<V> {
        match self {
            Self::Full => Refused::Full(value),
            Self::Reserved { keys, threads } => Refused::Reserved { value, keys, threads },
            Self::Busy => Refused::Busy(value),
            Self::NotAttached => Refused::NotAttached(value),
            Self::Closed => Refused::Closed(value),
            Self::NoSuchShard => Refused::NoSuchShard(value),
        }
    }
}

impl<V> Refused<V> {
    /// Why the value was not accepted.
    pub fn kind(&self) -> RefusedKind {
        match self {
            Self::Full(_) => RefusedKind::Full,
            Self::Reserved { keys, threads, .. } => {
                RefusedKind::Reserved { keys: *keys, threads: *threads }
            }
            Self::Busy(_) => RefusedKind::Busy,
            Self::NotAttached(_) => RefusedKind::NotAttached,
            Self::Closed(_) => RefusedKind::Closed,
            Self::NoSuchShard(_) => RefusedKind::NoSuchShard,
        }
    }

    /// The value.
    pub fn into_value(self) -> V {
        match self {
            Self::Full(value)
            | Self::Reserved { value, .. }
            | Self::Busy(value)
            | Self::NotAttached(value)
            | Self::Closed(value)
            | Self::NoSuchShard(value) => value,
        }
    }

    /// The refusal of another value for the same reason, made of this one.
    ///
    /// ```
    /// use corewheel::{Refused, RefusedKind};
    ///
    /// // A container of your own refuses a request, without the number that it has given to it.
    /// let refused = RefusedKind::Full.of((7, "GET /a"));
    /// assert_eq!(refused.map(|(_number, request)| request), Refused::Full("GET /a"));
    /// ```
    pub fn map<W>(self, f: impl FnOnce(V) -> W) -> Refused<W> {
        let kind = self.kind();
        kind.of(f(self.into_value()))
    }
}

impl<V> From<Refused<V>> for RefusedKind {
    fn from(refused: Refused<V>) -> Self {
        refused.kind()
    }
}

/// For the wait on a connection's own shard, which cannot fail.
impl From<Infallible> for RefusedKind {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for RefusedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reserved { keys, threads } => {
                return write!(
                    f,
                    "the shard has no slot left for another timer: {keys} are reserved as keys of \
                     {threads} other threads; send from fewer threads, or \
                     raise the capacity"
                );
            }
            Self::Full => "there is no room for another one; raise the capacity, or shed load",
            Self::Busy => {
                "the lane to the shard is full for a moment; try again after its next turn, or \
                 raise lane_capacity"
            }
            Self::NotAttached => {
                "no thread drives the shard yet; attach it with TimerService::attach, and try again"
            }
            Self::Closed => CLOSED,
            Self::NoSuchShard => "the service has no such shard",
        })
    }
}

impl Error for RefusedKind {}

/// Shows the kind alone, so nothing is asked of the value.
impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}(..)", self.kind())
    }
}

impl<V> fmt::Display for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

pub(crate) const CLOSED: &str = "the shard is shut down or has ended, or its service was dropped; \
    keep the TimerService as long as its timers are needed, since handles do not keep it alive";
