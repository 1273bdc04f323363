//! A server with as many connections as the host allows drains them over ten seconds, while some of
//! them work on requests, and 100,000 other timers come on the same shard.
//!
//! The clients are a process of their own, since a process has a limit of open files. The protocol
//! has requests of one byte `R`, answers `A`, and `G`, by which the server says that it drains: a
//! client sends no request afterwards, and closes the connection when it has its answer. The other
//! timers come twice, without a drain and during one.
//!
//! The exit code is 1 if a connection was not told once, if a request was cut, or if a client has
//! lost one.
//!
//! With `pressure`, there are a million connections without sockets, whose idle times shrink. The
//! exit code is 1 if one of them ends too soon, or stays.
//!
//! ```text
//! cargo run --release -p corewheel-bench --bin drain -- --connections 10000 --window 10s
//! cargo run --release -p corewheel-bench --bin drain -- pressure
//! ```

#![allow(clippy::print_stdout, reason = "it is a command")]

mod others;
mod pressure;

use std::cell::RefCell;
use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use corewheel::conn::Raced;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, Runtime, ShutdownPolicy};
use corewheel::{TimerService, Timers};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::others::{OTHERS, Others};

/// How many open files are left for what is no connection.
const SPARE_FILES: usize = 100;
/// How long the server works on a request, and how long a client rests after the answer.
const WORK: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_millis(100);
/// The columns of the histogram.
const COLUMNS: usize = 10;
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Parser, Debug)]
struct Options {
    /// How many connections there are [default: as many as this process may have files].
    #[arg(long)]
    connections: Option<usize>,

    /// How many of the clients send requests.
    #[arg(long, default_value_t = 1_000)]
    live: usize,

