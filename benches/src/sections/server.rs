//! The cost of timers in an echo server: without timers, with three timers of corewheel on every
//! connection, and with a timeout of the runtime around every read.
//!
//! The server runs on one core and the clients on another. The clients send 64 bytes on every
//! connection and then wait for all responses, a bounded number of times. Nearly all of a round
//! trip is the system's work on sockets, so the processor time of the serving thread says more than
//! the round trips a second.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use corewheel::{Fired, TimerId, TimerService, Timers};

use crate::Payload;
use crate::figure::Figure;

/// Round trips of all connections, in thousands a second.
pub const THROUGHPUT: &str = "echo server, round trips";
/// Processor time of the serving thread for each message.
pub const PROCESSOR: &str = "echo server, processor time a message";

const MESSAGE: usize = 64;
const MESSAGES: usize = 100_000;
const IDLE: Duration = Duration::from_secs(30);
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The runtime of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// A glommio executor.
    Glommio,
    /// A current-thread tokio runtime.
    Tokio,
}

/// The timers of its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum With {
    /// No timers.
    Nothing,
    /// A shard in the same executor, with three timers for each connection.
    Corewheel,
    /// The runtime, by a timeout around each read.
    OwnTimers,
}

const ENTRANTS: [(On, With, &str); 6] = [
    (On::Glommio, With::Nothing, "glommio, no timers"),
    (On::Glommio, With::Corewheel, "glommio, corewheel"),
    (On::Glommio, With::OwnTimers, "glommio, its own timeout"),
    (On::Tokio, With::Nothing, "tokio, no timers"),
    (On::Tokio, With::Corewheel, "tokio, corewheel"),
    (On::Tokio, With::OwnTimers, "tokio, its own timeout"),
];

/// Both figures of all entrants that can run here, with a number of connections.
pub fn measure(cores: &[CoreId], rounds: usize, connections: usize, glommio: bool) -> Vec<Figure> {
    let can_run = |on: On| glommio || on != On::Glommio;
    let mut figures: Vec<_> = ENTRANTS
        .into_iter()
        .filter(|(on, ..)| can_run(*on))
        .map(|(on, with, name)| {
            let throughput = Figure::new(THROUGHPUT, connections, name, "k/s");
            (on, with, throughput, Figure::new(PROCESSOR, connections, name, "ns"))
        })
        .collect();
    for _ in 0..rounds {
        for (on, with, throughput, processor) in &mut figures {
            let (rate, nanos) = run(*on, *with, connections, cores);
            throughput.push(rate / 1_000.0);
            processor.push(nanos);
        }
    }
    let (mut first, second): (Vec<_>, Vec<_>) =
        figures.into_iter().map(|(_, _, throughput, processor)| (throughput, processor)).unzip();
    first.extend(second);
    first
}

/// Round trips a second, and the serving thread's nanoseconds for each.
fn run(on: On, with: With, connections: usize, cores: &[CoreId]) -> (f64, f64) {
    let (here, there) = (cores[0], cores[1 % cores.len()]);
    let (tell, address) = mpsc::channel();
    let server = thread::spawn(move || {
        core_affinity::set_for_current(there);
        match on {
            On::Glommio => on_glommio::serve(with, connections, &tell),
            On::Tokio => on_tokio::serve(with, connections, &tell),
        }
    });
    let address = address.recv().expect("the server says where it listens");
    let client = thread::spawn(move || {
        core_affinity::set_for_current(here);
        load(address, connections)
    });
    let took = client.join().expect("the clients do not panic");
    let processor = server.join().expect("the server does not panic");
    let messages = messages(connections) as f64;
    (messages / took.as_secs_f64(), processor.as_nanos() as f64 / messages)
}

