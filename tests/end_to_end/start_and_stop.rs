//! The start and the end of the echo server, and starts that are refused.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::server::{Server, command, echo, own_address, read_to_end, run_to_its_end};
use crate::{ANYWHERE, World, in_every_world, worlds};

/// Checks that the server fails at once, with this exit code and one line that contains `says`.
fn fails(command: &mut Command, code: i32, says: &str) {
    let Output { status, stdout, stderr } = run_to_its_end(command);
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(status.code(), Some(code), "{command:?}: {stderr}");
    assert_eq!(stdout, "", "{command:?}");
    assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr}");
    assert!(stderr.contains(says), "{command:?}: {stderr}");
}

/// The command with free ports.
fn command_anywhere(world: World) -> Command {
    let mut command = command(world);
    command.args(["--listen", "127.0.0.1:0", "--stats", "127.0.0.1:0"]);
    command
}

#[test]
fn signal_ends_the_server_with_a_line_for_each_shard() {
    in_every_world(|world| {
        for signal in [Signal::INT, Signal::TERM] {
            let server = Server::start_at(world, &own_address(), &["--max-age", "1h"]);
            let mut streams: Vec<_> = (0..10).map(|_| server.connect()).collect();
            for stream in &mut streams {
                echo(stream, "hello\n").unwrap();
            }
            drop(streams.split_off(7));
            server.wait_for("pending", 7);
            let address = server.address;
            let ended = server.stop(signal);
            assert_eq!(ended.sum(|shard| shard.scheduled), 10, "{world:?}");
            // The drain has ended the connections.
            assert_eq!(ended.sum(|shard| shard.cancelled), 10, "{world:?}");
            for stream in &mut streams {
                assert_eq!(read_to_end(stream), b"", "{world:?}");
            }
            assert!(TcpStream::connect(address).is_err(), "{world:?}: the server still listens");
        }
    });
}

#[test]
fn drain_that_cuts_a_request_is_told_by_the_exit_code() {
    in_every_world(|world| {
        let server = Server::start(world, &["--drain", "300ms"]);
        let (mut idle, mut greedy) = (server.connect(), server.connect());
        echo(&mut idle, "hello\n").unwrap();
        // This client reads nothing, so the server's answer waits at last, and so does the client.
        greedy.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        while greedy.write_all(&[b'x'; 1 << 14]).is_ok() {}
        server.signal(Signal::TERM);
        assert_eq!(read_to_end(&mut idle), b"", "{world:?}");
        let ended = server.wait();
        assert_eq!(ended.code, Some(3), "{world:?}");
        assert_eq!(ended.shards.len(), 2, "{world:?}");
    });
}

#[test]
fn second_signal_ends_the_server_at_once() {
    in_every_world(|world| {
        // Two threads of the server may take one signal each, and both find it to be the first.
        let ended_on_the_spot = (0..20).any(|_| {
            let server = Server::start(world, &[]);
            server.freeze();
            for signal in [Signal::INT, Signal::TERM, Signal::CONT] {
                server.signal(signal);
            }
            let ended = server.wait();
            match ended.code {
                // Either signal has ended the server, which prints nothing then.
                Some(130 | 143) => {
                    assert!(ended.shards.is_empty(), "{world:?}: {ended:?}");
                    true
                }
                code => {
                    assert_eq!(code, Some(0), "{world:?}");
                    false
                }
            }
        });
        assert!(ended_on_the_spot, "{world:?}");
    });
}

