//! The service as its users see it, on every runtime that works here.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::{
    CancelOutcome, Fired, ResetOutcome, Runtime, ShardId, ShutdownPolicy, TimerService,
};

const RUNTIMES: [Runtime; 3] = [Runtime::Glommio, Runtime::Tokio, Runtime::Thread];
const SHARD: ShardId = ShardId::new(0);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_typed_timer_from_elsewhere_fires_once_and_never_early() {
    for runtime in RUNTIMES {
        let (sender, fired) = mpsc::channel();
        let service = TimerService::builder()
            .shards(2)
            .runtime(runtime)
            .start_with(move |_| {
                let sender = sender.clone();
                move |fired: Fired<u64>, _: &_| sender.send((fired.task, Instant::now())).unwrap()
            })
            .unwrap();
        let client = service.client();
        let mut due = Vec::new();
        for n in 0..100 {
            let delay = ms(n % 20);
            let at = Instant::now() + delay;
            client.schedule_on(ShardId::new((n % 2) as u16), delay, n).unwrap();
            due.push(at);
        }
        for _ in 0..100 {
            let (n, at) = fired.recv_timeout(Duration::from_secs(10)).unwrap();
            assert!(at >= due[n as usize], "{runtime:?}: timer {n} is early");
        }
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        let counts: Vec<_> = report.shards.iter().map(|s| s.counts).collect();
        assert_eq!(counts.iter().map(|c| c.fired).sum::<u64>(), 100, "{runtime:?}");
    }
}

#[test]
fn a_cancel_from_elsewhere_brings_the_task_home() {
    for runtime in RUNTIMES {
        let service = TimerService::builder()
            .shards(1)
            .runtime(runtime)
            .start_with(|_| |_: Fired<String>, _: &_| panic!("it was cancelled"))
            .unwrap();
        let client = service.client();
        let timer = client.schedule_on(SHARD, Duration::from_secs(50), "task".to_owned()).unwrap();
        assert_eq!(
            client.reset(timer, Duration::from_secs(60)).wait(),
            Ok(ResetOutcome::Moved),
            "{runtime:?}"
        );
        match client.cancel(timer).wait().unwrap() {
            CancelOutcome::Cancelled { remaining, task } => {
                assert!(remaining > Duration::from_secs(50));
                assert_eq!(task.into_value().as_deref(), Some("task"));
            }
            other => panic!("{runtime:?}: {other:?}"),
        }
        assert!(matches!(client.cancel(timer).wait(), Ok(CancelOutcome::Stale)));
        service.shutdown(ShutdownPolicy::Drop).unwrap();
    }
}

#[test]
fn a_spawned_future_sleeps_and_times_out() {
    for runtime in [Runtime::Glommio, Runtime::Tokio] {
        let service = TimerService::builder().shards(1).runtime(runtime).start().unwrap();
        let slept = service
            .spawn_on(SHARD, |timers| async move {
                let start = timers.now();
                timers.sleep(ms(20)).await.unwrap();
                let never = std::future::pending::<()>();
                let timed_out = timers.timeout(ms(20), never).await.unwrap_err().is_elapsed();
                (timers.now() - start, timed_out)
            })
            .unwrap();
        let (took, timed_out) = slept.wait().unwrap();
        assert!(took >= ms(40), "{runtime:?}: {took:?}");
        assert!(timed_out);
        service.shutdown(ShutdownPolicy::Drop).unwrap();
    }
}
