//! hyper's HTTP/1 server over streams with their timeouts, through both families of traits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use corewheel::Runtime;
use corewheel::stream::StreamControl;
use corewheel::stream::StreamTimeout::{AgeGrace, Head, Idle, ReadRate};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read as HyperRead, Write as HyperWrite};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const SLOW: Duration = ms(2_000);
/// One byte in 100 ms.
const RATE: DataRate = DataRate::new(10, SLOW);

fn limits() -> StreamLimits {
    StreamLimits::default().head(SLOW).idle(SLOW).min_read_rate(RATE)
}

/// Answers with the length of the body. It works for longer than a connection may be idle.
async fn answer<M: Side>(
    request: Request<Incoming>,
    control: StreamControl<M>,
    work: impl Future<Output = ()>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    control.head_complete();
    let in_flight = control.begin_request();
    let body = request.into_body().collect().await?.to_bytes();
    control.message_complete();
    work.await;
    drop(in_flight);
    control.begin_message();
    Ok(Response::new(Full::new(Bytes::from(body.len().to_string()))))
}

/// Serves one connection. Returns the limit that has ended it, as hyper's error says it.
async fn serve<I, M>(io: I, control: StreamControl<M>) -> Option<StreamTimeout>
where
    I: HyperRead + HyperWrite + Unpin,
    M: Side,
{
    control.begin_message();
    let work = || tokio::time::sleep(SLOW + SLOW / 4);
    let service = service_fn(|request| answer(request, control.clone(), work()));
    let error = http1::Builder::new().serve_connection(io, service).await.err()?;
    // The error of a body that is cut is the service's.
    let mut source: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            assert_eq!(inner.copied(), control.limit_reached());
        }
        source = error.source();
    }
    control.limit_reached()
}

/// Which family of traits hyper's server uses.
#[derive(Clone, Copy)]
enum Family {
    /// tokio's, which hyper-util adapts.
    Tokio,
    /// hyper's, of a stream that hyper-util adapts.
    Hyper,
}

fn start(
    family: Family,
) -> (SocketAddr, Receiver<(SocketAddr, Option<StreamTimeout>)>, impl Sized) {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (ended, outcomes) = mpsc::channel();
    runtime.spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            tokio::spawn(connection(family, stream, timers, peer, ended.clone()));
        }
    });
    (address, outcomes, (runtime, service))
}

async fn connection(
    family: Family,
    stream: TcpStream,
    timers: Handle,
    peer: SocketAddr,
    ended: Sender<(SocketAddr, Option<StreamTimeout>)>,
) {
    let timeout = match family {
        Family::Tokio => {
            let stream = TimedIo::new(stream, timers, limits());
            let control = stream.control();
            serve(TokioIo::new(stream), control).await
        }
        Family::Hyper => {
            let stream = TimedIo::new(TokioIo::new(stream), timers, limits());
            let control = stream.control();
            serve(stream, control).await
        }
    };
    let _ = ended.send((peer, timeout));
}

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 24\r\n\r\n";

/// Sends bytes one by one until the server has closed the connection.
fn send_until_cut(client: &mut Client, bytes: &[u8], pause: Duration) {
    for byte in bytes.iter().cycle() {
        if client.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(pause);
    }
}

/// Reads until the answer to one request is there.
fn read_answer(client: &mut Client) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n24") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
}

type Part = fn(&mut Client) -> (Instant, Option<StreamTimeout>);

const PARTS: [(&str, Part); 4] = [
    ("slow head", |client| {
        let begin = Instant::now();
        send_until_cut(client, b"GET", ms(50));
        (begin, Some(Head(SLOW)))
    }),
    ("slow body", |client| {
        // The message is measured from the first byte of its head.
        let begin = Instant::now();
        client.write_all(HEAD).unwrap();
        send_until_cut(client, b"b", ms(500));
        (begin, Some(ReadRate(RATE)))
    }),
    ("slow second head", |client| {
        client.write_all(HEAD).unwrap();
        client.write_all(&[b'b'; 24]).unwrap();
        read_answer(client);
        let begin = Instant::now();
        send_until_cut(client, b"GET", ms(50));
        (begin, Some(Head(SLOW)))
    }),
    ("honest", |client| {
        for _ in 0..2 {
            client.write_all(HEAD).unwrap();
            for _ in 0..24 {
                client.write_all(b"b").unwrap();
                thread::sleep(ms(20));
            }
            read_answer(client);
        }
        // After its requests, the connection is idle.
        (Instant::now(), Some(Idle(SLOW)))
    }),
];

