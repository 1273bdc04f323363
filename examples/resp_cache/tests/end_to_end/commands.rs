//! Commands by the `redis` crate, on both runtimes, with keys on both cores.

use redis::{Commands, Connection, RedisResult, cmd, pipe};

use crate::server::Server;

fn on_both(check: impl Fn(&str, &Server, Connection)) {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        check(runtime, &server, server.client());
    }
}

#[test]
fn values_of_both_cores_are_written_and_read() {
    on_both(|runtime, _, mut client| {
        for number in 0..64 {
            let () = client.set(format!("k{number}"), number).unwrap();
        }
        for number in 0..64 {
            assert_eq!(client.get(format!("k{number}")), Ok(number), "{runtime}");
        }
        assert_eq!(client.get("none"), Ok(None::<String>));
        assert_eq!(client.incr("n", 41), Ok(41));
        assert_eq!(cmd("INCR").arg("n").query(&mut client), Ok(42));
        assert_eq!(client.get_del("n"), Ok("42".to_owned()));
        assert_eq!(client.exists("n"), Ok(0));
        let () = client.set("n", "x").unwrap();
        let not_a_number: RedisResult<i64> = client.incr("n", 1);
        assert!(not_a_number.unwrap_err().to_string().contains("not an integer"));
    });
}

#[test]
fn commands_over_several_cores_give_one_reply() {
    on_both(|runtime, _, mut client| {
        let names: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
        let mut asked: Vec<_> = names.iter().map(String::as_str).collect();
        asked.insert(50, "missing");
        for name in &names {
            let () = client.set(name, name).unwrap();
        }
        let mut expected: Vec<_> = names.iter().cloned().map(Some).collect();
        expected.insert(50, None);
        // More than once, in one pipeline: the total of each is that of its own keys.
        let mut pipeline = pipe();
        pipeline.mget(&asked).exists(&asked).del(&names[..60]).exists(&asked).del("none");
        let replies: (Vec<Option<String>>, i64, i64, i64, i64) =
            pipeline.query(&mut client).unwrap();
        assert_eq!(replies, (expected, 100, 60, 40, 0), "{runtime}");
        assert_eq!(cmd("DBSIZE").query(&mut client), Ok(40));
        let mut pipeline = pipe();
        pipeline.cmd("FLUSHALL").exists(&names).cmd("DBSIZE");
        assert_eq!(pipeline.query(&mut client), Ok(("OK".to_owned(), 0, 0)), "{runtime}");
        // Beyond the requests and the bytes that wait for other cores.
        let many: Vec<_> =
            (0..5_000).map(|number| format!("{number}{}", "n".repeat(500))).collect();
        let mut pipeline = pipe();
        for name in &many {
            pipeline.set(name, 1).ignore();
        }
        pipeline.exists(&many).del(&many).exists(&many);
        assert_eq!(pipeline.query(&mut client), Ok((5_000, 5_000, 0)), "{runtime}");
    });
}

#[test]
fn pipeline_over_both_cores_is_answered_in_order() {
    on_both(|runtime, _, mut client| {
        let mut pipeline = pipe();
        for number in 0..5_000 {
            pipeline.set(format!("k{number}"), number).ignore();
            pipeline.get(format!("k{number}")).cmd("PING").ignore();
            if number % 1_000 == 0 {
                pipeline.cmd("DBSIZE");
            }
        }
        let replies: Vec<i64> = pipeline.query(&mut client).unwrap();
        let expected = (0..5_000).flat_map(|number| {
            let size = (number % 1_000 == 0).then_some(number + 1);
            [Some(number), size].into_iter().flatten()
        });
        assert_eq!(replies, expected.collect::<Vec<_>>(), "{runtime}");
    });
}

