//! Many connections that are held open beside a client that sends its request at once.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::client::{Connection, get};
use crate::{fire, served_by, service, wait_until};

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

/// Checks that all health checks and scrapes are answered while 400 clients hold connections.
fn check_answered_beside(lines: [&'static str; 4]) {
    let (service, _endpoint, address) = served_by(service(2));
    let _holders = Holders::start(address, 400, lines);
    let silent = Connection::open(address);
    wait_until("the clients hold all connections", || silent.is_cut_off());
    for check in 0..10 {
        for path in ["/live", "/metrics"] {
            assert_eq!(get(address, path).status, 200, "check {check} of {path}");
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
    check_answered_beside(["", "", "GET /live HTT", whole]);
}
