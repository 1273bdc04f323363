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
use std::pin::Pin;
use std::task::Poll;

use corewheel::time::Instant;
use corewheel_test_support::wait_for as wait_until;
use corewheel_test_support::{Alarm, FAR, block_on, ms, poll, within_patience};
use tokio::runtime::Builder;

/// Asserts that a deadline has come.
#[track_caller]
fn check_not_early(deadline: Instant) {
    let now = Instant::now();
    assert!(now >= deadline, "{:?} early", deadline - now);
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
