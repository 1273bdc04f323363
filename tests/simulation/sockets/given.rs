//! A server whose socket is asked what its peer has acknowledged, with one given history.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use corewheel::TimerService;
use corewheel::sim::Simulation;
use corewheel::sim::net::{NetOptions, RuntimeOptions};
use corewheel::stream::{StreamLimits, TimedIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STALL: Duration = Duration::from_millis(200);

/// The peer's kernel acknowledges each byte at once, and the driver of the server is held for
/// longer than a stall. The write goes on after that, and the next one waits.
fn answer(seed: u64) -> io::Result<String> {
    let builder = TimerService::beside_runtime().shards(1).capacity(100);
    let mut sim: Simulation = Simulation::start(seed, builder, |_| |_, _| ()).unwrap();
    let (timers, time) = (sim.service().handle(), sim.time());
    let ack_delay = Duration::from_millis(40);
    let net = sim.net(NetOptions { send_buffer: 1, ack_delay, ..NetOptions::default() });
    let server = net.runtime(RuntimeOptions::default());
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let (listener, mut peer) = (net.listen(address)?, net.connect(address)?);
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
