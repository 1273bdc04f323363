//! Clients that break the protocol, do not read, hold too much, or are too many.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use corewheel_test_support::wait_until;
use redis::{Commands, Connection, cmd};

use crate::server::{Server, Socket, request};

fn is_served(server: &Server) {
    server.socket().expect(b"PING\r\n", b"+PONG\r\n");
}

/// A number of `INFO`.
fn info(client: &mut Connection, name: &str) -> u64 {
    let text: String = cmd("INFO").query(client).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

#[test]
fn malformed_request_is_refused_and_ends_its_connection_only() {
    let (protocol, http) = ("-ERR Protocol error", "-ERR this is no HTTP server");
    let nested = b"*1\r\n".repeat(10_000);
    let requests: [(&[u8], &str); 6] = [
        (b"*x\r\n", protocol),
        (b"*9999999999\r\n", protocol),
        (b"*1\r\n$200000\r\n", protocol),
        // A reset may overtake the reply, where the server has not read all bytes.
        (&nested, ""),
        // A browser may be misled to send commands in the body of its request.
        (b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nFLUSHALL\r\n", http),
        (b"GET / HTTP/1.1\r\nHost: localhost:6380\r\n\r\nFLUSHALL\r\n", http),
    ];
    for (runtime, server) in Server::on_each_runtime(&["--request-max", "100000"]) {
        // The greatest size, in pieces of which some are single bytes.
        let set = request(&[b"SET", b"k", &vec![b'x'; 99_900]]);
        let mut socket = server.socket();
        socket.0.set_nodelay(true).unwrap();
        set[..40].iter().for_each(|byte| socket.send(&[*byte]));
        socket.expect(&set[40..], b"+OK\r\n");
        for (request, problem) in requests {
            let mut socket = server.socket();
            socket.expect(b"PING\r\n", b"+PONG\r\n");
            socket.send(request);
            let (rest, shown) = (socket.rest(), request.escape_ascii());
            assert!(rest.contains(problem) && !rest.contains('+'), "{runtime} {shown}: {rest}");
        }
        socket.expect(b"GET k\r\n", b"$99900\r\nx");
    }
}

#[test]
fn pipeline_of_large_values_is_held_back_until_the_client_reads() {
    const VALUE: usize = 1_000_000;
    const GETS: usize = 150;
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        // For any connection, one of the keys is on the other core.
        for number in 0..8 {
            let () = client.set(format!("k{number}"), vec![b'x'; VALUE]).unwrap();
        }
        let mut socket = server.socket();
        // Many small replies come first, so that nothing speaks for large ones.
        socket.expect(&b"GET a\r\nGET b\r\n".repeat(10_000), &b"$-1\r\n".repeat(20_000));
        let before = server.resident();
        let mut received = vec![0; VALUE + "$1000000\r\n".len() + 2];
        for key in 0..8 {
            socket.send(format!("GET k{key}\r\n").repeat(GETS).as_bytes());
            socket.0.read_exact(&mut received).unwrap();
            for _ in 0..10 {
                let grown = server.resident().saturating_sub(before);
                assert!(grown < 60_000_000, "{runtime}: {grown} bytes for one client");
                std::thread::sleep(Duration::from_millis(5));
            }
            for number in 1..GETS {
                socket.0.read_exact(&mut received).unwrap();
                assert!(received.starts_with(b"$1000000\r\nx"), "{runtime}: reply {number}");
                assert!(received.ends_with(b"x\r\n"), "{runtime}: reply {number}");
            }
        }
    }
}

#[test]
fn client_that_does_not_read_its_replies_is_disconnected() {
    for (runtime, server) in Server::on_each_runtime(&["--write-timeout", "300ms"]) {
        let mut socket = server.socket();
        socket.expect(&request(&[b"SET", b"k", &vec![b'x'; 1_000_000]]), b"+OK\r\n");
        // It is never read on; the server stops to read it, too, and ends it.
        socket.0.set_nonblocking(true).unwrap();
        let requests = b"GET k\r\n".repeat(100);
        wait_until(&format!("{runtime}: it is disconnected"), || {
            // A part of the requests may be sent before the socket is full.
            let sent = (&socket.0).write_all(&requests);
            sent.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        });
        is_served(&server);
    }
}

#[test]
fn client_beyond_the_greatest_number_is_refused_until_another_leaves() {
    for (runtime, server) in Server::on_each_runtime(&["--clients-max", "2"]) {
        let (mut first, mut second) = (server.client(), server.socket());
        second.expect(b"PING\r\n", b"+PONG\r\n");
        assert!(server.socket().rest().starts_with("-ERR max number of clients"), "{runtime}");
        assert_eq!(info(&mut first, "rejected_connections"), 1, "{runtime}");
        drop(second);
        wait_until("a client is accepted again", || {
            let mut again = server.socket();
            let _ = again.0.write_all(b"PING\r\nQUIT\r\n");
            again.rest().starts_with("+PONG")
        });
    }
}

#[test]
fn keys_that_use_up_their_timers_leave_those_of_clients() {
    for (runtime, server) in Server::on_each_runtime(&["--timers-max", "50"]) {
        let mut client = server.client();
        let set = |number: i32| cmd("SET").arg(number).arg(&["1", "EX", "1000"]).clone();
        let set = (0..300).filter(|number| set(*number).query::<()>(&mut client).is_ok());
        assert_eq!(set.count(), 100, "{runtime}: each core has timers for 50 keys");
        (0..20).for_each(|_| is_served(&server));
    }
}

#[test]
fn clients_together_are_held_to_their_limit_by_ending_the_largest() {
    // Each core has the half of it.
    for (runtime, server) in Server::on_each_runtime(&["--clients-memory-max", "8000000"]) {
        let mut client = server.client();
        let () = client.set("k", "v").unwrap();
        // Each sends 3 MB of a request, and not its end.
        let part = request(&[b"SET", b"large", &vec![b'x'; 4_000_000]]);
        let mut senders: Vec<Socket> = (0..10).map(|_| server.socket()).collect();
        for socket in &mut senders {
            // A socket that is ended meanwhile refuses the rest.
            let _ = socket.0.write_all(&part[..3_000_000]);
        }
        wait_until("six are ended", || info(&mut client, "evicted_clients") >= 6);
        wait_until("they hold no more than the limit", || {
            info(&mut client, "mem_clients") <= 8_000_000
        });
        assert_eq!(client.get("k"), Ok("v".to_owned()), "{runtime}: a small client stays");
    }
}

#[test]
fn subscriptions_and_words_of_clients_count_as_their_memory() {
    for (_, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let held = |client: &mut Connection| info(client, "mem_clients");
        let before = held(&mut client);
        let names: Vec<_> = (0..1_000).map(|number| format!("{number:010000}")).collect();
        let mut words: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        words.insert(0, b"SUBSCRIBE");
        let mut subscriber = server.socket();
        subscriber.send(&request(&words));
        let mut confirmed = vec![0; 10_000_000];
        subscriber.0.read_exact(&mut confirmed).unwrap();
        wait_until("the channels are counted", || held(&mut client) > before + 10_000_000);
        drop(subscriber);
        wait_until("the channels are gone", || held(&mut client) < before + 1_000_000);
        // Short words of a request that is not complete: each has its place and its length.
        let mut sender = server.socket();
        sender.send(&[b"*1048576\r\n".to_vec(), b"$0\r\n\r\n".repeat(1_000_000)].concat());
        wait_until("the words are counted", || held(&mut client) > before + 13_000_000);
    }
}

#[test]
fn events_are_held_to_their_bytes_at_each_subscriber_and_between_cores() {
    // Without a limit for the time of a write, only the bytes end a subscriber.
    let mut arguments = vec!["--notify-keyspace-events", "Ex", "--write-timeout", "0s"];
    arguments.extend(["--request-max", "100000000"]);
    for (runtime, server) in Server::on_each_runtime(&arguments) {
        let mut client = server.client();
        // What waits on the way to another core has room for all of the first, and a socket for
        // few. An event that there is no room for on the way is dropped, and counted.
        for (keys, bytes, dropped) in [(12, 5_000_000, 0), (1, 70_000_000, 1)] {
            // Enough connections that each core has some, wherever the kernel puts them.
            let mut subscribers: Vec<Socket> = (0..16).map(|_| server.socket()).collect();
            for socket in &mut subscribers {
                socket.expect(b"PSUBSCRIBE *\r\n", b"*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n");
            }
            for _ in 0..keys {
                let mut set = cmd("SET");
                set.arg(vec![b'n'; bytes]).arg(&["1", "PX", "1"]).exec(&mut client).unwrap();
            }
            wait_until(
                &format!("{runtime}: each subscriber is ended, and {dropped} events are dropped"),
                || {
                    let counted = ["evicted_clients", "events_dropped"];
                    let [ended, lost] = counted.map(|name| info(&mut client, name));
                    ended >= 16 && lost == dropped
                },
            );
            drop(subscribers);
            wait_until("their messages are gone", || {
                let held = ["connected_clients", "mem_clients"].map(|name| info(&mut client, name));
                held[0] == 1 && held[1] < 1_000_000
            });
        }
    }
}
