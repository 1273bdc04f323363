//! The errors of the drop-in for `tokio::time`.

use std::{fmt, io};

/// The time was up before the future was done; the error of a [`Timeout`](super::Timeout).
///
/// ```
/// use corewheel::time::error::Elapsed;
/// use std::io;
///
/// fn answer(late: Elapsed) -> io::Error {
///     io::Error::from(late)
/// }
/// # let _ = answer;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed(pub(super) ());

impl fmt::Display for Elapsed {
    /// The text of `tokio::time::error::Elapsed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// An error of the kind [`TimedOut`](io::ErrorKind::TimedOut).
impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> Self {
        io::ErrorKind::TimedOut.into()
    }
}

/// Why [`set_service`](super::set_service) did not set a service.
///
/// ```
/// use corewheel::time::error::SetServiceError;
/// use corewheel::time;
/// use corewheel::TimerService;
///
/// let service = TimerService::beside_runtime().start()?;
/// time::set_service(&service)?;
/// assert_eq!(time::set_service(&service), Err(SetServiceError::AlreadySet));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SetServiceError {
    /// The module has a service already: one was set, or the default service has started.
    AlreadySet,
    /// The service goes by a [`ManualClock`](crate::clock::ManualClock), and the instants of this
    /// module by the system's clock.
    ManualClock,
}

impl fmt::Display for SetServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadySet => {
                "corewheel::time has a service already; set one before the first sleep, timeout or \
                 interval is made"
            }
            Self::ManualClock => {
                "corewheel::time goes by the system's clock; set a service without a manual clock"
            }
        })
    }
}

impl std::error::Error for SetServiceError {}
