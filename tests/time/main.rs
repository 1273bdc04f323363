//! Tests of `corewheel::time`, the drop-in for `tokio::time`.
//!
//! The tests of `same` and of `paused_same` are compiled twice from one source: for `tokio::time`
//! and for `corewheel::time`. Tests that choose the service of the process, or take from it what a
//! service needs, run in a process of their own. The tests in real time assert that no deadline is
//! early and that each comes, but not how soon it comes.

#![cfg(not(corewheel_loom))]
#![allow(clippy::duplicate_mod, reason = "one source is compiled for two modules")]

mod beyond;
#[cfg(target_os = "linux")]
mod fallback;
mod on_corewheel;
mod on_tokio;
#[cfg(target_os = "linux")]
mod own_process;
mod paused;
#[cfg(target_os = "linux")]
mod service;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::Builder;

/// How long a test waits for an expected event before it fails. Far longer than the event takes, so
/// that no test fails because the machine is busy.
const PATIENCE: Duration = Duration::from_mins(1);
const FAR: Duration = Duration::from_hours(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a test on a thread of its own, and fails if it does not end in time.
fn within_patience<O: Send + 'static>(run: impl FnOnce() -> O + Send + 'static) -> O {
    let (done, is_done) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let output = run();
        drop(done);
        output
    });
    let ended = is_done.recv_timeout(PATIENCE);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "a deadline does not come");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits for something that a test expects, for as long as [`within_patience`] allows.
fn wait_until(mut is_there: impl FnMut() -> bool) {
    while !is_there() {
        thread::sleep(ms(1));
    }
}

/// Runs a test in a task of a current-thread runtime, and of a multi-thread one.
fn on_each_runtime<F>(test: impl Fn() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    within_patience(move || {
        let mut multi_thread = Builder::new_multi_thread();
        for builder in [&mut Builder::new_current_thread(), multi_thread.worker_threads(2)] {
            let runtime = builder.enable_time().build().unwrap();
            runtime.block_on(async { tokio::spawn(test()).await }).unwrap();
        }
    });
}

/// Polls a future with the waker of the calling task.
async fn look<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Polls a future with a waker.
fn poll_with<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Runs a future on this thread, without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll_with(future.as_mut(), &waker) {
            return output;
        }
        thread::park();
    }
}

/// Counts how often a waker is woken.
#[derive(Default)]
struct Alarm(AtomicUsize);

impl Alarm {
    fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), Waker::from(alarm))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn wait(&self) {
        wait_until(|| self.count() > 0);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
