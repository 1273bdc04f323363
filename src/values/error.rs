//! One small error for each kind of operation. Each says how to avoid it.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::values::ids::ShardId;
use crate::values::refused::{CLOSED, RefusedKind};

/// Why a future under a timeout gave no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeoutError {
    /// The time was up before the future was ready.
    Elapsed,
    /// The shard did not accept a timer for the timeout.
    NoTimer(RefusedKind),
}

impl TimeoutError {
    /// Whether the time was up.
    pub fn is_elapsed(&self) -> bool {
        matches!(self, Self::Elapsed)
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed => f.write_str("the time was up before the future was done"),
            Self::NoTimer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TimeoutError {}

impl From<RefusedKind> for TimeoutError {
    fn from(kind: RefusedKind) -> Self {
        Self::NoTimer(kind)
    }
}

/// `TimedOut` if the time was up. If the shard did not accept a timer: `OutOfMemory` if the shard
/// has no free slot, `WouldBlock` if its lane is full or no thread drives it yet, else
/// `NotConnected`.
impl From<TimeoutError> for io::Error {
    fn from(error: TimeoutError) -> Self {
        let kind = match error {
            TimeoutError::Elapsed => io::ErrorKind::TimedOut,
            TimeoutError::NoTimer(RefusedKind::Full | RefusedKind::Reserved { .. }) => {
                io::ErrorKind::OutOfMemory
            }
            TimeoutError::NoTimer(RefusedKind::Busy | RefusedKind::NotAttached) => {
                io::ErrorKind::WouldBlock
            }
            TimeoutError::NoTimer(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// Why a [`Reply`](crate::Reply) has no value, or a shutdown no report.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReplyError {
    /// The service was shut down or dropped, or the shard has ended, before it replied. For a
    /// shutdown: the service is shut down, or being shut down, already.
    Closed,
    /// The future or the callback whose result was awaited has panicked.
    Panicked,
    /// The callback whose result was awaited was cancelled before it ran.
    Cancelled,
    /// This thread drives a shard of any service, so that it cannot block: it would wait for
    /// itself, or for a shard that waits for it. Await the reply instead, or
    /// [`begin_shutdown`](crate::TimerService::begin_shutdown).
    OnShard,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the service was shut down or dropped, or the shard has ended",
            Self::Panicked => "the future or the callback panicked",
            Self::Cancelled => "the callback was cancelled before it ran",
            Self::OnShard => {
                "a shard's own thread cannot block; await the reply, or begin_shutdown, or wait on \
                 another thread"
            }
        })
    }
}

impl std::error::Error for ReplyError {}

/// A setting or a parameter is out of its limits. The text names the field, its value, the limit
/// and a remedy.
///
/// ```
/// let error = corewheel::settings::Scale::new(1.5).unwrap_err();
/// assert_eq!(error.field(), "scale");
/// let message = error.to_string();
/// assert!(message.starts_with("scale is 1.5, but it must be between 0, for the minimum, and 1"));
/// assert!(message.ends_with("; clamp it to 0.0..=1.0"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    field: &'static str,
    value: String,
    limit: String,
    remedy: String,
}

impl ConfigError {
    /// Refuses a setting of the program's own: its name, its value, the limit that it does not
    /// keep, and what to do about it.
    ///
    /// ```
    /// use corewheel::ConfigError;
    ///
    /// let error = ConfigError::new("rooms", 0, "it must be at least 1", "name the rooms");
    /// assert_eq!(error.field(), "rooms");
    /// ```
    pub fn new(
        field: &'static str,
        value: impl fmt::Debug,
        limit: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field, value: format!("{value:?}"), limit: limit.into(), remedy: remedy.into() }
    }

    /// Refuses a period or a delay of zero, by the name of the parameter.
    ///
    /// # Errors
    ///
    /// The time is zero.
    pub fn if_zero(field: &'static str, time: Duration) -> Result<(), Self> {
        if time.is_zero() {
            let limit = "it must be longer than zero";
            return Err(Self::new(field, time, limit, "use one tick or more"));
        }
        Ok(())
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
/// Where the process does not get the open files, threads or address space that the shards need,
/// the text names the limit and how to raise it.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is out of its limits.
    Config(ConfigError),
    /// The runtime that was chosen cannot work on this host.
    Runtime {
        /// The name of the runtime.
        runtime: &'static str,
        /// The reason why the runtime cannot work, and a remedy.
        reason: String,
    },
    /// One of the shards could not be started.
    Shard {
        /// The id of the shard.
        shard: ShardId,
        /// The reason why the shard could not be started: of the kind `OutOfMemory` if there is too
        /// little memory for the shard's capacity or for the runtime. Then the text names the limit
        /// of address space, if the process has one.
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

/// Why a shard cannot be attached, or a future cannot be spawned on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ShardError {
    /// The service has no such shard.
    NoSuchShard(ShardId),
    /// The service is shut down, or the shard has ended.
    Closed,
    /// [`attach`](crate::TimerService::attach): the service runs its shards itself. Build it with
    /// [`start_attached`](crate::TimerServiceBuilder::start_attached).
    NotAttachable,
    /// [`attach`](crate::TimerService::attach): the shard was attached before.
    AlreadyAttached(ShardId),
    /// [`spawn_on`](crate::TimerService::spawn_on): the shard is a plain thread, or not attached
    /// yet, and so has no executor.
    NoExecutor,
    /// [`spawn_on`](crate::TimerService::spawn_on): the service was built with an
    /// [`Engine`](crate::host::Engine) that leaves it to the host whether the shards have an
    /// executor. Build it with one that has.
    RuntimeNotChosen,
}

impl fmt::Display for ShardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchShard(shard) => return write!(f, "the service has no {shard:?}"),
            Self::AlreadyAttached(shard) => return write!(f, "{shard:?} was attached before"),
            Self::Closed => CLOSED,
            Self::NotAttachable => {
                "the service runs its shards itself; build it with start_attached to attach"
            }
            Self::NoExecutor => {
                "the shard has no executor; build the service with a runtime that has one, such as \
                 Runtime::Tokio, to spawn futures"
            }
            Self::RuntimeNotChosen => {
                "the runtime leaves it to the host whether there is an executor; build the service \
                 with one that has an executor, such as Runtime::Tokio, or with GlommioOrTokio of \
                 corewheel-glommio if its futures run on both"
            }
        })
    }
}

impl std::error::Error for ShardError {}
