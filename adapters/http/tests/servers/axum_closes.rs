//! Connections of `serve` of this package that a limit ends, over real sockets: what lies in the
//! send buffer reaches the client, and a client that does not close is bounded. A response of
//! HTTP/2 is on its way until it is written or reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::stream::StreamTimeout::{self, Drained, MaxAge, WriteStall};
use corewheel::stream::{StreamControl, StreamLimits};

use crate::http::{PATIENCE, check_at_once, ended, get, ms, wait_until};
use crate::on_its_way::clients::{Client, VERSIONS, Version, connect};
use crate::served::{HELD, HUGE, Server, Settings, UNLIMITED};

const LIMIT: Duration = ms(300);
const STALL: Duration = Duration::from_secs(40);

/// A server with a large send buffer, or one of the system's size.
fn start(limits: StreamLimits, close_time: Duration, send_buffer: Option<usize>) -> Server {
    Server::with(Settings { limits, close_time, send_buffer, ..UNLIMITED })
}
const LARGE: Option<usize> = Some(1 << 20);

fn limits(write_stall: Duration) -> StreamLimits {
    StreamLimits::default().write_stall(write_stall)
}

/// A client that has asked for a path, whose receive buffer holds a part of the response.
fn ask(server: &Server, path: &str) -> TcpStream {
    let mut client = connect(server.address, 8 << 10);
    client.write_all(&get(path)).unwrap();
    client
}

/// Asks for what the buffers hold, and reads nothing of it until the connection is too old.
fn aged_client(server: &Server) -> TcpStream {
    let client = ask(server, "/held");
    let control = server.control();
    wait_until(|| control.timers().is_closed());
    assert_eq!(control.limit_reached(), Some(MaxAge(LIMIT)));
    client
}

#[test]
fn response_in_the_send_buffer_arrives_whole_although_the_client_still_sends() {
    let server = start(limits(STALL).max_age(LIMIT), STALL, LARGE);
    let mut client = aged_client(&server);
    // To a socket that is closed, this would be answered by a reset.
    for _ in 0..5 {
        client.write_all(b"GET").unwrap();
        thread::sleep(ms(20));
    }
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    let head = received.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(received.len() - head, HELD);
}

