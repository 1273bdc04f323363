//! Tasks that run later and whose result is awaited: what comes of them, whatever becomes of them.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use corewheel::{
    CancelOutcome, Fired, ScheduleError, ShutdownPolicy, Task, TaskError, TimerHandle,
    TimerService, Timers,
};

use crate::support::{
    Alarm, FAR, Guard, Host, Lab, Running, SHARD, block_on, builder, check_law, look, ms,
    wait_until,
};

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

#[test]
fn its_result_comes_when_it_has_run_and_not_before() {
    let mut lab = lab();
    let (alarm, waker) = Alarm::new();
    let mut context = Context::from_waker(&waker);
    let mut answer = lab.timers().schedule_task(ms(5), |timers| timers.len() + 40).unwrap();
    let at = lab.clock.now() + ms(7);
    let mut second = lab.timers().schedule_task_at(at, |_| Box::new(1)).unwrap();
    let mut poll = |answer: &mut _| Future::poll(std::pin::Pin::new(answer), &mut context);
    assert_eq!(poll(&mut answer), Poll::Pending);
    assert_eq!(poll(&mut answer), Poll::Pending);
    lab.advance(ms(4));
    assert_eq!((alarm.count(), answer.is_finished(), answer.try_take()), (0, false, None));
    lab.advance(ms(1));
    assert_eq!((alarm.count(), answer.is_finished()), (1, true));
    assert_eq!(poll(&mut answer), Poll::Ready(Ok(41)));
    assert_eq!((answer.is_finished(), answer.try_take()), (true, None));
    assert!(matches!(answer.cancel(), CancelOutcome::AlreadyFired));
    lab.advance(ms(2));
    assert_eq!(second.try_take(), Some(Ok(Box::new(1))));
    check_law(&lab.counts());
}

#[test]
fn one_that_is_cancelled_says_that_it_has_not_run() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let mut answer = lab.timers().schedule_task(ms(5), move |_| drop(guard)).unwrap();
    let (alarm, waker) = Alarm::new();
    let mut context = Context::from_waker(&waker);
    assert!(Future::poll(std::pin::Pin::new(&mut answer), &mut context).is_pending());
    lab.advance(ms(2));
    let cancelled = answer.cancel();
    assert_eq!(cancelled, CancelOutcome::Cancelled { remaining: ms(3), task: () });
    assert_eq!((dropped.load(Ordering::SeqCst), alarm.count()), (1, 1));
    assert_eq!(answer.cancel(), CancelOutcome::Stale);
    assert_eq!(look(&mut answer), Some(Err(TaskError::Cancelled)));
    assert_eq!(answer.cancel(), CancelOutcome::Stale);
    lab.advance(FAR);
    assert_eq!((lab.counts().fired, lab.counts().pending), (0, 0));
}

#[test]
fn by_its_timer_others_cancel_it_and_may_run_it_all_the_same() {
    let mut lab = lab();
    let mut answer = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    let task = lab.timers().cancel(answer.timer()).task();
    let Some(Task::Callback(call)) = task else { panic!("it is a callback") };
    assert_eq!(answer.try_take(), None, "it is still there");
    call.run(lab.timers());
    assert_eq!(answer.try_take(), Some(Ok(7)));
    let mut answer = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    drop(lab.timers().cancel(answer.timer()));
    assert_eq!(answer.try_take(), Some(Err(TaskError::Cancelled)));
    // And by a client.
    let mut answer = lab.timers().schedule_task(FAR, |_| 7).unwrap();
    lab.client().cancel_detached(answer.timer());
    lab.settle();
    assert_eq!(look(&mut answer), Some(Err(TaskError::Cancelled)));
}

#[test]
fn one_cannot_be_cancelled_while_it_runs() {
    let mut lab = lab();
    let own: Rc<Cell<Option<corewheel::Scheduled<u8, u8>>>> = Rc::default();
    let known = Rc::clone(&own);
    let task = move |_: &Timers<u8>| {
        let mut this = known.take().unwrap();
        assert_eq!(this.cancel(), CancelOutcome::AlreadyFired);
        known.set(Some(this));
        3
    };
    own.set(Some(lab.timers().schedule_task(ms(1), task).unwrap()));
    lab.advance(ms(1));
    assert_eq!(own.take().unwrap().try_take(), Some(Ok(3)));
}

