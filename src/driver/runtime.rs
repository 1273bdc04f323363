//! The runtimes of shards that this crate has itself.

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
        match self {
            Self::Thread => "thread",
            Self::Tokio => "tokio",
        }
    }
}

#[cfg(not(feature = "tokio"))]
const ABSENT: &str = "it needs the feature `tokio` of this crate";

impl Engine for Runtime {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn has_executor(&self) -> bool {
        *self == Self::Tokio
    }

    fn needs(&self) -> Needs {
        match self {
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio::NEEDS,
            _ => Needs::default(),
        }
    }

    fn probe(&self) -> Result<String, String> {
        match self {
            Self::Thread => Ok("threads work everywhere".to_owned()),
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio::probe(),
            #[cfg(not(feature = "tokio"))]
            Self::Tokio => Err(ABSENT.to_owned()),
        }
    }

    fn make(&self, _thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        match self {
            Self::Thread => Ok(Box::new(thread::run)),
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio::make(),
            #[cfg(not(feature = "tokio"))]
            Self::Tokio => Err(ABSENT.to_owned()),
        }
    }
}
