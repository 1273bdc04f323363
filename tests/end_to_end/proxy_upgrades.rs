//! Upgrades through the example `reverse_proxy`, clients that shut their side down, and responses
//! that are wrong where they begin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use corewheel_test_support::ms;
use corewheel_test_support::sockets::{HEAD_END, read_to, read_to_end};

use crate::check_not_early;
use crate::proxy::{Proxy, ends_with, get, get_of, read_answer};
use crate::proxy_hostile::{
    DATA, HEADERS, LIMIT, check, check_to_its_end, frame, http2, next, read_frame, said,
};

const UPGRADE: &[u8] = b"GET /socket HTTP/1.1\r\nHost: proxy\r\nUpgrade: WebSocket\r\n\
    Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The head of a request that asks for a protocol by extended CONNECT, or for a tunnel.
fn connect(stream: u8, protocol: Option<&str>) -> Vec<u8> {
    fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
        block.push(0);
        for part in [name, value] {
            block.push(u8::try_from(part.len()).unwrap());
            block.extend(part.as_bytes());
        }
    }
    let mut block = Vec::new();
    literal(&mut block, ":method", "CONNECT");
    literal(&mut block, ":authority", "proxy");
    if let Some(protocol) = protocol {
        literal(&mut block, ":protocol", protocol);
        literal(&mut block, ":scheme", "http");
        literal(&mut block, ":path", "/socket");
        literal(&mut block, "sec-websocket-version", "13");
    }
    frame(HEADERS, 4, stream, &block)
}

/// A client that has asked for a WebSocket, and the head of the answer.
fn upgrade(proxy: &Proxy) -> (TcpStream, String) {
    let mut client = proxy.send(UPGRADE);
    let head = read_to(&mut client, HEAD_END).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    (client, head)
}

/// A client of HTTP/2 that has a WebSocket on its stream 1.
fn upgrade_http2(proxy: &Proxy) -> TcpStream {
    let mut client = http2(proxy, 1 << 16, &connect(1, Some("websocket")));
    let ok = 0x88;
    assert_eq!(next(&mut client, HEADERS)[0], ok);
    client
}

#[test]
fn websocket_goes_through_and_ends_with_both_directions() {
    check(&[], |proxy, upstream| {
        let before = proxy.descriptors();
        let (mut client, head) = upgrade(proxy);
        for line in ["upgrade: websocket", "connection: upgrade", "sec-websocket-accept: a"] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
        }
        let asked = upstream.request();
        assert!(asked.contains("\r\nupgrade: websocket\r\n"), "{asked}");
        assert!(asked.contains("\r\nsec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n"), "{asked}");
        let mut echo = [0; 5];
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut echo).unwrap();
        // One direction has ended, and the other has not.
        client.write_all(b"again").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut client), b"again");
        upstream.wait_for_ends(1);
        drop(client);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn websocket_of_http2_goes_through() {
    check(&["--h2c"], |proxy, upstream| {
        let mut client = upgrade_http2(proxy);
        let asked = upstream.request();
        assert!(asked.starts_with("get /socket http/1.1\r\n"), "{asked}");
        assert!(asked.contains("\r\nsec-websocket-key: "), "{asked}");
        client.write_all(&frame(DATA, 0, 1, b"hello")).unwrap();
        assert_eq!(next(&mut client, DATA), b"hello");
        client.write_all(&frame(DATA, 1, 1, b"again")).unwrap();
        assert_eq!(next(&mut client, DATA), b"again");
        upstream.wait_for_ends(1);
    });
}

/// A WebSocket through a proxy.
struct Tunnel {
    client: TcpStream,
    is_http2: bool,
}

impl Tunnel {
    /// One of HTTP/1 and one of HTTP/2.
    fn open_both(proxy: &Proxy) -> [Self; 2] {
        let (client, other) = (upgrade(proxy).0, upgrade_http2(proxy));
        [Self { client, is_http2: false }, Self { client: other, is_http2: true }]
    }

