//! Tasks that wait: `next`, `race`, and their wakers.

use super::*;

#[test]
fn race_prefers_value_that_is_ready_with_the_deadline() {
    let idle = |first| ConnEvent { kind: ReadIdle, first };
    on_both!(|S| {
        let mut lab = lab();
        let conn = S::open(&lab, READ_IDLE);
        lab.advance(ms(100));
        assert_eq!(race(&conn, ready(7)), Some(Raced::Done(7)));
        assert_eq!(race(&conn, pending::<u8>()), Some(Raced::Event(idle(true))));
        let mut waits = pin!(conn.race(pending::<u8>()));
        assert!(look(&mut waits).is_none());
        lab.advance(ms(100));
        assert_eq!(look(&mut waits).map(S::value), Some(Raced::Event(idle(false))));
        conn.close();
        assert_eq!(race(&conn, pending::<u8>()), Some(Raced::Closed));
    });
}

#[test]
fn next_that_is_dropped_loses_no_event() {
    on_both!(|S| {
        let mut lab = lab();
        let conn = S::open(&lab, READ_IDLE);
        for first in [true, false] {
            assert!(look(&mut pin!(conn.next())).is_none());
            lab.advance(ms(100));
            let idle = ConnEvent { kind: ReadIdle, first };
            assert_eq!(look(&mut pin!(conn.next())).map(S::value), Some(Some(idle)));
        }
    });
}

#[test]
fn close_wakes_a_task_that_waits_beside_a_callback() {
    let mut lab = lab();
    let conn = Timers::open(&lab, READ_IDLE);
    conn.on_event(|_, _| {});
    let (alarm, waker) = Alarm::new();
    assert!(poll_with(&conn, &waker).is_pending());
    lab.advance(ms(100));
    assert_eq!(alarm.count(), 0, "the callback is called instead");
    conn.close();
    assert_eq!(alarm.count(), 1);
}

#[test]
fn poll_by_another_task_replaces_the_task_that_waits() {
    on_both!(READ_IDLE, |lab, conn| {
        let ((first, first_waker), (second, second_waker)) = (Alarm::new(), Alarm::new());
        assert!(poll_with(conn, &first_waker).is_pending());
        assert!(poll_with(conn, &second_waker).is_pending());
        conn.arm(Request, ms(10)).unwrap();
        lab.advance(ms(10));
        assert_eq!((first.count(), second.count()), (0, 1));
    });
}

#[test]
fn waker_whose_drop_closes_the_connection_leaves_no_task_waiting() {
    on_both!(READ_IDLE, |_lab, conn| {
        let closes = closes_when_dropped(conn);
        assert!(poll_with(conn, &closes).is_pending());
        drop(closes);
        // The connection stores the last clone of the waker, and replaces it by another waker.
        let (alarm, waker) = Alarm::new();
        let is_told = poll_with(conn, &waker).is_ready() || alarm.count() == 1;
        assert_eq!((is_told, poll(conn)), (true, Poll::Ready(None)));
    });
}

#[test]
fn waker_that_panics_does_not_keep_its_connection() {
    let mut lab = lab();
    let waker = waker_of(|| panic!("the test asks for it"));
    for _ in 0..2 {
        let conn = Timers::open(&lab, READ_IDLE);
        assert!(poll_with(&conn, &waker).is_pending());
        drop(conn);
        assert_eq!((counted(&mut lab), lab.timers().len()), (0, 0));
    }
    let conn = Timers::open(&lab, READ_IDLE);
    assert!(poll_with(&conn, &waker).is_pending());
    lab.advance(ms(100));
    assert_eq!((event(&conn), lab.counts().panicked), (Some((ReadIdle, true)), 3));
}
