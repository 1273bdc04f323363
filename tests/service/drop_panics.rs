//! Values that panic when they are dropped, at each point of the code that drops more than one. A
//! second panic during the unwinding of the first aborts the process, and all tests with it.

use std::hash::{Hash, Hasher};

use corewheel_kit::purgatory::Purgatory;

use super::*;
use corewheel_test_support::operation_fn::{Completion, OperationFn};

thread_local! {
    /// How many such values this thread has dropped.
    static DROPPED: Cell<u32> = const { Cell::new(0) };
}

/// Panics when it is dropped. Values with the same number are equal.
#[derive(PartialEq, Eq, Debug)]
struct PanicsOnDrop(u32);

impl Hash for PanicsOnDrop {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
        panic!("a value that panics when it is dropped");
    }
}

/// How many such values `act` drops.
fn dropped_by(act: impl FnOnce()) -> u32 {
    let before = DROPPED.get();
    act();
    DROPPED.get() - before
}

/// How many such values the drop of `value` drops.
fn dropped_with<V>(value: V) -> u32 {
    dropped_by(|| drop(value))
}

fn lab<T: Send + 'static>() -> Lab<T> {
    Lab::with_handler(builder(2), |_| |_: Fired<T>, _: &Timers<T>| {})
}

/// Schedules two typed timers, two local callbacks, and two callbacks by a client.
fn schedule_six(lab: &mut Lab<PanicsOnDrop>) {
    let (timers, client) = (lab.timers().clone(), lab.handle());
    for n in 0..2 {
        timers.schedule(FAR, PanicsOnDrop(n)).unwrap();
        let value = PanicsOnDrop(n);
        timers.schedule_fn(FAR, move |_| drop(value)).unwrap();
        let value = PanicsOnDrop(n);
        client.on(SHARD).schedule_fn(FAR, move |_| drop(value)).unwrap();
    }
    lab.settle();
}

#[test]
fn shutdown_report_that_was_sent_and_not_read_drops_its_payloads_one_at_a_time() {
    let mut lab = lab();
    schedule_six(&mut lab);
    let unread = lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap();
    // Local callbacks cannot be sent, so the shard drops them.
    assert_eq!(dropped_by(|| lab.settle_closed()), 2);
    assert_eq!(dropped_with(unread), 4);
    // The future has the report of one shard and waits for the report of the other.
    let mut lab = self::lab();
    schedule_six(&mut lab);
    let mut reports = Box::pin(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    while lab.turn() != Turn::Closed {}
    assert!(look(&mut reports).is_none());
    assert_eq!(dropped_with(reports), 4);
}

#[test]
fn shard_that_dies_drops_its_timers_one_at_a_time() {
    let mut lab = lab();
    schedule_six(&mut lab);
    let dropped = dropped_with(lab.shards.remove(0));
    let counts = lab.counts();
    assert_eq!((dropped, counts.dropped, counts.returned, counts.pending), (6, 6, 0, 0));
}

#[test]
fn futures_that_a_closed_shard_has_not_started_are_dropped_one_at_a_time() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let held = hold(&running);
        for n in 0..3 {
            let value = PanicsOnDrop(n);
            let start = move |_| {
                drop(value);
                async {}
            };
            drop(running.service.spawn_on(SHARD, start).unwrap());
        }
        let report = running.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
        drop(held);
        assert!(block_on(report).dead.is_empty(), "{host:?}");
    }
}

