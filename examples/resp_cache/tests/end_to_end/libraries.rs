//! Clients of others, with what each sends by itself when it connects, subscribes and leaves.
//!
//! A client that is not there is skipped with a message. `.ci/run` installs them all.

use std::process::Command;

use crate::server::Server;

/// Runs a program of `tests/libraries` for each runtime, with the server's port. What it prints
/// must contain each of these, in this order.
fn check(name: &str, probe: &[&str], interpreter: &str, expected: &[&str]) {
    let is_there = Command::new(probe[0]).args(&probe[1..]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("what {name} needs is not installed: skipped");
        return;
    }
    for (runtime, server) in Server::on_each_runtime(&["--notify-keyspace-events", "Ex"]) {
        let port = server.address.port().to_string();
        let program = format!("{}/tests/libraries/{name}", env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(interpreter).args([program, port]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, {runtime}: {text} {errors}");
        let mut rest = text.as_str();
        for part in expected {
            let found = rest.split_once(part);
            rest = found.unwrap_or_else(|| panic!("{name}, {runtime}: no {part} in {text}")).1;
        }
    }
}

#[test]
fn clients_of_others_are_served() {
    let tools = ["psubscribe", "PONG", "OK", "100", "PING_INLINE", "PING_MBULK", "INCR", "done"];
    let (python, node, redis) = ("import redis", "require('redis')", "require('ioredis')");
    check("redis_py.py", &["python3", "-c", python], "python3", &["done"]);
    check("node_redis.cjs", &["node", "-e", node], "node", &["done"]);
    check("ioredis.cjs", &["node", "-e", redis], "node", &["done"]);
    check("redis_tools.sh", &["redis-cli", "--version"], "bash", &tools);
}
