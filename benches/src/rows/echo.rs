//! The cost of timers in an echo server: without timers, with three timers of corewheel on every
//! connection, and with a timeout of the runtime around every read.
//!
//! The server runs on one core and the clients on another. The clients send 64 bytes on every
//! connection and then wait for all responses, a bounded number of times. Nearly all of a round
//! trip is the system's work on sockets, so the processor time of the serving thread says more than
//! the round trips a second.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use corewheel::{Fired, TimerId, TimerService, Timers};
use corewheel_glommio::attach;
use futures_lite::io::ReadFuture;
use futures_lite::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use glommio::GlommioError;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::processor_time;
use crate::Payload;
use crate::report::Entrant;

/// Round trips of all connections.
pub const THROUGHPUT: &str = "an echo server, thousand round trips a second";
/// Processor time of the serving thread for each message.
pub const PROCESSOR: &str = "an echo server, processor time a message, ns";
/// The row of both tables.
pub const ROW: &str = "64 bytes on each connection";

const MESSAGE: usize = 64;
const MESSAGES: usize = 100_000;
const IDLE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The timers of its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum With {
    Nothing,
    /// A shard in the same executor, with three timers for each connection.
    Corewheel,
    /// The runtime, by a timeout around each read.
    OwnTimers,
}

/// The servers that can run here, with a number of connections.
pub fn servers(here: CoreId, there: CoreId, connections: usize, glommio: bool) -> Vec<Entrant> {
    let mut servers = Vec::new();
    for on in ["glommio", "tokio"].into_iter().filter(|on| glommio || *on == "tokio") {
        for (with, name) in [
            (With::Nothing, "no timers"),
            (With::Corewheel, "corewheel"),
            (With::OwnTimers, "its own timeout"),
        ] {
            let serve = if on == "tokio" { on_tokio } else { on_glommio };
            servers.push(Entrant::with_tables(&format!("{on}, {name}"), move || {
                let (tell, address) = channel();
                let server = thread::spawn(move || {
                    core_affinity::set_for_current(there);
                    serve(with, connections, &tell)
                });
                let address = address.recv().expect("the server says where it listens");
                let client = thread::spawn(move || {
                    core_affinity::set_for_current(here);
                    load(address, connections)
                });
                let took = client.join().expect("the clients do not panic");
                let spent = server.join().expect("the server does not panic");
                let messages = (MESSAGES.div_ceil(connections) * connections) as f64;
                let rate = messages / took.as_secs_f64() / 1_000.0;
                [(THROUGHPUT, rate), (PROCESSOR, spent.as_nanos() as f64 / messages)]
                    .map(|(table, value)| ((table.to_owned(), "{}".to_owned()), value))
                    .into()
            }));
        }
    }
    servers
}

fn load(address: SocketAddr, connections: usize) -> Duration {
    let connect = |_| {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("it is a socket");
        stream
    };
    let mut streams: Vec<_> = (0..connections).map(connect).collect();
    let sent = [7; MESSAGE];
    let mut echoed = [0; MESSAGE];
    let start = Instant::now();
    for _ in 0..MESSAGES.div_ceil(connections) {
        for stream in &mut streams {
            stream.write_all(&sent).expect("the server reads");
        }
        for stream in &mut streams {
            stream.read_exact(&mut echoed).expect("the server answers");
            assert_eq!(echoed, sent, "what was sent comes back");
        }
    }
    start.elapsed()
}

/// The timers of a connection, in a server that does not use `ConnTimers`: of the reads, of the
/// writes, and for a heartbeat.
struct Watch(Timers<Payload>, [(TimerId, Duration); 3]);

impl Watch {
    fn new(timers: &Timers<Payload>) -> Self {
        let schedule =
            |delay| (timers.schedule(delay, Payload::MIN).expect("there is room"), delay);
        Self(timers.clone(), [IDLE, IDLE, HEARTBEAT].map(schedule))
    }

    fn reset(&self, some: std::ops::Range<usize>) {
        for (timer, delay) in &self.1[some] {
            let _ = self.0.reset(*timer, *delay);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (timer, _) in self.1 {
            let _ = self.0.cancel(timer);
        }
    }
}

/// A service with one shard, to be attached to the executor that serves.
fn service() -> TimerService<Payload> {
    TimerService::builder().shards(1).start_attached_with().expect("it starts")
}

fn attachment(service: &TimerService<Payload>) -> corewheel::attach::Attachment<Payload> {
    service.attach(service.shards().next().expect("it has one")).expect("it is free")
}

fn deliver(_: Fired<Payload>, _: &Timers<Payload>) {
    unreachable!("no connection is idle for so long");
}

/// Answers a client with what it sends. `limit` is how a read is bounded, if it is.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    watch: Option<Watch>,
    limit: Option<impl AsyncFn(ReadFuture<'_, S>) -> io::Result<usize>>,
) {
    let mut buffer = [0; MESSAGE];
    loop {
        let read = stream.read(&mut buffer);
        let read = match &limit {
            Some(limit) => limit(read).await,
            None => read.await,
        };
        let Ok(read @ 1..) = read else { return };
        if let Some(watch) = &watch {
            watch.reset(0..1);
        }
        stream.write_all(&buffer[..read]).await.expect("the client reads");
        if let Some(watch) = &watch {
            watch.reset(1..3);
        }
    }
}

fn on_tokio(with: With, connections: usize, tell: &Sender<SocketAddr>) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let service = service();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let timers = (with == With::Corewheel)
            .then(|| attachment(&service).attach_tokio(deliver).expect("there is memory"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        tell.send(listener.local_addr().expect("it is bound")).expect("it is waited for");
        let mut echoes = Vec::new();
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.expect("a client");
            stream.set_nodelay(true).expect("it is a socket");
            let limit = (with == With::OwnTimers).then_some(async |read: ReadFuture<'_, _>| {
                tokio::time::timeout(IDLE, read).await.expect("it is not idle")
            });
            let watch = timers.as_ref().map(Watch::new);
            echoes.push(tokio::task::spawn_local(echo(stream.compat(), watch, limit)));
        }
        let start = processor_time();
        for echo in echoes {
            echo.await.expect("it does not panic");
        }
        processor_time().saturating_sub(start)
    })
}

fn on_glommio(with: With, connections: usize, tell: &Sender<SocketAddr>) -> Duration {
    let executor = glommio::LocalExecutorBuilder::default().make().expect("an executor");
    let (service, tell) = (service(), tell.clone());
    let kept = std::rc::Rc::new(service);
    let service = std::rc::Rc::clone(&kept);
    executor.run(async move {
        let timers = (with == With::Corewheel)
            .then(|| attach(attachment(&service), deliver).expect("there is memory"));
        let listener = glommio::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        tell.send(listener.local_addr().expect("it is bound")).expect("it is waited for");
        let mut echoes = Vec::new();
        for _ in 0..connections {
            let stream = listener.accept().await.expect("a client");
            stream.set_nodelay(true).expect("it is a socket");
            let limit = (with == With::OwnTimers).then_some(async |read: ReadFuture<'_, _>| {
                let read = async { read.await.map_err(GlommioError::<()>::from) };
                Ok(glommio::timer::try_timeout(IDLE, read).await.expect("it is not idle"))
            });
            let watch = timers.as_ref().map(Watch::new);
            echoes.push(glommio::spawn_local(echo(stream, watch, limit)));
        }
        let start = processor_time();
        for echo in echoes {
            echo.await;
        }
        processor_time().saturating_sub(start)
    })
}
