//! The runtime that a service chooses for its shards.

use std::fmt;

/// The runtime of the shards of a service.
///
/// A shard takes seven open files, two threads and 6 MiB of address space on glommio, five open
/// files and a thread on tokio, and a thread without an executor. `Auto` and `GlommioOrTokio` try
/// the next runtime where a limit of the process or the container does not leave as much for all
/// shards. They decide once, at the start, and log the runtime with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Runtime {
    /// Glommio where `io_uring` works, else tokio, else plain threads; a runtime whose feature is
    /// off is skipped. For values and callbacks, which run on each of them alike:
    /// [`spawn_on`](crate::TimerService::spawn_on) is refused, since the host decides which sockets
    /// and files a future could use.
    #[default]
    Auto,
    /// Glommio where `io_uring` works, else tokio; an error at the start where neither works. For
    /// futures that run on both: they use no sockets or files of a runtime, or choose them by
    /// [`TimerService::runtime`](crate::TimerService::runtime).
    GlommioOrTokio,
    /// A glommio executor for each shard. It takes 0.5 MB of memory and seven descriptors, and 256
    /// of them start in 0.2 s: the service registers 256 KiB with the rings of each for direct
    /// reads and writes of files, where glommio's own default of 10 MiB takes 10 MB a shard and
    /// seconds. A server whose files need more attaches the shards to executors of its own.
    Glommio,
    /// A current-thread tokio runtime with a `LocalSet` for each shard.
    Tokio,
    /// A plain thread for each shard: callbacks and typed timers, and no futures spawned on the
    /// shards; the futures of a [`Handle`](crate::Handle) need none. After a stall, as at any time,
    /// a turn receives what other threads have sent before it delivers.
    Thread,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::GlommioOrTokio => "glommio or tokio",
            Self::Glommio => "glommio",
            Self::Tokio => "tokio",
            Self::Thread => "thread",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
