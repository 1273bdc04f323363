//! Connection timers of tasks that run on any thread: their events, what holds them back, their
//! wakers and their errors.

use super::*;

#[test]
fn shared_connection_and_its_guards_are_send_sync_and_static() {
    fn check<V: Send + Sync + 'static>() {}
    fn check_future<F: Send>(_: F) {}
    check::<ConnTimers<Handle>>();
    check::<InProgress<Handle>>();
    let lab = lab();
    let conn = Handle::open(&lab, NONE);
    check_future(conn.next());
    check_future(conn.race(ready(7)));
    check_future(conn.race_write(&std::io::stdout(), ready(7)));
}

#[test]
fn touches_of_other_threads_hold_back_the_event_and_wake_no_task() {
    let mut lab = lab();
    let conn = Handle::open(&lab, READ_IDLE.write_idle(ms(100)));
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
fn close_from_another_thread_wakes_the_task_that_waits() {
    let lab = lab();
    let conn = Handle::open(&lab, READ_IDLE);
    let (alarm, waker) = Alarm::new();
    assert!(poll_with(&conn, &waker).is_pending());
    let other = conn.clone();
    assert!(thread::spawn(move || other.close()).join().unwrap());
    assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(None)));
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
        let conn = Handle::open(&lab, READ_IDLE.write_timeout(ms(60)));
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
    let conn = Handle::open(&lab, NONE);
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
