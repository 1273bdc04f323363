//! Dead shards, and starts that fail.

use corewheel_glommio::{Runtime, attach};

use super::*;

/// Checks each command on a dead shard, and that the other shard works on.
fn check_dead(service: &TimerService<u32>, dead: TimerId) {
    let client = Thread::of(service);
    let stats = || service.stats().shards.swap_remove(0);
    wait_until("the state of the shard is dead", || stats().state == ShardState::Dead);
    assert!(matches!(client.on(SHARD).schedule(FAR, 7), Err(Refused::Closed(7))));
    assert!(matches!(client.on(SHARD).schedule_fn(FAR, |_| {}), Err(Refused::Closed(_))));
    let alive = client.on(OTHER).schedule(FAR, 8).unwrap();
    assert_eq!(client.cancel(dead).wait().map(drop), Err(ReplyError::Closed));
    assert_eq!(client.reset(dead, FAR).wait(), Err(ReplyError::Closed));
    assert!(matches!(service.spawn_on(SHARD, |_| async {}), Err(ShardError::Closed)));
    check_law(&stats().counts);
    assert_eq!(stats().counts.pending, 0);
    let cancelled = client.cancel(alive).wait().unwrap();
    assert_eq!(cancelled.payload().unwrap().into_value(), Some(8), "the other shard works on");
}

#[test]
fn dropped_loop_closes_its_shard_and_no_other() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let pending = client.on(SHARD).schedule_fn(FAR, move |_| drop(guard)).unwrap();
    lab.settle();
    let unseen = client.cancel(pending);
    let local = lab.timers().clone();
    drop(lab.shards.remove(0));
    assert!(lab.reply(unseen).unwrap().won(), "a cancel in the lane still gets its reply");
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(lab.reply(client.cancel(pending)).is_err());
    assert!(matches!(client.on(SHARD).schedule(FAR, 7), Err(Refused::Closed(7))));
    assert!(matches!(local.schedule(FAR, 9), Err(Refused::Closed(9))));
    assert_eq!(lab.service.stats().shards[0].state, ShardState::Dead);
    client.on(OTHER).schedule(ms(1), 5).unwrap();
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
fn death_of_a_glommio_executor_fails_its_callers_and_no_other_shard() {
    let hosts = Host::executors().filter(|host| *host == Host::Own(Runtime::Glommio));
    for (_, running) in Running::<u32>::each(hosts, 2) {
        let client = running.client();
        let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
        let (guard, dropped) = Guard::new();
        let spawned = running.service.spawn_on(SHARD, |timers| async move {
            let _guard = guard;
            let dies = async move {
                timers.sleep(ms(1)).await.unwrap();
                panic!("this task ends its executor");
            };
            glommio::spawn_local(dies).detach();
            pending::<()>().await;
        });
        // Cancels come before, during and after the death of the executor.
        wait_until("the shard is closed", || match client.cancel(timer).wait() {
            Ok(CancelOutcome::Cancelled { .. } | CancelOutcome::Stale) => false,
            Ok(other) => panic!("{other:?}"),
            Err(error) => error == ReplyError::Closed,
        });
        assert_eq!(spawned.unwrap().wait(), Err(ReplyError::Closed));
        wait_until("the future is dropped", || count(&dropped) == 1);
        check_dead(&running.service, timer);
        assert_eq!(running.end(ShutdownPolicy::Return).dead, [SHARD]);
    }
}

#[test]
fn death_of_an_attached_executor_fails_its_callers() {
    let attached = [Host::GlommioAttached, Host::TokioAttached, Host::LocalRuntimeAttached];
    for host in Host::all().filter(|host| attached.contains(host)) {
        let service = builder(2).start_attached_with::<u32>().unwrap();
        let attachment = service.attach(SHARD).unwrap();
        let other = service.attach(OTHER).unwrap();
        let (ready, attached) = mpsc::channel();
        let dying = thread::spawn(move || {
            let handler = |_: Fired<u32>, _: &Timers<u32>| {};
            let live = async |timers: Timers<u32>| {
                timers.sleep(ms(5)).await.unwrap();
                ready.send(timers.schedule(FAR, 9).unwrap()).unwrap();
                timers.sleep(ms(20)).await.unwrap();
            };
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if host == Host::GlommioAttached {
                    let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
                    executor.run(async {
                        live(attach(attachment, handler).unwrap()).await;
                        panic!("the executor dies");
                    });
                } else {
                    block_on_tokio(host, async {
                        live(attachment.attach_tokio(handler).unwrap()).await;
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
        let client = Thread::of(&service);
        wait_until("the shard is closed", || {
            let Ok(timer) = client.on(SHARD).schedule(FAR, 1) else { return true };
            client.cancel(timer).wait().is_err()
        });
        dying.join().unwrap();
        wait_until("the other shard has room", || client.on(OTHER).schedule(FAR, 0).is_ok());
        check_dead(&service, pending);
        drop(stop);
        alive.join().unwrap();
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        assert_eq!(report.dead, [SHARD, OTHER], "{host:?}");
    }
}

#[test]
fn executor_that_ends_before_the_driver_has_run_leaves_a_dead_shard() {
    for host in [Host::TokioAttached, Host::LocalRuntimeAttached] {
        let service = builder(1).start_attached_with::<u32>().unwrap();
        let attachment = service.attach(SHARD).unwrap();
        let handler = |_: Fired<u32>, _: &Timers<u32>| {};
        let run = async move { drop(attachment.attach_tokio(handler).unwrap()) };
        thread::spawn(move || block_on_tokio(host, run)).join().unwrap();
        assert_eq!(service.stats().shards[0].state, ShardState::Dead, "{host:?}");
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        assert_eq!(report.dead, [SHARD], "{host:?}");
    }
}

/// How many threads of this process have a name with this prefix.
fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[test]
fn handler_that_cannot_be_made_fails_the_whole_start() {
    for runtime in runtimes() {
        for broken in [SHARD, OTHER] {
            let started = builder(2).name("unmade").runtime(runtime).start_with(move |shard| {
                assert_ne!(shard, broken, "the handler cannot be made");
                |_: Fired<u32>, _: &Timers<u32>| {}
            });
            let error = started.map(drop).unwrap_err();
            assert!(matches!(error, StartError::Runtime { .. }), "{runtime:?}: {error}");
            wait_until("no thread is left", || threads_named("unmade") == 0);
        }
    }
}

/// A value of 2¹⁸ bytes; 2³⁰ such values take more than all addresses.
type Huge = [u8; 1 << 18];

#[test]
fn capacity_that_cannot_be_reserved_fails_the_attachment_or_the_whole_start() {
    let handler = |_: Fired<Huge>, _: &Timers<Huge>| {};
    let huge = |shards| builder(shards).name("unroomy").capacity(1 << 30);
    let service = huge(1).start_attached_with::<Huge>().unwrap();
    let error = service.attach(SHARD).unwrap().into_loop(handler).map(drop).unwrap_err();
    assert!(matches!(error, StartError::Shard { shard: SHARD, .. }), "{error}");
    assert!(error.to_string().contains("capacity"), "{error}");
    drop(service.shutdown(ShutdownPolicy::Drop).unwrap());
    for runtime in runtimes() {
        let started = huge(2).runtime(runtime).start_with(move |_| handler);
        let error = started.map(drop).unwrap_err();
        assert!(matches!(error, StartError::Shard { .. }), "{runtime:?}: {error}");
        wait_until("no thread is left", || threads_named("unroomy") == 0);
    }
}
