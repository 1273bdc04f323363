//! The payload of a timer that has ended, as it leaves the slot and the table beside the slots.

use super::stored::Stored;
use super::timers::{Call, Calls, Payload, Remote, Taken};
use crate::values::outcome::CancelOutcome;

impl<T: 'static> Stored<T> {
    /// Takes a payload that uses no table. `Err` with any other payload.
    #[inline]
    pub(super) fn take_plain(self) -> Result<Taken<T>, Self> {
        match self {
            Self::Value(value) => Ok(Payload::Value(value)),
            other => Err(other),
        }
    }

    /// Takes the payload of a timer that has ended out of the table.
    #[inline]
    pub(super) fn take(self, calls: &mut Calls<T>) -> Taken<T> {
        match self {
            Self::Value(value) => Payload::Value(value),
            Self::Call(index) => Payload::Callback(calls.remove(index as usize)),
            // The part tells its users itself.
            Self::Part(..) => Payload::Local,
        }
    }
}

/// Makes a payload ready for another thread. Also returns the part of it that must be dropped
/// on this thread.
pub(super) fn into_remote<T>(taken: Taken<T>) -> (Remote<T>, Option<Taken<T>>) {
    match taken {
        Payload::Value(value) => (Payload::Value(value), None),
        Payload::Callback(Call::Send(call)) => (Payload::Callback(call), None),
        Payload::Callback(call) => (Payload::Local, Some(Payload::Callback(call))),
        Payload::Local => (Payload::Local, None),
    }
}

/// Makes an outcome ready for another thread. Also returns the part of the payload that must be
/// dropped on this thread.
pub(super) fn outcome_into_remote<T: 'static>(
    outcome: CancelOutcome<Taken<T>>,
) -> (CancelOutcome<Remote<T>>, Option<Taken<T>>) {
    let mut left = None;
    let outcome = outcome.map(|taken| {
        let (remote, rest) = into_remote(taken);
        left = rest;
        remote
    });
    (outcome, left)
}
