//! Shutdown: every timer that was accepted has one outcome, whenever and from wherever it comes.

use corewheel::shutdown::ShutdownReport;

use super::*;

#[test]
fn shutdown_gives_each_pending_timer_one_outcome() {
    for (host, policy) in Host::all().flat_map(|host| POLICIES.map(|policy| (host, policy))) {
        let (running, fired) = Running::sending(host, builder(2));
        let client = running.client();
        let (guard, dropped) = Guard::new();
        let (sender, called) = mpsc::channel();
        for shard in [SHARD, OTHER].repeat(20) {
            client.on(shard).schedule(FAR, guard.clone()).unwrap();
            let (guard, sender) = (guard.clone(), sender.clone());
            let call = move |_: &Timers<Guard>| {
                drop(guard);
                sender.send(()).unwrap();
            };
            client.on(shard).schedule_fn(FAR, call).unwrap();
        }
        drop(guard);
        let report = running.end(policy);
        assert!(report.dead.is_empty());
        let left: u64 = report.shards.iter().map(|shard| unfired(&shard.counts)).sum();
        assert!(report.shards.iter().all(|shard| shard.counts.pending == 0));
        let returned = report.returned.len();
        drop(report);
        let fired = fired.try_iter().count() + called.try_iter().count();
        let expected = match policy {
            ShutdownPolicy::Return => (80, 80, 0),
            ShutdownPolicy::Drop => (80, 0, 0),
            ShutdownPolicy::Fire => (0, 0, 80),
        };
        assert_eq!((left, returned, fired), expected, "{host:?}, {policy:?}");
        let dropped = dropped.load(Ordering::SeqCst);
        assert_eq!(dropped, 81, "{host:?}, {policy:?}: nothing is kept");
    }
}

#[test]
fn shutdown_counts_requests_that_are_on_the_way() {
    for policy in POLICIES {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&fired);
        let mut lab = Lab::with_handler(builder(1).lane_capacity(4), move |_| {
            let fired = Rc::clone(&noted);
            move |one: Fired<i32>, _: &_| fired.borrow_mut().push(one.payload)
        });
        let client = lab.client();
        // Known to the shard, so that it has all the keys that it may have.
        client.cancel_detached(client.on(SHARD).schedule(FAR, 9).unwrap());
        lab.settle();
        let first = client.on(SHARD).schedule(FAR, 0).unwrap();
        client.on(SHARD).schedule(FAR, 1).unwrap();
        let second = client.on(SHARD).schedule(FAR, 2).unwrap();
        client.on(SHARD).schedule(FAR, 3).unwrap();
        assert!(matches!(client.on(SHARD).schedule(FAR, 4), Err(Refused::Busy(4))));
        // The ring is full, and these wait beside it.
        let mut answer = client.cancel(first).into_future();
        client.cancel_detached(second);
        let mut report = Box::pin(lab.service.begin_shutdown(policy).unwrap());
        assert!(look(&mut report).is_none());
        assert_eq!(lab.turn(), Turn::Closed);
        assert_eq!(look(&mut answer).unwrap().unwrap().payload().unwrap().into_value(), Some(0));
        let report = look(&mut report).unwrap();
        let counts = report.shards[0].counts;
        assert_eq!((counts.scheduled_remote, counts.cancelled), (5, 3));
        check_law(&counts);
        let returned = report.returned.into_iter().map(|one| one.payload.into_value().unwrap());
        let both_if = |policy_is| if policy == policy_is { vec![1, 3] } else { vec![] };
        assert_eq!(returned.collect::<Vec<_>>(), both_if(ShutdownPolicy::Return));
        assert_eq!(fired.take(), both_if(ShutdownPolicy::Fire));
        assert!(look(&mut client.cancel(first).into_future()).unwrap().is_err());
    }
}

#[test]
fn fire_goes_in_the_order_of_deadlines() {
    let mut lab = Lab::<u64>::with_handler(builder(1), |_| {
        let mut last = None;
        move |one: Fired<u64>, timers: &Timers<u64>| {
            // Near the end of the range of time, timers of different delays have one deadline.
            if let Some((deadline, delay)) = last.replace((one.deadline, one.payload)) {
                let is_later = one.deadline > deadline && one.payload >= delay;
                let is_in_order = is_later || one.deadline == deadline;
                assert!(is_in_order, "{} comes after {delay}", one.payload);
            }
            let refused = timers.schedule(Duration::ZERO, 0);
            assert!(matches!(refused, Err(Refused::Closed(0))));
            assert!(timers.schedule_fn(Duration::ZERO, |_| {}).is_err());
        }
    });
    let mut rng = Rng::with_seed(7);
    for _ in 0..1_000 {
        let delay = 1 << rng.u32(0..40);
        lab.timers().schedule(ms(delay), delay).unwrap();
    }
    lab.timers().schedule(Duration::MAX, u64::MAX).unwrap();
    let report = lab.end(ShutdownPolicy::Fire);
    let counts = report.shards[0].counts;
    assert_eq!((counts.fired, counts.panicked, unfired(&counts)), (1_001, 0, 0));
}

