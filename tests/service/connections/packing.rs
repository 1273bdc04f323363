//! `pack` and `adopt`: a connection that goes to another shard.

use super::*;

#[test]
fn packed_connection_has_left_its_shard_and_goes_to_any_thread() {
    let mut lab = Lab::<u8>::new(builder(2));
    let limits = READ_IDLE.max_age(ms(500));
    let conn = Timers::open(&lab, limits);
    let clone = conn.clone();
    let packed = conn.pack().unwrap();
    assert!(lab.timers().is_empty(), "the entry is gone");
    assert!(clone.is_closed() && clone.pack().is_none());
    let _ = lab.turn();
    assert_eq!((lab.counts().cancelled, lab.counts().migrated_out), (1, 1));
    // Time passes on the way.
    let packed = thread::spawn(move || packed).join().unwrap();
    lab.advance(ms(5));
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!((conn.limits(), conn.is_closed()), (limits, false));
    assert_eq!(run(&mut lab, &conn, 100), [(100, ReadIdle, true)]);
}

#[test]
fn adopt_by_a_full_shard_returns_the_connection() {
    let mut lab = Lab::<u8>::new(builder(2).capacity(1));
    let packed = Timers::open(&lab, READ_IDLE).pack().unwrap();
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

/// The new shard has not read its clock since the event came.
#[test]
fn idle_event_that_was_taken_along_is_held_back_by_what_has_begun_since() {
    let limits = NONE.all_idle(ms(100)).write_timeout(ms(500));
    let holds = [ConnTimers::begin_read, ConnTimers::begin_write, ConnTimers::begin_request];
    for (what, begin) in holds.into_iter().enumerate() {
        let mut lab = Lab::<u8>::new(builder(2));
        let _other = lab.shards[1].timers().connection(NONE).unwrap();
        let conn = Timers::open(&lab, limits);
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
