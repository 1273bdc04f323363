//! PINGs of HTTP/2, over real sockets: a client that is gone while it has a response is found, and
//! one whose answer lay in the socket in time is kept.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use corewheel::TimerService;
use corewheel_http::axum::serve;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;
use futures_lite::stream::{self, StreamExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::broadcast;

use crate::http::{DATA, PATIENCE, PING, check_at_once, dropped, head, ms, pong};
use crate::served::Http2;

pub(crate) const INTERVAL: Duration = ms(200);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// A server of a stream of events and of a request that has no answer yet, by one thread.
struct Events {
    address: SocketAddr,
    /// Has an event sent to each stream.
    push: broadcast::Sender<()>,
    dropped: Receiver<Instant>,
    thread: Handle,
}

impl Events {
    fn start() -> Self {
        let (push, _) = broadcast::channel(8);
        let (drops, dropped_at) = mpsc::channel();
        let (sender, waiting) = (push.clone(), drops.clone());
        let events = move || {
            let (events, guard) = (sender.subscribe(), dropped(drops.clone()));
            let next = async move |(mut events, guard): (broadcast::Receiver<()>, _)| {
                events.recv().await.ok()?;
                Some((Ok::<_, Infallible>("data: 1\n\n"), (events, guard)))
            };
            let first = stream::once(Ok("data: 0\n\n"));
            let events = first.chain(Box::pin(stream::unfold((events, guard), next)));
            async { Body::from_stream(events) }
        };
        let wait = async move || {
            let _dropped = dropped(waiting.clone());
            pending::<()>().await;
        };
        let app = Router::new().route("/events", on_get(events)).route("/wait", on_get(wait));
        let (starts, started) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                starts.send((listener.local_addr().unwrap(), Handle::current())).unwrap();
                let service = TimerService::beside_runtime().start().unwrap();
                let server = serve(listener, app).keep_alive(INTERVAL, TIMEOUT).limits(|_| OFF);
                server.timers(service.handle()).request(|_| BodyLimits::NONE).await.unwrap();
            });
        });
        let (address, thread) = started.recv().unwrap();
        Self { address, push, dropped: dropped_at, thread }
    }

    /// A client that has asked for a path.
    fn ask(&self, path: &str) -> Http2 {
        let mut client = Http2::connect(self.address);
        client.send(&head(1, path, false));
        client
    }
}

/// Reads to the next PING of the server. `None` at the end of the connection.
pub(crate) fn next_ping(client: &mut Http2) -> Option<Vec<u8>> {
    loop {
        let (kind, flags, _, payload) = client.next()?;
        if kind == PING && flags == 0 {
            return Some(payload);
        }
    }
}

/// Answers some PINGs, and not the next one.
pub(crate) fn check_pings(client: &mut Http2) {
    for _ in 0..3 {
        let ping = next_ping(client).expect("the client is cut");
        client.send(&pong(&ping));
    }
    next_ping(client).expect("the client is cut");
}

#[test]
fn client_that_answers_no_ping_loses_its_stream_and_its_handler() {
    check_at_once(["/events", "/wait"], |path| {
        let server = Events::start();
        let begin = Instant::now();
        let mut client = server.ask(path);
        check_pings(&mut client);
        assert!(server.dropped.try_recv().is_err(), "{path}");
        server.dropped.recv_timeout(PATIENCE).expect("the server keeps a client that is gone");
        assert!(begin.elapsed() >= 4 * INTERVAL + TIMEOUT, "{path}: {:?}", begin.elapsed());
        assert_eq!(next_ping(&mut client), None);
    });
}

#[test]
fn answer_that_came_late_and_in_time_while_the_runtime_was_held_up_keeps_the_client() {
    let server = Events::start();
    let mut client = server.ask("/events");
    for _ in 0..3 {
        let ping = next_ping(&mut client).expect("the client is cut");
        let (begins, is_held) = mpsc::channel();
        drop(server.thread.spawn(async move {
            begins.send(()).unwrap();
            thread::sleep(2 * TIMEOUT);
        }));
        is_held.recv().unwrap();
        thread::sleep(TIMEOUT / 2);
        client.send(&pong(&ping));
    }
    let ping = next_ping(&mut client).expect("the client is cut");
    client.send(&pong(&ping));
    server.push.send(()).unwrap();
    client.wait_for(DATA);
    assert!(server.dropped.try_recv().is_err());
}
