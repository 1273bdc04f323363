//! Writes that are judged by what the peer has acknowledged: real sockets, whose buffers the system
//! sizes.

use std::os::fd::AsFd;
use std::time::Instant;

use corewheel::conn::PeerSocket;
use corewheel::stream::StreamTimeout::{WriteRate, WriteStall};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;

/// More than the system takes at once of a peer that does not read.
const TOTAL: usize = 24 << 20;

/// The limit of a write that makes no progress, for clients that take what is sent.
const STALL: Duration = ms(4_000);

/// Whether the system has a socket of these two ports, in any state.
fn is_known(local: u16, peer: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = [format!(":{local:04X}"), format!(":{peer:04X}")];
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        ends.iter().all(|end| fields.next().unwrap().ends_with(end))
    })
}

/// A connection, and its client, whose system takes this much for it, if it is given.
async fn connect(receive_buffer: Option<u32>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpSocket::new_v4().unwrap();
    if let Some(size) = receive_buffer {
        client.set_recv_buffer_size(size).unwrap();
    }
    let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, client)
}

/// A stream that asks the system what its peer has acknowledged.
fn asking(socket: TcpStream, timers: Handle, limits: StreamLimits) -> TimedIo<TcpStream> {
    TimedIo::new(socket, timers, limits).with_socket(|socket| Some(socket.as_fd()))
}

/// Sends [`TOTAL`] bytes. Returns how many of them the peer has acknowledged.
async fn send_all(socket: TcpStream, limits: StreamLimits) -> io::Result<u64> {
    let service = TimerService::beside_runtime().start().unwrap();
    let mut stream = asking(socket, service.handle(), limits);
    stream.write_all(&vec![7; TOTAL]).await?;
    stream.shutdown().await?;
    // What the client has not read is on its way.
    Ok(PeerSocket::acknowledged(stream.get_ref()).unwrap())
}

/// The client reads 10 kB each 100 ms, for twice a stall, and the rest at once.
async fn check_kept(limits: StreamLimits) {
    let (socket, mut client) = connect(None).await;
    let served = tokio::spawn(send_all(socket, limits));
    let (mut received, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < 2 * STALL {
        tokio::time::sleep(ms(100)).await;
        let mut part = [0; 10_000];
        client.read_exact(&mut part).await.unwrap();
        received.extend(part);
    }
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), TOTAL);
    assert!(served.await.unwrap().unwrap() <= TOTAL as u64 + 2);
}

