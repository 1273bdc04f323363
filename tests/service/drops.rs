//! Several values that panic when they are dropped, in each place where more than one is dropped.
//! A second panic that meets the first aborts the process, and all tests with it.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::{
    Completion, ConnLimits, DelayQueue, Fired, Handler, KeyedTimers, Operation, PeriodicRun,
    Purgatory, Repeat, ScaledTimeouts, ShutdownPolicy, SinkError, SinkPolicy, StopOutcome, Timers,
    ToSink,
};

use crate::support::{FAR, Host, Lab, OTHER, Running, SHARD, builder, check_law, look, ms};

thread_local! {
    /// How many bombs of this thread were dropped.
    static DROPPED: Cell<u32> = const { Cell::new(0) };
}

/// Panics when it is dropped. Equal to another one with the same number.
#[derive(PartialEq, Eq, Debug)]
struct Bomb(u32);

impl Hash for Bomb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
        panic!("a value that panics when it is dropped");
    }
}

/// How many bombs this drops.
fn dropped_by(act: impl FnOnce()) -> u32 {
    let before = DROPPED.get();
    act();
    DROPPED.get() - before
}

const POLICIES: [ShutdownPolicy; 3] =
    [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];

fn lab<T: Send + 'static>() -> Lab<T> {
    Lab::with_handler(builder(2), |_| |_: Fired<T>, _: &Timers<T>| {})
}

/// Two typed timers, two local callbacks and two from elsewhere.
fn schedule_six(lab: &mut Lab<Bomb>) {
    let (timers, client) = (lab.timers().clone(), lab.client());
    for n in 0..2 {
        timers.schedule(FAR, Bomb(n)).unwrap();
        let bomb = Bomb(n);
        timers.schedule_fn(FAR, move |_| drop(bomb)).unwrap();
        let bomb = Bomb(n);
        client.schedule_fn_on(SHARD, FAR, move |_| drop(bomb)).unwrap();
    }
    lab.settle();
}

#[test]
fn shutdown_report_that_is_not_awaited_drops_its_tasks_one_at_a_time() {
    for policy in POLICIES {
        let mut lab = lab();
        schedule_six(&mut lab);
        drop(lab.service.begin_shutdown(policy).unwrap());
        let dropped = dropped_by(|| lab.settle_closed());
        assert_eq!(dropped, 6, "{policy:?}");
        check_law(&lab.counts());
    }
}

#[test]
fn shutdown_report_that_was_sent_and_not_read_drops_its_tasks_one_at_a_time() {
    let mut lab = lab();
    schedule_six(&mut lab);
    let unread = lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap();
    // What cannot travel is dropped on its core.
    assert_eq!(dropped_by(|| lab.settle_closed()), 2);
    assert_eq!(dropped_by(|| drop(unread)), 4);
    // The report of one shard was read, that of the other is awaited.
    let mut lab = self::lab();
    schedule_six(&mut lab);
    let mut reports = Box::pin(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    while lab.shards[0].turn() != corewheel::Turn::Closed {}
    assert!(look(&mut reports).is_none());
    assert_eq!(dropped_by(|| drop(reports)), 4);
}

#[test]
fn shard_that_dies_drops_its_timers_one_at_a_time() {
    let mut lab = lab();
    schedule_six(&mut lab);
    let dropped = dropped_by(|| drop(lab.shards.remove(0)));
    assert_eq!(dropped, 6);
    assert_eq!(lab.counts().pending, 0);
    check_law(&lab.counts());
}

#[test]
fn jobs_of_a_shard_that_is_closed_before_it_runs_are_dropped_one_at_a_time() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let (sender, blocks) = std::sync::mpsc::channel();
        let (go, held) = std::sync::mpsc::channel::<()>();
        let call = move |_: &Timers<u8>| {
            sender.send(()).unwrap();
            let _gone_or_told = held.recv();
        };
        running.client().schedule_fn_on(SHARD, ms(1), call).unwrap();
        blocks.recv().unwrap();
        for n in 0..3 {
            let bomb = Bomb(n);
            let start = move |_| {
                drop(bomb);
                async {}
            };
            drop(running.service.spawn_on(SHARD, start).unwrap());
        }
        let report = running.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
        drop(go);
        assert!(crate::support::block_on(report).dead.is_empty(), "{host:?}");
        running.stop();
    }
}

