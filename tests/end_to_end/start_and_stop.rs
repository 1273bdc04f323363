//! The start and the end of the echo server, and starts that are refused.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

use corewheel_test_support::ms;
use corewheel_test_support::sockets::read_to_end;
use rustix::process::Signal;

use crate::server::{Server, command, own_address, run_to_its_end, sum};
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

/// The command with addresses where it listens, and where its statistics are.
fn command_at(world: World, listen: &str, stats: &str) -> Command {
    let mut command = command(world);
    command.args(["--listen", listen, "--stats", stats]);
    command
}

/// Any free port.
const FREE: &str = "127.0.0.1:0";

#[test]
fn signal_ends_the_server_with_a_line_for_each_shard() {
    in_every_world(|world| {
        for signal in [Signal::INT, Signal::TERM] {
            let server = Server::start_at(world, &own_address(), &["--max-age", "1h"]);
            let mut streams = server.connect_and_echo(10);
            drop(streams.split_off(7));
            server.wait_for("pending", 7);
            let address = server.address;
            let ended = server.stop(signal);
            // The drain has ended the connections.
            assert_eq!((sum(&ended, "scheduled"), sum(&ended, "cancelled")), (10, 10));
            for stream in &mut streams {
                assert_eq!(read_to_end(stream), b"");
            }
            assert!(TcpStream::connect(address).is_err(), "the server still listens");
        }
    });
}

#[test]
fn drain_that_cuts_a_request_is_told_by_the_exit_code() {
    in_every_world(|world| {
        let server = Server::start(world, &["--drain", "300ms"]);
        let [mut idle, mut greedy] = server.connect_and_echo(2).try_into().unwrap();
        // This client reads nothing, so the server's answer waits at last, and so does the client.
        greedy.set_write_timeout(Some(ms(500))).unwrap();
        while greedy.write_all(&[b'x'; 1 << 14]).is_ok() {}
        server.child.signal(Signal::TERM);
        assert_eq!(read_to_end(&mut idle), b"");
        let (code, shards) = server.wait();
        assert_eq!((code, shards.len()), (Some(3), 2));
    });
}

#[test]
fn second_signal_ends_the_server_at_once() {
    in_every_world(|world| {
        // Two threads of the server may take one signal each, and both find it to be the first.
        let ended_on_the_spot = (0..20).any(|_| {
            let server = Server::start(world, &[]);
            server.child.stop();
            for signal in [Signal::INT, Signal::TERM, Signal::CONT] {
                server.child.signal(signal);
            }
            let (code, shards) = server.wait();
            // Either signal has ended the server, which prints nothing then.
            let is_at_once = matches!(code, Some(130 | 143)) && shards.is_empty();
            assert!(is_at_once || code == Some(0), "{code:?} {shards:?}");
            is_at_once
        });
        assert!(ended_on_the_spot);
    });
}

#[test]
fn invalid_values_and_options_given_twice_are_refused_by_name() {
    let cases: [(&str, &[&str]); 8] = [
        ("--listen", &["nowhere", "127.0.0.1", "127.0.0.1:65536"]),
        ("--stats", &["", "localhost:http"]),
        ("--read-idle", &["soon", "-1s"]),
        ("--heartbeat", &["10 parsecs", "10"]),
        ("--max-age", &["99999999999999999999y"]),
        ("--shards", &["0", "two", "99999"]),
        ("--tick", &["0", "99us", "2s", "1\n\nday"]),
        ("--runtime", &["fibres", "thread"]),
    ];
    let refused = |arguments: &[&str], says: &str| {
        fails(Command::new(command(ANYWHERE).get_program()).args(arguments), 2, says);
    };
    for (option, values) in cases {
        // Each option occurs once, and no port may be busy.
        let ports = ["--listen", "--stats"].into_iter().filter(|port| *port != option);
        let ports: Vec<_> = ports.flat_map(|port| [port, FREE]).collect();
        for value in values {
            refused(&[&ports[..], &[&format!("{option}={value}")]].concat(), option);
        }
    }
    for option in ["--read-idle", "--frobnicate"] {
        refused(&["--listen", FREE, "--stats", FREE, option], option);
    }
    for (option, first, second) in
        [("--shards", "1", "2"), ("--tick", "1ms", "1ms"), ("--listen", FREE, "soon")]
    {
        refused(&[option, first, option, second], &format!("{option}' is given twice"));
    }
}

#[test]
fn help_option_succeeds_and_lists_all_options() {
    let Output { status, stdout, stderr } = run_to_its_end(command(ANYWHERE).arg("--help"));
    assert_eq!((status.code(), stderr.len()), (Some(0), 0));
    let help = String::from_utf8(stdout).unwrap();
    let options = "--listen --stats --read-idle --heartbeat --max-age --shards --tick --runtime";
    for option in options.split(' ') {
        assert!(help.contains(option), "{help}");
    }
}

#[test]
fn busy_port_is_refused_by_name() {
    in_every_world(|world| {
        let holder = TcpListener::bind(FREE).unwrap();
        // The server could share its ports with another one, which would split the clients.
        let other = Server::start(world, &[]);
        let addresses = [holder.local_addr().unwrap(), other.address, other.stats];
        let [held, listen, stats] = &addresses.map(|address| address.to_string());
        for (listen, stats, refused) in [
            (held, FREE, "--listen"),
            (listen, FREE, "--listen"),
            (&FREE.to_owned(), held, "--stats"),
            (&FREE.to_owned(), stats, "--stats"),
            (stats, stats, "--listen"),
        ] {
            fails(&mut command_at(world, listen, stats), 1, refused);
        }
        other.connect_and_echo(1);
    });
}

#[test]
fn server_starts_again_on_the_same_port() {
    in_every_world(|world| {
        let server = Server::start_at(world, &own_address(), &["--max-age", "100ms"]);
        let streams: Vec<_> = (0..4).map(|_| server.connect()).collect();
        // The side that closes first keeps the port in TIME_WAIT.
        server.wait_for("fired", 4);
        drop(streams);
        let address = server.address.to_string();
        server.stop(Signal::TERM);
        Server::start_at(world, &address, &[]).connect_and_echo(1);
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
        fails(&mut command_at(world, FREE, FREE), 1, "io_uring");
    }
}
