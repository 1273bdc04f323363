//! The heads that the example `reverse_proxy` forwards, and clients that send the next one early.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use crate::proxy::{self, Proxy};
use crate::proxy_hostile::{HEADERS, LIMIT, Upstream, check, frame, http2, read_frame, said};

/// Sends a request, and returns its head as the upstream server gets it, in small letters.
#[track_caller]
fn forwarded(proxy: &Proxy, upstream: &Upstream, request: &str) -> Vec<String> {
    let mut client = proxy.connect();
    client.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 12];
    client.read_exact(&mut status).unwrap();
    assert_eq!(&status[8..], b" 200", "{}: {request:?}", proxy.name);
    upstream.request().lines().map(str::to_owned).collect()
}

#[test]
fn host_that_the_client_names_reaches_the_upstream_server() {
    check(&[], |proxy, upstream| {
        let host = |request: &str| {
            let lines = forwarded(proxy, upstream, request);
            let hosts = lines.into_iter().filter(|line| line.starts_with("host:"));
            hosts.collect::<Vec<_>>().join(" ")
        };
        let of = |fields: &str| host(&format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n"));
        assert_eq!(of("Host: shop.example"), "host: shop.example");
        for named in ["127.0.0.1:8080", "[::1]", "[2001:db8::1]:80", "a_b.example:", "LOCALHOST"] {
            assert_eq!(of(&format!("Host: {named}")), format!("host: {}", named.to_lowercase()));
        }
        // A field of the request is no option of the connection.
        let optional = "Host: shop.example\r\nConnection: Host, X-Forwarded-For";
        assert_eq!(of(optional), "host: shop.example");
        // The URI counts where it names a host.
        let absolute = "GET http://shop.example:81/ HTTP/1.1\r\nHost: other.example\r\n\r\n";
        assert_eq!(host(absolute), "host: shop.example:81");
        // A client of HTTP/1.0 names no host, and the upstream server gets its own address.
        assert_eq!(host("GET / HTTP/1.0\r\n\r\n"), format!("host: {}", upstream.address));
    });
}

#[test]
fn requests_that_name_no_valid_host_are_refused() {
    let names =
        ["", "a b", "a/b", "a@b", "a,b", "http://a", "a:b", "a:+80", "a:99999", "[::1", "é"];
    check(&[], |proxy, _| {
        let check = |request: &str| {
            let mut client = proxy.connect();
            client.write_all(request.as_bytes()).unwrap();
            let said = said(&mut client);
            let is_refused = said.starts_with("HTTP/1.1 400 ");
            assert!(is_refused, "{}: {request:?} {said:?}", proxy.name);
        };
        for name in names {
            check(&format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"));
            check(&format!("GET http://shop.example/ HTTP/1.1\r\nHost: {name}\r\n\r\n"));
        }
        check("GET http://user@shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        check("GET http://shop.example/ HTTP/1.1\r\n\r\n");
    });
}

#[test]
fn http2_request_whose_host_contradicts_its_uri_is_refused() {
    check(&["--h2c"], |proxy, upstream| {
        let answered = |host: &str| {
            // GET, http, the path and `:authority: proxy`, and then a literal `host`.
            let mut block = b"\x82\x86\x84\x01\x05proxy\x00\x04host".to_vec();
            block.push(u8::try_from(host.len()).unwrap());
            block.extend(host.as_bytes());
            let mut client = http2(proxy, 1 << 16);
            client.write_all(&frame(HEADERS, 5, 1, &block)).unwrap();
            let mut frames = std::iter::from_fn(|| read_frame(&mut client));
            let (_, _, payload) = frames.find(|frame| frame.0 == HEADERS).unwrap();
            // The index of `:status`, with its value in the static table.
            payload[0]
        };
        let (ok, bad_request) = (0x88, 0x8c);
        assert_eq!(answered("Proxy"), ok, "{}", proxy.name);
        assert!(upstream.request().contains("\r\nhost: proxy\r\n"), "{}", proxy.name);
        assert_eq!(answered("other"), bad_request, "{}", proxy.name);
    });
}

#[test]
fn fields_of_one_connection_are_not_forwarded() {
    check(&[], |proxy, upstream| {
        let request = "GET / HTTP/1.1\r\nHost: proxy\r\nProxy-Connection: keep-alive\r\n\
            Keep-Alive: timeout=5\r\nX-Own: 1\r\nX-Kept: 2\r\nConnection: X-Own, Close\r\n\
            X-Forwarded-For: 192.0.2.1\r\n\r\n";
        let lines = forwarded(proxy, upstream, request);
        let gone = ["proxy-connection:", "keep-alive:", "x-own:", "connection:"];
        let stays = |field: &&str| lines.iter().any(|line| line.starts_with(*field));
        assert_eq!(gone.iter().find(|field| stays(field)), None, "{}: {lines:?}", proxy.name);
        for line in ["x-kept: 2", "x-forwarded-for: 192.0.2.1", "x-forwarded-for: 127.0.0.1"] {
            assert!(lines.iter().any(|known| known == line), "{}: {lines:?}", proxy.name);
        }
    });
}

/// A client that has sent a request which the upstream server does not answer, and more behind it.
fn send_unanswered(proxy: &Proxy, behind: &[u8], in_two_parts: bool) -> TcpStream {
    const UNANSWERED: &[u8] = b"GET /sink HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let mut client = proxy.connect();
    if in_two_parts {
        client.write_all(UNANSWERED).unwrap();
        thread::sleep(LIMIT / 10);
        client.write_all(behind).unwrap();
    } else {
        client.write_all(&[UNANSWERED, behind].concat()).unwrap();
    }
    client
}

#[test]
fn request_of_a_client_that_has_sent_the_next_one_ends_when_the_client_leaves() {
    check(&[], |proxy, upstream| {
        let before = proxy.descriptors();
        let next = b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n";
        // More than hyper reads at once, and less than the system's buffers hold: behind more than
        // that, the end of the client does not reach the proxy.
        let many = next.repeat(1_000);
        let mut clients = Vec::new();
        for behind in [&next[..], b"GET / HT", &many] {
            for in_two_parts in [false, true] {
                clients.push(send_unanswered(proxy, behind, in_two_parts));
                assert!(upstream.request().starts_with("get /sink "), "{}", proxy.name);
            }
        }
        let count = clients.len();
        drop(clients);
        // Long before the limit of an answer, which is an hour.
        upstream.wait_for_ends(count);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn requests_that_a_client_sends_at_once_are_all_answered() {
    check(&[], |proxy, _| {
        let mut client = proxy.connect();
        let begin = Instant::now();
        let request = "GET / HTTP/1.1\r\nHost: proxy\r\n\r\n".repeat(499);
        client.write_all(request.as_bytes()).unwrap();
        let last = b"GET / HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n";
        client.write_all(last).unwrap();
        let said = said(&mut client);
        assert_eq!(said.matches("HTTP/1.1 200 ").count(), 500, "{:?}", begin.elapsed());
    });
}

#[test]
fn part_of_a_head_in_one_read_with_a_request_has_the_time_of_a_head() {
    let options = ["--header", "500ms", "--keep-alive", "1h"];
    proxy::check(&["corewheel"], &options, |proxy| {
        let post = "POST / HTTP/1.1\r\nHost: proxy\r\n";
        for request in [
            "GET / HTTP/1.1\r\nHost: proxy\r\n\r\n".to_owned(),
            format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        ] {
            for behind in ["G", "GET / HTTP/1.1\r\nHost: proxy\r\n"] {
                let mut client = proxy.connect();
                let begin = Instant::now();
                client.write_all(format!("{request}{behind}").as_bytes()).unwrap();
                let said = said(&mut client);
                let name = &proxy.name;
                assert!(said.starts_with("HTTP/1.1 200 "), "{name}: {request:?} {said:?}");
                assert!(said.contains("HTTP/1.1 408 "), "{name}: {request:?} {said:?}");
                assert!(begin.elapsed() >= LIMIT, "{name}: after {:?}", begin.elapsed());
            }
        }
    });
}

#[test]
fn line_end_behind_a_body_is_no_head() {
    let options = ["--header", "500ms", "--keep-alive", "1h"];
    proxy::check(&["corewheel"], &options, |proxy| {
        let mut client = proxy.connect();
        let head = "POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\n";
        client.write_all(format!("{head}hello\r\n").as_bytes()).unwrap();
        assert_eq!(proxy::read_answer(&mut client).0, 200, "{}", proxy.name);
        thread::sleep(2 * LIMIT);
        assert_eq!(proxy::get(&mut client, "/").0, 200, "{}", proxy.name);
    });
}
