//! Helpers: a server process, its output, and its clients.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::child::Child;
use corewheel_test_support::{PATIENCE, ms, sockets};
use rustix::process::Signal;
use serde_json::Value;

pub(crate) use crate::built::example;
use crate::{World, wait_while};

/// The command that starts the server in a world.
pub(crate) fn command(world: World) -> Command {
    let name = if world.runtime == "compio" { "idle_server_with_compio" } else { "idle_server" };
    let mut command = command_of(world, name);
    command.args(["--runtime", world.runtime]);
    command
}

/// The command that runs an example in a world.
pub(crate) fn command_of(world: World, name: &str) -> Command {
    let mut command = Command::new(example(name));
    if let Some(errno) = world.forbidden {
        command = Command::new(example("without_io_uring"));
        command.arg(errno).arg(example(name));
    }
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command that must end by itself, and returns its output.
pub(crate) fn run_to_its_end(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() >= PATIENCE {
            child.kill().unwrap();
        }
        thread::sleep(ms(5));
    }
    child.wait_with_output().unwrap()
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) stats: SocketAddr,
    /// The line about the runtime: its name and why it was chosen.
    pub(crate) runtime: String,
}

/// The counts of a shard by their names.
pub(crate) type Counts = BTreeMap<String, u64>;

impl Server {
    /// Starts a server on two shards and free ports.
    pub(crate) fn start(world: World, options: &[&str]) -> Self {
        Self::start_at(world, "127.0.0.1:0", options)
    }

    pub(crate) fn start_at(world: World, listen: &str, options: &[&str]) -> Self {
        let mut command = command(world);
        command.args(["--shards", "2", "--listen", listen, "--stats", "127.0.0.1:0"]);
        Self::start_by(world, command.args(options))
    }

    /// Starts a server by a complete command.
    pub(crate) fn start_by(world: World, command: &mut Command) -> Self {
        let child = Child::start(command);
        let address = child.told("listening on ").split(' ').next().unwrap().parse().unwrap();
        let runtime = child.told("runtime: ");
        assert_eq!(runtime.split(' ').next(), Some(world.expected));
        let stats = child.told("statistics: http://").trim_end_matches('/').parse().unwrap();
        child.told("try it: nc ");
        Self { child, address, stats, runtime }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        sockets::connect(self.address)
    }

    /// So many clients, each of which has had a line back.
    pub(crate) fn connect_and_echo(&self, count: usize) -> Vec<TcpStream> {
        let mut streams: Vec<_> = (0..count).map(|_| self.connect()).collect();
        for (number, stream) in streams.iter_mut().enumerate() {
            echo(stream, &format!("line {number}\n")).unwrap();
        }
        streams
    }

    /// The body that the statistics endpoint returns for a path.
    pub(crate) fn fetch(&self, path: &str) -> String {
        let (head, body) = sockets::get(self.stats, path);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body
    }

    /// The sum of one count over all shards.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let stats: Value = serde_json::from_str(&self.fetch("/stats.json")).unwrap();
        let shards = stats["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 2);
        shards.iter().map(|shard| shard[name].as_u64().unwrap()).sum()
    }

    /// Waits until a count has this value.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, value: u64) {
        wait_while(|| {
            let count = self.count(name);
            (count != value).then(|| format!("{name} is {count}, not {value}"))
        });
    }

    /// Waits for the end. Returns the exit code and the counts of each shard.
    pub(crate) fn wait(mut self) -> (Option<i32>, Vec<Counts>) {
        let (code, lines) = self.child.wait();
        (code, counts(&lines))
    }

    /// Ends the server by a signal. Returns the counts of each shard.
    pub(crate) fn stop(self, signal: Signal) -> Vec<Counts> {
        self.child.signal(signal);
        let (code, shards) = self.wait();
        assert_eq!((code, shards.len()), (Some(0), 2), "{shards:?}");
        shards
    }
}

/// The counts of each shard, from lines such as `shard 0: 5 scheduled, 4 fired, 1 cancelled`. Each
/// timer must have ended in one way.
pub(crate) fn counts(lines: &[String]) -> Vec<Counts> {
    let parse = |(shard, line): (usize, &String)| {
        let counts = line.strip_prefix(&format!("shard {shard}: "));
        let counts = counts.unwrap_or_else(|| panic!("a line about shard {shard}: {line}"));
        let words = counts.split(", ").map(|count| count.split_once(' ').unwrap());
        let counts: Counts = words.map(|(n, name)| (name.to_owned(), n.parse().unwrap())).collect();
        assert_eq!(counts["scheduled"] * 2, counts.values().sum::<u64>(), "{line}");
        counts
    };
    lines.iter().enumerate().map(parse).collect()
}

/// The sum of one count over shards.
pub(crate) fn sum(shards: &[Counts], name: &str) -> u64 {
    shards.iter().map(|shard| shard[name]).sum()
}

/// A loopback address that no other test uses, with a free port. When the port becomes free again,
/// no other test gets it.
pub(crate) fn own_address() -> String {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{high}.{low}.{number}:0")
}

/// Sends a line and waits for it to come back.
pub(crate) fn echo(stream: &mut TcpStream, line: &str) -> io::Result<()> {
    stream.write_all(line.as_bytes())?;
    let mut back = vec![0; line.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(String::from_utf8_lossy(&back), line);
    Ok(())
}

/// Whether no data comes for `time`.
pub(crate) fn is_silent(stream: &mut TcpStream, time: Duration) -> bool {
    let end = Instant::now() + time;
    let silent = loop {
        let left = end.saturating_duration_since(Instant::now()).max(ms(1));
        stream.set_read_timeout(Some(left)).unwrap();
        let read = stream.read(&mut [0]).map_err(|error| error.kind());
        // A signal has interrupted the call, and the time goes on.
        if read != Err(ErrorKind::Interrupted) {
            break matches!(read, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    silent
}
