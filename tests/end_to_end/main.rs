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
mod idle;
mod many_clients;
mod mqtt_broker;
mod multi_thread;
mod proxy;
mod proxy_h2c;
mod proxy_heads;
mod proxy_hostile;
mod proxy_upgrades;
mod restart;
mod server;
mod shared_connections;
mod start_and_stop;
mod stopped_process;
mod watchdog;

use std::fmt::Debug;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::{PATIENCE, ms};

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
    static TOLD: Once = Once::new();
    let works = corewheel_test_support::glommio_works();
    if !works {
        TOLD.call_once(|| {
            println!("skipped: io_uring does not work here, so glommio is not tested");
        });
    }
    works
}

/// Runs a check in all worlds at the same time.
fn in_every_world(check: impl Fn(World) + Sync) {
    at_once(worlds(), check);
}

/// Runs a check of each case at the same time, on threads that have the cases as their names.
fn at_once<C: Debug + Send>(cases: impl IntoIterator<Item = C>, check: impl Fn(C) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let (named, check) = (thread::Builder::new().name(format!("{case:?}")), &check);
            named.spawn_scoped(scope, move || check(case)).unwrap();
        }
    });
}

/// Asserts that so much time has passed.
#[track_caller]
fn check_not_early(begin: Instant, least: Duration) {
    let since = begin.elapsed();
    assert!(since >= least, "{since:?} instead of {least:?}");
}

/// Waits until nothing is wrong: `wrong` says what is.
#[track_caller]
fn wait_while(mut wrong: impl FnMut() -> Option<String>) {
    let begin = Instant::now();
    while let Some(wrong) = wrong() {
        assert!(begin.elapsed() < PATIENCE, "{wrong}");
        thread::sleep(ms(20));
    }
}
