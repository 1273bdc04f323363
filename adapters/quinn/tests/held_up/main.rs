//! QUIC servers in a runtime that is held up: no connection ends as idle whose packets lay in the
//! endpoint's socket at that time, and each silent one does.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

#[path = "../common/configs.rs"]
mod configs;

use std::env;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_quinn::QuinnRuntime;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{
    Connection, ConnectionError, Endpoint, EndpointConfig, RecvStream, SendStream, WriteError,
};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use self::configs::{certificate, of_client, of_server, transport};
use corewheel_test_support::child::Child;
use corewheel_test_support::held::{Flavour, HeldUp, Hold, Server};

/// What the child serves: flavour, clients and the limit in milliseconds.
const TASK: &str = "HELD_UP_QUIC_CHILD";
const CLIENTS: usize = 32;
/// The limit of the first try. Each further one doubles it.
const LIMIT: Duration = Duration::from_millis(800);
const TRIES: u32 = 7;

/// How a server has seen its clients end.
#[derive(PartialEq, Eq, Debug)]
struct Ended {
    served: usize,
    timed_out: usize,
}

fn check(hold: Hold) {
    for flavour in Flavour::ALL {
        let ended = (0..TRIES).find_map(|tries| round(flavour, hold, LIMIT * 2_u32.pow(tries)));
        let ended = ended.expect("this machine is too busy to send in time");
        assert_eq!(ended, Ended { served: CLIENTS, timed_out: 1 }, "{flavour:?}, {hold:?}");
    }
}

#[test]
fn runtime_whose_workers_block_ends_no_quic_connection_that_was_in_time() {
    check(Hold::Blocked);
}

#[test]
fn runtime_with_many_handlers_that_compute_ends_no_quic_connection_that_was_in_time() {
    check(Hold::Computing);
}

#[test]
fn stopped_process_ends_no_quic_connection_that_was_in_time() {
    check(Hold::Stopped);
}

/// `None` if the clients have sent too late.
fn round(flavour: Flavour, hold: Hold, limit: Duration) -> Option<Ended> {
    let (server, addresses) = if hold == Hold::Stopped {
        let task = format!("{flavour:?};{};{}", CLIENTS + 1, limit.as_millis());
        let (child, addresses) = Child::of_test("server_in_a_child_process", TASK, &task);
        (HeldUp::Child(child), addresses)
    } else {
        let (server, addresses) = serve(flavour, CLIENTS + 1, limit);
        (HeldUp::Here(server), addresses.to_vec())
    };
    let mut control = TcpStream::connect(addresses[1]).unwrap();
    let mut length = [0; 2];
    control.read_exact(&mut length).unwrap();
    let mut certificate = vec![0; u16::from_be_bytes(length).into()];
    control.read_exact(&mut certificate).unwrap();
    let (runtime, endpoint) = client(certificate.into());
    let begin = Instant::now();
    let Ok(mut clients) = runtime.block_on(connect(&endpoint, addresses[0])) else {
        // It has timed out.
        return None;
    };
    let released = server.hold_up(hold);
    // After that, no thread drives the clients: their ends of the connections would be idle, too.
    let sent = runtime.block_on(send_all(&mut clients[..CLIENTS]));
    if sent.is_err() {
        return None;
    }
    let is_in_time = begin.elapsed() < limit;
    if hold != Hold::Computing {
        // The limits of the last clients have begun later.
        thread::sleep(limit + limit / 2);
    }
    drop(released);
    if let HeldUp::Child(child) = &server {
        child.go_on();
    }
    let mut ended = [0; 2];
    is_in_time.then(|| {
        control.read_exact(&mut ended).unwrap();
        Ended { served: ended[0].into(), timed_out: ended[1].into() }
    })
}

type Client = (Connection, SendStream, RecvStream);

/// Has each client begin its limit.
async fn connect(endpoint: &Endpoint, server: SocketAddr) -> Result<Vec<Client>, ConnectionError> {
    let mut clients = Vec::new();
    for _ in 0..=CLIENTS {
        let connection = endpoint.connect(server, "localhost").unwrap().await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        let exchange = async {
            send.write_all(b"a").await.is_ok() && receive.read_exact(&mut [0]).await.is_ok()
        };
        if !exchange.await {
            return Err(connection.closed().await);
        }
        clients.push((connection, send, receive));
    }
    Ok(clients)
}

/// Has the packets of all clients be sent with their second byte.
async fn send_all(clients: &mut [Client]) -> Result<(), WriteError> {
    for (connection, send, _) in clients {
        let before = connection.stats().frame_tx.stream;
        send.write_all(b"z").await?;
        while connection.stats().frame_tx.stream == before {
            if let Some(reason) = connection.close_reason() {
                return Err(reason.into());
            }
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// The endpoint of the clients, and a runtime that drives it.
fn client(certificate: CertificateDer<'static>) -> (Runtime, Endpoint) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut endpoint = {
        let _entered = runtime.enter();
        Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
    };
    endpoint.set_default_client_config(of_client(certificate, &Arc::default()));
    (runtime, endpoint)
}

/// Serves clients, and beside it says where: the endpoint, and where it reports on them.
fn serve(flavour: Flavour, clients: usize, limit: Duration) -> (Server, [SocketAddr; 2]) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addresses = [socket.local_addr().unwrap(), control.local_addr().unwrap()];
    let mut builder = flavour.builder();
    // A task that a timer wakes runs before the runtime looks at its sockets.
    builder.event_interval(10_000).global_queue_interval(1);
    let server = Server::run(flavour, builder, async move |timers| {
        let config = Some(of_server(&Arc::new(transport(limit))));
        let runtime = Arc::new(QuinnRuntime::new(timers));
        let endpoint = Endpoint::new(EndpointConfig::default(), config, socket, runtime).unwrap();
        let certificate = certificate();
        let (mut control, _) = accept(control).await.unwrap();
        control.write_u16(certificate.len() as u16).await.unwrap();
        control.write_all(&certificate).await.unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let Some(incoming) = endpoint.accept().await else { return };
            tasks.spawn(async move {
                let Ok(connection) = incoming.await else { return false };
                is_served(connection).await
            });
        }
        let ended = tasks.join_all().await;
        let served = ended.iter().filter(|is_served| **is_served).count();
        let counts = [served as u8, (ended.len() - served) as u8];
        control.write_all(&counts).await.unwrap();
    });
    (server, addresses)
}

async fn accept(listener: TcpListener) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)?.accept().await
}

/// Whether the second byte of a client comes before its connection ends as idle.
async fn is_served(connection: Connection) -> bool {
    let serve = async {
        let (mut send, mut receive) = connection.accept_bi().await.ok()?;
        receive.read_exact(&mut [0]).await.ok()?;
        send.write_all(b"k").await.ok()?;
        receive.read_exact(&mut [0]).await.ok()
    };
    let is_served = serve.await.is_some();
    let reason = connection.close_reason();
    assert!(is_served || reason == Some(ConnectionError::TimedOut), "{reason:?}");
    is_served
}

/// Serves until its standard input ends. Does nothing where this is not the child.
#[test]
fn server_in_a_child_process() {
    let Ok(task) = env::var(TASK) else { return };
    let words: Vec<_> = task.split(';').collect();
    let [flavour, clients, limit] = words[..] else { panic!("{task}") };
    let flavour = Flavour::ALL.into_iter().find(|it| format!("{it:?}") == flavour).unwrap();
    let limit = Duration::from_millis(limit.parse().unwrap());
    let (_server, addresses) = serve(flavour, clients.parse().unwrap(), limit);
    Child::wait_as_child(&addresses);
}
