//! Shards in executors and loops that a server has already.
//!
//! ```
//! use corewheel::{ShutdownPolicy, TimerService};
//! use std::time::Duration;
//!
//! let service = TimerService::builder().shards(1).start_attached_with::<&str>()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! tokio::task::LocalSet::new().block_on(&runtime, async {
//!     let timers = attachment.attach_tokio(|fired, _timers| println!("{}", fired.payload))?;
//!     timers.schedule(Duration::from_millis(1), "a millisecond later")?;
//!     timers.sleep(Duration::from_millis(5)).await?;
//!     let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
//!     assert_eq!(report.shards[0].counts.fired, 2);
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`start_attached`](crate::TimerServiceBuilder::start_attached) makes a service without threads,
//! and [`TimerService::attach`](crate::TimerService::attach) gives an [`Attachment`] for each
//! shard, to be sent to the thread that drives it: in a glommio executor, in a tokio `LocalSet` or
//! `LocalRuntime`, or in a loop of its own as a [`ShardLoop`].

use std::fmt;
use std::sync::Arc;

use super::Driven;
pub use crate::driver::own_loop::{ShardLoop, Turn};
use crate::shard::Core;
use crate::shard::Directory;
use crate::shard::callback::Handler;
#[cfg(any(feature = "sim", feature = "tokio", all(feature = "glommio", target_os = "linux")))]
use crate::shard::host::OwnedHandler;
use crate::values::error::StartError;
use crate::values::ids::ShardId;

/// A shard that is still to be driven; made by
/// [`TimerService::attach`](crate::TimerService::attach). Send it to the thread that will drive it.
///
/// Dropped unused, the shard is closed.
#[must_use = "the shard does nothing until it is driven"]
pub struct Attachment<T: Send + 'static> {
    directory: Arc<Directory<T>>,
    shard: ShardId,
    used: bool,
}

impl<T: Send + 'static> Attachment<T> {
    pub(crate) fn new(directory: Arc<Directory<T>>, shard: ShardId) -> Self {
        Self { directory, shard, used: false }
    }

    /// Which shard it is.
    pub fn shard_id(&self) -> ShardId {
        self.shard
    }

    /// Drives the shard in the glommio executor that this is called in, in a task queue of its own.
    ///
    /// While tasks are ready to run, glommio reads its timers and sockets once in the period of the
    /// executor's preempt timer, 100 ms by default. It has no budget that makes a task return whose
    /// socket is always ready. [`ConnTimers::race`](crate::ConnTimers::race) and
    /// [`Timers::timeout`](crate::Timers::timeout) return after 8 results in a row and wake the
    /// driver when its time has come; a future that was started by
    /// [`spawn_on`](crate::TimerService::spawn_on) wakes it whenever it returns. The driver then
    /// has the executor read its sockets as well. A task that uses none of them awaits
    /// [`Timers::consume_budget`](crate::Timers::consume_budget) for each packet, or delays all
    /// timers of the shard by 100 ms and multiples.
    ///
    /// Leave the preempt timer at 100 ms: the shorter it is, the more often glommio goes to
    /// sleep with tasks that are ready to run, on a busy machine, until something else happens.
    ///
    /// Call it in the task queue that the connections run in, so that after a stall they read the
    /// data in their sockets before the shard delivers their idle events. It takes two descriptors.
    ///
    /// # Errors
    ///
    /// There is no memory for the shard's timers.
    ///
    /// # Panics
    ///
    /// Outside of a glommio executor.
    #[cfg(all(feature = "glommio", target_os = "linux"))]
    pub fn attach_glommio(self, handler: impl Handler<T>) -> Result<crate::Timers<T>, StartError> {
        let driven = self.open(true)?;
        let timers = driven.timers().clone();
        drop(super::glommio::start(driven, OwnedHandler::new(handler)));
        Ok(timers)
    }

    /// Drives the shard in the tokio `LocalSet` or `LocalRuntime` that this is called in.
    ///
    /// ```
    /// use corewheel::{ShutdownPolicy, TimerService};
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start_attached_with::<&str>()?;
    /// let attachment = service.attach(service.shards().next().unwrap())?;
    /// // Tokio has this runtime from version 1.51 on.
    /// tokio::runtime::LocalRuntime::new()?.block_on(async {
    ///     let timers = attachment.attach_tokio(|fired, _timers| println!("{}", fired.payload))?;
    ///     timers.schedule(Duration::from_millis(1), "a millisecond later")?;
    ///     timers.sleep(Duration::from_millis(5)).await?;
    ///     let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    ///     assert_eq!(report.shards[0].counts.fired, 2);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// On Linux the shard sleeps by a timer of the kernel, if the runtime has I/O enabled, and
    /// takes one descriptor for it. By tokio's timers, which it uses otherwise, each event is up to
    /// two milliseconds later. In a runtime without I/O, the attempt has tokio panic once: the
    /// driver catches that, but a panic hook sees it.
    ///
    /// A shard that runs late has the runtime read its sockets before it delivers anything, up to
    /// 1,024 events at a time, the default of tokio's builder. A runtime that takes fewer may close
    /// connections as idle, after a stall, whose data came in time.
    ///
    /// # Errors
    ///
    /// There is no memory for the shard's timers.
    ///
    /// # Panics
    ///
    /// Outside of a `LocalSet` and a `LocalRuntime`. The shard dies in a runtime without time
    /// enabled where it cannot use a timer of the kernel.
    #[cfg(feature = "tokio")]
    pub fn attach_tokio(self, handler: impl Handler<T>) -> Result<crate::Timers<T>, StartError> {
        let (timers, driver) = self.on_host(handler, super::tokio::TokioHost::attached())?;
        tokio::task::spawn_local(driver);
        Ok(timers)
    }

    /// The shard's timers, and the future that drives the shard on the executor of `host`.
    #[cfg(any(feature = "sim", feature = "tokio"))]
    pub(crate) fn on_host<H: Handler<T>>(
        self,
        handler: H,
        host: impl super::executor::Host + 'static,
    ) -> Result<(crate::Timers<T>, impl Future<Output = ()> + 'static), StartError> {
        let driven = self.open(true)?;
        let timers = driven.timers().clone();
        Ok((timers, super::executor::drive(driven, OwnedHandler::new(handler), host)))
    }

    /// Makes the shard run in a loop of the caller's own, on this thread: around `poll`, `epoll`, a
    /// crate such as mio, or anything else. See [`ShardLoop`] for the order of such a loop, for
    /// handlers that borrow, and for its end.
    ///
    /// # Errors
    ///
    /// There is no memory for the shard's timers.
    pub fn into_loop<H: Handler<T>>(self, handler: H) -> Result<ShardLoop<T, H>, StartError> {
        Ok(ShardLoop::new(self.open(false)?, handler))
    }

    fn open(mut self, spawns: bool) -> Result<Driven<T>, StartError> {
        let core = Core::open(Arc::clone(&self.directory), self.shard, spawns)?;
        self.used = true;
        Ok(Driven::new(core))
    }
}

impl<T: Send + 'static> Drop for Attachment<T> {
    fn drop(&mut self) {
        if !self.used {
            if let Some(post) = self.directory.post(self.shard) {
                post.close_unowned();
            }
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Attachment<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment").field(&self.shard).finish()
    }
}
