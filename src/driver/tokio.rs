//! A shard on a current-thread tokio runtime, in a `LocalSet` or in a `LocalRuntime`.
//!
//! Both have the scheduler of the current-thread runtime, and `spawn_local` works in both, so the
//! driver does not know which of the two it runs in.
//!
//! On Linux the driver sleeps by a timer of the kernel (`timerfd`). Why not by tokio's timers: they
//! count in milliseconds and round up, and `epoll_wait` does so again, which makes each timer up to
//! two milliseconds late. A sleep by a kernel timer costs one system call more than a sleep by
//! tokio's. The driver falls back to tokio's timers where the runtime's I/O driver is not enabled
//! and where the kernel refuses a timer.
//!
//! A stopped `epoll_wait` returns `EINTR`, and tokio then looks at its timers without having looked
//! at its sockets; and it takes no more than [`EVENTS_MAX`] events from `epoll` at a time. So a
//! driver that is late has tokio look at its sockets, as often as there may be events, before it
//! delivers anything.

mod last_wakes;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio::time::Sleep;

#[cfg(target_os = "linux")]
use self::kernel::KernelTimer;
use self::last_wakes::LastWakes;
use super::host::{Host, Needs, Shard};
use super::limits;
use crate::shard::timers::LocalFuture;
use crate::values::contain::attempt;

/// The files of a runtime, and of the kernel's timer. Once, files for signals, where the process
/// uses them, and two to spare.
pub(super) const NEEDS: Needs = Needs { files: 5, files_once: 4, threads: 1, memory: 0 };

/// Tries a runtime.
pub(super) fn probe() -> Result<String, String> {
    match attempt(runtime)? {
        Ok(runtime) => {
            // The caller may be a task of another runtime. There a drop, which waits for the
            // threads of the runtime, panics. This runtime has no threads yet.
            runtime.shutdown_background();
            Ok("a runtime can be made".to_owned())
        }
        Err(error) => Err(no_runtime(&error)),
    }
}

/// A current-thread runtime with a `LocalSet` for a shard, with all descriptors that it holds.
pub(super) fn make() -> Result<Box<dyn FnOnce(Shard)>, String> {
    let runtime = runtime().map_err(|error| no_runtime(&error))?;
    let host = TokioHost::own(&runtime);
    Ok(Box::new(move |shard| LocalSet::new().block_on(&runtime, shard.drive(host))))
}

/// How many events tokio takes from `epoll` at a time by default.
const EVENTS_MAX: usize = 1_024;

/// One timer, used over and over.
pub(crate) struct TokioHost {
    alarm: Alarm,
    wakes: LastWakes,
    /// Whether the driver may try to use a timer of the kernel.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    tries_kernel: bool,
}

enum Alarm {
    /// It has not been set yet.
    Unset,
    #[cfg(target_os = "linux")]
    Kernel(KernelTimer),
    Tokio(Pin<Box<Sleep>>),
}

impl TokioHost {
    /// In a runtime of [`runtime()`]. The descriptor of its timer is opened now, so that a shard
    /// holds as many while it waits as when it is in use.
    fn own(runtime: &Runtime) -> Self {
        let _entered = runtime.enter();
        #[cfg(target_os = "linux")]
        if let Some(timer) = KernelTimer::new() {
            let (alarm, wakes) = (Alarm::Kernel(timer), LastWakes::default());
            return Self { alarm, wakes, tries_kernel: true };
        }
        Self { alarm: Alarm::Unset, wakes: LastWakes::default(), tries_kernel: false }
    }

    /// In a runtime of the caller, which may be without I/O. Only a panic tells that, so a build
    /// whose panics abort has tokio's timers there.
    pub(crate) fn attached() -> Self {
        let (alarm, wakes) = (Alarm::Unset, LastWakes::default());
        Self { alarm, wakes, tries_kernel: cfg!(panic = "unwind") }
    }