fn messages(connections: usize) -> usize {
    MESSAGES.div_ceil(connections) * connections
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

/// The timers of a connection, in a server that does not use `ConnTimers`.
struct Watch {
    timers: Timers<Payload>,
    read_idle: TimerId,
    write_idle: TimerId,
    heartbeat: TimerId,
}

impl Watch {
    fn new(timers: &Timers<Payload>) -> Self {
        let schedule = |delay| timers.schedule(delay, Payload::MIN).expect("there is room");
        Self {
            read_idle: schedule(IDLE),
            write_idle: schedule(IDLE),
            heartbeat: schedule(HEARTBEAT),
            timers: timers.clone(),
        }
    }

    fn has_read(&self) {
        let _ = self.timers.reset(self.read_idle, IDLE);
    }

    fn has_written(&self) {
        let _ = self.timers.reset(self.write_idle, IDLE);
        let _ = self.timers.reset(self.heartbeat, HEARTBEAT);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for timer in [self.read_idle, self.write_idle, self.heartbeat] {
            let _ = self.timers.cancel(timer);
        }
    }
}

/// A service with one shard, to be attached to the executor that serves.
fn service(with: With) -> Option<TimerService<Payload>> {
    (with == With::Corewheel)
        .then(|| TimerService::builder().shards(1).start_attached_with().expect("it starts"))
}

fn deliver(_: Fired<Payload>, _: &Timers<Payload>) {
    unreachable!("no connection is idle for so long");
}

fn attachment(service: &TimerService<Payload>) -> corewheel::attach::Attachment<Payload> {
    let shard = service.shards().next().expect("it has one");
    service.attach(shard).expect("it is free")
}

mod on_tokio {
    use std::net::SocketAddr;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::{IDLE, MESSAGE, Watch, With, attachment, deliver, service};
    use crate::sections::processor_time;

    pub(super) fn serve(
        with: With,
        connections: usize,
        tell: &mpsc::Sender<SocketAddr>,
    ) -> Duration {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let service = service(with);
        LocalSet::new().block_on(&runtime, async {
            let timers = service
                .as_ref()
                .map(|service| attachment(service).attach_tokio(deliver).expect("there is memory"));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            tell.send(listener.local_addr().expect("it is bound")).expect("it is waited for");
            let mut echoes = Vec::new();
            for _ in 0..connections {
                let (stream, _) = listener.accept().await.expect("a client");
                stream.set_nodelay(true).expect("it is a socket");
                let watch = timers.as_ref().map(Watch::new);
                echoes.push(tokio::task::spawn_local(echo(stream, with, watch)));
            }
            let start = processor_time();
            for echo in echoes {
                echo.await.expect("it does not panic");
            }
            processor_time().saturating_sub(start)
        })
    }

    async fn echo(mut stream: TcpStream, with: With, watch: Option<Watch>) {
        let mut buffer = [0; MESSAGE];
        loop {
            let read = stream.read(&mut buffer);
            let read = if with == With::OwnTimers {
                tokio::time::timeout(IDLE, read).await.expect("it is not idle")
            } else {
                read.await
            };
            let Ok(1..) = read else { return };
            watch.iter().for_each(Watch::has_read);
            stream.write_all(&buffer[..read.unwrap_or(0)]).await.expect("the client reads");
            watch.iter().for_each(Watch::has_written);
        }
    }
}

mod on_glommio {
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::mpsc;
    use std::time::Duration;

    use corewheel_glommio::AttachGlommio;
    use futures_lite::{AsyncReadExt, AsyncWriteExt};
    use glommio::net::{TcpListener, TcpStream};
    use glommio::{GlommioError, LocalExecutorBuilder};

    use super::{IDLE, MESSAGE, Watch, With, attachment, deliver, service};
    use crate::sections::processor_time;

    pub(super) fn serve(
        with: With,
        connections: usize,
        tell: &mpsc::Sender<SocketAddr>,
    ) -> Duration {
        let executor = LocalExecutorBuilder::default().make().expect("an executor");
        let service = Rc::new(service(with));
        let kept = Rc::clone(&service);
        let spent = executor.run(async move {
            let timers = service.as_ref().as_ref().map(|service| {
                attachment(service).attach_glommio(deliver).expect("there is memory")
            });
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            tell.send(listener.local_addr().expect("it is bound")).expect("it is waited for");
            let mut echoes = Vec::new();
            for _ in 0..connections {
                let stream = listener.accept().await.expect("a client");
                stream.set_nodelay(true).expect("it is a socket");
                let watch = timers.as_ref().map(Watch::new);
                echoes.push(glommio::spawn_local(echo(stream, with, watch)));
            }
            let start = processor_time();
            for echo in echoes {
                echo.await;
            }
            processor_time().saturating_sub(start)
        });
        drop(kept);
        spent
    }

    async fn echo(mut stream: TcpStream, with: With, watch: Option<Watch>) {
        let mut buffer = [0; MESSAGE];
        loop {
            let read = async { stream.read(&mut buffer).await.map_err(GlommioError::from) };
            let read: Result<usize, GlommioError<()>> = if with == With::OwnTimers {
                glommio::timer::try_timeout(IDLE, read).await
            } else {
                read.await
            };
            let Ok(read @ 1..) = read else { return };
            watch.iter().for_each(Watch::has_read);
            stream.write_all(&buffer[..read]).await.expect("the client reads");
            watch.iter().for_each(Watch::has_written);
        }
    }
}
