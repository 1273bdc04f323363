//! Servers over real sockets, on a multi-thread runtime and on the core of a shard: slow clients
//! are cut, never early by their own clocks, and honest ones are not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as Client};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use corewheel::stream::StreamTimeout::{FirstByte, Head, Idle, ReadRate, WriteStall};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

/// How long a test waits for an expected event before it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// The limits of the servers are this much longer than the pauses of honest clients.
pub(super) const SLOW: Duration = ms(2_000);
const PAUSE: Duration = ms(60);
/// One byte in 100 ms.
pub(super) const RATE: DataRate = DataRate::new(10, SLOW);
/// The length of the body that a client sends after its head, a line.
const BODY: usize = 24;
/// What the server sends to a client that has sent its body: more than the buffers hold.
const ANSWER: usize = 4 << 20;

fn limits() -> StreamLimits {
    let limits = StreamLimits::default().first_byte(SLOW).head(SLOW).write_stall(SLOW);
    limits.idle(2 * SLOW).min_read_rate(RATE)
}

/// Serves one client. The error is what has ended the connection.
async fn serve<M: Side>(mut stream: TimedIo<TcpStream, M>) -> io::Result<()> {
    let control = stream.control();
    control.begin_message();
    while stream.read_u8().await? != b'\n' {}
    control.head_complete();
    let mut body = [0; BODY];
    stream.read_exact(&mut body).await?;
    control.message_complete();
    stream.write_all(&vec![b'x'; ANSWER]).await?;
    // Another message, or the end.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await?;
    Ok(())
}

/// A server, and the outcomes of its connections by the addresses of its clients.
pub(super) struct Server<R> {
    address: SocketAddr,
    outcomes: Receiver<Outcome>,
    /// Ends with it.
    _running: R,
}

/// The client, when its connection ended, and how.
type Outcome = (SocketAddr, Instant, io::Result<()>);

fn listen() -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections inherit it: a client that does not read stops the server soon.
    socket.set_send_buffer_size(64 << 10)?;
    socket.bind("127.0.0.1:0".parse().unwrap())?;
    socket.listen(64)
}

/// Begins a server on a multi-thread runtime, beside a service.
pub(super) fn start_multi_thread<F>(serve: fn(TcpStream, Handle) -> F) -> Server<impl Sized>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let timers = service.handle();
    let listener = runtime.block_on(async { listen() }).unwrap();
    let address = listener.local_addr().unwrap();
    let (ended, outcomes) = mpsc::channel();
    runtime.spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let (ended, serving) = (ended.clone(), serve(stream, timers));
            tokio::spawn(async move {
                let result = serving.await;
                let _ = ended.send((peer, Instant::now(), result));
            });
        }
    });
    Server { address, outcomes, _running: (runtime, service) }
}

/// Begins a server on a shard that runs on a tokio runtime of its own.
fn start_on_shard() -> Server<impl Sized> {
    let builder = TimerService::builder().shards(1).runtime(Runtime::Tokio);
    let service = builder.start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap();
    let (ended, outcomes) = mpsc::channel();
    let (ready, address) = mpsc::channel();
    let serving = service.spawn_on(service.shard_for(0), move |timers| async move {
        let listener = listen().unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::on_shard(stream, &timers, limits()).unwrap();
            let ended = ended.clone();
            tokio::task::spawn_local(async move {
                let result = serve(stream).await;
                let _ = ended.send((peer, Instant::now(), result));
            });
        }
    });
    Server { address: address.recv().unwrap(), outcomes, _running: (serving, service) }
}

/// A client's part. It is given when the client began to connect, and returns when the client was
/// last active, and the earliest time after that at which it may be cut, with the limit. `None` for
/// a client that the server must not cut.
pub(super) type Part = fn(&mut Client, Instant) -> Option<(Instant, Duration, StreamTimeout)>;

fn send_slowly(client: &mut Client, bytes: &[u8]) {
    for byte in bytes {
        client.write_all(&[*byte]).unwrap();
        thread::sleep(PAUSE);
    }
}

