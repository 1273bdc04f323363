//! Room that threads borrow from a shard, and that others need.

use std::sync::Barrier;

use corewheel::Runtime;
use tokio::runtime::Builder;

use super::*;

/// A shard of this capacity, and a thread that it lends room to.
fn lab(capacity: u32) -> (Lab<()>, Elsewhere) {
    Lab::with_thread(builder(1).capacity(capacity))
}

/// A service beside a runtime of so many workers, with room for a thousand timers.
fn beside(workers: usize) -> (TimerService, tokio::runtime::Runtime) {
    let service = TimerService::beside_runtime().shards(1).capacity(1_000).start().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(workers).build().unwrap();
    (service, runtime)
}

#[test]
fn thread_has_the_room_that_a_parked_thread_was_lent() {
    for capacity in [64, 1_000, 5_000, 20_000] {
        let service: TimerService =
            builder(1).capacity(capacity).runtime(Runtime::Thread).start().unwrap();
        let handle = service.handle().untyped();
        let [first, second] = [(); 2].map(|()| Elsewhere::new(handle));
        first.run(move || {
            let mut sleeps: Vec<_> = (0..capacity).map(|_| handle.sleep(FAR)).collect();
            assert!(sleeps.iter_mut().all(|sleep| look(sleep).is_none()));
        });
        for _ in 0..100 {
            let slept = second.run(move || block_on(handle.sleep(ms(1))));
            assert_eq!(slept, Ok(()), "a capacity of {capacity}");
        }
        assert_eq!(service.stats().shards[0].counts.refused, 0, "a capacity of {capacity}");
    }
}

#[test]
fn timers_of_all_threads_fill_the_capacity_whichever_thread_was_lent_it() {
    for (capacity, kept) in [(64, 0), (64, 10), (1_000, 3), (5_000, 0)] {
        let (mut lab, first) = lab(capacity);
        let second = Elsewhere::new(first.handle);
        let mut armed = first.fill(&mut lab);
        assert_eq!(armed.len(), capacity as usize);
        let ended = armed.split_off(kept);
        first.run(move || drop(ended));
        let others = second.fill(&mut lab);
        assert_eq!(others.len() + kept, capacity as usize, "a capacity of {capacity}");
        drop((armed, others));
        lab.advance(ms(2_000));
    }
}

#[test]
fn timers_that_have_ended_make_room_after_one_turn_wherever_they_ended() {
    for is_old in [false, true] {
        for ends_elsewhere in [false, true] {
            let (mut lab, first) = lab(100);
            let second = Elsewhere::new(first.handle);
            let armed = first.fill(&mut lab);
            if is_old {
                lab.advance(Duration::from_secs(15));
                assert_eq!(lab.counts().ended_young, 0);
            }
            if ends_elsewhere {
                drop(armed);
            } else {
                first.run(move || drop(armed));
            }
            for _ in 0..100 {
                let sleep = second.settle(&mut lab, second.handle.sleep(FAR)).map(drop);
                assert_eq!(sleep, Ok(()), "old: {is_old}, ended elsewhere: {ends_elsewhere}");
            }
            assert_eq!(lab.counts().refused, 1, "only the one past the capacity");
        }
    }
}

