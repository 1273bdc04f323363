//! Clients that break the protocol, do not read, or are too many.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use redis::Commands;

use crate::server::{PATIENCE, Server};

fn is_served(server: &Server) {
    server.socket().expect(b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn malformed_request_is_refused_and_ends_its_connection_only() {
    for (runtime, server) in Server::on_each_runtime(&["--request-max", "100000"]) {
        let nested = b"*1\r\n".repeat(10_000);
        let requests: [&[u8]; 8] = [
            b"*x\r\n",
            b"*1\r\n:5\r\n",
            b"*1\r\n$-5\r\n",
            b"*1\r\n$4\r\nPINGxxxx",
            b"*9999999999\r\n",
            b"*1\r\n$99999999999999999999\r\n",
            b"*1\r\n$200000\r\n",
            &nested,
        ];
        for request in requests {
            let mut socket = server.socket();
            socket.send(b"*1\r\n$4\r\nPING\r\n");
            socket.send(request);
            let rest = socket.rest();
            let shown = request[..request.len().min(40)].escape_ascii();
            let refused = rest.starts_with("+PONG\r\n-ERR Protocol error");
            // A reset may overtake the reply, where the server has not read all bytes.
            assert!(refused || request.len() > 1_000, "{runtime} {shown}: {rest}");
        }
        is_served(&server);
    }
}

#[test]
fn request_that_trickles_in_is_answered() {
    for (_, server) in Server::on_each_runtime(&[]) {
        let mut socket = server.socket();
        socket.0.set_nodelay(true).unwrap();
        for byte in b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" {
            socket.send(&[*byte]);
        }
        socket.expect(b"", b"+OK\r\n$2\r\nvv\r\n");
    }
}

#[test]
fn request_of_the_greatest_size_is_served_and_a_larger_one_is_refused() {
    for (runtime, server) in Server::on_each_runtime(&["--request-max", "1000000"]) {
        let mut socket = server.socket();
        let value = vec![b'x'; 999_900];
        let set = |value: &[u8]| {
            let mut request =
                format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len()).into_bytes();
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
            request
        };
        socket.expect(&set(&value), b"+OK\r\n");
        socket.expect(b"STRLEN k\r\n", b":999900\r\n");
        socket.expect(b"APPEND k x\r\n", b":999901\r\n");
        let more = format!("*3\r\n$6\r\nAPPEND\r\n$1\r\nk\r\n$200\r\n{}\r\n", "x".repeat(200));
        socket.expect(more.as_bytes(), b"-ERR string exceeds maximum allowed size");
        let mut socket = server.socket();
        socket.send(&set(&vec![b'x'; 1_000_001])[..40]);
        assert!(socket.rest().contains("Protocol error"), "{runtime}");
    }
}

#[test]
fn client_that_does_not_read_its_replies_is_disconnected() {
    for (runtime, server) in Server::on_each_runtime(&["--write-timeout", "300ms"]) {
        let mut socket = server.socket();
        socket.expect(b"SET k 1\r\n", b"+OK\r\n");
        let value = vec![b'x'; 1_000_000];
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len());
        socket.send(head.as_bytes());
        socket.send(&value);
        socket.expect(b"\r\n", b"+OK\r\n");
        // It is never read on; the server stops to read it, too, and ends it.
        socket.0.set_nonblocking(true).unwrap();
        let begin = Instant::now();
        let requests = b"GET k\r\n".repeat(100);
        let is_ended = || {
            // A part of the requests may be sent before the socket is full.
            let sent = (&socket.0).write_all(&requests);
            sent.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        };
        while !is_ended() {
            assert!(begin.elapsed() < PATIENCE, "{runtime}: it is still connected");
            std::thread::sleep(Duration::from_millis(5));
        }
        is_served(&server);
    }
}

#[test]
fn subscriber_that_does_not_read_its_messages_is_disconnected() {
    for (runtime, server) in Server::on_each_runtime(&["--output-max", "100000"]) {
        let mut subscriber = server.socket();
        subscriber.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        let mut publisher = server.socket();
        let message = "x".repeat(10_000);
        let publish = format!("*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$10000\r\n{message}\r\n");
        let begin = Instant::now();
        loop {
            publisher.send(publish.as_bytes());
            let mut reply = [0; 4];
            std::io::Read::read_exact(&mut publisher.0, &mut reply).unwrap();
            if &reply == b":0\r\n" {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{runtime}: it is still subscribed");
        }
    }
}

#[test]
fn silent_client_is_disconnected_and_a_subscriber_stays() {
    for (runtime, server) in Server::on_each_runtime(&["--idle", "1s"]) {
        let mut subscriber = server.socket();
        subscriber.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        let mut silent = server.socket();
        silent.expect(b"PING\r\n", b"+PONG\r\n");
        let begin = Instant::now();
        assert_eq!(silent.rest(), "");
        assert!(begin.elapsed() >= Duration::from_millis(900), "{runtime}: it ended early");
        server.socket().expect(b"PUBLISH c m\r\n", b":1\r\n");
        subscriber.expect(b"", b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    }
}

#[test]
fn client_beyond_the_greatest_number_is_refused_until_another_leaves() {
    for (runtime, server) in Server::on_each_runtime(&["--clients-max", "2"]) {
        let (mut first, mut second) = (server.socket(), server.socket());
        first.expect(b"PING\r\n", b"+PONG\r\n");
        second.expect(b"PING\r\n", b"+PONG\r\n");
        let mut third = server.socket();
        assert!(third.rest().starts_with("-ERR max number of clients"), "{runtime}");
        first.send(b"INFO\r\nECHO end\r\n");
        let mut lines = std::iter::from_fn(|| Some(first.line()));
        assert!(lines.any(|line| line == "rejected_connections:1\r\n"), "{runtime}: it is counted");
        assert!(lines.any(|line| line == "end\r\n"));
        drop(second);
        let begin = Instant::now();
        loop {
            let mut again = server.socket();
            again.send(b"PING\r\nQUIT\r\n");
            if again.rest().starts_with("+PONG") {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{runtime}: it is refused for ever");
        }
    }
}

#[test]
fn keys_that_use_up_their_timers_leave_those_of_clients_and_of_the_housekeeping() {
    for (runtime, server) in Server::on_each_runtime(&["--timers-max", "50"]) {
        let mut client = server.client();
        let mut refused = 0;
        for number in 0..300 {
            let set: redis::RedisResult<()> = client.set_ex(format!("k{number}"), 1, 1_000);
            refused += usize::from(set.is_err());
        }
        assert_eq!(refused, 200, "{runtime}: each core has timers for 50 keys");
        // The housekeeping has begun to wait anew.
        std::thread::sleep(Duration::from_millis(1_500));
        for _ in 0..20 {
            is_served(&server);
        }
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut client).unwrap();
        let begin = Instant::now();
        while redis::cmd("DBSIZE").query(&mut client) != Ok(0) {
            assert!(begin.elapsed() < PATIENCE, "{runtime}: the housekeeping has ended");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn client_that_leaves_amid_requests_harms_no_other() {
    for (_, server) in Server::on_each_runtime(&[]) {
        for length in 1..40 {
            let mut socket = server.socket();
            let request =
                b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$4\r\nMGET\r\n$1\r\nk";
            socket.send(&request[..length.min(request.len())]);
        }
        is_served(&server);
    }
}
