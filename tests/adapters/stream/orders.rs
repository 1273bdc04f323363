//! Streams that are told to end by a drain or as the idlest, over both sides, and a server whose
//! connections are drained over sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use corewheel::Runtime;
use corewheel::adapters::hyper::TimedHttp;
use corewheel::scaled::Scale;
use corewheel::stream::StreamControl;
use corewheel::stream::StreamTimeout::{AgeGrace, Drained, Idle, Told};
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

fn told<M: Side>(control: &StreamControl<M>, waker: &Waker) -> Polled<()> {
    control.poll_max_age_reached(&mut Context::from_waker(waker))
}

fn check_drain<K: Kind>() {
    for limits in [NONE, NONE.max_age_grace(ms(5))] {
        let mut lab = Lab::new();
        let (mut stream, mut peer) = duplex::<K>(&lab, limits);
        let control = stream.control();
        let (alarm, waker) = Alarm::new();
        assert!(told(&control, &waker).is_pending() && read(&mut stream).is_pending());
        lab.advance(10);
        assert!(!alarm.rang());
        lab.service.drain(ms(LIMIT));
        lab.settle();
        assert!(alarm.rang(), "the owner is woken");
        ready(told(&control, &waker));
        lab.advance(LIMIT - 1);
        assert!(write(&mut peer, b"last").is_ready());
        assert_eq!(ready(read(&mut stream)), b"last", "the stream goes on");
        assert!(read(&mut stream).is_pending());
        lab.advance(1);
        assert_eq!(timeout(read(&mut stream)), Some(Drained));
        assert_eq!(timeout(told(&control, &waker)), Some(Drained));
        assert_eq!(Drained.to_string(), "the drain of the connections is over");
        let (mut late, _peer) = duplex::<K>(&lab, limits);
        ready(told(&late.control(), &waker));
        lab.advance(1);
        assert_eq!(timeout(read(&mut late)), Some(Drained), "the window is over");
    }
}

#[test]
fn stream_is_told_of_a_drain_and_cut_at_its_end() {
    both!(check_drain);
}

fn check_idlest<K: Kind>() {
    for grace in [0, 20] {
        let mut lab = Lab::new();
        let limits = NONE.max_age_grace(ms(grace));
        let mut streams = [(); 2].map(|()| duplex::<K>(&lab, limits));
        lab.advance(50);
        assert!(write(&mut streams[1].1, b"x").is_ready());
        assert_eq!(ready(read(&mut streams[1].0)), b"x");
        for (stream, _) in &mut streams {
            assert!(read(stream).is_pending());
        }
        // A read that begins to wait counts as activity.
        lab.advance(20);
        streams[1].0.timers().touch();
        lab.service.close_idlest(1);
        lab.advance(1);
        let (first, second) = (timeout(read(&mut streams[0].0)), timeout(read(&mut streams[1].0)));
        assert_eq!((first, second), ((grace == 0).then_some(Told), None), "{grace}");
        lab.advance(grace);
        let expected = if grace == 0 { Told } else { AgeGrace(ms(20)) };
        assert_eq!(timeout(read(&mut streams[0].0)), Some(expected));
        assert!(read(&mut streams[1].0).is_pending());
    }
}

#[test]
fn idlest_stream_is_told_and_ends_after_its_grace() {
    both!(check_idlest);
}

fn check_pressure<K: Kind>() {
    let mut lab = Lab::new();
    let limits = NONE.idle(ms(10 * LIMIT)).idle_least(ms(LIMIT));
    let (mut stream, _peer) = duplex::<K>(&lab, limits);
    assert!(read(&mut stream).is_pending());
    lab.service.set_scale(Scale::ZERO);
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(10 * LIMIT)), || read(&mut stream));
}

#[test]
fn idle_limit_of_a_stream_shrinks_under_pressure() {
    both!(check_pressure);
}

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
