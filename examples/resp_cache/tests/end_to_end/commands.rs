//! Commands by the `redis` crate and by sockets, on both runtimes, with keys on both cores.

use redis::{Commands, cmd, pipe};

use crate::server::Server;

#[test]
fn requests_are_answered_as_redis_does() {
    let (syntax, time) = ("-ERR syntax error\r\n", "-ERR invalid expire time in 'set' command\r\n");
    let later = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 900;
    let rows = [
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
        ("SET k 5 EX 5 PX 9|SET k 5 KEEPTTL EX 9|SET k 5 EX|SET k 5 NX XX", syntax),
        ("SET k 5 EX 0|SET k 5 EX 9223372036854775807", time),
        ("GETEX k EX 5 PX 9|GETEX k EX 5 PERSIST", syntax),
        ("GETEX k PX 5000 PX 900000", "$1\r\n5\r\n"),
        ("TTL k", ":900\r\n"),
        ("PERSIST k", ":1\r\n"),
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
        (&format!("SET k x EXAT {later}"), "+OK\r\n"),
        ("INCR k", "-ERR value is not an integer or out of range\r\n"),
        ("INCRBY n 41", ":41\r\n"),
        ("INCR n", ":42\r\n"),
        ("GETDEL n", "$2\r\n42\r\n"),
        ("EXISTS n", ":0\r\n"),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("CLIENT SETINFO lib-name x", "+OK\r\n"),
        ("CLIENT LIST", "-ERR unknown subcommand of 'client'\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("GET none", "$-1\r\n"),
        // From here on by RESP3.
        ("HELLO 3 SETNAME x", "%7\r\n$6\r\nserver\r\n$10\r\nresp_cache\r\n$7\r\nversion\r\n"),
        ("", "$5\r\n7.2.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"),
        ("", "$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n$7\r\nmodules\r\n*0\r\n"),
        ("GET none", "_\r\n"),
        ("CONFIG GET maxmemory", "%1\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n"),
        ("SUBSCRIBE c", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
        ("PING", "+PONG\r\n"),
    ];
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut socket = server.socket();
        for (requests, reply) in rows {
            for request in requests.split('|') {
                socket.expect(format!("{request}\r\n").as_bytes(), reply.as_bytes());
            }
        }
        let mut client = server.client();
        let left: i64 = client.ttl("k").unwrap();
        assert!((800..=901).contains(&left), "{runtime}: {left}");
        let unknown = cmd("LPUSH").arg(&["k", "v"]).query::<()>(&mut client).unwrap_err();
        assert!(unknown.to_string().contains("unknown command"), "{runtime}: {unknown}");
    }
}

#[test]
fn commands_over_several_cores_give_one_reply() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let names: Vec<_> = (0..100).map(|number| format!("k{number}")).collect();
        for name in &names {
            let () = client.set(name, name).unwrap();
        }
        assert_eq!(client.del(&names[50]), Ok(1), "{runtime}");
        let there = |name: &String| (name != "k50").then(|| name.clone());
        let expected: Vec<_> = names.iter().map(there).collect();
        // More than once, in one pipeline: the total of each is that of its own keys.
        let mut pipeline = pipe();
        pipeline.mget(&names).exists(&names).del(&names[..60]).exists(&names).del("none");
        let replies: (Vec<Option<String>>, i64, i64, i64, i64) =
            pipeline.query(&mut client).unwrap();
        assert_eq!(replies, (expected, 99, 59, 40, 0), "{runtime}");
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
    }
}

#[test]
fn pipeline_over_both_cores_is_answered_in_order() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        let (mut pipeline, mut expected) = (pipe(), Vec::new());
        for number in 0..5_000 {
            pipeline.set(format!("k{number}"), number).ignore();
            pipeline.get(format!("k{number}")).cmd("PING").ignore();
            expected.push(number);
            if number % 1_000 == 0 {
                pipeline.cmd("DBSIZE");
                expected.push(number + 1);
            }
        }
        assert_eq!(pipeline.query(&mut client), Ok(expected), "{runtime}");
    }
}