#[test]
fn replies_to_many_cancels_that_are_not_read_drop_their_payloads_one_at_a_time() {
    let mut lab = lab();
    let client = lab.handle();
    let schedule = |lab: &mut Lab<PanicsOnDrop>| {
        let on = |shard| client.on(shard).schedule(FAR, PanicsOnDrop(0)).unwrap();
        let timers = [on(SHARD), on(OTHER), on(SHARD), on(OTHER)];
        lab.settle();
        timers
    };
    // The replies have come, and the caller does not wait for them.
    let timers = schedule(&mut lab);
    let replies = lab.handle().cancel_many(&timers);
    lab.settle();
    assert_eq!(dropped_with(replies), 4);
    // A part of the replies has come while the caller waited.
    let timers = schedule(&mut lab);
    let mut replies = lab.handle().cancel_many(&timers).into_future();
    let _next = lab.shards[1].turn();
    assert!(look(&mut replies).is_none());
    assert_eq!(dropped_with(replies), 2);
    assert_eq!(dropped_by(|| lab.settle()), 2);
    // The shard dies when it has applied a part of the cancels.
    let timers = schedule(&mut lab);
    let replies = lab.handle().cancel_many(&timers);
    let dropped = dropped_by(|| {
        drop(replies);
        drop(lab.shards.remove(0));
        drop(lab.shards.remove(0));
    });
    assert_eq!(dropped, 4);
}

#[test]
fn keyed_timers_drop_keys_values_groups_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let value = PanicsOnDrop(0);
    let keyed = KeyedTimers::in_groups(lab.timers(), move |_, _: &_| {
        let _value = &value;
    });
    let insert = |group, key| {
        keyed.insert_in(PanicsOnDrop(group), PanicsOnDrop(key), PanicsOnDrop(key), FAR)
    };
    (0..3).for_each(|n| assert!(insert(n, n).is_ok()));
    // The second copy of the group's name is dropped; key and value are returned.
    let again = || match insert(0, 0) {
        Ok(Some(before)) => std::mem::forget(before),
        _ => panic!("the key is not new"),
    };
    assert_eq!(dropped_by(again), 1);
    assert_eq!(dropped_with(keyed), 10);
    assert_eq!(lab.timers().len(), 0);
}

/// An operation that panics when it is dropped, and when it has ended as expected.
fn operation(is_ready: &Rc<Cell<bool>>, expected: Completion) -> OperationFn {
    let (is_ready, value) = (Rc::clone(is_ready), PanicsOnDrop(0));
    let done = move |how: Completion| {
        assert_eq!(how, expected);
        drop(value);
    };
    OperationFn::new(move || is_ready.get(), done)
}

#[test]
fn purgatory_drops_keys_and_operations_one_at_a_time() {
    let mut lab = lab::<()>();
    let purgatory = Purgatory::new(lab.timers());
    let try_watch = |delay| {
        let never = operation(&Rc::default(), Completion::Deadline);
        purgatory.try_complete_else_watch(never, delay, [1, 2, 3].map(PanicsOnDrop))
    };
    let watch = |delay| assert!(try_watch(delay).is_ok());
    watch(ms(1));
    // The purgatory has a list for each key already, so it drops these keys.
    assert_eq!(dropped_by(|| watch(ms(1))), 3);
    // Three keys and two operations are dropped.
    assert_eq!(dropped_by(|| lab.advance(ms(2))), 5);
    // The shard is full.
    while lab.timers().schedule(FAR, ()).is_ok() {}
    assert_eq!(dropped_by(|| std::mem::forget(try_watch(FAR))), 3);
    lab.advance(FAR);
    watch(FAR);
    watch(FAR);
    assert_eq!(dropped_with(purgatory), 5);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn completed_operation_and_its_key_are_dropped_one_at_a_time() {
    let lab = lab::<()>();
    let (purgatory, ready) = (Purgatory::new(lab.timers()), Rc::new(Cell::new(false)));
    let (watched, keys) = (operation(&ready, Completion::Event), [1, 2].map(PanicsOnDrop));
    assert!(purgatory.try_complete_else_watch(watched, FAR, keys).is_ok());
    ready.set(true);
    let key = PanicsOnDrop(1);
    assert_eq!(dropped_by(|| assert_eq!(purgatory.check_and_complete(&key), 1)), 3);
    std::mem::forget(key);
}

#[test]
fn scaled_timeouts_drop_their_values_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let value = PanicsOnDrop(0);
    let handler = move |_: PanicsOnDrop, _: &_| {
        let _value = &value;
    };
    let timeouts = ScaledTimeouts::new(lab.timers(), ms(1), FAR, handler).unwrap();
    (0..3).for_each(|n| assert!(timeouts.start(PanicsOnDrop(n)).is_ok()));
    assert_eq!(dropped_with(timeouts), 4);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn periodic_callback_and_its_plan_are_dropped_one_at_a_time() {
    let mut lab = lab::<()>();
    let timers = lab.timers().clone();
    let begin = || {
        let (plan, call) = (PanicsOnDrop(0), PanicsOnDrop(1));
        let next = move |due: Instant| {
            let _plan = &plan;
            Some(due + FAR)
        };
        let run = move |_: &mut PeriodicRun<'_, ()>| {
            let _call = &call;
        };
        Repeat::by_plan(&timers, timers.now() + FAR, next, run)
    };
    let periodic = begin().unwrap();
    assert_eq!(dropped_by(|| assert!(periodic.stop())), 2);
    drop(begin().unwrap());
    assert_eq!(dropped_by(|| drop(lab.end(ShutdownPolicy::Drop))), 2);
    let refused = dropped_by(|| std::mem::forget(begin()));
    assert_eq!(refused, 1, "the callback is returned, the plan is dropped");
}

