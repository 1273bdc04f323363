//! Clients that take a response slowly, or not at all, against each server of the repository, with
//! its defaults.
//!
//! ```sh
//! cargo build --release -p corewheel-proxy -p corewheel-resp-cache -p idle_server
//! cargo run --release -p corewheel-readers -- --programs target/release
//! ```
//!
//! prints a table, and fails if a client that takes was cut, or one that does not was kept. A
//! server is looked at from outside, by the system's table of sockets: a client with a full receive
//! buffer does not see that it was cut. No buffer of a socket is set here: the system sizes each.
//!
//! It takes two and a half minutes. `--seconds` sets another time, and names choose servers. In a
//! network namespace of its own, the device `lo` may have the MTU of a real network:
//!
//! ```sh
//! unshare --user --map-root-user --net sh -c 'ip link set lo up mtu 1500 && readers ...'
//! ```
#![allow(clippy::print_stdout)]

mod clients;
mod servers;
mod sockets;

use std::error::Error;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use self::clients::{Pace, Protocol};
use self::servers::{Programs, Server};
use self::sockets::Sockets;

/// How often the table of sockets is read.
const LOOK: Duration = Duration::from_millis(250);

/// The most that the system may hold for a client that never reads, in bytes: the bound, and what
/// it has sent before the client's own system was full.
const HELD_MAX: u64 = 1 << 20;

/// How many of the clients that never read one server has.
const NEVER: usize = 30;

/// What a server has to do with a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Kept,
    /// Cut, and gone from the system, within this time.
    Ended(Duration),
    /// Told by a GOAWAY within this time, after which the server sends no more.
    Told(Duration),
    /// Its kernel acknowledges nothing for longer than any limit that also finds a silent client.
    Either,
}

/// What the system's table of sockets showed of the server's side of a connection.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    /// When the socket was established no more.
    left: Option<Duration>,
    /// When the system knew of it no more.
    gone: Option<Duration>,
    /// The most bytes that the system held for it.
    held: u64,
}

struct Client {
    server: &'static str,
    pace: Pace,
    expected: Expected,
    /// The ports of the server's and of the client's end.
    ports: (u16, u16),
    seen: Seen,
    /// Why the client has ended.
    error: Option<String>,
}