#[test]
fn client_that_takes_no_end_of_its_response_is_bounded_by_the_close_time() {
    let server = start(limits(STALL).max_age(LIMIT), 2 * LIMIT, LARGE);
    let begin = Instant::now();
    let mut client = aged_client(&server);
    // It sends on, and does not read.
    let refused = loop {
        match client.write(b"GET") {
            Ok(_) => thread::sleep(ms(20)),
            Err(error) => break error,
        }
        assert!(begin.elapsed() < PATIENCE, "the socket stays");
    };
    assert!(matches!(refused.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    assert!(begin.elapsed() >= 3 * LIMIT, "after {:?}", begin.elapsed());
}

#[test]
fn client_that_closes_its_side_ends_the_close_of_its_connection() {
    let server = start(limits(STALL).max_age(LIMIT), STALL, LARGE);
    let mut client = aged_client(&server);
    client.read_to_end(&mut Vec::new()).unwrap();
    assert!(server.tasks() > 1, "the client has not closed its side");
    drop(client);
    server.wait_for_tasks();
}

/// Whether the kernel has a socket of the server for a client, in whatever state.
pub(crate) fn has_socket(server: SocketAddr, client: SocketAddr) -> bool {
    let [local, remote] = [server, client].map(|address| format!(":{:04X}", address.port()));
    std::fs::read_to_string("/proc/net/tcp").unwrap().lines().skip(1).any(|row| {
        let mut columns = row.split_whitespace().skip(1);
        columns.next().is_some_and(|it| it.ends_with(&local))
            && columns.next().is_some_and(|it| it.ends_with(&remote))
    })
}

/// The system accepts the whole answer, and takes a part of it for the client.
#[test]
fn client_that_takes_no_answer_and_keeps_its_connection_is_a_stalled_write() {
    let idles = [STALL, LIMIT / 2];
    let cases = VERSIONS.into_iter().flat_map(|version| idles.map(|idle| (version, idle)));
    check_at_once(cases, |(version, idle)| {
        let server = start(limits(2 * LIMIT).idle(idle), STALL, None);
        let mut client = Client::connect_with(server.address, version, 1 << 20, 8 << 10);
        client.get(1, "/held");
        let control = server.control();
        wait_until(|| !has_socket(server.address, client.address()));
        assert_eq!(control.limit_reached(), Some(WriteStall(2 * LIMIT)), "{version:?} {idle:?}");
        // A connection is reset, and counts as ended when its task has dropped it.
        wait_until(|| !ended(&server.service).is_empty());
        assert_eq!(server.stop(), [("write timeout", 1)], "{version:?} {idle:?}");
    });
}

#[test]
fn client_that_has_taken_its_answer_slowly_is_idle_from_then_on() {
    check_at_once(VERSIONS, |version| {
        let idle = ms(1_000);
        let server = start(limits(STALL).idle(idle), STALL, None);
        let mut client = Client::connect_with(server.address, version, 1 << 20, 8 << 10);
        client.get(1, "/held");
        let control = server.control();
        // Half of the answer is more than the system takes for the client.
        let half = client.read_at(HELD / 4, HELD / 2, || {
            assert!(!control.timers().is_closed(), "{version:?}: cut while it takes its answer");
        });
        let taken_at = Instant::now();
        client.read_at(HELD, HELD - half, || {});
        wait_until(|| control.timers().is_closed());
        assert!(taken_at.elapsed() >= idle, "{version:?}: after {:?}", taken_at.elapsed());
        assert_ne!(control.limit_reached(), Some(WriteStall(STALL)));
    });
}

#[test]
fn connection_that_has_received_nothing_or_takes_nothing_is_closed_at_once() {
    // One that has sent nothing.
    let server = start(StreamLimits::default().first_byte(LIMIT), STALL, LARGE);
    let mut client = server.send(b"");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    server.wait_for_tasks();
    // One that reads nothing and keeps its socket, and nothing is left in the kernel.
    let server = start(limits(LIMIT).idle(STALL), STALL, LARGE);
    let client = ask(&server, "/large");
    let (control, address) = (server.control(), client.local_addr().unwrap());
    assert!(has_socket(server.address, address));
    check_ended(&control, WriteStall(LIMIT));
    wait_until(|| !has_socket(server.address, address));
    server.wait_for_tasks();
}

/// Checks by which limit a connection has ended.
#[track_caller]
fn check_ended(control: &StreamControl, expected: StreamTimeout) {
    wait_until(|| control.limit_reached().is_some());
    assert_eq!(control.limit_reached(), Some(expected));
}

#[test]
fn response_that_takes_longer_than_the_drain_is_cut_by_the_drain() {
    let server = start(limits(STALL), Duration::ZERO, LARGE);
    let _client = ask(&server, "/large");
    let control = server.control();
    server.service.drain(LIMIT);
    check_ended(&control, Drained);
}

#[test]
fn http2_client_that_resets_a_response_without_a_window_is_idle_and_not_stalled() {
    let server = start(limits(2 * LIMIT).idle(3 * LIMIT), STALL, LARGE);
    let mut client = Client::connect(server.address, Version::Http2, 0);
    client.get(1, "/large");
    let control = server.control();
    // All else is flushed, and the response waits.
    thread::sleep(LIMIT);
    let begin = Instant::now();
    client.reset(1);
    // The server tells the client, and ends the connection before the stream would.
    client.wait_for_end();
    assert_eq!(control.limit_reached(), None);
    assert!(begin.elapsed() >= 3 * LIMIT, "after {:?}", begin.elapsed());
}

/// Checks that of two clients of a huge response one that takes it slowly is kept, and one that
/// stops is a stalled write. `begin` gives a client that has read so many bytes of it. Returns the
/// one that has stopped.
pub(crate) fn check_slow_and_stopped<C: Read>(
    stall: Duration,
    mut begin: impl FnMut(usize) -> (C, StreamControl),
) -> C {
    let (stopped, stopped_control) = begin(3 << 20);
    let (mut slow, slow_control) = begin(1);
    let (mut received, mut part, start) = (0, vec![0; 10_000], Instant::now());
    // The system accepts more of the response only after three stalls.
    while start.elapsed() < 2 * stall {
        thread::sleep(ms(100));
        slow.read_exact(&mut part).unwrap();
        received += part.len();
    }
    // Of the response and its head, a byte was read before.
    while received <= HUGE {
        let more = slow.read(&mut part).unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(more, 0, "the response ends after {received} bytes");
        received += more;
    }
    assert_eq!(slow_control.limit_reached(), None);
    check_ended(&stopped_control, WriteStall(stall));
    stopped
}

#[test]
fn client_that_takes_a_response_slowly_is_kept_and_one_that_stops_is_reset() {
    let stall = Duration::from_secs(4);
    let server = start(limits(stall).idle(STALL), STALL, None);
    let mut stopped = check_slow_and_stopped(stall, |bytes| {
        let mut client = server.send(&get("/huge"));
        client.read_exact(&mut vec![0; bytes]).unwrap();
        (client, server.control())
    });
    let error = stopped.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
