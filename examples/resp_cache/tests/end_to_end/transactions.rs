//! Transactions, and commands on several keys that are on one core.

use redis::{Commands, Connection, RedisResult, Value, cmd, pipe};

use crate::server::Server;

fn refused<T: std::fmt::Debug>(result: RedisResult<T>, word: &str) {
    let text = result.unwrap_err().to_string().to_lowercase();
    assert!(text.contains(&word.to_lowercase()), "{word} is not in {text}");
}

/// Two keys that are on different cores.
fn apart(client: &mut Connection) -> (String, String) {
    let other = (0..64).map(|number| format!("other{number}")).find(|other| {
        let renamed: RedisResult<i64> = cmd("COPY").arg("here").arg(other).query(client);
        renamed.is_err_and(|error| error.code() == Some("CROSSSLOT"))
    });
    ("here".to_owned(), other.expect("one of 64 keys is on the other core"))
}

#[test]
fn transaction_is_executed_as_a_whole_and_answered_in_one_reply() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        // On each of both cores, as the tags differ.
        for tag in 0..8 {
            let key = |name: &str| format!("{{{tag}}}{name}");
            let mut commands = pipe();
            commands.atomic().set(key("a"), 1).ignore().incr(key("a"), 41);
            commands.mget(&[key("a"), key("none")]).cmd("LPUSHX");
            let failed: RedisResult<Value> = commands.query(&mut client);
            refused(failed, "unknown command");
            assert_eq!(client.exists(key("a")), Ok(0), "{runtime}: none was executed");
            let mut commands = pipe();
            commands.atomic().set(key("a"), 1).ignore().incr(key("a"), 41);
            commands.mget(&[key("a"), key("none")]);
            let replies: (i64, (i64, Option<i64>)) = commands.query(&mut client).unwrap();
            assert_eq!(replies, (42, (42, None)), "{runtime}");
        }
    }
}

#[test]
fn commands_of_a_refused_transaction_are_not_executed() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let (here, there) = apart(&mut client);
        let mut commands = pipe();
        commands.atomic().incr(&here, 1).incr(&there, 1);
        let failed: RedisResult<Value> = commands.query(&mut client);
        refused(failed, "CROSSSLOT");
        let mut socket = server.socket();
        socket.expect(b"MULTI\r\n", b"+OK\r\n");
        socket.expect(format!("INCR {here}\r\n").as_bytes(), b"+QUEUED\r\n");
        socket.expect(format!("INCR {there}\r\n").as_bytes(), b"-CROSSSLOT Keys in request");
        let mut socket = server.socket();
        for refused in ["CLIENT LIST", "SUBSCRIBE c", "GET", "WATCH k", "KEYS *"] {
            socket.expect(b"MULTI\r\n", b"+OK\r\n");
            socket.expect(format!("INCR {here}\r\n").as_bytes(), b"+QUEUED\r\n");
            socket.send(format!("{refused}\r\n").as_bytes());
            let line = socket.line();
            assert!(line.starts_with("-ERR"), "{runtime}: {refused}: {line}");
            socket.expect(b"EXEC\r\n", b"-EXECABORT Transaction discarded");
            let _rest_of_the_line = socket.line();
        }
        assert_eq!(client.exists(&[here, there]), Ok(0), "{runtime}: none was executed");
        for wrong in [&b"EXEC\r\n"[..], b"DISCARD\r\n"] {
            socket.send(wrong);
            assert!(socket.line().contains("without MULTI"));
        }
        socket.expect(b"MULTI\r\nMULTI\r\n", b"+OK\r\n-ERR MULTI calls can not be nested\r\n");
        socket.expect(b"SET here 1\r\nDISCARD\r\n", b"+QUEUED\r\n+OK\r\n");
        socket.expect(b"GET here\r\nMULTI\r\nEXEC\r\n", b"$-1\r\n+OK\r\n*0\r\n");
        socket.expect(b"MULTI\r\nPING\r\nSET here 1\r\n", b"+OK\r\n+QUEUED\r\n+QUEUED\r\n");
        socket.expect(b"ECHO hi\r\nPUBLISH c m\r\n", b"+QUEUED\r\n+QUEUED\r\n");
        socket.expect(b"EXEC\r\n", b"*4\r\n+PONG\r\n+OK\r\n$2\r\nhi\r\n:0\r\n");
        socket.expect(b"MULTI\r\nCONFIG GET timeout\r\n", b"+OK\r\n+QUEUED\r\n");
        let timeout = b"*1\r\n*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n";
        socket.expect(b"EXEC\r\n", timeout);
        socket.expect(b"DEL here\r\n", b":1\r\n");
        socket.expect(b"MULTI\r\nRESET\r\nGET here\r\n", b"+OK\r\n+RESET\r\n$-1\r\n");
    }
}

