//! A shard that runs late, and is woken by a message before its alarm.

use std::io;
use std::time::Duration;

use corewheel::{ConnEvent, ConnLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::judge::{given, pair};

const MS: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_millis(100);
/// From when on the shard does not run.
const BEFORE: Duration = Duration::from_millis(95);

/// The result of a read whose byte comes a millisecond before its idle time is over. The shard does
/// not run from before that until this long after it.
fn read_in_time(seed: u64, late: Duration) -> Result<usize, Option<ConnEvent>> {
    let mut sim = given(seed);
    let (time, handle) = (sim.time(), sim.service().handle());
    let net = sim.net();
    let shard = sim.service().shards().next().unwrap();
    let timers = sim.timers(shard).clone();
    let server = sim.runtime_of(shard, &net);
    let (listener, mut peer) = pair(&net, 80);
    let task = server.spawn(async move {
        let conn = timers.connection(ConnLimits::default().read_idle(LIMIT)).unwrap();
        let mut stream = listener.accept().await;
        conn.touch_read();
        let mut buffer = [0; 8];
        // An unbiased one asks for the event first in half of the polls.
        tokio::select! {
            biased;
            event = conn.next() => Err(event),
            read = stream.read(&mut buffer) => Ok(read.unwrap()),
        }
    });
    let client = sim.spawn(async move {
        time.sleep(BEFORE).await;
        server.stall(5 * MS + late);
        time.sleep(4 * MS).await;
        peer.write_all(b"a").await?;
        // A request wakes the shard, as its alarm would.
        time.sleep(2 * MS).await;
        handle.schedule(MS, ()).unwrap();
        time.sleep(LIMIT).await;
        io::Result::Ok(peer)
    });
    let read = sim.run(task);
    drop(client);
    read
}

#[test]
fn late_shard_that_a_request_wakes_cuts_no_client_that_was_in_time() {
    for seed in 0..400 {
        let late = Duration::from_micros(10_000 + seed % 40 * 500);
        let read = read_in_time(seed, late);
        assert!(matches!(read, Ok(1)), "seed {seed}: {read:?} after {late:?}");
    }
}
