//! The runtimes that a service chooses from, once, at its start.

use std::sync::Arc;

use corewheel::host::{Engine, Needs, Shard};

#[cfg(target_os = "linux")]
use crate::host;

/// The runtime of the shards of a service, for
/// [`TimerServiceBuilder::runtime`](corewheel::TimerServiceBuilder::runtime).
///
/// A shard takes seven open files, two threads and 6 MiB of address space on glommio, five open
/// files and a thread on tokio, and a thread without an executor. All shards on glommio share one
/// more thread. `Auto` and `GlommioOrTokio` try the next runtime where a limit of the process or
/// the container does not leave as much for all shards. They decide once, at the start, and log the
/// runtime with the reason. Tokio is there if the feature `tokio` of `corewheel` is on.
///
/// ```
/// use corewheel::{ShutdownPolicy, TimerService};
/// use corewheel_glommio::Runtime;
///
/// let service = TimerService::builder().shards(1).runtime(Runtime::Auto).start()?;
/// println!("{:?}: {}", service.runtime(), service.runtime_reason());
/// service.shutdown(ShutdownPolicy::Drop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Runtime {
    /// Glommio where `io_uring` works, else tokio, else plain threads. For values and callbacks,
    /// which run on each of them alike: [`spawn_on`](corewheel::TimerService::spawn_on) is refused,
    /// since the host decides which sockets and files a future could use.
    #[default]
    Auto,
    /// Glommio where `io_uring` works, else tokio; an error at the start where neither works. For
    /// futures that run on both: they use no sockets or files of a runtime, or choose them by
    /// [`TimerService::runtime`](corewheel::TimerService::runtime).
    GlommioOrTokio,
    /// A glommio executor for each shard. It takes 0.5 MB of memory and seven descriptors, and 256
    /// of them start in 0.2 s on two shared cores: the service registers 256 KiB with the rings of
    /// each for direct reads and writes of files, where glommio's own default of 10 MiB takes 10 MB
    /// a shard and seconds. A server whose files need more attaches the shards to executors of its
    /// own.
    Glommio,
    /// [`corewheel::Runtime::Tokio`], for a program that reads the runtime from its options.
    Tokio,
    /// [`corewheel::Runtime::Thread`].
    Thread,
}

impl Runtime {
    /// `None` for glommio.
    const fn of_corewheel(self) -> Option<corewheel::Runtime> {
        match self {
            Self::Auto | Self::GlommioOrTokio | Self::Glommio => None,
            Self::Tokio => Some(corewheel::Runtime::Tokio),
            Self::Thread => Some(corewheel::Runtime::Thread),
        }
    }
}

impl Engine for Runtime {
    /// That of `Auto` and `GlommioOrTokio` is `glommio`, which they try first.
    fn name(&self) -> &'static str {
        self.of_corewheel().map_or("glommio", corewheel::Runtime::name)
    }

    fn has_executor(&self) -> bool {
        self.of_corewheel().is_none_or(|runtime| runtime.has_executor())
    }

    fn needs(&self) -> Needs {
        self.of_corewheel().map_or(host::NEEDS, |runtime| runtime.needs())
    }

    fn probe(&self) -> Result<String, String> {
        self.of_corewheel().map_or_else(host::probe, |runtime| runtime.probe())
    }

    fn make(&self, thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        match self.of_corewheel() {
            Some(runtime) => runtime.make(thread),
            None => host::make(thread),
        }
    }

    fn alternatives(&self) -> Vec<Arc<dyn Engine>> {
        let tried: &[corewheel::Runtime] = match self {
            Self::Auto => &[corewheel::Runtime::Tokio, corewheel::Runtime::Thread],
            Self::GlommioOrTokio => &[corewheel::Runtime::Tokio],
            Self::Glommio | Self::Tokio | Self::Thread => &[],
        };
        tried.iter().map(|runtime| Arc::new(*runtime) as Arc<dyn Engine>).collect()
    }
}

/// Where there is no glommio.
#[cfg(not(target_os = "linux"))]
mod host {
    use corewheel::host::{Needs, Shard};

    pub(super) const NEEDS: Needs = Needs { files: 0, files_once: 0, threads: 1, memory: 0 };

    pub(super) fn probe() -> Result<String, String> {
        Err("it is for Linux".to_owned())
    }

    pub(super) fn make(_thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        Err("it is for Linux".to_owned())
    }
}
