//! Each request ends once, however its response ends: an idle time that counts from the last of
//! them comes, and none comes before.

use super::*;
use crate::http::check_at_once;

/// A request whose response ends in some way. The client stays.
type Exchange = (&'static str, fn(&mut Client));

fn check(version: Version, limits: StreamLimits, exchanges: &[Exchange]) {
    thread::scope(|scope| {
        for side in SIDES {
            for (name, exchange) in exchanges.iter().copied() {
                scope.spawn(move || {
                    let case = format!("{version:?}, {side:?}, {name}");
                    let server = Server::start(side, limits);
                    let mut client = Client::connect(server.address, version, 1 << 16);
                    exchange(&mut client);
                    let begin = Instant::now();
                    server.check_ended(Some(Idle(LIMIT)), &case);
                    // The last byte has come before.
                    assert!(begin.elapsed() < PATIENCE, "{case}");
                });
            }
        }
    });
}

fn limits() -> StreamLimits {
    StreamLimits::default().idle(LIMIT).write_stall(STALL)
}

#[test]
fn each_http1_request_ends_once() {
    let exchanges: &[Exchange] = &[
        ("a short response", |client| {
            client.get(1, "/");
            client.read_short();
        }),
        ("HEAD", |client| {
            client.ask("HEAD", 1, "/");
            client.read_until(b"\r\n\r\n");
        }),
        ("204", |client| {
            client.get(1, "/204");
            client.read_until(b"\r\n\r\n");
        }),
        ("304", |client| {
            client.get(1, "/304");
            client.read_until(b"\r\n\r\n");
        }),
        ("trailers", |client| {
            client.get(1, "/trailers");
            client.read_until(b"0\r\n");
        }),
        ("frames", |client| {
            client.get(1, "/frames");
            client.read_data(LONG);
        }),
        ("pipelining", |client| {
            let request = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
            client.send(&request.repeat(3));
            client.read_until(b"short");
        }),
        ("100-continue", |client| {
            client.send(b"POST /echo HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n");
            client.send(b"content-length: 5\r\n\r\n");
            client.read_until(b"100 Continue\r\n\r\n");
            client.send(b"short");
            client.read_short();
        }),
        ("a part of the next head", |client| {
            client.send(b"GET / HTTP/1.1\r\nhost: test\r\n\r\nGET");
            client.read_short();
        }),
    ];
    check(Version::Http1, limits(), exchanges);
}

#[test]
fn each_http2_request_ends_once() {
    let exchanges: &[Exchange] = &[
        ("a short response", |client| {
            client.get(1, "/");
            client.read_short();
        }),
        ("HEAD", |client| client.ask("HEAD", 1, "/")),
        ("204", |client| client.get(1, "/204")),
        ("304", |client| client.get(1, "/304")),
        ("trailers", |client| {
            client.get(1, "/trailers");
            client.read_short();
        }),
        ("a panic", |client| client.get(1, "/panic")),
        ("100-continue", |client| {
            client.post_http2(1, "/echo", b"short");
            client.read_short();
        }),
        ("CONNECT", |client| client.connect_http2(1)),
        ("RST_STREAM in a response", |client| {
            client.get(1, "/long");
            client.read_data(1 << 15);
            client.reset(1);
        }),
        ("RST_STREAM in one of several frames", |client| {
            client.get(1, "/frames");
            client.read_data(1 << 15);
            client.reset(1);
        }),
        ("RST_STREAM at once", |client| {
            client.get(1, "/one-frame");
            client.reset(1);
        }),
        ("several at once", |client| {
            client.get(1, "/");
            client.get(3, "/long");
            client.get(5, "/trailers");
            client.read_data(1 << 15);
            client.reset(3);
        }),
    ];
    check(Version::Http2, limits(), exchanges);
}

#[test]
fn client_that_leaves_in_a_response_ends_the_connection() {
    check_each(|side, version, case| {
        let server = Server::start(side, limits());
        let mut client = Client::connect(server.address, version, 1 << 16);
        client.get(1, "/long");
        client.read_data(1 << 12);
        drop(client);
        server.check_ended(None, case);
    });
}

#[test]
fn connection_that_was_handed_to_another_protocol_has_no_request() {
    check_at_once(SIDES, |side| {
        let server = Server::start(side, limits());
        let mut client = Client::connect(server.address, Version::Http1, 0);
        client.send(b"GET /upgrade HTTP/1.1\r\nhost: test\r\n");
        client.send(b"connection: upgrade\r\nupgrade: test\r\n\r\n");
        client.read_until(b"\r\n\r\n");
        // No task takes the connection.
        server.check_ended(None, &format!("{side:?}"));
    });
}

#[test]
fn http1_handler_that_panics_ends_its_connection_alone() {
    check_at_once(SIDES, |side| {
        let case = format!("{side:?}");
        let server = Server::start(side, limits());
        let mut other = Client::connect(server.address, Version::Http1, 0);
        other.get(1, "/long");
        let mut client = Client::connect(server.address, Version::Http1, 0);
        client.get(1, "/panic");
        client.wait_for_end();
        server.check_ended(None, &case);
        other.read_steadily(LONG, &case);
        server.check_ended(Some(Idle(LIMIT)), &case);
        let stats = server.service.stats();
        let ended = stats.deadlines.iter().filter(|of| of.ended > 0);
        assert_eq!(ended.map(|of| (of.kind, of.ended)).collect::<Vec<_>>(), [("all idle", 1)]);
        assert_eq!(stats.connections_closed, 1, "{case}");
    });
}
