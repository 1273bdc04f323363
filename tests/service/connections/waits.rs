//! Tasks that wait: `next`, `race`, and their wakers.

use std::future::{Future, ready};
use std::pin::pin;

use corewheel::conn::Raced;

use super::*;
use corewheel_test_support::{Alarm, look, waker_of};

#[test]
fn race_prefers_value_that_is_ready_with_the_deadline() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(100));
    // The event has come. A read comes before the event is taken.
    conn.touch_read();
    assert_eq!(poll(&conn), Poll::Pending);
    assert_eq!(run(&mut lab, &conn, 100), []);
    lab.advance(ms(11));
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut race = pin!(conn.race(ready(7)));
        assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Done(7)));
    }
    assert_eq!(event(&conn), Some((ReadIdle, true)), "nothing was read");
    let mut race = pin!(conn.race(std::future::pending::<u8>()));
    assert!(race.as_mut().poll(cx).is_pending());
    lab.advance(ms(100));
    let idle = ConnEvent { kind: ReadIdle, first: false };
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Event(idle)));
}

#[test]
fn race_prefers_max_age_to_a_ready_value() {
    let mut lab = lab();
    let limits = ConnLimits { max_age: ms(100), read_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    lab.advance(ms(100));
    let mut race = pin!(conn.race(ready(7)));
    let old = ConnEvent { kind: MaxAge, first: true };
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Event(old)));
    assert_eq!(run(&mut lab, &conn, 100)[0], (101, ReadIdle, true), "the event is still there");
    assert_eq!(conn.deadline(MaxAge), None, "it comes once");
}

#[test]
fn next_that_is_dropped_loses_no_event() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    {
        let mut wait = Box::pin(conn.next());
        assert_eq!(look(&mut wait), None);
    }
    lab.advance(ms(100));
    let mut wait = Box::pin(conn.next());
    assert_eq!(look(&mut wait), Some(Some(ConnEvent { kind: ReadIdle, first: true })));
}

#[test]
fn close_wakes_a_task_that_waits_beside_a_callback() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    conn.on_event(|_, _| {});
    let (alarm, waker) = Alarm::new();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    lab.advance(ms(100));
    assert_eq!(alarm.count(), 0, "the callback is called instead");
    conn.close();
    assert_eq!(alarm.count(), 1);
}

#[test]
fn waker_whose_drop_closes_the_connection_leaves_no_task_waiting() {
    let lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let closes = closes_when_dropped(&conn);
    assert!(conn.poll_next(&mut Context::from_waker(&closes)).is_pending());
    drop(closes);
    // The connection stores the last clone of the waker, and replaces it by another waker.
    let (alarm, waker) = Alarm::new();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(None)));
}

#[test]
fn waker_that_panics_does_not_keep_its_connection() {
    let mut lab = lab();
    let waker = waker_of(|| panic!("the test asks for it"));
    for _ in 0..2 {
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
        drop(conn);
        assert_eq!((counted(&mut lab), lab.timers().len()), (0, 0));
    }
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    lab.advance(ms(100));
    assert_eq!((event(&conn), lab.counts().panicked), (Some((ReadIdle, true)), 3));
}
