//! A server in a process of its own, which the clients stop for a while.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{self, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Begins the line with the addresses.
const ADDRESSES: &str = "addresses";

/// Ends when it is dropped.
pub struct Child {
    process: process::Child,
    /// Stays open: libtest writes that a test takes long, and ends a process that cannot write.
    _output: BufReader<ChildStdout>,
}

impl Child {
    /// Runs a test of this binary as a server, with its task in a variable of the environment.
    /// Beside it, where it listens.
    pub fn of_test(test: &str, variable: &str, task: &str) -> (Self, Vec<SocketAddr>) {
        let mut process = this_test(test)
            .env(variable, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        // libtest writes its own output before, on the same line.
        let mut lines = output.by_ref().lines().map(|line| line.expect("the child writes lines"));
        let line = lines.find_map(|line| Some(line.split_once(ADDRESSES)?.1.to_owned()));
        let line = line.expect("the child says where it listens");
        let addresses = line.split_whitespace().map(|it| it.parse().unwrap()).collect();
        (Self { process, _output: output }, addresses)
    }

    /// Says where the child listens, and waits until its standard input ends.
    #[allow(clippy::print_stdout, reason = "the parent reads it")]
    pub fn wait_as_child(addresses: &[SocketAddr]) {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        println!("{ADDRESSES} {}", addresses.join(" "));
        let _ = io::stdin().read(&mut [0]);
    }

    fn signal(&self, signal: Signal) {
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

/// A process that runs one test of this binary.
pub fn this_test(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}
