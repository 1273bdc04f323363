//! A server process for a test, and sockets to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use corewheel_test_support::child::Child;
use corewheel_test_support::{PATIENCE, sockets};
use rustix::process::Signal;

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
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
            let reasons = ["io_uring", "glommio", "memlock"];
            assert!(reasons.iter().any(|why| line.contains(why)), "{line}");
        }
        [Some(tokio), glommio.ok()].into_iter().flatten().collect()
    }

    /// A server, at any address if the arguments state none; its errors if it does not start.
    fn try_start(arguments: &[&str]) -> Result<Self, String> {
        let defaults = [("--timers-max", "100000"), ("--listen", "127.0.0.1:0")];
        let missing = defaults.iter().filter(|(name, _)| !arguments.contains(name));
        let mut command = Command::new(env!("CARGO_BIN_EXE_resp_cache"));
        command.args(missing.flat_map(|(name, value)| [name, value])).args(arguments);
        command.args(["--stats", "127.0.0.1:0", "--cores", "2"]).stderr(Stdio::piped());
        let mut child = Child::start(&mut command);
        let mut lines = child.lines.iter().take(3);
        if let (Some(first), _, Some(_)) = (lines.next(), lines.next(), lines.next()) {
            let word = first.split_whitespace().nth(2).expect("the first line has the address");
            let address = word.parse().unwrap();
            return Ok(Self { child, address });
        }
        let mut errors = String::new();
        child.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        Err(errors)
    }

    pub(crate) fn client(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{}", self.address)).unwrap();
        client.get_connection_with_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn socket(&self) -> Socket {
        Socket(sockets::connect(self.address))
    }

    /// What the kernel says of the process under this name.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        let path = format!("/proc/{}/status", self.child.process.id());
        let status = std::fs::read_to_string(path).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().into()))
    }

    /// The memory of the process that is resident, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let kilobytes = self.status("VmRSS:").unwrap();
        kilobytes.strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1_024
    }

    /// Ends the server by SIGTERM.
    pub(crate) fn terminate(&mut self) {
        self.child.signal(Signal::TERM);
        assert_eq!(self.child.wait().0, Some(0));
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
