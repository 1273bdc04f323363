//! The limits of a connection, and the events that report what it has not done in time.

use std::time::Duration;

use super::kinds::{DeadlineKind, deadline_kinds, limits_struct};
use super::moment::Moment;
use crate::clock::saturating_nanos;
use crate::values::scale::Scale;

/// The due time of a deadline that is off.
pub(super) const NEVER: u64 = u64::MAX;

macro_rules! conn_limits {
    ($(
        $(#[$_about:meta])*
        $kind:ident, $text:literal, $rule:expr;
        $(span { $(#[$span_doc:meta])* $span:ident $(| $least:ident)? })?
        $(limits { $($(#[$doc:meta])* $field:ident: $type:ty,)* })?
        stream $stream:tt
        ends $ends:tt
    )*) => {
        limits_struct! {
            /// How long a connection may go on without something, or take for something. A limit of
            /// zero is off.
            ///
            /// Deadlines are rounded up to a tick; a limit that does not fit (584 years) means
            /// never. Each limit is a field, and has a setter of the same name.
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
            ConnLimits {
                $(
                    $($(#[$span_doc])* $span: Duration $(| $least)?,)?
                    $($($(#[$doc])* $field: $type,)*)?
                )*
                /// How many bytes the system accepts and has not sent for a peer that takes slowly.
                ///
                /// What the system has for a peer that reads nothing is this and what the peer's
                /// own system takes, in place of up to 4 MB.
                /// An accept loop sets it at its listener, or at each socket before the first
                /// write, by [`set_unsent_max`](crate::conn::PeerSocket::set_unsent_max);
                /// [`race_write`](crate::ConnTimers::race_write) does at the first wait, when the
                /// system has accepted as much as it would. Each time that a peer takes half of the
                /// bound within a quarter of a second, it is doubled, and after a few times there
                /// is none: then the send buffer is full while a quick peer's server is held up. It
                /// begins anew for a write that waits longer. So a peer that is quick at first, and
                /// then takes nothing, costs what was accepted by then, until a limit of writing
                /// ends it.
                ///
                /// A good value is [`UNSENT_MAX`](crate::conn::UNSENT_MAX). Without an effect on
                /// other systems than Linux, where it is `TCP_NOTSENT_LOWAT`.
                unsent_max: u32,
            }
        }

        impl Spans {
            pub(super) fn new(limits: ConnLimits) -> Self {
                Self {
                    by_kind: [$([$(span_of(limits.$span),)? NEVER][0]),*],
                    least: [$([$($(span_of(limits.$least),)?)? NEVER][0]),*],
                    limits,
                }
            }
        }
    };
}
deadline_kinds!(conn_limits);

/// Limits, and the time of each kind that is not custom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spans {
    /// In nanoseconds; `NEVER` if the limit is off, or if the kind's deadlines do not follow from a
    /// time.
    by_kind: [u64; DeadlineKind::NAMED_COUNT],
    /// The least times under pressure; `NEVER` if pressure does not shorten the time.
    least: [u64; DeadlineKind::NAMED_COUNT],
    pub(super) limits: ConnLimits,
}

impl Spans {
    /// Whether nothing comes of the limits, unless the connection is told to end.
    pub(super) fn is_off(&self) -> bool {
        let rates = [self.limits.min_read_rate, self.limits.min_write_rate];
        let mut spans = self.by_kind.iter().enumerate();
        spans.all(|(kind, span)| kind == super::kinds::AGE_GRACE || *span == NEVER)
            && rates.iter().all(|rate| rate.bytes_per_second == 0)
    }

    /// The time of a kind that is not custom, at a scale.
    #[inline]
    pub(super) fn at(&self, kind: usize, scale: Scale) -> u64 {
        let (span, least) = (self.by_kind[kind], self.least[kind]);
        if least >= span || scale == Scale::ONE {
            return span;
        }
        // A time that means never is off, and stays off.
        if span == NEVER { NEVER } else { least + scale.of(span - least) }
    }
}

/// A limit in nanoseconds; `NEVER` if it is off.
fn span_of(limit: Duration) -> u64 {
    if limit.is_zero() { NEVER } else { saturating_nanos(limit) }
}

/// A least data rate: [`ConnLimits::min_read_rate`] and [`ConnLimits::min_write_rate`].
///
/// A transfer of which `bytes` are done is too slow when `bytes / bytes_per_second` seconds have
/// passed since its beginning, and the grace period has. So bytes that come earlier than the rate
/// demands give more time to those that follow. A transfer that keeps exactly the rate is too
/// slow as soon as its next byte is due.
///
/// Where a socket is asked what its peer has acknowledged, by a stream or by
/// [`race_write`](crate::ConnTimers::race_write), the bytes are those, which come in lumps: what a
/// kernel takes for a peer that reads nothing is a lump, too. So they give no more time in advance
/// than [`LUMP_MAX`](Self::LUMP_MAX). A peer's kernel may acknowledge small writes late, and all
/// of them together below the rate. So a stream whose peer is too slow by its socket looks again
/// 200 ms later, and measures anew if all that was left before is acknowledged by then.
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

    /// The longest time for which a peer whose socket is asked what has been acknowledged
    /// ([`race_write`](crate::ConnTimers::race_write), `stream::TimedIo::with_socket`) may go
    /// without progress, whatever it has acknowledged before.
    pub const LUMP_MAX: Duration = Duration::from_secs(60);

    /// A least rate after a grace period.
    pub const fn new(bytes_per_second: u64, grace: Duration) -> Self {
        Self { bytes_per_second, grace }
    }
}

/// A deadline of a connection has come.
#[must_use = "it says what the connection has not done in time"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnEvent {
    /// The deadline's kind.
    pub kind: DeadlineKind,
    /// Whether this is the first event of its kind since the connection was last active. Also true
    /// if [`set_limits`](crate::ConnTimers::set_limits) has since given the connection more time
    /// than it had been idle for at its last event. Always true for a deadline that comes once.
    pub first: bool,
}

/// Says whether an event is wanted, by its kind, and by when it came if a look at the socket may
/// refute it.
pub(crate) trait Wanted: Fn(DeadlineKind, Option<Moment>) -> bool {}

impl<F: Fn(DeadlineKind, Option<Moment>) -> bool> Wanted for F {}
