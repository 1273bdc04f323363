//! The echo server: data comes back, and closed connections leave no timers.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::thread;
use std::time::Duration;

use corewheel_test_support::sockets::{read_to, read_to_end};
use rustix::process::Signal;
use serde_json::Value;
use socket2::SockRef;

use crate::server::{Server, sum};
use crate::{in_every_world, worlds};

#[test]
fn two_megabytes_come_back_in_order() {
    in_every_world(|world| {
        let server = Server::start(world, &[]);
        let mut stream = server.connect();
        let sent: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 251) as u8).collect();
        let received = thread::scope(|scope| {
            let mut writer = stream.try_clone().unwrap();
            let sent = &sent;
            scope.spawn(move || {
                writer.write_all(sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            read_to_end(&mut stream)
        });
        assert!(received == sent, "{} bytes came back", received.len());
    });
}

#[test]
fn clients_that_leave_in_any_way_leave_no_timers() {
    in_every_world(|world| {
        let server = Server::start(world, &["--max-age", "1h"]);
        let (gentle, mut silent) = (server.connect_and_echo(1), server.connect());
        let [mut half, mut reset] = server.connect_and_echo(2).try_into().unwrap();
        server.wait_for("pending", 4);
        drop(gentle);
        // The server still sends the line back.
        half.write_all(b"last words\n").unwrap();
        half.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut half), b"last words\n");
        silent.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut silent), b"");
        // Closing with a linger time of zero resets the connection.
        SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
        reset.write_all(b"never mind\n").unwrap();
        drop(reset);
        server.wait_for("pending", 0);
        assert_eq!(sum(&server.stop(Signal::TERM), "cancelled"), 4);
    });
}

#[test]
fn statistics_change_while_the_server_serves() {
    in_every_world(|world| {
        let server = Server::start(world, &["--heartbeat", "50ms"]);
        let mut stream = server.connect();
        while server.count("fired") < 3 {
            stream.write_all(b"hello\n").unwrap();
            read_to(&mut stream, "PING\n").unwrap();
        }
        let stats: Value = serde_json::from_str(&server.fetch("/stats.json")).unwrap();
        assert_eq!(stats["name"], "idle_server");
        assert_eq!(stats["runtime"], world.expected);
        assert_eq!(server.count("pending"), 1);
        // Activity of a connection stores an activity stamp, and resets no timer.
        assert_eq!((server.count("reset_lazy"), server.count("reset_relinked")), (0, 0));
        let metrics = server.fetch("/metrics");
        let fired = metrics.lines().filter(|line| line.contains("fired") && !line.starts_with('#'));
        let counts = fired.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        assert!(counts.sum::<f64>() >= 3.0, "{metrics}");
    });
}

#[test]
fn server_on_ipv6_echoes_lines() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this host has no IPv6");
        return;
    }
    for world in worlds().filter(|world| world.runtime != "auto") {
        Server::start_at(world, "[::1]:0", &[]).connect_and_echo(1);
    }
}
