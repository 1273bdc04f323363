//! Commands by the `redis` crate, on both runtimes, with keys on both cores.

use redis::{Commands, Connection, RedisResult, SetExpiry, SetOptions, cmd, pipe};

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
        assert_eq!(client.decr("n", -1), Ok(42));
        assert_eq!(client.append("n", "x"), Ok(3));
        assert_eq!(client.strlen("n"), Ok(3));
        let not_a_number: RedisResult<i64> = client.incr("n", 1);
        assert!(not_a_number.unwrap_err().to_string().contains("not an integer"));
        assert_eq!(client.get_del("n"), Ok("42x".to_owned()));
        assert_eq!(cmd("TYPE").arg("n").query(&mut client), Ok("none".to_owned()));
    });
}

#[test]
fn commands_over_several_cores_give_one_reply() {
    on_both(|runtime, _, mut client| {
        let pairs: Vec<_> = (0..100).map(|number| (format!("k{number}"), number)).collect();
        let () = client.mset(&pairs).unwrap();
        let names: Vec<_> = pairs.iter().map(|(name, _)| name).collect();
        let mut asked = names.clone();
        let missing = "missing".to_owned();
        asked.insert(50, &missing);
        let values: Vec<Option<i32>> = client.mget(&asked).unwrap();
        let mut expected: Vec<_> = (0..100).map(Some).collect();
        expected.insert(50, None);
        assert_eq!(values, expected, "{runtime}");
        assert_eq!(client.exists(&asked), Ok(100));
        assert_eq!(cmd("DBSIZE").query(&mut client), Ok(100));
        let mut found: Vec<String> = client.keys("k1?").unwrap();
        found.sort();
        assert_eq!(found, (10..20).map(|number| format!("k{number}")).collect::<Vec<_>>());
        assert_eq!(client.del(&names[..60]), Ok(60));
        assert_eq!(cmd("UNLINK").arg(&names).query(&mut client), Ok(40));
        let () = client.set("k", 1).unwrap();
        let () = cmd("FLUSHALL").query(&mut client).unwrap();
        assert_eq!(client.exists("k"), Ok(0));
    });
}

