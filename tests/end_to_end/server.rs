//! Helpers: a server process, its output, and its clients.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

use crate::World;
pub(crate) use crate::built::example;
use corewheel_test_support::{PATIENCE, ms};

/// The command that starts the server in a world.
pub(crate) fn command(world: World) -> Command {
    let program = match world.runtime {
        "compio" => example("idle_server_with_compio"),
        _ => example("idle_server"),
    };
    let mut command = command_in(world, program);
    command.args(["--runtime", world.runtime]);
    command
}

/// The command that runs an example in a world.
pub(crate) fn command_of(world: World, name: &str) -> Command {
    command_in(world, example(name))
}

fn command_in(world: World, program: PathBuf) -> Command {
    let mut command = match world.forbidden {
        None => Command::new(program),
        Some(errno) => {
            let mut command = Command::new(example("without_io_uring"));
            command.arg(errno).arg(program);
            command
        }
    };
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command that must end by itself, and returns its output.
pub(crate) fn run_to_its_end(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Kill(command.spawn().unwrap());
    let start = Instant::now();
    while child.0.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "the process does not end");
        thread::sleep(ms(5));
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status: child.0.wait().unwrap(), stdout, stderr }
}

/// A process that does not outlive the test.
#[derive(Debug)]
pub(crate) struct Kill(pub(crate) Child);

impl Drop for Kill {
    fn drop(&mut self) {
        // If the test has succeeded, the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    process: Kill,
    lines: Receiver<String>,
    pub(crate) world: World,
    pub(crate) address: SocketAddr,
    pub(crate) stats: SocketAddr,
    /// The line about the runtime: its name and why it was chosen.
    pub(crate) runtime: String,
}

/// The exit code of a server and its last lines.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) shards: Vec<Shard>,
}

/// The counts in the line about a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shard {
    pub(crate) scheduled: u64,
    pub(crate) fired: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
}

impl Server {
    /// Starts a server on two shards and free ports.
    pub(crate) fn start(world: World, options: &[&str]) -> Self {
        Self::start_at(world, "127.0.0.1:0", options)
    }

    pub(crate) fn start_at(world: World, listen: &str, options: &[&str]) -> Self {
        let mut command = command(world);
        command.args(["--shards", "2", "--listen", listen, "--stats", "127.0.0.1:0"]);
        command.args(options);
        Self::start_by(world, command)
    }

    /// Starts a server by a complete command.
    pub(crate) fn start_by(world: World, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Kill(command.spawn().unwrap());
        let stdout = BufReader::new(process.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            // The thread ends with the process, or when the test drops the receiver.
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let fact = |name: &str| {
            let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line {name}"));
            let fact = line.strip_prefix(name).unwrap_or_else(|| panic!("{name}? {line}"));
            fact.to_owned()
        };
        let listening = fact("listening on ");
        let address = listening.split(' ').next().unwrap().parse().unwrap();
        let runtime = fact("runtime: ");
        assert_eq!(runtime.split(' ').next(), Some(world.expected), "{world:?}");
        let stats = fact("statistics: http://").trim_end_matches('/').parse().unwrap();
        fact("try it: nc ");
        Self { process, lines, world, address, stats, runtime }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// The body that the statistics endpoint returns for a path.
    pub(crate) fn fetch(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.stats).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = self.stats;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }

    /// The sum of one count over all shards.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let stats: Value = serde_json::from_str(&self.fetch("/stats.json")).unwrap();
        let shards = stats["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 2);
        shards.iter().map(|shard| shard[name].as_u64().unwrap()).sum()
    }

    /// Waits until a count has this value.
    pub(crate) fn wait_for(&self, name: &str, value: u64) {
        let start = Instant::now();
        loop {
            let count = self.count(name);
            if count == value {
                return;
            }
            let waited = start.elapsed();
            assert!(waited < PATIENCE, "{:?}: {name} is {count}, not {value}", self.world);
            thread::sleep(ms(20));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }

    /// Stops the process, so that later signals are pending until it goes on.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let id = Pid::from_child(&self.process.0);
        let (_, status) = waitpid(Some(id), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Kills the server, and returns the address where it listened.
    pub(crate) fn kill(mut self) -> SocketAddr {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.address
    }

    /// Takes the server's standard error, which the caller has piped.
    pub(crate) fn take_stderr(&mut self) -> ChildStderr {
        self.process.0.stderr.take().expect("the standard error is piped")
    }

    /// Waits for the end, and reads the lines about the shards.
    pub(crate) fn wait(mut self) -> Ended {
        let start = Instant::now();
        let code = loop {
            if let Some(status) = self.process.0.try_wait().unwrap() {
                break status.code();
            }
            assert!(start.elapsed() < PATIENCE, "{:?}: the server does not end", self.world);
            thread::sleep(ms(5));
        };
        // The sender was dropped when the process closed its standard output.
        let lines: Vec<_> = self.lines.iter().collect();
        let shards = lines.iter().enumerate().map(|(shard, line)| Shard::parse(shard, line));
        Ended { code, shards: shards.collect() }
    }

    /// Ends the server by a signal, and checks that each timer of each shard has ended.
    pub(crate) fn stop(self, signal: Signal) -> Ended {
        self.signal(signal);
        let world = self.world;
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{world:?}");
        assert_eq!(ended.shards.len(), 2, "{world:?}: {ended:?}");
        for shard in &ended.shards {
            let Shard { scheduled, fired, cancelled, returned } = *shard;
            assert_eq!(scheduled, fired + cancelled + returned, "{world:?}: {ended:?}");
        }
        ended
    }
}

impl Ended {
    pub(crate) fn sum(&self, count: impl Fn(&Shard) -> u64) -> u64 {
        self.shards.iter().map(count).sum()
    }
}

impl Shard {
    /// Reads `shard 0: 5 scheduled, 4 fired, 1 cancelled, 0 returned`.
    fn parse(number: usize, line: &str) -> Self {
        let counts = line.strip_prefix(&format!("shard {number}: "));
        let counts = counts.unwrap_or_else(|| panic!("a line about shard {number}: {line}"));
        let mut shard = Self::default();
        for count in counts.split(", ") {
            let (count, name) = count.split_once(' ').unwrap();
            *match name {
                "scheduled" => &mut shard.scheduled,
                "fired" => &mut shard.fired,
                "cancelled" => &mut shard.cancelled,
                "returned" => &mut shard.returned,
                _ => panic!("{line}"),
            } = count.parse().unwrap();
        }
        shard
    }
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

/// Reads until the received data ends with `end`.
pub(crate) fn read_to(stream: &mut TcpStream, end: &str) {
    let mut received = Vec::new();
    while !received.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
}

/// Reads until the server closes or resets the connection. Returns the data.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return received,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if is_closed(&error) => return received,
            // A signal has interrupted the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
}

/// Whether an error means that the connection is closed.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Whether no data comes for `time`.
pub(crate) fn is_silent(stream: &mut TcpStream, time: Duration) -> bool {
    let end = Instant::now() + time;
    let silent = loop {
        let left = end.saturating_duration_since(Instant::now()).max(ms(1));
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut [0]) {
            // A signal has interrupted the call, and the time goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                break matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
            Ok(_) => break false,
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    silent
}
