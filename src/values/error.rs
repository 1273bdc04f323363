//! One small error for each kind of operation. Each returns what it was given and says what to do.

use std::fmt;
use std::io;

use crate::values::handle::ShardId;

/// What the errors have in common that give back what they refuse: there is no room for it, or all
/// is over. Nothing is asked of what they give back, not even that it can be shown.
macro_rules! refusal {
    ($error:ident: $full:expr, $closed:expr) => {
        impl<V> ::std::fmt::Debug for $error<V> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    Self::Full(_) => "Full(..)",
                    Self::Closed(_) => "Closed(..)",
                })
            }
        }

        impl<V> ::std::fmt::Display for $error<V> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(match self {
                    Self::Full(_) => $full,
                    Self::Closed(_) => $closed,
                })
            }
        }

        impl<V> ::std::error::Error for $error<V> {}
    };
}

pub(crate) use refusal;

/// A timer was not accepted; the task comes back.
///
/// ```
/// # use corewheel::{Fired, ScheduleError, TimerService, Timers};
/// # use std::time::Duration;
/// let builder = TimerService::builder().shards(1).capacity(1);
/// # let service: TimerService<&str> = builder.start_attached()?;
/// # let shard = service.attach(service.shards().next().unwrap())?;
/// # let shard = shard.into_loop(|_: Fired<&str>, _: &Timers<&str>| {})?;
/// # let timers = shard.timers();
/// timers.schedule(Duration::from_secs(1), "first")?;
/// match timers.schedule(Duration::from_secs(1), "second") {
///     Err(ScheduleError::Full(request)) => assert_eq!(request, "second", "shed, or tried later"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ScheduleError<K> {
    /// The shard holds as many timers as it can, or has not yet made room for more from this
    /// thread. Try again later, or shed load.
    Full(K),
    /// The service is shut down, or this shard of it is dead or was never there.
    Closed(K),
}

impl<K> ScheduleError<K> {
    /// What was to be scheduled.
    pub fn into_task(self) -> K {
        match self {
            Self::Full(task) | Self::Closed(task) => task,
        }
    }

    pub(crate) fn map<L>(self, f: impl FnOnce(K) -> L) -> ScheduleError<L> {
        match self {
            Self::Full(task) => ScheduleError::Full(f(task)),
            Self::Closed(task) => ScheduleError::Closed(f(task)),
        }
    }
}

refusal!(ScheduleError: FULL, CLOSED);

/// Many timers were not accepted, and not one of them is scheduled; all of them come back.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleManyError<I> {
    /// The shard has no room for all of them, or has not yet made room for as many from this
    /// thread. Try again later, send fewer at a time, or shed load.
    Full(Vec<I>),
    /// The service is shut down, or this shard of it is dead or was never there.
    Closed(Vec<I>),
    /// They are more than are ever taken at once. Send them in parts.
    TooMany {
        /// What was to be scheduled.
        timers: Vec<I>,
        /// The most that are taken at once.
        max: usize,
    },
}

impl<I> ScheduleManyError<I> {
    /// What was to be scheduled.
    pub fn into_timers(self) -> Vec<I> {
        match self {
            Self::Full(timers) | Self::Closed(timers) | Self::TooMany { timers, .. } => timers,
        }
    }
}

impl<I> fmt::Debug for ScheduleManyError<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
            Self::TooMany { .. } => "TooMany(..)",
        })
    }
}

impl<I> fmt::Display for ScheduleManyError<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str(FULL),
            Self::Closed(_) => f.write_str(CLOSED),
            Self::TooMany { timers, max } => write!(
                f,
                "timers is {} long, but at most {max} are taken at once; send them in parts, or \
                 raise the shards' capacity and the lanes' capacity",
                timers.len()
            ),
        }
    }
}

impl<I> std::error::Error for ScheduleManyError<I> {}

const FULL: &str = "the shard has no room for another timer; raise its capacity or the lanes' \
                    capacity, or shed load";
pub(crate) const CLOSED: &str = "the shard is shut down or dead";

/// Nobody is left to answer: the service is shut down, or the shard is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CLOSED)
    }
}

impl std::error::Error for Closed {}

/// Why a future cannot wait for its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SleepError {
    /// The shard has no room for another timer.
    Full,
    /// The service was shut down, or the shard died, before the time came.
    Closed,
}

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => FULL,
            Self::Closed => CLOSED,
        })
    }
}

impl std::error::Error for SleepError {}

