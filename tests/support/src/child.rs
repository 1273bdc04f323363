//! A program in a process of its own, such as a server that the clients stop for a while.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{PATIENCE, wait_until, within_patience};

/// Begins the line with the addresses.
const ADDRESSES: &str = "addresses";

/// Ends when it is dropped.
#[derive(Debug)]
pub struct Child {
    /// The process, whose input is open.
    pub process: process::Child,
    /// The lines of its output. They are read as they come: libtest writes that a test takes long,
    /// and ends a process that cannot write.
    pub lines: Receiver<String>,
}

impl Child {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Runs a test of this binary as a server, with its task in a variable of the environment.
    /// Beside it, where it listens.
    pub fn of_test(test: &str, variable: &str, task: &str) -> (Self, Vec<SocketAddr>) {
        let child = Self::start(this_test(test).env(variable, task));
        // libtest writes its own output before, on the same line.
        let mut lines = child.lines.iter();
        let line = lines.find_map(|line| Some(line.split_once(ADDRESSES)?.1.to_owned()));
        let line = line.expect("the child says where it listens");
        let addresses = line.split_whitespace().map(|it| it.parse().unwrap()).collect();
        (child, addresses)
    }

    /// The rest of the next line, which begins so.
    pub fn told(&self, begin: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line {begin}"));
        line.strip_prefix(begin).unwrap_or_else(|| panic!("{begin}? {line}")).to_owned()
    }

    /// Waits for the end. Returns the exit code, and the lines that are left.
    pub fn wait(&mut self) -> (Option<i32>, Vec<String>) {
        let mut status = None;
        wait_until("a process ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        // The output ends with the process.
        (status.and_then(|status| status.code()), self.lines.iter().collect())
    }

    /// Says where the child listens, and waits until its standard input ends.
    #[allow(clippy::print_stdout, reason = "the parent reads it")]
    pub fn wait_as_child(addresses: &[SocketAddr]) {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        println!("{ADDRESSES} {}", addresses.join(" "));
        let _ = io::stdin().read(&mut [0]);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Stops the process, and waits until it stands still.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let id = Pid::from_child(&self.process);
        let (_, status) = waitpid(Some(id), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Lets the process go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The lines that a process writes, as they come.
pub fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    let mut output = BufReader::new(output).lines().map_while(Result::ok);
    // The thread ends with the process, or when the test drops the receiver.
    thread::spawn(move || output.try_for_each(|line| sender.send(line)));
    lines
}

/// The name of the test that a process of its own runs, in its environment.
const ALONE: &str = "COREWHEEL_TEST_ALONE";

/// Runs a test in a process of its own. `name` is the name by which libtest knows it.
pub fn in_own_process(name: &str, test: impl FnOnce() + Send + 'static) {
    if env::var(ALONE).as_deref() == Ok(name) {
        return within_patience(test);
    }
    let output = this_test(name).env(ALONE, name).output().unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let is_passed = output.status.success() && printed.contains("1 passed");
    assert!(is_passed, "{}\n{printed}{errors}", output.status);
}

/// A process that runs one test of this binary.
pub fn this_test(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}
