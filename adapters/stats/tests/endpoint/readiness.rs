//! The route `/ready` of the endpoint, and of the routes in servers of hyper and axum: what makes a
//! server not ready, and how it says so.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corewheel::{ShardId, TimerService};

use crate::client::{Reply, ask};
use crate::mounted::Server;
use crate::{routes, served_by, service, with_routes};

const WINDOW: Duration = Duration::from_hours(1);

fn get(address: SocketAddr, path: &str) -> Reply {
    let fields = "Host: localhost\r\nConnection: close";
    ask(address, format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n").as_bytes())
}

/// The status of `/ready` and its text.
fn ready(address: SocketAddr) -> (u16, String) {
    let Reply { status, body, .. } = get(address, "/ready");
    (status, body)
}

fn not_ready(lines: &str) -> (u16, String) {
    (503, lines.to_owned())
}

/// Services of several shards, with an endpoint and with routes in servers of hyper and axum.
fn check_each(check: impl Fn(&TimerService, SocketAddr)) {
    for mounted in [Server::hyper, Server::axum] {
        let service = service(2);
        let server = mounted(routes(&service));
        check(&service, server.address());
    }
    let (service, _endpoint, address) = served_by(service(2));
    check(&service, address);
}

#[test]
fn service_is_not_ready_from_its_drain_on() {
    check_each(|service, address| {
        assert_eq!(ready(address), (200, "every shard runs\n".to_owned()));
        service.drain(WINDOW);
        assert_eq!(ready(address), not_ready("draining\n"));
        // The end of the window changes nothing: the service takes no new connection.
        service.drain(Duration::ZERO);
        assert_eq!(ready(address), not_ready("draining\n"));
    });
}

#[test]
fn drain_of_one_shard_is_named() {
    check_each(|service, address| {
        service.handle().on(ShardId::new(1)).drain(WINDOW).unwrap();
        assert_eq!(ready(address), not_ready("shard 1 is draining\n"));
        let stats = get(address, "/stats.json").body;
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        let drains = |shard: usize| stats["shards"][shard]["is_draining"].as_bool();
        assert_eq!((drains(0), drains(1)), (Some(false), Some(true)));
    });
}

/// What a server says of itself.
#[derive(Clone, Default)]
struct Own {
    reason: Arc<Mutex<Option<String>>>,
    panics: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl Own {
    fn say(&self, reason: Option<&str>) {
        *self.reason.lock().unwrap() = reason.map(str::to_owned);
    }

    fn reason(self) -> impl Fn() -> Option<String> + Send + Sync + 'static {
        move || {
            self.calls.fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics.load(Ordering::Relaxed), "no upstream is known");
            self.reason.lock().unwrap().clone()
        }
    }
}

fn check_own_reason(own: &Own, service: &TimerService, address: SocketAddr) {
    assert_eq!(ready(address), (200, "every shard runs\n".to_owned()));
    own.say(Some("the upstream is down"));
    assert_eq!(ready(address), not_ready("the upstream is down\n"));
    let calls = own.calls.load(Ordering::Relaxed);
    for path in ["/live", "/stats.json"] {
        assert_eq!(get(address, path).status, 200, "{path}");
    }
    assert_eq!(own.calls.load(Ordering::Relaxed), calls, "another route asks for the reason");
    own.panics.store(true, Ordering::Relaxed);
    let panicked = "a function of the server panicked: no upstream is known\n";
    assert_eq!(ready(address), not_ready(panicked));
    own.panics.store(false, Ordering::Relaxed);
    service.drain(WINDOW);
    assert_eq!(ready(address), not_ready("draining\nthe upstream is down\n"));
    own.say(None);
    assert_eq!(ready(address), not_ready("draining\n"));
}

#[test]
fn server_adds_a_reason_of_its_own() {
    for mounted in [Server::hyper, Server::axum] {
        let (service, own) = (service(2), Own::default());
        let routes = routes(&service).ready_unless(own.clone().reason());
        // A later setting keeps the reason.
        let server = mounted(routes.allow_host("shop.example").unwrap());
        check_own_reason(&own, &service, server.address());
    }
    let (service, own) = (service(2), Own::default());
    let endpoint = with_routes(routes(&service).ready_unless(own.clone().reason()));
    check_own_reason(&own, &service, endpoint.local_addr());
}

#[test]
fn reasons_of_several_functions_are_lines_in_their_order() {
    let service = service(1);
    let says = |reason: &'static str| move || Some(reason.to_owned());
    let routes = routes(&service).ready_unless(says("one")).ready_unless(|| None);
    let endpoint = with_routes(routes.ready_unless(says("two")));
    assert_eq!(ready(endpoint.local_addr()), not_ready("one\ntwo\n"));
}