fn check_server(family: Family) {
    let (address, outcomes, _running) = start(family);
    let clients = PARTS.map(|(name, part)| {
        thread::spawn(move || {
            let mut client = Client::connect(address).unwrap();
            client.set_nodelay(true).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let own = client.local_addr().unwrap();
            let (since, expected) = part(&mut client);
            // hyper may send an error before it closes the connection.
            let _ = client.read_to_end(&mut Vec::new());
            let elapsed = since.elapsed();
            // The end of an idle connection may lie between the server's write and the client's
            // read of it; both are later than the work for the answer.
            assert!(elapsed >= SLOW || name == "honest", "{name}: cut after {elapsed:?}");
            (name, own, expected)
        })
    });
    let clients = clients.map(|client| client.join().unwrap());
    for _ in PARTS {
        let (peer, timeout) = outcomes.recv_timeout(PATIENCE).unwrap();
        let (name, _, expected) = clients.iter().find(|(_, own, _)| *own == peer).unwrap();
        assert_eq!(timeout, *expected, "{name}");
    }
}

#[test]
fn http_server_over_tokio_traits_cuts_slow_clients_and_serves_honest_ones() {
    check_server(Family::Tokio);
}

#[test]
fn http_server_over_hyper_traits_cuts_slow_clients_and_serves_honest_ones() {
    check_server(Family::Hyper);
}

/// Serves one connection, and tells the peer at its greatest age. A request takes some time, or
/// until then, if that is `None`.
async fn serve_until_old(
    stream: TcpStream,
    timers: Handle,
    limits: StreamLimits,
    work: Option<Duration>,
) -> Option<StreamTimeout> {
    let stream = TimedIo::new(stream, timers, limits);
    let (control, is_told) = (stream.control(), Notify::new());
    let work = || async {
        match work {
            Some(work) => tokio::time::sleep(work).await,
            None => is_told.notified().await,
        }
    };
    let service = service_fn(|request| answer(request, control.clone(), work()));
    let mut conn = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = conn.as_mut() => return control.limit_reached(),
        told = control.max_age_reached() => told.unwrap(),
    }
    conn.as_mut().graceful_shutdown();
    is_told.notify_one();
    let _ = conn.await;
    control.limit_reached()
}

/// What a client receives whose request is in flight at the greatest age, and how it ends.
fn request_at_the_greatest_age(
    grace: Duration,
    work: Option<Duration>,
) -> (String, Option<StreamTimeout>) {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let limits = StreamLimits::default().max_age(ms(500)).max_age_grace(grace);
    let served = runtime.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve_until_old(stream, timers, limits, work).await
    });
    client.write_all(&[HEAD, &[b'x'; 24]].concat()).unwrap();
    let mut received = String::new();
    let _ = client.read_to_string(&mut received);
    (received, runtime.block_on(served).unwrap())
}

#[test]
fn request_in_flight_at_the_greatest_age_is_answered_within_the_grace() {
    let (received, ended) = request_at_the_greatest_age(PATIENCE, None);
    assert!(received.ends_with("\r\n\r\n24"), "{received}");
    assert!(received.contains("connection: close"), "{received}");
    assert_eq!(ended, None);
}

#[test]
fn request_that_takes_longer_than_the_grace_is_cut() {
    let (received, ended) = request_at_the_greatest_age(ms(500), Some(PATIENCE));
    assert_eq!((received.as_str(), ended), ("", Some(AgeGrace(ms(500)))));
}
