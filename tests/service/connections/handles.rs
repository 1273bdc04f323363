//! Handles: clones, `close`, drop, the end of the shard, and the count of connections.

use super::*;

#[test]
fn gauge_counts_connections_while_the_shard_sleeps() {
    let mut lab = lab();
    let first = Timers::open(&lab, NONE.max_age(ms(100)));
    let mut turn = lab.turn();
    assert_eq!(lab.counts().connections, 1);
    // The shard takes no turn until something is due.
    while lab.shards[0].prepare_to_sleep(turn, Waker::noop()) == Turn::More {
        turn = lab.turn();
    }
    let second = Timers::open(&lab, NONE);
    assert_eq!(lab.counts().connections, 2);
    assert!(first.close());
    drop((first, second.clone()));
    assert_eq!(lab.counts().connections, 1);
    drop(second);
    assert_eq!(lab.counts().connections, 0);
}

#[test]
fn close_cancels_all_deadlines_once() {
    let mut lab = lab();
    let conn = Timers::open(&lab, each_limit(ms(10)));
    for number in 0..DeadlineKind::CUSTOM_COUNT {
        conn.arm(Custom(number), ms(10)).unwrap();
    }
    let write = conn.begin_write();
    let _transfers = [conn.begin_measured_read(), conn.begin_measured_write()];
    assert_eq!(lab.timers().len(), 1, "all of them are one entry");
    lab.advance(ms(10));
    let (alarm, waker) = Alarm::new();
    while let Poll::Ready(event) = poll_with(&conn, &waker) {
        assert!(event.is_some());
    }
    assert!(conn.close());
    assert_eq!(alarm.count(), 1, "the task that waits is woken");
    assert!(!conn.close(), "once");
    assert_eq!(poll(&conn), Poll::Ready(None));
    conn.touch();
    assert_eq!(conn.arm(Request, ms(1)), Ok(false));
    assert!(lab.timers().is_empty());
    lab.advance(ms(100));
    assert_eq!(poll(&conn), Poll::Ready(None));
    assert!(conn.is_closed() && conn.deadline(ReadIdle).is_none());
    drop(write);
    drop(conn);
    assert_eq!(counted(&mut lab), 0);
}

#[test]
fn full_shard_refuses_a_connection() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(2));
    let mut conns = Vec::new();
    let refused = loop {
        match lab.timers().connection(READ_IDLE) {
            Ok(conn) => conns.push(conn),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, conns.len()), (RefusedKind::Full, 2));
    assert_eq!(counted(&mut lab), 2);
    // A full shard still delivers repeated events.
    assert_eq!(run(&mut lab, &conns[1], 200).len(), 2);
    drop(conns.pop());
    conns.push(Timers::open(&lab, READ_IDLE));
    let timers = lab.timers().clone();
    let _ = lab.end(ShutdownPolicy::Drop);
    assert_eq!(timers.connection(READ_IDLE).unwrap_err(), RefusedKind::Closed);
}

#[test]
fn end_of_the_shard_closes_connections_without_an_event() {
    for policy in [ShutdownPolicy::Fire, ShutdownPolicy::Return, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let [conn, called] = [0, 1].map(|_| Timers::open(&lab, READ_IDLE));
        called.on_event(|_, event| panic!("got {event:?}"));
        let (alarm, waker) = Alarm::new();
        assert!(poll_with(&conn, &waker).is_pending());
        let report = lab.end(policy);
        assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(None)), "{policy:?}");
        assert!(conn.is_closed() && called.is_closed());
        assert_eq!(report.shards[0].counts.panicked, 0);
        conn.touch();
        drop((conn, called));
    }
}

#[test]
fn clone_keeps_the_connection_open_until_the_last_handle_is_dropped() {
    on_both!(|S| {
        let mut lab = lab();
        let conn = S::open(&lab, READ_IDLE);
        let (clone, request) = (conn.clone(), conn.begin_request());
        let (alarm, waker) = Alarm::new();
        assert!(poll_with(&clone, &waker).is_pending());
        drop(conn);
        assert!(!clone.is_closed());
        lab.settle();
        assert_eq!((lab.timers().len(), alarm.count()), (1, 0));
        drop(clone);
        lab.settle();
        assert_eq!((lab.timers().len(), alarm.count()), (0, 1));
        drop(request);
    });
}

#[test]
fn clones_share_activity_events_and_close() {
    on_both!(READ_IDLE.write_idle(ms(100)), |lab, conn| {
        let clone = conn.clone();
        assert_eq!(run(lab, conn, 60), []);
        clone.touch_read();
        // The stamp is a time in 10 ms.
        lab.advance(ms(10));
        lab.advance(ms(100));
        // Each event goes to the handle that takes it.
        assert_eq!(event(conn), Some((ReadIdle, true)));
        assert_eq!(event(&clone), Some((WriteIdle, true)));
        assert_eq!((event(conn), event(&clone)), (None, None));
        assert!(clone.close());
        assert!(conn.is_closed() && !conn.close());
        assert_eq!(poll(conn), Poll::Ready(None));
    });
}

#[test]
fn guard_does_not_keep_the_connection_open() {
    let mut lab = lab();
    let limits = READ_IDLE.write_timeout(ms(50));
    for begin in [ConnTimers::begin_read, ConnTimers::begin_write, ConnTimers::begin_request] {
        let conn = Timers::open(&lab, limits);
        let guard = begin(&conn);
        drop(conn);
        assert_eq!((counted(&mut lab), lab.timers().len()), (0, 0));
        // A new connection does not get the record while the guard refers to it.
        let other = Timers::open(&lab, limits);
        lab.advance(ms(60));
        drop(guard);
        assert_eq!(run(&mut lab, &other, 39), []);
        assert_eq!(run(&mut lab, &other, 1).len(), 1, "the guard is of another connection");
    }
}
