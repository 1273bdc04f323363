//! The hosts that a request for the statistics may name. A page of a browser must not reach them by
//! a name of its own. So a request is answered where it names an address, a name of loopback, or
//! the name that the builder was given.

use std::net::{Ipv4Addr, Ipv6Addr};

use arbtest::arbitrary::{Result, Unstructured};
use corewheel::{Runtime, TimerService};
use corewheel_stats::{StatsEndpoint, StatsRoutes};

use crate::session::{input, talk};

const NAMES: &[&[u8]] =
    &[b"localhost", b"LocalHost", b".localhost", b"stats.example", b"evil.example", b"127.0.0.1"];
const SIGNS: &[&[u8]] = &[
    b"0x7f.1", b"1", b".", b":", b"80", b"65536", b"[", b"]", b"::1", b"[::1]", b"%25eth0", b"@",
    b"/", b"#", b"?", b"\\", b" ", b"\t", b",", b"-", b"_",
];

pub(crate) struct Server {
    endpoint: StatsEndpoint,
    _service: TimerService,
}

impl Server {
    pub(crate) fn start() -> Self {
        let builder = TimerService::builder().shards(1).runtime(Runtime::Thread).unpinned();
        let service: TimerService = builder.start().expect("plain threads run everywhere");
        let routes = StatsRoutes::from(service.stats_source());
        let routes = routes.allow_host("stats.example").expect("it is a name");
        let endpoint = StatsEndpoint::start(routes, "127.0.0.1:0");
        Self { endpoint: endpoint.expect("a port is free"), _service: service }
    }

    pub(crate) fn check(&self, bytes: &mut Unstructured) -> Result<()> {
        let host = input(bytes, [NAMES, SIGNS], 6)?;
        // A line of its own would be another header.
        let is_line = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let host: Vec<u8> = host.into_iter().filter(|byte| !is_line(byte)).collect();
        let in_target = bytes.ratio(1, 4)?;
        let (target, header) = if in_target {
            ([b"http://", &host[..], b"/live"].concat(), b"localhost".to_vec())
        } else {
            (b"/live".to_vec(), host.clone())
        };
        let head = [b"GET ", &target[..], b" HTTP/1.1\r\nHost: ", &header, b"\r\n\r\n"].concat();
        let reply = talk(self.endpoint.local_addr(), &[&head]);
        let is_answered = reply.bytes.starts_with(b"HTTP/1.1 200 ");
        let text = String::from_utf8_lossy(&host).into_owned();
        if in_target {
            // Where a path or a user begins within the host, the target has another host.
            if !text.contains(['/', '?', '#', '@', '\\', ' ', '\t']) {
                assert!(!is_answered || is_allowed(&text), "the target {text:?} is answered");
            }
        } else {
            let text = text.trim_matches([' ', '\t']);
            assert_eq!(is_answered, is_allowed(text), "the host {text:?}");
        }
        Ok(())
    }
}

/// Whether a host and its port are allowed, by parsers of the standard library.
fn is_allowed(authority: &str) -> bool {
    let is_port = |port: &str| port.len() <= 5 && port.chars().all(|one| one.is_ascii_digit());
    if let Some((address, port)) = authority.strip_prefix('[').and_then(|it| it.split_once(']')) {
        let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
        return address.parse::<Ipv6Addr>().is_ok() && port.is_some_and(is_port);
    }
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let is_of_name = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    let is_loopback = host == "localhost" || host.ends_with(".localhost");
    let is_known = is_loopback || host == "stats.example" || host.parse::<Ipv4Addr>().is_ok();
    is_port(port) && is_known && host.chars().all(is_of_name)
}
