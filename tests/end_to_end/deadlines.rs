//! Read-idle, heartbeat and max-age of the echo server: each fires, and not too early.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::server::{Server, echo, is_closed, is_silent, read_to, read_to_end};
use crate::{World, in_every_world};
use corewheel_test_support::{PATIENCE, ms};

#[test]
fn silent_connection_gets_pings_and_is_closed() {
    in_every_world(|world| {
        // If the server is delayed for long enough, all deadlines expire at once.
        for _ in 0..10 {
            if pings_of_silent_connection(world) > 0 {
                return;
            }
        }
        panic!("{world:?}: no connection gets a ping");
    });
}

/// Sends nothing until the server closes the connection. Returns how many pings came.
fn pings_of_silent_connection(world: World) -> u32 {
    const READ_IDLE: Duration = ms(1_000);
    const HEARTBEAT: Duration = ms(300);
    let server = Server::start(world, &["--read-idle", "1s", "--heartbeat", "300ms"]);
    let start = Instant::now();
    let mut stream = server.connect();
    let mut pings = 0;
    let mut line = [0; 5];
    loop {
        match stream.read_exact(&mut line) {
            Ok(()) => {
                pings += 1;
                assert_eq!(&line, b"PING\n", "{world:?}");
                assert!(start.elapsed() >= HEARTBEAT * pings, "{world:?}: PING {pings}");
            }
            Err(error) if is_closed(&error) => break,
            Err(error) => panic!("{world:?}: {error}"),
        }
    }
    assert!(start.elapsed() >= READ_IDLE, "{world:?}: {:?}", start.elapsed());
    assert!(pings <= 3, "{world:?}: {pings}");
    server.wait_for("pending", 0);
    let ended = server.stop(Signal::TERM);
    // The connection has one entry for all deadlines, and another entry after each of them.
    assert_eq!(ended.sum(|shard| shard.scheduled), u64::from(pings) + 2, "{world:?}");
    assert!(ended.sum(|shard| shard.fired) > u64::from(pings), "{world:?}: {ended:?}");
    pings
}

#[test]
fn echo_postpones_the_next_ping() {
    const HEARTBEAT: Duration = ms(400);
    in_every_world(|world| {
        let server = Server::start(world, &["--heartbeat", "400ms"]);
        let mut stream = server.connect();
        thread::sleep(ms(250));
        let start = Instant::now();
        stream.write_all(b"here\n").unwrap();
        read_to(&mut stream, "here\nPING\n");
        assert!(start.elapsed() >= HEARTBEAT, "{world:?}: {:?}", start.elapsed());
    });
}

#[test]
fn active_connection_outlives_its_read_idle() {
    const READ_IDLE: Duration = ms(1_000);
    in_every_world(|world| {
        let server = Server::start(world, &["--read-idle", "1s", "--heartbeat", "0"]);
        // On a busy machine this client may pause too long by itself; then it tries again.
        for _ in 0..10 {
            if stays_active(&server, READ_IDLE) {
                return;
            }
        }
        panic!("{world:?}: this machine is too busy to keep a connection active");
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
            assert!(before.elapsed() >= read_idle, "an active connection was closed");
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
fn max_age_closes_an_active_connection() {
    const MAX_AGE: Duration = ms(700);
    in_every_world(|world| {
        let server = Server::start(world, &["--max-age", "700ms"]);
        let start = Instant::now();
        let mut stream = server.connect();
        while echo(&mut stream, "still here\n").is_ok() {
            assert!(start.elapsed() < PATIENCE, "{world:?}: the connection stays open");
        }
        assert!(start.elapsed() >= MAX_AGE, "{world:?}: {:?}", start.elapsed());
        server.wait_for("pending", 0);
        let ended = server.stop(Signal::TERM);
        assert_eq!(ended.sum(|shard| shard.fired), 1, "{world:?}");
    });
}

#[test]
fn max_age_closes_a_connection_that_never_pauses() {
    const MAX_AGE: Duration = ms(700);
    in_every_world(|world| {
        let server = Server::start(world, &["--max-age", "700ms"]);
        let start = Instant::now();
        let mut stream = server.connect();
        thread::scope(|scope| {
            let mut writer = stream.try_clone().unwrap();
            scope.spawn(move || while writer.write_all(&[b'x'; 1 << 14]).is_ok() {});
            read_to_end(&mut stream);
            assert!(start.elapsed() >= MAX_AGE, "{world:?}: {:?}", start.elapsed());
            // The writer ends too, as its writes fail.
        });
        server.wait_for("pending", 0);
    });
}

#[test]
fn deadline_of_zero_is_disabled() {
    in_every_world(|world| {
        let off = ["--read-idle", "0", "--heartbeat", "0s", "--max-age", "0"];
        let server = Server::start(world, &off);
        let mut stream = server.connect();
        assert!(is_silent(&mut stream, ms(1_500)), "{world:?}");
        echo(&mut stream, "still here\n").unwrap();
        let ended = server.stop(Signal::TERM);
        // The connection has an entry that is never due.
        assert_eq!(ended.sum(|shard| shard.scheduled), 1, "{world:?}");
        assert_eq!(ended.sum(|shard| shard.fired), 0, "{world:?}");
    });
}

#[test]
fn client_that_does_not_read_is_closed_by_read_idle() {
    in_every_world(|world| {
        let options = ["--read-idle", "700ms", "--heartbeat", "100ms", "--write-timeout", "0"];
        closes_a_client_that_does_not_read(&Server::start(world, &options), ms(700));
    });
}

#[test]
fn client_that_does_not_read_is_closed_by_the_limit_of_writing_between_heartbeats() {
    in_every_world(|world| {
        let options = ["--read-idle", "0", "--heartbeat", "100ms", "--write-timeout", "700ms"];
        closes_a_client_that_does_not_read(&Server::start(world, &options), ms(700));
    });
}

#[test]
fn client_that_does_not_read_is_closed_by_max_age() {
    in_every_world(|world| {
        let options = ["--read-idle", "0", "--heartbeat", "100ms", "--max-age", "700ms"];
        closes_a_client_that_does_not_read(&Server::start(world, &options), ms(700));
    });
}

fn closes_a_client_that_does_not_read(server: &Server, deadline: Duration) {
    let start = Instant::now();
    let mut stream = server.connect();
    fill(&mut stream);
    assert!(server.count("pending") > 0 || start.elapsed() >= deadline, "{:?}", server.world);
    // The server closes the connection although it cannot write its data.
    server.wait_for("pending", 0);
    assert!(start.elapsed() >= deadline, "{:?}: {:?}", server.world, start.elapsed());
    read_to_end(&mut stream);
}

/// Writes until the socket is full or the connection is closed.
fn fill(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(ms(100))).unwrap();
    loop {
        match stream.write(&[b'x'; 1 << 14]) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return;
            }
            // A signal has interrupted the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                assert!(is_closed(&error), "{error}");
                return;
            }
        }
    }
}
