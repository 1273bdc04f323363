//! Each request ends once, however its response ends: an idle time that counts from the last of
//! them comes, and none comes before.

use super::*;
use crate::http::{ended, get};

/// A request whose response ends in some way. The client stays.
type Exchange = (String, Box<dyn Fn(&mut Client) + Send + Sync>);

fn exchange(name: &str, run: impl Fn(&mut Client) + Send + Sync + 'static) -> Exchange {
    (name.to_owned(), Box::new(run))
}

/// A request whose response is read to some bytes, or not at all.
fn ask(method: &'static str, path: &'static str, end: &'static [u8]) -> Exchange {
    exchange(&format!("{method} {path}"), move |client| {
        client.ask(method, 1, path);
        if !end.is_empty() {
            client.read_until(end);
        }
    })
}

/// A request of HTTP/2 that is reset when so many bytes of its response were read.
fn reset(path: &'static str, read: usize) -> Exchange {
    exchange(&format!("RST_STREAM in {path}"), move |client| {
        client.get(1, path);
        client.read_data(read);
        client.reset(1);
    })
}

fn idle() -> StreamLimits {
    limits(LIMIT, STALL)
}

fn check<const N: usize>(version: Version, exchanges: [Exchange; N]) {
    let cases = SIDES.into_iter().flat_map(|side| exchanges.iter().map(move |it| (side, it)));
    check_at_once(cases, |(side, (name, run))| {
        let case = format!("{version:?}, {side:?}, {name}");
        let server = Server::start(side, idle());
        let mut client = Client::connect(server.address, version, 1 << 16);
        run(&mut client);
        server.check_ended(Some(Idle(LIMIT)), &case);
    });
}

#[test]
fn each_http1_request_ends_once() {
    let exchanges = [
        ask("GET", "/", b"short"),
        ask("HEAD", "/", b"\r\n\r\n"),
        ask("GET", "/204", b"\r\n\r\n"),
        ask("GET", "/304", b"\r\n\r\n"),
        ask("GET", "/trailers", b"0\r\n"),
        exchange("frames", |client| {
            client.get(1, "/frames");
            client.read_data(LONG);
        }),
        exchange("pipelining", |client| {
            client.send(&get("/").repeat(3));
            client.read_until(b"short");
        }),
        exchange("100-continue", |client| {
            client.send(b"POST /echo HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n");
            client.send(b"content-length: 5\r\n\r\n");
            client.read_until(b"100 Continue\r\n\r\n");
            client.send(b"short");
            client.read_short();
        }),
        exchange("a part of the next head", |client| {
            client.send(&[&get("/"), &b"GET"[..]].concat());
            client.read_short();
        }),
    ];
    check(Version::Http1, exchanges);
}

#[test]
fn each_http2_request_ends_once() {
    let exchanges = [
        ask("GET", "/", b"short"),
        ask("HEAD", "/", b""),
        ask("GET", "/204", b""),
        ask("GET", "/304", b""),
        ask("GET", "/trailers", b"short"),
        ask("GET", "/panic", b""),
        exchange("100-continue", |client| {
            client.post_http2(1, "/echo", b"short");
            client.read_short();
        }),
        exchange("CONNECT", |client| client.connect_http2(1)),
        reset("/long", 1 << 15),
        reset("/frames", 1 << 15),
        reset("/one-frame", 0),
        exchange("several at once", |client| {
            client.get(1, "/");
            client.get(3, "/long");
            client.get(5, "/trailers");
            client.read_data(1 << 15);
            client.reset(3);
        }),
    ];
    check(Version::Http2, exchanges);
}

#[test]
fn client_that_leaves_in_a_response_ends_the_connection() {
    check_each(|side, version, case| {
        let (server, mut client) = Server::ask(side, idle(), version, 1 << 16, "/long");
        client.read_data(1 << 12);
        drop(client);
        server.check_ended(None, case);
    });
}

#[test]
fn connection_that_was_handed_to_another_protocol_has_no_request() {
    check_at_once(SIDES, |side| {
        let server = Server::start(side, idle());
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
        let (server, mut other) = Server::ask(side, idle(), Version::Http1, 0, "/long");
        let mut client = Client::connect(server.address, Version::Http1, 0);
        client.get(1, "/panic");
        client.wait_for_end();
        server.check_ended(None, &case);
        other.read_data(LONG);
        server.check_ended(Some(Idle(LIMIT)), &case);
        assert_eq!(ended(&server.service), [("all idle", 1), ("close", 1)], "{case}");
    });
}
