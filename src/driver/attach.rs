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
//! shard, to be sent to the thread that drives it: in a tokio `LocalSet` or `LocalRuntime`, in
//! another runtime by its [`Host`], or in a loop of its own as a [`ShardLoop`]. The package
//! `corewheel-glommio` attaches shards to glommio executors.

use std::future::Future;
use std::sync::Arc;

use super::Driven;
use super::executor::{WithHandler, drive};
use super::host::Host;
pub use crate::driver::own_loop::{ShardLoop, Turn};
use crate::face::timers::Timers;
use crate::shard::Core;
use crate::shard::Directory;
use crate::shard::handler::Fired;
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
    pub fn attach_tokio(
        self,
        handler: impl FnMut(Fired<T>, &Timers<T>) + 'static,
    ) -> Result<Timers<T>, StartError> {
        let (timers, driver) = self.attach(super::tokio::TokioHost::attached(), handler)?;
        tokio::task::spawn_local(driver);
        Ok(timers)
    }

    /// Drives the shard on this thread, on a runtime that this crate does not know. Returns the
    /// shard's timers and its driver, a future that the caller gives to the runtime. The driver is
    /// ready when the shard has been shut down; dropped before, it leaves the shard dead.
    ///
    /// The thread counts as the shard's from this call until the driver is dropped.
    ///
    /// ```
    /// use corewheel::host::Host;
    /// use corewheel::{ShutdownPolicy, TimerService};
    /// use std::future::Future;
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use std::time::Duration;
    /// use tokio::task::{spawn_local, yield_now};
    /// use tokio::time::{Sleep, sleep};
    ///
    /// /// A `LocalSet` of tokio, without the care that `attach_tokio` takes.
    /// struct InLocalSet(Pin<Box<Sleep>>);
    ///
    /// impl Host for InLocalSet {
    ///     fn arm(&mut self, after: Duration) {
    ///         self.0.set(sleep(after));
    ///     }
    ///
    ///     fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
    ///         self.0.as_mut().poll(cx)
    ///     }
    ///
    ///     async fn read_sockets(&mut self, _connections: usize) {
    ///         // Tokio looks at its sockets when a task yields, and then runs what has come.
    ///         yield_now().await;
    ///         yield_now().await;
    ///     }
    ///
    ///     async fn step_aside(&mut self) {
    ///         yield_now().await;
    ///     }
    ///
    ///     fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
    ///         spawn_local(future);
    ///     }
    /// }
    ///
    /// let service = TimerService::builder().shards(1).start_attached_with::<&str>()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// tokio::task::LocalSet::new().block_on(&runtime, async {
    ///     let host = InLocalSet(Box::pin(sleep(Duration::ZERO)));
    ///     let handler = |fired: corewheel::Fired<_>, _: &_| println!("{}", fired.payload);
    ///     let (timers, driver) = attachment.attach(host, handler)?;
    ///     spawn_local(driver);
    ///     timers.schedule(Duration::from_millis(1), "a millisecond later")?;
    ///     timers.sleep(Duration::from_millis(5)).await?;
    ///     let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
    ///     assert_eq!(report.shards[0].counts.fired, 2);
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// There is no memory for the shard's timers.
    pub fn attach<X: Host + 'static, H: FnMut(Fired<T>, &Timers<T>) + 'static>(
        self,
        host: X,
        handler: H,
    ) -> Result<(Timers<T>, impl Future<Output = ()> + use<X, H, T>), StartError> {
        let driven = self.open(true)?;
        let timers = driven.timers().clone();
        Ok((timers, drive(Box::new(WithHandler::new(driven, handler)), host)))
    }

    /// Makes the shard run in a loop of the caller's own, on this thread: around `poll`, `epoll`, a
    /// crate such as mio, or anything else. See [`ShardLoop`] for the order of such a loop, for
    /// handlers that borrow, and for its end.
    ///
    /// # Errors
    ///
    /// There is no memory for the shard's timers.
    pub fn into_loop<H: FnMut(Fired<T>, &Timers<T>) + 'static>(
        self,
        handler: H,
    ) -> Result<ShardLoop<T, H>, StartError> {
        Ok(ShardLoop::new(self.open(false)?, handler))
    }

    fn open(mut self, has_executor: bool) -> Result<Driven<T>, StartError> {
        let core = Core::open(Arc::clone(&self.directory), self.shard, has_executor)?;
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

debug_fields!([T: Send + 'static] Attachment<T>, |it| shard: it.shard);