#[test]
fn shutdown_from_callback_is_refused_and_begin_shutdown_works() {
    for (host, running) in Running::<u8>::each(Host::all(), 2) {
        let (sender, told) = mpsc::channel();
        let service = Arc::downgrade(&running.service);
        let call = move |timers: &Timers<u8>| {
            let service = service.upgrade().unwrap();
            let blocked = service.shutdown(ShutdownPolicy::Return).map(drop);
            let begun = service.begin_shutdown(ShutdownPolicy::Return).unwrap();
            // The doors close in the next turn.
            timers.schedule(FAR, 2).unwrap();
            sender.send((blocked, begun)).unwrap_or_else(|_| panic!("the test waits"));
        };
        let client = running.client();
        client.on(OTHER).schedule(FAR, 1).unwrap();
        client.on(SHARD).schedule_fn(ms(1), call).unwrap();
        let (blocked, begun) = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(blocked, Err(ReplyError::OnShard), "{host:?}");
        assert_eq!(values_of(block_on(begun)), [1, 2], "{host:?}");
        let again = running.service.shutdown(ShutdownPolicy::Drop).map(drop);
        assert_eq!(again, Err(ReplyError::Closed), "{host:?}");
    }
}

#[test]
fn concurrent_shutdowns_give_one_report() {
    for (host, running) in Running::<u8>::each(Host::all(), 2) {
        running.client().on(SHARD).schedule(FAR, 1).unwrap();
        let threads = [(); 4].map(|()| {
            let service = Arc::clone(&running.service);
            thread::spawn(move || service.shutdown(ShutdownPolicy::Return).map(values_of))
        });
        let answers = threads.map(|thread| thread.join().unwrap());
        let won: Vec<_> = answers.iter().flatten().collect();
        assert_eq!(won, [&vec![1_u8]], "{host:?}: {answers:?}");
    }
}

#[test]
fn schedule_that_races_with_shutdown_is_counted_or_refused() {
    let policies = [ShutdownPolicy::Return, ShutdownPolicy::Fire];
    for (host, policy) in Host::all().flat_map(|host| policies.map(|policy| (host, policy))) {
        let (running, fired) = Running::sending(host, builder(1).lane_capacity(64));
        let tried = Arc::new(AtomicUsize::new(0));
        let threads = [0, 1, 2].map(|thread: u64| {
            let (client, tried) = (running.client(), Arc::clone(&tried));
            thread::spawn(move || {
                let mut accepted = Vec::new();
                for n in thread << 32.. {
                    let scheduled = client.on(SHARD).schedule(FAR, n);
                    tried.fetch_add(1, Ordering::SeqCst);
                    let Err(refused) = scheduled else {
                        accepted.push(n);
                        continue;
                    };
                    let kind = refused.kind();
                    assert_eq!(refused.into_value(), n);
                    if kind == RefusedKind::Closed {
                        break;
                    }
                    assert!(matches!(kind, RefusedKind::Full | RefusedKind::Busy));
                    thread::yield_now();
                }
                accepted
            })
        });
        wait_until("they are all at it", || tried.load(Ordering::SeqCst) > 300);
        let report = running.end(policy);
        let accepted = sorted(threads.map(|thread| thread.join().unwrap()).concat());
        let ended = sorted(values_of(report).into_iter().chain(fired.try_iter()));
        assert_eq!(accepted.len(), ended.len(), "{host:?}, {policy:?}");
        assert!(accepted == ended, "{host:?}, {policy:?}");
    }
}

#[test]
fn command_after_shutdown_is_refused_with_its_value() {
    for (host, running) in Running::<u8>::each(Host::all(), 1) {
        let client = running.client();
        let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
        let service = Arc::clone(&running.service);
        running.end(ShutdownPolicy::Drop);
        // A client that knows the shard, and one that does not.
        for client in [Thread::of(&service), client] {
            assert!(matches!(client.on(SHARD).schedule(FAR, 7), Err(Refused::Closed(7))));
            assert!(matches!(client.on(SHARD).schedule_fn(FAR, |_| {}), Err(Refused::Closed(_))));
            assert!(client.cancel(timer).wait().is_err());
            assert!(client.reset(timer, FAR).wait().is_err());
            client.cancel_detached(timer);
            client.reset_detached(timer, FAR);
            assert_eq!(block_on(service.handle().on(SHARD).sleep(FAR)), Err(RefusedKind::Closed));
        }
        assert!(matches!(service.spawn_on(SHARD, |_| async {}), Err(ShardError::Closed)));
        assert_eq!(service.stats().shards[0].state, ShardState::Closed, "{host:?}");
    }
}

