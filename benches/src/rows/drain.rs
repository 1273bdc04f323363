//! A server with as many connections as the host allows drains them over some seconds, while some
//! of them work on requests, and 100,000 other timers come on the same shard. And a million
//! connections without sockets, whose idle times shrink under pressure.
//!
//! The clients are a process of their own, since a process has a limit of open files. The protocol
//! has requests of one byte `R`, answers `A`, and `G`, by which the server says that it drains: a
//! client sends no request afterwards, and closes the connection when it has its answer. The other
//! timers come twice, without a drain and during one.

use std::cell::{Cell, RefCell};
use std::env::current_exe;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::conn::Raced;
use corewheel::settings::Scale;
use corewheel::{ConnLimits, ConnTimers, DeadlineKind, RefusedKind, Runtime};
use corewheel::{ShutdownPolicy, TimerService, Timers};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::HOUR;
use crate::report::{Report, Verdict};

/// The argument by which a process of its own is the clients, before the address and two numbers.
pub const ARGUMENT: &str = "drained-clients";
/// How many open files are left for what is no connection.
const SPARE_FILES: usize = 100;
/// How long the server works on a request, and how long a client rests after the answer.
const WORK: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_mins(1);
/// How many other timers come in each window.
const OTHERS: u32 = 100_000;

type Refusable<T> = std::result::Result<T, RefusedKind>;
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How late each of the other timers of a window came.
type Late = Rc<RefCell<Vec<Duration>>>;

/// Schedules the other timers, evenly spread over the window.
fn others(timers: &Timers, window: Duration) -> Late {
    let all: Late = Rc::default();
    let start = timers.now();
    for number in 0..OTHERS {
        let (due, all) = (start + window * number / OTHERS, Rc::clone(&all));
        let note = move |timers: &Timers| {
            all.borrow_mut().push(timers.now().saturating_duration_since(due));
        };
        // A shard without room shows in the count.
        drop(timers.schedule_fn(due, note));
    }
    all
}

/// A report that begins with a line about what was measured.
fn report(text: String) -> Report {
    Report { text: text + "\n", ..Report::default() }
}

/// Adds quantiles of the lateness. A deadline is rounded up to a tick of a millisecond.
fn add_lateness(report: &mut Report, when: &str, mut late: Vec<Duration>) {
    late.sort_unstable();
    let table = "lateness of 100,000 other timers, ms";
    for (row, of_1000) in [("p50", 500), ("p99", 990), ("p99.9", 999), ("greatest", 1_000)] {
        let at = (late.len() * of_1000 / 1_000).min(late.len() - 1);
        report.push(table, row, 0, when, late[at].as_secs_f64() * 1e3);
    }
    let all = late.len() == OTHERS as usize;
    check(report, &format!("other timers that came {when}"), late.len() as f64, all);
}

/// Adds a figure that has to be so.
fn check(report: &mut Report, target: &str, measured: f64, met: bool) {
    report.targets.push(Verdict { target: target.to_owned(), measured, met });
}

/// What the server has seen.
#[derive(Default)]
struct Server {
    open: Cell<usize>,
    /// When each connection was told.
    told: RefCell<Vec<Instant>>,
    answered: Cell<usize>,
    cut: Cell<usize>,
    changed: Notify,
}