#[test]
fn pipeline_over_both_cores_is_answered_in_order() {
    on_both(|runtime, _, mut client| {
        let mut pipeline = pipe();
        for number in 0..5_000 {
            pipeline.set(format!("k{number}"), number).ignore();
            pipeline.get(format!("k{number}"));
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
fn large_values_pass_between_the_cores() {
    on_both(|runtime, _, mut client| {
        for number in 0..8_u8 {
            let value = vec![number; 1_000_000];
            let key = format!("large{number}");
            let () = client.set(&key, &value).unwrap();
            let read: Vec<u8> = client.get(&key).unwrap();
            assert!(read == value, "{runtime}");
        }
        let many: Vec<Vec<u8>> = client.mget(&["large0", "large7", "large3", "large5"]).unwrap();
        assert_eq!(many.iter().map(Vec::len).sum::<usize>(), 4_000_000);
    });
}

#[test]
fn set_honours_its_options() {
    on_both(|runtime, _, mut client| {
        let exists = |only| SetOptions::default().conditional_set(only);
        let (nx, xx) = (exists(redis::ExistenceCheck::NX), exists(redis::ExistenceCheck::XX));
        let refused: Option<String> = client.set_options("k", 1, xx).unwrap();
        assert_eq!(refused, None, "{runtime}");
        let () = client.set_options("k", 1, nx.clone()).unwrap();
        let refused: Option<String> = client.set_options("k", 2, nx).unwrap();
        assert_eq!(refused, None);
        // A point in time, which is the same however long the test takes.
        let at = 20_000_000_000;
        let with_ttl = SetOptions::default().with_expiration(SetExpiry::EXAT(at)).get(true);
        assert_eq!(client.set_options("k", 3, with_ttl), Ok(Some(1)));
        let keeps = SetOptions::default().with_expiration(SetExpiry::KEEPTTL);
        let () = client.set_options("k", 4, keeps).unwrap();
        assert_eq!(cmd("EXPIRETIME").arg("k").query(&mut client), Ok(at));
        let () = client.set("k", 5).unwrap();
        assert_eq!(client.ttl("k"), Ok(-1));
        let bad: RedisResult<()> = cmd("SET").arg("k").arg(1).arg("EX").arg(0).query(&mut client);
        assert!(bad.unwrap_err().to_string().contains("invalid expire time"));
        let later = |option: &str| {
            let mut command = cmd("EXPIRE");
            command.arg("k").arg(if option == "NX" { 50 } else { 40 }).arg(option);
            command
        };
        assert_eq!(later("XX").query(&mut client), Ok(0));
        assert_eq!(later("NX").query(&mut client), Ok(1));
        assert_eq!(later("GT").query(&mut client), Ok(0));
    });
}

#[test]
fn unknown_command_is_refused_and_the_connection_goes_on() {
    on_both(|_, _, mut client| {
        let refused: RedisResult<()> = cmd("LPUSH").arg("k").arg("v").query(&mut client);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("unknown command") && text.contains("COMMAND LIST"), "{text}");
        let known: Vec<String> = cmd("COMMAND").arg("LIST").query(&mut client).unwrap();
        assert!(known.contains(&"get".to_owned()) && !known.contains(&"lpush".to_owned()));
        let refused: RedisResult<()> = cmd("GET").query(&mut client);
        assert!(refused.unwrap_err().to_string().contains("wrong number of arguments"));
        assert_eq!(cmd("PING").query(&mut client), Ok("PONG".to_owned()));
    });
}

#[test]
fn resp3_client_is_answered_with_the_types_of_resp3() {
    on_both(|_, server, _| {
        let mut socket = server.socket();
        socket.expect(b"GET none\r\n", b"$-1\r\n");
        socket.send(b"HELLO 3\r\n");
        socket.expect(b"", b"%7\r\n$6\r\nserver\r\n");
        let mut socket = server.socket();
        socket.send(b"CLIENT REPLY SKIP\r\nHELLO 3\r\n");
        socket.expect(b"GET none\r\n", b"_\r\n");
        socket.expect(b"CONFIG GET timeout\r\n", b"%1\r\n$7\r\ntimeout\r\n$1\r\n0\r\n");
        socket.expect(b"SUBSCRIBE c\r\n", b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        socket.expect(b"PING\r\n", b"+PONG\r\n");
    });
}

#[test]
fn message_reaches_the_subscribers_of_both_cores() {
    on_both(|runtime, server, mut client| {
        // Enough connections that each core has some, wherever the kernel puts them.
        let mut subscribers: Vec<_> = (0..16).map(|_| server.client()).collect();
        let mut pubsubs: Vec<_> = subscribers.iter_mut().map(|client| client.as_pubsub()).collect();
        for (number, pubsub) in pubsubs.iter_mut().enumerate() {
            pubsub.set_read_timeout(Some(crate::server::PATIENCE)).unwrap();
            if number % 2 == 0 {
                pubsub.subscribe("news").unwrap();
            } else {
                pubsub.psubscribe("n[a-e]ws").unwrap();
            }
        }
        assert_eq!(client.publish("news", "hello"), Ok(16), "{runtime}");
        for pubsub in &mut pubsubs {
            let message = pubsub.get_message().unwrap();
            assert_eq!(message.get_payload(), Ok("hello".to_owned()));
        }
        drop(pubsubs);
        drop(subscribers);
    });
}

#[test]
fn scan_returns_each_key_once_while_others_come_and_go() {
    on_both(|runtime, _, mut client| {
        let stay: Vec<String> = (0..500).map(|number| format!("stay{number}")).collect();
        for key in &stay {
            let () = client.set(key, 1).unwrap();
            let () = client.set(format!("go{key}"), 1).unwrap();
        }
        let (mut cursor, mut found, mut rounds) = (0_u64, Vec::new(), 0);
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg("stay*").arg("COUNT").arg(50);
            let (next, keys): (u64, Vec<String>) = scan.query(&mut client).unwrap();
            assert!(keys.len() <= 50, "{runtime}");
            found.extend(keys);
            rounds += 1;
            cursor = next;
            if cursor == 0 {
                break;
            }
            let () = client.del(format!("gostay{rounds}")).unwrap();
            let () = client.set(format!("new{rounds}"), 1).unwrap();
        }
        found.sort();
        let mut expected = stay;
        expected.sort();
        assert_eq!(found, expected, "{runtime}");
        assert!(rounds >= 20, "{runtime}: {rounds}");
        for wrong in [&["x"][..], &["65535"], &["0", "COUNT", "0"], &["0", "COUNT"]] {
            let refused: RedisResult<()> = cmd("SCAN").arg(wrong).query(&mut client);
            assert!(refused.is_err(), "{runtime}: {wrong:?}");
        }
        let all: (u64, Vec<String>) =
            cmd("SCAN").arg(&["0", "TYPE", "list"]).query(&mut client).unwrap();
        assert_eq!(all.1.len(), 0, "there are only strings");
    });
}

#[test]
fn scan_passes_by_the_cores_that_have_no_keys() {
    on_both(|runtime, _, mut client| {
        let scan = |client: &mut Connection, cursor: u64| -> (u64, Vec<String>) {
            cmd("SCAN").arg(cursor).arg("COUNT").arg(1_000).query(client).unwrap()
        };
        assert_eq!(scan(&mut client, 0), (0, Vec::new()), "{runtime}: no core has keys");
        // Of so many keys, each core has some.
        for number in 0..64 {
            let key = format!("k{number}");
            let () = client.set(&key, 1).unwrap();
            assert_eq!(scan(&mut client, 0), (0, vec![key]), "{runtime}: one core has keys");
            let () = cmd("FLUSHALL").query(&mut client).unwrap();
        }
        for number in 0..64 {
            let () = client.set(format!("k{number}"), 1).unwrap();
        }
        let (cursor, mut found) = scan(&mut client, 0);
        let (end, others) = scan(&mut client, cursor);
        assert!(cursor != 0 && !found.is_empty() && !others.is_empty(), "{runtime}: {found:?}");
        found.extend(others);
        assert_eq!((end, found.len()), (0, 64), "{runtime}");
    });
}

#[test]
fn parts_of_values_are_read_and_written() {
    on_both(|runtime, _, mut client| {
        let () = client.set("k", "Hello World").unwrap();
        for (first, last, part) in
            [(0, 4, "Hello"), (-5, -1, "World"), (6, 100, "World"), (5, 2, ""), (-100, 0, "H")]
        {
            assert_eq!(client.getrange("k", first, last), Ok(part.to_owned()), "{runtime}");
        }
        assert_eq!(client.setrange("k", 6, "redis"), Ok(11));
        assert_eq!(client.get("k"), Ok("Hello redis".to_owned()));
        assert_eq!(client.setrange("padded", 3, "x"), Ok(4));
        assert_eq!(client.get("padded"), Ok(b"\0\0\0x".to_vec()));
        let refused: RedisResult<()> = client.setrange("k", 1 << 40, "x");
        assert!(refused.unwrap_err().to_string().contains("maximum allowed size"));
        let () = client.set_ex("k", "old", 100).unwrap();
        assert_eq!(client.getset("k", "new"), Ok("old".to_owned()));
        assert_eq!(client.ttl("k"), Ok(-1));
        let float = |client: &mut Connection, more: &str| -> RedisResult<String> {
            cmd("INCRBYFLOAT").arg("f").arg(more).query(client)
        };
        assert_eq!(float(&mut client, "10.5"), Ok("10.5".to_owned()));
        assert_eq!(float(&mut client, "0.1"), Ok("10.6".to_owned()));
        assert_eq!(float(&mut client, "5e3"), Ok("5010.6".to_owned()));
        let () = client.set("f", "0.1").unwrap();
        assert_eq!(float(&mut client, "0.2"), Ok("0.3".to_owned()));
        assert!(float(&mut client, "nan").is_err());
        assert!(float(&mut client, "inf").is_err());
    });
}

#[test]
fn random_keys_come_from_both_cores() {
    on_both(|runtime, _, mut client| {
        let random =
            |client: &mut Connection| -> Option<String> { cmd("RANDOMKEY").query(client).unwrap() };
        assert_eq!(random(&mut client), None, "{runtime}");
        for number in 0..10 {
            let () = client.set(format!("k{number}"), 1).unwrap();
        }
        let found: std::collections::BTreeSet<_> =
            (0..500).filter_map(|_| random(&mut client)).collect();
        assert_eq!(found.len(), 10, "{runtime}: {found:?}");
    });
}

#[test]
fn clients_are_told_what_commands_there_are_and_why_scripts_are_refused() {
    on_both(|runtime, server, mut client| {
        let mut socket = server.socket();
        let get = "*6\r\n$3\r\nget\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n";
        let expected = format!("*2\r\n{get}*-1\r\n");
        socket.expect(b"COMMAND INFO GET LPUSH\r\n", expected.as_bytes());
        let script: RedisResult<()> = cmd("EVALSHA").arg("0").arg(0).query(&mut client);
        let text = script.unwrap_err().to_string();
        assert!(text.contains("no scripts"), "{runtime}: {text}");
    });
}

#[test]
fn several_times_in_one_unit_are_taken_and_two_units_are_refused() {
    on_both(|_, server, mut client| {
        let mut socket = server.socket();
        socket.expect(b"SET k v EXAT 20000000005 EXAT 20000000009\r\n", b"+OK\r\n");
        assert_eq!(cmd("EXPIRETIME").arg("k").query(&mut client), Ok(20_000_000_009_u64));
        socket.expect(b"SET k v EX 5 EX 9\r\n", b"+OK\r\n");
        socket.expect(b"SET k v EX 5 PX 9\r\n", b"-ERR syntax error\r\n");
        socket.expect(b"GETEX k EXAT 20000000005 EXAT 20000000007\r\n", b"$1\r\nv\r\n");
        assert_eq!(cmd("EXPIRETIME").arg("k").query(&mut client), Ok(20_000_000_007_u64));
        for refused in ["EX 5 PX 9", "PERSIST EX 5", "EX 5 PERSIST", "EX"] {
            let request = format!("GETEX k {refused}\r\n");
            socket.expect(request.as_bytes(), b"-ERR syntax error\r\n");
        }
        socket.expect(b"GETEX k PERSIST\r\nTTL k\r\n", b"$1\r\nv\r\n:-1\r\n");
        socket.expect(b"SET h \"a b\"\r\nGET h\r\n", b"+OK\r\n$3\r\na b\r\n");
        socket.expect(b"SET h \"a\r\n", b"-ERR Protocol error: unbalanced quotes");
    });
}
