//! What clients hold of the server's memory, and what a browser may make them send.

use std::io::Read;
use std::time::{Duration, Instant};

use redis::{Commands, Connection, cmd};

use crate::server::{PATIENCE, Server, Socket};

/// A number of `INFO`.
fn info(client: &mut Connection, name: &str) -> u64 {
    let text: String = cmd("INFO").query(client).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

#[test]
fn subscribers_that_do_not_read_are_ended_at_their_limit() {
    const LIMIT: u64 = 1_000_000;
    // Without a limit for the time of a write, only the bytes end them.
    let arguments = ["--output-max", "1000000", "--write-timeout", "0s"];
    for (runtime, server) in Server::on_each_runtime(&arguments) {
        let mut slow: Vec<Socket> = (0..10).map(|_| server.socket()).collect();
        for socket in &mut slow {
            socket.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        }
        let mut client = server.client();
        let message = "x".repeat(100_000);
        let begin = Instant::now();
        let mut reached = 10;
        while reached > 0 {
            reached = client.publish("c", &message).unwrap();
            let held = info(&mut client, "mem_clients");
            assert!(held < 10 * (LIMIT + 500_000), "{runtime}: clients hold {held} bytes");
            assert!(begin.elapsed() < PATIENCE, "{runtime}: {reached} subscribers are left");
        }
        wait_until("they are still connected", || info(&mut client, "connected_clients") == 1);
        assert_eq!(info(&mut client, "client_output_buffer_limit_disconnections"), 10);
        assert!(info(&mut client, "mem_clients") < 100_000);
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
            let _ = std::io::Write::write_all(&mut socket.0, &part[..3_000_000]);
        }
        wait_until("none is ended", || info(&mut client, "evicted_clients") >= 6);
        wait_until("they hold too much", || info(&mut client, "mem_clients") <= 8_000_000);
        assert_eq!(client.get("k"), Ok("v".to_owned()), "{runtime}: a small client stays");
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
        socket.expect(b"PING\r\n", b"+PONG\r\n");
        // One reply of many values, and a pipeline whose replies are not wanted.
        let names: Vec<String> = (0..40).map(|number| format!("k{}", number % 8)).collect();
        let values: Vec<Vec<u8>> = client.mget(&names).unwrap();
        assert!(values.iter().all(|value| value.len() == VALUE), "{runtime}");
        socket.send(b"CLIENT REPLY OFF\r\n");
        socket.send(&b"GET k1\r\nGET k2\r\n".repeat(50));
        socket.expect(b"CLIENT REPLY ON\r\nPING\r\n", b"+OK\r\n+PONG\r\n");
    }
}

#[test]
fn request_of_a_browser_is_refused_before_its_body_is_read_as_commands() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let () = client.set("k", "v").unwrap();
        for head in ["POST / HTTP/1.1", "GET / HTTP/1.1\r\nHost: localhost:6380"] {
            let mut socket = server.socket();
            socket.send(format!("{head}\r\nContent-Length: 10\r\n\r\nFLUSHALL\r\n").as_bytes());
            let rest = socket.rest();
            assert!(rest.contains("-ERR this is no HTTP server"), "{runtime}: {rest}");
            assert!(!rest.contains("+OK"), "{runtime}: {rest}");
        }
        assert_eq!(client.get("k"), Ok("v".to_owned()), "{runtime}");
    }
}

#[test]
fn clients_are_listed_with_what_they_are_and_hold() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut named = server.socket();
        named.expect(b"CLIENT SETNAME tester\r\nSUBSCRIBE c d\r\n", b"+OK\r\n*3\r\n");
        let mut client = server.client();
        let list: String = cmd("CLIENT").arg("LIST").query(&mut client).unwrap();
        assert_eq!(list.lines().count(), 2, "{runtime}: {list}");
        let line = list.lines().find(|line| line.contains("name=tester")).unwrap();
        let address = named.0.local_addr().unwrap();
        for part in [format!("addr={address}"), "sub=2".into(), "cmd=subscribe".into()] {
            assert!(line.split(' ').any(|word| word == part), "{runtime}: {part} in {line}");
        }
        let own: String = cmd("CLIENT").arg("INFO").query(&mut client).unwrap();
        assert!(own.contains("cmd=client"), "{own}");
    }
}

