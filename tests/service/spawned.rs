//! Futures that are spawned on a shard which ends before they do.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use corewheel::{
    Refused, Reply, ReplyError, ShardError, ShardId, ShutdownPolicy, TimerService, Timers,
};

use corewheel_test_support::{
    FAR, Guard, Host, OTHER, OnDrop, PATIENCE, POLICIES, Running, SHARD, block_on, builder,
    check_law, ms, wait_until,
};

/// Each kind of executor with each policy.
fn cases() -> impl Iterator<Item = (Host, ShutdownPolicy)> {
    Host::executors().flat_map(|host| POLICIES.map(|policy| (host, policy)))
}

fn start(host: Host, shards: usize) -> Running<u8> {
    Running::idle(host, builder(shards))
}

/// Spawns a future that holds a value, says when it is polled, and never ends.
fn spawn_pending<G: Send + 'static>(
    running: &Running<u8>,
    shard: ShardId,
    guard: G,
) -> (Reply<()>, mpsc::Receiver<()>) {
    let (sender, polled) = mpsc::channel();
    let start = move |_| async move {
        let _guard = guard;
        sender.send(()).unwrap();
        pending::<()>().await;
    };
    (running.service.spawn_on(shard, start).unwrap(), polled)
}

/// The result of `Reply::wait`. The test fails if the reply does not come.
#[track_caller]
fn reply_of<R: Send + 'static>(spawned: Reply<R>) -> Result<R, ReplyError> {
    let (sender, reply) = mpsc::channel();
    thread::spawn(move || sender.send(spawned.wait()));
    reply.recv_timeout(PATIENCE).expect("the reply comes")
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

#[test]
fn pending_future_at_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (host, policy) in cases() {
        let running = start(host, 2);
        let (guard, dropped) = Guard::new();
        let spawned = [SHARD, OTHER, SHARD, OTHER].map(|shard| {
            let (spawned, polled) = spawn_pending(&running, shard, guard.clone());
            polled.recv_timeout(PATIENCE).unwrap();
            spawned
        });
        drop(guard);
        let report = running.service.shutdown(policy).unwrap();
        assert_eq!(count(&dropped), 5, "{host:?}, {policy:?}: dropped before the report");
        for spawned in spawned {
            assert_eq!(reply_of(spawned), Err(ReplyError::Closed), "{host:?}, {policy:?}");
        }
        report.shards.iter().for_each(|shard| check_law(&shard.counts));
        running.stop();
    }
}

#[test]
fn future_not_yet_started_at_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (host, policy) in cases() {
        let running = start(host, 1);
        let (guard, dropped) = Guard::new();
        let (sender, blocks) = mpsc::channel();
        let (go, held) = mpsc::channel::<()>();
        let call = move |_: &Timers<u8>| {
            sender.send(()).unwrap();
            let _ = held.recv_timeout(PATIENCE);
        };
        running.client().on(SHARD).schedule_fn(ms(1), call).unwrap();
        blocks.recv_timeout(PATIENCE).unwrap();
        // The shard gets the future and the shutdown order in one turn.
        let (spawned, _polled) = spawn_pending(&running, SHARD, guard);
        let report = running.service.begin_shutdown(policy).unwrap();
        go.send(()).unwrap();
        assert!(block_on(report).dead.is_empty());
        assert_eq!(reply_of(spawned), Err(ReplyError::Closed), "{host:?}, {policy:?}");
        assert_eq!(count(&dropped), 1, "{host:?}, {policy:?}");
        running.stop();
    }
}

#[test]
fn future_that_begins_the_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (host, policy) in cases() {
        let running = start(host, 2);
        let (guard, dropped) = Guard::new();
        let weak: Weak<TimerService<u8>> = Arc::downgrade(&running.service);
        let start = move |_| async move {
            let _guard = guard;
            let report = weak.upgrade().unwrap().begin_shutdown(policy).unwrap();
            drop(report.await);
            pending::<()>().await;
        };
        let spawned = running.service.spawn_on(SHARD, start).unwrap();
        assert_eq!(reply_of(spawned), Err(ReplyError::Closed), "{host:?}, {policy:?}");
        wait_until("the future is dropped", || count(&dropped) == 1);
        running.stop();
    }
}

