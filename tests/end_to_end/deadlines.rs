//! Read-idle, heartbeat and max-age of the echo server: each fires, and not too early.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::sockets::{is_closed, read_to, read_to_end};
use corewheel_test_support::{PATIENCE, ms};
use rustix::process::Signal;

use crate::server::{Server, echo, is_silent, sum};
use crate::{World, check_not_early, in_every_world};

#[test]
fn silent_connection_gets_pings_and_is_closed() {
    in_every_world(|world| {
        // If the server is delayed for long enough, all deadlines expire at once.
        let is_pinged = (0..10).any(|_| pings_of_silent_connection(world) > 0);
        assert!(is_pinged, "no connection gets a ping");
    });
}

/// Sends nothing until the server closes the connection. Returns how many pings came.
fn pings_of_silent_connection(world: World) -> u32 {
    let server = Server::start(world, &["--read-idle", "1s", "--heartbeat", "300ms"]);
    let start = Instant::now();
    let mut stream = server.connect();
    let (mut pings, mut line) = (0, [0; 5]);
    let end = loop {
        if let Err(error) = stream.read_exact(&mut line) {
            break error;
        }
        pings += 1;
        assert_eq!(&line, b"PING\n");
        check_not_early(start, ms(300) * pings);
    };
    assert!(is_closed(&end), "{end}");
    check_not_early(start, ms(1_000));
    assert!(pings <= 3, "{pings}");
    server.wait_for("pending", 0);
    let ended = server.stop(Signal::TERM);
    // The connection has one entry for all deadlines, and another entry after each of them.
    assert_eq!(sum(&ended, "scheduled"), u64::from(pings) + 2);
    assert!(sum(&ended, "fired") > u64::from(pings), "{ended:?}");
    pings
}

#[test]
fn echo_postpones_the_next_ping() {
    in_every_world(|world| {
        let server = Server::start(world, &["--heartbeat", "400ms"]);
        let mut stream = server.connect();
        thread::sleep(ms(250));
        let start = Instant::now();
        stream.write_all(b"here\n").unwrap();
        assert_eq!(read_to(&mut stream, "PING\n").unwrap(), "here\nPING\n");
        check_not_early(start, ms(400));
    });
}

#[test]
fn active_connection_outlives_its_read_idle() {
    in_every_world(|world| {
        let server = Server::start(world, &["--read-idle", "1s", "--heartbeat", "0"]);
        // On a busy machine this client may pause too long by itself; then it tries again.
        let is_quick = (0..10).any(|_| stays_active(&server, ms(1_000)));
        assert!(is_quick, "this machine is too busy to keep a connection active");
    });
}

/// Keeps a connection active for three times its read-idle. False if this client was too slow.
fn stays_active(server: &Server, read_idle: Duration) -> bool {
    let start = Instant::now();
    let mut stream = server.connect();
    let mut before = start;
    while start.elapsed() < read_idle * 3 {
        // Before the echo, since this client may be delayed before it reads the clock.
        let sent = Instant::now();
        if let Err(error) = echo(&mut stream, "still here\n") {
            assert!(is_closed(&error), "{error}");
            check_not_early(before, read_idle);
            return false;
        }
        before = sent;
        thread::sleep(ms(50));
    }
    drop(stream);
    server.wait_for("pending", 0);
    true
}

#[test]
fn max_age_closes_an_active_connection_and_one_that_never_pauses() {
    in_every_world(|world| {
        let server = Server::start(world, &["--max-age", "700ms"]);
        let start = Instant::now();
        let mut stream = server.connect();
        while echo(&mut stream, "still here\n").is_ok() {
            assert!(start.elapsed() < PATIENCE, "the connection stays open");
        }
        check_not_early(start, ms(700));
        server.wait_for("pending", 0);
        assert_eq!(server.count("fired"), 1);
        let start = Instant::now();
        let mut stream = server.connect();
        thread::scope(|scope| {
            let mut writer = stream.try_clone().unwrap();
            scope.spawn(move || while writer.write_all(&[b'x'; 1 << 14]).is_ok() {});
            read_to_end(&mut stream);
            check_not_early(start, ms(700));
            // The writer ends too, as its writes fail.
        });
        server.wait_for("pending", 0);
        server.stop(Signal::TERM);
    });
}

#[test]
fn deadline_of_zero_is_disabled() {
    in_every_world(|world| {
        let off = ["--read-idle", "0", "--heartbeat", "0s", "--max-age", "0"];
        let server = Server::start(world, &off);
        let mut stream = server.connect();
        assert!(is_silent(&mut stream, ms(1_500)));
        echo(&mut stream, "still here\n").unwrap();
        let ended = server.stop(Signal::TERM);
        // The connection has an entry that is never due.
        assert_eq!((sum(&ended, "scheduled"), sum(&ended, "fired")), (1, 0));
    });
}

#[test]
fn client_that_does_not_read_is_closed_by_each_limit_between_heartbeats() {
    in_every_world(|world| {
        for limits in [
            ["--read-idle", "700ms", "--write-timeout", "0"],
            ["--read-idle", "0", "--write-timeout", "700ms"],
            ["--read-idle", "0", "--max-age", "700ms"],
        ] {
            let server = Server::start(world, &[&limits[..], &["--heartbeat", "100ms"]].concat());
            let start = Instant::now();
            let mut stream = server.connect();
            fill(&mut stream);
            assert!(server.count("pending") > 0 || start.elapsed() >= ms(700), "{limits:?}");
            // The server closes the connection although it cannot write its data.
            server.wait_for("pending", 0);
            check_not_early(start, ms(700));
            read_to_end(&mut stream);
        }
    });
}

/// Writes until the socket is full or the connection is closed.
fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(ms(100))).unwrap();
    loop {
        match stream.write(&[b'x'; 1 << 14]).map_err(|error| (error.kind(), is_closed(&error))) {
            // A signal has interrupted the call.
            Ok(_) | Err((ErrorKind::Interrupted, _)) => {}
            Err((ErrorKind::WouldBlock | ErrorKind::TimedOut, _) | (_, true)) => return,
            Err((error, _)) => panic!("{error}"),
        }
    }
}
