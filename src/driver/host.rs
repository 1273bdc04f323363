//! Hosts of shards: runtimes and executors that this crate does not know.
//!
//! A shard runs on the thread of a runtime as a future, its *driver*. What the driver needs of the
//! runtime is a [`Host`]: an alarm, a look at the sockets, a way to let other tasks run. There are
//! two ways to use one:
//!
//! - [`Attachment::attach`](crate::attach::Attachment::attach) drives a shard on a thread that a
//!   server has already. It returns the driver, which the server spawns.
//! - An [`Engine`] starts a runtime for each shard, on threads of the service:
//!   [`TimerServiceBuilder::runtime`](crate::TimerServiceBuilder::runtime) takes one.
//!
//! The packages `corewheel-glommio` and `corewheel-compio` have both for these runtimes. The
//! package `corewheel-host-tests` has the tests that a host passes, by one call: they say what each
//! method must bring about.
//!
//! This host is a plain thread without other tasks, with its engine:
//!
//! ```
//! use corewheel::host::{Engine, Host, Needs, Shard};
//! use corewheel::{ShutdownPolicy, TimerService};
//! use std::cell::Cell;
//! use std::future::Future;
//! use std::pin::{Pin, pin};
//! use std::rc::Rc;
//! use std::sync::{Arc, mpsc};
//! use std::task::{Context, Poll, Wake, Waker};
//! use std::thread::{self, Thread};
//! use std::time::{Duration, Instant};
//!
//! /// The alarm: until when the thread may park.
//! struct Parked(Rc<Cell<Option<Instant>>>);
//!
//! impl Host for Parked {
//!     fn arm(&mut self, after: Duration) {
//!         self.0.set(Some(Instant::now() + after));
//!     }
//!
//!     fn poll_alarm(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
//!         if self.0.get().is_some_and(|at| at <= Instant::now()) {
//!             self.0.set(None);
//!             return Poll::Ready(());
//!         }
//!         // The loop below wakes the driver when the time has come.
//!         Poll::Pending
//!     }
//!
//!     // There are no sockets and no other tasks.
//!     async fn read_sockets(&mut self, _connections: usize) {}
//!     async fn step_aside(&mut self) {}
//!     fn spawn(&self, _future: Pin<Box<dyn Future<Output = ()>>>) {
//!         unreachable!("the engine says that it has no executor");
//!     }
//! }
//!
//! struct Unpark(Thread);
//!
//! impl Wake for Unpark {
//!     fn wake(self: Arc<Self>) {
//!         self.0.unpark();
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Threads;
//!
//! impl Engine for Threads {
//!     fn name(&self) -> &'static str {
//!         "threads"
//!     }
//!
//!     fn has_executor(&self) -> bool {
//!         false
//!     }
//!
//!     fn needs(&self) -> Needs {
//!         Needs::default()
//!     }
//!
//!     fn make(&self, _thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
//!         Ok(Box::new(|shard| {
//!             let until = Rc::new(Cell::new(None));
//!             let mut driver = pin!(shard.drive(Parked(Rc::clone(&until))));
//!             let waker = Waker::from(Arc::new(Unpark(thread::current())));
//!             while driver.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
//!                 let left = |at: Instant| at.saturating_duration_since(Instant::now());
//!                 until.get().map_or_else(thread::park, |at| thread::park_timeout(left(at)));
//!             }
//!         }))
//!     }
//! }
//!
//! let service = TimerService::builder().shards(1).runtime(Threads).start()?;
//! assert_eq!(service.runtime(), Some("threads"));
//! let (sender, fired) = mpsc::channel();
//! let call = move |_: &_| sender.send("five milliseconds later").unwrap();
//! service.handle().on(service.shard_for(0)).schedule_fn(Duration::from_millis(5), call)?;
//! assert_eq!(fired.recv()?, "five milliseconds later");
//! service.shutdown(ShutdownPolicy::Drop)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sockets before timers
//!
//! A timer that is due may guard a socket, whose data came in time and lies there unread. So the
//! driver delivers what was due when the runtime last looked at its sockets. A runtime looks at
//! them before it looks at its alarms, so after an alarm the driver takes its turn at once. A
//! driver that another task has woken, or that runs late, calls [`Host::read_sockets`] first. What
//! that does is all that a connection's timeouts have of this promise on a host.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::executor::{Turns, drive};

/// What the driver of a shard needs of the runtime on whose thread it runs.
///
/// The driver calls all of them on the shard's thread. It is one task of the runtime: it calls the
/// methods that take a `Context` in its own polls, and expects to be polled again when what it has
/// asked for has come.
///
/// A panic of a host ends the driver, and with it the shard: its timers are lost, and its callers
/// are told that it is dead.
pub trait Host {
    /// Sets the one alarm, in the place of what it was set for. The time is at most a day. An alarm
    /// may go off late, and it may go off early: the driver reads the clock.
    fn arm(&mut self, after: Duration);

