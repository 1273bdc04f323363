//! The server: it answers at once, late, or never.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::Timers;
use fastrand::Rng;
use tokio::sync::Notify;

use crate::client::{BYE, TIMEOUT};
use crate::connection::{self, Outbox};
use crate::network::Network;

/// The server answers one in so many requests too late, and as many never.
const UNLUCKY: u32 = 8;
/// How long a late answer takes: its attempt has expired when it comes.
const LATE: Duration = TIMEOUT.saturating_mul(3);

/// How the requests were answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) at_once: u64,
    pub(crate) late: u64,
    pub(crate) never: u64,
}

#[derive(Debug, Default)]
struct Server {
    counts: Cell<Counts>,
    closed: Cell<usize>,
    changed: Notify,
}

/// The server's side of one connection.
#[derive(Debug)]
struct Session {
    server: Rc<Server>,
    timers: Timers,
    outbox: Outbox,
    /// Late answers that are not sent yet.
    owed: Cell<usize>,
    /// The client sends no more requests.
    leaving: Cell<bool>,
}

/// Serves so many connections until all of them are closed.
pub(crate) async fn serve<N: Network>(
    timers: &Timers,
    connections: usize,
    ready: &mpsc::Sender<io::Result<SocketAddr>>,
) -> io::Result<Counts> {
    let bound = N::bind((Ipv4Addr::LOCALHOST, 0).into())
        .and_then(|listener| Ok((N::address(&listener)?, listener)));
    let listener = match bound {
        Ok((address, listener)) => {
            drop(ready.send(Ok(address)));
            listener
        }
        Err(error) => {
            // The main thread waits for the address, and reports the error.
            drop(ready.send(Err(error)));
            return Ok(Counts::default());
        }
    };
    let server = Rc::new(Server::default());
    for number in 0..connections {
        let stream = N::accept(&listener).await?;
        let session = Rc::new(Session {
            server: Rc::clone(&server),
            timers: timers.clone(),
            outbox: Outbox::default(),
            owed: Cell::new(0),
            leaving: Cell::new(false),
        });
        N::spawn(async move {
            let mut rng = Rng::with_seed(number as u64);
            let received = |request| receive(&session, request, &mut rng);
            // If the connection has failed, the counts do not add up.
            let _ = connection::run(stream, &session.outbox, received).await;
            session.server.closed.set(session.server.closed.get() + 1);
            session.server.changed.notify_one();
        });
    }
    while server.closed.get() < connections {
        server.changed.notified().await;
    }
    Ok(server.counts.get())
}

fn receive(session: &Rc<Session>, request: u64, rng: &mut Rng) {
    if request == BYE {
        session.leaving.set(true);
        return session.leave();
    }
    let mut counts = session.server.counts.get();
    match rng.u32(..UNLUCKY) {
        0 => counts.never += 1,
        1 => {
            let late = Rc::clone(session);
            let answer = move |_: &Timers| {
                late.owed.set(late.owed.get() - 1);
                late.outbox.send(request);
                late.leave();
            };
            // Without room for another timer, the request is never answered.
            if session.timers.schedule_fn(LATE, answer).is_ok() {
                session.owed.set(session.owed.get() + 1);
                counts.late += 1;
            } else {
                counts.never += 1;
            }
        }
        _ => {
            counts.at_once += 1;
            session.outbox.send(request);
        }
    }
    session.server.counts.set(counts);
}

impl Session {
    /// Closes the connection once the client is leaving and all late answers are sent.
    fn leave(&self) {
        if self.leaving.get() && self.owed.get() == 0 {
            self.outbox.finish();
        }
    }
}
