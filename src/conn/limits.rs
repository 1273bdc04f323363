//! What a connection is allowed, and what it is told.

use std::fmt;
use std::time::Duration;

/// How long a connection may do what. Zero is off: as long as it likes.
///
/// Times are rounded up to a tick; one that does not fit (584 years) means never.
///
/// ```
/// use corewheel::ConnLimits;
/// use std::time::Duration;
///
/// let limits = ConnLimits {
///     read_idle: Duration::from_secs(60),
///     heartbeat: Duration::from_secs(20),
///     handshake: Duration::from_secs(5),
///     ..ConnLimits::default()
/// };
/// assert_eq!(limits.max_age, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnLimits {
    /// Without anything having been read: [`DeadlineKind::ReadIdle`].
    pub read_idle: Duration,
    /// Without anything having been written: [`DeadlineKind::WriteIdle`].
    pub write_idle: Duration,
    /// Without either: [`DeadlineKind::AllIdle`].
    pub all_idle: Duration,
    /// Without anything having been written, until the server writes a heartbeat:
    /// [`DeadlineKind::Heartbeat`].
    pub heartbeat: Duration,
    /// For one write to be done: [`DeadlineKind::WriteTimeout`].
    pub write_timeout: Duration,
    /// From the beginning until the handshake is disarmed: [`DeadlineKind::Handshake`].
    pub handshake: Duration,
    /// From the beginning, whatever it does: [`DeadlineKind::MaxAge`].
    pub max_age: Duration,
}

/// Which deadline of a connection. In this order those are told that come together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum DeadlineKind {
    /// The connection is as old as it may become. Comes once.
    MaxAge,
    /// The handshake was not done in time. Comes once.
    Handshake,
    /// The request in hand was not done in time. Comes once, each time that it is armed.
    Request,
    /// A write was not done in time. Comes once for each write; for those whose time is up in the
    /// same turn, or before a task has asked, once for all of them.
    WriteTimeout,
    /// Nothing was read for too long. Comes again and again.
    ReadIdle,
    /// Nothing was written for too long. Comes again and again.
    WriteIdle,
    /// Nothing was read or written for too long. Comes again and again.
    AllIdle,
    /// It is time to write something, so that the peer sees that the server is there. Comes again
    /// and again.
    Heartbeat,
    /// A deadline of the user's own, 0 to 7. Comes once, each time that it is armed.
    Own(u8),
}

impl DeadlineKind {
    /// How many deadlines of its own a user has.
    pub const OWN_COUNT: u8 = 8;

    pub(crate) const COUNT: usize = NAMED.len() + Self::OWN_COUNT as usize;

    /// Where it stands in the order, which is written down here and in `NAMED`; `None` if there is
    /// no such deadline.
    pub(crate) const fn index(self) -> Option<usize> {
        Some(match self {
            Self::MaxAge => 0,
            Self::Handshake => 1,
            Self::Request => 2,
            Self::WriteTimeout => 3,
            Self::ReadIdle => 4,
            Self::WriteIdle => 5,
            Self::AllIdle => 6,
            Self::Heartbeat => 7,
            Self::Own(number) if number < Self::OWN_COUNT => NAMED.len() + number as usize,
            Self::Own(_) => return None,
        })
    }

    pub(crate) fn at(index: usize) -> Self {
        let own = || Self::Own((index - NAMED.len()) as u8);
        NAMED.get(index).copied().unwrap_or_else(own)
    }

    /// Where a deadline stands that is no user's own.
    pub(super) const fn place(self) -> usize {
        match self.index() {
            Some(place) if place < NAMED.len() => place,
            _ => panic!("a deadline of the user's own has no fixed place"),
        }
    }
}

/// The deadlines that are no user's own, in order.
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
            Self::Own(number) => return write!(f, "own deadline {number}"),
        })
    }
}

/// A deadline of a connection has come.
#[must_use = "it says what the connection has not done in time"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdleEvent {
    /// Which one.
    pub kind: DeadlineKind,
    /// Whether it is the first time since the connection last did something, or since
    /// [`set_limits`](crate::ConnTimers::set_limits) gave it more time than it had been idle for
    /// when it was last told; of a deadline that comes once, it is.
    pub first: bool,
}

/// A deadline cannot be armed or disarmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmError {
    /// It is a matter of the connection's limits.
    ByLimits(DeadlineKind),
    /// There is no such deadline.
    NoSuchDeadline(DeadlineKind),
    /// The connection's timers are closed.
    Closed,
}

impl fmt::Display for ArmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByLimits(kind) => write!(
                f,
                "{kind} is not armed but follows from what the connection does; set its limit with \
                 `set_limits`"
            ),
            Self::NoSuchDeadline(kind) => write!(
                f,
                "{kind} is not there; own deadlines are numbered from 0 to {}",
                DeadlineKind::OWN_COUNT - 1
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
    fn each_kind_is_found_where_it_stands() {
        for index in 0..DeadlineKind::COUNT {
            assert_eq!(DeadlineKind::at(index).index(), Some(index));
        }
        assert_eq!(DeadlineKind::Own(DeadlineKind::OWN_COUNT).index(), None);
    }
}
