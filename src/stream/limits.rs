//! The limits of a stream, and the error that says which of them was reached.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::conn::{ConnLimits, DataRate, DeadlineKind};
use crate::values::refused::RefusedKind;

/// How long a stream may take for something, or go on without something. A limit of zero is off,
/// and all are off by default.
///
/// Limits are rounded up to a tick; a limit that does not fit (584 years) means never. Each limit
/// is a field, and has a setter of the same name.
///
/// ```
/// use corewheel::stream::StreamLimits;
/// use std::time::Duration;
///
/// let limits = StreamLimits::default()
///     .first_byte(Duration::from_secs(10))
///     .write_stall(Duration::from_secs(30))
///     // Held back by `begin_request` while the server works on a request.
///     .idle(Duration::from_secs(120));
/// assert_eq!(limits.idle, Duration::from_secs(120));
/// assert_eq!(limits.max_age, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StreamLimits {
    /// The time from the beginning of the connection until the first byte is read.
    pub first_byte: Duration,
    /// The time from the first byte of a message until the owner says that the head of the message
    /// is complete: [`StreamControl::head_complete`](super::StreamControl::head_complete). An owner
    /// that sets this limit must say so for each message.
    pub head: Duration,
    /// The time for which a read waits without a byte. It ends a stream whose server works on a
    /// request for longer and says nothing: see [`idle`](Self::idle).
    pub read_idle: Duration,
    /// The time for which a write, a flush or a shutdown waits and not one byte is accepted.
    pub write_stall: Duration,
    /// The time in which nothing is read and nothing is written. It counts again from the moment at
    /// which a read begins to wait.
    ///
    /// A server that may work on a request for longer than this, while a read waits, calls
    /// [`StreamControl::begin_request`](super::StreamControl::begin_request), or its stream ends
    /// meanwhile. Under hyper, whose reads always wait, `adapters::hyper::TimedService` does that,
    /// and in `axum::serve` `adapters::axum::TimedMakeService`.
    pub idle: Duration,
    /// The time from the beginning of the connection to its end, whatever the connection does.
    pub max_age: Duration,
    /// The longest time by which the end is later than [`max_age`](Self::max_age) says: each
    /// connection has a random part of it, so that connections that began together do not end
    /// together.
    pub max_age_jitter: Duration,
    /// The least rate at which a message is read, from its first byte on. Only time for which a
    /// read waits counts. A message is measured if the owner says where it begins and where it
    /// ends: [`StreamControl::begin_message`](super::StreamControl::begin_message),
    /// [`message_complete`](super::StreamControl::message_complete).
    pub min_read_rate: DataRate,
    /// The least rate at which writes that must wait are accepted, over the whole connection. Only
    /// time for which a write waits counts, and only bytes that are accepted after a wait: what the
    /// system buffers at once, the peer has not taken yet.
    ///
    /// The system accepts more bytes when a good part of its send buffer is empty, on Linux a
    /// third. The grace period must be as long as a slow but honest peer takes for that part.
    pub min_write_rate: DataRate,
    /// The time without a write until the owner is to write a heartbeat:
    /// [`StreamControl::heartbeat`](super::StreamControl::heartbeat). It ends nothing.
    pub heartbeat: Duration,
}

