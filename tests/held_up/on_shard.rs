//! Limits on a shard whose tokio runtime is held up: the driver has the sockets read before a turn
//! that is late.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::Raced;
use corewheel::{ConnLimits, Reply, Runtime, ShardId, TimerService, Timers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::many_files;
use crate::server::listener;

const SHARD: ShardId = ShardId::new(0);
/// More than tokio takes from epoll at a time, several times over.
const CLIENTS: usize = 5_000;
/// The limit of the first try. Each further one doubles it.
const LIMIT: Duration = Duration::from_millis(2_500);
const TRIES: u32 = 5;

#[test]
fn timeouts_on_a_shard_that_is_held_up_cut_no_client_that_was_in_time() {
    check(async |timers, limit, mut socket| {
        let read = timers.timeout(limit, socket.read_u8()).await;
        read.is_ok_and(|read| read.is_ok())
    });
}

#[test]
fn connections_on_a_shard_that_is_held_up_cut_no_client_that_was_in_time() {
    check(async |timers, limit, mut socket| {
        let conn = timers.connection(ConnLimits::default().read_idle(limit)).unwrap();
        matches!(conn.race(pin!(socket.read_u8())).await, Raced::Done(Ok(_)))
    });
}

/// Whether the second byte of a client is read in time is what `read` returns.
fn check(
    read: impl AsyncFn(Timers, Duration, tokio::net::TcpStream) -> bool + Copy + Send + 'static,
) {
    let _files = many_files();
    let cut = (0..TRIES).find_map(|tries| round(LIMIT * 2_u32.pow(tries), read));
    let cut = cut.expect("this machine is too busy to send in time");
    assert_eq!(cut, 0, "of {CLIENTS} clients");
}

/// How many clients are cut. `None` if they have sent too late.
fn round(
    limit: Duration,
    read: impl AsyncFn(Timers, Duration, tokio::net::TcpStream) -> bool + Copy + Send + 'static,
) -> Option<usize> {
    let service = TimerService::builder().shards(1).runtime(Runtime::Tokio).start().unwrap();
    let listener = listener();
    let address: SocketAddr = listener.local_addr().unwrap();
    let begin = Instant::now();
    let served: Reply<usize> = service
        .spawn_on(SHARD, move |timers| async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..CLIENTS {
                let (mut socket, _) = listener.accept().await.unwrap();
                let timers = timers.clone();
                tasks.spawn_local(async move {
                    socket.read_u8().await.unwrap();
                    socket.write_all(b"k").await.unwrap();
                    read(timers, limit, socket).await
                });
            }
            tasks.join_all().await.into_iter().filter(|is_read| !is_read).count()
        })
        .unwrap();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"a").unwrap();
    }
    for client in &mut clients {
        client.read_exact(&mut [0]).ok()?;
    }
    let ((holds, is_held), (held, release)) = (mpsc::channel(), mpsc::channel::<()>());
    let holding = service.spawn_on(SHARD, |_| async move {
        holds.send(()).unwrap();
        let _ = release.recv();
    });
    let _runs = holding.unwrap();
    is_held.recv().unwrap();
    for client in &mut clients {
        client.write_all(b"z").ok()?;
    }
    // Its message wakes the driver, which the reactor would wake after the sockets.
    let _runs = service.spawn_on(SHARD, |_| async {}).unwrap();
    let is_in_time = begin.elapsed() < limit;
    thread::sleep(limit + limit / 5);
    drop(held);
    is_in_time.then(|| served.wait().unwrap())
}
