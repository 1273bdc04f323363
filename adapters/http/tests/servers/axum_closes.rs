//! Connections of `serve` of this package that a limit ends, over real sockets: what lies in the
//! send buffer reaches the client, and a client that does not close is bounded. A response of
//! HTTP/2 is on its way until it is written or reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get as on_get;
use corewheel::TimerService;
use corewheel::stream::StreamTimeout::{self, Drained, MaxAge, WriteStall};
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::serve;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::runtime::{Builder, Runtime};

use crate::http::{PATIENCE, beside_runtime, check_at_once, get, ms, wait_until};
use crate::on_its_way::clients::{Client, VERSIONS, Version};

const LIMIT: Duration = ms(300);
const STALL: Duration = Duration::from_secs(40);
/// As much as the buffers of both sides hold, of which the client's holds a part.
const HELD: usize = 100 << 10;
/// Far more than the buffers of both sides hold.
const LONG: usize = 4 << 20;

/// More than the system's send buffer holds when it has grown.
pub(crate) const HUGE: usize = 24 << 20;

struct Server {
    address: SocketAddr,
    /// The controls of the connections, one for each request.
    controls: Receiver<StreamControl>,
    runtime: Runtime,
    service: TimerService,
}

impl Server {
    fn start(limits: StreamLimits, close_time: Duration) -> Self {
        Self::with_buffer(limits, close_time, Some(1 << 20))
    }

    /// With a send buffer of the system's size if none is given.
    fn with_buffer(limits: StreamLimits, close_time: Duration, send_buffer: Option<usize>) -> Self {
        let (service, runtime, listener, address) = beside_runtime(Builder::enable_all);
        let timers = service.handle();
        let (sender, controls) = mpsc::channel();
        let answer = |length| {
            let sender = sender.clone();
            on_get(move |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
                sender.send(control).unwrap();
                vec![b'x'; length]
            })
        };
        let app = Router::new()
            .route("/", answer(5))
            .route("/held", answer(HELD))
            .route("/long", answer(LONG))
            .route("/huge", answer(HUGE))
            .into_make_service_with_connect_info::<StreamControl>();
        if let Some(size) = send_buffer {
            // Connections inherit it.
            SockRef::from(&listener).set_send_buffer_size(size).unwrap();
        }
        runtime.spawn(async move {
            serve(listener, app).timers(timers).limits(|_| limits).close_time(close_time).await
        });
        Self { address, controls, runtime, service }
    }

    /// The control of the connection whose request has come next.
    fn control(&self) -> StreamControl {
        self.controls.recv_timeout(PATIENCE).unwrap()
    }
}

fn limits(write_stall: Duration) -> StreamLimits {
    StreamLimits::default().write_stall(write_stall)
}

/// A client whose receive buffer holds a part of a response.
fn connect(server: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Before it connects, as it says what the server may send at first.
    socket.set_recv_buffer_size(8 << 10).unwrap();
    socket.connect(&server.into()).unwrap();
    let client = TcpStream::from(socket);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Asks for what the buffers hold, and reads nothing of it until the connection is too old.
fn aged_client(server: &Server) -> TcpStream {
    let mut client = connect(server.address);
    client.write_all(&get("/held")).unwrap();
    let control = server.control();
    wait_until(|| control.timers().is_closed());
    assert_eq!(control.limit_reached(), Some(MaxAge(LIMIT)));
    client
}

#[test]
fn response_in_the_send_buffer_arrives_whole_although_the_client_still_sends() {
    let server = Server::start(limits(STALL).max_age(LIMIT), STALL);
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
    let server = Server::start(limits(STALL).max_age(LIMIT), 2 * LIMIT);
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
    let server = Server::start(limits(STALL).max_age(LIMIT), STALL);
    let metrics = server.runtime.metrics();
    let before = metrics.num_alive_tasks();
    let mut client = aged_client(&server);
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert!(metrics.num_alive_tasks() > before, "the client has not closed its side");
    drop(client);
    wait_until(|| metrics.num_alive_tasks() <= before);
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
        let server = Server::with_buffer(limits(2 * LIMIT).idle(idle), STALL, None);
        let mut client = Client::connect_with(server.address, version, 1 << 20, Some(8 << 10));
        client.get(1, "/held");
        let control = server.control();
        wait_until(|| !has_socket(server.address, client.address()));
        assert_eq!(control.limit_reached(), Some(WriteStall(2 * LIMIT)), "{version:?} {idle:?}");
        let ends = || {
            let deadlines = server.service.stats().deadlines;
            let ended = deadlines.iter().filter(|of| of.ended > 0);
            ended.map(|of| (of.kind, of.ended)).collect::<Vec<_>>()
        };
        // A connection is reset, and counts as ended when its task has dropped it.
        wait_until(|| !ends().is_empty());
        assert_eq!(ends(), [("write timeout", 1)], "{version:?} {idle:?}");
    });
}

#[test]
fn client_that_has_taken_its_answer_slowly_is_idle_from_then_on() {
    check_at_once(VERSIONS, |version| {
        let idle = ms(1_000);
        let server = Server::with_buffer(limits(STALL).idle(idle), STALL, None);
        let mut client = Client::connect_with(server.address, version, 1 << 20, Some(8 << 10));
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
    for is_silent in [true, false] {
        let limits = StreamLimits::default();
        let stalls = limits.write_stall(LIMIT).idle(STALL);
        let limits = if is_silent { limits.first_byte(LIMIT) } else { stalls };
        let server = Server::start(limits, STALL);
        let metrics = server.runtime.metrics();
        let before = metrics.num_alive_tasks();
        let mut client = connect(server.address);
        let address = client.local_addr().unwrap();
        if is_silent {
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        } else {
            client.write_all(&get("/long")).unwrap();
            let control = server.control();
            assert!(has_socket(server.address, address));
            check_ended(&control, WriteStall(LIMIT));
            // It reads nothing and keeps its socket, and nothing is left in the kernel.
            wait_until(|| !has_socket(server.address, address));
        }
        wait_until(|| metrics.num_alive_tasks() <= before);
    }
}

/// Checks by which limit a connection has ended.
#[track_caller]
fn check_ended(control: &StreamControl, expected: StreamTimeout) {
    wait_until(|| control.limit_reached().is_some());
    assert_eq!(control.limit_reached(), Some(expected));
}

#[test]
fn response_that_takes_longer_than_the_drain_is_cut_by_the_drain() {
    let server = Server::start(limits(STALL), Duration::ZERO);
    let mut client = connect(server.address);
    client.write_all(&get("/long")).unwrap();
    let control = server.control();
    server.service.drain(LIMIT);
    check_ended(&control, Drained);
}

#[test]
fn http2_client_that_resets_a_response_without_a_window_is_idle_and_not_stalled() {
    let server = Server::start(limits(2 * LIMIT).idle(3 * LIMIT), STALL);
    let mut client = Client::connect(server.address, Version::Http2, 0);
    client.get(1, "/long");
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
    let server = Server::with_buffer(limits(stall).idle(STALL), STALL, None);
    let mut stopped = check_slow_and_stopped(stall, |bytes| {
        let mut client = crate::http::connect(server.address);
        client.write_all(&get("/huge")).unwrap();
        client.read_exact(&mut vec![0; bytes]).unwrap();
        (client, server.control())
    });
    let error = stopped.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
