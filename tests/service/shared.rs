//! Handles, and the futures that any thread may poll.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::interval::Interval;
use corewheel::{
    AnyHandle, Handle, RefusedKind, Runtime, ShardId, ShutdownPolicy, Sleep, Timeout, TimerService,
};

use crate::thread_timers::Elsewhere;
use corewheel_test_support::{
    Alarm, FAR, Lab, SHARD, block_on, builder, check_law, look, ms, poll, wait_until,
};

/// Runs code on a thread that drives no shard, and waits for it.
fn elsewhere<O: Send>(run: impl FnOnce() -> O + Send) -> O {
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn handle_and_its_futures_belong_to_every_thread() {
    fn check<X: Send + Sync + 'static>() {}
    fn copy<X: Copy>() {}
    check::<Handle>();
    check::<Sleep>();
    check::<Interval>();
    check::<Timeout<std::future::Pending<()>>>();
    copy::<Handle>();
    assert!(size_of::<Handle>() <= 12);
    // With the 64 bits by which it names its timer for ever.
    assert!(size_of::<Sleep>() <= 40, "{}", size_of::<Sleep>());
}

/// The waker of the last poll is the one that is woken, on a service with a thread of its own.
#[test]
fn sleep_polled_with_wakers_a_b_and_a_wakes_a() {
    let builder = TimerService::builder().shards(1).runtime(Runtime::Thread);
    let service: TimerService = builder.start().unwrap();
    let handle = service.handle();
    for delay in [ms(3), ms(10), ms(30), ms(60)] {
        let mut sleep = handle.sleep(delay);
        let ((first, a), (_second, b)) = (Alarm::new(), Alarm::new());
        let is_pending = |sleep: &mut Sleep, waker: &Waker| {
            Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_pending()
        };
        // The middle poll is on another thread. A poll after the deadline needs no waker.
        let polled = is_pending(&mut sleep, &a)
            && elsewhere(|| is_pending(&mut sleep, &b))
            && is_pending(&mut sleep, &a);
        if polled {
            wait_until("the waker of the last poll is woken", || first.count() > 0);
        }
        assert_eq!(block_on(sleep), Ok(()));
    }
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

#[test]
fn sleep_on_the_shards_own_thread_needs_no_turn_and_no_request() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let mut sleep = handle.sleep(ms(10));
    assert_eq!(look(&mut sleep), None);
    // No turn was needed.
    assert_eq!(lab.timers().len(), 1);
    lab.advance(ms(9));
    assert_eq!(look(&mut sleep), None);
    lab.advance(ms(1));
    assert_eq!(look(&mut sleep), Some(Ok(())));
    assert!(sleep.is_elapsed());
    lab.settle();
    assert_eq!(lab.counts().requests, 0);
    assert_eq!(lab.counts().fired, 1);
    // A drop gives the timer back at once.
    let mut sleep = handle.sleep(FAR);
    assert_eq!(look(&mut sleep), None);
    drop(sleep);
    assert_eq!(lab.timers().len(), 0);
    lab.settle();
    check_law(&lab.counts());
}

#[test]
fn sleep_of_another_thread_wakes_its_task_at_the_deadline() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let (woken, waker) = Alarm::new();
    let mut sleep = elsewhere(|| {
        let mut sleep = handle.sleep(ms(10));
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep
    });
    lab.settle();
    assert_eq!(lab.timers().len(), 1);
    assert_eq!(lab.counts().requests, 0);
    lab.advance(ms(9));
    assert_eq!(woken.count(), 0);
    lab.advance(ms(1));
    assert_eq!(woken.count(), 1);
    // It may be polled on another thread than before, and after the end.
    assert_eq!(elsewhere(|| poll(&mut sleep, &waker)), Poll::Ready(Ok(())));
    assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())));
    lab.settle();
    check_law(&lab.counts());
}

#[test]
fn reset_to_later_wakes_the_task_only_at_the_later_deadline() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let (woken, waker) = Alarm::new();
    let mut sleep = elsewhere(|| {
        let mut sleep = handle.sleep(ms(10));
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep.reset(ms(50));
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep
    });
    lab.settle();
    lab.advance(ms(10));
    assert_eq!(woken.count(), 0, "it is woken at the first deadline");
    assert_eq!(elsewhere(|| poll(&mut sleep, &waker)), Poll::Pending);
    lab.advance(ms(39));
    assert_eq!(elsewhere(|| poll(&mut sleep, &waker)), Poll::Pending);
    lab.advance(ms(1));
    assert_eq!(woken.count(), 1);
    assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())));
}

#[test]
fn reset_to_earlier_wakes_the_task_at_the_earlier_deadline() {
    for here in [true, false] {
        let mut lab = Lab::<()>::new(builder(1));
        let handle = lab.service.handle().untyped();
        let (woken, waker) = Alarm::new();
        let arm = || {
            let mut sleep = handle.sleep(FAR);
            assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
            sleep.reset(ms(5));
            sleep
        };
        let mut sleep = if here { arm() } else { elsewhere(arm) };
        lab.settle();
        lab.advance(ms(4));
        assert_eq!(woken.count(), 0);
        lab.advance(ms(1));
        assert_eq!(woken.count(), 1);
        assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())));
        // After the end it waits again.
        sleep.reset(ms(5));
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        lab.advance(ms(5));
        assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())));
    }
}

