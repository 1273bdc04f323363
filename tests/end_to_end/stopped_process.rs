//! The echo server as a process that is stopped for a while and then continued.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::ms;
use corewheel_test_support::sockets::is_closed;

use crate::server::{Server, echo};
use crate::{World, check_not_early, in_every_world};

/// More clients on each shard than tokio's `LocalSet` polls in a row.
const CLIENTS: usize = 150;
const READ_IDLE: Duration = ms(3_000);
/// How long before its deadline each line must be in its socket.
const IN_TIME: Duration = ms(500);

#[test]
fn stopped_server_with_unread_data_keeps_its_connections() {
    in_every_world(|world| {
        // On a busy machine the clients themselves may write too late; then they try again.
        let is_quick = (0..10).any(|_| stays_open(world));
        assert!(is_quick, "this machine is too busy to write in time");
    });
}

/// Stops the server, writes in time, and continues the server after the deadline. False if this
/// test was too slow to write in time.
fn stays_open(world: World) -> bool {
    let server = Server::start(world, &["--read-idle", "3s", "--heartbeat", "0"]);
    let mut streams: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    let start = Instant::now();
    for stream in &mut streams {
        if let Err(error) = echo(stream, "before\n") {
            assert!(is_closed(&error), "{error}");
            check_not_early(start, READ_IDLE);
            return false;
        }
    }
    server.child.stop();
    let written = streams.iter_mut().all(|stream| stream.write_all(b"during\n").is_ok());
    if !written || start.elapsed() + IN_TIME > READ_IDLE {
        return false;
    }
    thread::sleep(READ_IDLE + IN_TIME);
    server.child.go_on();
    let closed = streams.iter_mut().map(|stream| is_echoed(stream, "during\n"));
    let closed = closed.filter(|is_echoed| !is_echoed).count();
    assert_eq!(closed, 0, "connections with data in time are closed");
    true
}

/// Whether a line comes back. False if the connection is closed instead.
fn is_echoed(stream: &mut TcpStream, line: &str) -> bool {
    let mut back = vec![0; line.len()];
    let read = stream.read_exact(&mut back);
    assert!(read.as_ref().err().is_none_or(is_closed), "{read:?}");
    read.is_ok() && back == line.as_bytes()
}
