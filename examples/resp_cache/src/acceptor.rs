//! The tasks of each core: a listener, and a task for each client that it accepts.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::Timers;
use tokio::sync::watch;

use crate::connection::{self, Stream};
use crate::core::{Core, Message};

/// How long the acceptor waits after a failed attempt. Most likely all file descriptors are in use,
/// and some connection must end first.
const BACK_OFF: Duration = Duration::from_millis(100);
/// The most connections that wait to be accepted.
pub(crate) const BACKLOG: u32 = 1_024;

/// A listener on either runtime.
pub(crate) trait Listener: Sized + 'static {
    type Stream: Stream + 'static;

    /// Listens with `SO_REUSEPORT`, so that every core can.
    fn bind(address: SocketAddr) -> io::Result<Self>;
    async fn accept(&self) -> io::Result<Self::Stream>;
    /// Starts a task on this core.
    fn spawn(task: impl Future<Output = ()> + 'static);
}

/// Runs one core: its inbox, its housekeeping and its listener.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) address: SocketAddr,
    pub(crate) inbox: tokio::sync::mpsc::Receiver<Message>,
    /// Receives the outcome of the bind.
    pub(crate) ready: mpsc::Sender<io::Result<()>>,
    /// Changes, or loses its sender, when it is to stop.
    pub(crate) stopped: watch::Receiver<()>,
}

impl Acceptor {
    /// Accepts until it is stopped; the connections go on.
    pub(crate) async fn run<L: Listener>(mut self, timers: Timers<u32>) {
        let core = Core::here();
        let listener = match L::bind(self.address) {
            Ok(listener) => listener,
            Err(error) => return drop(self.ready.send(Err(error))),
        };
        L::spawn(Rc::clone(&core).serve_inbox(timers.clone(), self.inbox));
        L::spawn(Rc::clone(&core).send_outgoing());
        L::spawn(Rc::clone(&core).keep_house(timers.clone()));
        // If the receiver is gone, the server has failed to start, and this is stopped too.
        drop(self.ready.send(Ok(())));
        // Set while attempts fail, so that one line is logged for many failures.
        let mut is_failing = false;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.stopped.changed() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    is_failing = false;
                    L::spawn(serve(stream, Rc::clone(&core), timers.clone()));
                }
                // The client has left before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(core = core.index, %error, "clients cannot be accepted");
                    }
                    if timers.sleep(BACK_OFF).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

async fn serve<S: Stream>(mut stream: S, core: Rc<Core>, timers: Timers<u32>) {
    if !core.shared.enter_client() {
        // It is not waited for a client that does not take these few bytes.
        let refusal = stream.write(b"-ERR max number of clients reached\r\n");
        let _ = timers.timeout(BACK_OFF, refusal).await;
        return stream.close().await;
    }
    let end = connection::serve(stream, Rc::clone(&core), timers).await;
    core.shared.leave_client();
    tracing::debug!(core = core.index, %end, "a connection ended");
}
