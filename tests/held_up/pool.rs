//! The pool of hyper-util's client in a runtime that is held up.
//!
//! The keep-alive of HTTP/2 judges a server by what it has sent, so a server whose PONG lies in the
//! socket keeps its connection. The pool's idle time judges no server: the pool measures only
//! connections that it holds itself, so none that a response is awaited on.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_http::hyper::HyperTimer;
use http_body_util::{BodyExt, Empty};
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use corewheel_test_support::held::{Flavour, Server};
use corewheel_test_support::wait_until;

/// The limit of the first try. Each further one doubles it.
const LIMIT: Duration = Duration::from_millis(400);
const TRIES: u32 = 8;
const PATIENCE: Duration = Duration::from_mins(2);

/// A client in a runtime of its own, which makes a request each time that it is told to, and says
/// whether it has got a response.
struct Pooled {
    server: Server,
    tell: tokio::sync::mpsc::UnboundedSender<()>,
    answered: mpsc::Receiver<bool>,
}

impl Pooled {
    /// Has a PING sent after half of the limit, which its answer has.
    fn new(flavour: Flavour, address: SocketAddr, limit: Duration) -> Self {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (sender, answered) = mpsc::channel();
        let mut builder = flavour.builder();
        // A task that a timer wakes runs before the runtime looks at its sockets.
        builder.event_interval(10_000).global_queue_interval(1);
        let server = Server::run(flavour, builder, async move |timers| {
            let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new())
                .http2_only(true)
                .timer(HyperTimer::new(timers))
                .pool_timer(HyperTimer::new(timers))
                .pool_idle_timeout(None::<Duration>)
                .http2_keep_alive_while_idle(true)
                .http2_keep_alive_interval(limit / 2)
                .http2_keep_alive_timeout(limit)
                .build(HttpConnector::new());
            let uri: Uri = format!("http://{address}/").parse().unwrap();
            while told.recv().await.is_some() {
                let (client, uri, sender) = (client.clone(), uri.clone(), sender.clone());
                tokio::spawn(async move {
                    let answer = async { client.get(uri).await.ok()?.collect().await.ok() };
                    let _ = sender.send(answer.await.is_some());
                });
            }
        });
        Self { server, tell, answered }
    }

    fn request(&self) {
        self.tell.send(()).unwrap();
    }
}

/// A frame of HTTP/2: its type, its flags, its stream and its payload.
type Frame = (u8, u8, u32, Vec<u8>);

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
/// `ACK` of SETTINGS and PING, `END_STREAM` of HEADERS.
const FLAG: u8 = 1;

fn read_frame(socket: &mut TcpStream) -> io::Result<Frame> {
    let mut head = [0; 9];
    socket.read_exact(&mut head)?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    socket.read_exact(&mut payload)?;
    Ok((kind, flags, u32::from_be_bytes(stream), payload))
}

fn write_frame(socket: &mut TcpStream, (kind, flags, stream, payload): Frame) -> io::Result<()> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    socket.write_all(&[length, &[kind, flags], &stream.to_be_bytes(), &payload].concat())
}

/// Answers requests, and returns the next PING that is no answer.
fn serve_until_ping(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    loop {
        let (kind, flags, stream, payload) = read_frame(socket)?;
        match kind {
            SETTINGS if flags & FLAG == 0 => write_frame(socket, (SETTINGS, FLAG, 0, Vec::new()))?,
            // The status 200, which ends the stream, too.
            HEADERS => write_frame(socket, (HEADERS, 4 | FLAG, stream, vec![0x88]))?,
            PING if flags & FLAG == 0 => return Ok(payload),
            _ => {}
        }
    }
}

/// Whether a client has kept its connection. `None` if the answer to its PING was late.
fn keeps_connection(flavour: Flavour, limit: Duration) -> Option<bool> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = Pooled::new(flavour, listener.local_addr().unwrap(), limit);
    // The PING is sent later.
    let begin = Instant::now();
    client.request();
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.read_exact(&mut [0; 24]).unwrap();
    write_frame(&mut socket, (SETTINGS, 0, 0, Vec::new())).unwrap();
    let ping = serve_until_ping(&mut socket).unwrap();
    assert!(client.answered.recv_timeout(PATIENCE).unwrap());
    let released = client.server.block();
    write_frame(&mut socket, (PING, FLAG, 0, ping)).ok()?;
    let is_in_time = begin.elapsed() < limit;
    thread::sleep(limit + limit / 2);
    drop(released);
    if !is_in_time {
        return None;
    }
    client.request();
    // It comes over this connection, unless that was closed.
    let serving = thread::spawn(move || {
        while let Ok(ping) = serve_until_ping(&mut socket) {
            if write_frame(&mut socket, (PING, FLAG, 0, ping)).is_err() {
                return;
            }
        }
    });
    listener.set_nonblocking(true).unwrap();
    let mut is_kept = None;
    wait_until("the client sends a request", || {
        let answered = client.answered.try_recv().ok();
        is_kept = answered.or_else(|| listener.accept().ok().map(|_| false));
        is_kept.is_some()
    });
    drop(client);
    serving.join().unwrap();
    is_kept
}

#[test]
fn pooled_connection_is_kept_whose_server_has_answered_a_ping_in_time() {
    for flavour in Flavour::ALL {
        let is_kept =
            (0..TRIES).find_map(|tries| keeps_connection(flavour, LIMIT * 2_u32.pow(tries)));
        assert!(is_kept.expect("this machine is too busy to answer in time"), "{flavour:?}");
    }
}