#[test]
fn one_that_panics_says_so_and_is_counted_once() {
    let mut lab = lab();
    let mut answer = lab.timers().schedule_task::<()>(ms(1), |_| panic!("no result")).unwrap();
    lab.advance(ms(1));
    assert_eq!(look(&mut answer), Some(Err(TaskError::Panicked)));
    assert_eq!((lab.counts().panicked, lab.counts().fired), (1, 1));
    assert_eq!(answer.cancel(), CancelOutcome::AlreadyFired);
}

#[test]
fn one_that_nobody_waits_for_runs_and_its_result_is_dropped() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    for _ in 0..2 {
        let guard = guard.clone();
        let answer = lab.timers().schedule_task(ms(1), move |_| guard).unwrap();
        if lab.timers().len() == 1 {
            answer.detach();
        } else {
            drop(answer);
        }
    }
    drop(guard);
    lab.advance(ms(1));
    assert_eq!((lab.counts().fired, dropped.load(Ordering::SeqCst)), (2, 3));
}

#[test]
fn one_whose_shard_ends_is_told_so_or_runs() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let client = lab.client();
        let mut local = lab.timers().schedule_task(FAR, |_| 1).unwrap();
        let remote = client.schedule_task_on(SHARD, FAR, |_| 2).unwrap();
        lab.settle();
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        let expected = |n| if fires { Ok(n) } else { Err(TaskError::Closed) };
        assert_eq!(look(&mut local), Some(expected(1)), "{policy:?}");
        // What was handed back could still be run.
        drop(report);
        assert_eq!(look(&mut remote.into_future()), Some(expected(2)), "{policy:?}");
        let refused = client.schedule_task_on(SHARD, FAR, |_| 2);
        assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    }
}

#[test]
fn a_refused_one_comes_back_and_can_be_run() {
    let lab = Lab::<u8>::new(builder(1).capacity(1));
    lab.timers().schedule(FAR, 0).unwrap();
    let ran = Rc::new(Cell::new(false));
    let noted = Rc::clone(&ran);
    match lab.timers().schedule_task(ms(1), move |_| noted.set(true)) {
        Err(ScheduleError::Full(call)) => call(lab.timers()),
        other => panic!("{other:?}"),
    }
    assert!(ran.get());
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn one_from_elsewhere_answers_on_every_host() {
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let client = running.client();
        let at = client.now() + ms(2);
        let early = move |timers: &Timers<u8>| timers.now() < at;
        let answer = client.schedule_task_at_on(SHARD, at, early).unwrap();
        assert_eq!(answer.wait(), Ok(false), "{host:?}");
        let answer = client.schedule_task_on(SHARD, ms(1), Timers::shard_id).unwrap();
        assert_eq!(block_on(answer), Ok(SHARD), "{host:?}");
        let answer = client.schedule_task_on::<()>(SHARD, ms(1), |_| panic!("no result")).unwrap();
        assert_eq!(answer.wait(), Err(TaskError::Panicked), "{host:?}");
        wait_until("it is counted", || running.service.stats().shards[0].counts.panicked == 1);
        let answer = client.schedule_task_on(SHARD, FAR, |_| 1).unwrap();
        assert!(client.cancel(answer.timer()).wait().unwrap().won(), "{host:?}");
        assert_eq!(answer.wait(), Err(TaskError::Cancelled), "{host:?}");
        let waiting = client.schedule_task_on(SHARD, FAR, |_| 1).unwrap();
        let waits = std::thread::spawn(move || waiting.wait());
        let _ = running.end(ShutdownPolicy::Drop);
        assert_eq!(waits.join().unwrap(), Err(TaskError::Closed), "{host:?}");
    }
}

#[test]
fn one_is_awaited_on_every_executor() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let awaits = running.service.spawn_on(SHARD, |timers| async move {
            let at = timers.now() + ms(3);
            let task = move |timers: &Timers<u8>| timers.now() >= at;
            timers.schedule_task(ms(3), task).unwrap().await
        });
        assert_eq!(awaits.unwrap().wait(), Ok(Ok(true)), "{host:?}");
        let blocks = running.service.spawn_on(SHARD, |timers| async move {
            timers.client().schedule_task_on(SHARD, Duration::ZERO, |_| ()).unwrap().wait()
        });
        assert_eq!(blocks.unwrap().wait(), Ok(Err(TaskError::OnShard)), "{host:?}");
        let _ = running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn a_result_that_is_to_come_can_go_to_another_thread() {
    fn check<S: Send>(_: &S) {}
    let service: TimerService<u8> = TimerService::builder().shards(1).start_attached().unwrap();
    let answer = service.client().schedule_task_on(SHARD, FAR, |_| 1);
    if let Ok(answer) = answer {
        check(&answer);
        check(&answer.into_future());
    }
}

