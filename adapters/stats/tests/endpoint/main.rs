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

use std::sync::mpsc;

use corewheel::{Runtime, ShardId, TimerService};
use corewheel_stats::{StatsEndpoint, StatsRoutes};
use corewheel_test_support::{PATIENCE, ms, wait_until};

fn service(shards: usize) -> TimerService {
    TimerService::builder()
        .shards(shards)
        .capacity(4_096)
        .runtime(Runtime::Thread)
        .unpinned()
        .start()
        .expect("plain threads run everywhere")
}

/// A service of so many shards that its statistics do not fit the buffers of a connection. No
/// thread drives the shards.
fn huge_service() -> TimerService {
    TimerService::builder().shards(1_024).capacity(64).start_attached_with().unwrap()
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

/// Sends timers to a shard and waits until they have fired.
fn fire(service: &TimerService, shard: u16, timers: u64) {
    let client = service.handle();
    let (sender, fired) = mpsc::channel();
    for _ in 0..timers {
        let sender = sender.clone();
        let delay = ms(1);
        client
            .on(ShardId::new(shard))
            .schedule_fn(delay, move |_| sender.send(()).unwrap())
            .expect("the shard has room for a few timers");
    }
    for _ in 0..timers {
        fired.recv_timeout(PATIENCE).expect("timers fire");
    }
}
