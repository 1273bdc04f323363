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
        let with_ttl = SetOptions::default().with_expiration(SetExpiry::EX(100)).get(true);
        assert_eq!(client.set_options("k", 3, with_ttl), Ok(Some(1)));
        let keeps = SetOptions::default().with_expiration(SetExpiry::KEEPTTL);
        let () = client.set_options("k", 4, keeps).unwrap();
        assert_eq!(client.ttl("k"), Ok(100));
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
        assert!(refused.unwrap_err().to_string().contains("unknown command"));
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
