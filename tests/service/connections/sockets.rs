//! Connections on a shard over real sockets, on each runtime that has sockets: what holds an idle
//! limit back, what counts as activity, and who is told to end or cut.
//!
//! Nothing is asserted of how soon an event comes, only that it comes and is not early.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as Client};
use std::sync::mpsc::{self, Receiver};

use corewheel_glommio::Runtime;
use socket2::{Domain, Socket, Type};

use super::*;
use crate::network::on_glommio::Glommio;
use crate::network::on_tokio::Tokio;
use crate::network::{Network, Stream};

const IDLE: Duration = ms(150);
const HOUR: Duration = Duration::from_hours(1);
/// How long the server works or does not read: an idle limit comes meanwhile unless it is held.
const HELD: Duration = ms(600);
/// What the server sends to a client that reads slowly: far more than the buffers hold.
const ANSWER: usize = 32 << 20;
/// What such a client reads at a time: enough for the system to accept more.
const STEP: usize = 1 << 20;

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    ClientLeft,
    Came(DeadlineKind),
    Closed,
}

/// What the server has seen of a connection.
struct Report {
    opened: Instant,
    /// How often it was told to end.
    told: u32,
    /// A moment before the last activity of the client, or before the end of what held it back.
    active: Instant,
    ended: Instant,
    end: End,
}

/// What the server does when a client sends a byte.
async fn command<S: Stream>(
    command: u8,
    stream: &mut S,
    (conn, timers): (&ConnTimers, &Timers<u8>),
    report: &mut Report,
) -> Result<(), End> {
    match command {
        // It does not read for a while, or works on a request.
        b'P' | b'R' => {
            let held = if command == b'P' { conn.begin_read() } else { conn.begin_request() };
            let mut work = pin!(timers.sleep(HELD));
            while let Raced::Event(event) = conn.race(&mut work).await {
                come(event, stream, report).await?;
            }
            report.active = Instant::now();
            drop(held);
        }
        b'W' => {
            let mut left = ANSWER;
            let bytes = [b'w'; 16 << 10];
            while left > 0 {
                let (mut waits, most) = (false, left.min(bytes.len()));
                let mut write = pin!(stream.write(&bytes[..most]));
                let write = poll_fn(|cx| {
                    let written = write.as_mut().poll(cx);
                    waits |= written.is_pending();
                    written
                });
                let before = Instant::now();
                match conn.race(pin!(write)).await {
                    Raced::Done(written) => left -= written.map_err(|_| End::ClientLeft)?,
                    Raced::Event(event) => return Err(End::Came(event.kind)),
                    Raced::Closed => return Err(End::Closed),
                }
                if waits {
                    report.active = before;
                    conn.touch();
                } else {
                    conn.touch_write();
                }
            }
        }
        _ => {}
    }
    stream.write(b"A").await.map_err(|_| End::ClientLeft)?;
    conn.touch_write();
    Ok(())
}

/// An event of the connection has come. A client is told of its greatest age, and goes on.
async fn come<S: Stream>(event: ConnEvent, stream: &mut S, report: &mut Report) -> Result<(), End> {
    if event.kind != MaxAge {
        return Err(End::Came(event.kind));
    }
    report.told += 1;
    stream.write(b"G").await.map(drop).map_err(|_| End::ClientLeft)
}

async fn talk<S: Stream>(
    stream: &mut S,
    (conn, timers): (&ConnTimers, &Timers<u8>),
    report: &mut Report,
) -> Result<Infallible, End> {
    loop {
        let mut byte = [0];
        let before = Instant::now();
        let read = conn.race(pin!(stream.read(&mut byte))).await;
        match read {
            Raced::Done(Ok(1..)) => {
                report.active = before;
                conn.touch_read();
                command(byte[0], stream, (conn, timers), report).await?;
            }
            Raced::Done(_) => return Err(End::ClientLeft),
            Raced::Event(event) => come(event, stream, report).await?,
            Raced::Closed => return Err(End::Closed),
        }
    }
}

/// A server on the core of a shard.
struct Server {
    running: Running<u8>,
    address: SocketAddr,
    reports: Receiver<Report>,
}

impl Server {
    fn start<N: Network>(host: Host, limits: ConnLimits) -> Self {
        let running = Running::<u8>::idle(host, builder(1));
        let (ready, address) = mpsc::channel();
        let (reported, reports) = mpsc::channel();
        let serving = running.service.spawn_on(SHARD, move |timers: Timers<u8>| async move {
            let listener = N::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            ready.send(N::address(&listener).unwrap()).unwrap();
            loop {
                let mut stream = N::accept(&listener).await.unwrap();
                let now = Instant::now();
                let conn = timers.connection(limits).unwrap();
                let (timers, reported) = (timers.clone(), reported.clone());
                N::spawn(async move {
                    let end = End::Closed;
                    let mut report = Report { opened: now, told: 0, active: now, ended: now, end };
                    let Err(end) = talk(&mut stream, (&conn, &timers), &mut report).await;
                    (report.ended, report.end) = (Instant::now(), end);
                    // The client sees the end after the report.
                    let _ = reported.send(report);
                    stream.close().await;
                });
            }
        });
        // The server ends with its shard.
        drop(serving.unwrap());
        Self { address: address.recv_timeout(PATIENCE).unwrap(), running, reports }
    }

