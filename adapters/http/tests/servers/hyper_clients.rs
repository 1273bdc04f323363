//! The timer of hyper in clients: the pool of hyper-util, and the PINGs of a client of HTTP/2, by a
//! manual clock.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use corewheel_http::hyper::HyperTimer;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tower::{Service, service_fn as connect_fn};

use crate::http::{Lab, PING, Peer, SETTINGS, answer, frames, is_timeout, lab, ms, pong};

/// A stream in memory that a client connects by.
struct InMemory(TokioIo<DuplexStream>);

impl Connection for InMemory {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for InMemory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for InMemory {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The servers of the connections that a client has made.
type Servers = Arc<Mutex<Vec<JoinHandle<Result<(), hyper::Error>>>>>;

/// Connects to a server of HTTP/1 of its own each time.
fn connector(
    servers: Servers,
) -> impl Service<Uri, Response = InMemory, Error = io::Error, Future: Send + Unpin>
+ Clone
+ Send
+ Sync
+ 'static {
    connect_fn(move |_: Uri| {
        let (near, far) = tokio::io::duplex(1 << 16);
        let builder = http1::Builder::new();
        let served = builder.serve_connection(TokioIo::new(far), service_fn(answer));
        servers.lock().unwrap().push(tokio::spawn(served));
        std::future::ready(Ok(InMemory(TokioIo::new(near))))
    })
}

/// A client whose pool keeps idle connections for 100 ms, and the servers of its connections.
fn pooled(lab: &Lab) -> (impl FnMut(&mut Lab) + use<>, Servers) {
    let servers = Servers::default();
    let timer = HyperTimer::new(lab.handle());
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new())
        .timer(timer)
        .pool_timer(timer)
        .pool_idle_timeout(ms(100))
        .build(connector(Arc::clone(&servers)));
    let get = move |lab: &mut Lab| {
        let response = client.get(Uri::from_static("http://test/"));
        let answered = lab.spawn(async move {
            let response = response.await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap()
        });
        lab.settle();
        drop(lab.output(answered));
        lab.settle();
    };
    (get, servers)
}

/// How many connections a client has made, and how many of them are open.
fn connections(servers: &Servers) -> (usize, usize) {
    let servers = servers.lock().unwrap();
    (servers.len(), servers.iter().filter(|server| !server.is_finished()).count())
}

#[test]
fn pool_reuses_a_connection_until_it_is_idle_for_longer_than_the_timeout() {
    for (idle, made) in [(ms(99), 1), (ms(100), 1), (ms(101), 2)] {
        let mut lab = lab();
        let (mut get, servers) = pooled(&lab);
        // The task that looks at idle connections begins now, and looks in 100 ms.
        get(&mut lab);
        lab.advance(ms(50));
        get(&mut lab);
        lab.advance(idle);
        get(&mut lab);
        assert_eq!(connections(&servers).0, made, "after {idle:?}");
    }
}

#[test]
fn pool_closes_idle_connections_at_the_tick_of_its_interval() {
    let mut lab = lab();
    let (mut get, servers) = pooled(&lab);
    get(&mut lab);
    lab.advance(ms(100));
    // The connection is idle for the timeout, and not for longer.
    assert_eq!(connections(&servers), (1, 1));
    lab.advance(ms(99));
    assert_eq!(connections(&servers), (1, 1), "a tick early");
    lab.advance(ms(1));
    assert_eq!(connections(&servers), (1, 0));
    drop(get);
    assert_eq!(lab.settled().pending, 0);
}

#[test]
fn http2_client_sends_a_ping_to_a_quiet_server_and_gives_up_without_an_answer() {
    let mut lab = lab();
    let (near, far) = tokio::io::duplex(1 << 16);
    let timer = HyperTimer::new(lab.handle());
    let connected = lab.spawn(async move {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(timer).keep_alive_interval(ms(100)).keep_alive_timeout(ms(50));
        builder.keep_alive_while_idle(true);
        let connected = builder.handshake::<_, Empty<Bytes>>(TokioIo::new(near)).await;
        connected.unwrap()
    });
    let mut peer = Peer(far);
    // The server's settings, and its acknowledgement of the client's.
    peer.write(&mut lab, &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0, 0, 0, 0, SETTINGS, 1, 0, 0, 0, 0]);
    let (_requests, connection) = lab.output(connected);
    let connection = lab.spawn(connection);
    let preface = peer.read(&mut lab).len();
    assert!(preface > 24, "the client begins");
    let pings = |lab: &mut Lab, peer: &mut Peer| {
        let mut frames = frames(&peer.read(lab));
        frames.retain(|frame| frame.0 == PING && frame.1 == 0);
        frames
    };
    for _ in 0..3 {
        lab.advance(ms(99));
        assert_eq!(pings(&mut lab, &mut peer).len(), 0, "a PING is a tick early");
        lab.advance(ms(1));
        let pings = pings(&mut lab, &mut peer);
        assert_eq!(pings.len(), 1);
        peer.write(&mut lab, &pong(&pings[0].2));
    }
    lab.advance(ms(100));
    assert_eq!(pings(&mut lab, &mut peer).len(), 1);
    lab.advance(ms(49));
    assert!(!connection.is_finished(), "a tick early");
    lab.advance(ms(1));
    let error = lab.output(connection).unwrap_err();
    assert!(is_timeout(&error), "{error:?}");
}
