//! Connection timers of tasks that go from thread to thread: an echo server on a multi-thread tokio
//! runtime, with real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, Handle, Runtime, TimerService};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use corewheel_test_support::sockets::connect;

use crate::check_not_early;

const READ_IDLE: Duration = Duration::from_secs(2);
const HEARTBEAT: Duration = Duration::from_millis(300);
/// How often the active client sends.
const PERIOD: Duration = Duration::from_millis(100);

async fn echo(mut stream: TcpStream, conn: ConnTimers<Handle>) {
    let mut buffer = [0; 64];
    loop {
        let read = conn.race(pin!(stream.read(&mut buffer))).await.unwrap();
        match read {
            Raced::Done(Ok(count)) if count > 0 => {
                conn.touch_read();
                stream.write_all(&buffer[..count]).await.unwrap();
                conn.touch_write();
            }
            Raced::Event(event) if event.kind == DeadlineKind::Heartbeat => {
                stream.write_all(b"!").await.unwrap();
                conn.touch_write();
            }
            _ => return,
        }
    }
}

/// Reads one byte. `None` if the server has closed the connection.
fn receive(client: &mut Client) -> Option<u8> {
    let mut byte = [0];
    let count = client.read(&mut byte).unwrap();
    (count > 0).then_some(byte[0])
}

/// Sends one byte, and reads until it comes back.
fn echoed(client: &mut Client) {
    client.write_all(b"a").unwrap();
    while receive(client).expect("an active connection stays") != b'a' {}
}

/// Sends one byte and no more, until the server closes the connection.
fn check_idle(server: SocketAddr) {
    let mut client = connect(server);
    let sent = Instant::now();
    echoed(&mut client);
    let mut heartbeats = 0;
    while let Some(byte) = receive(&mut client) {
        assert_eq!(byte, b'!');
        heartbeats += 1;
        check_not_early(sent, HEARTBEAT * heartbeats);
    }
    check_not_early(sent, READ_IDLE);
    assert!(heartbeats > 0);
}

fn check_active(server: SocketAddr) {
    let mut client = connect(server);
    let begin = Instant::now();
    while begin.elapsed() < READ_IDLE * 2 {
        echoed(&mut client);
        thread::sleep(PERIOD);
    }
}

#[test]
fn multi_thread_server_closes_idle_connections_not_early_and_keeps_active_ones() {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_io().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let limits = ConnLimits::default().read_idle(READ_IDLE).heartbeat(HEARTBEAT);
            tokio::spawn(echo(stream, timers.connection(limits)));
        }
    });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || check_idle(server));
            scope.spawn(move || check_active(server));
        }
    });
    runtime.shutdown_background();
}
