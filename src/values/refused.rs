//! What a shard or a container gives back when it does not accept a value, and why.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A value was not accepted, and comes back.
///
/// Every command that takes a value refuses with this type. [`kind`](Self::kind) is the reason
/// alone, without the value: it is `Copy`, `Send`, `Sync` and `'static`, so that `?` converts it
/// into `Box<dyn Error + Send + Sync>` and the like, whatever the value is.
///
/// ```
/// # use corewheel::{Refused, RefusedKind, TimerService};
/// # use std::time::Duration;
/// let builder = TimerService::builder().shards(1).capacity(1);
/// # let service = builder.start_attached::<&str>()?;
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
    /// The shard has no slot left for the timer, as slots are reserved as keys of other clients
    /// that are in use. Keys that are not used come back when others need them. Drop clients that
    /// are not used, share one client, or raise the capacity.
    Reserved {
        /// What was not accepted.
        value: V,
        /// How many slots are reserved.
        keys: u32,
        /// How many clients hold the keys.
        clients: u32,
    },
    /// The lane from this client to the shard is full for a moment, or the shard has not looked at
    /// it yet, as may be at the first schedule of a client. Try again when the shard has taken its
    /// next turn, or let [`schedule_when_room`](crate::RemoteTimers::schedule_when_room) wait for
    /// it. Do not try again while you hold a lock that the shard's handler or callbacks take: the
    /// shard takes no turn before they return.
    Busy(V),
    /// The service is shut down, or this shard of it has ended.
    Closed(V),
    /// The service has no such shard.
    NoSuchShard(V),
    /// These are more timers than one command takes. Send them in parts of at most
    /// [`RemoteTimers::schedule_many_max`](crate::RemoteTimers::schedule_many_max).
    TooMany(V),
}

/// Why a value was not accepted: a [`Refused`] without its value, and the error of what has no
/// value to give back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RefusedKind {
    /// There is no room. See [`Refused::Full`].
    Full,
    /// Slots are reserved for other clients. See [`Refused::Reserved`].
    Reserved {
        /// How many slots are reserved.
        keys: u32,
        /// How many clients hold the keys.
        clients: u32,
    },
    /// The lane to the shard is full for a moment. See [`Refused::Busy`].
    Busy,
    /// The service is shut down, or this shard of it has ended.
    Closed,
    /// The service has no such shard.
    NoSuchShard,
    /// More timers than one command takes. See [`Refused::TooMany`].
    TooMany,
}

impl RefusedKind {
    /// The refusal of a value for this reason.
    pub(crate) fn of<V>(self, value: V) -> Refused<V> {
        match self {
            Self::Full => Refused::Full(value),
            Self::Reserved { keys, clients } => Refused::Reserved { value, keys, clients },
            Self::Busy => Refused::Busy(value),
            Self::Closed => Refused::Closed(value),
            Self::NoSuchShard => Refused::NoSuchShard(value),
            Self::TooMany => Refused::TooMany(value),
        }
    }
}

impl<V> Refused<V> {
    /// Why the value was not accepted.
    pub fn kind(&self) -> RefusedKind {
        match self {
            Self::Full(_) => RefusedKind::Full,
            Self::Reserved { keys, clients, .. } => {
                RefusedKind::Reserved { keys: *keys, clients: *clients }
            }
            Self::Busy(_) => RefusedKind::Busy,
            Self::Closed(_) => RefusedKind::Closed,
            Self::NoSuchShard(_) => RefusedKind::NoSuchShard,
            Self::TooMany(_) => RefusedKind::TooMany,
        }
    }

    /// The value.
    pub fn into_value(self) -> V {
        match self {
            Self::Full(value)
            | Self::Reserved { value, .. }
            | Self::Busy(value)
            | Self::Closed(value)
            | Self::NoSuchShard(value)
            | Self::TooMany(value) => value,
        }
    }

    pub(crate) fn map<W>(self, f: impl FnOnce(V) -> W) -> Refused<W> {
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
            Self::Reserved { keys, clients } => {
                return write!(
                    f,
                    "the shard has no slot left for another timer: {keys} are reserved as keys of \
                     {clients} other clients; drop clients that are not used, share one client, or \
                     raise the capacity"
                );
            }
            Self::Full => "there is no room for another one; raise the capacity, or shed load",
            Self::Busy => {
                "the lane to the shard is full for a moment; try again after its next turn, or \
                 raise lane_capacity"
            }
            Self::Closed => CLOSED,
            Self::NoSuchShard => "the service has no such shard",
            Self::TooMany => {
                "these are more timers than one command takes; send them in parts of at most \
                 schedule_many_max, or raise capacity and lane_capacity"
            }
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

impl<V> Error for Refused<V> {}

pub(crate) const CLOSED: &str = "the shard is shut down or has ended";
