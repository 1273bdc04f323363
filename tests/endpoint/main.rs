//! The statistics endpoint, seen from a socket: what it answers, whom it cuts off, and that the
//! timers do not notice.
//!
//! The client is a socket and a few lines, so that it can say what no HTTP client would. No test
//! says how fast something must be: waiting has a limit of a minute, which only a defect reaches.
#![cfg(all(feature = "endpoint", not(corewheel_loom)))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

mod abuse;
mod answers;
mod client;
mod crowd;
mod formats;
mod host;
mod life;
mod openmetrics;

use std::sync::mpsc;
use std::time::Duration;

use corewheel::{Placement, Runtime, ShardId, StatsEndpoint, StatsEndpointBuilder, TimerService};

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_mins(1);

fn service(shards: usize) -> TimerService {
    TimerService::builder()
        .shards(shards)
        .capacity(4_096)
        .runtime(Runtime::Thread)
        .placement(Placement::Unpinned)
        .start()
        .expect("plain threads run everywhere")
}

/// A service of so many shards that its statistics do not fit the buffers of a connection. Nothing
/// drives it.
fn huge_service() -> TimerService {
    TimerService::builder().shards(1_024).capacity(64).start_attached().unwrap()
}

fn builder(service: &TimerService) -> StatsEndpointBuilder {
    StatsEndpoint::builder(service.stats_source()).listen("127.0.0.1:0")
}

fn endpoint(service: &TimerService) -> StatsEndpoint {
    builder(service).start().expect("the system has a free port")
}

/// Sends timers to a shard and waits until they have fired.
fn fire(service: &TimerService, shard: u16, timers: u64) {
    let client = service.client();
    let (sender, fired) = mpsc::channel();
    for _ in 0..timers {
        let sender = sender.clone();
        let delay = Duration::from_millis(1);
        client
            .schedule_fn_on(ShardId::new(shard), delay, move |_| sender.send(()).unwrap())
            .expect("there is room for a few");
    }
    for _ in 0..timers {
        fired.recv_timeout(PATIENCE).expect("timers fire");
    }
}

/// Asks until the answer is yes.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    // Ten milliseconds at least for each round.
    for _ in 0..PATIENCE.as_millis() / 10 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never came about that {what}");
}
