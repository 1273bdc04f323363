//! Timers that are cancelled when their guards are dropped.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use corewheel::class::TimerClass;
use corewheel::{Fired, ReplyError, ResetOutcome, ShutdownPolicy, TimerId, Timers};

use corewheel_kit::guard::TimerGuard;
use corewheel_kit::{HandleExt, TimersExt};

use crate::support::{
    FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, builder, check_law, ms,
};

fn lab() -> Lab<u8> {
    Lab::new(builder(2))
}

#[test]
fn drop_of_a_guard_cancels_its_timer_and_drops_its_payload() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let (payload, dropped) = Guard::new();
    let value = timers.guard(timers.schedule(ms(5), 1).unwrap());
    let call = timers.schedule_fn(ms(5), move |_| drop(payload)).unwrap();
    let call = timers.guard(call);
    assert!(format!("{call:?}").starts_with("TimerGuard("));
    drop((value, call));
    assert_eq!((timers.len(), dropped.load(Ordering::SeqCst)), (0, 1), "at once");
    lab.advance(FAR);
    assert_eq!((lab.fired(), lab.counts().cancelled), (vec![], 2));
    check_law(&lab.counts());
}

#[test]
fn drop_of_a_guard_counts_for_the_class() {
    const CLASS: TimerClass = TimerClass::new("request");
    let mut lab = Lab::<u8>::new(builder(1).class(CLASS));
    let timers = lab.timers().of_class(CLASS).unwrap();
    let guard = timers.guard(timers.schedule(ms(10), 1).unwrap());
    lab.advance(ms(8));
    drop(guard);
    lab.settle();
    assert_eq!(lab.service.stats().shards[0].classes[0].cancelled, 1);
}

#[test]
fn drop_of_a_guard_after_its_timer_fired_does_nothing() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let fired = timers.guard(timers.schedule(ms(1), 1).unwrap());
    lab.advance(ms(1));
    // It has the slot of the timer that has fired.
    timers.schedule(ms(1), 2).unwrap();
    drop(fired);
    let cancelled = timers.guard(timers.schedule(ms(1), 3).unwrap());
    assert!(timers.cancel(cancelled.timer()).won());
    drop(cancelled);
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [(1, 1), (2, 2)]);
    assert_eq!(lab.counts().cancelled, 1);
    check_law(&lab.counts());
}

#[test]
fn into_timer_leaves_the_timer_running() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let timer = timers.schedule(ms(1), 1).unwrap();
    assert_eq!(timers.guard(timer).into_timer(), timer);
    let client = lab.service.handle();
    assert_eq!(client.guard(timer).into_timer(), timer);
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [(1, 1)]);
}

#[test]
fn reset_by_a_guard_changes_the_deadline() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let client = lab.service.handle();
    let here = timers.guard(timers.schedule(ms(1), 1).unwrap());
    assert_eq!(here.reset(ms(3)).try_take(), Some(Ok(ResetOutcome::Reset)));
    assert_eq!(timers.remaining(here.timer()), Some(ms(3)));
    let there = client.guard(client.on(OTHER).schedule(ms(1), 2).unwrap());
    let mut reply = there.reset(timers.now() + ms(4));
    // A guard of another shard, made on this one.
    let across = timers.guard(client.on(OTHER).schedule(ms(1), 3).unwrap());
    lab.settle();
    assert_eq!(reply.try_take(), Some(Ok(ResetOutcome::Reset)));
    let mut reply = across.reset(timers.deadline(ms(5)));
    lab.settle();
    assert_eq!(reply.try_take(), Some(Ok(ResetOutcome::Reset)));
    for _ in 0..6 {
        lab.advance(ms(1));
    }
    assert_eq!(lab.fired(), [(1, 3), (2, 4), (3, 5)]);
    let late = here.reset(ms(1)).try_take();
    assert!(matches!(late, Some(Ok(ResetOutcome::AlreadyFired | ResetOutcome::Stale))), "{late:?}");
}

#[test]
fn drop_of_a_guard_cancels_a_timer_of_another_shard() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    let across = timers.guard(timers.handle().on(OTHER).schedule(ms(5), 1).unwrap());
    lab.settle();
    assert_eq!(lab.counts_of(OTHER).pending, 1);
    let mut reply = across.reset(ms(6));
    lab.settle();
    assert_eq!(reply.try_take(), Some(Ok(ResetOutcome::Reset)), "it is found where it is");
    drop(across);
    lab.settle();
    assert_eq!(lab.counts_of(OTHER).pending, 0);
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
}

#[test]
fn guard_of_a_timer_of_another_service_does_nothing() {
    let (mut lab, other) = (lab(), lab());
    let foreign = other.timers().schedule(ms(5), 1).unwrap();
    let client = lab.service.handle();
    let here = lab.timers().guard(foreign);
    assert_eq!(here.reset(ms(9)).try_take(), Some(Ok(ResetOutcome::Foreign)));
    drop((here, client.guard(foreign)));
    lab.settle();
    assert_eq!(other.timers().remaining(foreign), Some(ms(5)));
}

#[test]
fn drop_of_a_guard_inside_a_callback_cancels_its_timer() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    // Due in the same tick, and cancelled by the first of the two.
    let held: Rc<Cell<Option<TimerGuard<'static>>>> = Rc::default();
    let drops = Rc::clone(&held);
    timers.schedule_fn(ms(1), move |_| drop(drops.take())).unwrap();
    held.set(Some(timers.guard(timers.schedule(ms(1), 7).unwrap())));
    // A guard of the timer that runs.
    let own: Rc<Cell<Option<TimerGuard<'static>>>> = Rc::default();
    let drops = Rc::clone(&own);
    let runs = timers.schedule_fn(ms(1), move |_| drop(drops.take())).unwrap();
    own.set(Some(timers.guard(runs)));
    lab.advance(ms(1));
    assert!(held.take().is_none() && own.take().is_none());
    assert_eq!((lab.fired(), lab.counts().fired, lab.counts().cancelled), (vec![], 2, 1));
    assert_eq!(lab.counts().panicked, 0);
}