#[test]
fn a_waker_that_cancels_the_task_when_it_is_dropped_loses_no_wake_up() {
    thread_local! {
        static TIMERS: RefCell<Option<(Timers<u8>, TimerHandle)>> = const { RefCell::new(None) };
    }
    struct Cancels;
    impl Wake for Cancels {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Cancels {
        fn drop(&mut self) {
            if let Some((timers, timer)) = TIMERS.take() {
                assert!(timers.cancel(timer).won());
            }
        }
    }
    let lab = lab();
    let mut answer = lab.timers().schedule_task(FAR, |_| 1).unwrap();
    let cancels = Waker::from(Arc::new(Cancels));
    let mut context = Context::from_waker(&cancels);
    assert!(Future::poll(std::pin::Pin::new(&mut answer), &mut context).is_pending());
    TIMERS.set(Some((lab.timers().clone(), answer.timer())));
    // The last of it is in the task, and goes when another takes its place.
    drop(cancels);
    let (alarm, waker) = Alarm::new();
    let mut context = Context::from_waker(&waker);
    let polled = Future::poll(std::pin::Pin::new(&mut answer), &mut context);
    assert!(TIMERS.with_borrow(Option::is_none), "it is cancelled");
    match polled {
        Poll::Ready(result) => assert_eq!(result, Err(TaskError::Cancelled)),
        Poll::Pending => assert_eq!(alarm.count(), 1, "it waits for ever"),
    }
}

#[test]
fn one_that_was_cancelled_is_told_so_even_when_its_shard_has_ended_since() {
    let mut lab = lab();
    let mut answer = lab.timers().schedule_task(FAR, |_| 1).unwrap();
    lab.client().cancel_detached(answer.timer());
    lab.settle();
    let _ = lab.end(ShutdownPolicy::Drop);
    assert_eq!(answer.cancel(), CancelOutcome::Stale);
    assert_eq!(answer.try_take(), Some(Err(TaskError::Cancelled)));
}

#[test]
fn one_whose_shard_dies_is_told_so() {
    let mut lab = lab();
    let client = lab.client();
    let mut local = lab.timers().schedule_task(FAR, |_| 1).unwrap();
    let remote = client.schedule_task_on(SHARD, FAR, |_| 2).unwrap();
    let unseen = client.schedule_task_on(SHARD, FAR, |_| 3).unwrap();
    let (alarm, waker) = Alarm::new();
    let mut context = Context::from_waker(&waker);
    assert!(Future::poll(std::pin::Pin::new(&mut local), &mut context).is_pending());
    drop(lab.shards.remove(0));
    assert_eq!((alarm.count(), look(&mut local)), (1, Some(Err(TaskError::Closed))));
    assert_eq!(look(&mut remote.into_future()), Some(Err(TaskError::Closed)));
    assert_eq!(look(&mut unseen.into_future()), Some(Err(TaskError::Closed)));
}

#[test]
fn a_task_that_panics_when_it_is_dropped_still_says_what_became_of_it() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("it is dropped");
        }
    }
    let mut lab = lab();
    let begin = |lab: &Lab<u8>| {
        let bomb = Bomb;
        lab.timers().schedule_task(FAR, move |_| drop(bomb)).unwrap()
    };
    let (mut elsewhere, mut here, mut left) = (begin(&lab), begin(&lab), begin(&lab));
    lab.client().cancel_detached(elsewhere.timer());
    lab.settle();
    assert_eq!(elsewhere.try_take(), Some(Err(TaskError::Cancelled)));
    let cancels = AssertUnwindSafe(|| here.cancel());
    assert!(catch_unwind(cancels).is_err(), "it is dropped by who cancels");
    assert_eq!(here.try_take(), Some(Err(TaskError::Cancelled)));
    // A result whose drop panics, and nobody to take it.
    lab.timers().schedule_task(ms(1), |_| Bomb).unwrap().detach();
    lab.advance(ms(1));
    assert_eq!(lab.counts().panicked, 2);
    let _ = lab.end(ShutdownPolicy::Drop);
    assert_eq!(left.try_take(), Some(Err(TaskError::Closed)));
}
