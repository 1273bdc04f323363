//! A server that is held up, in this process or in one of its own.

use crate::child::Child;
use crate::client::Hold;
use crate::server::{Blocked, Server};

pub(crate) enum HeldUp {
    Here(Server),
    Child(Child),
}

impl HeldUp {
    /// Holds the server up. Blocked workers go on when the returned value is dropped.
    pub(crate) fn hold_up(&self, hold: Hold) -> Option<Blocked> {
        match self {
            Self::Here(server) if hold == Hold::Blocked => return Some(server.block()),
            Self::Here(server) => server.compute(),
            Self::Child(child) => child.stop(),
        }
        None
    }
}
