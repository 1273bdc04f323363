//! Cancels of many timers: `cancel_many`.

use super::*;

type SendCall<T> = Box<dyn FnOnce(&Timers<T>) + Send>;

type Outcome<T> = Result<CancelOutcome<Payload<T, SendCall<T>>>, ReplyError>;

/// The values of cancelled timers.
fn values<T>(outcomes: Vec<Outcome<T>>) -> Vec<Option<T>> {
    let payloads = outcomes.into_iter().map(|outcome| outcome.unwrap().payload());
    payloads.map(|payload| payload.and_then(Payload::into_value)).collect()
}

#[test]
fn cancel_many_sends_a_request_per_timer_and_returns_outcomes_in_order() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let on = |shard, n: u32| client.on(shard).schedule(ms(u64::from(n)), n).unwrap();
    let (a, b, c, d) = (on(SHARD, 10), on(OTHER, 20), on(SHARD, 1), on(OTHER, 40));
    let stale = on(SHARD, 50);
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1, 2)]);
    client.cancel_detached(stale);
    lab.settle();
    let before = lab.service.stats();
    // A cancel of no timers asks no shard.
    assert!(look(&mut client.cancel_many(&[]).into_future()).unwrap().unwrap().is_empty());
    client.cancel_many(&[]).detach();
    let mut replies = client.cancel_many(&[b, a, c, stale, d]).into_future();
    assert!(look(&mut replies).is_none(), "no shard has replied yet");
    let outcomes = lab.reply(replies).unwrap();
    let CancelOutcome::Cancelled { remaining, payload: Payload::Value(20) } =
        outcomes[0].as_ref().unwrap()
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!(*remaining, ms(18));
    assert!(matches!(outcomes[2], Ok(CancelOutcome::AlreadyFired)), "{outcomes:?}");
    assert!(matches!(outcomes[3], Ok(CancelOutcome::Stale)), "{outcomes:?}");
    assert_eq!(values(outcomes), [Some(20), Some(10), None, None, Some(40)]);
    // Each shard got a request for each of its timers, and the client has checked its doorbell.
    let sends = |shard: &ShardStats| shard.counts.wakeups_made + shard.counts.wakeups_saved;
    for ((shard, before), count) in
        lab.service.stats().shards.iter().zip(&before.shards).zip([3, 2])
    {
        assert_eq!(sends(shard), sends(before) + count);
    }
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
}

