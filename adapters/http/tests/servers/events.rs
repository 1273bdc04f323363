//! Streams of events that a drain or a greatest age ends, over real sockets: the last chunk, where
//! there can be one.

use std::io::Read;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::http::{ms, read_until};
use crate::server::{EVENT, Loop};

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn ask(server: &Loop, line: &str) -> TcpStream {
    server.send(format!("GET {line}\r\nhost: a\r\n\r\n").as_bytes())
}

/// A client that has the beginning of a stream.
fn begin(server: &Loop, line: &str) -> TcpStream {
    let mut client = ask(server, line);
    read_until(&mut client, EVENT);
    client
}

/// All that the client of a stream still gets. It must be closed, and not reset.
fn rest_of(mut client: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    rest
}

#[test]
fn stream_of_events_that_a_drain_or_a_greatest_age_ends_has_its_last_chunk() {
    let server = Loop::start(|server| server);
    let client = begin(&server, "/events HTTP/1.1");
    server.timers.drain(ms(300));
    assert_eq!(rest_of(client), [b"\r\n", LAST_CHUNK].concat());

    let server = Loop::start(|server| {
        server.limits(|limits| limits.max_age(ms(200)).max_age_grace(ms(200)))
    });
    let client = begin(&server, "/events HTTP/1.1");
    assert_eq!(rest_of(client), [b"\r\n", LAST_CHUNK].concat());
}

#[test]
fn response_whose_end_the_last_chunk_would_claim_or_break_has_none() {
    let server = Loop::start(|server| server);
    let others = ["/file HTTP/1.1", "/events HTTP/1.0"].map(|line| begin(&server, line));
    // The chunk is not written when the drain is over.
    let large = ask(&server, "/large HTTP/1.1");
    thread::sleep(ms(300));
    server.timers.drain(ms(300));
    thread::sleep(Duration::from_secs(1));
    for client in others {
        assert!(!rest_of(client).ends_with(LAST_CHUNK));
    }
    let mut rest = Vec::new();
    // It may be reset, too: it takes nothing.
    let _ = (&large).read_to_end(&mut rest);
    assert!(rest.len() < 24 << 20 && !rest.ends_with(LAST_CHUNK), "{} bytes", rest.len());
}
