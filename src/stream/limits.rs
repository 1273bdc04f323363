//! The limits of a stream, and the error that says which of them was reached.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::conn::{ConnLimits, DataRate, DeadlineKind, Ends, deadline_kinds, limits_struct};
use crate::values::refused::RefusedKind;

macro_rules! stream_limits {
    ($(
        $(#[$_about:meta])*
        $kind:ident, $text:literal, $rule:expr;
        $(span $span:tt)?
        $(limits $limits:tt)?
        stream { $(
            $(#[$doc:meta])*
            $field:ident: $type:ty $(= $conn:ident)? $(| $least:ident = $conn_least:ident)?,
        )* }
        ends {
            $ends:ident $(, $error:ident($limit:ident: $limit_type:ty), $says:literal)?
        }
    )*) => {
        limits_struct! {
            /// How long a stream may take for something, or go on without something. A limit of
            /// zero is off, and all are off by default.
            ///
            /// Limits are rounded up to a tick; a limit that does not fit (584 years) means never.
            /// Each limit is a field, and has a setter of the same name.
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
            StreamLimits {
                $($($(#[$doc])* $field: $type $(| $least)?,)*)*
                /// How many bytes the system accepts and has not sent for a peer that takes slowly,
                /// of a stream [with a socket](super::TimedIo::with_socket): see
                /// [`ConnLimits::unsent_max`]. It does not change with the limits of the timers.
                unsent_max: u32,
            }
        }

        impl StreamLimits {
            /// The limits of the connection's timers. The deadline of a head is armed by the
            /// stream.
            pub(super) fn of_conn(self) -> ConnLimits {
                let mut conn = ConnLimits::default().unsent_max(self.unsent_max);
                $($($(conn.$conn = self.$field;)? $(conn.$conn_least = self.$least;)?)*)*
                conn
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
            $($(
                #[doc = concat!("[`StreamLimits::", stringify!($limit), "`]: `", $says, "`.")]
                $error($limit_type),
            )?)*
            /// The stream was open at the end of a [drain](crate::TimerService::drain).
            Drained,
            /// The stream was told to end before its greatest age, and has no grace: it was one of
            /// the [idlest](crate::TimerService::close_idlest), or its owner has armed
            /// [`DeadlineKind::MaxAge`].
            Told,
            /// A deadline has come that the owner has set by the stream's
            /// [`timers`](super::TimedIo::timers).
            Other(DeadlineKind),
        }

        impl StreamTimeout {
            /// The limit of a kind, as the connection's timers have it now.
            pub(super) fn new(kind: DeadlineKind, conn: &ConnLimits, head: Duration) -> Self {
                let limits = StreamLimits {
                    $($($($field: conn.$conn,)? $($least: conn.$conn_least,)?)*)*
                    head,
                    unsent_max: conn.unsent_max,
                };
                match kind {
                    $($(DeadlineKind::$kind => Self::$error(limits.$limit),)?)*
                    other => Self::Other(other),
                }
            }
        }

        impl fmt::Display for StreamTimeout {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($(Self::$error(limit) => write!(f, $says, Shown(*limit)),)?)*
                    Self::Drained => f.write_str("the drain of the connections is over"),
                    Self::Told => f.write_str("the connection was told to end"),
                    Self::Other(kind) => write!(f, "the connection's {kind} has come"),
                }
            }
        }

        /// Which waits a deadline ends.
        pub(super) fn ends(kind: DeadlineKind) -> Ends {
            match kind {
                $(DeadlineKind::$kind => Ends::$ends,)*
                _ => Ends::All,
            }
        }
    };
}
deadline_kinds!(stream_limits);

/// A limit in the text of an error.
struct Shown<L>(L);

impl fmt::Display for Shown<Duration> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Display for Shown<DataRate> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes a second", self.0.bytes_per_second)
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
    let is_final = matches!(refused, RefusedKind::Closed | RefusedKind::NoSuchShard);
    let kind = if is_final { io::ErrorKind::Other } else { io::ErrorKind::ResourceBusy };
    io::Error::new(kind, refused)
}