#[test]
fn requests_in_a_lane_are_dropped_one_at_a_time_when_the_shard_closes() {
    let mut lab = lab();
    let client = lab.client();
    for n in 0..4 {
        let timer = client.schedule_on(SHARD, FAR, Bomb(n)).unwrap();
        if n % 2 == 0 {
            client.cancel_detached(timer);
        }
    }
    drop(client);
    drop(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    assert_eq!(dropped_by(|| lab.settle_closed()), 4);
    check_law(&lab.counts());
}

#[test]
fn batch_that_a_closed_shard_refused_drops_its_tasks_one_at_a_time() {
    let mut lab = lab();
    let mut client = lab.client();
    client.cancel_detached(client.schedule_on(SHARD, FAR, Bomb(0)).unwrap());
    lab.settle();
    let mut batch = client.batch(SHARD);
    for n in 0..3 {
        batch.schedule(FAR, Bomb(n)).unwrap();
    }
    lab.end(ShutdownPolicy::Drop);
    // The refused tasks are not taken out of the batch.
    assert_eq!(dropped_by(|| drop(batch)), 3);
}

#[test]
fn answers_to_many_cancels_that_are_not_read_drop_their_tasks_one_at_a_time() {
    let mut lab = lab();
    let client = lab.client();
    let schedule = |lab: &mut Lab<Bomb>| {
        let on = |shard| client.schedule_on(shard, FAR, Bomb(0)).unwrap();
        let timers = [on(SHARD), on(OTHER), on(SHARD), on(OTHER)];
        lab.settle();
        timers
    };
    // Answered and not awaited.
    let timers = schedule(&mut lab);
    let answers = lab.client().cancel_many(&timers);
    lab.settle();
    assert_eq!(dropped_by(|| drop(answers)), 4);
    // Answered in part, and awaited for that long.
    let timers = schedule(&mut lab);
    let mut answers = lab.client().cancel_many(&timers).into_future();
    let _next = lab.shards[1].turn();
    assert!(look(&mut answers).is_none());
    assert_eq!(dropped_by(|| drop(answers)), 2);
    assert_eq!(dropped_by(|| lab.settle()), 2);
    // Applied in part when the shard dies.
    let timers = schedule(&mut lab);
    let answers = lab.client().cancel_many(&timers);
    let dropped = dropped_by(|| {
        drop(answers);
        drop(lab.shards.remove(0));
        drop(lab.shards.remove(0));
    });
    assert_eq!(dropped, 4);
}

#[test]
fn delay_queue_drops_its_values_one_at_a_time() {
    let lab = lab::<()>();
    let queue = DelayQueue::new(lab.timers());
    let fill = || (0..3).for_each(|n| assert!(queue.insert(Bomb(n), ms(1)).is_ok()));
    fill();
    assert_eq!(dropped_by(|| queue.clear()), 3);
    assert!(queue.is_empty());
    fill();
    assert_eq!(dropped_by(|| drop(queue)), 3);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn keyed_timers_drop_keys_values_groups_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let bomb = Bomb(0);
    let keyed = KeyedTimers::new(lab.timers(), move |_, _: &KeyedTimers<Bomb, Bomb, Bomb, ()>| {
        let _bomb = &bomb;
    });
    let fill = || {
        for n in 0..3 {
            assert!(keyed.schedule_in(Bomb(n), Bomb(n), FAR, Bomb(n)).is_ok());
        }
    };
    fill();
    // The second key is dropped, and so is the name of the group, which is there already.
    let again = || match keyed.schedule_in(Bomb(0), Bomb(0), FAR, Bomb(7)) {
        Ok(corewheel::Inserted::Replaced(old)) => std::mem::forget(old),
        _ => panic!("it was there"),
    };
    assert_eq!(dropped_by(again), 2);
    assert_eq!(dropped_by(|| keyed.clear()), 9);
    assert!(keyed.is_empty() && lab.timers().is_empty());
    fill();
    assert_eq!(dropped_by(|| drop(keyed)), 10);
    assert_eq!(lab.timers().len(), 0);
}

/// An operation that waits, and panics when it is dropped.
struct Waits(#[allow(dead_code, reason = "it is dropped")] Bomb);

impl Operation for Waits {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn completed(self) {}

    fn expired(self) {}
}

#[test]
fn purgatory_drops_keys_and_operations_one_at_a_time() {
    let mut lab = lab::<()>();
    let purgatory: Purgatory<Bomb, Waits, ()> = Purgatory::new(lab.timers());
    let watch = |delay| {
        let keys = [Bomb(1), Bomb(2), Bomb(3)];
        assert!(purgatory.try_complete_else_watch(Waits(Bomb(0)), delay, keys).is_ok());
    };
    watch(ms(1));
    // The lists are there already.
    assert_eq!(dropped_by(|| watch(ms(1))), 3);
    // Three keys and two operations.
    assert_eq!(dropped_by(|| lab.advance(ms(2))), 5);
    watch(FAR);
    watch(FAR);
    assert_eq!(dropped_by(|| purgatory.clear()), 5);
    let refused =
        Purgatory::builder().watches_max(2).build::<Bomb, Waits, ()>(lab.timers()).unwrap();
    let keys = [Bomb(1), Bomb(2), Bomb(3)];
    let back = dropped_by(|| {
        let refused = refused.try_complete_else_watch(Waits(Bomb(0)), FAR, keys);
        std::mem::forget(refused);
    });
    assert_eq!(back, 3);
    watch(FAR);
    watch(FAR);
    assert_eq!(dropped_by(|| drop(purgatory)), 5);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn scaled_timeouts_drop_their_values_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let bomb = Bomb(0);
    let timeouts = ScaledTimeouts::new(lab.timers(), ms(1), FAR, move |_, _: &_| {
        let _bomb = &bomb;
    });
    let timeouts = timeouts.unwrap();
    let fill = || (0..3).for_each(|n| assert!(timeouts.start(Bomb(n)).is_ok()));
    fill();
    assert_eq!(dropped_by(|| timeouts.clear()), 3);
    fill();
    assert_eq!(dropped_by(|| drop(timeouts)), 4);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn periodic_callback_and_its_plan_are_dropped_one_at_a_time() {
    let mut lab = lab::<()>();
    let timers = lab.timers().clone();
    let begin = || {
        let (plan, call) = (Bomb(0), Bomb(1));
        let next = move |due: Instant| {
            let _plan = &plan;
            Some(due + FAR)
        };
        let run = move |_: &mut PeriodicRun<'_, ()>| {
            let _call = &call;
        };
        timers.repeat_by_plan(timers.now() + FAR, next, run).unwrap()
    };
    let periodic = begin();
    let stop = || assert_eq!(periodic.stop(), StopOutcome::Stopped);
    assert_eq!(dropped_by(stop), 2);
    let periodic = begin();
    drop(periodic);
    assert_eq!(dropped_by(|| drop(lab.end(ShutdownPolicy::Drop))), 2);
    let refused = dropped_by(|| {
        let (plan, call) = (Bomb(0), Bomb(1));
        let next = move |due: Instant| {
            let _plan = &plan;
            Some(due + FAR)
        };
        let run = move |_: &mut PeriodicRun<'_, ()>| {
            let _call = &call;
        };
        std::mem::forget(timers.repeat_by_plan(timers.now() + FAR, next, run));
    });
    assert_eq!(refused, 1, "the callback comes back, the plan does not");
}

#[test]
fn periodic_callbacks_from_elsewhere_are_dropped_one_at_a_time_at_the_end() {
    let mut lab = lab::<()>();
    let client = lab.client();
    for n in 0..2 {
        let bomb = Bomb(n);
        let run = move |_: &mut PeriodicRun<'_, ()>| {
            let _bomb = &bomb;
        };
        let every = Repeat::at_fixed_rate(FAR).unwrap();
        client.repeat_on(SHARD, every, run).unwrap();
    }
    assert_eq!(dropped_by(|| drop(lab.end(ShutdownPolicy::Drop))), 2);
}

