//! Clients of `serve` over TLS, whose listener says where the socket of a stream is: they are
//! judged by what they have acknowledged. The buffers have the sizes that the system gives them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get as on_get;
use axum::serve::Listener;
use corewheel::TimerService;
use corewheel::stream::StreamTimeout::WriteStall;
use corewheel::stream::{StreamControl, StreamLimits};
use corewheel_http::axum::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::axum_closes::has_socket;
use crate::http::{get, ms};

/// More than the system takes at once of a client that does not read.
const HUGE: usize = 24 << 20;
const STALL: Duration = Duration::from_secs(3);

struct TlsListener {
    sockets: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (socket, address) = self.sockets.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(socket).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.sockets.local_addr()
    }
}

/// A server and a client with a certificate that the client knows.
fn certified() -> (TlsAcceptor, TlsConnector) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = own.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_over_tls_that_takes_a_response_slowly_is_kept_and_one_that_stops_is_reset() {
    let service = TimerService::beside_runtime().start().unwrap();
    let (acceptor, connector) = certified();
    let (sender, mut controls) = mpsc::unbounded_channel();
    let answer = move |ConnectInfo(control): ConnectInfo<StreamControl>| async move {
        sender.send(control).unwrap();
        vec![b'x'; HUGE]
    };
    let app = Router::new().route("/", on_get(answer));
    let app = app.into_make_service_with_connect_info::<StreamControl>();
    let sockets = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = sockets.local_addr().unwrap();
    let listener = TlsListener { sockets, acceptor };
    let limits = StreamLimits::default().write_stall(STALL).idle(20 * STALL);
    let server = serve(listener, app).timers(service.handle()).limits(|_| limits);
    tokio::spawn(server.socket(|stream| Some(stream.get_ref().0.as_fd())).into_future());

    let mut begin = async || -> (client::TlsStream<TcpStream>, StreamControl) {
        let socket = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = connector.connect(name, socket).await.unwrap();
        client.write_all(&get("/")).await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        (client, controls.recv().await.unwrap())
    };
    let (stopped, stopped_control) = begin().await;
    let stopped_address = stopped.get_ref().0.local_addr().unwrap();
    let (mut slow, slow_control) = begin().await;
    let (mut received, mut part, start) = (1, vec![0; 10_000], Instant::now());
    // The system accepts more of the response after 9 s.
    while start.elapsed() < 2 * STALL {
        tokio::time::sleep(ms(100)).await;
        slow.read_exact(&mut part).await.unwrap();
        received += part.len();
    }
    while received < HUGE {
        received += slow.read(&mut part).await.unwrap();
    }
    assert_eq!(slow_control.limit_reached(), None);
    assert_eq!(stopped_control.limit_reached(), Some(WriteStall(STALL)));
    assert!(!has_socket(address, stopped_address), "the system keeps what was not taken");
}
