//! Many connections that are held open beside a client that sends its request at once.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::client::{Connection, Reply, get, request};
use crate::{PATIENCE, builder, fire, huge_service, service, wait_until};

/// Longer than any test waits.
const LONG: Duration = Duration::from_mins(10);

/// Clients that hold their connections, and reconnect at once when the endpoint cuts them off.
struct Holders {
    /// Its drop ends the clients.
    _running: oneshot::Sender<()>,
}

impl Holders {
    /// Client `n` sends line `n % 4`. No client reads.
    fn start(address: SocketAddr, clients: usize, lines: [&'static str; 4]) -> Self {
        let (running, stop) = oneshot::channel::<()>();
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for line in lines.into_iter().cycle().take(clients) {
                    tokio::spawn(hold(address, line));
                }
                // The test ends the clients: the channel returns an error.
                let _ = stop.await;
            });
        });
        Self { _running: running }
    }
}

async fn hold(address: SocketAddr, line: &str) {
    loop {
        // The server may reset a connection during the connect. The client tries again.
        let Ok(mut stream) = TcpStream::connect(address).await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.write_all(line.as_bytes()).await;
        while stream.ready(Interest::READABLE).await.is_ok_and(|ready| !ready.is_read_closed()) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Sends a whole request at once and reads the response.
fn ask_at_once(address: SocketAddr, path: &str) -> io::Result<Reply> {
    let mut stream = std::net::TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request("GET", path).as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    if response.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Reply::parse(&response))
}

/// Checks that all health checks and scrapes are answered while 400 clients hold connections, none
/// of which ends by a timeout of the endpoint as long as the test waits.
fn check_answered_beside(lines: [&'static str; 4]) {
    let service = service(2);
    let endpoint = builder(&service).header_timeout(LONG).response_timeout(LONG).start().unwrap();
    let address = endpoint.local_addr();
    let _holders = Holders::start(address, 400, lines);
    let silent = Connection::open(address);
    wait_until("the clients hold all connections", || silent.is_cut_off());
    for check in 0..20 {
        for path in ["/healthz", "/metrics"] {
            match ask_at_once(address, path) {
                Ok(reply) => {
                    assert_eq!((reply.status, reply.is_complete()), (200, true), "{check}");
                }
                Err(error) => panic!("check {check} of {path} gets no response: {error}"),
            }
        }
    }
    fire(&service, 0, 10);
}

#[test]
fn whole_requests_are_answered_while_400_idle_connections_are_held() {
    check_answered_beside(["", "", "", ""]);
}

#[test]
fn whole_requests_are_answered_while_400_idle_and_slow_connections_are_held() {
    let whole = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    check_answered_beside(["", "", "GET /healthz HTT", whole]);
}

#[test]
fn silent_connection_is_cut_off_before_older_half_request() {
    let service = service(1);
    let endpoint = builder(&service).connections_max(3).header_timeout(LONG).start().unwrap();
    let address = endpoint.local_addr();
    let half = Connection::opened(address, b"GET /healthz HTT");
    let silent = [Connection::open(address), Connection::open(address)];
    assert_eq!(get(address, "/healthz").status, 200);
    wait_until("the older silent connection is cut off", || silent[0].is_cut_off());
    assert!(!silent[1].is_cut_off());
    assert!(!half.is_cut_off());
}

#[test]
fn answered_connection_that_stays_open_is_cut_off_before_older_ones() {
    let service = service(1);
    let builder = builder(&service).connections_max(3).header_timeout(LONG).response_timeout(LONG);
    let endpoint = builder.start().unwrap();
    let address = endpoint.local_addr();
    let silent = [Connection::open(address), Connection::open(address)];
    let mut answered = Connection::opened(address, request("GET", "/healthz").as_bytes());
    answered.read_to("ok");
    assert_eq!(get(address, "/healthz").status, 200);
    wait_until("the answered connection is cut off", || !answered.send(b"more"));
    assert!(!silent[0].is_cut_off());
    assert!(!silent[1].is_cut_off());
}

#[test]
fn oldest_slow_reader_is_cut_off_when_most_connections_are_slow_readers() {
    let service = huge_service();
    let builder = builder(&service).connections_max(3).header_timeout(LONG).response_timeout(LONG);
    let endpoint = builder.start().unwrap();
    let address = endpoint.local_addr();
    let half = Connection::opened(address, b"GET /healthz HTT");
    let slow = [0, 1].map(|_| {
        let mut slow = Connection::opened(address, request("GET", "/metrics").as_bytes());
        slow.read_to("HTTP/1.1 200");
        slow
    });
    assert_eq!(get(address, "/").status, 200);
    let [first, second] = slow.map(|connection| connection.rest().ends_with(b"# EOF\n"));
    assert!(!first, "the oldest slow reader got its complete response");
    assert!(second, "the other slow reader was cut off too");
    assert!(!half.is_cut_off());
}