#[test]
fn set_and_getex_honour_their_options() {
    on_both(|runtime, server, mut client| {
        let mut socket = server.socket();
        let error = "-ERR syntax error\r\n";
        for (request, reply) in [
            ("SET k 1 XX", "$-1\r\n"),
            ("SET k 1 NX", "+OK\r\n"),
            ("SET k 2 NX", "$-1\r\n"),
            ("SET k 3 EX 5000 EX 900 GET", "$1\r\n1\r\n"),
            ("TTL k", ":900\r\n"),
            ("SET k 4 KEEPTTL", "+OK\r\n"),
            ("TTL k", ":900\r\n"),
            ("SET k 5", "+OK\r\n"),
            ("TTL k", ":-1\r\n"),
            ("TTL none", ":-2\r\n"),
            ("SET k 5 EX 5 PX 9", error),
            ("SET k 5 KEEPTTL EX 9", error),
            ("SET k 5 EX", error),
            ("SET k 5 NX XX", error),
            ("SET k 5 EX 0", "-ERR invalid expire time in 'set' command\r\n"),
            ("SET k 5 EX 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
            ("GETEX k EX 5 PX 9", error),
            ("GETEX k EX 5 PERSIST", error),
            ("GETEX k PX 5000 PX 900000", "$1\r\n5\r\n"),
            ("TTL k", ":900\r\n"),
            ("GETEX k", "$1\r\n5\r\n"),
            ("PERSIST k", ":1\r\n"),
            ("PERSIST k", ":0\r\n"),
            ("EXPIRE k 900", ":1\r\n"),
            ("GETEX k PERSIST", "$1\r\n5\r\n"),
            ("TTL k", ":-1\r\n"),
            ("PEXPIRE k 900000", ":1\r\n"),
            ("TTL k", ":900\r\n"),
            ("PEXPIRE k -1", ":1\r\n"),
            ("EXISTS k", ":0\r\n"),
            ("EXPIRE k 9", ":0\r\n"),
            ("SET k 1 EXAT 1", "+OK\r\n"),
            ("GET k", "$-1\r\n"),
        ] {
            let shown = format!("{request}\r\n");
            socket.expect(shown.as_bytes(), reply.as_bytes());
        }
        let at = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 900;
        let () = cmd("SET").arg(&["k", "v", "EXAT"]).arg(at).query(&mut client).unwrap();
        let left: i64 = client.ttl("k").unwrap();
        assert!((800..=901).contains(&left), "{runtime}: {left}");
    });
}

#[test]
fn refused_command_leaves_the_connection_open() {
    on_both(|_, server, mut client| {
        let refused: RedisResult<()> = cmd("LPUSH").arg("k").arg("v").query(&mut client);
        assert!(refused.unwrap_err().to_string().contains("unknown command"));
        let refused: RedisResult<()> = cmd("GET").query(&mut client);
        assert!(refused.unwrap_err().to_string().contains("wrong number of arguments"));
        let mut socket = server.socket();
        let mut ask = |words: &[&[u8]], reply: &str| {
            let request = crate::server::request(words);
            socket.expect(&request, reply.as_bytes());
        };
        let name = "cannot contain spaces, newlines or special characters.\r\n";
        for bad in [&b"a\nb"[..], b"a b", b"a\r\nb", b"1\n0"] {
            ask(&[b"CLIENT", b"SETINFO", b"LIB-NAME", bad], &format!("-ERR lib-name {name}"));
            ask(&[b"CLIENT", b"SETINFO", b"lib-ver", bad], &format!("-ERR lib-ver {name}"));
            ask(&[b"CLIENT", b"SETNAME", bad], &format!("-ERR Client names {name}"));
            ask(&[b"HELLO", b"2", b"SETNAME", bad], &format!("-ERR Client names {name}"));
        }
        ask(&[b"CLIENT", b"SETINFO", b"lib-name", b""], "+OK\r\n");
        ask(&[b"CLIENT", b"SETINFO", b"lib-name", &vec![b'x'; 100_000]], "+OK\r\n");
        ask(&[b"CLIENT", b"SETINFO", b"foo", b"bar"], "-ERR Unrecognized option 'foo'\r\n");
        ask(&[b"SELECT", b"1"], "-ERR DB index is out of range\r\n");
        ask(&[b"SELECT", b"0"], "+OK\r\n");
    });
}

#[test]
fn resp3_client_is_answered_with_the_types_of_resp3() {
    on_both(|_, server, _| {
        let mut socket = server.socket();
        socket.expect(b"GET none\r\n", b"$-1\r\n");
        socket.expect(b"HELLO 3\r\n", b"%7\r\n$6\r\nserver\r\n");
        while socket.line() != "*0\r\n" {}
        socket.expect(b"GET none\r\n", b"_\r\n");
        socket.expect(b"CONFIG GET maxmemory\r\n", b"%1\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n");
        socket.expect(b"SUBSCRIBE c\r\n", b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        socket.expect(b"PING\r\n", b"+PONG\r\n");
    });
}
