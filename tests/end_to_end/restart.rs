//! The echo server after it was killed, and without file descriptors.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use corewheel_test_support::ms;
use rustix::process::Signal;

use crate::server::{Server, command, own_address};
use crate::{at_once, in_every_world, worlds};

#[test]
fn server_started_right_after_sigkill_serves_on_the_same_port() {
    // The kernel frees the ring of a killed server later, after a time that varies.
    const TRIES: usize = 6;
    in_every_world(|world| {
        let mut server = Server::start_at(world, &own_address(), &[]);
        for _ in 0..TRIES {
            let streams = server.connect_and_echo(10);
            let address = server.address.to_string();
            // It is killed.
            drop(server);
            server = Server::start_at(world, &address, &[]);
            drop(streams);
        }
        server.connect_and_echo(1);
    });
}

#[test]
fn server_without_descriptors_logs_one_line_at_the_beginning_and_one_at_the_end() {
    // Enough for a start on two shards, but not for all clients.
    const FILES: usize = 100;
    const CLIENTS: usize = 150;
    let distinct = worlds().filter(|world| world.forbidden.is_none() && world.runtime != "auto");
    at_once(distinct, |world| {
        let inner = command(world);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" \"$@\"")]);
        limited.arg(inner.get_program()).args(inner.get_args());
        limited.env_remove("RUST_LOG").env("NO_COLOR", "1").stderr(Stdio::piped());
        limited.args(["--shards", "2", "--listen", &own_address(), "--stats", "127.0.0.1:0"]);
        let mut server = Server::start_by(world, &mut limited);
        let mut stderr = server.child.process.stderr.take().unwrap();

        let streams: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        // Each shard tries again ten times a second.
        thread::sleep(ms(2_000));
        drop(streams);
        let start = Instant::now();
        // The next connection of a shard shows that the shard can accept again.
        while start.elapsed() < ms(3_000) {
            server.connect_and_echo(1);
            thread::sleep(ms(20));
        }
        server.stop(Signal::TERM);
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        let lines = |part| said.lines().filter(|line| line.contains(part)).collect::<Vec<_>>();
        let (begins, ends) = (lines("connections cannot be accepted"), lines("accepted again"));
        assert!((1..=2).contains(&begins.len()), "{said}");
        assert_eq!(ends.len(), begins.len(), "{said}");
        assert!(ends.iter().all(|line| line.contains("failed=")), "{said}");
        // The statistics endpoint has no client here. It reads the statistics itself, and logs what
        // they warn of, such as a handler that took long on a busy machine.
        let others = said.lines().filter(|line| !line.contains("corewheel::warning"));
        assert_eq!(others.count(), begins.len() + ends.len(), "{said}");
    });
}
