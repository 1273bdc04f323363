//! The `Host` headers that the endpoint accepts. A page of another site whose domain name resolves
//! to this machine gets no statistics.

use corewheel::TimerService;

use crate::client::{Connection, ask};
use crate::{check_status, routes, served, service, with_routes};

/// Sends a request line with these headers, and expects this status.
fn check_head(request_line: &str, headers: &[&str], expected: u16) -> String {
    let lines = [&[request_line], headers].concat();
    check_status(lines.join("\r\n") + "\r\n\r\n", expected).body
}

fn check_host(host: &str, expected: u16) -> String {
    check_head("GET /stats.json HTTP/1.1", &[&format!("Host: {host}")], expected)
}

#[test]
fn host_of_loopback_or_ip_address_is_answered() {
    let hosts = "localhost LOCALHOST:9920 localhost. stats.localhost:80 127.0.0.1 127.0.0.1:9920 \
                 192.0.2.7:9920 [::1] [::1]:9920 [2001:db8::7]:80";
    for host in hosts.split(' ') {
        check_host(host, 200);
    }
}

#[test]
fn host_with_foreign_name_gets_421_and_the_remedy() {
    let hosts = "attacker.example attacker.example:9920 localhost.attacker.example notlocalhost \
                 127.0.0.1.attacker.example 0x7f.1";
    for host in hosts.split(' ') {
        let body = check_host(host, 421);
        assert!(body.contains("allow_host") && !body.contains("fired"), "{body}");
    }
    for path in ["/", "/metrics", "/live", "/nowhere"] {
        let line = format!("GET {path} HTTP/1.1");
        check_head(&line, &["Host: attacker.example"], 421);
    }
}

#[test]
fn host_that_is_missing_repeated_or_malformed_gets_400() {
    check_head("GET /live HTTP/1.1", &[], 400);
    check_head("GET /live HTTP/1.1", &["Host: localhost", "Host: localhost"], 400);
    check_head("GET /live HTTP/1.1", &["Host: localhost", "Host: attacker.example"], 400);
    let hosts = ":9920 localhost:http localhost:999999 localhost/ user@localhost [::1 [::1]9920 \
                 [::zz] ::1 localh\u{f6}st";
    for host in hosts.split(' ').chain(["", "local host", "localhost, attacker.example"]) {
        check_host(host, 400);
    }
}

#[test]
fn host_in_absolute_target_is_checked_like_the_header() {
    for (target, host, expected) in [
        ("localhost", "localhost", 200),
        ("[::1]:9920", "[::1]:9920", 200),
        ("attacker.example", "localhost", 421),
        ("localhost", "attacker.example", 421),
        ("[::1]attacker.example", "localhost", 400),
        ("user@localhost", "localhost", 400),
    ] {
        let line = format!("GET http://{target}/live HTTP/1.1");
        check_head(&line, &[&format!("Host: {host}")], expected);
    }
}

#[test]
fn host_missing_from_http_1_0_request_is_answered() {
    // Health checks of load balancers use HTTP/1.0, and no browser does.
    let (_service, _endpoint, address) = served();
    let response =
        |sent: &[u8]| String::from_utf8(Connection::opened(address, sent).rest()).unwrap();
    let answered = response(b"GET /live HTTP/1.0\r\n\r\n");
    assert!(answered.starts_with("HTTP/1.0 200"), "{answered}");
    assert!(answered.ends_with("\r\n\r\nthe process answers\n"), "{answered}");
    let foreign = response(b"GET /live HTTP/1.0\r\nHost: attacker.example\r\n\r\n");
    assert!(foreign.starts_with("HTTP/1.0 421"), "{foreign}");
}

#[test]
fn host_that_the_routes_allow_is_answered() {
    let service = service(1);
    let routes = routes(&service).allow_host("stats.example").unwrap();
    let endpoint = with_routes(routes.allow_host("Gateway.").unwrap());
    for (host, expected) in [
        ("stats.example", 200),
        ("STATS.example.:9920", 200),
        ("gateway:80", 200),
        ("localhost", 200),
        ("other.stats.example", 421),
        ("example", 421),
    ] {
        let sent = format!("GET /live HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(ask(endpoint.local_addr(), sent.as_bytes()).status, expected, "{host}");
    }
}

#[test]
fn allowed_host_with_scheme_port_or_wildcard_is_refused() {
    let service: TimerService = TimerService::builder().shards(1).start_attached().unwrap();
    for name in ["", "http://stats.example", "stats.example:9920", "*.example", "::1", "a b"] {
        let error = routes(&service).allow_host(name).unwrap_err();
        assert_eq!(error.field(), "allow_host", "{name:?}");
        assert!(error.to_string().contains("allow_host"), "{error}");
    }
}
