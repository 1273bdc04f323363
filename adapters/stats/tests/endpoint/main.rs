//! The statistics endpoint, seen from a socket: its responses, the connections that it closes, and
//! that timers fire meanwhile.
//!
//! The client is a socket and a few lines, so that it can send bytes that no HTTP client sends. No
//! test asserts how fast the endpoint is: each wait has a limit of a minute, which only a defect
//! reaches.
#![cfg(not(corewheel_loom))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

mod client;
mod formats;
mod held_connections;
mod host;
mod hostile_clients;
mod monitoring;
mod mounted;
mod openmetrics;
mod readiness;
mod routes;
mod start_and_stop;

use std::net::SocketAddr;
use std::sync::mpsc;

use corewheel::{Runtime, ShardId, TimerService, TimerServiceBuilder};
use corewheel_stats::{StatsEndpoint, StatsRoutes};
use corewheel_test_support::{PATIENCE, ms, wait_until};

use self::client::{Reply, ask, get};

fn builder(shards: usize) -> TimerServiceBuilder {
    TimerService::builder().shards(shards).capacity(4_096).runtime(Runtime::Thread).unpinned()
}

fn service(shards: usize) -> TimerService {
    builder(shards).start().expect("plain threads run everywhere")
}

/// A service of one shard, its endpoint, and where that listens.
fn served() -> (TimerService, StatsEndpoint, SocketAddr) {
    served_by(service(1))
}

/// This service, its endpoint, and where that listens.
fn served_by<T: Send>(service: TimerService<T>) -> (TimerService<T>, StatsEndpoint, SocketAddr) {
    let endpoint = endpoint(&service);
    let address = endpoint.local_addr();
    (service, endpoint, address)
}

/// A service of so many shards that its statistics do not fit the buffers of a connection. No
/// thread drives the shards.
fn huge_service() -> TimerService {
    TimerService::builder().shards(512).capacity(64).start_attached_with().unwrap()
}

fn routes<T: Send>(service: &TimerService<T>) -> StatsRoutes {
    StatsRoutes::from(service.stats_source())
}

/// An endpoint with these routes.
fn with_routes(routes: StatsRoutes) -> StatsEndpoint {
    StatsEndpoint::start(routes, "127.0.0.1:0").expect("the system has a free port")
}

fn endpoint<T: Send>(service: &TimerService<T>) -> StatsEndpoint {
    with_routes(routes(service))
}

/// Sends these bytes to an endpoint, and expects this status. Checks that the endpoint then still
/// responds to other clients, and that timers fire.
#[track_caller]
fn check_status(sent: impl AsRef<[u8]>, expected: u16) -> Reply {
    let (service, _endpoint, address) = served();
    let sent = sent.as_ref();
    let reply = ask(address, sent);
    let shown = sent[..sent.len().min(80)].escape_ascii();
    assert_eq!(reply.status, expected, "{shown}: {}", reply.body);
    assert_eq!(get(address, "/live").status, 200);
    fire(&service, 0, 1);
    reply
}

/// Sends timers to a shard and waits until they have fired.
fn fire(service: &TimerService, shard: u16, timers: u64) {
    let client = service.handle();
    let (sender, fired) = mpsc::channel();
    for _ in 0..timers {
        let sender = sender.clone();
        let send = move |_: &_| sender.send(()).unwrap();
        client.on(ShardId::new(shard)).schedule_fn(ms(1), send).unwrap();
    }
    for _ in 0..timers {
        fired.recv_timeout(PATIENCE).expect("timers fire");
    }
}
