//! The echo server as its users see it: the real process, real sockets, every runtime, with and
//! without `io_uring`.
//!
//! The host's part is played by the example `without_io_uring`, which installs a seccomp filter as
//! containers do. Nothing here asserts how soon something happens, only that it does, and that it
//! does not happen too soon.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

mod classes;
mod crowd;
mod deadlines;
mod echo;
mod examples;
mod idle;
mod life;
mod moving;
mod periodic;
mod server;
mod to_the_end;

use std::thread;
use std::time::Duration;

/// What a server runs in.
#[derive(Clone, Copy, Debug)]
struct World {
    /// What `io_uring` answers, if it is forbidden.
    forbidden: Option<&'static str>,
    /// What is asked for.
    runtime: &'static str,
    /// What it must come to.
    expected: &'static str,
}

const WORLDS: [World; 5] = [
    World { forbidden: None, runtime: "glommio", expected: "glommio" },
    World { forbidden: None, runtime: "tokio", expected: "tokio" },
    World { forbidden: None, runtime: "auto", expected: "glommio" },
    World { forbidden: Some("EPERM"), runtime: "auto", expected: "tokio" },
    World { forbidden: Some("ENOSYS"), runtime: "auto", expected: "tokio" },
];

/// How long a test waits for what must come. Far longer than it takes, so that a busy machine does
/// not fail it.
const PATIENCE: Duration = Duration::from_mins(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a check in every world at once.
fn in_every_world(check: impl Fn(World) + Send + Sync) {
    thread::scope(|scope| {
        for world in WORLDS {
            let check = &check;
            scope.spawn(move || check(world));
        }
    });
}
