//! A stream of compio under `TimedIo`, by compio's adapter to borrowed buffers.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream as Client};
use std::thread;
use std::time::Duration;

use compio::io::compat::AsyncStream;
use compio::net::TcpStream;
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{ShutdownPolicy, TimerService};
use corewheel_compio::Compio;
use tokio::io::AsyncReadExt;
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// A shard on compio reads from a stream with an idle time, until its end or an error.
fn read_all(idle: Duration, client: impl FnOnce(Client)) -> (Vec<u8>, Option<ErrorKind>) {
    let service = TimerService::builder().shards(1).unpinned().runtime(Compio).start().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let reply = service.spawn_on(service.shard_for(0), move |timers| async move {
        let stream = AsyncStream::new(TcpStream::connect(address).await.unwrap()).compat();
        let limits = StreamLimits::default().read_idle(idle);
        let mut stream = TimedIo::new(Box::pin(stream), timers.handle(), limits);
        let mut read = Vec::new();
        let ended = stream.read_to_end(&mut read).await;
        (read, ended.err().map(|error| error.kind()))
    });
    client(listener.accept().unwrap().0);
    let read = reply.unwrap().wait().unwrap();
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    read
}

#[test]
fn stream_of_compio_under_timed_io_ends_when_its_peer_is_idle() {
    let (told, silent) = std::sync::mpsc::channel::<()>();
    let client = move |mut client: Client| {
        client.write_all(b"hello").unwrap();
        // It stays open until the test is over.
        thread::spawn(move || (client, silent.recv()));
    };
    let read = read_all(Duration::from_millis(200), client);
    assert_eq!(read, (b"hello".to_vec(), Some(ErrorKind::TimedOut)));
    drop(told);
}

#[test]
fn stream_of_compio_under_timed_io_reads_all_that_comes_in_time() {
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let sent = bytes.clone();
    let client = |mut client: Client| client.write_all(&sent).unwrap();
    assert_eq!(read_all(Duration::from_mins(1), client), (bytes, None));
}
