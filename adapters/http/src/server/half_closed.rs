//! A client that has closed its own side, and is still answered for a time.
//!
//! Why not hyper's `half_close`: hyper then reads nothing while a handler works, and never finds
//! that its client has left. Here the end of the stream is withheld from hyper.
//!
//! Invariants: an end that comes between requests is not withheld.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use corewheel::AnyHandle;
use corewheel::fallback::InfallibleSleep;

use crate::hyper::Exchange;

/// The exchange of the last request of a connection; `None` before the first.
#[derive(Clone, Debug, Default)]
pub(super) struct Last(Arc<Mutex<Option<Exchange>>>);

impl Last {
    pub(super) fn set(&self, exchange: &Exchange) {
        let before =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(exchange.clone());
        drop(before);
    }

    fn get(&self) -> Option<Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
pub(super) struct HalfClosed {
    last: Last,
    handle: AnyHandle,
    time: Duration,
    /// Until when the client is answered; `None` while both sides are open.
    until: Option<InfallibleSleep>,
    /// Whether something was written and not flushed.
    pub(super) is_sending: bool,
}

impl HalfClosed {
    pub(super) fn new(last: Last, handle: AnyHandle, time: Duration) -> Self {
        Self { last, handle, time, until: None, is_sending: false }
    }

    /// Ready when hyper is told that the client has closed its side: no request waits for its
    /// response, or the time is over.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Not only complete ones: hyper reads on before a handler has all of a body.
        let waits = |exchange: Exchange| self.is_sending || !exchange.has_ended();
        if !self.last.get().is_some_and(waits) {
            return Poll::Ready(());
        }
        let (handle, time) = (self.handle, self.time);
        let until = self.until.get_or_insert_with(|| InfallibleSleep::after(handle, time));
        Pin::new(until).poll(cx)
    }
}