    /// Sets the first alarm.
    fn first(&self, after: Duration) -> Alarm {
        #[cfg(target_os = "linux")]
        if self.tries_kernel {
            if let Some(timer) = KernelTimer::new() {
                if timer.set(after).is_ok() {
                    return Alarm::Kernel(timer);
                }
            }
        }
        Alarm::Tokio(Box::pin(tokio::time::sleep(after)))
    }
}

impl Host for TokioHost {
    fn arm(&mut self, after: Duration) {
        match &mut self.alarm {
            Alarm::Unset => self.alarm = self.first(after),
            #[cfg(target_os = "linux")]
            Alarm::Kernel(timer) => {
                if timer.set(after).is_err() {
                    self.alarm = Alarm::Tokio(Box::pin(tokio::time::sleep(after)));
                }
            }
            Alarm::Tokio(sleep) => sleep.as_mut().reset(tokio::time::sleep(after).deadline()),
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.alarm {
            Alarm::Unset => Poll::Pending,
            // A `LocalSet` polls the driver with each of its own polls. So tokio is asked whether a
            // descriptor is readable, by 150 instructions on x86-64, only if it may be. The driver
            // has asked for its waker before, in the same poll.
            #[cfg(target_os = "linux")]
            Alarm::Kernel(timer) => self.wakes.poll(|cx| timer.poll(cx)),
            Alarm::Tokio(sleep) => sleep.as_mut().poll(cx),
        }
    }

    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        self.wakes.of(cx.waker())
    }

    async fn step_aside(&mut self) {
        tokio::task::yield_now().await;
    }

    async fn read_sockets(&mut self, connections: usize) {
        // A task that yields goes on after the runtime has looked at its sockets.
        for _ in 0..2 + connections / EVENTS_MAX {
            tokio::task::yield_now().await;
        }
        // Tasks run in the order in which they became ready, so this one runs after the tasks that
        // have something to read. It does nothing that could fail.
        let _ = tokio::task::spawn_local(async {}).await;
    }

    fn spawn(&self, future: LocalFuture) {
        tokio::task::spawn_local(future);
    }
}

/// A runtime for one shard.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Why there is no runtime, and a remedy.
fn no_runtime(error: &io::Error) -> String {
    format!("a runtime cannot be made ({error}); {}", limits::of_files())
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, RawFd};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::{Context, Poll, ready};
    use std::time::Duration;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// A timer of the kernel, which tokio's I/O driver waits for.
    ///
    /// Nothing reads the descriptor: to set the timer anew makes it unreadable, and the driver is
    /// told of the next change to readable.
    pub(super) struct KernelTimer(AsyncFd<Descriptor>);

    struct Descriptor(TimerFd);

    impl AsRawFd for Descriptor {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }

    impl KernelTimer {
        /// A timer that is not set; `None` without a descriptor, or without I/O in this runtime.
        #[allow(
            deprecated,
            reason = "the new function is unsafe, for types that do not own their descriptor"
        )]
        pub(super) fn new() -> Option<Self> {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let timer = Descriptor(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).ok()?);
            let register = || AsyncFd::with_interest(timer, Interest::READABLE);
            // Only a panic of tokio says that a runtime has no I/O driver.
            let registered = catch_unwind(AssertUnwindSafe(register)).ok()?;
            registered.ok().map(Self)
        }

        /// Sets the timer, in place of what it was set for.
        pub(super) fn set(&self, after: Duration) -> io::Result<()> {
            // A timer that is set to zero never expires.
            let after = after.max(Duration::from_nanos(1));
            let once = Expiration::OneShot(TimeSpec::from_duration(after));
            self.0.get_ref().0.set(once, TimerSetTimeFlags::empty())?;
            Ok(())
        }

        /// Whether the timer has expired since the last poll that was ready.
        pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
            match ready!(self.0.poll_read_ready(cx)) {
                Ok(mut readable) => {
                    readable.clear_ready();
                    Poll::Ready(())
                }
                // The runtime shuts down, and drops the driver.
                Err(_) => Poll::Pending,
            }
        }
    }
}