    /// A client that has sent a byte.
    fn client(&self, command: u8) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // A client that does not read stops the server soon.
        socket.set_recv_buffer_size(32 << 10).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let mut client = Client::from(socket);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(&[command]).unwrap();
        client
    }

    /// Clients whose byte the server has answered.
    fn clients(&self, count: usize) -> Vec<Client> {
        let mut clients: Vec<_> = (0..count).map(|_| self.client(b'E')).collect();
        assert!(clients.iter_mut().all(|client| receive(client) == b'A'));
        clients
    }

    fn report(&self) -> Report {
        self.reports.recv_timeout(PATIENCE).unwrap()
    }

    /// The report of a connection that has ended because it was idle, and not before.
    fn idle_report(&self, limit: Duration, case: &str) -> Report {
        let report = self.report();
        assert_eq!(report.end, End::Came(ReadIdle), "{case}");
        assert!(report.ended - report.active >= limit, "{case}: it was early");
        report
    }

    fn end(self) {
        self.running.end(ShutdownPolicy::Drop);
    }
}

fn receive(client: &mut Client) -> u8 {
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    byte[0]
}

macro_rules! on_each_runtime {
    ($check:ident) => {
        thread::scope(|scope| {
            scope.spawn(|| $check::<Tokio>(Host::Own(Runtime::Tokio)));
            scope.spawn(|| $check::<Tokio>(Host::TokioAttached));
            if glommio_works() {
                scope.spawn(|| $check::<Glommio>(Host::Own(Runtime::Glommio)));
            }
        });
    };
}

fn check_held<N: Network>(host: Host) {
    let server = Server::start::<N>(host, NONE.read_idle(IDLE));
    for command in [b'P', b'R'] {
        let mut client = server.client(command);
        // A byte that comes meanwhile is read afterwards.
        client.write_all(b"E").unwrap();
        assert_eq!((receive(&mut client), receive(&mut client)), (b'A', b'A'));
        let report = server.idle_report(IDLE, &format!("{host:?}, {}", char::from(command)));
        assert!(report.ended - report.opened >= HELD + IDLE, "{host:?}");
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
    server.end();
}

#[test]
fn idle_limit_waits_while_the_server_does_not_read_or_works_over_sockets() {
    on_each_runtime!(check_held);
}

/// Reads what the server writes, a step at a time. Returns the longest time for a step, and whether
/// all has come.
fn read_slowly(client: &mut Client, pause: Duration) -> (Duration, bool) {
    let mut step = vec![0; STEP];
    let mut longest = Duration::ZERO;
    let is_all = (0..ANSWER / STEP).all(|_| {
        let begin = Instant::now();
        thread::sleep(pause);
        let read = client.read_exact(&mut step);
        longest = longest.max(begin.elapsed());
        read.is_ok()
    });
    (longest, is_all)
}

fn check_write<N: Network>(host: Host) {
    const IDLE: Duration = ms(1_500);
    let server = Server::start::<N>(host, NONE.read_idle(IDLE));
    let _stays = loop {
        let mut client = server.client(b'W');
        // Altogether twice the limit.
        let (longest, is_all) = read_slowly(&mut client, 2 * IDLE / (ANSWER / STEP) as u32);
        if longest < IDLE / 3 {
            assert!(is_all, "{host:?}: the connection has ended");
            assert_eq!(receive(&mut client), b'A', "{host:?}");
            break client;
        }
        // The machine has held the client up for so long that it may count as idle.
        drop(client);
        let _ = server.report();
    };
    server.idle_report(IDLE, &format!("{host:?}"));
    server.end();
}

#[test]
fn write_that_the_client_takes_is_activity_over_sockets() {
    on_each_runtime!(check_write);
}

fn check_drain<N: Network>(host: Host) {
    const WINDOW: Duration = Duration::from_secs(3);
    let server = Server::start::<N>(host, NONE.read_idle(HOUR));
    let mut clients = server.clients(6);
    // A request that ends within the window is not cut, whether it began before or after the
    // client was told.
    let mut works = server.client(b'R');
    let begin = Instant::now();
    server.running.service.drain(WINDOW);
    let mut said = [receive(&mut works), receive(&mut works)];
    said.sort_unstable();
    assert_eq!(said, *b"AG", "{host:?}");
    drop(works);
    let report = server.report();
    assert_eq!((report.end, report.told), (End::ClientLeft, 1), "{host:?}");
    // The first stays until it is cut, and the others leave.
    for (number, client) in clients.iter_mut().enumerate() {
        while receive(client) != b'G' {}
        if number > 0 {
            client.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
    let mut cut = 0;
    for report in clients.iter().map(|_| server.report()) {
        assert_eq!(report.told, 1, "{host:?}");
        if report.end != End::ClientLeft {
            assert_eq!(report.end, End::Came(AgeGrace), "{host:?}");
            assert!(report.ended >= begin + WINDOW, "{host:?}: it was cut early");
            cut += 1;
        }
    }
    assert_eq!(cut, 1, "{host:?}");
    server.end();
}

#[test]
fn drain_tells_each_connection_once_and_cuts_those_that_stay_over_sockets() {
    on_each_runtime!(check_drain);
}

fn check_pressure<N: Network>(host: Host) {
    let limits = NONE.read_idle(HOUR).read_idle_least(IDLE);
    let server = Server::start::<N>(host, limits);
    let mut clients = server.clients(6);
    // Its request holds the limit back, also the shorter one.
    let mut works = server.client(b'R');
    server.running.service.set_scale(Scale::ZERO);
    assert_eq!(receive(&mut works), b'A', "{host:?}");
    clients.push(works);
    for _ in &clients {
        server.idle_report(IDLE, &format!("{host:?}"));
    }
    server.end();
}

#[test]
fn pressure_shortens_the_idle_limit_of_connections_over_sockets() {
    on_each_runtime!(check_pressure);
}
