//! The tasks of each shard: a listener, and a task for each connection that it accepts.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::{ConnLimits, Timers};
use futures_lite::future::or;
use tokio::sync::watch;

use crate::connection::{self, Stream};

/// How long the acceptor waits after a failed attempt. Most likely all file descriptors are in use,
/// and some connection must end first.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The trouble is over when no attempt has failed for this long.
const CALM: Duration = Duration::from_secs(1);
/// The most connections that wait to be accepted.
pub(crate) const BACKLOG: u32 = 1_024;

/// A listener on either runtime.
pub(crate) trait Listener: Sized + 'static {
    type Stream: Stream + 'static;

    /// Listens with `SO_REUSEPORT`, so that every shard can.
    fn bind(address: SocketAddr) -> io::Result<Self>;
    async fn accept(&self) -> io::Result<Self::Stream>;
    /// Starts a task on this core.
    fn spawn(task: impl Future<Output = ()> + 'static);
}

/// Accepts clients on one shard.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) address: SocketAddr,
    pub(crate) limits: ConnLimits,
    /// Receives the outcome of the bind.
    pub(crate) ready: mpsc::Sender<io::Result<()>>,
    /// Changes, or loses its sender, when it is to stop.
    pub(crate) stopped: watch::Receiver<()>,
}

impl Acceptor {
    /// Accepts until it is stopped; the connections go on.
    pub(crate) async fn run<L: Listener>(mut self, timers: Timers) {
        let listener = match L::bind(self.address) {
            Ok(listener) => listener,
            Err(error) => return drop(self.ready.send(Err(error))),
        };
        // If the receiver is gone, the server has failed to start, and this is stopped too.
        drop(self.ready.send(Ok(())));
        let mut trouble = Trouble::default();
        loop {
            let stopped = async {
                let _sender_is_gone = self.stopped.changed().await.is_err();
                None
            };
            let accepted = or(stopped, async { Some(listener.accept().await) });
            let Some(accepted) = accepted.await else { return };
            match accepted {
                Ok(stream) => {
                    trouble.end(&timers);
                    let timers = timers.clone();
                    L::spawn(async move {
                        let end = connection::serve(stream, &timers, self.limits).await;
                        tracing::debug!(shard = %timers.shard_id(), %end, "a connection ended");
                    });
                }
                // The client has left before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    trouble.note(&timers, &error);
                    if timers.sleep(BACK_OFF).await.is_err() {
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
    fn note(&mut self, timers: &Timers, error: &io::Error) {
        if self.failed == 0 {
            let (shard, again) = (timers.shard_id(), BACK_OFF);
            tracing::warn!(%shard, %error, ?again, "connections cannot be accepted");
        }
        self.failed += 1;
        self.latest = Some(Instant::now());
    }

    /// Ends the trouble after a connection was accepted, unless an attempt has just failed: where
    /// each connection that ends makes room for another, attempts fail and succeed by turns.
    fn end(&mut self, timers: &Timers) {
        if self.latest.is_some_and(|latest| latest.elapsed() >= CALM) {
            let (shard, failed) = (timers.shard_id(), self.failed);
            tracing::warn!(%shard, failed, "connections are accepted again");
            *self = Self::default();
        }
    }
}
