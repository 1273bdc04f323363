//! Reads, writes and requests in progress, and the deadlines that they hold back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[test]
fn touch_during_long_write_delays_write_idle() {
    let mut lab = lab();
    let limits = ConnLimits { write_idle: ms(100), all_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let write = conn.begin_write();
    for _ in 0..10 {
        assert_eq!(run(&mut lab, &conn, 80), []);
        conn.touch_write();
    }
    assert!(write.finish(), "there is no limit for it");
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 15).len(), 2);
}

#[test]
fn read_in_progress_holds_back_read_idle_and_all_idle() {
    let mut lab = lab();
    let limits =
        ConnLimits { read_idle: ms(100), all_idle: ms(150), write_idle: ms(1_000), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let read = conn.begin_read();
    let another = conn.begin_read();
    assert_eq!(run(&mut lab, &conn, 500), []);
    drop(read);
    assert_eq!(run(&mut lab, &conn, 520), [(1_000, WriteIdle, true)]);
    drop(another);
    let events = run(&mut lab, &conn, 111);
    let [(at, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
    assert!((1_120..=1_131).contains(&at), "{at}");
}

#[test]
fn thousands_of_reads_in_progress_hold_back_read_idle() {
    let mut lab = lab();
    let conn = lab.timers().connection(ConnLimits { read_idle: ms(100), ..NONE }).unwrap();
    let mut reads: Vec<_> = (0..3_000).map(|_| conn.begin_read()).collect();
    assert_eq!(run(&mut lab, &conn, 500), []);
    // All but one have ended.
    reads.truncate(1);
    assert_eq!(run(&mut lab, &conn, 500), []);
    drop(reads);
    let events = run(&mut lab, &conn, 111);
    let [(_, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
}

#[test]
fn each_write_has_its_own_timeout() {
    let mut lab = lab();
    let conn = lab.timers().connection(ConnLimits { write_timeout: ms(100), ..NONE }).unwrap();
    let first = conn.begin_write();
    lab.advance(ms(40));
    let second = conn.begin_write();
    lab.advance(ms(40));
    let third = conn.begin_write();
    assert!(second.finish());
    // The progress of a write does not give it more time.
    conn.touch_write();
    assert_eq!(run(&mut lab, &conn, 60), [(100, WriteTimeout, true)]);
    assert!(!first.finish(), "its time was up");
    assert_eq!(conn.deadline(WriteTimeout).unwrap(), lab.clock.now() + ms(40));
    drop(third);
    assert_eq!(run(&mut lab, &conn, 200), []);
}

#[test]
fn begin_read_makes_no_deadline_earlier() {
    let mut lab = lab();
    let limits = ConnLimits { all_idle: ms(100), ..READ_IDLE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.touch();
    lab.clock.advance(ms(70));
    let deadlines = || [ReadIdle, AllIdle].map(|kind| conn.deadline(kind).unwrap());
    let before = deadlines();
    let reading = conn.begin_read();
    assert_eq!(deadlines(), before);
    lab.settle();
    let meanwhile = deadlines();
    assert!(meanwhile > before);
    drop(reading);
    assert!(deadlines() >= meanwhile);
}

#[test]
fn writes_that_time_out_together_share_an_event() {
    let mut lab = lab();
    let limits = ConnLimits { write_timeout: ms(50), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let (first, second) = (conn.begin_write(), conn.begin_write());
    assert_eq!(run(&mut lab, &conn, 200), [(50, WriteTimeout, true)]);
    assert!(!first.finish() && !second.finish());
    let overdue = conn.begin_write();
    lab.clock.advance(ms(60));
    assert!(overdue.finish());
    assert_eq!(run(&mut lab, &conn, 200), []);
}

/// The limits that a request may hold back, each of 100 ms.
const IDLE: ConnLimits = READ_IDLE.write_idle(ms(100)).all_idle(ms(100));

#[test]
fn request_in_flight_holds_back_all_idle_events() {
    let mut lab = lab();
    let conn = lab.timers().connection(IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 99), []);
    let request = conn.begin_request();
    assert_eq!(run(&mut lab, &conn, 500), []);
    // The end of the request counts as activity, 10 ms after it at most.
    drop(request);
    assert_eq!(run(&mut lab, &conn, 109), []);
    let idle = [(709, ReadIdle, true), (709, WriteIdle, true), (709, AllIdle, true)];
    assert_eq!(run(&mut lab, &conn, 1), idle);
    assert_eq!(run(&mut lab, &conn, 100), idle.map(|(_, kind, _)| (809, kind, false)));
}

#[test]
fn request_that_begins_one_tick_before_the_deadline_holds_it_back() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(99));
    let request = conn.begin_request();
    lab.advance(ms(1));
    assert_eq!(event(&conn), None);
    drop(request);
}

#[test]
fn request_that_begins_after_the_deadline_withdraws_an_event_that_was_not_taken() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(101));
    let request = conn.begin_request();
    assert_eq!(event(&conn), None);
    drop(request);
    assert_eq!(run(&mut lab, &conn, 109), []);
    assert_eq!(run(&mut lab, &conn, 1), [(211, ReadIdle, true)]);
}

#[test]
fn event_after_a_request_is_the_first() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 101), [(100, ReadIdle, true)]);
    let request = conn.begin_request();
    assert_eq!(run(&mut lab, &conn, 150), []);
    assert!(request.finish());
    assert_eq!(run(&mut lab, &conn, 110), [(361, ReadIdle, true)]);
}

