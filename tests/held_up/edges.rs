//! Runtimes that can prove no pass, or end before one is over: a deadline that has passed is
//! decided there, too.

use std::fs;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{Handle, TimerService};
use futures_lite::future::block_on;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream, DuplexStream};
use tokio::runtime::{Builder, Runtime};

use corewheel_test_support::child::in_own_process;
use corewheel_test_support::{Alarm, PATIENCE, look, poll};

const MS: Duration = Duration::from_millis(1);

fn service() -> TimerService {
    TimerService::beside_runtime().start().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn elapses(timers: Handle) {
    let late = timers.timeout(MS, pending::<()>()).await;
    assert!(late.is_err_and(|error| error.is_elapsed()));
    let late = corewheel::time::timeout(MS, pending::<()>()).await;
    assert!(late.is_err());
    let conn = timers.connection(corewheel::ConnLimits::default().read_idle(MS));
    assert!(conn.next().await.unwrap().is_some());
}

#[test]
fn timeouts_of_futures_that_use_up_the_budget_elapse() {
    async fn never() {
        loop {
            tokio::task::consume_budget().await;
        }
    }
    let service = service();
    current_thread().block_on(async {
        let timers = service.handle();
        assert!(timers.timeout(MS, never()).await.is_err_and(|error| error.is_elapsed()));
        let conn = timers.connection(corewheel::ConnLimits::default().read_idle(MS));
        assert!(matches!(conn.race(Box::pin(never())).await, Ok(corewheel::conn::Raced::Event(_))));
    });
}

/// A stream whose writing side cannot be shut down, beside its peer, which does not read.
async fn stuck(
    timers: Handle,
    limits: StreamLimits,
) -> (TimedIo<BufStream<DuplexStream>>, impl Sized) {
    let (stream, peer) = tokio::io::duplex(1);
    let mut stream = BufStream::new(stream);
    stream.write_all(b"more than its peer has room for").await.unwrap();
    (TimedIo::new(stream, timers, limits), peer)
}

async fn shutdowns_end(timers: Handle) {
    let limits = StreamLimits::default().write_stall(20 * MS);
    let (mut stream, _peer) = stuck(timers, limits).await;
    let ended = tokio::time::timeout(PATIENCE, stream.shutdown()).await;
    let error = ended.expect("it reaches its limit").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    // After another limit has ended the stream.
    let limits = StreamLimits::default().read_idle(20 * MS).write_stall(20 * MS);
    let (mut stream, _peer) = stuck(timers, limits).await;
    assert!(stream.read_u8().await.is_err());
    let ended = tokio::time::timeout(PATIENCE, stream.shutdown()).await;
    assert!(ended.expect("it reaches its limit").is_err());
}

#[test]
fn shutdown_that_waits_ends_at_its_limit_in_each_runtime() {
    let service = service();
    current_thread().block_on(shutdowns_end(service.handle()));
    let multi_thread = Builder::new_multi_thread().enable_all().build().unwrap();
    let timers = service.handle();
    multi_thread.block_on(async { tokio::spawn(shutdowns_end(timers)).await.unwrap() });
    let without_io = Builder::new_current_thread().enable_time().build().unwrap();
    without_io.block_on(shutdowns_end(timers));
}

#[test]
fn timeouts_elapse_where_no_thread_proves_a_pass_of_their_runtime() {
    let (service, runtime) = (service(), current_thread());
    let timers = service.handle();
    block_on(elapses(timers));
    // Runtimes without sockets.
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        builder.enable_time().build().unwrap().block_on(elapses(timers));
    }
    // A thread for blocking code.
    runtime.block_on(async move {
        let task = move || tokio::runtime::Handle::current().block_on(elapses(timers));
        tokio::task::spawn_blocking(task).await.unwrap();
    });
    // An executor within a task, beside another worker.
    let multi_thread = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    multi_thread.block_on(async {
        tokio::spawn(async move { block_on(elapses(timers)) }).await.unwrap();
    });
    // A runtime that no thread drives.
    let _entered = runtime.enter();
    block_on(elapses(timers));
}