#[test]
fn scheduled_task_and_the_waker_of_its_result_panic_one_at_a_time() {
    let lab = lab::<()>();
    let value = PanicsOnDrop(0);
    let (timer, mut reply) = lab.timers().schedule_task(FAR, move |_| drop(value)).unwrap();
    assert!(poll(&mut reply, &waker_that(|| panic!("a waker that panics"))).is_pending());
    let cancel = || drop(lab.timers().cancel(timer));
    let cancelled = catch_unwind(AssertUnwindSafe(cancel));
    assert!(cancelled.is_err(), "the caller drops the task, which panics");
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Cancelled)));
}

#[test]
fn connections_drop_their_callbacks_one_at_a_time() {
    let lab = lab::<()>();
    let conn = |n| {
        let conn = lab.timers().connection(ConnLimits::default().read_idle(FAR)).unwrap();
        let value = PanicsOnDrop(n);
        conn.on_event(move |_, _| {
            let _value = &value;
        });
        conn
    };
    let conns = vec![conn(0), conn(1), conn(2)];
    assert_eq!(dropped_by(|| conns[0].on_event(|_, _| {})), 1);
    assert_eq!(dropped_with(conns), 2);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn handler_that_panics_when_dropped_does_not_disturb_a_shutdown() {
    for host in Host::all() {
        for policy in POLICIES {
            let (guard, dropped) = Guard::new();
            let shared = Arc::new(guard);
            let kept = Arc::clone(&shared);
            let running = Running::start(host, builder(2), move |_| {
                let held = (Guard::clone(&shared), PanicsOnDrop(0));
                move |fired: Fired<PanicsOnDrop>, _: &Timers<PanicsOnDrop>| {
                    let _held = &held;
                    std::mem::forget(fired.payload);
                }
            });
            running.service.handle().on(SHARD).schedule(FAR, PanicsOnDrop(1)).unwrap();
            let report = running.end(policy);
            assert!(report.dead.is_empty(), "{host:?}");
            report.returned.into_iter().for_each(std::mem::forget);
            assert_eq!(dropped.load(Ordering::SeqCst), 2, "{host:?}, {policy:?}");
            drop(kept);
        }
    }
}

#[test]
fn attachments_that_are_never_used_drop_their_requests_one_at_a_time() {
    let service = builder(1).start_attached_with::<PanicsOnDrop>().unwrap();
    let replies = [1, 2].map(|n| {
        let value = PanicsOnDrop(n);
        service.handle().on(SHARD).keep(move |_| value).unwrap()
    });
    assert_eq!(dropped_with(service), 2);
    for reply in replies {
        let waited = thread::spawn(move || reply.wait().is_err()).join();
        assert!(waited.unwrap());
    }
}