#[test]
fn tasks_of_four_workers_with_a_quarter_of_the_capacity_are_never_refused() {
    const TASKS: usize = 125;
    let (service, runtime) = beside(4);
    let (handle, most) = (service.handle().untyped(), AtomicU64::new(0));
    runtime.block_on(async {
        let run = move |number: usize| async move {
            let mut refused = 0;
            for round in 0..if cfg!(debug_assertions) { 40 } else { 400 } {
                let value = async {
                    for _ in 0..(number + round) % 7 {
                        tokio::task::yield_now().await;
                    }
                    if (number + round).is_multiple_of(5) {
                        handle.sleep(ms(1)).await
                    } else {
                        Ok(())
                    }
                };
                let ended = handle.timeout(Duration::from_secs(30), value).await;
                refused +=
                    u64::from(ended.is_err()) + u64::from(ended == Ok(Err(RefusedKind::Full)));
            }
            refused
        };
        let tasks: Vec<_> = (0..TASKS).map(|number| tokio::spawn(run(number))).collect();
        for task in tasks {
            most.fetch_add(task.await.unwrap(), Ordering::Relaxed);
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), 0, "timeouts and sleeps are refused");
    let report = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(report.shards[0].counts.refused, 0);
}

#[test]
fn workers_that_hold_a_quarter_of_the_capacity_in_turn_are_never_refused() {
    const WORKERS: usize = 8;
    let (service, runtime) = beside(WORKERS);
    let handle = service.handle().untyped();
    let (all, turn) = (Arc::new(Barrier::new(WORKERS)), Arc::new(Mutex::new(())));
    let hold = move || {
        // Each task has a worker of its own, as all of them wait here.
        all.wait();
        let _turn = turn.lock().unwrap();
        let mut sleeps: Vec<_> = (0..250).map(|_| handle.sleep(ms(20))).collect();
        // A sleep that is done is polled no more.
        block_on(poll_fn(move |cx| {
            sleeps.retain_mut(|sleep| {
                let slept = Pin::new(sleep).poll(cx);
                assert!(!matches!(slept, Poll::Ready(Err(_))), "{slept:?}");
                slept.is_pending()
            });
            if sleeps.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
    };
    let hold_on = |_| {
        let hold = hold.clone();
        runtime.spawn(async move { hold() })
    };
    let tasks: Vec<_> = (0..WORKERS).map(hold_on).collect();
    let ended: Vec<_> = tasks.into_iter().map(|task| runtime.block_on(task)).collect();
    assert!(ended.iter().all(Result::is_ok), "sleeps are refused: {ended:?}");
    let report = service.shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(report.shards[0].counts.refused, 0);
}

#[test]
fn shard_that_ends_wakes_the_sleeps_that_wait_for_room() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Return] {
        let (mut lab, there) = lab(16);
        let _armed = there.fill(&mut lab);
        let (alarm, waker) = Alarm::new();
        let mut sleep = there.poll(there.handle.sleep(FAR), &waker);
        let before = alarm.count();
        lab.end(policy);
        assert!(alarm.count() > before, "{policy:?} leaves a sleep asleep");
        assert_eq!(poll(&mut sleep, &waker), Poll::Ready(Err(RefusedKind::Closed)));
    }
}

#[test]
fn sleep_polled_on_a_thread_of_another_shard_takes_no_others_place() {
    let mut lab = Lab::<()>::new(builder(2).capacity(16));
    let handle = lab.handle().untyped();
    let threads = [(); 2].map(|()| Elsewhere::new(handle));
    let [_first, _second] =
        [0, 1].map(|shard| Elsewhere::new(handle.on(ShardId::new(shard))).fill(&mut lab));
    let alarms = [(); 2].map(|()| Alarm::new());
    let [moved, _other] = [0, 1].map(|at| threads[at].poll(handle.sleep(FAR), &alarms[at].1));
    let _moved = threads[1].poll(moved, &alarms[0].1);
    lab.settle();
    let counts = alarms.map(|(alarm, _)| alarm.count());
    assert_eq!(counts, [2, 1], "the sleep that asked twice, and the other one");
}

#[test]
fn sleep_that_waits_for_room_is_done_at_its_deadline_and_takes_a_later_one() {
    let (mut lab, there) = lab(16);
    let armed = there.fill(&mut lab);
    let [mut sleep, mut reset] =
        [5, 5].map(|delay| there.poll(there.handle.sleep(ms(delay)), Waker::noop()));
    reset.reset(ms(20));
    lab.clock.advance(ms(5));
    let (done, mut reset) = there.run(move || (look(&mut sleep), reset));
    assert_eq!(done, Some(Ok(())));
    // The other one has a timer once there is room.
    there.run(move || drop(armed));
    lab.settle();
    let (alarm, waker) = Alarm::new();
    assert_eq!(poll(&mut reset, &waker), Poll::Pending);
    lab.advance(ms(15));
    assert_eq!((alarm.count(), poll(&mut reset, &waker)), (1, Poll::Ready(Ok(()))));
}

#[test]
fn sleeps_of_a_shards_own_thread_have_the_room_of_all_that_ended_elsewhere() {
    let (mut lab, there) = lab(300);
    let armed = there.fill(&mut lab);
    assert_eq!(armed.len(), 300);
    drop(armed);
    let mut sleeps: Vec<_> = (0..300).map(|_| lab.timers().sleep(FAR)).collect();
    for (at, sleep) in sleeps.iter_mut().enumerate() {
        assert_eq!(look(sleep), None, "sleep {at} is refused");
    }
    assert_eq!(look(&mut lab.timers().sleep(FAR)), Some(Err(RefusedKind::Full)));
    lab.settle();
}
