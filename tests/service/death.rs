//! Shards that die, and shards that cannot be started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use corewheel::{
    CancelOutcome, Fired, ScheduleError, ShardState, ShutdownPolicy, SpawnError, StartError,
    TimerHandle, TimerService, Timers, WaitError,
};

use crate::support::{
    FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, builder, check_law, look, ms, runtimes,
    wait_until,
};

/// Everything that can be asked of a shard that is dead.
fn check_dead(service: &TimerService<u32>, dead: TimerHandle) {
    let client = service.client();
    wait_until("the shard is known to be dead", || {
        service.stats().shards[0].state == ShardState::Dead
    });
    assert!(matches!(client.schedule_on(SHARD, FAR, 7), Err(ScheduleError::Closed(7))));
    assert!(matches!(client.schedule_fn_on(SHARD, FAR, |_| {}), Err(ScheduleError::Closed(_))));
    let alive = client.schedule_on(OTHER, FAR, 8).unwrap();
    assert_eq!(client.cancel(dead).wait().map(drop), Err(WaitError::Closed));
    assert_eq!(client.reset(dead, FAR).wait(), Err(WaitError::Closed));
    assert!(matches!(service.spawn_on(SHARD, |_| async {}), Err(SpawnError::Closed)));
    check_law(&service.stats().shards[0].counts);
    assert_eq!(service.stats().shards[0].counts.pending, 0);
    let cancelled = client.cancel(alive).wait().unwrap();
    assert_eq!(cancelled.task().unwrap().into_value(), Some(8), "the other shard is at work");
}

#[test]
fn a_loop_that_is_dropped_closes_its_shard_and_no_other() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let pending = client.schedule_fn_on(SHARD, FAR, move |_| drop(guard)).unwrap();
    lab.settle();
    let mut unseen = client.cancel(pending).into_future();
    let local = lab.timers().clone();
    drop(lab.shards.remove(0));
    assert!(look(&mut unseen).unwrap().unwrap().won(), "what was under way is still answered");
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(look(&mut client.cancel(pending).into_future()).unwrap().is_err());
    assert!(matches!(client.schedule_on(SHARD, FAR, 7), Err(ScheduleError::Closed(7))));
    assert!(matches!(local.schedule(FAR, 9), Err(ScheduleError::Closed(9))));
    assert_eq!(lab.service.stats().shards[0].state, ShardState::Dead);
    client.schedule_on(OTHER, ms(1), 5).unwrap();
    lab.settle();
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [(5, 1)]);
    let mut report = Box::pin(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    lab.settle_closed();
    let report = look(&mut report).unwrap();
    assert_eq!(report.dead, [SHARD]);
    assert_eq!(report.shards.len(), 1);
}

#[test]
fn a_dead_shards_timers_are_dropped_and_counted() {
    let mut lab = Lab::new(builder(1));
    let (guard, dropped) = Guard::new();
    for _ in 0..5 {
        lab.timers().schedule(FAR, guard.clone()).unwrap();
    }
    drop(guard);
    drop(lab.shards.remove(0));
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 6);
    let counts = lab.counts();
    assert_eq!((counts.returned, counts.pending), (5, 0));
    check_law(&counts);
}

#[test]
fn when_a_glommio_executor_dies_whoever_waits_is_told_and_the_other_shard_goes_on() {
    for host in Host::executors().filter(|host| *host == Host::Own(corewheel::Runtime::Glommio)) {
        let running = Running::start(host, builder(2), |_| |_: Fired<u32>, _: &_| {});
        let client = running.client();
        let pending = client.schedule_on(SHARD, FAR, 1).unwrap();
        let spawned = running
            .service
            .spawn_on(SHARD, |timers| async move {
                glommio::spawn_local(async move {
                    timers.sleep(ms(1)).await.unwrap();
                    panic!("this task kills its executor");
                })
                .detach();
                std::future::pending::<()>().await;
            })
            .unwrap();
        // Asked before, while and after it dies.
        wait_until("the shard does not answer", || match client.cancel(pending).wait() {
            Ok(CancelOutcome::Cancelled { .. } | CancelOutcome::Stale) => false,
            Ok(other) => panic!("{other:?}"),
            Err(error) => error == WaitError::Closed,
        });
        assert_eq!(spawned.wait(), Err(WaitError::Closed));
        check_dead(&running.service, pending);
        assert_eq!(running.end(ShutdownPolicy::Return).dead, [SHARD]);
    }
}

