//! Connection timers of tasks that run on any thread: their events, what holds them back, their
//! wakers and their errors.

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use corewheel::conn::{InProgress, Raced};

use super::*;
use corewheel_test_support::{Alarm, look};

type Polled = Poll<Result<Option<ConnEvent>, RefusedKind>>;

pub(super) fn connect(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers<Handle> {
    lab.service.handle().connection(limits)
}

fn poll_with(conn: &ConnTimers<Handle>, waker: &Waker) -> Polled {
    conn.poll_next(&mut Context::from_waker(waker))
}

fn poll(conn: &ConnTimers<Handle>) -> Polled {
    poll_with(conn, Waker::noop())
}

/// The kind of the next event that has come, and whether it is the first.
pub(super) fn event(conn: &ConnTimers<Handle>) -> Option<(DeadlineKind, bool)> {
    match poll(conn) {
        Poll::Ready(event) => event.unwrap().map(|event| (event.kind, event.first)),
        Poll::Pending => None,
    }
}

#[test]
fn shared_connection_and_its_guards_are_send_sync_and_static() {
    fn check<V: Send + Sync + 'static>() {}
    fn check_future<F: Send>(_: F) {}
    check::<ConnTimers<Handle>>();
    check::<InProgress<Handle>>();
    let lab = lab();
    let conn = connect(&lab, NONE);
    check_future(conn.next());
    check_future(conn.race(ready(7)));
    check_future(conn.race_write(&std::io::stdout(), ready(7)));
}

#[test]
fn race_prefers_value_that_is_ready_with_the_deadline() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE);
    lab.advance(ms(100));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut race = Box::pin(conn.race(ready(7)));
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Ok(Raced::Done(7))));
    let mut race = Box::pin(conn.race(std::future::pending::<u8>()));
    let idle = ConnEvent { kind: ReadIdle, first: true };
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Ok(Raced::Event(idle))));
    conn.close();
    let mut race = Box::pin(conn.race(std::future::pending::<u8>()));
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Ok(Raced::Closed)));
}

#[test]
fn next_that_is_dropped_loses_no_event() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE);
    {
        let mut wait = Box::pin(conn.next());
        assert!(look(&mut wait).is_none());
    }
    lab.advance(ms(100));
    let idle = |first| ConnEvent { kind: ReadIdle, first };
    assert_eq!(look(&mut Box::pin(conn.next())), Some(Ok(Some(idle(true)))));
    lab.advance(ms(100));
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(conn.poll_next(cx), Poll::Ready(Ok(Some(idle(false)))));
    conn.close();
    assert_eq!(conn.poll_next(cx), Poll::Ready(Ok(None)));
}

#[test]
fn touches_of_other_threads_hold_back_the_event_and_wake_no_task() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE.write_idle(ms(100)));
    let (alarm, waker) = Alarm::new();
    for _ in 0..20 {
        assert!(poll_with(&conn, &waker).is_pending());
        lab.clock.advance(ms(60));
        let before = alarm.count();
        thread::scope(|scope| {
            for number in 0..4 {
                let conn = conn.clone();
                scope.spawn(move || if number < 2 { conn.touch_read() } else { conn.touch() });
            }
        });
        assert_eq!(alarm.count(), before, "a touch wakes no task");
        lab.settle();
    }
    assert_eq!(run(&mut lab, &conn, 99), []);
    let both = [(1_300, ReadIdle, true), (1_300, WriteIdle, true)];
    assert_eq!(run(&mut lab, &conn, 1), both);
}

#[test]
fn read_in_progress_on_another_thread_holds_back_idle_until_its_end() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE.all_idle(ms(100)).write_idle(ms(1_000)));
    let (read, another) = (conn.begin_read(), conn.begin_read());
    assert_eq!(run(&mut lab, &conn, 450), []);
    assert_eq!(conn.deadline(ReadIdle), Some(lab.clock.now() + ms(100)));
    thread::spawn(move || drop(read)).join().unwrap();
    assert_eq!(run(&mut lab, &conn, 560), [(1_000, WriteIdle, true)]);
    thread::spawn(move || assert!(another.finish())).join().unwrap();
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 1), [(1_110, ReadIdle, true), (1_110, AllIdle, true)]);
}

#[test]
fn request_in_flight_holds_back_idle_and_lets_the_heartbeat_come() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE.write_idle(ms(100)).all_idle(ms(100)).heartbeat(ms(80)));
    let request = conn.begin_request();
    assert_eq!(run(&mut lab, &conn, 170), [(80, Heartbeat, true), (160, Heartbeat, false)]);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _request = request;
        panic!("the test asks for it");
    }));
    assert!(panicked.is_err(), "the panic ends the request");
    let idle = [ReadIdle, WriteIdle, AllIdle].map(|kind| (270, kind, true));
    let events = run(&mut lab, &conn, 100);
    assert_eq!(events[0], (240, Heartbeat, false));
    assert_eq!(events[1..], idle);
}