impl Client {
    fn verdict(&self) -> bool {
        if self.pace == Pace::Stops(0) && self.seen.held > HELD_MAX {
            return false;
        }
        match self.expected {
            Expected::Kept => self.seen.left.is_none(),
            Expected::Ended(within) => self.seen.gone.is_some_and(|gone| gone <= within),
            Expected::Told(within) => self.seen.left.is_some_and(|left| left <= within),
            Expected::Either => true,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { left, gone, held } = self.seen;
        write!(f, "{:<18} {:<34} {:>6} kB  ", self.server, self.pace.to_string(), held / 1_000)?;
        let at = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        match (left, gone) {
            (None, _) => write!(f, "kept")?,
            (Some(left), None) => write!(f, "ended at {}, not gone", at(left))?,
            (Some(left), Some(gone)) => write!(f, "ended at {}, gone at {}", at(left), at(gone))?,
        }
        if let Some(error) = &self.error {
            write!(f, " ({error})")?;
        }
        if self.verdict() {
            return Ok(());
        }
        write!(f, "  WRONG: {:?} was expected", self.expected)
    }
}

/// The clients of each server.
fn paces(server: &Server) -> Vec<(Pace, Expected)> {
    let seconds = Duration::from_secs;
    // A socket is looked at four times in a stall, so a client may have taken something up to a
    // quarter after the beginning of the wait that cuts it.
    let slow = |lump| {
        let within = servers::LIMIT * 5 / 4 + lump + seconds(2);
        match (&server.protocol, server.lump) {
            (Protocol::Http2(_), Some(_)) => Expected::Told(within),
            _ => Expected::Ended(within),
        }
    };
    let (ended, stopped) = (slow(Duration::ZERO), slow(server.lump.unwrap_or_default()));
    // Over HTTP/1, the system of such a client acknowledges nothing. Over HTTP/2 it opens its
    // window by a byte each second, and a server without a least rate keeps it.
    let dripped = match (&server.protocol, server.lump) {
        (Protocol::Http2(_), None) => Expected::Either,
        _ => stopped,
    };
    let mut paces = vec![
        (Pace::Steady(1_000), Expected::Either),
        (Pace::Steady(10_000), Expected::Kept),
        (Pace::Steady(30_000), Expected::Kept),
        (Pace::Steady(100_000), Expected::Kept),
        (Pace::Steady(300_000), Expected::Kept),
        (Pace::Bursts(30_000, seconds(5)), Expected::Kept),
        (Pace::Bursts(300_000, seconds(8)), Expected::Kept),
        // As `curl --limit-rate 1M` does, which reads 5 to 10 MB at once.
        (Pace::Bursts(1_000_000, seconds(10)), Expected::Kept),
        (Pace::FastThen(seconds(4), 100_000), Expected::Either),
        (Pace::Steady(1), dripped),
        (Pace::Stops(5_000_000), stopped),
    ];
    let never = if server.name == "serve" { NEVER } else { 1 };
    paces.extend((0..never).map(|_| (Pace::Stops(0), ended)));
    paces
}

struct Options {
    time: Duration,
    programs: Option<PathBuf>,
    servers: Vec<String>,
}

fn options() -> Result<Options, Box<dyn Error>> {
    use lexopt::prelude::{Long, Value, ValueExt};
    let (mut time, mut programs, mut servers) = (Duration::from_secs(150), None, Vec::new());
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seconds") => time = Duration::from_secs(parser.value()?.parse()?),
            Long("programs") => programs = Some(PathBuf::from(parser.value()?)),
            Value(name) => servers.push(name.string()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    Ok(Options { time, programs, servers })
}

async fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let programs = Programs::new(options.programs.as_deref());
    let mut servers = servers::start(&programs).await?;
    if !options.servers.is_empty() {
        servers.retain(|server| options.servers.iter().any(|name| name == server.name));
    }
    let (mut clients, mut tasks) = (Vec::new(), JoinSet::new());
    for server in &servers {
        for (pace, expected) in paces(server) {
            let (port, reading) = clients::begin(server.address, &server.protocol, pace).await?;
            let at = clients.len();
            tasks.spawn(async move { (at, reading.await) });
            let ports = (server.address.port(), port);
            let (server, seen) = (server.name, Seen::default());
            clients.push(Client { server, pace, expected, ports, seen, error: None });
        }
    }
    let begin = Instant::now();
    while begin.elapsed() < options.time {
        sleep(LOOK).await;
        let (now, sockets) = (begin.elapsed(), Sockets::read()?);
        for client in &mut clients {
            let socket = sockets.get(client.ports);
            if let Some(socket) = socket {
                client.seen.held = client.seen.held.max(socket.unsent);
            }
            if !socket.is_some_and(|socket| socket.is_established) {
                client.seen.left.get_or_insert(now);
            }
            if socket.is_none() {
                client.seen.gone.get_or_insert(now);
            }
        }
    }
    while let Some(ended) = tasks.try_join_next() {
        let (at, result) = ended?;
        clients[at].error = result.err().map(|error| error.to_string());
    }
    let mut never = 0;
    for client in &clients {
        // One line stands for all of them.
        if client.pace == Pace::Stops(0) && client.verdict() {
            never += 1;
            if never % NEVER > 1 {
                continue;
            }
        }
        println!("{client}");
    }
    for name in programs.missing() {
        println!("{name}: skipped, as --programs does not lead to it");
    }
    Ok(clients.iter().all(Client::verdict))
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("it starts");
    match runtime.block_on(async { run(&options()?).await }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("readers: {error}");
            ExitCode::from(2)
        }
    }
}

/// An address of this machine with a port that is free now.
fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
