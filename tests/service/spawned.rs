//! Futures that are spawned on a shard which ends before they do.

use std::sync::Weak;

use super::*;

/// A service on each kind of executor with each policy.
fn cases(shards: usize) -> impl Iterator<Item = (String, ShutdownPolicy, Running<u8>)> {
    let cases = Host::executors().flat_map(|host| POLICIES.map(|policy| (host, policy)));
    cases.map(move |(host, policy)| {
        (format!("{host:?}, {policy:?}"), policy, Running::idle(host, builder(shards)))
    })
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

#[test]
fn pending_future_at_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (case, policy, running) in cases(2) {
        let (guard, dropped) = Guard::new();
        let spawned = [SHARD, OTHER, SHARD, OTHER].map(|shard| {
            let (spawned, polled) = spawn_pending(&running, shard, guard.clone());
            polled.recv_timeout(PATIENCE).unwrap();
            spawned
        });
        drop(guard);
        let _report = running.service.shutdown(policy).unwrap();
        assert_eq!(count(&dropped), 5, "{case}: dropped before the report");
        for spawned in spawned {
            assert_eq!(block_on(spawned), Err(ReplyError::Closed), "{case}");
        }
    }
}

#[test]
fn future_not_yet_started_at_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (case, policy, running) in cases(1) {
        let (guard, dropped) = Guard::new();
        let held = hold(&running);
        // The shard gets the future and the shutdown order in one turn.
        let (spawned, _polled) = spawn_pending(&running, SHARD, guard);
        let report = running.service.begin_shutdown(policy).unwrap();
        drop(held);
        assert!(block_on(report).dead.is_empty());
        assert_eq!(block_on(spawned), Err(ReplyError::Closed), "{case}");
        assert_eq!(count(&dropped), 1, "{case}");
    }
}

#[test]
fn future_that_begins_the_shutdown_is_dropped_and_its_caller_gets_an_error() {
    for (case, policy, running) in cases(2) {
        let (guard, dropped) = Guard::new();
        let weak: Weak<TimerService<u8>> = Arc::downgrade(&running.service);
        let start = move |_| async move {
            let _guard = guard;
            let report = weak.upgrade().unwrap().begin_shutdown(policy).unwrap();
            drop(report.await);
            pending::<()>().await;
        };
        let spawned = running.service.spawn_on(SHARD, start).unwrap();
        assert_eq!(block_on(spawned), Err(ReplyError::Closed), "{case}");
        wait_until("the future is dropped", || count(&dropped) == 1);
    }
}

#[test]
fn future_that_schedules_spawns_and_panics_when_dropped_harms_no_other_future() {
    for (case, policy, running) in cases(1) {
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
            assert_eq!(block_on(spawned), Err(ReplyError::Closed), "{case}");
        }
        assert_eq!(count(&dropped), 3, "{case}");
        let counts = report.shards[0].counts;
        assert_eq!((report.dead.len(), counts.panicked), (0, 3), "{case}");
    }
}

#[test]
fn finished_future_that_panics_when_dropped_is_counted() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let spawn = || {
            let start = |timers: Timers<u8>| {
                let bomb = bomb();
                poll_fn(move |_| {
                    let _bomb = &bomb;
                    Poll::Ready(timers.shard_id())
                })
            };
            running.service.spawn_on(SHARD, start).unwrap()
        };
        for _ in 0..3 {
            let _replied_or_closed = block_on(spawn());
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
        let Running { service, attached: _attached } = running;
        drop(service);
        assert_eq!(block_on(spawned), Err(ReplyError::Closed), "{host:?}");
        wait_until("the future is dropped", || count(&dropped) == 1);
    }
}

#[test]
fn future_at_shutdown_sees_that_its_sleep_has_ended() {
    for (case, policy, running) in cases(1) {
        let start = |timers: Timers<u8>| async move {
            let slept = timers.sleep(FAR).await;
            (slept.is_err(), timers.schedule(FAR, 1).is_err())
        };
        let spawned = running.service.spawn_on(SHARD, start).unwrap();
        wait_until("the future sleeps", || running.counts().pending == 1);
        running.end(policy);
        assert_eq!(block_on(spawned), Ok((true, true)), "{case}");
    }
}
