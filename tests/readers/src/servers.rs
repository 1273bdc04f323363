//! The servers, each with its defaults.

use std::convert::Infallible;
use std::error::Error;
use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use corewheel::conn::{PeerSocket, Raced, UNSENT_MAX};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{ConnLimits, TimerService};
use corewheel_http::tls::TlsListener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::clients::Protocol;
use super::free_address;

/// More than any client here takes.
const ENDLESS: u64 = 1 << 40;

/// The bytes of a frame of a response.
const FRAME: usize = 1 << 14;

/// After which time each server cuts a client that takes nothing.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    /// How much later a client is cut that has taken something, by a least rate; `None` without
    /// one.
    pub(crate) lump: Option<Duration>,
    /// What ends with the server.
    _program: Option<Program>,
}

/// The programs of the repository that are servers.
pub(crate) struct Programs {
    folder: Option<PathBuf>,
}

/// A program, which ends with this.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It is gone already, or it ends now.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

const PROXY: &str = "reverse_proxy";
const CACHE: &str = "resp_cache";
const IDLE: &str = "idle_server";

impl Programs {
    pub(crate) fn new(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_path_buf) }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(name)).filter(|path| path.exists())
    }

    /// Returns the programs that are not there.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &'static str> + '_ {
        [PROXY, CACHE, IDLE].into_iter().filter(|name| self.path(name).is_none())
    }

    /// Starts a program that listens at an address; `None` if it is not there.
    async fn start(
        &self,
        name: &str,
        arguments: &[&str],
    ) -> Result<Option<(SocketAddr, Program)>, Box<dyn Error>> {
        let Some(path) = self.path(name) else {
            return Ok(None);
        };
        let (address, stats) = (free_address()?, free_address()?);
        let mut command = Command::new(path);
        command.args(["--listen", &address.to_string(), "--stats", &stats.to_string()]);
        let program = Program(command.args(arguments).stdout(Stdio::null()).spawn()?);
        for _ in 0..100 {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(Some((address, program)));
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err(format!("{name} does not listen at {address} after 10 s").into())
    }
}

/// The body of a response that does not end.
struct Zeroes;

impl axum::body::HttpBody for Zeroes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        static FRAME_OF_ZEROES: [u8; FRAME] = [0; FRAME];
        let data = Bytes::from_static(&FRAME_OF_ZEROES);
        Poll::Ready(Some(Ok(http_body::Frame::data(data))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(ENDLESS)
    }
}

/// A server and a client with a certificate that the client knows.
fn certified() -> Result<(ServerConfig, TlsConnector), Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = own.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key)?;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((server, Arc::new(client).into()))
}

fn app() -> Router {
    Router::new().route("/", get(|| async { Body::new(Zeroes) }))
}

fn get_request(address: SocketAddr) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes()
}

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Stores a value of 1 MB, and asks for it a thousand times.
fn pipeline() -> Protocol {
    let value = vec![b'x'; 1_000_000];
    let mut requests = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).into_bytes();
    requests.extend(value);
    requests.extend(b"\r\n");
    requests.extend(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(1_000));
    Protocol::Bytes(requests)
}

/// The bare stream, with the limits of writing of the proxy.
async fn serve_stream(listener: TcpListener, service: &TimerService) {
    let limits = StreamLimits::default().write_stall(LIMIT);
    let limits = limits.unsent_max(UNSENT_MAX);
    let handle = service.handle();
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            let stream = TimedIo::new(socket, handle, limits);
            let mut stream = stream.with_socket(|socket| Some(socket.as_fd()));
            stream.read_u8().await?;
            loop {
                stream.write_all(&[0; FRAME]).await?;
            }
            #[allow(unreachable_code)]
            io::Result::Ok(())
        });
    }
}

/// A connection's timers, as the program in the README has them.
async fn serve_connections(listener: TcpListener, service: &TimerService) {
    let limits = ConnLimits::default().write_timeout(LIMIT);
    let limits = limits.unsent_max(UNSENT_MAX);
    let _has_it = listener.set_unsent_max(UNSENT_MAX);
    let timers = service.handle().untyped();
    while let Ok((mut socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            let connection = timers.connection(limits);
            let (mut reader, mut writer) = socket.split();
            reader.read_u8().await?;
            loop {
                let _writing = connection.begin_write();
                let write = pin!(writer.write_all(&[0; FRAME]));
                match connection.race_write(reader.as_ref(), write).await {
                    Ok(Raced::Done(written)) => written?,
                    _ => return io::Result::Ok(()),
                }
            }
        });
    }
}

/// A server with the programs that it needs.
pub(crate) async fn start(programs: &Programs) -> Result<Vec<Server>, Box<dyn Error>> {
    let mut servers = Vec::new();
    let mut add = |name, address, protocol, lump, program| {
        servers.push(Server { name, address, protocol, lump, _program: program });
    };

    let (listener, address) = listen().await?;
    tokio::spawn(async { corewheel_http::axum::serve(listener, app()).await });
    add("serve", address, Protocol::Bytes(get_request(address)), None, None);
    add("serve, HTTP/2", address, Protocol::Http2("/"), None, None);

    let (config, connector) = certified()?;
    let (sockets, address) = listen().await?;
    let server = corewheel_http::axum::serve(TlsListener::new(sockets, config), app());
    tokio::spawn(server.into_future());
    let protocol = Protocol::Tls(get_request(address), connector);
    add("serve, TLS", address, protocol, None, None);

    let service = Box::leak(Box::new(TimerService::beside_runtime().start()?));
    let (listener, address) = listen().await?;
    tokio::spawn(serve_stream(listener, service));
    add("TimedIo", address, Protocol::Bytes(vec![0]), None, None);

    let (listener, address) = listen().await?;
    tokio::spawn(serve_connections(listener, service));
    add("ConnTimers", address, Protocol::Bytes(vec![0]), None, None);

    let (listener, upstream) = listen().await?;
    tokio::spawn(async { axum::serve(listener, app()).await });
    if let Some((address, program)) = programs.start(CACHE, &[]).await? {
        add("cache", address, pipeline(), None, Some(program));
    }
    for (name, runtime) in [("idle_server", "auto"), ("idle_server, tokio", "tokio")] {
        if let Some((address, program)) = programs.start(IDLE, &["--runtime", runtime]).await? {
            add(name, address, Protocol::Echo, None, Some(program));
        }
    }
    for mode in ["multi-thread", "per-core"] {
        let upstream = upstream.to_string();
        let options = ["--h2c", "--upstream", &upstream, "--mode", mode];
        if let Some((address, program)) = programs.start(PROXY, &options).await? {
            let name = if mode == "per-core" { "proxy, per core" } else { "proxy" };
            let lump = Some(Duration::from_mins(1));
            add(name, address, Protocol::Bytes(get_request(address)), lump, Some(program));
            if mode == "per-core" {
                add("proxy, HTTP/2", address, Protocol::Http2("/"), lump, None);
            }
        }
    }
    Ok(servers)
}
