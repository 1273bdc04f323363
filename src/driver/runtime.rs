//! The runtimes of shards that this crate has itself.

use std::fmt;

use super::host::{Engine, Needs, Shard};
use super::thread;
#[cfg(feature = "tokio")]
use super::tokio;

/// A runtime of the shards of a service that this crate has itself: an
/// [`Engine`](crate::host::Engine) for
/// [`TimerServiceBuilder::runtime`](crate::TimerServiceBuilder::runtime).
///
/// The package `corewheel-glommio` has others: glommio, and the choice of glommio where `io_uring`
/// works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Runtime {
    /// A plain thread for each shard: callbacks and typed timers, and no futures spawned on the
    /// shards; the futures of a [`Handle`](crate::Handle) need none. After a stall, as at any time,
    /// a turn receives what other threads have sent before it delivers.
    #[default]
    Thread,
    /// A current-thread tokio runtime with a `LocalSet` for each shard, in builds with the feature
    /// `tokio`; without it a start is refused. It takes five open files and a thread.
    Tokio,
}

impl Runtime {
    /// Its name: that of [`TimerService::runtime`](crate::TimerService::runtime) and of the
    /// statistics.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The name and the engine of each runtime.
    const fn row(self) -> (&'static str, &'static dyn Engine) {
        match self {
            Self::Thread => (thread::NAME, &thread::ThreadEngine),
            #[cfg(feature = "tokio")]
            Self::Tokio => (tokio::NAME, &tokio::TokioEngine),
            #[cfg(not(feature = "tokio"))]
            Self::Tokio => ("tokio", &Absent("tokio")),
        }
    }
}

impl Engine for Runtime {
    fn name(&self) -> &'static str {
        self.row().0
    }

    fn has_executor(&self) -> bool {
        self.row().1.has_executor()
    }

    fn needs(&self) -> Needs {
        self.row().1.needs()
    }

    fn probe(&self) -> Result<String, String> {
        self.row().1.probe()
    }

    fn make(&self, thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        self.row().1.make(thread)
    }
}

/// The engine of a runtime whose feature is off: the name of both.
#[cfg(not(feature = "tokio"))]
#[derive(Debug)]
struct Absent(&'static str);

#[cfg(not(feature = "tokio"))]
impl Absent {
    fn why(&self) -> String {
        format!("it needs the feature `{}` of this crate", self.0)
    }
}

#[cfg(not(feature = "tokio"))]
impl Engine for Absent {
    fn name(&self) -> &'static str {
        self.0
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn probe(&self) -> Result<String, String> {
        Err(self.why())
    }

    fn make(&self, _thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        Err(self.why())
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
