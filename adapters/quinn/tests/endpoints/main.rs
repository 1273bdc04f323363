//! The runtime of QUIC endpoints: its timers and its clock alone, and connections over real
//! sockets, by the system's clock and by a manual one.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

#[path = "../common/configs.rs"]
mod configs;
mod connections;
mod held;
mod lost;
mod manual;
mod timer;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::TimerService;
use corewheel_quinn::QuinnRuntime;
use corewheel_test_support::{PATIENCE, ms, within_patience};
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig, TransportConfig};

use self::configs::{certificate, of_client, of_server, transport};

/// An endpoint on a free port of the loopback interface.
fn endpoint(runtime: &Arc<QuinnRuntime>, server: Option<ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = EndpointConfig::default();
    Endpoint::new(config, server, socket, Arc::<QuinnRuntime>::clone(runtime)).unwrap()
}

/// Which side has sent a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Client,
    Server,
}

type Connected = Result<(Connection, Connection), ConnectionError>;

/// A server's endpoint and a client's, both by one runtime.
struct Endpoints {
    server: Endpoint,
    client: Endpoint,
}

impl Endpoints {
    fn new(runtime: &QuinnRuntime, transport: TransportConfig) -> Self {
        let (runtime, transport) = (Arc::new(runtime.clone()), Arc::new(transport));
        let server = endpoint(&runtime, Some(of_server(&transport)));
        let mut client = endpoint(&runtime, None);
        client.set_default_client_config(of_client(certificate(), &transport));
        Self { server, client }
    }

    fn server_address(&self) -> SocketAddr {
        self.server.local_addr().unwrap()
    }

    /// A connection to the server at an address, as its client and its server have it. `Err` if it
    /// ends in its handshake.
    async fn connect_by(&self, address: SocketAddr) -> Connected {
        let client = self.client.connect(address, "localhost").unwrap();
        let server = async { self.server.accept().await.unwrap().await };
        let (client, server) = tokio::join!(client, server);
        Ok((client?, server?))
    }

    async fn connect(&self) -> Connected {
        self.connect_by(self.server_address()).await
    }

    async fn wait_idle(&self) {
        self.client.wait_idle().await;
        self.server.wait_idle().await;
    }
}

/// Sends back what comes on each stream of a connection, until the connection ends.
async fn echo_all(connection: Connection) {
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let copied = tokio::io::copy(&mut receive, &mut send).await;
            let _ = copied.map(|_| send.finish());
        });
    }
}

/// Sends bytes on a stream of their own to a server that sends them back. `Err` with the reason if
/// the connection ends meanwhile.
async fn try_echo(client: &Connection, length: u32) -> Result<(), ConnectionError> {
    let bytes: Vec<_> = (0..length).map(|at| at as u8).collect();
    let (mut send, mut receive) = client.open_bi().await?;
    let write = async { send.write_all(&bytes).await.is_ok() && send.finish().is_ok() };
    let (is_sent, back) = tokio::join!(write, receive.read_to_end(usize::MAX));
    let Ok(back) = back else { return Err(client.closed().await) };
    assert!(is_sent && back == bytes, "{} of {length} bytes come back", back.len());
    Ok(())
}

async fn check_echo(client: &Connection, length: u32) {
    try_echo(client, length).await.unwrap();
}

/// The address of a path from one client to a server, which loses datagrams of both.
async fn lossy_path(
    server: SocketAddr,
    mut is_lost: impl FnMut(Sender) -> bool + Send + 'static,
) -> SocketAddr {
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        let mut client = None;
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let (sender, to) = if from == server {
                (Sender::Server, client.unwrap())
            } else {
                client = Some(from);
                (Sender::Client, server)
            };
            if !is_lost(sender) {
                socket.send_to(&buffer[..length], to).await.unwrap();
            }
        }
    });
    address
}
