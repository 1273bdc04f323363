//! The timer of hyper in the pool of hyper-util's client, by a manual clock.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use corewheel_http::hyper::HyperTimer;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tower::service_fn as connect_fn;

use crate::http::{Lab, answer, check_comes, lab, ms};

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

/// A client whose pool keeps idle connections for 100 ms, and the servers of its connections: each
/// has one of HTTP/1 of its own.
fn pooled(lab: &Lab) -> (impl FnMut(&mut Lab) + use<>, Servers) {
    let (servers, timer) = (Servers::default(), HyperTimer::new(lab.handle()));
    let made = Arc::clone(&servers);
    let connect = connect_fn(move |_: Uri| {
        let (near, far) = tokio::io::duplex(1 << 16);
        let builder = http1::Builder::new();
        let served = builder.serve_connection(TokioIo::new(far), service_fn(answer));
        made.lock().unwrap().push(tokio::spawn(served));
        std::future::ready(Ok::<_, io::Error>(InMemory(TokioIo::new(near))))
    });
    let builder = &mut Client::builder(TokioExecutor::new());
    let builder = builder.timer(timer).pool_timer(timer).pool_idle_timeout(ms(100));
    let client: Client<_, Empty<Bytes>> = builder.build(connect);
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
    check_comes(&mut lab, ms(100), || connections(&servers) == (1, 0));
    drop(get);
    assert_eq!(lab.settled().pending, 0);
}
