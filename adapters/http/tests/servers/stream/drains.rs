//! A server whose connections are drained over sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use corewheel::Runtime;
use corewheel::stream::StreamTimeout::Drained;
use corewheel_http::hyper::TimedHttp;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// Serves one connection until its client leaves, or until it is told and has answered. A request
/// is reported when it begins. It takes some time, or until the connection is told, if that is
/// `None`.
async fn serve(
    socket: TcpStream,
    timers: Handle,
    work: Option<Duration>,
    began: Sender<()>,
) -> (u64, bool) {
    let stream = TimedIo::new(socket, timers, StreamLimits::default().idle(PATIENCE));
    let control = stream.control();
    let is_told = Notify::new();
    let answer = |_: Request<_>| async {
        began.send(()).unwrap();
        match work {
            Some(work) => tokio::time::sleep(work).await,
            None => is_told.notified().await,
        }
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("done"))))
    };
    let service = TimedHttp::new(service_fn(answer), control.clone());
    let mut conn = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    let mut times_told = 0;
    tokio::select! {
        _ = conn.as_mut() => {}
        told = control.max_age_reached() => {
            told.unwrap();
            times_told += 1;
            conn.as_mut().graceful_shutdown();
            is_told.notify_one();
            let _ = conn.await;
        }
    }
    (times_told, control.limit_reached() == Some(Drained))
}

/// What each of some clients receives that has a request in flight, or none, when a server drains;
/// and how often its connections were told and cut. The request of the first is not answered before
/// its connection is told, if `first_waits`.
fn drain_server(
    window: Duration,
    work: Duration,
    first_waits: bool,
    asks: &[bool],
) -> (Vec<String>, u64, usize) {
    let service = TimerService::builder().shards(2).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut clients: Vec<_> = asks.iter().map(|_| Client::connect(address).unwrap()).collect();
    let count = clients.len();
    let (accepted, all) = mpsc::channel();
    let (began, requests) = mpsc::channel();
    let served = runtime.spawn(async move {
        let mut serving = JoinSet::new();
        for number in 0..count {
            let (socket, _) = listener.accept().await.unwrap();
            let work = (!first_waits || number > 0).then_some(work);
            serving.spawn(serve(socket, timers, work, began.clone()));
        }
        accepted.send(()).unwrap();
        serving.join_all().await
    });
    all.recv_timeout(PATIENCE).unwrap();
    for (client, _) in clients.iter_mut().zip(asks).filter(|(_, asks)| **asks) {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        requests.recv_timeout(PATIENCE).unwrap();
    }
    let start = Instant::now();
    service.drain(window);
    let received = clients.iter_mut().map(|client| {
        let mut received = String::new();
        let _ = client.read_to_string(&mut received);
        received
    });
    let received = received.collect();
    let ended = runtime.block_on(served).unwrap();
    assert!(start.elapsed() < PATIENCE, "connections ended by their idle limit");
    let told = ended.iter().map(|(told, _)| told).sum();
    (received, told, ended.iter().filter(|(_, is_cut)| *is_cut).count())
}

#[test]
fn drained_server_answers_requests_in_flight_and_closes_each_connection_once_told() {
    let asks: Vec<_> = (0..20).map(|number| number % 2 == 0).collect();
    let (received, told, cut) = drain_server(ms(3_000), ms(600), true, &asks);
    for (received, asked) in received.iter().zip(&asks) {
        assert_eq!(received.ends_with("done"), *asked, "{received}");
    }
    // A connection that was told while it served said so to its client.
    let closing = received.iter().filter(|one| one.contains("connection: close")).count();
    assert!(closing >= 1, "{received:?}");
    assert_eq!((told, cut), (20, 0));
}

#[test]
fn request_that_takes_longer_than_the_drain_is_cut() {
    let (received, told, cut) = drain_server(ms(300), PATIENCE, false, &[true, false]);
    assert_eq!((received, told, cut), (vec![String::new(); 2], 2, 1));
}
