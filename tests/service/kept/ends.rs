//! Kept values whose shard ends.

use super::*;

#[test]
fn accepted_commands_run_at_a_shutdown_while_the_container_has_its_values() {
    for policy in POLICIES {
        let mut lab = Lab::new(builder(1));
        let kept = kept(&mut lab, jobs);
        assert!(call(&mut lab, &kept, |jobs| jobs.insert(1, 10, FAR).is_ok()));
        // None of these is received before the shutdown.
        let mut inserted = kept.try_run(|jobs| jobs.insert(2, 20, FAR)).unwrap();
        let mut removed = kept.try_run(|jobs| jobs.remove(&1)).unwrap();
        let (guard, dropped) = Guard::new();
        let mut made = lab.service.handle().on(SHARD).keep(move |_| guard).unwrap();
        let _report = lab.end(policy);
        let inserted = look(&mut inserted).unwrap().unwrap();
        assert!(matches!(inserted, Err(Refused::Closed((2, 20)))), "{policy:?}: the value is back");
        let removed = look(&mut removed).unwrap().unwrap();
        assert_eq!(removed.map(|job| job.value), Some(10), "{policy:?}");
        assert_eq!(look(&mut made).unwrap().unwrap_err(), ReplyError::Closed, "{policy:?}");
        assert_eq!(count(&dropped), 1, "{policy:?}: the closure that makes it is dropped");
    }
}

#[test]
fn command_after_the_end_is_refused_with_its_closure() {
    let mut lab = Lab::<u32>::new(builder(1));
    let (guard, dropped) = Guard::new();
    let kept = kept(&mut lab, move |_| guard);
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(count(&dropped), 1, "the value is dropped with its shard");
    let (guard, dropped) = Guard::new();
    let refused = kept.try_run(move |_| drop(guard));
    let Err(Refused::Closed(call)) = refused else { panic!("the shard has ended") };
    assert_eq!(count(&dropped), 0);
    drop(call);
    assert_eq!(look(&mut Box::pin(kept.run(|_| ()))), Some(Err(ReplyError::Closed)));
    // Another thread, which has never used the service.
    let other = kept.clone();
    let refused = thread::spawn(move || other.try_run(|_| ()).err().map(|r| r.kind())).join();
    assert_eq!(refused.unwrap(), Some(RefusedKind::Closed));
}

#[test]
fn future_that_waits_for_room_is_told_that_the_shard_has_ended() {
    let mut lab = Lab::<u32>::new(builder(1).lane_capacity(1));
    let kept = kept(&mut lab, |_| ());
    let mut first = Box::pin(kept.run(|()| ()));
    let mut second = Box::pin(kept.run(|()| ()));
    assert!(look(&mut first).is_none() && look(&mut second).is_none());
    drop(lab.shards.remove(0));
    assert_eq!(look(&mut first), Some(Err(ReplyError::Closed)), "a dead shard runs no command");
    lab.clock.advance(Duration::from_millis(2));
    assert_eq!(look(&mut second), Some(Err(ReplyError::Closed)));
}

#[test]
fn commands_of_a_dead_shard_are_dropped_and_their_replies_say_so() {
    let mut lab = Lab::<u32>::new(builder(1));
    let kept = kept(&mut lab, jobs);
    let (guard, dropped) = Guard::new();
    let mut reply = kept.try_run(move |_| drop(guard)).unwrap();
    drop(lab.shards.remove(0));
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Closed)));
    assert_eq!(count(&dropped), 1);
    assert!(matches!(kept.try_run(KeyedTimers::len), Err(Refused::Closed(_))));
}

#[test]
fn flood_that_races_with_a_shutdown_runs_each_accepted_command_once() {
    for (host, policy) in Host::all().flat_map(|host| POLICIES.map(|policy| (host, policy))) {
        let builder = builder(2).lane_capacity(256);
        let running = Running::<u32>::idle(host, builder);
        let kept = running.service.handle().on(SHARD).keep(|_| Cell::new(0)).unwrap();
        let kept = block_on(kept).unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let ran = Arc::new(AtomicUsize::new(0));
        let flood = || {
            let (kept, accepted, ran) = (kept.clone(), Arc::clone(&accepted), Arc::clone(&ran));
            move || {
                let mut replies = Vec::new();
                loop {
                    let ran = Arc::clone(&ran);
                    let command = move |value: &Cell<usize>| {
                        value.set(value.get() + 1);
                        ran.fetch_add(1, Ordering::SeqCst);
                    };
                    match kept.try_run(command) {
                        Ok(reply) => {
                            accepted.fetch_add(1, Ordering::SeqCst);
                            replies.push(reply);
                        }
                        Err(Refused::Busy(_)) => thread::yield_now(),
                        Err(Refused::Closed(_)) => break,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                replies.into_iter().map(block_on).filter(|ran| *ran != Ok(())).count()
            }
        };
        let threads: Vec<_> = (0..3).map(|_| thread::spawn(flood())).collect();
        wait_until("the flood has begun", || count(&accepted) > 500);
        let _report = running.service.shutdown(policy).unwrap();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 0, "{host:?}, {policy:?}: replies without a result");
        }
        assert_eq!(count(&accepted), count(&ran), "{host:?}, {policy:?}");
    }
}
