//! Listeners, and the connections that they accept.
//!
//! With corewheel's timers a [`Server`] has the limits. `--timer tokio` and `--timer none` have
//! hyper's own server instead, for comparison.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewheel::Handle;
use corewheel::conn::DataRate;
use corewheel::fallback::InfallibleSleep;
use corewheel::stream::StreamLimits;
use corewheel_http::hyper::{BodyLimits, TimedBody};
use corewheel_http::server::Server;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::forward::{Asked, Client, Forwarder};
use crate::options::{Limits, Options, TimerKind};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 4_096;
/// The most bytes that a connection buffers in each direction. With hyper's 400 KiB, some thousands
/// of clients that do not read take gigabytes before a deadline comes.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// How long an acceptor waits after a failed attempt.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How long a client has for the last that the proxy sends.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Says when a connection is to end. Each connection holds one until it has ended.
#[derive(Clone)]
pub(crate) struct Shutdown {
    /// Loses its sender, and so changes, when the shutdown begins.
    pub(crate) begun: watch::Receiver<()>,
    /// Shows the main thread that a connection is open, and each request that is cut.
    pub(crate) open: mpsc::Sender<()>,
}

/// Accepts the connections of a listener and serves them.
pub(crate) struct Acceptor {
    serves: Serves,
    timers: Handle,
}

enum Serves {
    Timed(Box<Server>, Arc<Forwarder<TimedBody<Incoming>>>),
    Plain(Box<auto::Builder<TokioExecutor>>, Arc<Forwarder<Incoming>>),
}

impl Acceptor {
    pub(crate) fn new(
        options: &Options,
        upstream: SocketAddr,
        [connections, connects]: [Handle; 2],
    ) -> Self {
        let limits = &options.limits;
        let set = |mut hyper: auto::Builder<TokioExecutor>| {
            hyper.http1().max_buf_size(BUFFER_BYTES);
            hyper.http2().max_send_buf_size(BUFFER_BYTES).enable_connect_protocol();
            if options.h2c { hyper } else { hyper.http1_only() }
        };
        let serves = if options.timer == TimerKind::Corewheel {
            let server = limits.of_server(connections).hyper(set);
            Serves::Timed(Box::new(server), Forwarder::new(options, upstream, connects))
        } else {
            let mut hyper = set(auto::Builder::new(TokioExecutor::new()));
            hyper.http1().header_read_timeout(None);
            if options.timer == TimerKind::Tokio {
                let mut http1 = hyper.http1();
                http1.timer(TokioTimer::new()).header_read_timeout(unless_off(limits.header));
            }
            Serves::Plain(Box::new(hyper), Forwarder::new(options, upstream, connects))
        };
        Self { serves, timers: connects }
    }

    /// Accepts clients until the shutdown begins.
    pub(crate) async fn run(self, listener: std::net::TcpListener, mut shutdown: Shutdown) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the runtime refuses the listener"),
        };
        let acceptor = Arc::new(self);
        loop {
            let for_client = shutdown.clone();
            let accepted = tokio::select! {
                biased;
                _ = shutdown.begun.changed() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, client)) => {
                    let acceptor = Arc::clone(&acceptor);
                    // Where each core has a runtime, it stays there, beside the tasks of hyper's
                    // client. In a `LocalSet`, each request would wait for more passes.
                    tokio::spawn(async move { acceptor.serve(socket, client, for_client).await });
                }
                // The client has left before.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted");
                    // Most likely all file descriptors are in use, and a connection must end first.
                    InfallibleSleep::after(acceptor.timers.untyped(), BACK_OFF).await;
                }
            }
        }
    }

    /// Serves a client until it leaves, a limit ends the connection, or the proxy is shut down.
    async fn serve(&self, socket: TcpStream, client: SocketAddr, mut shutdown: Shutdown) {
        // The client may have left already, which the first read finds.
        let _ = socket.set_nodelay(true);
        match &self.serves {
            Serves::Timed(server, forwarder) => {
                let stream = server.stream(socket);
                let control = Some(stream.control());
                let client = Client::new(client.ip(), control, shutdown.open, forwarder);
                // The drain of the service tells each connection in its turn.
                server.serve(stream, answers(&client), pending()).await;
                client.has_ended();
            }
            Serves::Plain(hyper, forwarder) => {
                let client = Client::new(client.ip(), None, shutdown.open.clone(), forwarder);
                let socket = TokioIo::new(socket);
                let serving = hyper.serve_connection_with_upgrades(socket, answers(&client));
                let mut serving = pin!(serving);
                // An error says that the client has left, or is cut.
                tokio::select! {
                    biased;
                    _ = serving.as_mut() => {}
                    _ = shutdown.begun.changed() => {
                        serving.as_mut().graceful_shutdown();
                        let _ = serving.await;
                    }
                }
            }
        }
    }
}

/// The service of a connection.
fn answers<B: Asked>(
    client: &Arc<Client<B>>,
) -> impl hyper::service::Service<
    hyper::Request<B>,
    Response = hyper::Response<crate::forward::Answer>,
    Error = Infallible,
    Future: Send,
> + use<B> {
    let client = Arc::clone(client);
    service_fn(move |request| {
        let sent = client.send(request);
        let client = Arc::clone(&client);
        async move { Ok(client.answer(sent).await) }
    })
}

/// `None` for a timeout that is turned off.
pub(crate) fn unless_off(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

impl Limits {
    fn of_server(&self, timers: Handle) -> Server {
        let read_rate = DataRate::new(self.read_rate, self.rate_grace);
        let write_rate = DataRate::new(self.write_rate, self.rate_grace);
        let stream = StreamLimits::default()
            .first_byte(self.first_byte)
            .head(self.header)
            .write_stall(self.write_stall)
            .unsent_max(self.unsent_max)
            .idle(self.keep_alive)
            .max_age(self.max_age)
            .max_age_jitter(self.max_age_jitter)
            .max_age_grace(self.max_age_grace)
            .min_write_rate(write_rate);
        // The client sends the body of a request, and the upstream server takes it.
        let request = BodyLimits::default()
            .next_frame(self.read_idle)
            .min_frame_rate(read_rate)
            .next_poll(self.upstream_stall);
        // The upstream server sends the body of a response. The socket of an HTTP/1 client has the
        // limits for what the client takes, and an HTTP/2 stream has none.
        let response = BodyLimits::default().next_frame(self.upstream_stall);
        Server::new(timers)
            .limits(|_| stream)
            .request(|_| request)
            .response(|_| response)
            .http2_response(|limits| limits.next_poll(self.write_stall).min_poll_rate(write_rate))
            .half_close(self.half_close)
            .close_time(CLOSE_TIME)
    }
}

/// Listeners on one address, which share the clients if there are several, and the address. Port 0
/// takes a free port.
pub(crate) fn listen(
    options: &Options,
    mut address: SocketAddr,
    count: usize,
) -> io::Result<(Vec<std::net::TcpListener>, SocketAddr)> {
    let mut listeners: Vec<std::net::TcpListener> = Vec::new();
    while listeners.len() < count {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A port whose old connections are in `TIME_WAIT` is free.
        socket.set_reuse_address(true)?;
        // Without this, the first shares no port with another server that has set it, too.
        socket.set_reuse_port(!listeners.is_empty())?;
        if let Some(bytes) = options.send_buffer {
            // The connections that it accepts inherit this.
            socket.set_send_buffer_size(bytes)?;
        }
        socket.bind(&address.into())?;
        socket.set_reuse_port(count > 1)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        listeners.push(socket.into());
        address = listeners[0].local_addr()?;
    }
    Ok((listeners, address))
}