    /// Whether a byte comes back.
    fn echo(&mut self) -> bool {
        const PING: u8 = 6;
        if !self.is_http2 {
            return self.client.write_all(b"x").is_ok() && self.client.read_exact(&mut [0]).is_ok();
        }
        if self.client.write_all(&frame(DATA, 0, 1, b"x")).is_err() {
            return false;
        }
        loop {
            match read_frame(&mut self.client) {
                Some((DATA, ..)) => return true,
                // A proxy that says that it goes away waits for the answer of its PING.
                Some((PING, _, payload)) => {
                    let _ = self.client.write_all(&frame(PING, 1, 0, &payload));
                }
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Ends it from here, and waits until the proxy has ended it.
    fn end(mut self) {
        if self.is_http2 {
            self.client.write_all(&frame(DATA, 1, 1, b"")).unwrap();
            while read_frame(&mut self.client).is_some() {}
        } else {
            self.client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_to_end(&mut self.client), b"");
        }
    }
}

/// Longer than a connection that was told to end stays without a request or a tunnel.
const PAST_TOLD: Duration = ms(1_500);

#[test]
fn websockets_outlast_the_greatest_age_until_its_grace() {
    let aged = ["--h2c", "--max-age", "500ms", "--max-age-jitter", "0s", "--max-age-grace"];
    check(&[&aged[..], &["1h"]].concat(), |proxy, _| {
        let tunnels = Tunnel::open_both(proxy);
        thread::sleep(LIMIT + PAST_TOLD);
        for mut tunnel in tunnels {
            assert!(tunnel.echo(), "HTTP/2: {}", tunnel.is_http2);
            tunnel.end();
        }
    });
    check(&[&aged[..], &["1s"]].concat(), |proxy, _| {
        let begin = Instant::now();
        for mut tunnel in Tunnel::open_both(proxy) {
            while tunnel.echo() {
                thread::sleep(ms(50));
            }
            check_not_early(begin, LIMIT + ms(1_000));
        }
    });
}

#[test]
fn websockets_outlast_the_beginning_of_a_shutdown_which_waits_for_them() {
    check_to_its_end(&["--h2c", "--drain", "12s"], |proxy, _| {
        let tunnels = Tunnel::open_both(&proxy);
        proxy.child.signal(Signal::TERM);
        thread::sleep(PAST_TOLD);
        for mut tunnel in tunnels {
            assert!(tunnel.echo(), "HTTP/2: {}", tunnel.is_http2);
            tunnel.end();
        }
        proxy.wait_for_code(0);
    });
}

#[test]
fn connect_and_other_protocols_are_refused() {
    check(&["--h2c"], |proxy, _| {
        let connects = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert!(ends_with(&mut proxy.send(connects), 501));
        for protocol in [None, Some("connect-udp")] {
            let mut client = http2(proxy, 1 << 16, &connect(1, protocol));
            let head = next(&mut client, HEADERS);
            // A literal with the name of `:status`.
            let is_501 = head.starts_with(b"\x48\x03501") || head.starts_with(b"\x48\x82\x6c\x01");
            assert!(is_501, "{head:x?}");
        }
    });
}

#[test]
fn upgrade_that_the_client_has_not_asked_for_and_malformed_first_chunk_become_502() {
    check(&[], |proxy, upstream| {
        let mut client = proxy.connect();
        assert_eq!(get(&mut client, "/socket").0, 502);
        // No other protocol than that of a WebSocket is asked for.
        assert!(upstream.request().starts_with("get /socket"));
        let upgrade = "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n";
        write!(client, "GET / HTTP/1.1\r\nHost: proxy\r\n{upgrade}").unwrap();
        assert_eq!(read_answer(&mut client).0, 200);
        assert!(!upstream.request().contains("upgrade"));
        for _ in 0..5 {
            assert_eq!(get(&mut proxy.connect(), "/bad-chunk").0, 502);
        }
    });
}

fn ask_and_shut_down(proxy: &Proxy, path: &str) -> TcpStream {
    let client = proxy.send(get_of(path));
    client.shutdown(Shutdown::Write).unwrap();
    client
}

#[test]
fn client_that_has_shut_its_side_down_is_answered() {
    check(&["--half-close", "1h"], |proxy, _| {
        for path in ["/", "/late"] {
            let said = said(&mut ask_and_shut_down(proxy, path));
            assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("ok"), "{path}: {said}");
        }
    });
}

#[test]
fn client_that_has_shut_its_side_down_has_left_after_a_time() {
    check(&["--half-close", "500ms"], |proxy, upstream| {
        let start = Instant::now();
        let _client = ask_and_shut_down(proxy, "/sink");
        upstream.wait_for_ends(1);
        check_not_early(start, LIMIT);
    });
}
