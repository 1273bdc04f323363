//! Values that panic when they are dropped, at each point of the code that drops more than one. A
//! second panic during the unwinding of the first aborts the process, and all tests with it.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use corewheel::{ConnLimits, Fired, ReplyError, ShutdownPolicy, Timers};
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::purgatory::{Operation, Purgatory};
use corewheel_kit::queue::DelayQueue;
use corewheel_kit::repeat::{PeriodicRun, Repeat};
use corewheel_kit::scaled::ScaledTimeouts;

use corewheel_test_support::operation_fn::{Completion, OperationFn};
use corewheel_test_support::{FAR, Host, Lab, OTHER, Running, SHARD, builder, check_law, look, ms};

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

const POLICIES: [ShutdownPolicy; 3] =
    [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];

fn lab<T: Send + 'static>() -> Lab<T> {
    Lab::with_handler(builder(2), |_| |_: Fired<T>, _: &Timers<T>| {})
}

/// Schedules two typed timers, two local callbacks, and two callbacks by a client.
fn schedule_six(lab: &mut Lab<PanicsOnDrop>) {
    let (timers, client) = (lab.timers().clone(), lab.service.handle());
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
fn shutdown_report_that_is_not_awaited_drops_its_payloads_one_at_a_time() {
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
fn shutdown_report_that_was_sent_and_not_read_drops_its_payloads_one_at_a_time() {
    let mut lab = lab();
    schedule_six(&mut lab);
    let unread = lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap();
    // Local callbacks cannot be sent, so the shard drops them.
    assert_eq!(dropped_by(|| lab.settle_closed()), 2);
    assert_eq!(dropped_by(|| drop(unread)), 4);
    // The future has the report of one shard and waits for the report of the other.
    let mut lab = self::lab();
    schedule_six(&mut lab);
    let mut reports = Box::pin(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    while lab.shards[0].turn() != corewheel::attach::Turn::Closed {}
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
fn futures_that_a_closed_shard_has_not_started_are_dropped_one_at_a_time() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let (sender, blocks) = std::sync::mpsc::channel();
        let (go, held) = std::sync::mpsc::channel::<()>();
        let call = move |_: &Timers<u8>| {
            sender.send(()).unwrap();
            let _released = held.recv();
        };
        running.service.handle().on(SHARD).schedule_fn(ms(1), call).unwrap();
        blocks.recv().unwrap();
        for n in 0..3 {
            let value = PanicsOnDrop(n);
            let start = move |_| {
                drop(value);
                async {}
            };
            drop(running.service.spawn_on(SHARD, start).unwrap());
        }
        let report = running.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
        drop(go);
        assert!(corewheel_test_support::block_on(report).dead.is_empty(), "{host:?}");
        running.stop();
    }
}

#[test]
fn requests_in_a_lane_are_dropped_one_at_a_time_when_the_shard_closes() {
    let mut lab = lab();
    let client = lab.service.handle();
    for n in 0..4 {
        let timer = client.on(SHARD).schedule(FAR, PanicsOnDrop(n)).unwrap();
        if n % 2 == 0 {
            client.cancel_detached(timer);
        }
    }
    drop(lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap());
    assert_eq!(dropped_by(|| lab.settle_closed()), 4);
    check_law(&lab.counts());
}

#[test]
fn replies_to_many_cancels_that_are_not_read_drop_their_payloads_one_at_a_time() {
    let mut lab = lab();
    let client = lab.service.handle();
    let schedule = |lab: &mut Lab<PanicsOnDrop>| {
        let on = |shard| client.on(shard).schedule(FAR, PanicsOnDrop(0)).unwrap();
        let timers = [on(SHARD), on(OTHER), on(SHARD), on(OTHER)];
        lab.settle();
        timers
    };
    // The replies have come, and the caller does not wait for them.
    let timers = schedule(&mut lab);
    let replies = lab.service.handle().cancel_many(&timers);
    lab.settle();
    assert_eq!(dropped_by(|| drop(replies)), 4);
    // A part of the replies has come while the caller waited.
    let timers = schedule(&mut lab);
    let mut replies = lab.service.handle().cancel_many(&timers).into_future();
    let _next = lab.shards[1].turn();
    assert!(look(&mut replies).is_none());
    assert_eq!(dropped_by(|| drop(replies)), 2);
    assert_eq!(dropped_by(|| lab.settle()), 2);
    // The shard dies when it has applied a part of the cancels.
    let timers = schedule(&mut lab);
    let replies = lab.service.handle().cancel_many(&timers);
    let dropped = dropped_by(|| {
        drop(replies);
        drop(lab.shards.remove(0));
        drop(lab.shards.remove(0));
    });
    assert_eq!(dropped, 4);
}

#[test]
fn delay_queue_drops_its_values_one_at_a_time() {
    let lab = lab::<()>();
    let queue = DelayQueue::new(lab.timers());
    let fill = || (0..3).for_each(|n| assert!(queue.insert(PanicsOnDrop(n), ms(1)).is_ok()));
    fill();
    assert_eq!(dropped_by(|| drop(queue)), 3);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn keyed_timers_drop_keys_values_groups_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let value = PanicsOnDrop(0);
    let keyed = KeyedTimers::<PanicsOnDrop, PanicsOnDrop, PanicsOnDrop>::in_groups(
        lab.timers(),
        move |_, _| {
            let _value = &value;
        },
    );
    let fill = || {
        for n in 0..3 {
            assert!(
                keyed.insert_in(PanicsOnDrop(n), PanicsOnDrop(n), PanicsOnDrop(n), FAR).is_ok()
            );
        }
    };
    fill();
    // The second copy of the group's name is dropped; key and value are returned.
    let again = || match keyed.insert_in(PanicsOnDrop(0), PanicsOnDrop(0), PanicsOnDrop(7), FAR) {
        Ok(Some(before)) => std::mem::forget(before),
        _ => panic!("the key is not new"),
    };
    assert_eq!(dropped_by(again), 1);
    assert_eq!(dropped_by(|| drop(keyed)), 10);
    assert_eq!(lab.timers().len(), 0);
}

/// An operation that is never ready, and panics when it is dropped.
struct NeverReady(#[allow(dead_code, reason = "it is dropped")] PanicsOnDrop);

impl Operation for NeverReady {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn completed(self) {}

    fn expired(self) {}
}

#[test]
fn purgatory_drops_keys_and_operations_one_at_a_time() {
    let mut lab = lab::<()>();
    let purgatory = Purgatory::<PanicsOnDrop, NeverReady>::new(lab.timers());
    let watch = |delay| {
        let keys = [PanicsOnDrop(1), PanicsOnDrop(2), PanicsOnDrop(3)];
        assert!(
            purgatory.try_complete_else_watch(NeverReady(PanicsOnDrop(0)), delay, keys).is_ok()
        );
    };
    watch(ms(1));
    // The purgatory has a list for each key already, so it drops these keys.
    assert_eq!(dropped_by(|| watch(ms(1))), 3);
    // Three keys and two operations are dropped.
    assert_eq!(dropped_by(|| lab.advance(ms(2))), 5);
    // The shard is full.
    while lab.timers().schedule(FAR, ()).is_ok() {}
    let keys = [PanicsOnDrop(1), PanicsOnDrop(2), PanicsOnDrop(3)];
    let back = dropped_by(|| {
        let refused = purgatory.try_complete_else_watch(NeverReady(PanicsOnDrop(0)), FAR, keys);
        std::mem::forget(refused);
    });
    assert_eq!(back, 3);
    lab.advance(FAR);
    watch(FAR);
    watch(FAR);
    assert_eq!(dropped_by(|| drop(purgatory)), 5);
    assert_eq!(lab.timers().len(), 0);
}

#[test]
fn scaled_timeouts_drop_their_values_and_handler_one_at_a_time() {
    let lab = lab::<()>();
    let value = PanicsOnDrop(0);
    let handler = move |_: PanicsOnDrop, _: &_| {
        let _value = &value;
    };
    let timeouts = ScaledTimeouts::new(lab.timers(), ms(1), FAR, handler).unwrap();
    let fill = || (0..3).for_each(|n| assert!(timeouts.start(PanicsOnDrop(n)).is_ok()));
    fill();
    assert_eq!(dropped_by(|| drop(timeouts)), 4);
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
        Repeat::by_plan(&timers, timers.now() + FAR, next, run).unwrap()
    };
    let periodic = begin();
    let stop = || assert!(periodic.stop());
    assert_eq!(dropped_by(stop), 2);
    let periodic = begin();
    drop(periodic);
    assert_eq!(dropped_by(|| drop(lab.end(ShutdownPolicy::Drop))), 2);
    let refused = dropped_by(|| {
        let (plan, call) = (PanicsOnDrop(0), PanicsOnDrop(1));
        let next = move |due: Instant| {
            let _plan = &plan;
            Some(due + FAR)
        };
        let run = move |_: &mut PeriodicRun<'_, ()>| {
            let _call = &call;
        };
        std::mem::forget(Repeat::by_plan(&timers, timers.now() + FAR, next, run));
    });
    assert_eq!(refused, 1, "the callback is returned, the plan is dropped");
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
    let value = PanicsOnDrop(0);
    let (timer, mut reply) = lab.timers().schedule_task(FAR, move |_| drop(value)).unwrap();
    let waker = std::task::Waker::from(Arc::new(Panics));
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut reply).poll(&mut cx).is_pending());
    let cancelled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(lab.timers().cancel(timer));
    }));
    assert!(cancelled.is_err(), "the caller drops the task, which panics");
    assert_eq!(look(&mut reply), Some(Err(ReplyError::Cancelled)));
}

