//! Waits of the loops that a server cannot do without.

use std::time::Duration;

use corewheel::{RefusedKind, Timers};

/// Sleeps; false if the shard takes no timers any more, as it has ended.
///
/// A shard without a free timer refuses a sleep. The loop then goes on at once, after the other
/// tasks of the core had their turn, and does not end: a refusal passes.
pub(crate) async fn pause<T: Send + 'static>(timers: &Timers<T>, length: Duration) -> bool {
    match timers.sleep(length).await {
        Ok(()) => true,
        Err(RefusedKind::Closed) => false,
        Err(_) => {
            tokio::task::yield_now().await;
            true
        }
    }
}
