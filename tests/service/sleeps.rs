//! Sleeps and timeouts: on the shard's own core, on executors, and on other threads.

use std::hint::black_box;

use super::*;

fn lab() -> Lab<()> {
    Lab::new(builder(1))
}

/// A sleep that was polled and is pending.
fn polled(timers: &Timers<()>, delay: u64) -> Sleep {
    let mut sleep = timers.sleep(ms(delay));
    assert_eq!(look(&mut sleep), None);
    sleep
}

#[test]
fn dropped_sleep_gives_its_timer_back_in_every_state() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let check = |lab: &mut Lab<()>| {
        assert_eq!(timers.len(), 0);
        assert_eq!(lab.settled().pending, 0);
    };
    // Never polled.
    drop(timers.sleep(ms(1)));
    check(&mut lab);
    // Pending.
    let sleep = polled(&timers, 1);
    assert_eq!(timers.len(), 1);
    drop(sleep);
    check(&mut lab);
    // Fired, and not polled since.
    let sleep = polled(&timers, 1);
    lab.advance(ms(1));
    assert!(!sleep.is_elapsed());
    drop(sleep);
    check(&mut lab);
    // Ended.
    let mut sleep = polled(&timers, 1);
    lab.advance(ms(1));
    assert_eq!(look(&mut sleep), Some(Ok(())));
    assert!(sleep.is_elapsed());
    check(&mut lab);
    // Reset after its end, and reset while pending.
    for _ in 0..2 {
        sleep.reset(ms(5));
        assert_eq!(look(&mut sleep), None);
        assert_eq!(timers.len(), 1);
    }
    sleep.reset(timers.now() + ms(9));
    assert_eq!(timers.len(), 1);
    drop(sleep);
    check(&mut lab);
}

#[test]
fn dropped_timeout_gives_its_timer_back_in_every_state() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    drop(timers.timeout(ms(1), pending::<()>()));
    let mut dropped = Box::pin(timers.timeout(ms(1), pending::<()>()));
    assert_eq!(look(&mut dropped), None);
    assert_eq!(timers.len(), 1);
    drop(dropped);
    assert_eq!(timers.len(), 0);
    let mut elapsed = Box::pin(timers.timeout(ms(1), pending::<()>()));
    assert_eq!(look(&mut elapsed), None);
    lab.advance(ms(1));
    assert!(look(&mut elapsed).unwrap().unwrap_err().is_elapsed());
    let mut ready = Box::pin(timers.timeout(timers.now(), async { 7 }));
    assert_eq!(look(&mut ready), Some(Ok(7)), "a value that is ready at the deadline wins");
    assert_eq!(lab.settled().pending, 0);
}

/// The shard is late, and the clock says that the sleep is over.
#[test]
fn sleep_that_is_over_before_its_timer_fires_ends_the_timer() {
    let (lab, there) = Lab::<()>::with_thread(builder(1));
    let handle = there.handle;
    let clock = lab.clock.clone();
    let polled = there.run(move || {
        let mut sleep = handle.sleep(ms(5));
        assert_eq!(look(&mut sleep), None);
        clock.advance(ms(6));
        look(&mut sleep)
    });
    assert_eq!(polled, Some(Ok(())));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled, counts.fired), (0, 1, 0));
}

#[test]
fn waker_that_drops_other_sleeps_leaves_the_shard_consistent() {
    for dropped_only in [false, true] {
        let mut lab = lab();
        let timers = lab.timers().clone();
        let others = [1, 1, 2, 50].map(|delay| polled(&timers, delay));
        let others = Rc::new(RefCell::new(Vec::from(others)));
        let left = Rc::downgrade(&others);
        // It drops the sleeps where it is woken, and else where it is dropped.
        let waker = waker_of(move || drop(others.take()));
        let mut sleep = timers.sleep(ms(1));
        assert!(poll(&mut sleep, &waker).is_pending());
        drop(waker);
        if dropped_only {
            // The poll replaces the waker, which is dropped.
            assert_eq!(look(&mut sleep), None);
        } else {
            lab.advance(ms(1));
        }
        assert!(left.upgrade().is_none_or(|left| left.borrow().is_empty()));
        assert_eq!(timers.len(), usize::from(dropped_only));
        lab.advance(ms(60));
        assert_eq!(look(&mut sleep), Some(Ok(())));
        assert_eq!((lab.counts().pending, lab.counts().panicked), (0, 0));
    }
}