#[test]
fn timeout_whose_runtime_ends_before_its_pass_elapses() {
    let (service, runtime) = (service(), current_thread());
    let timers = service.handle();
    let mut timeout = Box::pin(timers.timeout(MS, pending::<()>()));
    runtime.block_on(async {
        thread::sleep(2 * MS);
        assert!(look(&mut timeout).is_none(), "it is decided without a pass");
        assert!(look(&mut timeout).is_none(), "another poll decides");
    });
    drop(runtime);
    assert!(block_on(timeout).is_err_and(|error| error.is_elapsed()));
}

#[test]
fn timeout_that_goes_to_another_host_before_its_pass_elapses() {
    let (service, runtime) = (service(), current_thread());
    let timers = service.handle();
    let begun = || {
        let mut timeout = Box::pin(timers.timeout(MS, pending::<()>()));
        runtime.block_on(async {
            thread::sleep(2 * MS);
            assert!(look(&mut timeout).is_none(), "it is decided without a pass");
        });
        timeout
    };
    // No thread drives the runtime meanwhile.
    assert!(block_on(begun()).is_err());
    assert!(current_thread().block_on(begun()).is_err());
    let timeout = begun();
    let _entered = runtime.enter();
    assert!(block_on(timeout).is_err());
}

#[test]
fn timeout_that_goes_to_another_host_leaves_no_waker_with_the_first() {
    let (service, first, second) = (service(), current_thread(), current_thread());
    let (alarm, waker) = Alarm::new();
    let mut timeout = Box::pin(service.handle().timeout(MS, pending::<()>()));
    first.block_on(async {
        thread::sleep(2 * MS);
        assert!(poll(&mut timeout, &waker).is_pending());
    });
    drop(waker);
    assert!(Arc::strong_count(&alarm) > 1, "the first host would not wake the task");
    second.block_on(async { assert!(look(&mut timeout).is_none()) });
    assert_eq!(Arc::strong_count(&alarm), 1);
    // What the first host hands out now decides nothing.
    first.block_on(async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    });
    second.block_on(async {
        assert!(look(&mut timeout).is_none(), "another host has decided");
        assert!(timeout.await.is_err_and(|error| error.is_elapsed()));
    });
}

#[test]
fn timeouts_of_an_executor_within_a_task_elapse_when_the_only_worker_goes_on() {
    let (service, runtime) = (service(), current_thread());
    let timers = service.handle();
    runtime.block_on(async {
        let mut timeout = Box::pin(timers.timeout(MS, pending::<()>()));
        // An executor that is given up, as one that waits itself would never be.
        let waits = async { assert!(look(&mut timeout).is_none()) };
        thread::sleep(2 * MS);
        block_on(waits);
        thread::sleep(2 * MS);
        block_on(async { assert!(look(&mut timeout).is_none(), "it is no proof") });
        assert!(timeout.await.is_err_and(|error| error.is_elapsed()));
    });
}

#[test]
fn timeout_that_waits_for_its_pass_is_dropped_with_its_waker() {
    let (service, runtime) = (service(), current_thread());
    let (alarm, waker) = Alarm::new();
    runtime.block_on(async {
        let mut timeout = Box::pin(service.handle().timeout(MS, pending::<()>()));
        thread::sleep(2 * MS);
        assert!(poll(&mut timeout, &waker).is_pending());
        drop((timeout, waker));
        assert_eq!(Arc::strong_count(&alarm), 1);
    });
}

#[test]
fn runtimes_that_have_ended_leave_no_descriptor() {
    in_own_process("edges::runtimes_that_have_ended_leave_no_descriptor", || {
        let service = service();
        let run = || {
            current_thread().block_on(elapses(service.handle()));
            let mut builder = Builder::new_multi_thread();
            let multi_thread = builder.worker_threads(1).enable_all().build().unwrap();
            multi_thread.block_on(elapses(service.handle()));
        };
        run();
        let before = open_files();
        (0..50).for_each(|_| run());
        assert_eq!(open_files(), before);
    });
}

#[test]
fn timeouts_without_a_descriptor_left_elapse() {
    in_own_process("edges::timeouts_without_a_descriptor_left_elapse", || {
        let (service, runtime) = (service(), current_thread());
        block_on(elapses(service.handle()));
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        runtime.block_on(elapses(service.handle()));
        setrlimit(Resource::Nofile, limit).unwrap();
        runtime.block_on(elapses(service.handle()));
    });
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