/// The client reads so many bytes at once, and stops.
async fn check_reset(bytes: usize, limits: StreamLimits, expected: StreamTimeout) {
    let (socket, mut client) = connect(None).await;
    let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    let served = tokio::spawn(send_all(socket, limits));
    client.read_exact(&mut vec![0; bytes]).await.unwrap();
    assert_eq!(limit_of(&served.await.unwrap().unwrap_err()), expected);
    assert!(!is_known(local.port(), peer.port()), "the system keeps what was not taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn client_that_takes_is_kept_and_one_that_does_not_is_reset() {
    let (slow, fast) = (DataRate::new(64, ms(1_000)), DataRate::new(4 << 20, ms(1_000)));
    let (short, stalled) = (NONE.write_stall(ms(1_000)), WriteStall(ms(1_000)));
    tokio::join!(
        // The system accepts bytes for the first of these after 12 s each time.
        check_kept(NONE.write_stall(STALL)),
        check_kept(NONE.min_write_rate(slow)),
        check_reset(0, short, stalled),
        check_reset(5 << 20, short, stalled),
        check_reset(0, NONE.min_write_rate(fast), WriteRate(fast)),
        check_reset(5 << 20, NONE.min_write_rate(fast), WriteRate(fast)),
    );
}

/// Less than the system accepts at once, and more than the system of a client takes for it.
const ANSWER: usize = 300_000;

/// The system of a client takes little for it.
const LITTLE: Option<u32> = Some(8 << 10);

/// Writes an answer, which the system accepts, and waits for the next request. Returns the limit
/// that ends the wait.
async fn answer(limits: StreamLimits, socket: TcpStream) -> StreamTimeout {
    let service = TimerService::beside_runtime().start().unwrap();
    let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    let mut stream = asking(socket, service.handle(), limits);
    stream.write_all(&vec![7; ANSWER]).await.unwrap();
    let reached = limit_of(&stream.read_u8().await.unwrap_err());
    drop(stream);
    if matches!(reached, WriteStall(_) | WriteRate(_)) {
        assert!(!is_known(local.port(), peer.port()), "the system keeps what was not taken");
    }
    reached
}

#[tokio::test]
async fn client_that_takes_no_answer_reaches_a_limit_of_writing_and_is_not_idle() {
    let check = async |limits: StreamLimits, expected| {
        let (socket, client) = connect(LITTLE).await;
        assert_eq!(answer(limits, socket).await, expected, "{limits:?}");
        drop(client);
    };
    let (stall, far, near) = (ms(1_000), ms(60_000), ms(300));
    let rate = DataRate::new(4 << 20, stall);
    let (stalled, rated) = (NONE.write_stall(stall), NONE.min_write_rate(rate));
    tokio::join!(
        check(stalled, WriteStall(stall)),
        check(stalled.idle(far), WriteStall(stall)),
        check(stalled.idle(near), WriteStall(stall)),
        check(stalled.read_idle(near), WriteStall(stall)),
        check(rated.idle(far), WriteRate(rate)),
        check(rated.idle(near), WriteRate(rate)),
    );
}

#[tokio::test]
async fn idle_time_of_a_client_begins_when_it_has_taken_the_answer() {
    let check = async |limits: StreamLimits, expected| {
        let (socket, mut client) = connect(LITTLE).await;
        let take = async move {
            let (mut part, mut received, mut taken_at) = (vec![0; 10_000], 0, None);
            while received < ANSWER {
                tokio::time::sleep(ms(100)).await;
                client.read_exact(&mut part).await.unwrap();
                received += part.len();
                // The system of the client has not taken all of the rest.
                if received <= ANSWER - 100_000 {
                    taken_at = Some(Instant::now());
                }
            }
            (client, taken_at.unwrap())
        };
        let end = async { (answer(limits, socket).await, Instant::now()) };
        let ((_client, taken_at), (reached, ended_at)) = tokio::join!(take, end);
        assert_eq!(reached, expected);
        assert!(ended_at - taken_at >= ms(500), "{:?}", ended_at - taken_at);
    };
    let (idle, stall, rate) = (ms(500), ms(4_000), DataRate::new(64, ms(4_000)));
    tokio::join!(
        check(NONE.idle(idle).write_stall(stall), StreamTimeout::Idle(idle)),
        check(NONE.read_idle(idle).write_stall(stall), StreamTimeout::ReadIdle(idle)),
        check(NONE.idle(idle).min_write_rate(rate), StreamTimeout::Idle(idle)),
    );
}

/// What the system of a peer acknowledges at once says nothing of the peer itself.
#[tokio::test]
async fn peer_that_acknowledges_heartbeats_and_sends_nothing_is_idle() {
    let service = TimerService::beside_runtime().start().unwrap();
    let (socket, _client) = connect(LITTLE).await;
    let limits = NONE.read_idle(ms(1_000)).heartbeat(ms(100)).write_stall(ms(30_000));
    let stream = asking(socket, service.handle(), limits);
    let control = stream.control();
    let (mut reads, mut writes) = tokio::io::split(stream);
    let beat = async {
        while control.heartbeat().await.is_ok() {
            writes.write_all(b"beat").await.unwrap();
        }
    };
    let (error, ()) = tokio::join!(reads.read_u8(), beat);
    assert_eq!(limit_of(&error.unwrap_err()), StreamTimeout::ReadIdle(ms(1_000)));
}

#[tokio::test]
async fn unix_socket_says_nothing_of_acknowledgements() {
    let (stream, _peer) = tokio::net::UnixStream::pair().unwrap();
    assert_eq!(PeerSocket::acknowledged(&stream), None);
}

/// How many bytes the system accepts for a client that reads nothing.
async fn accepted(unsent_max: u32) -> usize {
    let service = TimerService::beside_runtime().start().unwrap();
    let (socket, _client) = connect(None).await;
    let mut stream = asking(socket, service.handle(), NONE.unsent_max(unsent_max));
    let mut accepted = 0;
    let sends = async {
        loop {
            accepted += stream.write(&[7; 16 << 10]).await.unwrap();
        }
    };
    // The system accepts at once what it accepts.
    let _ = tokio::time::timeout(ms(500), sends).await;
    accepted
}

#[tokio::test]
async fn system_accepts_little_for_a_client_that_never_reads_where_it_is_bound() {
    let (bound, unbound) = tokio::join!(accepted(64 << 10), accepted(0));
    assert!(bound < 1 << 20, "{bound}");
    assert!(bound < unbound, "{bound}, and without a bound {unbound}");
}
