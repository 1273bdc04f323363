//! Services that are started, waited for and shut down inside a tokio runtime, as in
//! `#[tokio::main]`.

use corewheel_glommio::Runtime;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use super::*;

/// Every setting of a service's runtime that works on this machine.
fn settings() -> impl Iterator<Item = Runtime> {
    let all =
        [Runtime::Auto, Runtime::Glommio, Runtime::Tokio, Runtime::GlommioOrTokio, Runtime::Thread];
    all.into_iter().filter(|runtime| *runtime != Runtime::Glommio || glommio_works())
}

/// Runs a future within `block_on` of both flavours of a runtime, and as a task of each.
fn in_each_flavour<F>(future: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for mut flavour in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = flavour.worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(future());
        runtime.block_on(runtime.spawn(future())).unwrap();
    }
}

/// A service with two shards, one timer that has fired and one that is pending.
async fn started(runtime: Runtime) -> TimerService {
    let service = builder(2).runtime(runtime).start().unwrap();
    service.handle().on(SHARD).schedule_fn(FAR, |_| ()).unwrap();
    let (_, fired) = service.handle().on(OTHER).schedule_task(ms(1), |_| 7).unwrap();
    assert_eq!(fired.await, Ok(7), "{runtime:?}");
    service
}

#[test]
fn service_starts_and_shuts_down_inside_block_on_of_both_flavours() {
    for runtime in settings() {
        in_each_flavour(move || async move {
            let service = started(runtime).await;
            // A reply is waited for on a worker, too.
            let timer = service.handle().on(service.shard_for(0)).schedule_fn(FAR, |_| ()).unwrap();
            assert!(service.handle().cancel(timer).wait().unwrap().won(), "{runtime:?}");
            let report = service.shutdown(ShutdownPolicy::Return).unwrap();
            assert_eq!(report.returned.len(), 1, "{runtime:?}");
        });
    }
}

#[test]
fn service_is_dropped_inside_block_on_of_both_flavours() {
    for runtime in settings() {
        in_each_flavour(move || async move { drop(started(runtime).await) });
    }
}

#[test]
fn shutdown_that_blocks_no_worker_ends_every_shard() {
    for runtime in settings() {
        in_each_flavour(move || async move {
            let service = started(runtime).await;
            let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap().await;
            assert_eq!((report.shards.len(), report.dead.len()), (2, 0), "{runtime:?}");
            assert_eq!(report.returned.len(), 1, "{runtime:?}");

            let service = started(runtime).await;
            let blocking = spawn_blocking(move || service.shutdown(ShutdownPolicy::Drop).unwrap());
            assert_eq!(blocking.await.unwrap().shards.len(), 2, "{runtime:?}");
        });
    }
}

#[test]
fn shutdown_on_the_thread_of_an_attached_shard_is_refused_before_its_first_turn() {
    let service = builder(1).start_attached_with::<u8>().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let timers = attachment.attach_tokio(|_, _| {}).unwrap();
        timers.schedule(FAR, 1).unwrap();
        let refused = service.shutdown(ShutdownPolicy::Return).unwrap_err();
        assert_eq!(refused, ReplyError::OnShard);
        assert!(refused.to_string().contains("begin_shutdown"), "{refused}");
        let client = service.handle();
        let client = thread::scope(|scope| scope.spawn(move || client).join().unwrap());
        let refused = client.remaining(timers.schedule(FAR, 2).unwrap()).wait().unwrap_err();
        assert_eq!(refused, ReplyError::OnShard);
        assert!(refused.to_string().contains("await"), "{refused}");
        let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap().await;
        assert_eq!(report.returned.len(), 2);
    });
}

#[test]
fn future_of_a_timeout_that_fires_on_a_worker_is_polled_once_more() {
    const ROUNDS: usize = 100;
    let service = TimerService::beside_runtime().start().unwrap();
    let timers = service.handle();
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let task = runtime.spawn(async move {
        // The service learns of the worker's runtime.
        let first = timers.timeout(ms(1), pending::<()>()).await;
        assert_eq!(first, Err(TimeoutError::Elapsed));
        let mut polled = Vec::new();
        for _ in 0..ROUNDS {
            let mut polls = 0;
            let counted = poll_fn(|_| {
                polls += 1;
                Poll::<()>::Pending
            });
            assert_eq!(timers.timeout(ms(2), counted).await, Err(TimeoutError::Elapsed));
            polled.push(polls);
        }
        polled
    });
    let polled = runtime.block_on(task).unwrap();
    // Another look of a runtime of this process may come between.
    let once_more = polled.iter().filter(|polls| **polls == 2).count();
    assert!(once_more > ROUNDS / 2, "{polled:?}");
}
