//! The first task of each shard: a listener that accepts clients.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::Timers;
use futures_lite::future::or;
use tokio::sync::watch;

use super::network::Network;
use super::pause::pause;

/// How long the acceptor waits after a failed attempt. Most likely all file descriptors are in use,
/// and some connection must end first.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The trouble is over when no attempt has failed for this long.
const CALM: Duration = Duration::from_secs(1);

/// What a server does with its clients on one shard.
pub(crate) trait Site<T: Send + 'static>: Send + 'static {
    /// Called on the shard's thread when the listener is bound. The returned function is called
    /// with each client that is accepted. `stopped` loses its sender when the server stops.
    fn open<N: Network>(
        self,
        timers: Timers<T>,
        stopped: watch::Receiver<()>,
    ) -> impl FnMut(N::Stream);
}

/// Accepts clients on one shard.
#[derive(Debug)]
pub(crate) struct Acceptor<S> {
    pub(crate) address: SocketAddr,
    pub(crate) site: S,
    /// Receives the outcome of the bind.
    pub(crate) ready: mpsc::Sender<io::Result<()>>,
    /// Changes, or loses its sender, when it is to stop.
    pub(crate) stopped: watch::Receiver<()>,
}

impl<S> Acceptor<S> {
    /// Accepts until it is stopped; the connections go on.
    pub(crate) async fn run<N: Network, T: Send + 'static>(mut self, timers: Timers<T>)
    where
        S: Site<T>,
    {
        let listener = match N::bind(self.address) {
            Ok(listener) => listener,
            Err(error) => return drop(self.ready.send(Err(error))),
        };
        let mut serve = self.site.open::<N>(timers.clone(), self.stopped.clone());
        // If the receiver is gone, the server has failed to start, and this is stopped too.
        drop(self.ready.send(Ok(())));
        let mut trouble = Trouble::default();
        loop {
            let stopped = async {
                let _sender_is_gone = self.stopped.changed().await.is_err();
                None
            };
            let accepted = or(stopped, async { Some(N::accept(&listener).await) });
            let Some(accepted) = accepted.await else { return };
            match accepted {
                Ok(stream) => {
                    trouble.end(&timers);
                    serve(stream);
                }
                // The client has left before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    trouble.note(&timers, &error);
                    if !pause(&timers, BACK_OFF).await {
                        return;
                    }
                }
            }
        }
    }
}

/// A time in which connections cannot be accepted: one line is logged at its beginning and one at
/// its end, however many attempts fail in between.
#[derive(Debug, Default)]
struct Trouble {
    /// How many attempts have failed; 0 if there is no trouble.
    failed: u64,
    /// When the latest attempt failed; `None` if there is no trouble.
    latest: Option<Instant>,
}

impl Trouble {
    fn note<T: Send + 'static>(&mut self, timers: &Timers<T>, error: &io::Error) {
        if self.failed == 0 {
            let (shard, again) = (timers.shard_id(), BACK_OFF);
            tracing::warn!(%shard, %error, ?again, "connections cannot be accepted");
        }
        self.failed += 1;
        self.latest = Some(Instant::now());
    }

    /// Ends the trouble after a connection was accepted, unless an attempt has just failed: where
    /// each connection that ends makes room for another, attempts fail and succeed by turns.
    fn end<T: Send + 'static>(&mut self, timers: &Timers<T>) {
        if self.latest.is_some_and(|latest| latest.elapsed() >= CALM) {
            let (shard, failed) = (timers.shard_id(), self.failed);
            tracing::warn!(%shard, failed, "connections are accepted again");
            *self = Self::default();
        }
    }
}