/// Sends bytes one by one until the server has closed the connection.
pub(super) fn send_until_cut(client: &mut Client, bytes: &[u8], pause: Duration) {
    for byte in bytes.iter().cycle() {
        if client.write_all(&[*byte]).is_err() {
            return;
        }
        thread::sleep(pause);
    }
}

const PARTS: [(&str, Part); 6] = [
    // The server may have accepted the connection before the client goes on.
    ("silent", |_, connecting| Some((connecting, SLOW, FirstByte(SLOW)))),
    ("slow head", |client, _| {
        let begin = Instant::now();
        send_until_cut(client, b"a", PAUSE);
        Some((begin, SLOW, Head(SLOW)))
    }),
    ("slow body", |client, _| {
        let begin = Instant::now();
        client.write_all(b"head\n").unwrap();
        // Bytes of the body come, and too few.
        send_until_cut(client, b"a", 5 * PAUSE);
        Some((begin, SLOW, ReadRate(RATE)))
    }),
    ("no reader", |client, _| {
        let begin = Instant::now();
        client.write_all(b"head\n").unwrap();
        client.write_all(&[b'b'; BODY]).unwrap();
        Some((begin, SLOW, WriteStall(SLOW)))
    }),
    ("idle", |client, _| {
        client.write_all(b"head\n").unwrap();
        // The server reads and writes after this time.
        let active = Instant::now();
        client.write_all(&[b'b'; BODY]).unwrap();
        client.read_exact(&mut vec![0; ANSWER]).unwrap();
        Some((active, 2 * SLOW, Idle(2 * SLOW)))
    }),
    ("honest", |client, _| {
        thread::sleep(PAUSE);
        send_slowly(client, b"header\n");
        send_slowly(client, &[b'b'; BODY]);
        let mut answer = vec![0; ANSWER];
        for part in answer.chunks_mut(ANSWER / 16) {
            client.read_exact(part).unwrap();
            thread::sleep(PAUSE);
        }
        client.shutdown(Shutdown::Both).unwrap();
        None
    }),
];

pub(super) fn check_server<R>(server: Server<R>, parts: &[(&'static str, Part)]) {
    let Server { address, outcomes, _running } = server;
    let clients = parts.iter().copied().map(|(name, part)| {
        thread::spawn(move || {
            let connecting = Instant::now();
            let mut client = Client::connect(address).unwrap();
            client.set_nodelay(true).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let own = client.local_addr().unwrap();
            let expected = part(&mut client, connecting);
            // A client that does not read does not learn when it was cut.
            if let Some((since, least, _)) = expected
                && name != "no reader"
            {
                // An error says that the server has closed the connection with bytes unread.
                let _ = client.read_to_end(&mut Vec::new());
                let elapsed = since.elapsed();
                assert!(elapsed >= least, "{name}: cut after {elapsed:?}");
            }
            (name, own, expected, client)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut clients: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    while !clients.is_empty() {
        let (peer, ended_at, outcome) = outcomes.recv_timeout(PATIENCE).unwrap();
        let at = clients.iter().position(|(_, own, _, _)| *own == peer).unwrap();
        let (name, _, expected, _client) = clients.swap_remove(at);
        let timeout = outcome.err().map(|error| limit_of(&error));
        assert_eq!(timeout, expected.map(|(_, _, timeout)| timeout), "{name}");
        if let Some((since, least, _)) = expected {
            let elapsed = ended_at - since;
            assert!(elapsed >= least, "{name}: cut after {elapsed:?}");
        }
    }
}

#[test]
fn multi_thread_server_cuts_slow_clients_not_early_and_keeps_honest_ones() {
    let serving = |stream, timers| serve(TimedIo::new(stream, timers, limits()));
    check_server(start_multi_thread(serving), &PARTS);
}

#[test]
fn server_on_a_shard_cuts_slow_clients_not_early_and_keeps_honest_ones() {
    check_server(start_on_shard(), &PARTS);
}
