//! `pack` and `adopt`: a connection that goes to another shard.

use corewheel::Refused;

use super::*;

#[test]
fn adopt_keeps_all_deadlines() {
    let mut lab = lab_with(builder(2));
    let limits = ConnLimits { read_idle: ms(100), max_age: ms(500), handshake: ms(20), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.disarm(Handshake).unwrap();
    conn.arm(Custom(2), ms(130)).unwrap();
    lab.advance(ms(60));
    // The stamp is a time in 10 ms, or the next turn.
    conn.touch_read();
    lab.advance(ms(5));
    let packed = conn.pack().unwrap();
    assert!(lab.timers().is_empty(), "the entry is gone");
    let _ = lab.turn();
    assert_eq!((lab.counts().cancelled, lab.counts().migrated_out), (1, 1));
    // A packed connection is `Send`, and time passes on the way.
    let packed = std::thread::spawn(move || packed).join().unwrap();
    lab.advance(ms(5));
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(conn.limits(), limits);
    let events = run(&mut lab, &conn, 500);
    let expected = [
        (130, Custom(2), true),
        (165, ReadIdle, true),
        (265, ReadIdle, false),
        (365, ReadIdle, false),
        (465, ReadIdle, false),
        (500, MaxAge, true),
        (565, ReadIdle, false),
    ];
    assert_eq!(events, expected);
    let closed = lab.shards[1].timers().connection(limits).unwrap();
    closed.close();
    assert!(closed.pack().is_none());
}

#[test]
fn adopt_by_a_full_shard_returns_the_connection() {
    let mut lab = lab_with(builder(2).capacity(1));
    let packed = lab.timers().connection(READ_IDLE).unwrap().pack().unwrap();
    let other = lab.shards[1].timers().clone();
    let there = other.connection(READ_IDLE).unwrap();
    let error = other.adopt(packed).unwrap_err();
    assert!(matches!(error, Refused::Full(_)) && error.to_string().contains("capacity"));
    let packed = error.into_value();
    drop(there);
    let conn = other.adopt(packed).unwrap();
    assert_eq!(conn.limits(), READ_IDLE);
    assert_eq!(run(&mut lab, &conn, 100).len(), 1);
}

#[test]
fn adopted_stamp_is_not_resolved_by_gaps_of_the_new_shard() {
    for looks_first in [false, true] {
        let mut lab = lab_with(builder(2));
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        let other = lab.shards[1].timers().connection(NONE).unwrap();
        // Both shards give the same stamp; only the first reads the clock in time.
        conn.touch_read();
        other.touch_read();
        lab.clock.advance(ms(10));
        let _ = lab.shards[0].turn();
        lab.clock.advance(ms(80));
        if looks_first {
            let _ = lab.shards[1].turn();
        }
        lab.clock.advance(ms(20));
        let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
        assert_eq!(run(&mut lab, &conn, 1), [(111, ReadIdle, true)]);
    }
}

#[test]
fn pack_closes_all_handles() {
    let lab = lab_with(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let clone = conn.clone();
    let packed = conn.pack().unwrap();
    assert!(clone.is_closed() && lab.timers().is_empty());
    assert!(clone.pack().is_none());
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert!(!conn.is_closed());
}

/// The new shard has not read its clock since the event came.
#[test]
fn idle_event_that_was_taken_along_is_held_back_by_what_has_begun_since() {
    let limits = NONE.all_idle(ms(100)).write_timeout(ms(500));
    let holds = [ConnTimers::begin_read, ConnTimers::begin_write, ConnTimers::begin_request];
    for (what, begin) in holds.into_iter().enumerate() {
        let mut lab = lab_with(builder(2));
        let _other = lab.shards[1].timers().connection(NONE).unwrap();
        let conn = lab.timers().connection(limits).unwrap();
        lab.clock.advance(ms(100));
        let _ = lab.turn();
        let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
        let held = begin(&conn);
        assert_eq!(event(&conn), None, "hold {what}");
        assert_eq!(run(&mut lab, &conn, 300), [], "hold {what}");
        assert!(held.finish());
        let events = run(&mut lab, &conn, 111);
        assert!(matches!(events[..], [(500.., AllIdle, true)]), "hold {what}: {events:?}");
    }
}
