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

    /// The time of a wait in which the server's own window was shut does not count. It is bounded:
    /// a client could keep the window shut by a request whose handler does not read.
    pub(super) fn excuse(&self, core: &Core<dyn Member>, state: &mut State<B>, awaited: Awaited) {
        if !self.is_of_client(awaited) {
            return;
        }
        let shut = core.connection.shared().window_shut();
        let time = shut.saturating_sub(state.shut).min(EXCUSE_MAX.saturating_sub(state.excused));
        (state.shut, state.excused) = (shut, state.excused + time);
        state.since = state.since.and_then(|since| since.checked_add(time));
    }
}
