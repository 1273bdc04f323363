//! Two halves of a stream, polled in any order by one task or by two.

use std::io;
use std::time::Duration;

use corewheel::stream::{StreamLimits, TimedIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use crate::judge::{given, pair};

const LIMIT: Duration = Duration::from_millis(200);

/// The results of a read and of a write that wait until their times are up, while the peer takes
/// bytes in time and the runtime does not run.
fn halves(seed: u64) -> (io::Result<usize>, io::Result<()>) {
    let mut sim = given(seed);
    let (timers, time) = (sim.service().handle(), sim.time());
    let net = sim.net().send_buffer(64).receive_buffer(64);
    let server = net.runtime(2);
    let (listener, mut peer) = pair(&net, 80);
    let within = server.clone();
    let limits = StreamLimits::default().write_stall(LIMIT).idle(LIMIT);
    let task = server.spawn(async move {
        let stream = TimedIo::new(listener.accept().await, timers, limits);
        let (mut reads, mut writes) = split(stream);
        let read = within.spawn(async move { reads.read(&mut [0; 8]).await });
        let write = within.spawn(async move { writes.write_all(&[7; 190]).await });
        (read.await, write.await)
    });
    let client = sim.spawn(async move {
        time.sleep(LIMIT / 2).await;
        server.stall(LIMIT);
        peer.read_exact(&mut [0; 128]).await?;
        // Within the idle time that begins when the write has gone on.
        time.sleep(LIMIT).await;
        peer.write_all(b"a").await?;
        time.sleep(LIMIT / 2).await;
        peer.read_exact(&mut [0; 62]).await
    });
    let (read, write) = sim.run(task);
    drop(client);
    (read, write)
}

#[test]
fn peer_that_takes_bytes_in_time_is_not_idle_for_the_half_that_reads() {
    for seed in 0..200 {
        let (read, write) = halves(seed);
        assert!(matches!((&read, &write), (Ok(1), Ok(()))), "seed {seed}: {read:?}, {write:?}");
    }
}