#[test]
fn shutdown_by_every_policy_ends_sleeps_as_closed_and_never_early() {
    for policy in POLICIES {
        let mut lab = lab();
        let timers = lab.timers().clone();
        let client = lab.service.handle();
        let mut due = timers.sleep(ms(1));
        let mut far = timers.sleep(FAR);
        let mut timeout = Box::pin(timers.timeout(FAR, pending::<()>()));
        let mut remote = client.on(SHARD).sleep(FAR);
        assert_eq!((look(&mut due), look(&mut far), look(&mut timeout)), (None, None, None));
        assert_eq!(look(&mut remote), None);
        lab.advance(ms(1));
        let report = lab.end(policy);
        assert_eq!(look(&mut due), Some(Ok(())), "{policy:?}: the timer had fired");
        assert_eq!(look(&mut far), Some(Err(RefusedKind::Closed)), "{policy:?}");
        let closed = Err(TimeoutError::NoTimer(RefusedKind::Closed));
        assert_eq!(look(&mut timeout), Some(closed), "{policy:?}");
        if let ShutdownPolicy::Return = policy {
            drop(report);
        }
        assert_eq!(look(&mut remote), Some(Err(RefusedKind::Closed)), "{policy:?}");
        assert_eq!(look(&mut timers.sleep(ms(1))), Some(Err(RefusedKind::Closed)), "{policy:?}");
        assert_eq!(block_on(client.on(SHARD).sleep(FAR)), Err(RefusedKind::Closed));
    }
}

#[test]
fn attached_executor_runs_on_after_its_shard_is_closed() {
    for host in Host::executors().filter(|host| !matches!(host, Host::Own(_))) {
        for policy in POLICIES {
            let running = Running::<()>::idle(host, builder(1));
            let spawned = running.service.spawn_on(SHARD, |timers| async move {
                (timers.sleep(FAR).await, timers.sleep(ms(1)).await)
            });
            wait_until("the future sleeps", || running.counts().pending == 1);
            running.service.shutdown(policy).unwrap();
            let closed = Err(RefusedKind::Closed);
            assert_eq!(spawned.unwrap().wait(), Ok((closed, closed)), "{host:?}, {policy:?}");
        }
    }
}

#[test]
fn spawned_future_sleeps_and_times_out() {
    for (host, running) in Running::<()>::each(Host::executors(), 1) {
        let slept = running.service.spawn_on(SHARD, |timers| async move {
            let start = timers.now();
            timers.sleep(ms(20)).await.unwrap();
            timers.sleep(start + ms(30)).await.unwrap();
            let timed_out = timers.timeout(ms(20), pending::<()>()).await.unwrap_err();
            (timers.now() - start, timed_out.is_elapsed(), timers.len())
        });
        let (took, timed_out, left) = slept.unwrap().wait().unwrap();
        assert!(took >= ms(50), "{host:?}: {took:?}");
        assert_eq!((timed_out, left), (true, 0), "{host:?}");
    }
}

#[test]
fn spawned_future_that_panics_is_counted_and_later_futures_run() {
    for (host, running) in Running::<()>::each(Host::executors(), 1) {
        let spawn = |panics: bool| {
            running.service.spawn_on(SHARD, move |timers: Timers<()>| async move {
                timers.sleep(ms(1)).await.unwrap();
                assert!(!panics, "the future panics");
                7
            })
        };
        assert_eq!(spawn(true).unwrap().wait(), Err(ReplyError::Panicked), "{host:?}");
        let at_once = running.service.spawn_on(SHARD, |_| {
            assert!(!black_box(true), "the closure panics before it returns a future");
            async {}
        });
        assert_eq!(at_once.unwrap().wait(), Err(ReplyError::Panicked), "{host:?}");
        assert_eq!(spawn(false).unwrap().wait(), Ok(7), "{host:?}");
        wait_until("both panics are counted", || running.counts().panicked == 2);
        let report = running.end(ShutdownPolicy::Drop);
        assert_eq!(report.shards[0].counts.panicked, 2, "{host:?}");
        assert!(report.dead.is_empty(), "{host:?}");
    }
}

#[test]
fn sleep_from_another_thread_ends_and_gives_its_timer_back() {
    for (host, running) in Running::<()>::each(Host::all(), 1) {
        let client = running.service.handle();
        let start = running.service.now();
        assert_eq!(block_on(client.on(SHARD).sleep(ms(10))), Ok(()), "{host:?}");
        let never = pending::<()>();
        let timed_out = block_on(client.on(SHARD).timeout(ms(5), never)).unwrap_err();
        assert!(timed_out.is_elapsed(), "{host:?}");
        let at = client.now() + FAR;
        let in_time = block_on(client.on(SHARD).timeout(at, async { 7 }));
        assert_eq!(in_time, Ok(7), "{host:?}");
        assert!(running.service.now() - start >= ms(10), "{host:?}");
        // It is not polled, so it has no timer.
        drop(client.on(SHARD).sleep(FAR));
        let mut polled = client.on(SHARD).sleep(FAR);
        assert_eq!(look(&mut polled), None);
        drop(polled);
        wait_until("the one that was polled is cancelled", || {
            let counts = running.counts();
            counts.pending == 0 && counts.cancelled == 1
        });
    }
}
