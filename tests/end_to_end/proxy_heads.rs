//! The heads that the example `reverse_proxy` forwards, and clients that send the next one early.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use crate::check_not_early;
use crate::proxy::{self, Proxy, get_of, post_of};
use crate::proxy_hostile::{
    HEADERS, LIMIT, Upstream, check, frame, http2, next, said, said_status,
};

/// Sends a request, and returns its head as the upstream server gets it, in small letters.
#[track_caller]
fn forwarded(proxy: &Proxy, upstream: &Upstream, request: &str) -> Vec<String> {
    assert_eq!(said_status(&mut proxy.send(request)), 200, "{request:?}");
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
        for named in [
            "shop.example",
            "127.0.0.1:8080",
            "[::1]",
            "[2001:db8::1]:80",
            "a_b.example:",
            "LOCALHOST",
        ] {
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
fn requests_that_name_no_valid_host_or_are_no_valid_http_are_refused() {
    let names =
        ["", "a b", "a/b", "a@b", "a,b", "http://a", "a:b", "a:+80", "a:99999", "[::1", "é"];
    check(&[], |proxy, _| {
        let refused = |request: &str, status| {
            let said = said(&mut proxy.send(request));
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?} {said:?}");
        };
        for name in names {
            for uri in ["/", "http://shop.example/"] {
                refused(&format!("GET {uri} HTTP/1.1\r\nHost: {name}\r\n\r\n"), 400);
            }
        }
        refused("GET http://user@shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n", 400);
        refused("GET http://shop.example/ HTTP/1.1\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
        refused("GET / HTTP/1.1\r\n\r\n", 400);
        let coded = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
        refused(&format!("{coded}0\r\n\r\n"), 501);
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
            let mut client = http2(proxy, 1 << 16, &frame(HEADERS, 5, 1, &block));
            // The index of `:status`, with its value in the static table.
            next(&mut client, HEADERS)[0]
        };
        let (ok, bad_request) = (0x88, 0x8c);
        assert_eq!(answered("Proxy"), ok);
        assert!(upstream.request().contains("\r\nhost: proxy\r\n"));
        assert_eq!(answered("other"), bad_request);
    });
}

#[test]
fn fields_of_one_connection_are_not_forwarded() {
    check(&[], |proxy, upstream| {
        let request = "GET / HTTP/1.1\r\nHost: proxy\r\nProxy-Connection: keep-alive\r\n\
            Keep-Alive: timeout=5\r\nX-Own: 1\r\nX-Kept: 2\r\nConnection: X-Own, Close\r\n\
            X-Forwarded-For: 192.0.2.1\r\n\r\n";
        let lines = forwarded(proxy, upstream, request);
        for gone in ["proxy-connection:", "keep-alive:", "x-own:", "connection:"] {
            assert!(!lines.iter().any(|line| line.starts_with(gone)), "{gone} {lines:?}");
        }
        for line in ["x-kept: 2", "x-forwarded-for: 192.0.2.1", "x-forwarded-for: 127.0.0.1"] {
            assert!(lines.iter().any(|known| known == line), "{lines:?}");
        }
    });
}

/// A client that has sent a request which the upstream server does not answer, and more behind it.
fn send_unanswered(proxy: &Proxy, behind: &[u8], in_two_parts: bool) -> TcpStream {
    let unanswered = get_of("/sink");
    if !in_two_parts {
        return proxy.send([unanswered.as_bytes(), behind].concat());
    }
    let mut client = proxy.send(unanswered);
    thread::sleep(LIMIT / 10);
    client.write_all(behind).unwrap();
    client
}

#[test]
fn request_of_a_client_that_has_sent_the_next_one_ends_when_the_client_leaves() {
    check(&[], |proxy, upstream| {
        let before = proxy.descriptors();
        let next = get_of("/").into_bytes();
        // More than hyper reads at once, and less than the system's buffers hold: behind more than
        // that, the end of the client does not reach the proxy.
        let many = next.repeat(1_000);
        let mut clients = Vec::new();
        for behind in [&next[..], b"GET / HT", &many] {
            for in_two_parts in [false, true] {
                clients.push(send_unanswered(proxy, behind, in_two_parts));
                assert!(upstream.request().starts_with("get /sink "));
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
        let last = "GET / HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n";
        let said = said(&mut proxy.send(get_of("/").repeat(499) + last));
        assert_eq!(said.matches("HTTP/1.1 200 ").count(), 500);
    });
}

const HEAD_IN_TIME: [&str; 4] = ["--header", "500ms", "--keep-alive", "1h"];

#[test]
fn part_of_a_head_in_one_read_with_a_request_has_the_time_of_a_head() {
    proxy::check(&["corewheel"], &HEAD_IN_TIME, |proxy| {
        let chunked = "POST / HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n";
        for request in [get_of("/"), format!("{chunked}5\r\nhello\r\n0\r\n\r\n")] {
            for behind in ["G", "GET / HTTP/1.1\r\nHost: proxy\r\n"] {
                let begin = Instant::now();
                let said = said(&mut proxy.send(format!("{request}{behind}")));
                assert!(said.starts_with("HTTP/1.1 200 "), "{request:?} {said:?}");
                assert!(said.contains("HTTP/1.1 408 "), "{request:?} {said:?}");
                check_not_early(begin, LIMIT);
            }
        }
    });
}

#[test]
fn line_end_behind_a_body_is_no_head() {
    proxy::check(&["corewheel"], &HEAD_IN_TIME, |proxy| {
        let mut client = proxy.send(post_of("/", 5) + "hello\r\n");
        assert_eq!(proxy::read_answer(&mut client).0, 200);
        thread::sleep(2 * LIMIT);
        assert_eq!(proxy::get(&mut client, "/").0, 200);
    });
}
