//! Clients of `serve` over TLS: the handshake in the task of a connection, its time, and clients
//! that are judged by what they have acknowledged. The buffers have the sizes that the system gives
//! them.

use std::future::{Ready, pending, ready};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::routing::get as on_get;
use axum::serve::Listener;
use corewheel::TimerService;
use corewheel::stream::StreamTimeout::FirstByte;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::{IncomingStream, serve};
use corewheel_http::tls::{TlsIo, TlsListener};
use http_body_util::{BodyExt, Empty};
use hyper::Version;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
};
use tokio_rustls::{TlsConnector, client};

use crate::axum_closes::{HUGE, check_slow_and_stopped, has_socket};
use crate::axum_told::{FAR, OFF};
use crate::http::{PATIENCE, beside_runtime, check_at_once, get, ms, wait_until};

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

/// A server over TLS, and its side of each connection.
struct Server {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    service: TimerService,
    controls: mpsc::UnboundedReceiver<StreamControl>,
    stop: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(limits: StreamLimits) -> Self {
        let service = TimerService::beside_runtime().start().unwrap();
        let (certificate, config) = certified();
        let (sender, controls) = mpsc::unbounded_channel();
        let version = |request: Request| async move { format!("{:?}", request.version()) };
        let app: Router = Router::new().route("/", on_get(version));
        let make = tower::service_fn(
            move |stream: IncomingStream<'_, TlsListener<TcpListener>>| -> Ready<_> {
                let _ = sender.send(StreamControl::connect_info(stream));
                ready(Ok(app.clone()))
            },
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let timers = service.handle();
        let serving = tokio::spawn(async move {
            let server = serve(TlsListener::new(listener, config), make);
            let server = server.timers(timers).limits(|_| limits);
            let server = server.with_graceful_shutdown(async { drop(stopped.await) });
            server.await.unwrap();
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
        ended.expect("a connection holds the shutdown").unwrap();
    }
}

#[tokio::test]
async fn clients_are_served_by_the_version_that_they_choose_while_others_are_silent() {
    let server = Server::start(OFF.first_byte(FAR)).await;
    let mut silent = Vec::new();
    let both = server.client(&[b"h2", b"http/1.1"]);
    for _ in 0..3 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
        // This one stops in its handshake.
        let mut half = TcpStream::connect(server.address).await.unwrap();
        half.write_all(&hello(&both)[..20]).await.unwrap();
        silent.push(half);
    }

    for protocols in [&[][..], &[&b"http/1.1"[..]]] {
        let mut client = connect(server.address, &server.client(protocols)).await;
        assert_eq!(client.get_ref().1.alpn_protocol(), protocols.first().copied());
        client.write_all(&get("/")).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nHTTP/1.1") {
            answer.push(client.read_u8().await.unwrap());
        }
    }

    let client = connect(server.address, &both).await;
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "HTTP/2.0");
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
    let mut server = Server::start(OFF.first_byte(LIMIT)).await;
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
    let server = Server::start(OFF).await;
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
        let mut server = Server::start(OFF.max_age_grace(FAR)).await;
        let mut half = TcpStream::connect(server.address).await.unwrap();
        half.write_all(&hello(&server.client(&[]))[..20]).await.unwrap();
        let silent = TcpStream::connect(server.address).await.unwrap();
        for _ in 0..2 {
            drop(server.controls.recv().await.unwrap());
        }
        if drains {
            server.service.drain(LIMIT);
            wait_for_end(half).await;
            wait_for_end(silent).await;
            server.stop().await;
        } else {
            // The clients keep their sockets.
            server.stop().await;
        }
    }
}

/// The client's last part of the handshake lies in the socket in time, and the server looks later.
#[test]
fn handshake_that_was_done_in_time_while_the_runtime_was_held_up_is_served() {
    let (started, start) = channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start(OFF.first_byte(LONG)).await;
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

#[test]
fn client_over_tls_that_takes_a_response_slowly_is_kept_and_one_that_stops_is_reset() {
    // Whether the server is told where the socket is.
    check_at_once([false, true], |is_told| {
        let (service, runtime, sockets, address) = beside_runtime(Builder::enable_all);
        let (certificate, config) = certified();
        let connector = client_of(certificate, &[]);
        let (sender, controls) = channel();
        let answer = async move |ConnectInfo(control): ConnectInfo<StreamControl>| {
            sender.send(control).unwrap();
            vec![b'x'; HUGE]
        };
        let app = Router::new().route("/", on_get(answer));
        let app = app.into_make_service_with_connect_info::<StreamControl>();
        let limits = StreamLimits::default().write_stall(STALL).idle(20 * STALL);
        let (listener, timers) = (TlsListener::new(sockets, config), service.handle());
        if is_told {
            let server = serve(Buffered(listener), app).timers(timers).limits(move |_| limits);
            let server = server.socket(|stream| stream.get_ref().get_ref().map(AsFd::as_fd));
            runtime.spawn(server.into_future());
        } else {
            let server = serve(listener, app).timers(timers).limits(move |_| limits);
            runtime.spawn(server.into_future());
        }
        let stopped = check_slow_and_stopped(STALL, |_| {
            let socket = std::net::TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let client = ClientConnection::new(Arc::clone(&connector), localhost()).unwrap();
            let mut client = StreamOwned::new(client, socket);
            client.write_all(&get("/")).unwrap();
            client.read_exact(&mut [0]).unwrap();
            (client, controls.recv_timeout(PATIENCE).unwrap())
        });
        let stopped_address = stopped.sock.local_addr().unwrap();
        wait_until(|| !has_socket(address, stopped_address));
    });
}