#[test]
fn names_and_words_of_clients_count_as_their_memory() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let held = |client: &mut Connection| info(client, "mem_clients");
        let before = held(&mut client);
        let names: Vec<Vec<u8>> =
            (0..1_000).map(|number| format!("{number:010000}").into_bytes()).collect();
        let words: Vec<&[u8]> =
            [&b"SUBSCRIBE"[..]].into_iter().chain(names.iter().map(Vec::as_slice)).collect();
        let mut subscriber = server.socket();
        subscriber.send(&request(&words));
        let mut confirmed = vec![0; 10_000_000];
        subscriber.0.read_exact(&mut confirmed).unwrap();
        wait_until("the channels are not counted", || held(&mut client) > before + 10_000_000);
        drop(subscriber);
        wait_until("the channels stay", || held(&mut client) < before + 1_000_000);
        // Short words of a request that is not complete: each has its place and its length.
        let mut sender = server.socket();
        sender.send(&[b"*1048576\r\n".to_vec(), b"$0\r\n\r\n".repeat(1_000_000)].concat());
        wait_until("the words are not counted", || held(&mut client) > before + 13_000_000);
        for named in [&[b"CLIENT", &b"SETNAME"[..]][..], &[b"HELLO", b"2", b"SETNAME"]] {
            let name = [b'n'; 2_000];
            let words = [named, &[&name[..]]].concat();
            let mut socket = server.socket();
            socket.send(&request(&words));
            assert!(socket.line().starts_with("-ERR Client names"), "{runtime}");
        }
    }
}

#[test]
fn lowered_limit_for_messages_holds_for_those_who_have_subscribed() {
    for (runtime, server) in Server::on_each_runtime(&["--write-timeout", "0s"]) {
        let mut slow = server.socket();
        slow.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        let mut client = server.client();
        let limit = ["SET", "client-output-buffer-limit", "pubsub 1mb 0 0"];
        let () = cmd("CONFIG").arg(&limit).query(&mut client).unwrap();
        let message = "x".repeat(100_000);
        // The socket's own buffers take some megabytes; the limit at first was 32.
        let reached = (0..250).map(|_| client.publish("c", &message).unwrap());
        assert_eq!(reached.min(), Some(0), "{runtime}: it is still subscribed");
    }
}

#[test]
fn events_for_another_core_are_held_to_their_bytes() {
    const KEYS: usize = 80;
    let arguments = ["--notify-keyspace-events", "Ee"];
    for (runtime, server) in Server::on_each_runtime(&arguments) {
        // Enough connections that each core has some, wherever the kernel puts them.
        let mut subscribers: Vec<Socket> = (0..16).map(|_| server.socket()).collect();
        for socket in &mut subscribers {
            socket.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        }
        let mut client = server.client();
        // All are on one core, whose housekeeping evicts them together, and then sends the events.
        for number in 0..KEYS {
            let key = format!("{{t}}{number}{}", "n".repeat(1_000_000));
            let () = client.set_ex(key, 1, 1_000).unwrap();
        }
        let () = cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut client).unwrap();
        wait_until("the keys stay", || info(&mut client, "evicted_keys") as usize == KEYS);
        wait_until("no event is dropped", || info(&mut client, "events_dropped") > 0);
        let dropped = info(&mut client, "events_dropped") as usize;
        assert!((10..KEYS).contains(&dropped), "{runtime}: {dropped} events are dropped");
        let mut again = server.socket();
        again.expect(b"PING\r\n", b"+PONG\r\n");
    }
}

#[test]
fn statistics_of_info_begin_again_at_a_reset() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        for number in 0..100 {
            let () = client.set(number, "x").unwrap();
        }
        assert!(info(&mut client, "total_commands_processed") >= 100, "{runtime}");
        let () = cmd("CONFIG").arg("RESETSTAT").query(&mut client).unwrap();
        assert!(info(&mut client, "total_commands_processed") < 100, "{runtime}");
        let () = client.pset_ex(0, "x", 1).unwrap();
        wait_until("a key expires after the reset", || info(&mut client, "expired_keys") == 1);
        let left: u64 = cmd("DBSIZE").query(&mut client).unwrap();
        assert_eq!(left, 99, "{runtime}: no key is lost");
    }
}
