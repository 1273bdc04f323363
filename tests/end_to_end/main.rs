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
mod restart;
mod server;
mod stall;
mod to_the_end;

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use corewheel::{Runtime, ShutdownPolicy, TimerService};

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

const ALL_WORLDS: [World; 5] = [
    World { forbidden: None, runtime: "glommio", expected: "glommio" },
    World { forbidden: None, runtime: "tokio", expected: "tokio" },
    World { forbidden: None, runtime: "auto", expected: "glommio" },
    World { forbidden: Some("EPERM"), runtime: "auto", expected: "tokio" },
    World { forbidden: Some("ENOSYS"), runtime: "auto", expected: "tokio" },
];

/// One that is there on every host.
const ANYWHERE: World = ALL_WORLDS[1];

/// The worlds that there can be on this host.
fn worlds() -> impl Iterator<Item = World> {
    ALL_WORLDS.into_iter().filter(|world| world.expected != "glommio" || glommio_works())
}

/// Whether `io_uring` can be used here; says so where it cannot.
fn glommio_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let builder = TimerService::builder().shards(1).runtime(Runtime::Glommio);
        let works = builder.start().is_ok_and(|it| it.shutdown(ShutdownPolicy::Drop).is_ok());
        if !works {
            println!("skipped: io_uring cannot be used here, so what needs glommio is left out");
        }
        works
    })
}

/// How long a test waits for what must come. Far longer than it takes, so that a busy machine does
/// not fail it.
const PATIENCE: Duration = Duration::from_mins(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a check in every world at once.
fn in_every_world(check: impl Fn(World) + Send + Sync) {
    thread::scope(|scope| {
        for world in worlds() {
            let check = &check;
            scope.spawn(move || check(world));
        }
    });
}
