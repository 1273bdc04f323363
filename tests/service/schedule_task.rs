//! Callbacks whose result is awaited: the reply, whatever becomes of the callback.

use super::*;

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

#[test]
fn result_comes_when_the_callback_has_run_and_wakes_the_task() {
    let mut lab = lab();
    let (alarm, waker) = Alarm::new();
    let call = |timers: &Timers<u8>| timers.len() + 40;
    let (timer, mut reply) = lab.timers().schedule_task(ms(5), call).unwrap();
    let at = lab.clock.now() + ms(7);
    let (_, mut second) = lab.timers().schedule_task(at, |_| Box::new(1)).unwrap();
    assert_eq!(poll(&mut reply, &waker), Poll::Pending);
    assert_eq!(poll(&mut reply, &waker), Poll::Pending);
    lab.advance(ms(4));
    assert_eq!(alarm.count(), 0);
    lab.advance(ms(1));
    assert_eq!(alarm.count(), 1);
    assert_eq!(poll(&mut reply, &waker), Poll::Ready(Ok(41)));
    assert!(matches!(lab.timers().cancel(timer), CancelOutcome::AlreadyFired));
    lab.advance(ms(2));
    assert_eq!(look(&mut second), Some(Ok(Box::new(1))));
}

#[test]
fn cancel_of_a_callback_replies_cancelled() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let (timer, mut reply) = lab.timers().schedule_task(ms(5), move |_| drop(guard)).unwrap();
    let (alarm, waker) = Alarm::new();
    assert!(poll(&mut reply, &waker).is_pending());
    lab.advance(ms(2));
    match lab.timers().cancel(timer) {
        CancelOutcome::Cancelled { remaining, payload } => {
            assert_eq!((remaining, dropped.load(Ordering::SeqCst)), (ms(3), 0));
            drop(payload);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((dropped.load(Ordering::SeqCst), alarm.count()), (1, 1));
    assert!(matches!(lab.timers().cancel(timer), CancelOutcome::Stale));
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Cancelled)));
    assert!(matches!(lab.timers().cancel(timer), CancelOutcome::Stale));
    lab.advance(FAR);
    assert_eq!((lab.counts().fired, lab.counts().pending), (0, 0));
}

#[test]
fn cancelled_callback_that_is_run_by_hand_replies_its_result() {
    let mut lab = lab();
    let (timer, mut reply) = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    let payload = lab.timers().cancel(timer).payload();
    let Some(Payload::Callback(call)) = payload else { panic!("it is a callback") };
    assert_eq!(look(&mut reply), None, "the callback is still there");
    call(lab.timers());
    assert_eq!(look(&mut reply), Some(Ok(7)));
    let (timer, mut reply) = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    drop(lab.timers().cancel(timer));
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Cancelled)));
    // By a client, which is given a callback of this core only where it may leave the core.
    let client = lab.service.handle();
    let (timer, reply) = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    client.cancel_detached(timer);
    assert_eq!(lab.reply(reply), Err(ReplyError::Cancelled));
    let (timer, mut reply) = client.on(SHARD).schedule_task(FAR, |_| 8).unwrap();
    let payload = lab.reply(client.cancel(timer)).unwrap().payload();
    let Some(Payload::Callback(call)) = payload else { panic!("it is a callback") };
    assert_eq!(look(&mut reply), None, "the callback is on its way");
    call(lab.timers());
    assert_eq!(look(&mut reply), Some(Ok(8)));
}

#[test]
fn cancel_by_a_running_callback_of_itself_is_too_late() {
    let mut lab = lab();
    let own: Rc<Cell<Option<TimerId>>> = Rc::default();
    let known = Rc::clone(&own);
    let call = move |timers: &Timers<u8>| {
        let outcome = timers.cancel(known.take().unwrap());
        assert!(matches!(outcome, CancelOutcome::AlreadyFired | CancelOutcome::Stale));
        3
    };
    let (timer, mut reply) = lab.timers().schedule_task(ms(1), call).unwrap();
    own.set(Some(timer));
    lab.advance(ms(1));
    assert_eq!(look(&mut reply), Some(Ok(3)));
}

#[test]
fn callback_that_panics_replies_panicked_and_is_counted_once() {
    let mut lab = lab();
    let call = |_: &Timers<u8>| -> () { panic!("no result") };
    let (timer, mut reply) = lab.timers().schedule_task(ms(1), call).unwrap();
    lab.advance(ms(1));
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Panicked)));
    assert_eq!((lab.counts().panicked, lab.counts().fired), (1, 1));
    assert!(matches!(lab.timers().cancel(timer), CancelOutcome::AlreadyFired));
}

