//! The runtime of QUIC endpoints: its timers and its clock alone, and connections over real
//! sockets, by the system's clock and by a manual one.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod connections;
mod held;
mod lost;
mod manual;
#[path = "../../../../tests/service/support/seeds.rs"]
#[allow(dead_code, reason = "the tests of the service use the rest")]
mod seeds;
mod timer;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{Fired, ShardId, TimerService, Timers};
use corewheel_quinn::QuinnRuntime;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig,
    TransportConfig,
};

/// How long a test waits for an expected event before it fails. Far longer than the event takes, so
/// that no test fails because the machine is busy.
const PATIENCE: Duration = Duration::from_mins(1);
const FAR: Duration = Duration::from_hours(1);
const SHARD: ShardId = ShardId::new(0);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a test on a thread of its own, and fails if it does not end in time.
fn within_patience<O: Send + 'static>(run: impl FnOnce() -> O + Send + 'static) -> O {
    let (done, is_done) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let output = run();
        drop(done);
        output
    });
    let ended = is_done.recv_timeout(PATIENCE);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "a test does not end");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

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

/// Counts how often a waker is woken.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Alarm {
    fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), Waker::from(alarm))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A service by a manual clock, whose only shard this thread drives, and a runtime of its timers.
struct Lab {
    clock: ManualClock,
    service: TimerService,
    shard: ShardLoop<Infallible, fn(Fired<Infallible>, &Timers)>,
    runtime: QuinnRuntime,
}

impl Lab {
    fn new(capacity: u32) -> Self {
        Self::by(seeds::clock(), capacity)
    }

    fn by(clock: ManualClock, capacity: u32) -> Self {
        let builder = TimerService::builder().shards(1).capacity(capacity).clock(&clock);
        let service = builder.start_attached_with().unwrap();
        let handler: fn(Fired<Infallible>, &Timers) = |_, _| {};
        let shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
        let runtime = QuinnRuntime::new(service.handle());
        Self { clock, service, shard, runtime }
    }

    /// Takes turns until the shard has nothing to do.
    fn settle(&mut self) {
        while self.shard.turn() == Turn::More {}
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.settle();
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
