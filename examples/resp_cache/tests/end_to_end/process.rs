//! The process: its end by a signal, and its command line.

use std::process::Command;

use redis::Commands;

use crate::server::Server;

#[test]
fn sigterm_ends_the_server_with_clients_connected() {
    for (runtime, mut server) in Server::on_each_runtime(&[]) {
        let mut idle = server.socket();
        idle.expect(b"PING\r\n", b"+PONG\r\n");
        let mut subscriber = server.socket();
        subscriber.expect(b"SUBSCRIBE c\r\n", b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
        let mut client = server.client();
        for number in 0..1_000 {
            let () = client.set(format!("k{number}"), 1).unwrap();
            let () = client.expire(format!("k{number}"), 1_000).unwrap();
        }
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0), "{runtime}");
        assert_eq!(idle.rest(), "", "{runtime}");
        assert_eq!(subscriber.rest(), "", "{runtime}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn process_has_no_huge_pages_whose_first_touch_takes_milliseconds() {
    let server = Server::start(&[]);
    assert_eq!(server.status("THP_enabled:").as_deref(), Some("0"));
}

#[test]
fn bad_option_is_refused_in_one_line_that_names_it() {
    for (arguments, named) in [
        (&["--cores", "0"][..], "--cores"),
        (&["--cores", "5000"], "--cores"),
        (&["--timers-max", "0"], "--timers-max"),
        (&["--clients-max", "5000000000"], "--clients-max"),
        (&["--request-max", "5"], "--request-max"),
        (&["--notify-keyspace-events", "Q"], "--notify-keyspace-events"),
        (&["--listen", "nowhere"], "--listen"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_resp_cache"))
            .args(["--listen", "127.0.0.1:0", "--stats", "127.0.0.1:0"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(named), "{text}");
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
    let output = Command::new(env!("CARGO_BIN_EXE_resp_cache"))
        .args(["--listen", &address, "--stats", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--listen"));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    Server::at(&address, &[]).socket().expect(b"PING\r\n", b"+PONG\r\n");
}

#[test]
#[cfg(target_os = "linux")]
fn start_without_memory_is_refused_in_one_line_that_names_options() {
    for kilobytes in ["50000", "300000", "600000"] {
        let start = format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &start, env!("CARGO_BIN_EXE_resp_cache")])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--stats",
                "127.0.0.1:0",
                "--timers-max",
                "500000000",
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains("--timers-max") && !text.contains("--capacity"), "{text}");
    }
}