/// A setter for each limit.
macro_rules! setters {
    ($($name:ident: $type:ty),*) => {
        /// Each setter returns the limits with one of them changed.
        impl StreamLimits {
            $(
                #[doc = concat!("Sets `", stringify!($name), "`.")]
                #[must_use]
                pub const fn $name(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}
setters! {
    first_byte: Duration, head: Duration, read_idle: Duration, write_stall: Duration,
    idle: Duration, max_age: Duration, max_age_jitter: Duration, min_read_rate: DataRate,
    min_write_rate: DataRate, heartbeat: Duration
}

impl StreamLimits {
    /// The limits of the connection's timers. The deadline of a head is armed by the stream.
    pub(super) fn of_conn(self) -> ConnLimits {
        ConnLimits {
            handshake: self.first_byte,
            read_idle: self.read_idle,
            write_timeout: self.write_stall,
            all_idle: self.idle,
            max_age: self.max_age,
            max_age_jitter: self.max_age_jitter,
            min_read_rate: self.min_read_rate,
            min_write_rate: self.min_write_rate,
            heartbeat: self.heartbeat,
            ..ConnLimits::default()
        }
    }
}

/// The limit that a stream has reached: the inner error of the [`io::Error`] of kind
/// [`TimedOut`](io::ErrorKind::TimedOut) with which its reads and writes end.
///
/// ```
/// use corewheel::stream::StreamTimeout;
/// use std::io;
/// use std::time::Duration;
///
/// let error = io::Error::from(StreamTimeout::FirstByte(Duration::from_secs(10)));
/// assert_eq!(error.kind(), io::ErrorKind::TimedOut);
/// let timeout = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamTimeout>());
/// assert_eq!(timeout, Some(&StreamTimeout::FirstByte(Duration::from_secs(10))));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StreamTimeout {
    /// No byte was read within [`StreamLimits::first_byte`].
    FirstByte(Duration),
    /// The head of a message was not complete within [`StreamLimits::head`].
    Head(Duration),
    /// A read has waited for [`StreamLimits::read_idle`] without a byte.
    ReadIdle(Duration),
    /// A write has waited for [`StreamLimits::write_stall`] without a byte accepted.
    WriteStall(Duration),
    /// Nothing was read or written for [`StreamLimits::idle`].
    Idle(Duration),
    /// The connection is older than [`StreamLimits::max_age`].
    MaxAge(Duration),
    /// A message was read more slowly than [`StreamLimits::min_read_rate`].
    ReadRate(DataRate),
    /// Writes were accepted more slowly than [`StreamLimits::min_write_rate`].
    WriteRate(DataRate),
    /// A deadline has come that the owner has set by the stream's
    /// [`timers`](super::TimedIo::timers).
    Other(DeadlineKind),
}

impl StreamTimeout {
    /// The limit of a kind, as the connection's timers have it now.
    pub(super) fn new(kind: DeadlineKind, limits: &ConnLimits, head: Duration) -> Self {
        match kind {
            DeadlineKind::Handshake => Self::FirstByte(limits.handshake),
            DeadlineKind::Request => Self::Head(head),
            DeadlineKind::ReadIdle => Self::ReadIdle(limits.read_idle),
            DeadlineKind::WriteTimeout => Self::WriteStall(limits.write_timeout),
            DeadlineKind::AllIdle => Self::Idle(limits.all_idle),
            DeadlineKind::MaxAge => Self::MaxAge(limits.max_age),
            DeadlineKind::ReadRate => Self::ReadRate(limits.min_read_rate),
            DeadlineKind::WriteRate => Self::WriteRate(limits.min_write_rate),
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for StreamTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstByte(limit) => write!(f, "no byte was read within {limit:?}"),
            Self::Head(limit) => write!(f, "a message's head was not complete within {limit:?}"),
            Self::ReadIdle(limit) => write!(f, "no byte was read for {limit:?}"),
            Self::WriteStall(limit) => write!(f, "no byte could be written for {limit:?}"),
            Self::Idle(limit) => write!(f, "nothing was read or written for {limit:?}"),
            Self::MaxAge(limit) => write!(f, "the connection is older than {limit:?}"),
            Self::ReadRate(rate) => write!(
                f,
                "a message was read at less than {} bytes a second",
                rate.bytes_per_second
            ),
            Self::WriteRate(rate) => write!(
                f,
                "writes were accepted at less than {} bytes a second",
                rate.bytes_per_second
            ),
            Self::Other(kind) => write!(f, "the connection's {kind} has come"),
        }
    }
}

impl std::error::Error for StreamTimeout {}

impl From<StreamTimeout> for io::Error {
    fn from(timeout: StreamTimeout) -> Self {
        Self::new(io::ErrorKind::TimedOut, timeout)
    }
}

/// The error of what would wait without a timer.
pub(super) fn no_timer(refused: RefusedKind) -> io::Error {
    let kind = match refused {
        RefusedKind::Closed | RefusedKind::Dropped | RefusedKind::NoSuchShard => {
            io::ErrorKind::Other
        }
        _ => io::ErrorKind::ResourceBusy,
    };
    io::Error::new(kind, refused)
}
