//! Handles, and the futures that any thread may poll.

use corewheel::interval::Interval;
use corewheel::{Runtime, Timeout};
use rustix::thread::sched_getaffinity;

use super::*;

fn lab() -> (Lab<()>, AnyHandle) {
    let lab = Lab::new(builder(1));
    let handle = lab.handle().untyped();
    (lab, handle)
}

/// Runs code on a thread that drives no shard, and waits for it.
fn elsewhere<O: Send>(run: impl FnOnce() -> O + Send) -> O {
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Runs code here or on a thread that drives no shard.
fn at<O: Send>(here: bool, run: impl FnOnce() -> O + Send) -> O {
    if here { run() } else { elsewhere(run) }
}

/// A sleep that was polled and is pending.
fn armed(handle: AnyHandle, delay: Duration, waker: &Waker) -> Sleep {
    let mut sleep = handle.sleep(delay);
    assert_eq!(poll(&mut sleep, waker), Poll::Pending);
    sleep
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
    let service: TimerService = builder(1).runtime(Runtime::Thread).start().unwrap();
    let handle = service.handle();
    for delay in [ms(3), ms(10), ms(30), ms(60)] {
        let mut sleep = handle.sleep(delay);
        let ((first, a), (_second, b)) = (Alarm::new(), Alarm::new());
        let is_pending = |sleep: &mut Sleep, waker: &Waker| poll(sleep, waker).is_pending();
        // The middle poll is on another thread. A poll after the deadline needs no waker.
        let polled = is_pending(&mut sleep, &a)
            && elsewhere(|| is_pending(&mut sleep, &b))
            && is_pending(&mut sleep, &a);
        if polled {
            wait_until("the waker of the last poll is woken", || first.count() > 0);
        }
        assert_eq!(block_on(sleep), Ok(()));
    }
}

#[test]
fn sleep_wakes_its_task_at_its_last_deadline_and_not_before() {
    // Where it is polled, its delay in milliseconds, and that of a reset.
    for case in [
        (false, 10, None),
        (true, 10, Some(50)),
        (false, 10, Some(50)),
        (true, 10_000, Some(5)),
        (false, 10_000, Some(5)),
    ] {
        let (here, first, reset) = case;
        let due = reset.unwrap_or(first);
        let (mut lab, handle) = lab();
        let (woken, waker) = Alarm::new();
        let mut sleep = at(here, || {
            let mut sleep = armed(handle, ms(first), &waker);
            if let Some(delay) = reset {
                sleep.reset(ms(delay));
            }
            if due > first {
                assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
            }
            sleep
        });
        lab.settle();
        assert_eq!((lab.timers().len(), lab.counts().requests), (1, 0), "{case:?}");
        let steps = if due > first { vec![first, due - first - 1] } else { vec![due - 1] };
        for step in steps {
            lab.advance(ms(step));
            assert_eq!(woken.count(), 0, "{case:?}: it is woken early");
            if due > first {
                assert_eq!(elsewhere(|| poll(&mut sleep, &waker)), Poll::Pending);
            }
        }
        lab.advance(ms(1));
        assert_eq!(woken.count(), 1, "{case:?}");
        // It may be polled on another thread than before, and after the end.
        assert_eq!(elsewhere(|| poll(&mut sleep, &waker)), Poll::Ready(Ok(())));
        assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())));
        // After a reset it waits again.
        sleep.reset(ms(5));
        assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
        lab.advance(ms(5));
        assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Ok(())), "{case:?}");
        lab.settle();
    }
}

#[test]
fn poll_with_another_waker_replaces_the_waker_wherever_the_timer_is() {
    // How the timer was scheduled, whether it has arrived, and where the second poll is.
    for case in 0..8 {
        let [scheduled_here, arrives, polled_here] = [1, 2, 4].map(|bit| case & bit != 0);
        let (mut lab, handle) = lab();
        let ((old, first), (new, second)) = (Alarm::new(), Alarm::new());
        let mut sleep = at(scheduled_here, || armed(handle, ms(10), &first));
        if arrives {
            lab.settle();
        }
        at(polled_here, || assert_eq!(poll(&mut sleep, &second), Poll::Pending));
        lab.settle();
        lab.advance(ms(10));
        assert_eq!(old.count(), 0, "case {case}: the old waker is woken");
        assert!(new.count() > 0, "case {case}: the new waker is not woken");
        assert_eq!(poll(&mut sleep, &second), Poll::Ready(Ok(())));
        drop((first, second));
        lab.settle();
        let left = [old, new].map(|waker| Arc::strong_count(&waker));
        assert_eq!(left, [1, 1], "case {case}: a waker is kept");
    }
}