#[test]
fn waker_that_panics_is_contained_and_the_reply_has_its_result() {
    let mut lab = lab();
    let waker = waker_that(|| panic!("it is woken"));
    let (_, mut runs) = lab.timers().schedule_task(ms(1), |_| 1).unwrap();
    let (timer, mut ends) = lab.timers().schedule_task(ms(1), |_| 2).unwrap();
    assert!(poll(&mut runs, &waker).is_pending() && poll(&mut ends, &waker).is_pending());
    drop(lab.timers().cancel(timer));
    lab.timers().schedule(ms(1), 3).unwrap();
    lab.advance(ms(1));
    assert_eq!(look(&mut runs), Some(Ok(1)));
    assert_eq!(look(&mut ends), Some(Err(ReplyError::Cancelled)));
    assert_eq!((lab.counts().panicked, lab.fired().len()), (1, 1));
}

#[test]
fn dropped_reply_detaches_its_callback() {
    let mut lab = lab();
    let client = lab.service.handle();
    let (guard, dropped) = Guard::new();
    let own = guard.clone();
    drop(lab.timers().schedule_task(ms(1), move |_| own).unwrap());
    drop(client.on(SHARD).schedule_task(ms(1), move |_| guard).unwrap());
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    lab.advance(ms(1));
    assert_eq!((lab.counts().fired, dropped.load(Ordering::SeqCst)), (2, 2));
}

#[test]
fn shutdown_replies_closed_or_runs_the_callback() {
    for policy in POLICIES {
        let mut lab = lab();
        let client = lab.service.handle();
        let (_, mut local) = lab.timers().schedule_task(FAR, |_| 1).unwrap();
        let (_, mut remote) = client.on(SHARD).schedule_task(FAR, |_| 2).unwrap();
        lab.settle();
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        let expected = |n| if fires { Ok(n) } else { Err(ReplyError::Closed) };
        assert_eq!(look(&mut local), Some(expected(1)), "{policy:?}");
        // A callback that was handed back can still be run, until it is dropped.
        let returned = policy == ShutdownPolicy::Return;
        assert_eq!(look(&mut remote).is_none(), returned, "{policy:?}");
        drop(report);
        if returned {
            assert_eq!(look(&mut remote), Some(Err(ReplyError::Closed)));
        }
        let refused = client.on(SHARD).schedule_task(FAR, |_| 2);
        assert!(matches!(refused, Err(Refused::Closed(_))));
    }
}

#[test]
fn callback_returned_by_a_shutdown_replies_when_it_is_run() {
    let mut lab = lab();
    let client = lab.service.handle();
    let (_, mut reply) = client.on(SHARD).schedule_task(FAR, |_| 2).unwrap();
    lab.settle();
    let other = self::lab();
    let mut report = lab.end(ShutdownPolicy::Return);
    let Payload::Callback(call) = report.returned.remove(0).payload else { panic!("a callback") };
    call(other.timers());
    assert_eq!(look(&mut reply), Some(Ok(2)));
}

#[test]
fn refused_callback_comes_back_and_can_be_run() {
    let lab = Lab::<u8>::new(builder(1).capacity(1));
    lab.timers().schedule(FAR, 0).unwrap();
    let ran = Rc::new(Cell::new(false));
    let noted = Rc::clone(&ran);
    match lab.timers().schedule_task(ms(1), move |_| noted.set(true)) {
        Err(Refused::Full(call)) => call(lab.timers()),
        other => panic!("{:?}", other.map(drop)),
    }
    assert!(ran.get());
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn remote_callback_replies_on_every_host() {
    for (host, running) in Running::<u8>::each(Host::all(), 1) {
        let client = running.service.handle();
        let shard = client.on(SHARD);
        let at = client.now() + ms(2);
        let early = move |timers: &Timers<u8>| timers.now() < at;
        let (_, reply) = shard.schedule_task(at, early).unwrap();
        assert_eq!(reply.wait(), Ok(false), "{host:?}");
        let (_, reply) = shard.schedule_task(ms(1), Timers::shard_id).unwrap();
        assert_eq!(block_on(reply), Ok(SHARD), "{host:?}");
        let panics = |_: &Timers<u8>| -> () { panic!("no result") };
        let (_, reply) = shard.schedule_task(ms(1), panics).unwrap();
        assert_eq!(reply.wait(), Err(ReplyError::Panicked), "{host:?}");
        wait_until("it is counted", || running.counts().panicked == 1);
        let (timer, reply) = shard.schedule_task(FAR, |_| 1).unwrap();
        assert!(client.cancel(timer).wait().unwrap().won(), "{host:?}");
        assert_eq!(reply.wait(), Err(ReplyError::Cancelled), "{host:?}");
        let (_, waiting) = shard.schedule_task(FAR, |_| 1).unwrap();
        let waits = thread::spawn(move || waiting.wait());
        let _ = running.end(ShutdownPolicy::Drop);
        assert_eq!(waits.join().unwrap(), Err(ReplyError::Closed), "{host:?}");
    }
}

#[test]
fn reply_is_awaited_on_every_executor_and_wait_there_is_refused() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let awaits = running.service.spawn_on(SHARD, |timers| async move {
            let at = timers.now() + ms(3);
            let call = move |timers: &Timers<u8>| timers.now() >= at;
            timers.schedule_task(ms(3), call).unwrap().1.await
        });
        assert_eq!(awaits.unwrap().wait(), Ok(Ok(true)), "{host:?}");
        let blocks = running.service.spawn_on(SHARD, |timers| async move {
            let shard = timers.handle().on(SHARD);
            shard.schedule_task(Duration::ZERO, |_| ()).unwrap().1.wait()
        });
        assert_eq!(blocks.unwrap().wait(), Ok(Err(ReplyError::OnShard)), "{host:?}");
    }
}

