//! The limits of a connection, its kinds of deadlines, and the events that report them.

use std::fmt;
use std::time::Duration;

/// How long a connection may go on without something, or take for something. A limit of zero is
/// off.
///
/// Deadlines are rounded up to a tick; a limit that does not fit (584 years) means never. Each
/// limit is a field, and has a setter of the same name.
///
/// ```
/// use corewheel::ConnLimits;
/// use std::time::Duration;
///
/// let limits = ConnLimits::default()
///     // Held back by `begin_request` while the server works on a request.
///     .read_idle(Duration::from_secs(60))
///     .heartbeat(Duration::from_secs(20))
///     .handshake(Duration::from_secs(5));
/// assert_eq!(limits.heartbeat, Duration::from_secs(20));
/// assert_eq!(limits.max_age, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConnLimits {
    /// The time without a read until [`DeadlineKind::ReadIdle`]. A server that may work on a
    /// request for longer calls [`begin_request`](crate::ConnTimers::begin_request): else the
    /// connection counts as idle meanwhile.
    pub read_idle: Duration,
    /// The time without a write until [`DeadlineKind::WriteIdle`].
    /// [`begin_request`](crate::ConnTimers::begin_request) holds it back, too.
    pub write_idle: Duration,
    /// The time without a read and without a write until [`DeadlineKind::AllIdle`].
    /// [`begin_request`](crate::ConnTimers::begin_request) holds it back, too.
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
    /// The longest time by which the end is later than [`max_age`](Self::max_age) says, so that
    /// connections that began together do not end together. Each connection has a random part of
    /// this time, from none up to and including all of it, evenly distributed. The part is chosen
    /// when the connection begins, and stays: other limits multiply it by another jitter.
    ///
    /// The part follows from the time of the beginning, in nanoseconds, and from a count of the
    /// connections of a shard or a thread. So a test by a
    /// [manual clock](crate::clock::ManualClock) that is run again has the same parts. Of the
    /// connections that begin in one nanosecond, up to 256 have different parts.
    pub max_age_jitter: Duration,
    /// The least rate of a
    /// [measured read](crate::ConnTimers::begin_measured_read): [`DeadlineKind::ReadRate`].
    pub min_read_rate: DataRate,
    /// The least rate of a
    /// [measured write](crate::ConnTimers::begin_measured_write): [`DeadlineKind::WriteRate`].
    pub min_write_rate: DataRate,
}

/// A least data rate: [`ConnLimits::min_read_rate`] and [`ConnLimits::min_write_rate`].
///
/// A transfer of which `bytes` are done is too slow when `bytes / bytes_per_second` seconds have
/// passed since its beginning, and the grace period has. So bytes that come earlier than the rate
/// demands give more time to those that follow, and a transfer that keeps exactly the rate is too
/// slow as soon as its next byte is due.
///
/// ```
/// use corewheel::ConnLimits;
/// use corewheel::conn::DataRate;
/// use std::time::Duration;
///
/// // A peer that sends a body must send 240 bytes a second, after the first five seconds.
/// let rate = DataRate::new(240, Duration::from_secs(5));
/// let limits = ConnLimits::default().min_read_rate(rate);
/// assert_eq!(limits.min_write_rate, DataRate::OFF);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DataRate {
    /// The least number of bytes in a second; zero is off.
    pub bytes_per_second: u64,
    /// The time from the beginning of a transfer in which it may be slower.
    pub grace: Duration,
}

impl DataRate {
    /// No least rate.
    pub const OFF: Self = Self::new(0, Duration::ZERO);

    /// A least rate after a grace period.
    pub const fn new(bytes_per_second: u64, grace: Duration) -> Self {
        Self { bytes_per_second, grace }
    }
}

/// A setter for each limit.
macro_rules! setters {
    ($($name:ident: $type:ty),*) => {
        /// Each setter returns the limits with one of them changed.
        impl ConnLimits {
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
    read_idle: Duration, write_idle: Duration, all_idle: Duration, heartbeat: Duration,
    write_timeout: Duration, handshake: Duration, max_age: Duration, max_age_jitter: Duration,
    min_read_rate: DataRate, min_write_rate: DataRate
}

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
    /// A measured read was slower than [`ConnLimits::min_read_rate`]. The event comes once for each
    /// measured read.
    ReadRate,
    /// A measured write was slower than [`ConnLimits::min_write_rate`]. The event comes once for
    /// each measured write.
    WriteRate,
    /// Nothing was read for too long, and no request was
    /// [in flight](crate::ConnTimers::begin_request). The event comes again after each further such
    /// time.
    ReadIdle,
    /// Nothing was written for too long, and no request was in flight. The event comes again after
    /// each further such time.
    WriteIdle,
    /// Nothing was read or written for too long, and no request was in flight. The event comes
    /// again after each further such time.
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

    pub(super) const NAMED_COUNT: usize = NAMED.len();
    pub(super) const COUNT: usize = NAMED.len() + Self::CUSTOM_COUNT as usize;

    /// The kind's position in the order, which is stated here and in `NAMED`; `None` for a custom
    /// deadline whose number is too great.
    pub(super) const fn index(self) -> Option<usize> {
        Some(match self {
            Self::MaxAge => 0,
            Self::Handshake => 1,
            Self::Request => 2,
            Self::WriteTimeout => 3,
            Self::ReadRate => 4,
            Self::WriteRate => 5,
            Self::ReadIdle => 6,
            Self::WriteIdle => 7,
            Self::AllIdle => 8,
            Self::Heartbeat => 9,
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
const NAMED: [DeadlineKind; 10] = [
    DeadlineKind::MaxAge,
    DeadlineKind::Handshake,
    DeadlineKind::Request,
    DeadlineKind::WriteTimeout,
    DeadlineKind::ReadRate,
    DeadlineKind::WriteRate,
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
            Self::ReadRate => "read rate",
            Self::WriteRate => "write rate",
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
    /// Whether this is the first event of its [`kind`](Self::kind) in one stretch of silence. An
    /// idle deadline and a heartbeat come again and again while the connection is silent: the first
    /// of these events has `true`, the later ones `false`, until activity ends the silence. What
    /// counts as activity is what the kind measures: reads for
    /// [`ReadIdle`](DeadlineKind::ReadIdle), writes for [`WriteIdle`](DeadlineKind::WriteIdle) and
    /// [`Heartbeat`](DeadlineKind::Heartbeat), both for [`AllIdle`](DeadlineKind::AllIdle). A
    /// [`set_limits`](crate::ConnTimers::set_limits) that gives the connection more time than it
    /// had been silent for at its last event begins a new stretch. Always `true` for a deadline
    /// that comes once, such as the handshake or the age.
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