#[test]
fn timeout_of_a_ready_future_schedules_nothing() {
    let (mut lab, handle) = lab();
    let ready_at_once = || look(&mut Box::pin(handle.timeout(ms(10), ready(7))));
    assert_eq!(ready_at_once(), Some(Ok(7)));
    assert_eq!(elsewhere(ready_at_once), Some(Ok(7)));
    let counts = lab.settled();
    assert_eq!((counts.scheduled_local, counts.requests, counts.lanes), (0, 0, 0));
}

#[test]
fn interval_ticks_at_its_rate_on_every_thread() {
    let (mut lab, handle) = lab();
    assert_eq!(handle.interval(Duration::ZERO).unwrap_err().field(), "period");
    let mut interval = handle.interval(ms(10)).unwrap();
    let start = lab.clock.now();
    let mut ticks = Vec::new();
    for step in 0..60 {
        let mut tick = || {
            let due = look(&mut Box::pin(interval.tick()));
            due.map(|due| (step, due.unwrap().duration_since(start)))
        };
        ticks.extend(at(step % 2 == 0, &mut tick));
        lab.advance(ms(1));
    }
    let expected: Vec<_> = (0..6).map(|n| (n * 10, ms(n * 10))).collect();
    assert_eq!(ticks, expected);
}

#[test]
fn full_shard_refuses_a_sleep_and_never_completes_it() {
    let (mut lab, there) = Lab::<u32>::with_thread(builder(1).capacity(2));
    let kept: Vec<_> = (0..2).map(|n| lab.timers().schedule(FAR, n).unwrap()).collect();
    let mut sleep = there.handle.sleep(ms(10));
    assert_eq!(look(&mut sleep), Some(Err(RefusedKind::Full)));
    let refused = there.settle(&mut lab, there.handle.sleep(ms(10))).err();
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
fn requests_of_two_threads_for_one_sleep_may_arrive_in_any_order() {
    let (mut lab, handle) = lab();
    // The lane of the newer requests is the first. That of another client is received before.
    let client = lab.client();
    let _other = client.on(SHARD).schedule(FAR, ()).unwrap();
    lab.settle();
    let [newer, mut older] = [(); 2].map(|()| Elsewhere::new(handle));
    let _own = newer.sleep(FAR);
    let alarms = [(); 3].map(|()| Alarm::new());
    let [first, second, third] = [0, 1, 2].map(|n: usize| alarms[n].1.clone());
    let mut sleep = older.run(move || {
        let mut sleep = armed(handle, FAR, &first);
        sleep.reset(ms(20));
        assert_eq!(poll(&mut sleep, &second), Poll::Pending);
        sleep
    });
    older.end();
    let mut sleep = newer.run(move || {
        sleep.reset(ms(10));
        assert_eq!(poll(&mut sleep, &third), Poll::Pending);
        sleep
    });
    lab.settle();
    lab.advance(ms(10));
    let woken = alarms.each_ref().map(|(alarm, _)| alarm.count());
    assert_eq!(woken, [0, 0, 1], "an older request replaces a newer one");
    assert_eq!(look(&mut sleep), Some(Ok(())));
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
}

#[test]
fn service_beside_a_runtime_has_few_shards_on_threads_that_are_not_pinned() {
    let service = TimerService::beside_runtime().start().unwrap();
    assert_eq!(service.runtime(), Some(Runtime::Thread.name()));
    let cpus = thread::available_parallelism().unwrap().get();
    assert!((1..=cpus.div_ceil(8)).contains(&service.shards().count()));
    let handle = service.handle();
    block_on(handle.sleep(ms(1))).unwrap();
    // The shard's thread may use the cpus that this thread may use.
    let own = sched_getaffinity(None).unwrap();
    let client = Thread::of(&service);
    let (sender, seen) = mpsc::channel();
    let call = move |_: &_| sender.send(sched_getaffinity(None).unwrap()).unwrap();
    client.on(SHARD).schedule_fn(ms(0), call).unwrap();
    assert_eq!(seen.recv().unwrap(), own);
}