#[test]
fn poll_with_another_waker_replaces_the_waker_wherever_the_timer_is() {
    // How the timer was scheduled, whether it has arrived, and where the second poll is.
    for case in 0..8 {
        let [scheduled_here, arrives, polled_here] = [1, 2, 4].map(|bit| case & bit != 0);
        let mut lab = Lab::<()>::new(builder(1));
        let handle = lab.service.handle().untyped();
        let ((old, first), (new, second)) = (Alarm::new(), Alarm::new());
        let arm = || {
            let mut sleep = handle.sleep(ms(10));
            assert_eq!(poll(&mut sleep, &first), Poll::Pending);
            sleep
        };
        let mut sleep = if scheduled_here { arm() } else { elsewhere(arm) };
        if arrives {
            lab.settle();
        }
        if polled_here {
            assert_eq!(poll(&mut sleep, &second), Poll::Pending);
        } else {
            assert_eq!(elsewhere(|| poll(&mut sleep, &second)), Poll::Pending);
        }
        lab.settle();
        lab.advance(ms(10));
        assert_eq!(old.count(), 0, "case {case}: the old waker is woken");
        assert!(new.count() > 0, "case {case}: the new waker is not woken");
        assert_eq!(poll(&mut sleep, &second), Poll::Ready(Ok(())));
        drop((first, second));
        lab.settle();
        let left = [old, new].map(|waker| Arc::strong_count(&waker));
        assert_eq!(left, [1, 1], "case {case}: a waker is kept");
        check_law(&lab.counts());
    }
}

#[test]
fn timeout_of_a_ready_future_schedules_nothing() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let ready_at_once = || look(&mut Box::pin(handle.timeout(ms(10), ready(7))));
    assert_eq!(ready_at_once(), Some(Ok(7)));
    assert_eq!(elsewhere(ready_at_once), Some(Ok(7)));
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.scheduled_local, counts.requests, counts.lanes), (0, 0, 0));
}

#[test]
fn interval_ticks_at_its_rate_on_every_thread() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    assert_eq!(handle.interval(Duration::ZERO).unwrap_err().field(), "period");
    let mut interval = handle.interval(ms(10)).unwrap();
    let start = lab.clock.now();
    let mut ticks = Vec::new();
    for step in 0..60 {
        let mut tick = || {
            let mut next = Box::pin(interval.tick());
            look(&mut next).map(|due| due.unwrap().duration_since(start))
        };
        let tick = if step % 2 == 0 { tick() } else { elsewhere(tick) };
        ticks.extend(tick.map(|due| (step, due)));
        lab.advance(ms(1));
    }
    let expected: Vec<_> = (0..6).map(|n| (n * 10, ms(n * 10))).collect();
    assert_eq!(ticks, expected);
}

#[test]
fn full_shard_refuses_a_sleep_and_never_completes_it() {
    let mut lab = Lab::<u32>::new(builder(1).capacity(2));
    let handle = lab.service.handle().untyped();
    let kept: Vec<_> = (0..2).map(|n| lab.timers().schedule(FAR, n).unwrap()).collect();
    let mut sleep = handle.sleep(ms(10));
    assert_eq!(look(&mut sleep), Some(Err(RefusedKind::Full)));
    let refused = Elsewhere::new().settle(&mut lab, handle.sleep(ms(10))).err();
    assert_eq!(refused, Some(RefusedKind::Full), "once the shard has looked");
    assert_eq!(lab.counts().refused, 2);
    // With room, the same future goes on: the shard lends what it does not need at its next turn.
    let _cancelled = lab.timers().cancel(kept[0]);
    lab.settle();
    assert_eq!(look(&mut sleep), None);
    lab.advance(ms(10));
    assert_eq!(look(&mut sleep), Some(Ok(())));
}

#[test]
fn service_that_has_ended_returns_closed_on_every_thread() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let mut here = handle.sleep(FAR);
    assert_eq!(look(&mut here), None);
    let (woken, waker) = Alarm::new();
    let mut there = elsewhere(|| {
        let mut sleep = handle.sleep(FAR);
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        sleep
    });
    let in_the_lane = elsewhere(|| {
        let mut sleep = handle.sleep(FAR);
        assert_eq!(look(&mut sleep), None);
        sleep
    });
    drop(lab.end(ShutdownPolicy::Return));
    assert_eq!(woken.count(), 1);
    assert_eq!(look(&mut here), Some(Err(RefusedKind::Closed)));
    assert_eq!(elsewhere(|| poll(&mut there, &waker)), Poll::Ready(Err(RefusedKind::Closed)));
    let mut fresh = handle.sleep(ms(1));
    assert_eq!(look(&mut fresh), Some(Err(RefusedKind::Closed)));
    drop((here, there, in_the_lane, fresh));
    let after = elsewhere(|| look(&mut handle.sleep(FAR)));
    assert_eq!(after, Some(Err(RefusedKind::Closed)));
}