/// Drains so many connections, of which `live` send requests.
///
/// # Errors
///
/// The host does not allow so many, or the clients cannot be started.
pub fn drain(connections: Option<usize>, live: usize, window: Duration) -> Result<Report> {
    let count = connections.unwrap_or(raise_file_limit().saturating_sub(SPARE_FILES));
    raise_file_limit();
    let builder = TimerService::builder().name("drain").shards(1).runtime(Runtime::Tokio);
    let service = builder.start()?;
    let (sender, address) = mpsc::channel();
    let (begin, drain_begins) = oneshot::channel();
    let (ready, all_connected) = mpsc::channel();
    let served = service.spawn_on(service.shard_for(0), move |timers: Timers| async move {
        let served = serve(&timers, count, window, (&sender, &ready), drain_begins).await;
        served.map_err(|error| error.to_string())
    })?;
    let address = address.recv_timeout(PATIENCE)?.to_string();
    let arguments = [ARGUMENT.to_owned(), address, count.to_string(), live.min(count).to_string()];
    let mut clients = Command::new(current_exe()?).args(arguments).spawn()?;
    all_connected.recv_timeout(PATIENCE)?;
    // The other timers come for one window before the drain.
    std::thread::sleep(window);
    let start = Instant::now();
    let _ = begin.send(());
    service.drain(window);
    let (told, [answered, cut], [before, during]) = served.wait()??;
    let lost = clients.wait()?.code().unwrap_or(-1);
    service.shutdown(ShutdownPolicy::Return)?;
    let mut tenths = [0; 10];
    for at in &told {
        let tenth = at.saturating_duration_since(start) * 10;
        tenths[((tenth.as_nanos() / window.as_nanos().max(1)) as usize).min(9)] += 1;
    }
    let text = format!("{count} connections, {live} with requests, drained over {window:?}");
    let mut report = report(text);
    let mut push = |row, value| report.push("a drain", row, count, "corewheel", value);
    for told in tenths {
        push("told in a tenth of the window", f64::from(told));
    }
    push("requests answered", answered as f64);
    add_lateness(&mut report, "before the drain", before);
    add_lateness(&mut report, "during it", during);
    check(&mut report, "connections told", told.len() as f64, told.len() == count);
    check(&mut report, "requests cut", cut as f64, cut == 0);
    check(&mut report, "clients that lost a request, 100 at most", f64::from(lost), lost == 0);
    Ok(report)
}

/// Accepts connections until there are enough, and serves them until all of them have ended.
/// Returns when each was told, the requests answered and cut, and the lateness of the other timers
/// before the drain and during it.
async fn serve(
    timers: &Timers,
    count: usize,
    window: Duration,
    (address, ready): (&mpsc::Sender<SocketAddr>, &mpsc::Sender<()>),
    drain_begins: oneshot::Receiver<()>,
) -> Result<(Vec<Instant>, [usize; 2], [Vec<Duration>; 2])> {
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    address.send(listener.local_addr()?)?;
    let server = Rc::new(Server::default());
    for _ in 0..count {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (server, timers) = (Rc::clone(&server), timers.clone());
        server.open.update(|open| open + 1);
        tokio::task::spawn_local(async move {
            // A connection without deadlines is not told, which the counts show.
            if let Ok(conn) = timers.connection(ConnLimits::default().read_idle(PATIENCE)) {
                let _ = connection(stream, &conn, &timers, &server).await;
            }
            server.open.update(|open| open - 1);
            server.changed.notify_one();
        });
    }
    drop(listener);
    let before = others(timers, window);
    ready.send(())?;
    drain_begins.await?;
    let during = others(timers, window);
    let end = timers.now() + window + Duration::from_secs(1);
    while server.open.get() > 0 {
        server.changed.notified().await;
    }
    timers.sleep(end).await?;
    let counts = [server.answered.get(), server.cut.get()];
    Ok((server.told.take(), counts, [before.take(), during.take()]))
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
        match conn.race(pin!(stream.read(&mut byte))).await {
            Raced::Done(Ok(1)) => {
                conn.touch_read();
                let in_flight = conn.begin_request();
                let mut work = pin!(timers.sleep(WORK));
                while let Raced::Event(event) = conn.race(&mut work).await {
                    if event.kind != DeadlineKind::MaxAge {
                        server.cut.update(|cut| cut + 1);
                        return Ok(());
                    }
                    tell(&mut stream, server).await?;
                }
                drop(in_flight);
                stream.write_all(b"A").await?;
                conn.touch_write();
                server.answered.update(|answered| answered + 1);
            }
            Raced::Event(event) if event.kind == DeadlineKind::MaxAge => {
                tell(&mut stream, server).await?;
            }
            _ => return Ok(()),
        }
    }
}

async fn tell(stream: &mut TcpStream, server: &Server) -> std::io::Result<()> {
    server.told.borrow_mut().push(Instant::now());
    stream.write_all(b"G").await
}

/// The process of the clients: connects all of them, and returns how many have lost a request.
///
/// # Errors
///
/// They cannot connect.
pub fn clients(address: SocketAddr, count: usize, live: usize) -> Result<usize> {
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
        Ok(clients.join_all().await.into_iter().filter(|is_lost| *is_lost).count())
    })
}