#[test]
fn waker_that_cancels_the_callback_when_dropped_loses_no_wake_up() {
    let lab = lab();
    let (timer, mut reply) = lab.timers().schedule_task(FAR, |_| 1).unwrap();
    let (timers, is_cancelled) = (lab.timers().clone(), Rc::new(Cell::new(false)));
    let won = Rc::clone(&is_cancelled);
    let cancels = OnDrop(move || won.set(timers.cancel(timer).won()));
    let cancels = waker_of(move || {
        let _kept = &cancels;
    });
    assert!(poll(&mut reply, &cancels).is_pending());
    // The last of it is in the channel, and is dropped when another waker takes its place.
    drop(cancels);
    assert!(!is_cancelled.get());
    let (alarm, waker) = Alarm::new();
    let polled = poll(&mut reply, &waker);
    assert!(is_cancelled.get());
    match polled {
        Poll::Ready(result) => assert_eq!(result, Err(ReplyError::Cancelled)),
        Poll::Pending => assert_eq!(alarm.count(), 1, "the task is woken"),
    }
}

#[test]
fn callback_cancelled_before_its_shard_ended_replies_cancelled() {
    for remote in [false, true] {
        let mut lab = lab();
        let client = lab.service.handle();
        let (timer, mut reply) = if remote {
            client.on(SHARD).schedule_task(FAR, |_| 1).unwrap()
        } else {
            lab.timers().schedule_task(FAR, |_| 1).unwrap()
        };
        let timers = lab.timers().clone();
        client.cancel_detached(timer);
        lab.settle();
        let _ = lab.end(ShutdownPolicy::Drop);
        assert!(matches!(timers.cancel(timer), CancelOutcome::Stale));
        assert_eq!(look(&mut reply), Some(Err(ReplyError::Cancelled)), "{remote}");
    }
}

#[test]
fn death_of_the_shard_replies_closed() {
    let mut lab = lab();
    let client = lab.service.handle();
    let (_, mut local) = lab.timers().schedule_task(FAR, |_| 1).unwrap();
    let (_, mut remote) = client.on(SHARD).schedule_task(FAR, |_| 2).unwrap();
    lab.settle();
    let (_, mut unseen) = client.on(SHARD).schedule_task(FAR, |_| 3).unwrap();
    let (alarm, waker) = Alarm::new();
    assert!(poll(&mut local, &waker).is_pending());
    drop(lab.shards.remove(0));
    assert_eq!((alarm.count(), look(&mut local)), (1, Some(Err(ReplyError::Closed))));
    assert_eq!(look(&mut remote), Some(Err(ReplyError::Closed)));
    assert_eq!(look(&mut unseen), Some(Err(ReplyError::Closed)));
}

#[test]
fn callback_that_panics_when_dropped_still_replies() {
    let mut lab = lab();
    let begin = |lab: &Lab<u8>| {
        let bomb = bomb();
        lab.timers().schedule_task(FAR, move |_| drop(bomb)).unwrap()
    };
    let ((timer, remote), (own, mut here), (_, mut left)) = (begin(&lab), begin(&lab), begin(&lab));
    lab.service.handle().cancel_detached(timer);
    assert_eq!(lab.reply(remote), Err(ReplyError::Cancelled));
    let timers = lab.timers().clone();
    let cancels = AssertUnwindSafe(|| drop(timers.cancel(own)));
    assert!(catch_unwind(cancels).is_err(), "the caller of `cancel` drops it");
    assert_eq!(look(&mut here), Some(Err(ReplyError::Cancelled)));
    // A result whose drop panics, and no caller that takes it.
    drop(lab.timers().schedule_task(ms(1), move |_| bomb()).unwrap());
    lab.advance(ms(1));
    assert_eq!(lab.counts().panicked, 2);
    let _ = lab.end(ShutdownPolicy::Drop);
    assert_eq!(look(&mut left), Some(Err(ReplyError::Closed)));
}