    /// Whether the alarm has gone off since it was set; ready once for each time. If it has not,
    /// the task of the driver must be woken when it does. A driver polls it for each wake-up, so
    /// where a poll is expensive, the host remembers that nothing has come.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The waker by which other threads wake the driver. It must work on any thread, also on one
    /// that ends. By default that of the task.
    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        cx.waker()
    }

    /// Makes the runtime look at its sockets and alarms soon, although tasks are ready to run. The
    /// driver calls it when a task has woken it that the alarm should have woken. Nothing by
    /// default, for a runtime that looks at them after some tasks anyway.
    fn request_poll(&mut self) {}

    /// Keeps [`request_poll`](Self::request_poll) possible while the driver sleeps: called in each
    /// poll of a driver that sleeps. Nothing by default.
    fn keep_poll_request(&mut self, _cx: &mut Context<'_>) {}

    /// Waits until the runtime has looked at all its sockets since the call, and all tasks that
    /// this has made ready have run once. The shard has this many connections, for a runtime that
    /// takes a limited number of events at a time.
    fn read_sockets(&mut self, connections: usize) -> impl Future<Output = ()>;

    /// Lets the other tasks of the runtime run that are ready, and looks at the sockets where the
    /// runtime does that between tasks. The driver awaits it between two turns that follow at once.
    fn step_aside(&mut self) -> impl Future<Output = ()>;

    /// Starts a future on this thread, beside the driver: one that
    /// [`spawn_on`](crate::TimerService::spawn_on) has sent. It never panics, and drops what it
    /// holds when the shard ends, so the runtime may keep it longer.
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>);

    /// A function that makes the runtime run the driver before other tasks, once. Tasks that keep
    /// the thread busy call it when the driver is ready to run, for a runtime that would run them
    /// first. It is called once, at the start. `None` by default.
    fn prefer_driver(&self) -> Option<fn()> {
        None
    }
}

/// Starts a runtime for each shard, on threads of a service.
///
/// [`Runtime`](crate::Runtime) is the engine of plain threads and of tokio.
///
/// A start has two phases, so that a runtime that does not get what it needs has run no code of the
/// user, and the next one can be tried. First [`needs`](Self::needs) are tried out and
/// [`probe`](Self::probe) is asked, then each thread [makes](Self::make) its runtime. When all are
/// there, each thread runs its shard.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// The name of the runtime, in a word: for logs, statistics and errors.
    fn name(&self) -> &'static str;

    /// Whether futures can be spawned on its shards. True by default.
    fn has_executor(&self) -> bool {
        true
    }

    /// What each shard takes of the limits of the process. It is tried out before a start, as a
    /// runtime that does not get it may panic, or abort the process.
    fn needs(&self) -> Needs;

    /// Whether the runtime can work here, found out without one, and what has been found, as in
    /// `io_uring works`. It becomes the reason for the choice where there was one.
    ///
    /// # Errors
    ///
    /// Why it cannot work, with a remedy.
    fn probe(&self) -> Result<String, String> {
        Ok("it can work here".to_owned())
    }

    /// Makes the runtime of a shard, on the thread that will run it, which has this name and is
    /// pinned already. What is returned runs a shard until it is shut down, by [`Shard::drive`].
    ///
    /// # Errors
    ///
    /// Why there is no runtime, with a remedy.
    fn make(&self, thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String>;

    /// What is tried in its place, in this order, where it does not get what it needs. Nothing by
    /// default.
    fn alternatives(&self) -> Vec<Arc<dyn Engine>> {
        Vec::new()
    }
}

impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn has_executor(&self) -> bool {
        (**self).has_executor()
    }

    fn needs(&self) -> Needs {
        (**self).needs()
    }

    fn probe(&self) -> Result<String, String> {
        (**self).probe()
    }

    fn make(&self, thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        (**self).make(thread)
    }

    fn alternatives(&self) -> Vec<Arc<dyn Engine>> {
        (**self).alternatives()
    }
}

/// What the shards of an [`Engine`] take of the limits of the process. By default a thread each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Open files of each shard.
    pub files: usize,
    /// Open files that are taken once, or for a moment, however many shards there are.
    pub files_once: usize,
    /// Threads of each shard, its own included.
    pub threads: usize,
    /// Address space of each shard's runtime in bytes, beside the stacks of its threads. The timers
    /// of the shard are not counted in it.
    pub memory: usize,
}

impl Default for Needs {
    fn default() -> Self {
        Self { files: 0, files_once: 0, threads: 1, memory: 0 }
    }
}

/// A shard that the runtime of an [`Engine`] runs, on this thread.
///
/// Dropped without being driven, the shard is dead.
#[must_use = "the shard does nothing until it is driven"]
pub struct Shard(pub(super) Box<dyn Turns>);

impl Shard {
    pub(crate) fn new(turns: Box<dyn Turns>) -> Self {
        Self(turns)
    }

    /// The driver of the shard: a future that is ready when the shard has been shut down. The
    /// runtime of this thread polls it, as one of its tasks. The thread counts as the shard's from
    /// this call until the driver is dropped, so it is made on the thread that polls it.
    pub fn drive<X: Host>(self, host: X) -> impl Future<Output = ()> + use<X> {
        drive(self.0, host)
    }
}

debug_fields!([] Shard, |it| shard: it.0.base().id());