#[test]
fn connections_drop_their_callbacks_one_at_a_time() {
    let lab = lab::<()>();
    let limits = ConnLimits { read_idle: FAR, ..ConnLimits::default() };
    let conn = |n| {
        let conn = lab.timers().connection(limits).unwrap();
        let value = PanicsOnDrop(n);
        conn.on_event(move |_, _| {
            let _value = &value;
        });
        conn
    };
    let conns = vec![conn(0), conn(1), conn(2)];
    assert_eq!(dropped_by(|| conns[0].on_event(|_, _| {})), 1);
    assert_eq!(dropped_by(|| drop(conns)), 2);
    assert_eq!(lab.timers().len(), 0);
}

/// A part of a handler that counts its drop and then panics.
struct HandlerPart(Arc<AtomicUsize>, #[allow(dead_code, reason = "it is dropped")] PanicsOnDrop);

impl HandlerPart {
    /// Returns a handler that holds `self` and forgets its payloads.
    fn handler(self) -> impl FnMut(Fired<PanicsOnDrop>, &Timers<PanicsOnDrop>) + 'static {
        move |fired: Fired<PanicsOnDrop>, _: &Timers<PanicsOnDrop>| {
            let _held = &self;
            std::mem::forget(fired.payload);
        }
    }
}

impl Drop for HandlerPart {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn handler_that_panics_when_dropped_does_not_disturb_a_shutdown() {
    for host in Host::all() {
        for policy in POLICIES {
            let dropped = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&dropped);
            let running = Running::start(host, builder(2), move |_| {
                HandlerPart(Arc::clone(&counter), PanicsOnDrop(0)).handler()
            });
            running.service.handle().on(SHARD).schedule(FAR, PanicsOnDrop(1)).unwrap();
            let report = running.end(policy);
            assert!(report.dead.is_empty(), "{host:?}");
            report.returned.into_iter().for_each(std::mem::forget);
            assert_eq!(dropped.load(Ordering::SeqCst), 2, "{host:?}, {policy:?}");
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
    assert_eq!(dropped_by(|| drop(service)), 2);
    for reply in replies {
        let waited = thread::spawn(move || reply.wait().is_err()).join();
        assert!(waited.unwrap());
    }
}

#[test]
fn completed_operation_and_its_key_are_dropped_one_at_a_time() {
    let lab = lab::<()>();
    let purgatory = Purgatory::new(lab.timers());
    let ready = Rc::new(Cell::new(false));
    let is_ready = Rc::clone(&ready);
    let value = PanicsOnDrop(0);
    let operation = OperationFn::new(
        move || is_ready.get(),
        move |how| {
            assert_eq!(how, Completion::Event);
            drop(value);
        },
    );
    assert!(
        purgatory
            .try_complete_else_watch(operation, FAR, [PanicsOnDrop(1), PanicsOnDrop(2)])
            .is_ok()
    );
    ready.set(true);
    let key = PanicsOnDrop(1);
    assert_eq!(dropped_by(|| assert_eq!(purgatory.check_and_complete(&key), 1)), 3);
    std::mem::forget(key);
}
