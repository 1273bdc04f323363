//! Servers on a simulated network, each with one given history.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use corewheel::conn::DataRate;
use corewheel::sim::net::preempt;
use corewheel::stream::{StreamLimits, TimedIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::judge::{given, pair};

const STALL: Duration = Duration::from_millis(200);

/// The peer's kernel acknowledges each byte at once, and the driver of the server is held for
/// longer than a stall. The write goes on after that, and the next one waits.
fn answer(seed: u64) -> io::Result<String> {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle(), sim.time());
    let ack_delay = Duration::from_millis(40);
    let net = sim.net().send_buffer(1).ack_delay(ack_delay);
    let server = net.runtime(2);
    let (listener, mut peer) = pair(&net, 80);
    let task = server.spawn(async move {
        let limits = StreamLimits::default().write_stall(STALL);
        let stream = TimedIo::new(listener.accept().await, timers, limits);
        stream.with_simulated_socket().write_all(b"abcdef").await
    });
    let client = sim.spawn(async move {
        time.sleep(Duration::from_millis(10)).await;
        server.hold_driver(3 * STALL);
        let mut received = String::new();
        peer.read_to_string(&mut received).await.map(|_| received)
    });
    sim.run(task)?;
    sim.run(client)
}

#[test]
fn write_that_waits_for_a_held_driver_leaves_its_peer_the_whole_stall() {
    for seed in 0..50 {
        assert_eq!(answer(seed).ok().as_deref(), Some("abcdef"), "seed {seed}");
    }
}

/// The peer reads at once, and its kernel acknowledges each of some small answers 40 ms late. In
/// that time the rate demands four times as much as an answer has.
fn answers(seed: u64) -> io::Result<usize> {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle(), sim.time());
    let ack_delay = Duration::from_millis(40);
    let net = sim.net().ack_delay(ack_delay);
    let server = net.runtime(2);
    let (listener, mut peer) = pair(&net, 80);
    let task = server.spawn(async move {
        let rate = DataRate::new(8_000, Duration::from_millis(60));
        let limits = StreamLimits::default().min_write_rate(rate);
        let stream = TimedIo::new(listener.accept().await, timers, limits);
        let mut stream = stream.with_simulated_socket();
        for _ in 0..30 {
            stream.write_all(&[b'a'; 80]).await?;
            let pause = time.sleep(Duration::from_millis(50));
            tokio::select! {
                () = pause => {}
                read = stream.read_u8() => assert!(read?.is_ascii()),
            }
        }
        io::Result::Ok(())
    });
    let client = sim.spawn(async move {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.map(|_| received.len())
    });
    sim.run(task)?;
    sim.run(client)
}

#[test]
fn peer_whose_kernel_acknowledges_small_answers_late_is_not_below_the_least_rate() {
    for seed in 0..50 {
        let answers = answers(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(answers, 30 * 80, "seed {seed}");
    }
}

/// What waits for a window of the peer, which comes while the server's driver is held for longer
/// than a stall. The task is polled each 10 ms, also when the driver goes on. It reads, loses its
/// processor, writes and flushes.
fn window(seed: u64) -> io::Result<()> {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle(), sim.time());
    let net = sim.net();
    let server = net.runtime(2).reads_long(true);
    let (listener, mut peer) = pair(&net, 80);
    let (driver, of_server) = (server.clone(), sim.time());
    let task = server.spawn(async move {
        let limits = StreamLimits::default().write_stall(STALL);
        let mut stream = TimedIo::new(listener.accept().await, timers, limits);
        stream.control().begin_piece();
        let period = Duration::from_millis(10);
        let mut pause = Box::pin(of_server.sleep(period));
        poll_fn(|cx| {
            while pause.as_mut().poll(cx).is_ready() {
                pause = Box::pin(of_server.sleep(period));
            }
            let (mut stream, mut buffer) = (Pin::new(&mut stream), [0; 8]);
            if stream.as_mut().poll_read(cx, &mut ReadBuf::new(&mut buffer))?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            preempt();
            let _has_room = stream.as_mut().poll_write(cx, b"a")?;
            let _is_flushed = stream.poll_flush(cx)?;
            Poll::Pending
        })
        .await
    });
    let _client = sim.spawn(async move {
        time.sleep(STALL / 2).await;
        driver.hold_driver(2 * STALL);
        peer.write_all(b"window").await?;
        peer.read_to_end(&mut Vec::new()).await
    });
    sim.run(task)
}

#[test]
fn window_that_came_while_the_driver_was_held_is_read_before_the_stall_is_judged() {
    for seed in 0..500 {
        window(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