#[test]
fn overlapping_requests_hold_back_idle_until_the_last_ends() {
    let mut lab = lab();
    let conn = lab.timers().connection(IDLE).unwrap();
    let mut requests: Vec<_> = (0..1_000).map(|_| conn.begin_request()).collect();
    while requests.len() > 1 {
        assert_eq!(run(&mut lab, &conn, 150), []);
        // The order of their ends does not matter.
        requests.drain(..requests.len() / 2);
        let begun_later = conn.begin_request();
        assert_eq!(run(&mut lab, &conn, 150), []);
        drop(begun_later);
    }
    assert_eq!(run(&mut lab, &conn, 150), []);
    drop(requests);
    let end = ticks_of(lab.timers());
    assert_eq!(run(&mut lab, &conn, 109), []);
    assert_eq!(run(&mut lab, &conn, 1)[0], (end + 110, ReadIdle, true));
}

#[test]
fn request_in_flight_lets_all_other_deadlines_come() {
    let mut lab = lab();
    let limits = ConnLimits { heartbeat: ms(40), handshake: ms(50), max_age: ms(90), ..READ_IDLE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.arm(Request, ms(60)).unwrap();
    conn.arm(Custom(0), ms(70)).unwrap();
    let request = conn.begin_request();
    let events = run(&mut lab, &conn, 100);
    let expected = [
        (40, Heartbeat, true),
        (50, Handshake, true),
        (60, Request, true),
        (70, Custom(0), true),
        (80, Heartbeat, false),
        (90, MaxAge, true),
    ];
    assert_eq!(events, expected);
    // The end of a request is no write, so it does not delay the heartbeat.
    drop(request);
    assert_eq!(run(&mut lab, &conn, 40), [(120, Heartbeat, false)]);
}

#[test]
fn panic_in_the_task_ends_its_request() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let (request, another) = (conn.begin_request(), conn.begin_request());
    assert_eq!(run(&mut lab, &conn, 150), []);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _request = request;
        panic!("the test asks for it");
    }));
    assert!(panicked.is_err());
    assert_eq!(run(&mut lab, &conn, 150), [], "the other request is in flight");
    drop(another);
    assert_eq!(run(&mut lab, &conn, 109), []);
    assert_eq!(run(&mut lab, &conn, 1), [(410, ReadIdle, true)]);
}

#[test]
fn request_moves_into_a_task_that_outlives_its_handle() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let request = conn.clone().begin_request();
    let mut task = Box::pin({
        let timers = lab.timers().clone();
        async move {
            timers.sleep(ms(250)).await.unwrap();
            drop(request);
        }
    });
    assert!(crate::support::look(&mut task).is_none());
    assert_eq!(run(&mut lab, &conn, 250), []);
    assert!(crate::support::look(&mut task).is_some());
    assert_eq!(run(&mut lab, &conn, 110), [(360, ReadIdle, true)]);
}

#[test]
fn idle_shard_with_a_request_in_flight_takes_one_turn_for_each_limit() {
    let mut lab = lab();
    let epoch = lab.clock.now();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let _request = conn.begin_request();
    lab.settle();
    for round in 1..5 {
        lab.advance(ms(99));
        let Turn::Next(at) = lab.turn() else { panic!("the connection is open") };
        assert!(at >= epoch + ms(100 * round), "{at:?} in round {round}");
        lab.advance(ms(1));
    }
    assert_eq!(lab.counts().fired, 0, "the entry is put off, and not delivered");
}
