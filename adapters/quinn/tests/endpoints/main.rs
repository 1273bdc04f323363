//! The runtime of QUIC endpoints: its timers and its clock alone, and connections over real
//! sockets, by the system's clock and by a manual one.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod connections;
mod held;
mod lost;
mod manual;
mod timer;

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::TimerService;
use corewheel_quinn::QuinnRuntime;
use corewheel_test_support::{Alarm, FAR, Lab, PATIENCE, SHARD, builder, ms, within_patience};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig,
    TransportConfig,
};

/// A certificate for `localhost`, and its private key.
static CERTIFICATE: LazyLock<(CertificateDer<'static>, Vec<u8>)> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    (made.cert.der().clone(), made.signing_key.serialize_der())
});

/// Limits of a connection without probes for its greatest datagram, which would be activity.
fn transport(idle: Option<Duration>, keep_alive: Option<Duration>) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(idle.map(|idle| idle.try_into().unwrap()));
    transport.keep_alive_interval(keep_alive);
    transport.mtu_discovery_config(None);
    Arc::new(transport)
}

/// An endpoint on a free port of the loopback interface.
fn endpoint(runtime: Arc<dyn quinn::Runtime>, server: Option<ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Endpoint::new(EndpointConfig::default(), server, socket, runtime).unwrap()
}

/// Which side has sent a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Client,
    Server,
}

/// A server's endpoint and a client's, both by one runtime.
struct Endpoints {
    server: Endpoint,
    client: Endpoint,
}

impl Endpoints {
    fn new(runtime: &QuinnRuntime, transport: &Arc<TransportConfig>) -> Self {
        Self::by(Arc::new(runtime.clone()), transport)
    }

    fn by(runtime: Arc<dyn quinn::Runtime>, transport: &Arc<TransportConfig>) -> Self {
        let (certificate, key) = &*CERTIFICATE;
        let key = PrivatePkcs8KeyDer::from(key.clone()).into();
        let mut of_server = ServerConfig::with_single_cert(vec![certificate.clone()], key).unwrap();
        of_server.transport_config(Arc::clone(transport));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut of_client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
        of_client.transport_config(Arc::clone(transport));
        let server = endpoint(Arc::clone(&runtime), Some(of_server));
        let mut client = endpoint(runtime, None);
        client.set_default_client_config(of_client);
        Self { server, client }
    }

    fn server_address(&self) -> SocketAddr {
        self.server.local_addr().unwrap()
    }

    /// A connection to the server at an address, as its client and its server have it. `Err` if it
    /// ends in its handshake.
    async fn try_connect_by(
        &self,
        address: SocketAddr,
    ) -> Result<(Connection, Connection), ConnectionError> {
        let client = self.client.connect(address, "localhost").unwrap();
        let server = async { self.server.accept().await.unwrap().await };
        let (client, server) = tokio::join!(client, server);
        Ok((client?, server?))
    }

    async fn connect_by(&self, address: SocketAddr) -> (Connection, Connection) {
        self.try_connect_by(address).await.unwrap()
    }

    async fn try_connect(&self) -> Result<(Connection, Connection), ConnectionError> {
        self.try_connect_by(self.server_address()).await
    }

    async fn connect(&self) -> (Connection, Connection) {
        self.try_connect().await.unwrap()
    }
}

/// Sends back what comes on each stream of a connection, until the connection ends.
async fn echo_all(connection: Connection) {
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        tokio::spawn(async move {
            while let Ok(Some(chunk)) = receive.read_chunk(usize::MAX, true).await {
                if send.write_chunk(chunk.bytes).await.is_err() {
                    return;
                }
            }
            let _ = send.finish();
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
            if from != server {
                client = Some(from);
            }
            let is_of_server = from == server;
            let to = if is_of_server { client.unwrap() } else { server };
            if !is_lost(if is_of_server { Sender::Server } else { Sender::Client }) {
                socket.send_to(&buffer[..length], to).await.unwrap();
            }
        }
    });
    address
}

/// A lab with one shard, and a runtime of its timers.
struct Timed {
    lab: Lab,
    runtime: QuinnRuntime,
}

impl Deref for Timed {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl DerefMut for Timed {
    fn deref_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }
}

impl Timed {
    fn new(capacity: u32) -> Self {
        Self::of(Lab::new(builder(1).capacity(capacity)))
    }

    fn of(lab: Lab) -> Self {
        Self { runtime: QuinnRuntime::new(lab.handle()), lab }
    }

    /// Lets the tasks of a current-thread runtime run, as often as a datagram and its answer need.
    async fn run_tasks(&mut self) {
        for _ in 0..3 {
            self.settle();
            // The runtime runs its other tasks and looks at its sockets before it wakes this task.
            tokio::task::yield_now().await;
        }
    }

    /// Runs the tasks until a condition holds, while the manual clock stands still.
    async fn run_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < give_up, "waited in vain until {what}");
            self.run_tasks().await;
        }
    }

    /// Runs a future beside the shard, while the manual clock stands still.
    async fn drive<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            self.settle();
            let waited = tokio::time::timeout(ms(1), poll_fn(|cx| future.as_mut().poll(cx)));
            if let Ok(output) = waited.await {
                return output;
            }
        }
    }
}
