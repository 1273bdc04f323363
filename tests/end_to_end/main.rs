//! Tests of the echo server and other examples as processes with real sockets, on every runtime,
//! with and without `io_uring`.
//!
//! The program `without_io_uring` forbids `io_uring` by a seccomp filter, as containers do. The
//! tests assert that events happen and that they are not too early, but not how soon they happen.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

mod built;
mod deadlines;
mod echo;
mod examples;
mod future_set;
mod idle;
mod many_clients;
mod mqtt_broker;
mod multi_thread;
mod proxy;
mod proxy_h2c;
mod proxy_heads;
mod proxy_hostile;
mod proxy_upgrades;
mod requests_and_overload;
mod restart;
mod server;
mod shared_connections;
mod start_and_stop;
mod stopped_process;
mod watchdog;

use std::sync::OnceLock;
use std::thread;

use corewheel::{ShutdownPolicy, TimerService};
use corewheel_glommio::Runtime;

/// The environment of a server.
#[derive(Clone, Copy, Debug)]
struct World {
    /// The error of `io_uring` system calls; `None` if they are allowed.
    forbidden: Option<&'static str>,
    /// The runtime that the command line requests.
    runtime: &'static str,
    /// The runtime that the server must choose.
    expected: &'static str,
}

const ALL_WORLDS: [World; 7] = [
    World { forbidden: None, runtime: "glommio", expected: "glommio" },
    World { forbidden: None, runtime: "tokio", expected: "tokio" },
    World { forbidden: None, runtime: "auto", expected: "glommio" },
    World { forbidden: Some("EPERM"), runtime: "auto", expected: "tokio" },
    World { forbidden: Some("ENOSYS"), runtime: "auto", expected: "tokio" },
    World { forbidden: None, runtime: "compio", expected: "compio" },
    // It polls there.
    World { forbidden: Some("EPERM"), runtime: "compio", expected: "compio" },
];

/// A world that works on every machine.
const ANYWHERE: World = ALL_WORLDS[1];

/// The worlds that work on this machine.
fn worlds() -> impl Iterator<Item = World> {
    ALL_WORLDS.into_iter().filter(|world| world.expected != "glommio" || glommio_works())
}

/// Whether `io_uring` works on this machine. Prints a line if not.
fn glommio_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let builder = TimerService::builder().shards(1).runtime(Runtime::Glommio);
        let works = builder.start().is_ok_and(|it| it.shutdown(ShutdownPolicy::Drop).is_ok());
        if !works {
            println!("skipped: io_uring does not work here, so glommio is not tested");
        }
        works
    })
}

/// Runs a check in all worlds at the same time.
fn in_every_world(check: impl Fn(World) + Send + Sync) {
    in_worlds(worlds(), check);
}

/// Runs a check at the same time in all worlds that request one of these runtimes.
fn in_every_world_of(runtimes: &[&str], check: impl Fn(World) + Send + Sync) {
    in_worlds(worlds().filter(|world| runtimes.contains(&world.runtime)), check);
}

fn in_worlds(worlds: impl Iterator<Item = World>, check: impl Fn(World) + Send + Sync) {
    thread::scope(|scope| {
        for world in worlds {
            let check = &check;
            scope.spawn(move || check(world));
        }
    });
}
