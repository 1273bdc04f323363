//! The process: its end by a signal, and its command line.

use std::process::Command;

use crate::server::Server;

#[test]
fn sigterm_ends_the_server_with_clients_connected() {
    for (runtime, mut server) in Server::on_each_runtime(&[]) {
        let (mut idle, mut subscriber) = (server.socket(), server.socket());
        idle.expect(&b"SET k 1 EX 1000\r\n".repeat(9), &b"+OK\r\n".repeat(9));
        subscriber.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        server.terminate();
        assert_eq!((idle.rest(), subscriber.rest()), Default::default(), "{runtime}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn process_has_no_huge_pages_whose_first_touch_takes_milliseconds() {
    let server = Server::start(&[]);
    assert_eq!(server.status("THP_enabled:").as_deref(), Some("0"));
}

/// Expects that a server is refused with this exit code and an error that names an option.
fn expect_refusal(limit: &str, arguments: &[&str], code: i32) {
    let output = Command::new("sh")
        .args(["-c", &format!("{limit} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_resp_cache")])
        .args(["--stats", "127.0.0.1:0"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(text.contains(arguments[0]) && !text.contains("--capacity"), "{text}");
    assert!(code == 2 || text.lines().count() == 1, "{text}");
}

#[test]
fn start_with_a_bad_option_or_too_little_memory_is_refused_and_the_option_named() {
    let refused = "--cores 0, --cores 5000, --timers-max 0, --clients-max 5000000000, \
        --request-max 5, --notify-keyspace-events Q";
    for refused in refused.split(", ") {
        let (name, value) = refused.split_once(' ').unwrap();
        expect_refusal("", &[name, value, "--listen", "127.0.0.1:0"], 2);
    }
    expect_refusal("", &["--listen", "nowhere"], 2);
    let kilobytes = ["50000", "300000", "600000"].iter().filter(|_| cfg!(target_os = "linux"));
    for limit in kilobytes.map(|kilobytes| format!("ulimit -v {kilobytes};")) {
        expect_refusal(&limit, &["--timers-max", "500000000", "--listen", "127.0.0.1:0"], 1);
    }
}

#[test]
fn second_server_on_an_address_is_refused_and_a_later_one_starts() {
    let mut server = Server::start(&[]);
    let address = server.address.to_string();
    // The server closes this connection first, so the kernel keeps its address for a minute.
    let mut client = server.socket();
    client.expect(b"PING\r\nQUIT\r\n", b"+PONG\r\n+OK\r\n");
    assert_eq!(client.rest(), "");
    expect_refusal("", &["--listen", &address], 1);
    server.terminate();
    Server::start(&["--listen", &address]).socket().expect(b"PING\r\n", b"+PONG\r\n");
}