#[test]
fn scheduled_task_and_the_waker_of_its_result_panic_one_at_a_time() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let lab = lab::<()>();
    let bomb = Bomb(0);
    let mut task = lab.timers().schedule_task(FAR, move |_| drop(bomb)).unwrap();
    let waker = std::task::Waker::from(Arc::new(Panics));
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut task).poll(&mut cx).is_pending());
    let timer = task.timer();
    let cancelled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(lab.timers().cancel(timer));
    }));
    assert!(cancelled.is_err(), "the caller drops the task, which panics");
    assert!(task.is_finished());
}

#[test]
fn connections_drop_their_callbacks_one_at_a_time() {
    let lab = lab::<()>();
    let limits = ConnLimits { read_idle: FAR, ..ConnLimits::default() };
    let conn = |n| {
        let conn = lab.timers().connection(limits).unwrap();
        let bomb = Bomb(n);
        conn.on_event(move |_, _| {
            let _bomb = &bomb;
        });
        conn
    };
    let conns = vec![conn(0), conn(1), conn(2)];
    assert_eq!(dropped_by(|| conns[0].on_event(|_, _| {})), 1);
    assert_eq!(dropped_by(|| drop(conns)), 2);
    assert_eq!(lab.timers().len(), 0);
}

/// A handler that keeps two values, and panics when it is dropped.
struct Keeps(Arc<AtomicUsize>, #[allow(dead_code, reason = "it is dropped")] Bomb);

impl Handler<Bomb> for Keeps {
    fn expired(&mut self, fired: Fired<Bomb>, _: &Timers<Bomb>) {
        std::mem::forget(fired.task);
    }
}

impl Drop for Keeps {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn handler_that_panics_when_dropped_ends_its_shard_like_any_other() {
    // An own loop is the test's to drop, with its handler.
    for host in Host::all().filter(|host| *host != Host::LoopAttached) {
        for policy in POLICIES {
            let dropped = Arc::new(AtomicUsize::new(0));
            let noted = Arc::clone(&dropped);
            let running =
                Running::start(host, builder(2), move |_| Keeps(Arc::clone(&noted), Bomb(0)));
            running.client().schedule_on(SHARD, FAR, Bomb(1)).unwrap();
            let report = running.end(policy);
            assert!(report.dead.is_empty(), "{host:?}");
            report.into_returned().for_each(std::mem::forget);
            assert_eq!(dropped.load(Ordering::SeqCst), 2, "{host:?}, {policy:?}");
        }
    }
}

#[test]
fn sink_and_its_policy_are_dropped_one_at_a_time() {
    let service = builder(1).start_attached::<Bomb>().unwrap();
    let (sink, policy) = (Bomb(0), Bomb(1));
    let sink = move |bomb: Bomb| {
        let _sink = &sink;
        Err(SinkError::Full(bomb))
    };
    let policy = SinkPolicy::call(move |bomb: Bomb, _: &Timers<Bomb>| {
        let _policy = &policy;
        std::mem::forget(bomb);
    });
    let dropped = dropped_by(|| {
        let sink = std::panic::AssertUnwindSafe(ToSink::new(sink, policy));
        let gone = std::panic::catch_unwind(move || drop(sink));
        assert!(gone.is_err(), "one panic reaches the caller");
    });
    assert_eq!(dropped, 2);
    drop(service.shutdown(ShutdownPolicy::Drop).unwrap());
}

#[test]
fn task_queue_drops_its_handler_and_what_waits_one_at_a_time() {
    use corewheel::{OnTaskQueue, Runtime};
    for host in Host::own().filter(|host| *host == Host::Own(Runtime::Glommio)) {
        let dropped = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&dropped);
        let running = Running::start(host, builder(1), move |_| {
            let queue = || glommio::executor().current_task_queue();
            let bomb = Bomb(0);
            let policy = SinkPolicy::call(move |_, _: &Timers<Bomb>| {
                let _bomb = &bomb;
            });
            OnTaskQueue::new(queue, 10, policy, Keeps(Arc::clone(&noted), Bomb(0))).unwrap()
        });
        for n in 0..5 {
            running.client().schedule_on(SHARD, Duration::ZERO, Bomb(n)).unwrap();
        }
        let report = running.end(ShutdownPolicy::Fire);
        assert!(report.dead.is_empty());
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "the handler is not kept by the executor");
    }
}

