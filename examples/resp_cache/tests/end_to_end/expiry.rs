//! Keys that expire: never answered after their time, removed without an access, published.

use std::time::{Duration, Instant};

use corewheel_test_support::PATIENCE;
use redis::{Commands, cmd, pipe};

use crate::server::Server;

#[test]
fn key_is_never_answered_after_its_time_nor_missing_before() {
    for (runtime, server) in Server::on_each_runtime(&[]) {
        let mut client = server.client();
        for number in 0..40_u64 {
            let (key, life) = (format!("k{number}"), Duration::from_millis(5 + number));
            let set_at = Instant::now();
            let mut set = cmd("SET");
            set.arg(&key).arg(&["1", "PX"]).arg(5 + number).exec(&mut client).unwrap();
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
fn keys_due_together_are_removed_and_published_without_an_access() {
    const KEYS: usize = 1_000;
    let arguments = ["--notify-keyspace-events", "Ex"];
    for (runtime, server) in Server::on_each_runtime(&arguments) {
        let mut subscribers: Vec<_> = (0..4).map(|_| server.client()).collect();
        let mut pubsubs: Vec<_> = subscribers.iter_mut().map(|client| client.as_pubsub()).collect();
        for pubsub in &mut pubsubs {
            pubsub.set_read_timeout(Some(PATIENCE)).unwrap();
            // By the name, by a pattern, and by both of the key.
            pubsub.psubscribe("__keyevent@0__:*").unwrap();
        }
        let mut client = server.client();
        let mut pipeline = pipe();
        for number in 0..KEYS {
            pipeline.cmd("SET").arg(&[&format!("other{number}"), "1", "EX", "3600"]).ignore();
            pipeline.cmd("SET").arg(&[&format!("k{number}"), "1", "PX", "400"]).ignore();
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
fn memory_beyond_the_limit_is_freed_of_keys_with_a_time_to_live() {
    for (runtime, server) in Server::on_each_runtime(&["--memory-max", "400000"]) {
        let mut client = server.client();
        let stay: Vec<String> = (0..50).map(|number| format!("stays{number}")).collect();
        for name in &stay {
            let () = client.set(name, "x".repeat(100)).unwrap();
        }
        let value = "x".repeat(500);
        for number in 0..2_000 {
            let mut set = cmd("SET");
            set.arg(number).arg(&value).arg("EX").arg(100 + number).exec(&mut client).unwrap();
        }
        assert_eq!(client.exists(&stay), Ok(50), "{runtime}");
        let size: usize = cmd("DBSIZE").query(&mut client).unwrap();
        assert!((300..800).contains(&size), "{runtime}: {size} keys are left");
        let info: String = cmd("INFO").query(&mut client).unwrap();
        assert!(info.contains(&format!("evicted_keys:{}", 2_050 - size)), "{runtime}: {info}");
        let refused = client.set::<_, _, ()>("huge", "x".repeat(500_000)).unwrap_err();
        assert!(refused.to_string().contains("maxmemory"), "{runtime}: {refused}");
    }
}