#[test]
fn future_that_schedules_spawns_and_panics_when_dropped_harms_no_other_future() {
    for (host, policy) in cases() {
        let running = start(host, 1);
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, polled) = mpsc::channel();
        let spawn = || {
            let (dropped, sender) = (Arc::clone(&dropped), sender.clone());
            let service = Arc::downgrade(&running.service);
            let start = move |timers: Timers<u8>| async move {
                let _sleep = timers.schedule(FAR, 7).unwrap();
                // It calls the shard and the service when it is dropped, and then panics.
                let _guard = OnDrop(move || {
                    assert!(matches!(timers.schedule(FAR, 1), Err(Refused::Closed(1))));
                    assert!(timers.schedule_fn(FAR, |_| {}).is_err());
                    assert!(timers.is_empty());
                    if let Some(service) = service.upgrade() {
                        let spawned = service.spawn_on(SHARD, |_| pending::<()>());
                        assert_eq!(spawned.map(drop), Err(ShardError::Closed));
                    }
                    dropped.fetch_add(1, Ordering::SeqCst);
                    panic!("a future that panics when it is dropped");
                });
                sender.send(()).unwrap();
                pending::<()>().await;
            };
            running.service.spawn_on(SHARD, start).unwrap()
        };
        let spawned = [spawn(), spawn(), spawn()];
        for _ in 0..3 {
            polled.recv_timeout(PATIENCE).unwrap();
        }
        let report = running.service.shutdown(policy).unwrap();
        for spawned in spawned {
            assert_eq!(reply_of(spawned), Err(ReplyError::Closed), "{host:?}, {policy:?}");
        }
        assert_eq!(count(&dropped), 3, "{host:?}, {policy:?}");
        let counts = report.shards[0].counts;
        assert_eq!((report.dead.len(), counts.panicked), (0, 3), "{host:?}, {policy:?}");
        check_law(&counts);
        running.stop();
    }
}

#[test]
fn finished_future_that_panics_when_dropped_is_counted() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let spawn = || {
            let start = |timers: Timers<u8>| {
                let bomb = OnDrop(|| panic!("a value that panics when it is dropped"));
                std::future::poll_fn(move |_| {
                    let _bomb = &bomb;
                    std::task::Poll::Ready(timers.shard_id())
                })
            };
            running.service.spawn_on(SHARD, start).unwrap()
        };
        for _ in 0..3 {
            let _replied_or_closed = reply_of(spawn());
        }
        let report = running.end(ShutdownPolicy::Drop);
        let counts = report.shards[0].counts;
        assert_eq!((report.dead.len(), counts.panicked), (0, 3), "{host:?}");
    }
}

#[test]
fn pending_futures_of_a_service_that_is_dropped_are_dropped() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let (guard, dropped) = Guard::new();
        let (spawned, _polled) = spawn_pending(&running, SHARD, guard);
        let Running { service, stops, threads } = running;
        drop(service);
        assert_eq!(reply_of(spawned), Err(ReplyError::Closed), "{host:?}");
        wait_until("the future is dropped", || count(&dropped) == 1);
        drop(stops);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn pending_future_of_a_dead_glommio_executor_is_dropped_and_its_caller_fails() {
    use corewheel_glommio::Runtime;
    for host in Host::executors().filter(|host| *host == Host::Own(Runtime::Glommio)) {
        let running = start(host, 2);
        let (guard, dropped) = Guard::new();
        let start = |timers: Timers<u8>| async move {
            let _guard = guard;
            let dies = async move {
                timers.sleep(ms(1)).await.unwrap();
                panic!("this task ends its executor");
            };
            glommio::spawn_local(dies).detach();
            pending::<()>().await;
        };
        let spawned = running.service.spawn_on(SHARD, start).unwrap();
        assert_eq!(reply_of(spawned), Err(ReplyError::Closed));
        wait_until("the future is dropped", || count(&dropped) == 1);
        assert_eq!(running.end(ShutdownPolicy::Return).dead, [SHARD]);
    }
}

#[test]
fn future_at_shutdown_sees_that_its_sleep_has_ended() {
    for (host, policy) in cases() {
        let running = start(host, 1);
        let start = |timers: Timers<u8>| async move {
            let slept = timers.sleep(FAR).await;
            (slept.is_err(), timers.schedule(FAR, 1).is_err())
        };
        let spawned = running.service.spawn_on(SHARD, start).unwrap();
        wait_until("the future sleeps", || running.counts().pending == 1);
        let report = running.end(policy);
        assert_eq!(reply_of(spawned), Ok((true, true)), "{host:?}, {policy:?}");
        check_law(&report.shards[0].counts);
    }
}
