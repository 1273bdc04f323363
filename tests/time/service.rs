//! The service behind `corewheel::time`: the default one, and one that is set.

use std::panic::catch_unwind;
use std::sync::mpsc;
use std::{fs, thread};

use corewheel::clock::ManualClock;
use corewheel::fallback::InfallibleSleep;
use corewheel::time::{self, Instant};
use corewheel::{Fired, Runtime, ShutdownPolicy, TimerService, Timers};
use corewheel_test_support::child::in_own_process;
use seccompiler::SeccompAction;
use tokio::runtime::Builder;

use crate::own_process::{filter, refuse_threads};
use crate::{block_on, ms, wait_until};

fn check_sleep() {
    let begin = Instant::now();
    block_on(time::sleep(ms(3)));
    assert!(begin.elapsed() >= ms(3));
}

/// Sleeps until the service has had a timer. The first sleep may end before it has started.
fn wait_for_a_timer(sleep: impl Fn()) {
    wait_until(|| {
        sleep();
        time::stats().shards.iter().any(|shard| shard.counts.scheduled_remote > 0)
    });
}

/// The names of the threads of this process that `corewheel::time` has started.
fn own_threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // The process has the name of its program.
    let others = tasks.filter(|task| !task.ends_with(std::process::id().to_string()));
    let names = others.filter_map(|task| fs::read_to_string(task.join("comm")).ok());
    names.filter(|name| name.starts_with("time-")).collect()
}

#[test]
fn default_service_starts_its_threads_at_first_use() {
    in_own_process("service::default_service_starts_its_threads_at_first_use", || {
        assert_eq!(own_threads(), [""; 0]);
        check_sleep();
        let stats = time::stats();
        let expected = TimerService::beside_runtime().start().unwrap();
        assert_eq!(stats.shards.len(), expected.shards().count());
        assert_eq!(own_threads().len(), stats.shards.len(), "{:?}", own_threads());
        assert_eq!(stats.name, "time");
        wait_for_a_timer(check_sleep);
        assert_eq!(InfallibleSleep::fallback_count(), 0);
    });
}

#[test]
fn service_that_is_set_before_the_first_use_is_used() {
    in_own_process("service::service_that_is_set_before_the_first_use_is_used", || {
        let manual = TimerService::builder().shards(1).clock(&ManualClock::new());
        let manual = manual.start_attached_with::<()>().unwrap();
        assert_eq!(time::set_service(&manual).unwrap_err().field(), "clock");

        // A service with values of its own.
        let builder = TimerService::beside_runtime().shards(1).name("mine");
        let service = builder.start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap();
        time::set_service(&service).unwrap();
        assert_eq!(time::set_service(&service).unwrap_err().field(), "service");
        check_sleep();
        assert_eq!(time::stats().name, "mine");
        assert_eq!(time::handle(), service.handle().untyped());
        wait_for_a_timer(check_sleep);
        assert_eq!(own_threads(), [""; 0]);
        let report = service.shutdown(ShutdownPolicy::Drop).unwrap();
        let counts = report.shards[0].counts;
        assert_eq!((counts.returned, counts.dropped), (0, 0));
    });
}

#[test]
fn service_that_is_set_after_the_first_use_is_refused() {
    in_own_process("service::service_that_is_set_after_the_first_use_is_refused", || {
        let unused = time::sleep(ms(1));
        let service = TimerService::beside_runtime().start().unwrap();
        let refused = time::set_service(&service).unwrap_err();
        assert_eq!(refused.field(), "service");
        assert!(refused.to_string().contains("before the first sleep"), "{refused}");
        drop(unused);
        check_sleep();
        assert_eq!(service.stats().shards[0].counts.scheduled_remote, 0);
    });
}

#[test]
fn default_service_works_where_io_uring_is_forbidden() {
    in_own_process("service::default_service_works_where_io_uring_is_forbidden", || {
        let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter];
        filter(&calls, SeccompAction::KillProcess);
        check_sleep();
        let service = TimerService::beside_runtime().start().unwrap();
        assert_eq!(service.runtime(), Some(Runtime::Thread.name()));
    });
}

#[test]
fn default_service_that_cannot_start_panics_and_starts_later() {
    in_own_process("service::default_service_that_cannot_start_panics_and_starts_later", || {
        let (may_start, starts) = mpsc::channel();
        let other = thread::spawn(move || {
            starts.recv().unwrap();
            check_sleep();
        });
        refuse_threads();
        for _ in 0..2 {
            let panic = catch_unwind(|| drop(time::sleep(ms(1)))).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            let expected = "corewheel::time could not start its default service: ";
            assert!(message.starts_with(expected), "{message}");
        }
        may_start.send(()).unwrap();
        other.join().unwrap();
        // A thread that can start none uses the service that has started.
        check_sleep();
    });
}

#[test]
fn sleeps_of_a_runtime_in_real_time_have_timers_of_the_service() {
    in_own_process("service::sleeps_of_a_runtime_in_real_time_have_timers_of_the_service", || {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        wait_for_a_timer(|| runtime.block_on(time::sleep(ms(3))));
    });
}

#[test]
fn sleeps_by_a_paused_clock_take_no_timer_of_the_service() {
    in_own_process("service::sleeps_by_a_paused_clock_take_no_timer_of_the_service", || {
        let service = TimerService::beside_runtime().shards(1).start().unwrap();
        time::set_service(&service).unwrap();
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            time::sleep(ms(5)).await;
            let mut ticks = time::interval(ms(5));
            for _ in 0..100 {
                ticks.tick().await;
            }
            time::resume();
            time::sleep(ms(5)).await;
        });
        let report = service.shutdown(ShutdownPolicy::Drop).unwrap();
        assert_eq!(report.shards[0].counts.scheduled_remote, 0);
    });
}
