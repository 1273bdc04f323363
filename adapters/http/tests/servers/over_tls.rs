//! Clients of `serve` over TLS: the handshake in the task of a connection, its time, and clients
//! that are judged by what they have acknowledged. The buffers have the sizes that the system gives
//! them.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::extract::connect_info::Connected;
use axum::routing::get as on_get;
use axum::serve::Listener;
use corewheel::TimerService;
use corewheel::stream::StreamTimeout::FirstByte;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::{IncomingStream, serve};
use corewheel_http::tls::{TlsIo, TlsListener};
use corewheel_test_support::stream::NONE as OFF;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
};
use tokio_rustls::{TlsConnector, client};
use tower::Service;

use crate::axum_closes::{check_slow_and_stopped, has_socket};
use crate::http::{PATIENCE, check_at_once, get, head, ms, preface, wait_until};
use crate::served::{FAR, HUGE};

const STALL: Duration = Duration::from_secs(3);
const LIMIT: Duration = ms(600);
/// Far longer than a handshake takes.
const LONG: Duration = Duration::from_secs(3);

type Client = client::TlsStream<TcpStream>;

/// A certificate, and a configuration of a server that has it.
fn certified() -> (CertificateDer<'static>, ServerConfig) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = own.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let config = ServerConfig::builder().with_no_client_auth();
    (certificate.clone(), config.with_single_cert(vec![certificate], key).unwrap())
}

/// A client that knows a certificate, and speaks these protocols.
fn client_of(certificate: CertificateDer<'static>, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config.into()
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

async fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Client {
    let socket = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::clone(config)).connect(localhost(), socket).await.unwrap()
}

/// What a client sends first.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut hello = Vec::new();
    let mut client = ClientConnection::new(Arc::clone(config), localhost()).unwrap();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// Serves each connection by a router, and gives its control to the test.
struct Make(mpsc::UnboundedSender<StreamControl>, Router);

impl<L: Listener> Service<IncomingStream<'_, L>> for Make {
    type Response = Router;
    type Error = Infallible;
    type Future = Ready<Result<Router, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, stream: IncomingStream<'_, L>) -> Self::Future {
        let _ = self.0.send(StreamControl::connect_info(stream));
        ready(Ok(self.1.clone()))
    }
}

/// A listener of another library, whose stream is not known here.
struct Buffered(TlsListener<TcpListener>);

impl Listener for Buffered {
    type Io = BufWriter<TlsIo<TcpStream>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (io, address) = self.0.accept().await;
        (BufWriter::new(io), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A server over TLS, and its side of each connection.
struct Server {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    service: TimerService,
    controls: mpsc::UnboundedReceiver<StreamControl>,
    stop: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<io::Result<()>>,
}

impl Server {
    /// Whether the server is told where the socket is, of a stream that it does not know.
    async fn start(limits: StreamLimits, is_told: bool) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let (certificate, config) = certified();
        let (sender, controls) = mpsc::unbounded_channel();
        let version = |request: Request| async move { format!("{:?}", request.version()) };
        let app: Router = Router::new().route("/", on_get(version));
        let app = app.route("/huge", on_get(async || vec![b'x'; HUGE]));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let (listener, make) = (TlsListener::new(listener, config), Make(sender, app));
        let serving = tokio::spawn(if is_told {
            let server = serve(Buffered(listener), make).timers(service.handle());
            let server = server.socket(|stream| stream.get_ref().get_ref().map(AsFd::as_fd));
            server.limits(|_| limits).with_graceful_shutdown(stopped).into_future()
        } else {
            let server = serve(listener, make).timers(service.handle());
            server.limits(|_| limits).with_graceful_shutdown(stopped).into_future()
        });
        Self { address, certificate, service, controls, stop, serving }
    }

    fn client(&self, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        client_of(self.certificate.clone(), protocols)
    }

    /// Ends the server, when its connections have ended.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.serving).await;
        ended.expect("a connection holds the shutdown").unwrap().unwrap();
    }
}

#[tokio::test]
async fn clients_are_served_by_the_version_that_they_choose_while_others_are_silent() {
    let server = Server::start(OFF.first_byte(FAR), false).await;
    let mut silent = Vec::new();
    let hello = hello(&server.client(&[b"h2", b"http/1.1"]));
    for _ in 0..3 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
        // This one stops in its handshake.
        let mut half = TcpStream::connect(server.address).await.unwrap();
        half.write_all(&hello[..20]).await.unwrap();
        silent.push(half);
    }

    let (http1, http2) = (get("/"), [preface(), head(1, "/", false)].concat());
    let cases: [(&[&[u8]], _, &[u8]); 3] = [
        (&[], &http1, b"\r\n\r\nHTTP/1.1"),
        (&[b"http/1.1"], &http1, b"\r\n\r\nHTTP/1.1"),
        (&[b"h2", b"http/1.1"], &http2, b"HTTP/2.0"),
    ];
    for (protocols, sent, end) in cases {
        let mut client = connect(server.address, &server.client(protocols)).await;
        assert_eq!(client.get_ref().1.alpn_protocol(), protocols.first().copied());
        client.write_all(sent).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end) {
            answer.push(client.read_u8().await.unwrap());
        }
    }
    drop(silent);
}