#[test]
fn shutdown_waits_for_slow_callback() {
    for host in Host::all() {
        let done = Arc::new(AtomicBool::new(false));
        let (sender, started) = mpsc::channel();
        let running = Running::<u8>::idle(host, builder(1));
        let client = running.client();
        let noted = Arc::clone(&done);
        let call = move |_: &Timers<u8>| {
            sender.send(()).unwrap();
            thread::sleep(ms(30));
            noted.store(true, Ordering::SeqCst);
        };
        client.on(SHARD).schedule_fn(ms(1), call).unwrap();
        client.on(SHARD).schedule(FAR, 1).unwrap();
        started.recv_timeout(PATIENCE).unwrap();
        let counts = running.end(ShutdownPolicy::Return).shards[0].counts;
        assert!(done.load(Ordering::SeqCst), "{host:?}");
        assert_eq!((counts.fired, unfired(&counts)), (1, 1), "{host:?}");
    }
}

#[test]
fn dropped_service_ends_its_shards() {
    for (_, running) in Running::<Guard>::each(Host::all(), 2) {
        let (guard, dropped) = Guard::new();
        let client = running.client();
        client.on(SHARD).schedule(FAR, guard).unwrap();
        let Running { service, attached: _attached } = running;
        drop(service);
        wait_until("the timer is dropped", || dropped.load(Ordering::SeqCst) == 1);
        wait_until("both shards are closed", || {
            client.shards().all(|shard| client.on(shard).schedule_fn(FAR, |_| {}).is_err())
        });
    }
}

fn attached() -> TimerService<u8> {
    builder(2).start_attached_with().unwrap()
}

#[test]
fn attachment_dropped_unused_closes_its_shard() {
    let service = attached();
    let client = Thread::of(&service);
    let mut waiting = client.on(SHARD).keep(|_| ()).unwrap();
    assert!(look(&mut waiting).is_none());
    drop(service.attach(SHARD).unwrap());
    assert!(look(&mut waiting).unwrap().is_err(), "whoever waits is told");
    assert!(matches!(client.on(SHARD).schedule(FAR, 1), Err(Refused::Closed(1))));
    assert!(matches!(client.on(OTHER).schedule(FAR, 1), Err(Refused::NotAttached(1))));
    assert!(matches!(service.attach(SHARD), Err(ShardError::Closed)));
    let ShutdownReport { shards, dead, .. } = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!((shards.len(), dead), (1, vec![SHARD]));
}

#[test]
fn attach_succeeds_once_and_not_after_shutdown() {
    let service = attached();
    let first = service.attach(SHARD).unwrap();
    assert!(matches!(service.attach(SHARD), Err(ShardError::AlreadyAttached(SHARD))));
    let none = ShardId::new(9);
    assert!(matches!(service.attach(none), Err(ShardError::NoSuchShard(shard)) if shard == none));
    let report = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(report.shards.len(), 2, "nothing was ever accepted");
    assert!(matches!(service.attach(OTHER), Err(ShardError::Closed)));
    // One that was taken before is closed when it is used.
    let mut shard = first.into_loop(|_: Fired<u8>, _: &_| {}).unwrap();
    assert!(matches!(shard.timers().schedule(FAR, 1), Err(Refused::Closed(1))));
    assert_eq!(shard.turn(), Turn::Closed);
    assert_eq!(unfired(&shard.shutdown(ShutdownPolicy::Return).shards[0].counts), 0);
    assert_eq!(service.stats().shards[0].state, ShardState::Closed);
}

#[test]
fn loop_that_ends_its_shard_is_reported_dead() {
    let mut lab = Lab::<()>::new(builder(1));
    let mut report = Box::pin(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    assert_eq!(lab.end(ShutdownPolicy::Drop).shards[0].shard, SHARD);
    assert_eq!(look(&mut report).expect("nobody is waited for").dead, [SHARD]);
}

#[test]
fn callback_that_cannot_travel_is_dropped_while_nothing_is_borrowed() {
    let mut lab = Lab::<u8>::new(builder(1));
    for _ in 0..2 {
        // It looks into its shard when it is dropped, and panics.
        let timers = lab.timers().clone();
        let nosy = OnDrop(move || {
            assert_eq!(timers.len(), 0, "the shard can be asked");
            panic!("so it must be contained");
        });
        lab.timers().schedule_fn(FAR, move |_| drop(nosy)).unwrap();
    }
    lab.timers().schedule(FAR, 1).unwrap();
    let report = lab.end(ShutdownPolicy::Return);
    assert_eq!((unfired(&report.shards[0].counts), report.returned.len()), (3, 3));
    assert_eq!(lab.counts().panicked, 2);
}

#[test]
fn report_without_receiver_is_dropped() {
    let mut lab = Lab::<u8>::new(builder(1));
    let client = lab.client();
    let bomb = bomb();
    client.on(SHARD).schedule_fn(FAR, move |_| drop(bomb)).unwrap();
    drop(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    // And in each turn after it.
    assert_eq!([lab.turn(), lab.turn(), lab.turn()], [Turn::Closed; 3]);
}