#[test]
fn cancels_of_more_timers_than_the_budget_are_executed_in_order_by_several_turns() {
    let budget = TurnBudget { requests_max: 8, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let client = lab.client();
    lab.settle();
    let schedule = |n| client.on(SHARD).schedule(ms(5), n).unwrap();
    // Two budgets, and one more.
    let timers: Vec<_> = (0..17).map(schedule).collect();
    let first = schedule(17);
    lab.settle();
    let mut replies = client.cancel_many(&timers).into_future();
    let mut last = client.cancel(first).into_future();
    for pending in [10, 2] {
        let _ = lab.turn();
        assert_eq!(lab.counts().pending, pending);
        assert!(look(&mut replies).is_none(), "the cancels are not finished");
        assert!(look(&mut last).is_none(), "a later request is not executed earlier");
    }
    assert!(values(lab.reply(replies).unwrap()).into_iter().eq((0..17).map(Some)));
    assert!(look(&mut last).unwrap().unwrap().won());
    assert_eq!(lab.counts().requests, 36, "each command counts as one request");
}

#[test]
fn cancels_that_are_executed_in_part_are_finished_when_the_shard_ends() {
    let budget = TurnBudget { requests_max: 4, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let client = lab.client();
    lab.settle();
    let timers: Vec<_> = (0..10).map(|n| client.on(SHARD).schedule(FAR, n).unwrap()).collect();
    lab.settle();
    let mut replies = client.cancel_many(&timers[..6]).into_future();
    let _ = lab.turn();
    assert_eq!(lab.counts().pending, 6, "four of six are cancelled");
    let report = lab.end(ShutdownPolicy::Return);
    let outcomes = look(&mut replies).unwrap().unwrap();
    assert!(values(outcomes).into_iter().eq((0..6).map(Some)));
    assert_eq!(values_of(report), [6, 7, 8, 9]);
    let mut late = client.cancel_many(&timers).into_future();
    let outcomes = look(&mut late).expect("a closed shard does not reply").unwrap();
    assert!(outcomes.len() == 10 && outcomes.iter().all(Result::is_err));
}

/// What each form of a cancel says of timers whose service has ended: that is the same after a
/// shutdown and after a drop, on a thread that has used the service and on one that has not.
#[test]
fn cancels_after_the_end_of_a_service_say_that_each_shard_has_ended() {
    for policy in POLICIES.map(Some).into_iter().chain([None]) {
        let mut lab = Lab::with_handler(builder(2), |_| |_: Fired<u64>, _: &Timers<u64>| {});
        let foreign = Lab::<u64>::new(builder(1)).timers().schedule(FAR, 0).unwrap();
        let local = lab.timers().clone();
        let handle = lab.service.handle();
        let own = local.schedule(FAR, 1_u64).unwrap();
        let sent = [SHARD, OTHER].map(|shard| handle.on(shard).schedule(FAR, 2).unwrap());
        lab.settle();
        let timers = [own, foreign, sent[0], sent[1]];
        let what = format!("shut down by {policy:?}");
        let check = move || {
            let many = handle.cancel_many(&timers).wait().unwrap();
            let [Err(a), Ok(CancelOutcome::Foreign), Err(b), Err(c)] = &many[..] else {
                panic!("{what}: {many:?}")
            };
            assert_eq!([a, b, c], [&ReplyError::Closed; 3], "{what}");
            assert!(handle.cancel_many(&[]).wait().unwrap().is_empty(), "{what}");
            assert_eq!(handle.cancel(own).wait().unwrap_err(), ReplyError::Closed, "{what}");
            assert!(matches!(handle.cancel(foreign).wait(), Ok(CancelOutcome::Foreign)), "{what}");
            handle.cancel_detached(own);
            handle.cancel_many(&timers).detach();
        };
        let (user, check_later) = (Elsewhere::new(handle.untyped()), check.clone());
        let _opens_a_lane = user.run(move || handle.on(SHARD).schedule(FAR, 3).is_ok());
        // Without a policy, the lab is dropped.
        let lab = policy.map(|policy| {
            let report = lab.service.begin_shutdown(policy).unwrap();
            lab.settle_closed();
            block_on(report);
            lab
        });
        user.run(check_later);
        thread::spawn(check).join().unwrap();
        // On the thread of the shard, which knows how its timers have ended.
        let fired = policy == Some(ShutdownPolicy::Fire);
        let ended = |outcome: &CancelOutcome<Payload<u64>>| match outcome {
            CancelOutcome::AlreadyFired => fired,
            CancelOutcome::Stale => !fired,
            _ => false,
        };
        let outcomes = timers.map(|timer| local.cancel(timer));
        let is_right = ended(&outcomes[0]) && ended(&outcomes[2]);
        assert!(is_right, "{policy:?}: {outcomes:?}");
        assert!(matches!(outcomes[1], CancelOutcome::Foreign));
        assert!(matches!(outcomes[3], CancelOutcome::Elsewhere(OTHER)));
        drop(lab);
    }
}

#[test]
fn cancel_many_before_its_timer_returns_its_payload_and_fires_nothing() {
    let mut lab = Lab::new(builder(1));
    let (sender, canceller) = (lab.client(), lab.client());
    let (guard, dropped) = Guard::new();
    // The shard receives the requests of the lane that was opened first before the others.
    canceller.cancel_many(&[lab.timers().schedule(FAR, Guard::new().0).unwrap()]).detach();
    lab.settle();
    let timer = sender.on(SHARD).schedule(ms(5), guard).unwrap();
    let outcomes = lab.reply(canceller.cancel_many(&[timer])).unwrap();
    assert!(matches!(outcomes[..], [Ok(CancelOutcome::Cancelled { .. })]));
    drop(outcomes);
    lab.advance(ms(10));
    assert_eq!((dropped.load(Ordering::SeqCst), lab.fired().len()), (1, 0));
}

#[test]
fn payloads_of_cancel_many_that_panic_when_dropped_are_counted() {
    let mut lab = Lab::<Bomb>::new(builder(1));
    let (timers, client) = (lab.timers().clone(), lab.client());
    let three = || [(); 3].map(|()| timers.schedule(FAR, bomb()).unwrap());
    // The caller does not wait for the reply, so the payloads are dropped on the core.
    drop(client.cancel_many(&three()));
    client.cancel_many(&three()).detach();
    assert_eq!((lab.settled().cancelled, lab.counts().panicked), (6, 6));
}

#[test]
fn cancel_many_works_on_every_runtime() {
    for host in Host::all() {
        let (running, fired) = Running::sending(host, builder(2));
        let client = running.client();
        let schedule = |shard, delay: Duration, values: std::ops::Range<u64>| {
            let one = |n| block_on(client.on(shard).schedule_when_room(delay, n)).unwrap();
            values.map(one).collect::<Vec<_>>()
        };
        let mut group = schedule(SHARD, FAR, 0..100);
        group.extend(schedule(OTHER, FAR, 100..200));
        schedule(SHARD, ms(1), 200..300);
        let closed = client.cancel_many(&group).wait().unwrap();
        assert!(values(closed).into_iter().eq((0..200).map(Some)), "{host:?}");
        let gone = schedule(OTHER, FAR, 300..310);
        let awaited = block_on(client.cancel_many(&gone)).unwrap();
        assert!(values(awaited).into_iter().eq((300..310).map(Some)), "{host:?}");
        let seen = sorted((0..100).map(|_| fired.recv_timeout(PATIENCE).unwrap()));
        assert!(seen.into_iter().eq(200..300), "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        for shard in &report.shards {
            assert_eq!((unfired(&shard.counts), shard.counts.panicked), (0, 0), "{host:?}");
        }
    }
}