#[test]
fn invalid_values_are_refused_by_name() {
    let cases = [
        ("--listen", "nowhere"),
        ("--listen", "127.0.0.1"),
        ("--listen", "127.0.0.1:65536"),
        ("--stats", ""),
        ("--stats", "localhost:http"),
        ("--read-idle", "soon"),
        ("--read-idle", "-1s"),
        ("--heartbeat", "10 parsecs"),
        ("--heartbeat", "10"),
        ("--max-age", "99999999999999999999y"),
        ("--shards", "0"),
        ("--shards", "two"),
        ("--shards", "99999"),
        ("--tick", "0"),
        ("--tick", "99us"),
        ("--tick", "2s"),
        ("--tick", "1\n\nday"),
        ("--runtime", "fibres"),
        ("--runtime", "thread"),
    ];
    let program = command(ANYWHERE).get_program().to_owned();
    for (option, value) in cases {
        let mut command = Command::new(&program);
        // Each option occurs once, and no port may be busy.
        for (port, free) in [("--listen", "127.0.0.1:0"), ("--stats", "127.0.0.1:0")] {
            if port != option {
                command.args([port, free]);
            }
        }
        fails(command.arg(format!("{option}={value}")), 2, option);
    }
    fails(command_anywhere(ANYWHERE).arg("--read-idle"), 2, "--read-idle");
    fails(command_anywhere(ANYWHERE).arg("--frobnicate"), 2, "--frobnicate");
}

#[test]
fn option_given_twice_is_refused_by_name() {
    for (option, first, second) in
        [("--shards", "1", "2"), ("--tick", "1ms", "1ms"), ("--listen", "127.0.0.1:0", "soon")]
    {
        let mut command = Command::new(command(ANYWHERE).get_program());
        fails(
            command.args([option, first, option, second]),
            2,
            &format!("{option}' is given twice"),
        );
    }
}

#[test]
fn help_option_succeeds_and_lists_all_options() {
    let Output { status, stdout, stderr } = run_to_its_end(command(ANYWHERE).arg("--help"));
    assert_eq!(status.code(), Some(0));
    assert!(stderr.is_empty());
    let help = String::from_utf8(stdout).unwrap();
    for option in [
        "--listen",
        "--stats",
        "--read-idle",
        "--heartbeat",
        "--max-age",
        "--shards",
        "--tick",
        "--runtime",
    ] {
        assert!(help.contains(option), "{help}");
    }
}

#[test]
fn busy_port_is_refused_by_name() {
    in_every_world(|world| {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = holder.local_addr().unwrap().to_string();
        fails(command(world).args(["--listen", &busy, "--stats", "127.0.0.1:0"]), 1, "--listen");
        fails(command(world).args(["--stats", &busy, "--listen", "127.0.0.1:0"]), 1, "--stats");
        // The server could share this port with the other, which would split the clients.
        let other = Server::start(world, &[]);
        let busy = other.address.to_string();
        fails(command(world).args(["--listen", &busy, "--stats", "127.0.0.1:0"]), 1, "--listen");
        let busy = other.stats.to_string();
        fails(command(world).args(["--listen", "127.0.0.1:0", "--stats", &busy]), 1, "--stats");
        echo(&mut other.connect(), "unharmed\n").unwrap();
        fails(command(world).args(["--listen", &busy, "--stats", &busy]), 1, "--listen");
    });
}

#[test]
fn server_starts_again_on_the_same_port() {
    in_every_world(|world| {
        let server = Server::start_at(world, &own_address(), &["--max-age", "100ms"]);
        let mut streams: Vec<_> = (0..4).map(|_| server.connect()).collect();
        // The side that closes first keeps the port in TIME_WAIT.
        server.wait_for("fired", 4);
        streams.clear();
        let address = server.address.to_string();
        server.stop(Signal::TERM);
        let again = Server::start_at(world, &address, &[]);
        echo(&mut again.connect(), "back\n").unwrap();
    });
}

#[test]
fn runtime_line_says_why_it_was_chosen() {
    for world in worlds() {
        let server = Server::start(world, &[]);
        let reason = match (world.runtime, world.forbidden) {
            ("auto", None) => "io_uring works",
            ("auto", Some("EPERM")) => "Operation not permitted",
            ("auto", Some(_)) => "Function not implemented",
            _ => "asked for",
        };
        assert!(server.runtime.contains(reason), "{world:?}: {}", server.runtime);
    }
}

#[test]
fn glommio_without_io_uring_is_refused() {
    for forbidden in ["EPERM", "ENOSYS", "EPERM:setup", "EPERM:enter", "ENOSYS:register"] {
        let world = World { forbidden: Some(forbidden), runtime: "glommio", expected: "none" };
        fails(&mut command_anywhere(world), 1, "io_uring");
    }
}
