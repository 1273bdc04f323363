//! A server process for a test, and sockets to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for what must come. A test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::try_start(arguments).expect("the server starts")
    }

    /// A server on each runtime that this machine has, with its name.
    pub(crate) fn on_each_runtime(arguments: &[&str]) -> Vec<(&'static str, Self)> {
        let start = |name| {
            let arguments = [arguments, &["--runtime", name]].concat();
            Self::try_start(&arguments).map(|server| (name, server))
        };
        let tokio = start("tokio").expect("tokio runs everywhere");
        let glommio = start("glommio");
        if let Err(line) = &glommio {
            // Only a host without io_uring, or with too little locked memory for it, may lack it.
            let is_refused =
                ["io_uring", "glommio", "memlock"].iter().any(|why| line.contains(why));
            assert!(is_refused, "{line}");
        }
        [Some(tokio), glommio.ok()].into_iter().flatten().collect()
    }

    /// A server, at any address if the arguments state none; its errors if it does not start.
    fn try_start(arguments: &[&str]) -> Result<Self, String> {
        let defaults = [("--timers-max", "100000"), ("--listen", "127.0.0.1:0")];
        let missing = defaults.iter().filter(|(name, _)| !arguments.contains(name));
        let mut child = Command::new(env!("CARGO_BIN_EXE_resp_cache"))
            .args(missing.flat_map(|(name, value)| [name, value]))
            .args(["--stats", "127.0.0.1:0", "--cores", "2"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary is there");
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        for _ in 0..3 {
            if stdout.read_line(&mut lines).unwrap() == 0 {
                let output = child.wait_with_output().unwrap();
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        let word = lines.split_whitespace().nth(2).expect("the first line has the address");
        Ok(Self { child, address: word.parse().unwrap(), _stdout: stdout })
    }

    pub(crate) fn client(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{}", self.address)).unwrap();
        client.get_connection_with_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn socket(&self) -> Socket {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Socket(stream)
    }

    /// What the kernel says of the process under this name.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().into()))
    }

    /// The memory of the process that is resident, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let kilobytes = self.status("VmRSS:").unwrap();
        kilobytes.strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1_024
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// The exit code, when the process has ended.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the server has not ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A request of these words.
pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    redis::Cmd::new().arg(words).get_packed_command()
}

/// A socket that sends what a test says, well-formed or not.
pub(crate) struct Socket(pub(crate) TcpStream);

impl Socket {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Sends bytes, and expects exactly these bytes in return.
    pub(crate) fn expect(&mut self, sent: &[u8], expected: &[u8]) {
        self.send(sent);
        let mut received = vec![0; expected.len()];
        self.0.read_exact(&mut received).unwrap();
        let shown = received.escape_ascii().to_string();
        assert_eq!(shown, expected.escape_ascii().to_string(), "{}", sent.escape_ascii());
    }

    /// All bytes until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A server that closes before it has read everything resets the connection.
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
