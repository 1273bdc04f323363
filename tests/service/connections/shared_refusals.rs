//! Connections of tasks that run on any thread, where a shard has no room or the service has ended.

use super::*;

type Polled = Poll<Result<Option<ConnEvent>, RefusedKind>>;

/// Polls until the shard has answered, which takes some turns at most.
fn settled_poll(lab: &mut Lab<u8>, conn: &ConnTimers<Handle>, waker: &Waker) -> Polled {
    for _ in 0..20 {
        let polled = conn.poll_next(&mut Context::from_waker(waker));
        if polled.is_ready() {
            return polled;
        }
        lab.settle();
    }
    Poll::Pending
}

/// Fills a shard with timers of its own.
fn fill(lab: &Lab<u8>) -> Vec<TimerId> {
    std::iter::from_fn(|| lab.timers().schedule(Duration::from_hours(1), 0).ok()).collect()
}

#[test]
fn shard_without_room_refuses_the_timer_and_keeps_the_deadlines() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(64));
    let timers = fill(&lab);
    let conn = Handle::open(&lab, READ_IDLE);
    let refused = settled_poll(&mut lab, &conn, Waker::noop());
    assert_eq!(refused, Poll::Ready(Err(RefusedKind::Full)));
    assert_eq!(race(&conn, ready(7)), Some(Raced::Done(7)), "it needs no timer");
    assert!(!conn.is_closed());
    // The next poll tries again.
    for timer in timers {
        let _ = lab.timers().cancel(timer);
    }
    lab.settle();
    let (alarm, waker) = Alarm::new();
    assert!(settled_poll(&mut lab, &conn, &waker).is_pending());
    let before = alarm.count();
    lab.advance(ms(100));
    assert!(alarm.count() > before, "there is a timer");
    assert_eq!(event(&conn), Some((ReadIdle, true)));
}

#[test]
fn event_that_is_due_comes_without_a_timer() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(64));
    let _timers = fill(&lab);
    let conn = Handle::open(&lab, READ_IDLE);
    lab.advance(ms(100));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
}

/// The end of the service is told once.
fn check_closed(conn: &ConnTimers<Handle>) {
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(conn.poll_next(cx), Poll::Ready(Err(RefusedKind::Closed)));
    assert_eq!(conn.poll_next(cx), Poll::Ready(Ok(None)));
    assert!(conn.is_closed());
}

#[test]
fn end_of_the_service_wakes_the_task_and_is_told_once() {
    let mut lab = lab();
    let conn = Handle::open(&lab, READ_IDLE);
    let (alarm, waker) = Alarm::new();
    assert!(settled_poll(&mut lab, &conn, &waker).is_pending());
    let before = alarm.count();
    let _report = lab.end(ShutdownPolicy::Drop);
    assert!(alarm.count() > before, "the end wakes the task");
    check_closed(&conn);
}

#[test]
fn connection_that_begins_after_the_end_says_so_at_its_first_poll() {
    let lab = lab();
    let handle = lab.service.handle();
    drop(lab);
    let conn = handle.connection(READ_IDLE);
    conn.touch();
    check_closed(&conn);
}