#[test]
fn attachments_that_are_never_used_drop_what_was_asked_of_them_one_at_a_time() {
    let service = builder(1).start_attached::<Bomb>().unwrap();
    let client = service.client();
    let answers = [client.drain_shard(SHARD, &[OTHER]), client.drain_shard(SHARD, &[OTHER])];
    drop(service);
    for answer in answers {
        let waited = thread::spawn(move || answer.wait().is_err()).join();
        assert!(waited.unwrap());
    }
}

#[test]
fn operation_that_is_completed_beside_its_key_panics_alone() {
    let lab = lab::<()>();
    let purgatory = Purgatory::new(lab.timers());
    let ready = Rc::new(Cell::new(false));
    let is_ready = Rc::clone(&ready);
    let bomb = Bomb(0);
    let operation = corewheel::OperationFn::new(
        move || is_ready.get(),
        move |how| {
            assert_eq!(how, Completion::Event);
            drop(bomb);
        },
    );
    assert!(purgatory.try_complete_else_watch(operation, FAR, [Bomb(1), Bomb(2)]).is_ok());
    ready.set(true);
    let key = Bomb(1);
    assert_eq!(dropped_by(|| assert_eq!(purgatory.check_and_complete(&key), 1)), 3);
    std::mem::forget(key);
}
