//! The limits of a body, and the errors that say which of them was reached.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use corewheel::conn::DataRate;

/// How many nanoseconds a limit that is off allows.
pub(super) const NEVER: u64 = u64::MAX;

/// How long a body may take. A limit of zero is off, and all are off by default.
///
/// The producer of a request's body is the client and its consumer is the handler. The producer
/// of a response's body is the handler and its consumer is the client.
///
/// The limits of a producer do not hold for a request whose response has begun, as in a stream of
/// gRPC in both directions: its client sends when what it receives asks for that. Such a request is
/// in progress until its response ends.
///
/// Each limit is a field, and has a setter of the same name.
///
/// ```
/// use corewheel_http::hyper::BodyLimits;
/// use corewheel::conn::DataRate;
/// use std::time::Duration;
///
/// let upload = BodyLimits::default()
///     .next_frame(Duration::from_secs(10))
///     .min_frame_rate(DataRate::new(240, Duration::from_secs(5)));
/// assert!(upload.next_poll.is_zero());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BodyLimits {
    /// The longest wait of the consumer for the next frame from the producer.
    pub next_frame: Duration,
    /// The least rate of the producer. Only the time for which the consumer waits counts. If
    /// the server finds the frame of a wait after the deadline, it cannot know how late it was
    /// itself: half of the time that was left to the deadline counts, and none after the tick
    /// of the deadline.
    pub min_frame_rate: DataRate,
    /// The longest wait for the consumer to ask for the next frame, or for the end. It counts
    /// from the beginning of the body, and again from each frame. A response whose connection has
    /// moved bytes after the deadline, before the limit was decided, has a second more: the window
    /// for it may have come with them, and another worker of the runtime may be about to take it.
    pub next_poll: Duration,
    /// The least rate of the consumer. Only the time for which it does not ask for a frame
    /// counts, as for the producer. A frame counts when it is given to the consumer.
    pub min_poll_rate: DataRate,
}

macro_rules! setters {
    ($($field:ident: $type:ty),*) => {
        /// Each setter returns the limits with one of them changed.
        impl BodyLimits {
            $(
                #[doc = concat!("Sets `", stringify!($field), "`.")]
                #[must_use]
                pub const fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}
setters! {
    next_frame: Duration,
    min_frame_rate: DataRate,
    next_poll: Duration,
    min_poll_rate: DataRate
}

/// Why a [`TimedBody`](super::TimedBody) has ended before the body within: the limit that was
/// reached, or the end of its exchange. It is the inner error of the error that its poll returns.
///
/// ```
/// use corewheel_http::hyper::BodyError;
///
/// /// Whether a body has ended since no frame of it came in time.
/// fn is_stalled(error: &BodyError) -> bool {
///     matches!(error, BodyError::NextFrame(_))
/// }
/// assert!(!is_stalled(&BodyError::Ended));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// [`BodyLimits::next_frame`].
    NextFrame(Duration),
    /// [`BodyLimits::min_frame_rate`].
    FrameRate(DataRate),
    /// [`BodyLimits::next_poll`].
    NextPoll(Duration),
    /// [`BodyLimits::min_poll_rate`].
    PollRate(DataRate),
    /// The exchange has ended for another reason; see [`Exchange`](super::Exchange).
    Ended,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NextFrame(time) => write!(f, "no frame of the body came for {time:?}"),
            Self::FrameRate(rate) => {
                write!(f, "the body came at less than {} bytes a second", rate.bytes_per_second)
            }
            Self::NextPoll(time) => write!(f, "no frame of the body was asked for in {time:?}"),
            Self::PollRate(rate) => {
                let rate = rate.bytes_per_second;
                write!(f, "the body was asked for at less than {rate} bytes a second")
            }
            Self::Ended => f.write_str("the exchange has ended"),
        }
    }
}

impl Error for BodyError {}

/// For what a body waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Frame,
    Poll,
}

impl BodyLimits {
    /// No limit.
    pub const NONE: Self = Self {
        next_frame: Duration::ZERO,
        min_frame_rate: DataRate::OFF,
        next_poll: Duration::ZERO,
        min_poll_rate: DataRate::OFF,
    };

    /// The longest time of a wait, and its least rate.
    pub(super) fn of(&self, awaited: Awaited) -> (Duration, DataRate) {
        match awaited {
            Awaited::Frame => (self.next_frame, self.min_frame_rate),
            Awaited::Poll => (self.next_poll, self.min_poll_rate),
        }
    }

    /// Whether a wait has a limit.
    pub(super) fn has(&self, awaited: Awaited) -> bool {
        let (longest, rate) = self.of(awaited);
        !longest.is_zero() || rate.bytes_per_second > 0
    }

    /// When a wait is over that began at `since`, and by which limit; `None` if that does not fit.
    /// Waits of its kind have taken `waited` nanoseconds before, for so many bytes.
    pub(super) fn due(
        &self,
        awaited: Awaited,
        since: Instant,
        waited: u64,
        bytes: u64,
    ) -> Option<(Instant, BodyError)> {
        let (longest, rate) = self.of(awaited);
        let by_wait = if longest.is_zero() { NEVER } else { saturating_nanos(longest) };
        let by_rate = allowance(rate, bytes).map_or(NEVER, |all| all.saturating_sub(waited));
        let timeout = match (awaited, by_rate < by_wait) {
            (Awaited::Frame, false) => BodyError::NextFrame(longest),
            (Awaited::Frame, true) => BodyError::FrameRate(rate),
            (Awaited::Poll, false) => BodyError::NextPoll(longest),
            (Awaited::Poll, true) => BodyError::PollRate(rate),
        };
        let due = since.checked_add(Duration::from_nanos(by_wait.min(by_rate)))?;
        Some((due, timeout))
    }
}

/// How many nanoseconds so many bytes may take at a least rate; `None` if it is off.
pub(super) fn allowance(rate: DataRate, bytes: u64) -> Option<u64> {
    let per_second = rate.bytes_per_second;
    let at_rate = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(per_second))?;
    let at_rate = u64::try_from(at_rate).unwrap_or(NEVER);
    Some(at_rate.max(saturating_nanos(rate.grace)))
}

pub(super) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
