//! What a shard or a container gives back when it does not accept a value, and why.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;

/// A value was not accepted, and comes back.
///
/// Every command that takes a value refuses with this type, and those that take a callback with
/// [`RefusedCall`]. [`kind`](Self::kind) is the reason
/// alone, without the value: it is `Copy`, `Send`, `Sync` and `'static`, so that `?` converts it
/// into `Box<dyn Error + Send + Sync>` and the like, whatever the value is.
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
    /// The service is shut down, or this shard of it has ended.
    Closed(V),
    /// The [`TimerService`](crate::TimerService) was dropped without a shutdown while this handle
    /// or another use of it lives. Comes in place of `Closed` from methods that name `Closed`
    /// among their errors. Keep the service as long as its timers are needed: no handle keeps it
    /// alive.
    Dropped(V),
    /// The service has no such shard.
    NoSuchShard(V),
}

/// A callback was not accepted, and comes back.
///
/// It is a [`Refused`] in all but one respect: `?` converts it into `Box<dyn Error>` and
/// `Box<dyn Error + Send + Sync>` whatever the callback has captured, by its
/// [`kind`](Self::kind), and drops the callback then. For that it is no [`Error`] itself, since a
/// callback of the shard's own core is not `Send`. Where an error of another type is to be made,
/// `map_err(|refused| refused.kind())` comes first.
///
/// ```
/// use corewheel::{Refused, TimerService, Timers};
/// use std::time::Duration;
///
/// # let service = TimerService::builder().shards(1).capacity(1).start_attached()?;
/// # let attachment = service.attach(service.shard_for(0))?;
/// # let shard = attachment.into_loop(|fired, _| match fired.payload {})?;
/// fn remind(timers: &Timers) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     timers.schedule_fn(Duration::from_secs(1), |_| println!("a second later"))?;
///     Ok(())
/// }
/// remind(shard.timers())?;
/// let error = remind(shard.timers()).unwrap_err();
/// assert!(error.to_string().starts_with("there is no room"));
///
/// // The callback itself, to be called at once or scheduled later.
/// let refused = shard.timers().schedule_fn(Duration::from_secs(1), |_| println!("now"));
/// let Err(Refused::Full(call)) = refused.map_err(Refused::from) else { panic!("it is full") };
/// call(shard.timers());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct RefusedCall<C>(Refused<C>);

impl<C> RefusedCall<C> {
    /// Why the callback was not accepted.
    pub fn kind(&self) -> RefusedKind {
        self.0.kind()
    }

    /// The callback.
    pub fn into_value(self) -> C {
        self.0.into_value()
    }
}

impl<C> From<Refused<C>> for RefusedCall<C> {
    fn from(refused: Refused<C>) -> Self {
        Self(refused)
    }
}

impl<C> From<RefusedCall<C>> for Refused<C> {
    fn from(refused: RefusedCall<C>) -> Self {
        refused.0
    }
}

impl<C> From<RefusedCall<C>> for RefusedKind {
    fn from(refused: RefusedCall<C>) -> Self {
        refused.kind()
    }
}

/// The [`RefusedKind`], boxed.
impl<C> From<RefusedCall<C>> for Box<dyn Error + Send + Sync> {
    fn from(refused: RefusedCall<C>) -> Self {
        refused.kind().into()
    }
}

/// The [`RefusedKind`], boxed.
impl<C> From<RefusedCall<C>> for Box<dyn Error> {
    fn from(refused: RefusedCall<C>) -> Self {
        refused.kind().into()
    }
}

/// Shows the kind alone.
impl<C> fmt::Debug for RefusedCall<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<C> fmt::Display for RefusedCall<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

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
    /// The service is shut down, or this shard of it has ended.
    Closed,
    /// The service was dropped without a shutdown. See [`Refused::Dropped`].
    Dropped,
    /// The service has no such shard.
    NoSuchShard,
}

impl RefusedKind {
    /// Whether the shard takes no timer any more: [`Closed`](Self::Closed) or
    /// [`Dropped`](Self::Dropped).
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Closed | Self::Dropped)
    }

    /// The refusal of a value for this reason: for a container of your own.
    pub fn of<V>(self, value: V) -> Refused<V> {
        match self {
            Self::Full => Refused::Full(value),
            Self::Reserved { keys, threads } => Refused::Reserved { value, keys, threads },
            Self::Busy => Refused::Busy(value),
            Self::NotAttached => Refused::NotAttached(value),
            Self::Closed => Refused::Closed(value),
            Self::Dropped => Refused::Dropped(value),
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
            Self::Dropped(_) => RefusedKind::Dropped,
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
            | Self::Dropped(value)
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
            Self::Dropped => {
                "the timer service was dropped without a shutdown; keep the TimerService as long \
                 as its timers are needed, since handles do not keep it alive"
            }
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

impl<V> Error for Refused<V> {}

pub(crate) const CLOSED: &str = "the shard is shut down or has ended";