/// One client. Returns whether it has lost a request.
async fn client(mut stream: TcpStream, is_live: bool) -> bool {
    if !is_live {
        // It only waits for the end.
        return !stream.read_u8().await.is_ok_and(|byte| byte == b'G');
    }
    let mut is_draining = false;
    while !is_draining {
        // An answer that is not read, as the request was not sent, is none.
        let _ = stream.write_all(b"R").await;
        loop {
            match stream.read_u8().await {
                Ok(b'A') => break,
                Ok(_) => is_draining = true,
                Err(_) => return true,
            }
        }
        if !is_draining {
            is_draining = tokio::time::timeout(REST, stream.read_u8()).await.is_ok();
        }
    }
    false
}

/// Raises the limit of open files to the greatest that the host allows, and returns it.
fn raise_file_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be raised stays as it is.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.map_or(100_000, |files| files as usize)
}

/// Idle connections in three windows: without pressure; with pressure that shortens each idle time
/// and ends no connection; and with the greatest pressure, which ends them all. They live on the
/// shard, or belong to tasks on a multi-thread runtime.
///
/// # Errors
///
/// The service or the runtime cannot be started, or a timer is refused.
pub fn pressure(count: u32, is_any_thread: bool, window: Duration) -> Result<Report> {
    let limits = ConnLimits::default().read_idle(HOUR).read_idle_least(Duration::from_secs(1));
    let builder = TimerService::builder().name("pressure").shards(1).runtime(Runtime::Tokio);
    let service = builder.capacity(count + 2 * OTHERS).start()?;
    let ended: Arc<AtomicU32> = Arc::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    for _ in 0..if is_any_thread { count } else { 0 } {
        let (conn, ended) = (service.handle().connection(limits), Arc::clone(&ended));
        runtime.spawn(async move {
            // A connection without a timer does not end, which the count shows.
            if let Ok(Some(_)) = conn.next().await {
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let seen = service.spawn_on(service.shard_for(0), move |timers: Timers| async move {
        let open = |_| {
            let (conn, ended) = (timers.connection(limits)?, Arc::clone(&ended));
            conn.on_event(move |conn, _| {
                conn.close();
                ended.fetch_add(1, Ordering::Relaxed);
            });
            Ok(conn)
        };
        let on_shard = if is_any_thread { 0 } else { count };
        let _kept = (0..on_shard).map(open).collect::<Refusable<Vec<ConnTimers>>>()?;
        windows(&timers, count, window, || ended.load(Ordering::Relaxed)).await
    })?;
    let (late, few, all, took) = seen.wait()??;
    let which = if is_any_thread { "of tasks on any thread" } else { "on the shard" };
    let mut report = report(format!("{count} idle connections {which}, windows of {window:?}"));
    let whens = ["without pressure", "while idle times shrink", "while all end"];
    for (when, late) in whens.into_iter().zip(late) {
        add_lateness(&mut report, when, late);
    }
    let row = "all connections ended within, s";
    report.push("pressure", row, count as usize, "corewheel", took.as_secs_f64());
    check(&mut report, "connections ended while idle times shrink", few.into(), few == 0);
    check(&mut report, "connections ended by the greatest pressure", all.into(), all == count);
    Ok(report)
}

/// The lateness of the other timers in each window, how many connections had ended after the second
/// window and after the last, and how long the last took to end them.
async fn windows(
    timers: &Timers,
    count: u32,
    window: Duration,
    ended: impl Fn() -> u32,
) -> Refusable<(Vec<Vec<Duration>>, u32, u32, Duration)> {
    let half = Scale::new(0.5).expect("it is between zero and one");
    let (mut late, mut few, mut took) = (Vec::new(), 0, Duration::ZERO);
    for scale in [None, Some(half), Some(Scale::ZERO)] {
        let others = others(timers, window);
        let end = timers.now() + window;
        if let Some(scale) = scale {
            timers.sleep(window / 4).await?;
            few = ended();
            timers.set_scale(scale);
        }
        if scale == Some(Scale::ZERO) {
            let began = timers.now();
            while ended() < count && took < PATIENCE {
                timers.sleep(Duration::from_millis(10)).await?;
                took = timers.now() - began;
            }
        }
        timers.sleep(end + Duration::from_secs(1)).await?;
        late.push(others.take());
    }
    Ok((late, few, ended(), took))
}
