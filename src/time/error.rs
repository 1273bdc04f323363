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