/// Reads to the end, or to the reset, of a connection that its server closes.
async fn wait_for_end(mut client: impl AsyncRead + Unpin) {
    let mut rest = Vec::new();
    let end = client.read_to_end(&mut rest);
    drop(tokio::time::timeout(PATIENCE, end).await.expect("the server keeps the connection"));
}

#[tokio::test]
async fn handshake_that_takes_too_long_ends_at_the_time_of_the_first_byte() {
    let mut server = Server::start(OFF.first_byte(LIMIT), false).await;
    let hello = hello(&server.client(&[]));
    let silent = TcpStream::connect(server.address).await.unwrap();
    let begin = Instant::now();
    let (reader, mut writer) = TcpStream::connect(server.address).await.unwrap().into_split();
    // One that never stops sending, and would need far longer.
    let sending = tokio::spawn(async move {
        for byte in hello.iter().cycle() {
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(LIMIT / 20).await;
        }
    });
    wait_for_end(reader).await;
    assert!(begin.elapsed() >= LIMIT, "{:?}", begin.elapsed());
    wait_for_end(silent).await;
    sending.abort();
    // A handshake that is done, without a request.
    let idle = connect(server.address, &server.client(&[])).await;
    wait_for_end(idle.into_inner().0).await;
    for _ in 0..3 {
        let control = server.controls.recv().await.unwrap();
        assert_eq!(control.limit_reached(), Some(FirstByte(LIMIT)));
    }
}

#[tokio::test]
async fn handshake_that_fails_is_told_and_ends() {
    let server = Server::start(OFF, false).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(&get("/")).await.unwrap();
    let mut told = [0];
    client.read_exact(&mut told).await.unwrap();
    // The type of an alert.
    assert_eq!(told, [21]);
    wait_for_end(client).await;
    // A client that does not know the certificate leaves.
    let stranger = client_of(certified().0, &[]);
    let socket = TcpStream::connect(server.address).await.unwrap();
    TlsConnector::from(stranger).connect(localhost(), socket).await.unwrap_err();
    server.stop().await;
}

#[tokio::test]
async fn drain_and_shutdown_end_a_handshake_that_goes_on() {
    for drains in [false, true] {
        let mut server = Server::start(OFF.max_age_grace(FAR), false).await;
        let mut half = TcpStream::connect(server.address).await.unwrap();
        half.write_all(&hello(&server.client(&[]))[..20]).await.unwrap();
        let silent = TcpStream::connect(server.address).await.unwrap();
        for _ in 0..2 {
            drop(server.controls.recv().await.unwrap());
        }
        let mut clients = vec![half, silent];
        if drains {
            server.service.drain(LIMIT);
            for client in clients.drain(..) {
                wait_for_end(client).await;
            }
        }
        // At the shutdown, the clients keep their sockets.
        server.stop().await;
    }
}

/// The client's last part of the handshake lies in the socket in time, and the server looks later.
#[test]
fn handshake_that_was_done_in_time_while_the_runtime_was_held_up_is_served() {
    let (started, start) = channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start(OFF.first_byte(LONG), false).await;
            started.send((server.address, server.client(&[]), Handle::current())).unwrap();
            pending::<()>().await;
        });
    });
    let (address, config, runtime) = start.recv().unwrap();
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let mut client = ClientConnection::new(config, localhost()).unwrap();
    client.write_tls(&mut socket).unwrap();
    while client.is_handshaking() {
        client.read_tls(&mut socket).unwrap();
        client.process_new_packets().unwrap();
    }
    // The last part of the handshake waits to be written.
    let (holds, is_held) = channel();
    drop(runtime.spawn(async move {
        holds.send(()).unwrap();
        thread::sleep(2 * LONG);
    }));
    is_held.recv().unwrap();
    client.writer().write_all(&get("/")).unwrap();
    while client.wants_write() {
        client.write_tls(&mut socket).unwrap();
    }
    let mut answer = [0; 15];
    let mut stream = tokio_rustls::rustls::Stream::new(&mut client, &mut socket);
    stream.read_exact(&mut answer).expect("the client is cut");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

#[test]
fn client_over_tls_that_takes_a_response_slowly_is_kept_and_one_that_stops_is_reset() {
    check_at_once([false, true], |is_told| {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let limits = OFF.write_stall(STALL).idle(20 * STALL);
        let mut server = runtime.block_on(Server::start(limits, is_told));
        let connector = server.client(&[]);
        let stopped = check_slow_and_stopped(STALL, |_| {
            let socket = std::net::TcpStream::connect(server.address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let client = ClientConnection::new(Arc::clone(&connector), localhost()).unwrap();
            let mut client = StreamOwned::new(client, socket);
            client.write_all(&get("/huge")).unwrap();
            client.read_exact(&mut [0]).unwrap();
            (client, server.controls.blocking_recv().unwrap())
        });
        let stopped_address = stopped.sock.local_addr().unwrap();
        wait_until(|| !has_socket(server.address, stopped_address));
    });
}