#[test]
fn requests_of_two_threads_for_one_sleep_may_arrive_in_any_order() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    let client = lab.client();
    // The lane of this client is received before those of the threads.
    let _other = client.on(SHARD).schedule(FAR, ()).unwrap();
    lab.settle();
    let alarms = [(); 3].map(|()| Alarm::new());
    let [first, second, third] = [0, 1, 2].map(|n: usize| alarms[n].1.clone());
    std::thread::scope(|scope| {
        let (hand_over, handed_over) = mpsc::channel::<Sleep>();
        let (is_known, may_send) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        // This thread's lane is the first, and its requests are the newer ones.
        let newer = scope.spawn(move || {
            let mut own = handle.sleep(FAR);
            assert_eq!(look(&mut own), None);
            is_known.send(()).unwrap();
            let mut sleep = handed_over.recv().unwrap();
            sleep.reset(ms(10));
            assert_eq!(poll(&mut sleep, &third), Poll::Pending);
            done.send(()).unwrap();
            sleep
        });
        may_send.recv().unwrap();
        scope.spawn(move || {
            let mut sleep = handle.sleep(FAR);
            assert_eq!(poll(&mut sleep, &first), Poll::Pending);
            sleep.reset(ms(20));
            assert_eq!(poll(&mut sleep, &second), Poll::Pending);
            hand_over.send(sleep).unwrap();
        });
        is_done.recv().unwrap();
        lab.settle();
        lab.advance(ms(10));
        let mut sleep = newer.join().unwrap();
        let woken = alarms.each_ref().map(|(alarm, _)| alarm.count());
        assert_eq!(woken, [0, 0, 1], "an older request replaces a newer one");
        assert_eq!(look(&mut sleep), Some(Ok(())));
    });
}

#[test]
fn threads_without_a_shard_are_given_the_shards_in_turn() {
    let service: TimerService = builder(4).runtime(Runtime::Thread).start().unwrap();
    let handle = service.handle();
    let pending = || {
        let stats = service.stats();
        stats.shards.iter().map(|shard| shard.counts.pending).collect::<Vec<_>>()
    };
    // Polls a sleep on a thread of its own until its timer has come. Each is due before the one
    // before, so that the shard is woken for it.
    let mut sleeps = Vec::new();
    let mut sleep_on = |handle: AnyHandle| {
        let count = sleeps.len() as u64;
        sleeps.push(elsewhere(|| {
            let mut sleep = handle.sleep(ms(1_000 * (1_000 - count)));
            wait_until("the timer is pending", || {
                assert_eq!(look(&mut sleep), None);
                pending().iter().sum::<u64>() == count + 1
            });
            sleep
        }));
    };
    for _ in 0..8 {
        sleep_on(handle.untyped());
    }
    assert_eq!(pending(), [2; 4]);
    sleep_on(handle.on(ShardId::new(3)).untyped());
    assert_eq!(pending(), [2, 2, 2, 3]);
    let mut nowhere = handle.on(ShardId::new(9)).sleep(FAR);
    assert_eq!(look(&mut nowhere), Some(Err(RefusedKind::NoSuchShard)));
    drop(sleeps);
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

#[test]
fn service_beside_a_runtime_has_few_shards_on_threads_that_are_not_pinned() {
    let service = TimerService::beside_runtime().start().unwrap();
    assert_eq!(service.runtime(), Some(Runtime::Thread.name()));
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!((1..=cpus.div_ceil(8)).contains(&service.shards().count()));
    let handle = service.handle();
    block_on(handle.sleep(ms(1))).unwrap();
    #[cfg(target_os = "linux")]
    {
        // The shard's thread may use the cpus that this thread may use.
        use rustix::thread::sched_getaffinity;
        let own = sched_getaffinity(None).unwrap();
        let client = corewheel::sim::Thread::of(&service);
        let (sender, seen) = mpsc::channel();
        let call = move |_: &_| sender.send(sched_getaffinity(None).unwrap()).unwrap();
        client.on(SHARD).schedule_fn(ms(0), call).unwrap();
        assert_eq!(seen.recv().unwrap(), own);
    }
    service.shutdown(ShutdownPolicy::Drop).unwrap();
}

#[test]
fn drop_of_a_sleep_in_a_thread_local_of_an_ending_thread_is_harmless() {
    struct Last(std::cell::RefCell<Option<Sleep>>);
    thread_local! {
        // Made before the table of services of its thread, so it is dropped after that.
        static LAST: Last = const { Last(std::cell::RefCell::new(None)) };
    }
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.service.handle().untyped();
    elsewhere(|| {
        LAST.with(|last| assert!(last.0.borrow().is_none()));
        let mut sleep = handle.sleep(FAR);
        assert_eq!(look(&mut sleep), None);
        LAST.with(|last| *last.0.borrow_mut() = Some(sleep));
    });
    lab.advance(ms(1_000));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled), (0, 1));
    check_law(&counts);
}
