//! Keys that expire: never answered after their time, removed without an access, published.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Commands, cmd, pipe};

use crate::server::{PATIENCE, Server};

#[test]
fn key_is_never_answered_after_its_time_nor_missing_before() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        for number in 0..40_u64 {
            let (key, life) = (format!("k{number}"), Duration::from_millis(5 + number));
            let set_at = Instant::now();
            let () = client.pset_ex(&key, 1, life.as_millis() as u64).unwrap();
            let was_set = Instant::now();
            loop {
                let asked = Instant::now();
                let found: Option<i32> = client.get(&key).unwrap();
                let answered = Instant::now();
                if found.is_none() {
                    assert!(answered >= set_at + life, "{runtime}: it is gone early");
                    break;
                }
                assert!(asked < was_set + life, "{runtime}: it is answered late");
            }
        }
    }
}

#[test]
fn point_in_wall_time_is_kept() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let millis = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let at = millis() + 300;
    let () = cmd("SET").arg("k").arg(1).arg("PXAT").arg(at).query(&mut client).unwrap();
    assert_eq!(cmd("PEXPIRETIME").arg("k").query(&mut client), Ok(at));
    loop {
        let asked = millis();
        let found: Option<i32> = client.get("k").unwrap();
        if found.is_none() {
            assert!(millis() >= at, "it is gone early");
            break;
        }
        assert!(asked <= at, "it is answered late");
    }
    let past: i64 = cmd("SET").arg("k").arg(1).query(&mut client).map(|()| millis() - 1).unwrap();
    assert_eq!(cmd("PEXPIREAT").arg("k").arg(past).query(&mut client), Ok(1));
    assert_eq!(client.exists("k"), Ok(0));
}

#[test]
fn keys_due_together_are_removed_and_published_without_an_access() {
    const KEYS: usize = 1_000;
    let arguments = ["--notify-keyspace-events", "Ex"];
    for (runtime, server) in Server::on_each_runtime(&arguments) {
        let mut subscribers: Vec<_> = (0..4).map(|_| server.client()).collect();
        let mut pubsubs: Vec<_> = subscribers.iter_mut().map(|client| client.as_pubsub()).collect();
        for pubsub in &mut pubsubs {
            pubsub.set_read_timeout(Some(PATIENCE)).unwrap();
            pubsub.subscribe("__keyevent@0__:expired").unwrap();
        }
        let mut client = server.client();
        let mut pipeline = pipe();
        for number in 0..KEYS {
            pipeline.set_ex(format!("other{number}"), 1, 3_600).ignore();
            pipeline.pset_ex(format!("k{number}"), 1, 400).ignore();
        }
        let () = pipeline.query(&mut client).unwrap();
        let mut expected: Vec<_> = (0..KEYS).map(|number| format!("k{number}")).collect();
        expected.sort();
        for pubsub in &mut pubsubs {
            let messages = (0..KEYS).map(|_| pubsub.get_message().unwrap().get_payload());
            let mut names: Vec<String> = messages.map(Result::unwrap).collect();
            names.sort();
            assert_eq!(names, expected, "{runtime}");
        }
        assert_eq!(cmd("DBSIZE").query(&mut client), Ok(KEYS), "{runtime}: none stays");
    }
}

#[test]
fn events_of_commands_are_published_in_order() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let set = |client: &mut redis::Connection, letters: &str| {
        let mut command = cmd("CONFIG");
        let () =
            command.arg("SET").arg("notify-keyspace-events").arg(letters).query(client).unwrap();
    };
    set(&mut client, "KEA");
    let mut subscriber = server.client();
    let mut pubsub = subscriber.as_pubsub();
    pubsub.set_read_timeout(Some(PATIENCE)).unwrap();
    pubsub.psubscribe("__key*@0__:*").unwrap();
    let () = client.set_ex("k", 1, 100).unwrap();
    let () = client.incr("k", 1).unwrap();
    let () = client.persist("k").unwrap();
    let () = client.del("k").unwrap();
    for event in ["set", "expire", "incrby", "persist", "del"] {
        let message = pubsub.get_message().unwrap();
        assert_eq!(message.get_channel_name(), "__keyspace@0__:k");
        assert_eq!(message.get_payload(), Ok(event.to_owned()));
        let message = pubsub.get_message().unwrap();
        assert_eq!(message.get_channel_name(), format!("__keyevent@0__:{event}"));
    }
}

#[test]
fn memory_beyond_the_limit_is_freed_of_keys_with_a_time_to_live() {
    for (runtime, server) in Server::on_each_runtime(&["--memory-max", "400000"]) {
        let mut client = server.client();
        for number in 0..50 {
            let () = client.set(format!("stays{number}"), "x".repeat(100)).unwrap();
        }
        for number in 0..2_000 {
            let () = client.set_ex(format!("k{number}"), "x".repeat(500), 100 + number).unwrap();
        }
        let stay: Vec<String> = (0..50).map(|number| format!("stays{number}")).collect();
        assert_eq!(client.exists(&stay), Ok(50), "{runtime}");
        let size: usize = cmd("DBSIZE").query(&mut client).unwrap();
        assert!((300..800).contains(&size), "{runtime}: {size} keys are left");
        let info: String = cmd("INFO").query(&mut client).unwrap();
        let evicted = format!("evicted_keys:{}", 2_050 - size);
        assert!(info.contains(&evicted), "{runtime}: {info}");
        let huge = client.set("huge", "x".repeat(500_000));
        let refused: redis::RedisResult<()> = huge;
        assert!(refused.unwrap_err().to_string().contains("maxmemory"), "{runtime}");
    }
}