    /// The window of the drain.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    window: Duration,

    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// The clients, which the server starts.
    Clients { address: SocketAddr, count: usize, live: usize },
    /// A million connections under pressure, without sockets.
    Pressure {
        /// How many connections there are.
        #[arg(long, default_value_t = 1_000_000)]
        connections: u32,

        /// The connections belong to tasks on any thread, and not to the shard.
        #[arg(long)]
        any_thread: bool,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.part {
        Some(Part::Clients { address, count, live }) => clients(address, count, live),
        Some(Part::Pressure { connections, any_thread: false }) => {
            pressure::on_shard(connections, options.window)
        }
        Some(Part::Pressure { connections, any_thread: true }) => {
            pressure::on_any_thread(connections, options.window)
        }
        None => serve_and_drain(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("drain: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the server has seen.
#[derive(Default)]
struct Seen {
    accepted: usize,
    open: usize,
    /// When each connection was told.
    told: Vec<Instant>,
    answered: usize,
    cut: usize,
}

#[derive(Default)]
struct Server {
    seen: RefCell<Seen>,
    changed: Notify,
}

fn serve_and_drain(options: &Options) -> Result<bool, Box<dyn Error>> {
    let files = raise_file_limit();
    let count = options.connections.unwrap_or(files.saturating_sub(SPARE_FILES));
    let live = options.live.min(count);
    let builder = TimerService::builder().name("drain").shards(1).runtime(Runtime::Tokio);
    let service = builder.start()?;
    let shard = service.shard_for(0);
    let (sender, address) = mpsc::channel();
    let window = options.window;
    let (begin, drain_begins) = tokio::sync::oneshot::channel();
    let (ready, all_connected) = mpsc::channel();
    let served = service.spawn_on(shard, move |timers: Timers| async move {
        let served = serve(&timers, count, window, (&sender, &ready), drain_begins).await;
        served.map_err(|error| error.to_string())
    })?;
    let address = address.recv_timeout(PATIENCE)?;
    let arguments = ["clients".to_owned(), address.to_string(), count.to_string()];
    let mut clients = Command::new(std::env::current_exe()?);
    clients.args(arguments).arg(live.to_string()).stdout(Stdio::piped());
    let mut clients = clients.spawn()?;
    all_connected.recv_timeout(PATIENCE)?;
    // The other timers come for one window before the drain.
    std::thread::sleep(window);
    let start = Instant::now();
    let _ = begin.send(());
    service.drain(window);
    let (seen, before, during) = served.wait()??;
    let mut said = String::new();
    clients.stdout.take().ok_or("the clients say nothing")?.read_to_string(&mut said)?;
    let is_calm = clients.wait()?.success();
    service.shutdown(ShutdownPolicy::Return)?;
    println!("{count} connections, of which {live} send requests, drained over {window:?}");
    let told = histogram(&seen.told, start, window);
    println!("told in each tenth of the window: {told:?}");
    println!("requests answered: {}, cut: {}; {}", seen.answered, seen.cut, said.trim());
    println!("lateness of {OTHERS} other timers in the window before: {before}");
    println!("lateness of {OTHERS} other timers during the drain: {during}");
    Ok(is_calm && seen.cut == 0 && seen.told.len() == count)
}

/// Accepts connections until there are enough, and serves them until all of them have ended.
/// Returns what it has seen, and the lateness of the other timers before the drain and during it.
async fn serve(
    timers: &Timers,
    count: usize,
    window: Duration,
    (address, ready): (&mpsc::Sender<SocketAddr>, &mpsc::Sender<()>),
    drain_begins: tokio::sync::oneshot::Receiver<()>,
) -> Result<(Seen, String, String), Box<dyn Error>> {
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    address.send(listener.local_addr()?)?;
    let server = Rc::new(Server::default());
    for _ in 0..count {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (server, timers) = (Rc::clone(&server), timers.clone());
        {
            let mut seen = server.seen.borrow_mut();
            seen.accepted += 1;
            seen.open += 1;
        }
        tokio::task::spawn_local(async move {
            // A connection without deadlines is not told, which the counts show.
            if let Ok(conn) = timers.connection(ConnLimits::default().read_idle(PATIENCE)) {
                let _ = connection(stream, &conn, &timers, &server).await;
            }
            server.seen.borrow_mut().open -= 1;
            server.changed.notify_one();
        });
    }
    drop(listener);
    let before = Others::schedule(timers, window);
    ready.send(())?;
    drain_begins.await?;
    let during = Others::schedule(timers, window);
    let end = timers.now() + window + Duration::from_secs(1);
    while server.seen.borrow().open > 0 {
        server.changed.notified().await;
    }
    timers.sleep(end).await?;
    Ok((server.seen.take(), before.lateness(), during.lateness()))
}

/// Serves one connection until its client leaves, or until it is cut.
async fn connection(
    mut stream: TcpStream,
    conn: &ConnTimers,
    timers: &Timers,
    server: &Server,
) -> std::io::Result<()> {
    let mut byte = [0];
    loop {
        let read = conn.race(pin!(stream.read(&mut byte))).await;
        match read {
            Raced::Done(read) => {
                if read? == 0 {
                    return Ok(());
                }
                conn.touch_read();
                let in_flight = conn.begin_request();
                let mut work = pin!(timers.sleep(WORK));
                while let Raced::Event(event) = conn.race(&mut work).await {
                    if event.kind != DeadlineKind::MaxAge {
                        server.seen.borrow_mut().cut += 1;
                        return Ok(());
                    }
                    tell(&mut stream, server).await?;
                }
                drop(in_flight);
                stream.write_all(b"A").await?;
                conn.touch_write();
                server.seen.borrow_mut().answered += 1;
            }
            Raced::Event(event) if event.kind == DeadlineKind::MaxAge => {
                tell(&mut stream, server).await?;
            }
            Raced::Event(_) | Raced::Closed => return Ok(()),
        }
    }
}

async fn tell(stream: &mut TcpStream, server: &Server) -> std::io::Result<()> {
    server.seen.borrow_mut().told.push(Instant::now());
    stream.write_all(b"G").await
}

/// How many of these moments lie in each tenth of the window. The last column has the later ones.
fn histogram(told: &[Instant], start: Instant, window: Duration) -> [usize; COLUMNS] {
    let mut columns = [0; COLUMNS];
    for at in told {
        let after = at.saturating_duration_since(start) * COLUMNS as u32;
        let column = after.as_nanos() / window.as_nanos().max(1);
        columns[(column as usize).min(COLUMNS - 1)] += 1;
    }
    columns
}

/// Connects all clients, and returns whether no request was lost.
fn clients(address: SocketAddr, count: usize, live: usize) -> Result<bool, Box<dyn Error>> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut clients = JoinSet::new();
        for number in 0..count {
            // An address has some 28,000 ports for clients.
            let host = [127, 0, 0, 1 + (number / 20_000) as u8];
            let stream = TcpStream::connect(SocketAddr::from((host, address.port()))).await?;
            stream.set_nodelay(true)?;
            clients.spawn(client(stream, number < live));
        }
        let lost = clients.join_all().await.into_iter().filter(|is_lost| *is_lost).count();
        println!("requests that clients have lost: {lost}");
        Ok(lost == 0)
    })
}

/// One client. Returns whether it has lost a request.
async fn client(mut stream: TcpStream, is_live: bool) -> bool {
    let mut is_draining = false;
    loop {
        if !is_live {
            // It only waits for the end.
            return !stream.read_u8().await.is_ok_and(|byte| byte == b'G');
        }
        if is_draining {
            return false;
        }
        if stream.write_all(b"R").await.is_err() {
            return true;
        }
        loop {
            match stream.read_u8().await {
                Ok(b'A') => break,
                Ok(_) => is_draining = true,
                Err(_) => return true,
            }
        }
        if !is_draining {
            let said = tokio::time::timeout(REST, stream.read_u8()).await;
            is_draining = said.is_ok();
        }
    }
}

/// Raises the limit of open files to the greatest that the host allows, and returns it.
fn raise_file_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be raised stays as it is.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.map_or(100_000, |files| files as usize)
}