/// The time was up first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was up before the future was done")
    }
}

impl std::error::Error for Elapsed {}

/// Why a future under a timeout gave no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeoutError {
    /// The time was up first.
    Elapsed(Elapsed),
    /// There was no timer to be had to measure the time with.
    NoTimer(SleepError),
}

impl TimeoutError {
    /// Whether the time was up.
    pub fn is_elapsed(&self) -> bool {
        matches!(self, Self::Elapsed(_))
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(elapsed) => elapsed.fmt(f),
            Self::NoTimer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TimeoutError {}

/// Why an answer cannot be waited for by blocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The service is shut down, or the shard is dead.
    Closed,
    /// This thread drives a shard itself: it would wait for itself, or for a shard that waits for
    /// it. Await the answer instead.
    OnShard,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => CLOSED,
            Self::OnShard => "a shard's own thread cannot block for an answer; await it instead",
        })
    }
}

impl std::error::Error for WaitError {}

/// What is wrong with one setting or parameter. Shown, it says which one, what it is, what is
/// possible and what to do.
///
/// ```
/// let error = corewheel::Scale::new(1.5).unwrap_err();
/// assert_eq!(error.field(), "scale");
/// let message = error.to_string();
/// assert!(message.starts_with("scale is 1.5, but it must be between 0, for the minimum, and 1"));
/// assert!(message.ends_with("; clamp what it is worked out from"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    field: &'static str,
    value: String,
    limit: String,
    remedy: String,
}

impl ConfigError {
    pub(crate) fn new(
        field: &'static str,
        value: impl fmt::Debug,
        limit: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field, value: format!("{value:?}"), limit: limit.into(), remedy: remedy.into() }
    }

    /// The setting's name: that of the builder's method or of the parameter.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, limit, remedy } = self;
        write!(f, "{field} is {value}, but {limit}; {remedy}")
    }
}

impl std::error::Error for ConfigError {}

/// Why a service did not start. No thread of it is left.
///
/// Where the process does not get what the shards need, open files, threads or address space, the
/// text names the limit and what raises it.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is out of its limits.
    Config(ConfigError),
    /// The runtime that was asked for cannot work here.
    Runtime {
        /// Its name.
        runtime: &'static str,
        /// What is in its way, and what to change.
        reason: String,
    },
    /// One of the shards could not be started.
    Shard {
        /// Which.
        shard: ShardId,
        /// What was in its way.
        source: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Runtime { runtime, reason } => {
                write!(f, "the {runtime} runtime cannot work here: {reason}")
            }
            Self::Shard { shard, source } => write!(f, "{shard:?} could not be started: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Runtime { .. } => None,
            Self::Shard { source, .. } => Some(source),
        }
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// Why a service was not shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShutdownError {
    /// It is shut down, or being shut down, already.
    AlreadyShutDown,
    /// This thread drives one of the shards, from inside a callback or beside it, and would wait
    /// for itself. Shut down from another thread, or await
    /// [`begin_shutdown`](crate::TimerService::begin_shutdown).
    OnShard,
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyShutDown => "the service is shut down already",
            Self::OnShard => {
                "a shard's own thread cannot block for the shutdown; call it from another thread, \
                 or begin it here and await it"
            }
        })
    }
}

impl std::error::Error for ShutdownError {}

/// Why a shard cannot be attached to an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The service runs its shards itself; build it with
    /// [`start_attached`](crate::TimerServiceBuilder::start_attached).
    NotAttachable,
    /// The service has no such shard.
    NoSuchShard(ShardId),
    /// The shard was attached before.
    AlreadyAttached(ShardId),
    /// The service is shut down.
    Closed,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAttachable => f.write_str(
                "the service runs its shards itself; build it with start_attached to attach",
            ),
            Self::NoSuchShard(shard) => write!(f, "the service has no {shard:?}"),
            Self::AlreadyAttached(shard) => write!(f, "{shard:?} was attached before"),
            Self::Closed => f.write_str(CLOSED),
        }
    }
}

impl std::error::Error for AttachError {}

/// Why a future cannot be spawned onto a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpawnError {
    /// The shard has no executor: it is a plain thread or the user's own loop.
    NoExecutor,
    /// The service is shut down, or the shard is dead or was never there.
    Closed,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoExecutor => {
                "the shard has no executor; use Runtime::Glommio or Runtime::Tokio to spawn futures"
            }
            Self::Closed => CLOSED,
        })
    }
}

impl std::error::Error for SpawnError {}