#[test]
fn guard_does_not_keep_its_connection_open() {
    let lab = lab();
    let conn = connect(&lab, READ_IDLE);
    let other = conn.clone();
    let (alarm, waker) = Alarm::new();
    let request = conn.begin_request();
    drop(conn);
    assert!(poll_with(&other, &waker).is_pending(), "a handle is left");
    drop(other);
    assert_eq!(alarm.count(), 1, "the last handle has closed the connection");
    drop(request);
}

#[test]
fn close_from_another_thread_wakes_the_task_that_waits() {
    let lab = lab();
    let conn = connect(&lab, READ_IDLE);
    let (alarm, waker) = Alarm::new();
    assert!(poll_with(&conn, &waker).is_pending());
    let other = conn.clone();
    assert!(thread::spawn(move || other.close()).join().unwrap());
    assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(Ok(None))));
    assert!(conn.is_closed() && !conn.close());
    assert_eq!(conn.deadline(ReadIdle), None);
}

#[test]
fn change_to_an_earlier_deadline_resets_the_timer_and_wakes_its_task_only_then() {
    type Change = dyn Fn(&ConnTimers<Handle>);
    let cases: [(u64, &Change); 5] = [
        (80, &|conn| assert!(conn.arm(Request, ms(80)).unwrap())),
        (60, &|conn| std::mem::forget(conn.begin_write())),
        (50, &|conn| conn.set_limits(READ_IDLE.max_age(ms(50)))),
        (40, &|conn| {
            let elsewhere = || conn.arm(Request, ms(40)).unwrap();
            assert!(thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap());
        }),
        // Later deadlines, and what makes none.
        (100, &|conn| {
            conn.arm(Request, ms(200)).unwrap();
            conn.set_limits(READ_IDLE.max_age(ms(170)));
        }),
    ];
    for (due, change) in cases {
        let mut lab = lab();
        let conn = connect(&lab, READ_IDLE.write_timeout(ms(60)));
        let (alarm, waker) = Alarm::new();
        assert!(poll_with(&conn, &waker).is_pending());
        change(&conn);
        lab.advance(ms(due - 1));
        assert_eq!(alarm.count(), 0, "{due}: the change wakes no task");
        lab.advance(ms(1));
        assert_eq!(alarm.count(), 1, "{due}: its deadline has come");
        assert!(poll_with(&conn, &waker).is_ready(), "{due}");
    }
}

#[test]
fn deadline_armed_for_each_message_wakes_no_task_while_it_is_disarmed_in_time() {
    let mut lab = lab();
    let conn = connect(&lab, NONE);
    let (alarm, waker) = Alarm::new();
    for _ in 0..10 {
        assert!(poll_with(&conn, &waker).is_pending());
        assert!(conn.arm(Custom(0), ms(100)).unwrap());
        lab.advance(ms(5));
        assert!(conn.disarm(Custom(0)).unwrap());
    }
    assert_eq!(alarm.count(), 0);
    assert!(conn.arm(Custom(0), ms(100)).unwrap());
    // Once for the deadline that was disarmed, and once for the one that is armed.
    for expected in [1, 2] {
        lab.advance(ms(50));
        assert_eq!(alarm.count(), expected);
        assert_eq!(poll_with(&conn, &waker).is_ready(), expected == 2);
    }
}

#[test]
fn poll_by_another_task_replaces_the_task_that_waits() {
    let mut lab = lab();
    let conn = connect(&lab, READ_IDLE);
    let ((first, first_waker), (second, second_waker)) = (Alarm::new(), Alarm::new());
    assert!(poll_with(&conn, &first_waker).is_pending());
    assert!(poll_with(&conn, &second_waker).is_pending());
    conn.arm(Request, ms(10)).unwrap();
    lab.advance(ms(10));
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[test]
fn waker_whose_drop_closes_a_shared_connection_locks_nothing_twice() {
    let lab = lab();
    let conn = connect(&lab, READ_IDLE);
    let closes = closes_when_dropped(&conn);
    assert!(poll_with(&conn, &closes).is_pending());
    drop(closes);
    // The connection stores the last clone of the waker, and replaces it by another waker.
    let (_, waker) = Alarm::new();
    assert_eq!(poll_with(&conn, &waker), Poll::Ready(Ok(None)));
}
