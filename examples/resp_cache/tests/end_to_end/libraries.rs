//! Clients of others, with what each sends by itself when it connects, subscribes and leaves.
//!
//! A client that is not there is skipped with a message. `.ci/run` installs them all.

use std::process::Command;

use crate::server::Server;

/// Runs a program for each runtime, with the server's port behind its words. What it prints must
/// contain each of these, in this order.
fn check(name: &str, probe: &[&str], program: &[&str], expected: &[&str]) {
    let is_there = Command::new(probe[0]).args(&probe[1..]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("{name} is not installed: skipped");
        return;
    }
    for (runtime, server) in Server::on_each_runtime(&["--notify-keyspace-events", "Ex"]) {
        let port = server.address.port().to_string();
        let output = Command::new(program[0]).args(&program[1..]).arg(&port).output().unwrap();
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

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libraries/");

#[test]
fn redis_py_is_served() {
    let program = format!("{PROGRAMS}redis_py.py");
    check("redis-py", &["python3", "-c", "import redis"], &["python3", &program], &["done"]);
}

#[test]
fn node_redis_is_served() {
    let program = format!("{PROGRAMS}node_redis.cjs");
    check("node-redis", &["node", "-e", "require('redis')"], &["node", &program], &["done"]);
}

#[test]
fn ioredis_is_served() {
    let program = format!("{PROGRAMS}ioredis.cjs");
    check("ioredis", &["node", "-e", "require('ioredis')"], &["node", &program], &["done"]);
}

#[test]
fn redis_cli_and_redis_benchmark_are_served() {
    let probe = ["redis-cli", "--version"];
    let program = format!("{PROGRAMS}redis_tools.sh");
    let expected = ["psubscribe", "PONG", "OK", "100", "PING_INLINE", "PING_MBULK", "INCR", "done"];
    check("redis-tools", &probe, &["bash", &program], &expected);
}
