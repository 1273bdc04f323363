//! The limits of a connection, its kinds of deadlines, and the events that report them.

use std::fmt;
use std::time::Duration;

/// How long a connection may go on without something, or take for something. A limit of zero is
/// off.
///
/// Limits are rounded up to a tick; a limit that does not fit (584 years) means never. Each limit
/// is a field, and has a setter of the same name.
///
/// ```
/// use corewheel::ConnLimits;
/// use std::time::Duration;
///
/// let limits = ConnLimits::default()
///     .read_idle(Duration::from_secs(60))
///     .heartbeat(Duration::from_secs(20))
///     .handshake(Duration::from_secs(5));
/// assert_eq!(limits.heartbeat, Duration::from_secs(20));
/// assert_eq!(limits.max_age, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnLimits {
    /// The time without a read until [`DeadlineKind::ReadIdle`].
    pub read_idle: Duration,
    /// The time without a write until [`DeadlineKind::WriteIdle`].
    pub write_idle: Duration,
    /// The time without a read and without a write until [`DeadlineKind::AllIdle`].
    pub all_idle: Duration,
    /// The time without a write until the server is to write a heartbeat:
    /// [`DeadlineKind::Heartbeat`].
    pub heartbeat: Duration,
    /// The time from the beginning of a write to its end: [`DeadlineKind::WriteTimeout`].
    pub write_timeout: Duration,
    /// The time from the beginning of the connection until the handshake is disarmed:
    /// [`DeadlineKind::Handshake`].
    pub handshake: Duration,
    /// The time from the beginning of the connection to its end, whatever the connection does:
    /// [`DeadlineKind::MaxAge`].
    pub max_age: Duration,
}

/// A setter for each limit.
macro_rules! setters {
    ($($name:ident)*) => {
        /// Each setter returns the limits with one of them changed.
        impl ConnLimits {
            $(
                #[doc = concat!("Sets `", stringify!($name), "`.")]
                #[must_use]
                pub const fn $name(mut self, $name: Duration) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}
setters! { read_idle write_idle all_idle heartbeat write_timeout handshake max_age }

/// A kind of deadline. Events that come in one turn are delivered in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum DeadlineKind {
    /// The connection has reached its greatest age. The event comes once.
    MaxAge,
    /// The handshake was not done in time. The event comes once.
    Handshake,
    /// The present request was not done in time. The event comes once, each time that the deadline
    /// is armed.
    Request,
    /// A write was not done in time. The event comes once for each write. Writes whose time is up
    /// in the same turn share one event, and so do writes whose event was not taken yet.
    WriteTimeout,
    /// Nothing was read for too long. The event comes again after each further
    /// such time.
    ReadIdle,
    /// Nothing was written for too long. The event comes again after each further
    /// such time.
    WriteIdle,
    /// Nothing was read or written for too long. The event comes again after each further
    /// such time.
    AllIdle,
    /// It is time to write something, so that the peer sees that the server is there. The event
    /// comes again after each further such time.
    Heartbeat,
    /// A deadline whose meaning is the user's, with a number from 0 to 7. The event comes once,
    /// each time that the deadline is armed.
    Custom(u8),
}

impl DeadlineKind {
    /// The number of [custom](Self::Custom) deadlines of a connection.
    pub const CUSTOM_COUNT: u8 = 8;

    pub(super) const COUNT: usize = NAMED.len() + Self::CUSTOM_COUNT as usize;

    /// The kind's position in the order, which is stated here and in `NAMED`; `None` for a custom
    /// deadline whose number is too great.
    pub(super) const fn index(self) -> Option<usize> {
        Some(match self {
            Self::MaxAge => 0,
            Self::Handshake => 1,
            Self::Request => 2,
            Self::WriteTimeout => 3,
            Self::ReadIdle => 4,
            Self::WriteIdle => 5,
            Self::AllIdle => 6,
            Self::Heartbeat => 7,
            Self::Custom(number) if number < Self::CUSTOM_COUNT => NAMED.len() + number as usize,
            Self::Custom(_) => return None,
        })
    }

    pub(super) fn at(index: usize) -> Self {
        let custom = || Self::Custom((index - NAMED.len()) as u8);
        NAMED.get(index).copied().unwrap_or_else(custom)
    }

    /// The position of a kind that is not custom.
    pub(super) const fn named_index(self) -> usize {
        match self.index() {
            Some(index) if index < NAMED.len() => index,
            _ => panic!("a custom deadline has no fixed position"),
        }
    }
}

/// The kinds that are not custom, in order.
const NAMED: [DeadlineKind; 8] = [
    DeadlineKind::MaxAge,
    DeadlineKind::Handshake,
    DeadlineKind::Request,
    DeadlineKind::WriteTimeout,
    DeadlineKind::ReadIdle,
    DeadlineKind::WriteIdle,
    DeadlineKind::AllIdle,
    DeadlineKind::Heartbeat,
];

impl fmt::Display for DeadlineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxAge => "max age",
            Self::Handshake => "handshake",
            Self::Request => "request",
            Self::WriteTimeout => "write timeout",
            Self::ReadIdle => "read idle",
            Self::WriteIdle => "write idle",
            Self::AllIdle => "all idle",
            Self::Heartbeat => "heartbeat",
            Self::Custom(number) => return write!(f, "custom deadline {number}"),
        })
    }
}

/// A deadline of a connection has come.
#[must_use = "it says what the connection has not done in time"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnEvent {
    /// The deadline's kind.
    pub kind: DeadlineKind,
    /// Whether this is the first event of its kind since the connection was last active, or since
    /// [`set_limits`](crate::ConnTimers::set_limits) gave the connection more time than it had been
    /// idle for at its last event. Always true for a deadline that comes once.
    pub first: bool,
}

/// A deadline cannot be armed or disarmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArmError {
    /// Deadlines of this kind follow from the connection's limits. Set the limits instead.
    SetByLimits(DeadlineKind),
    /// The number of the custom deadline is too great.
    NoSuchDeadline(DeadlineKind),
    /// The connection is closed.
    Closed,
}

impl fmt::Display for ArmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetByLimits(kind) => write!(
                f,
                "{kind} is not armed but follows from what the connection does; set its limit with \
                 `set_limits`"
            ),
            Self::NoSuchDeadline(kind) => write!(
                f,
                "there is no {kind}; custom deadlines are numbered from 0 to {}",
                DeadlineKind::CUSTOM_COUNT - 1
            ),
            Self::Closed => f.write_str("the connection's timers are closed"),
        }
    }
}

impl std::error::Error for ArmError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_a_kind_is_its_position() {
        for index in 0..DeadlineKind::COUNT {
            assert_eq!(DeadlineKind::at(index).index(), Some(index));
        }
        assert_eq!(DeadlineKind::Custom(DeadlineKind::CUSTOM_COUNT).index(), None);
    }
}
