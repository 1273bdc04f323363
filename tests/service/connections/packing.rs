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
    conn.touch_read_at(lab.clock.now());
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
        (160, ReadIdle, true),
        (260, ReadIdle, false),
        (360, ReadIdle, false),
        (460, ReadIdle, false),
        (500, MaxAge, true),
        (560, ReadIdle, false),
    ];
    assert_eq!(events, expected);
    let closed = lab.shards[1].timers().connection(limits).unwrap();
    closed.close();
    assert!(closed.pack().is_none());
}

#[test]
fn stamp_made_just_before_pack_counts_as_late_as_before() {
    let mut lab = lab_with(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    conn.touch_read();
    // The shard is held up, and the stamp is the same.
    lab.clock.advance(ms(90));
    conn.touch_read();
    let packed = conn.pack().unwrap();
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 15).len(), 1);
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
fn adopt_keeps_events_that_were_not_taken() {
    let mut lab = lab_with(builder(2));
    let limits = ConnLimits { max_age: ms(100), read_idle: ms(50), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.arm(Custom(4), ms(20)).unwrap();
    lab.advance(ms(110));
    let packed = conn.pack().unwrap();
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(event(&conn), Some((MaxAge, true)));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), Some((Custom(4), true)));
    assert_eq!(event(&conn), None);
    assert_eq!(run(&mut lab, &conn, 60), [(160, ReadIdle, false)]);
}

#[test]
fn begin_read_withdraws_event_on_a_shard_that_has_not_read_the_clock() {
    let mut lab = lab_with(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.clock.advance(ms(100));
    let _ = lab.shards[0].turn();
    let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
    let reading = conn.begin_read();
    assert_eq!(event(&conn), None);
    drop(reading);
    assert_eq!(run(&mut lab, &conn, 109), []);
    assert_eq!(run(&mut lab, &conn, 1), [(210, ReadIdle, true)]);
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

#[test]
fn pack_ends_what_is_in_progress() {
    let mut lab = lab_with(builder(2));
    let limits = ConnLimits { write_idle: ms(100), write_timeout: ms(300), ..READ_IDLE };
    for begin in [ConnTimers::begin_read, ConnTimers::begin_request] {
        let conn = lab.timers().connection(limits).unwrap();
        let (guard, write) = (begin(&conn), conn.begin_write());
        lab.advance(ms(250));
        let _ = event(&conn);
        let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
        let ended = lab.clock.now();
        assert_eq!(conn.deadline(ReadIdle), Some(ended + ms(100)), "it was active until now");
        assert_eq!(conn.deadline(WriteTimeout), None);
        // The end of the guards has no effect on the other shard.
        lab.advance(ms(50));
        drop((guard, write));
        assert_eq!(conn.deadline(ReadIdle), Some(ended + ms(100)));
    }
}
