//! The time in which the server's own window keeps a client from sending.
//!
//! Why not what the bodies have consumed: the client knows the window that was written to it.

use std::time::Duration;

use hyper::body::Body;

use super::super::exchange::{BodySide, Core, Member};
use super::super::limits::Awaited;
use super::{Cell, State};

/// For how much time in all the server's window excuses the client of a request.
const EXCUSE_MAX: Duration = Duration::from_secs(60);

impl<B: Body> Cell<B> {
    /// Whether a wait is for what the client sends.
    pub(super) fn is_of_client(&self, awaited: Awaited) -> bool {
        self.side == BodySide::Request && awaited == Awaited::Frame
    }

    /// A wait counts from the last moment at which the server's own window was shut. A server that
    /// was held up does not know since when it was. The time before that is excused, and is
    /// bounded: a client could keep the window shut by a request whose handler does not read.
    pub(super) fn excuse(&self, core: &Core<dyn Member>, state: &mut State<B>, awaited: Awaited) {
        let Some(since) = state.since.filter(|_| self.is_of_client(awaited)) else { return };
        let Some(until) = core.connection.shared().window_shut_until() else { return };
        let time = until.saturating_duration_since(since);
        let time = time.min(EXCUSE_MAX.saturating_sub(state.excused));
        (state.since, state.excused) = (since.checked_add(time), state.excused + time);
    }
}
