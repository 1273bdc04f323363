//! What a shard keeps of what other threads have sent.

use corewheel_shard::{Tick, TimerKey};
use hashbrown::HashMap;

use super::callback::SendCall;
use super::request::{CancelReply, Request, ShutdownOrder};
use super::stored::Job;
use crate::link::lane::LaneReceiver;

/// The lanes of a shard, and what their requests ask of later turns.
pub(super) struct Inbox<T: 'static> {
    pub(super) lanes: Vec<LaneReceiver<Request<T>>>,
    /// When a turn looks again for keys for the futures that lanes hold; `None` if no lane holds
    /// any.
    pub(super) keys_retry_at: Option<Tick>,
    /// Until when cancels that no caller waits for may wait, if they have come since the last turn
    /// received requests.
    pub(super) soon: Tick,
    /// Whether a turn has received such a cancel, or a cancel before its timer, since the last one
    /// began to receive.
    pub(super) has_freed: bool,
    /// When a turn receives requests though none may wake the shard: such cancels came in the
    /// second before. `None` if none came.
    pub(super) frees_at: Option<Tick>,
    /// When the shard last looked for idle lanes.
    pub(super) lanes_checked: Tick,
    /// The replies of cancels that came before their timers, by the keys of the timers. The callers
    /// still wait.
    pub(super) overtaken: HashMap<TimerKey, CancelReply<T>>,
}

impl<T: 'static> Inbox<T> {
    pub(super) fn new(soon: Tick) -> Self {
        Self {
            lanes: Vec::new(),
            keys_retry_at: None,
            soon,
            has_freed: false,
            frees_at: None,
            lanes_checked: Tick::ZERO,
            overtaken: HashMap::new(),
        }
    }
}

/// The mail of a shard that was taken and not acted on.
pub(super) struct Mail<T: 'static> {
    /// Messages for the driver.
    pub(super) jobs: Vec<Job<T>>,
    /// The callbacks of the mail, which the turn that takes them runs.
    pub(super) calls: Vec<SendCall<T>>,
    pub(super) shutdown: Option<ShutdownOrder<T>>,
}

impl<T: 'static> Default for Mail<T> {
    fn default() -> Self {
        Self { jobs: Vec::new(), calls: Vec::new(), shutdown: None }
    }
}
