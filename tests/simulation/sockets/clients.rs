//! Clients that read and write at any rate, stop, end their side and reset.

use std::rc::Rc;
use std::time::Duration;

use corewheel::sim::net::Stream;
use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::World;
use super::laws::Seen;
use crate::judge::one_of;

/// After so long, a client falls silent.
pub(crate) const LIFE_MAX: Duration = Duration::from_secs(5);

/// A pause that is often about as long as a limit.
fn pause(rng: &mut Rng, limit: Duration) -> Duration {
    let limit = limit.as_micros() as u64;
    let micros = match rng.u8(..6) {
        0 => 0,
        1 => rng.u64(..=limit / 10),
        2 => rng.u64(..=limit),
        3 => limit - rng.u64(1..=limit.min(3_000)),
        4 => limit,
        _ => limit + rng.u64(..=3_000),
    };
    Duration::from_micros(micros)
}

/// Talks to a server, and waits until that ends the connection, or ends it.
pub(crate) async fn client(world: Rc<World>, seen: Rc<Seen>, mut stream: Stream, mut rng: Rng) {
    let end = world.now() + LIFE_MAX;
    let mut buffer = [0; 512];
    let steps = rng.usize(..20);
    for _ in 0..steps {
        if world.now() > end {
            break;
        }
        match rng.u8(..8) {
            0..=2 => world.time.sleep(pause(&mut rng, seen.limit)).await,
            3..=5 => {
                let longest = one_of(&mut rng, &[1, 10, world.send_max]);
                let count = rng.usize(1..=longest);
                let sent = vec![b'a'; count];
                // The server may not read.
                let pause = pause(&mut rng, seen.limit);
                let written = world.within(pause, stream.write_all(&sent)).await;
                let done = written.is_none_or(|written| written.is_ok());
                if !done {
                    break;
                }
            }
            6 => {
                let room = rng.usize(1..buffer.len());
                let pause = pause(&mut rng, seen.limit);
                let read = world.within(pause, stream.read(&mut buffer[..room])).await;
                let read = read.is_none_or(|read| read.is_ok_and(|count| count > 0));
                if !read {
                    break;
                }
            }
            _ => {
                // It takes all that comes, at a steady rate.
                for _ in 0..rng.u8(..20) {
                    let _read = world.within(seen.limit / 3, stream.read(&mut buffer)).await;
                    world.time.sleep(seen.limit / rng.u32(2..10)).await;
                }
            }
        }
    }
    match rng.u8(..8) {
        0 => return stream.reset(),
        1 => return,
        2 => drop(stream.shutdown().await),
        _ => {}
    }
    if rng.u8(..8) == 0 {
        // It reads nothing any more.
        world.time.sleep(LIFE_MAX).await;
        return;
    }
    if rng.u8(..4) == 0 {
        return take_steadily(&world, &seen, stream, rng).await;
    }
    let reads = async { while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
    // A server that sends heartbeats does not cut a client that takes each of them slowly.
    if world.within(12 * LIFE_MAX, reads).await.is_some() {
        seen.client_is_told(&world);
    }
}

/// Takes what comes at a steady rate: mostly faster than the least, and often enough that its
/// kernel acknowledges something within a stall.
async fn take_steadily(world: &World, seen: &Seen, mut stream: Stream, mut rng: Rng) {
    let pause = seen.stall / rng.u32(1..6);
    let rate: u128 = one_of(&mut rng, &[300, 2_000, 20_000, 200_000]);
    let room = (pause.as_nanos() * rate).div_ceil(1_000_000_000).max(1);
    let mut buffer = vec![0; room as usize];
    let leaves = world.now() + 4 * LIFE_MAX;
    while world.now() < leaves {
        match stream.read(&mut buffer).await {
            Ok(1..) => world.time.sleep(pause).await,
            Ok(0) | Err(_) => return seen.client_is_told(world),
        }
    }
}