#[test]
fn replies_to_a_transaction_are_held_to_their_limit() {
    for (runtime, server) in Server::on_each_runtime(&["--replies-max", "1000000"]) {
        let mut client = server.client();
        // On each of both cores, as the tags differ.
        for tag in 0..4 {
            let (key, count) = (format!("{{{tag}}}k"), format!("{{{tag}}}count"));
            let () = client.set(&key, "x".repeat(400_000)).unwrap();
            let before = server.resident();
            let mut socket = server.socket();
            socket.expect(b"MULTI\r\n", b"+OK\r\n");
            for _ in 0..500 {
                socket.send(format!("GET {key}\r\nMGET {key} {key} {key}\r\n").as_bytes());
            }
            socket.send(format!("INCR {count}\r\nEXEC\r\n").as_bytes());
            socket.expect(b"", "+QUEUED\r\n".repeat(1_001).as_bytes());
            socket.expect(b"", b"*1001\r\n$400000\r\n");
            let value = [vec![b'x'; 400_000], b"\r\n".to_vec()].concat();
            socket.expect(b"", &value);
            let refused = "-ERR the command was executed and its reply is left out";
            let mut left_out = 0;
            loop {
                match socket.line() {
                    line if line.starts_with(refused) => left_out += 1,
                    line if line.starts_with("$400000") => socket.expect(b"", &value),
                    line => {
                        assert_eq!(line, ":1\r\n", "{runtime}: what is small is replied");
                        break;
                    }
                }
            }
            assert_eq!(left_out, 998, "{runtime}: there is room for two values");
            let grown = server.resident().saturating_sub(before);
            assert!(grown < 50_000_000, "{runtime}: {grown} bytes");
        }
        // A list of keys, too, and SCAN goes on in smaller parts.
        for number in 0..200 {
            let () = client.set(format!("{number}{}", "n".repeat(20_000)), 1).unwrap();
        }
        let keys: RedisResult<Vec<String>> = cmd("KEYS").arg("*").query(&mut client);
        refused(keys, "use SCAN");
        let (mut cursor, mut found) = (0_u64, 0);
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("COUNT").arg(100_000);
            let (next, keys): (u64, Vec<String>) = scan.query(&mut client).unwrap();
            assert!(keys.len() < 50, "{runtime}: {} keys of 20 kB", keys.len());
            found += keys.len();
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(Ok(found), cmd("DBSIZE").query(&mut client), "{runtime}");
    }
}

#[test]
fn pairs_that_do_not_fit_together_are_not_written_at_all() {
    // Each core has the half of it.
    for (runtime, server) in Server::on_each_runtime(&["--memory-max", "400000"]) {
        let mut client = server.client();
        let value = "x".repeat(30_000);
        for name in ["MSET", "MSETNX"] {
            let mut pairs = cmd(name);
            for number in 0..10 {
                pairs.arg(format!("{{t}}{number}")).arg(&value);
            }
            refused(pairs.query::<Value>(&mut client), "maxmemory");
            assert_eq!(cmd("DBSIZE").query(&mut client), Ok(0), "{runtime}: {name}");
        }
        let mut pairs = cmd("MSET");
        for number in 0..5 {
            pairs.arg(format!("{{t}}{number}")).arg(&value);
        }
        let () = pairs.query(&mut client).unwrap();
        let () = pairs.query(&mut client).unwrap();
        assert_eq!(cmd("DBSIZE").query(&mut client), Ok(5), "{runtime}: in their own place");
    }
}

#[test]
fn transactions_of_several_clients_do_not_mix() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let clients = (0..4).map(|_| server.client());
        let threads: Vec<_> = clients
            .map(|mut client| {
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let mut commands = pipe();
                        commands.atomic().incr("{t}a", 1).incr("{t}b", 1);
                        let (a, b): (i64, i64) = commands.query(&mut client).unwrap();
                        assert_eq!(a, b);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut client = server.client();
        assert_eq!(client.mget(&["{t}a", "{t}b"]), Ok((800, 800)), "{runtime}");
    }
}

#[test]
fn key_is_renamed_and_copied_with_its_time_to_live() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        // A point in time, which is the same however long the test takes.
        let at: i64 = 20_000_000_000;
        let time_of = |client: &mut Connection, key: &str| -> i64 {
            cmd("EXPIRETIME").arg(key).query(client).unwrap()
        };
        let () = cmd("SET").arg(&["{t}a", "v", "EXAT"]).arg(at).query(&mut client).unwrap();
        let () = cmd("RENAME").arg("{t}a").arg("{t}b").query(&mut client).unwrap();
        assert_eq!(client.exists("{t}a"), Ok(0), "{runtime}");
        assert_eq!(time_of(&mut client, "{t}b"), at);
        assert_eq!(cmd("COPY").arg("{t}b").arg("{t}c").query(&mut client), Ok(1));
        assert_eq!(time_of(&mut client, "{t}c"), at);
        let () = client.set("{t}d", "w").unwrap();
        assert_eq!(cmd("COPY").arg("{t}d").arg("{t}c").query(&mut client), Ok(0));
        let mut replace = cmd("COPY");
        replace.arg("{t}d").arg("{t}c").arg("REPLACE");
        assert_eq!(replace.query(&mut client), Ok(1));
        assert_eq!(client.ttl("{t}c"), Ok(-1));
        assert_eq!(client.get("{t}c"), Ok("w".to_owned()));
        assert_eq!(cmd("RENAMENX").arg("{t}c").arg("{t}b").query(&mut client), Ok(0));
        assert_eq!(cmd("RENAMENX").arg("{t}c").arg("{t}e").query(&mut client), Ok(1));
        let none: RedisResult<()> = cmd("RENAME").arg("{t}none").arg("{t}x").query(&mut client);
        refused(none, "no such key");
        let (here, there) = apart(&mut client);
        let across: RedisResult<()> = cmd("RENAME").arg(here).arg(there).query(&mut client);
        refused(across, "CROSSSLOT");
        let mut pairs = cmd("MSETNX");
        pairs.arg("{t}m").arg(1).arg("{t}n").arg(2);
        assert_eq!(pairs.query(&mut client), Ok(1));
        assert_eq!(pairs.query(&mut client), Ok(0));
    }
}
