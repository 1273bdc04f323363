//! QUIC connections in a runtime that is held up. The task of the endpoint reads the socket, so the
//! tasks of the connections wait for it, too.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::TimerService;
use corewheel::adapters::quinn::QuinnRuntime;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TransportConfig,
};
use tokio::runtime::{Builder, Handle};

const CONNECTIONS: usize = 20;
/// The idle time of the first try. Each further one doubles it.
const IDLE: Duration = Duration::from_millis(1_500);
const TRIES: u32 = 6;

#[test]
fn quic_connections_whose_datagrams_came_in_time_stay_open() {
    let cut = (0..TRIES).find_map(|tries| round(IDLE * 2_u32.pow(tries)));
    let cut = cut.expect("this machine is too busy to send in time");
    assert_eq!(cut, 1, "of {CONNECTIONS} connections in time and a silent one");
}

/// How many connections have ended as idle, without a datagram. `None` if the datagrams were sent
/// too late.
fn round(idle: Duration) -> Option<usize> {
    let (address, certificate, server, received) = serve(idle);
    let clients = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let begin = Instant::now();
    let (held, release) = mpsc::channel::<()>();
    let (holds, is_held) = mpsc::channel();
    let connections = clients.block_on(async {
        let client = client(&certificate);
        let mut connections = Vec::new();
        // The last one is silent.
        for _ in 0..=CONNECTIONS {
            let connection = client.connect(address, "localhost").unwrap().await.ok()?;
            connection.send_datagram((&b"a"[..]).into()).unwrap();
            connection.read_datagram().await.ok()?;
            connections.push(connection);
        }
        Some(connections)
    })?;
    server.spawn(async move {
        holds.send(()).unwrap();
        let _ = release.recv();
    });
    is_held.recv().unwrap();
    let hold = Instant::now();
    // A client counts its own idle time from here.
    thread::sleep(idle / 2);
    for connection in &connections[..CONNECTIONS] {
        let before = connection.stats().udp_tx.datagrams;
        connection.send_datagram((&b"z"[..]).into()).ok()?;
        while connection.stats().udp_tx.datagrams == before {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let is_in_time = begin.elapsed() < idle;
    thread::sleep((idle + idle / 5).saturating_sub(hold.elapsed()));
    drop(held);
    if !is_in_time {
        return None;
    }
    let received = received.iter().take(CONNECTIONS + 1);
    Some(received.filter(|is_received| !is_received).count())
}

/// A server in a current-thread runtime, which reports for each connection whether a second
/// datagram has come before its end. Beside it, its address, its certificate and its runtime.
fn serve(idle: Duration) -> (SocketAddr, CertificateDer<'static>, Handle, Receiver<bool>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
    let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(idle.try_into().unwrap()));
    transport.mtu_discovery_config(None);
    config.transport_config(Arc::new(transport));
    let (started, start) = mpsc::channel();
    let (reports, received) = mpsc::channel();
    thread::spawn(move || {
        let service = TimerService::beside_runtime().start().unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timers = Arc::new(QuinnRuntime::new(service.handle()));
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = socket.local_addr().unwrap();
            let endpoint =
                Endpoint::new(EndpointConfig::default(), Some(config), socket, timers).unwrap();
            started.send((address, Handle::current())).unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..=CONNECTIONS {
                let incoming = endpoint.accept().await.unwrap();
                tasks.spawn(answer(incoming, reports.clone()));
            }
            tasks.join_all().await;
        });
    });
    let (address, handle) = start.recv().unwrap();
    (address, certificate, handle, received)
}

async fn answer(incoming: Incoming, reports: Sender<bool>) {
    let Ok(connection): Result<Connection, _> = incoming.await else { return };
    if connection.read_datagram().await.is_ok() {
        connection.send_datagram((&b"k"[..]).into()).unwrap();
        let _ = reports.send(connection.read_datagram().await.is_ok());
    }
}

fn client(certificate: &CertificateDer<'static>) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    let mut client = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    client.set_default_client_config(config);
    client
}