#[test]
fn when_an_executor_dies_that_a_shard_is_attached_to_whoever_waits_is_told() {
    for host in [Host::GlommioAttached, Host::TokioAttached] {
        if !Host::all().any(|works| works == host) {
            continue;
        }
        let service = builder(2).start_attached::<u32>().unwrap();
        let attachment = service.attach(SHARD).unwrap();
        let other = service.attach(OTHER).unwrap();
        let (ready, attached) = mpsc::channel();
        let dying = thread::spawn(move || {
            let handler = |_: Fired<u32>, _: &Timers<u32>| {};
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if host == Host::GlommioAttached {
                    let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
                    executor.run(async move {
                        let timers = attachment.attach_glommio(handler).unwrap();
                        timers.sleep(ms(5)).await.unwrap();
                        ready.send(timers.schedule(FAR, 9).unwrap()).unwrap();
                        timers.sleep(ms(20)).await.unwrap();
                        panic!("the executor dies");
                    });
                } else {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    tokio::task::LocalSet::new().block_on(&runtime, async move {
                        let timers = attachment.attach_tokio(handler).unwrap();
                        timers.sleep(ms(5)).await.unwrap();
                        ready.send(timers.schedule(FAR, 9).unwrap()).unwrap();
                        timers.sleep(ms(20)).await.unwrap();
                    });
                }
            }));
        });
        let (stop, stopped) = mpsc::channel::<()>();
        let alive = thread::spawn(move || {
            let mut shard = other.into_loop(|_: Fired<u32>, _: &_| {}).unwrap();
            while stopped.recv_timeout(ms(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = shard.turn();
            }
        });
        let pending = attached.recv_timeout(PATIENCE).unwrap();
        let client = service.client();
        wait_until("the shard does not answer", || {
            let Ok(timer) = client.schedule_on(SHARD, FAR, 1) else { return true };
            client.cancel(timer).wait().is_err()
        });
        dying.join().unwrap();
        wait_until("the other shard has room", || client.schedule_on(OTHER, FAR, 0).is_ok());
        check_dead(&service, pending);
        drop(stop);
        alive.join().unwrap();
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        assert_eq!(report.dead, [SHARD, OTHER], "{host:?}");
    }
}

#[test]
fn an_executor_that_ends_before_the_driver_ran_leaves_a_dead_shard() {
    let service = builder(1).start_attached::<u32>().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            drop(attachment.attach_tokio(|_: Fired<u32>, _: &Timers<u32>| {}).unwrap());
        });
    })
    .join()
    .unwrap();
    assert_eq!(service.stats().shards[0].state, ShardState::Dead);
    assert_eq!(service.shutdown(ShutdownPolicy::Return).unwrap().dead, [SHARD]);
}

/// How many threads of this process have a name that begins so.
#[cfg(target_os = "linux")]
fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[cfg(not(target_os = "linux"))]
fn threads_named(_: &str) -> usize {
    0
}

#[test]
fn a_handler_that_cannot_be_made_fails_the_whole_start() {
    for runtime in runtimes() {
        for broken in [SHARD, OTHER] {
            let started = builder(2).name("unmade").runtime(runtime).start_with(move |shard| {
                assert_ne!(shard, broken, "no handler can be made");
                |_: Fired<u32>, _: &Timers<u32>| {}
            });
            let error = started.map(drop).unwrap_err();
            assert!(matches!(error, StartError::Runtime { .. }), "{runtime:?}: {error}");
            wait_until("no thread is left", || threads_named("unmade") == 0);
        }
    }
}

/// 2¹⁸ bytes; 2³⁰ of them are more than there are addresses.
type Huge = [u8; 1 << 18];

#[test]
fn a_capacity_that_cannot_be_reserved_fails_the_attachment() {
    let service = builder(1).capacity(1 << 30).start_attached::<Huge>().unwrap();
    let refused = service.attach(SHARD).unwrap().into_loop(|_: Fired<Huge>, _: &Timers<Huge>| {});
    let error = refused.map(drop).unwrap_err();
    assert!(matches!(error, StartError::Shard { shard: SHARD, .. }), "{error}");
    assert!(error.to_string().contains("capacity"), "{error}");
    drop(service.shutdown(ShutdownPolicy::Drop).unwrap());
}

#[test]
fn a_capacity_that_cannot_be_reserved_fails_the_whole_start() {
    for runtime in runtimes() {
        let started = builder(2)
            .name("unroomy")
            .capacity(1 << 30)
            .runtime(runtime)
            .start_with(|_| |_: Fired<Huge>, _: &Timers<Huge>| {});
        let error = started.map(drop).unwrap_err();
        assert!(matches!(error, StartError::Shard { .. }), "{runtime:?}: {error}");
        wait_until("no thread is left", || threads_named("unroomy") == 0);
    }
}
