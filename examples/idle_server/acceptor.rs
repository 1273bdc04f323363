//! What runs on each shard: a listener, and a task for each connection that it accepts.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::{ConnLimits, Timers};
use tokio::sync::watch;

use crate::connection::{self, Stream};

/// How long to wait after a connection could not be accepted: most likely there are no more file
/// descriptors, and some connection must end first.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The most connections that wait to be accepted.
pub(crate) const BACKLOG: u32 = 1_024;

/// What the acceptor needs of a runtime.
pub(crate) trait Listener: Sized + 'static {
    type Stream: Stream + 'static;

    /// Listens with `SO_REUSEPORT`, so that every shard can.
    fn bind(address: SocketAddr) -> io::Result<Self>;
    async fn accept(&self) -> io::Result<Self::Stream>;
    /// Starts a task on this core.
    fn spawn(task: impl Future<Output = ()> + 'static);
}

/// Takes clients on one shard.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) address: SocketAddr,
    pub(crate) limits: ConnLimits,
    /// Is told whether it listens.
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
        // Whoever started it may have given up meanwhile, and then it is stopped, too.
        drop(self.ready.send(Ok(())));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.stopped.changed() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let timers = timers.clone();
                    L::spawn(async move {
                        let end = connection::serve(stream, &timers, self.limits).await;
                        tracing::debug!(shard = %timers.shard_id(), %end, "a connection ended");
                    });
                }
                // The client has left before it was its turn.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    if timers.sleep(BACK_OFF).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