#[test]
fn drop_of_a_guard_inside_a_payload_finds_nothing_borrowed() {
    let mut lab = lab();
    let timers = lab.timers().clone();
    // The payload of each timer holds the guard of the timer before: one drop cancels all.
    let mut guard = timers.guard(timers.schedule(FAR, 1).unwrap());
    for _ in 0..10 {
        let call = move |_: &Timers<u8>| drop(guard);
        guard = timers.guard(timers.schedule_fn(FAR, call).unwrap());
    }
    assert_eq!(timers.len(), 11);
    drop(guard);
    assert_eq!((timers.len(), lab.counts().panicked), (0, 0));
    // By a shutdown that drops the payloads.
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Return, ShutdownPolicy::Fire] {
        let mut lab = Lab::with_handler(builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let timers = lab.timers().clone();
        let first = timers.guard(timers.schedule(FAR, 1).unwrap());
        timers.schedule_fn(FAR, move |_| drop(first)).unwrap();
        let report = lab.end(policy);
        assert_eq!((report.counts.pending, report.counts.panicked), (0, 0), "{policy:?}");
        drop(report);
        assert_eq!(timers.len(), 0);
    }
    lab.settle();
}

#[test]
fn payload_that_panics_when_its_guard_is_dropped_is_contained_and_counted() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("it is dropped");
        }
    }
    let mut lab = lab();
    let timers = lab.timers().clone();
    let client = lab.service.handle();
    let bomb = Bomb;
    let here = timers.guard(timers.schedule_fn(FAR, move |_| drop(bomb)).unwrap());
    let bomb = Bomb;
    let there = client.on(SHARD).schedule_fn(FAR, move |_| drop(bomb)).unwrap();
    let there = client.guard(there);
    drop(here);
    assert_eq!(timers.len(), 0);
    drop(there);
    lab.settle();
    assert_eq!((lab.counts().panicked, lab.counts().pending), (2, 0));
    // While another panic unwinds the stack.
    let bomb = Bomb;
    let timer = timers.schedule_fn(FAR, move |_| drop(bomb)).unwrap();
    let guard = timers.guard(timer);
    let panics = std::panic::AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("first");
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    lab.settle();
    assert_eq!((lab.counts().panicked, timers.len()), (3, 0));
}

#[test]
fn drop_of_a_guard_after_its_shard_ended_does_nothing() {
    for dies in [false, true] {
        let mut lab = lab();
        let client = lab.service.handle();
        let timers = lab.timers().clone();
        let here = timers.guard(timers.schedule(FAR, 1).unwrap());
        let there = client.guard(client.on(SHARD).schedule(FAR, 2).unwrap());
        lab.settle();
        if dies {
            drop(lab.shards.remove(0));
        } else {
            let _ = lab.end(ShutdownPolicy::Return);
        }
        let late = here.reset(ms(1)).try_take();
        assert_eq!(late, Some(Ok(ResetOutcome::Stale)), "{dies}");
        drop((here, there));
        assert_eq!(lab.counts().panicked, 0);
    }
}

#[test]
fn guard_of_a_client_cancels_on_every_host() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u8>, _: &Timers<u8>| sender.send(one.payload).unwrap()
        });
        let client = running.service.handle();
        let (payload, dropped) = Guard::new();
        let call = client.on(SHARD).schedule_fn(FAR, move |_| drop(payload)).unwrap();
        let guard = client.guard(call);
        let value = client.guard(client.on(SHARD).schedule(ms(30), 1).unwrap());
        drop((guard, value));
        client.on(SHARD).schedule(ms(60), 2).unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok(2), "{host:?}");
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.cancelled, 2, "{host:?}");
    }
}

#[test]
fn guard_in_a_future_cancels_when_the_future_is_dropped() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let (polled, is_polled) = mpsc::channel();
        let spawned = running.service.spawn_on(SHARD, move |timers| async move {
            let _guard = timers.guard(timers.schedule(FAR, 1).unwrap());
            polled.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        is_polled.recv_timeout(PATIENCE).unwrap();
        let report = running.end(ShutdownPolicy::Drop);
        assert_eq!(report.shards[0].counts.pending, 0, "{host:?}");
        assert_eq!(spawned.unwrap().wait(), Err(ReplyError::Closed), "{host:?}");
    }
}

#[test]
fn guard_of_a_shard_does_not_name_the_type_of_the_values() {
    struct Connection {
        guards: RefCell<Vec<TimerGuard<'static>>>,
    }
    fn keep<T: Send + 'static>(connection: &Connection, timers: &Timers<T>, timer: TimerId) {
        connection.guards.borrow_mut().push(timers.guard(timer));
    }
    let (bytes, words) = (lab(), Lab::<String>::new(builder(1)));
    let connection = Connection { guards: RefCell::default() };
    keep(&connection, bytes.timers(), bytes.timers().schedule(FAR, 1).unwrap());
    keep(&connection, words.timers(), words.timers().schedule(FAR, "idle".to_owned()).unwrap());
    drop(connection);
    assert!(bytes.timers().is_empty() && words.timers().is_empty());
}
