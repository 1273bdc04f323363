//! Idle events: when they come, what delays them, and that they are never early.

use fastrand::Rng;

use super::*;
use crate::support::{check_law, next, seeds};

/// Lets time pass in steps that are a little too long for a stamp: each makes a gap.
fn run_held_up(lab: &mut Lab<u8>, milliseconds: u64, mut each: impl FnMut(&mut Lab<u8>)) {
    let end = lab.clock.now() + ms(milliseconds);
    while lab.clock.now() < end {
        lab.clock.advance(Duration::from_micros(13_100));
        lab.settle();
        each(lab);
    }
}

#[test]
fn idle_connection_gets_first_event_and_then_further_events() {
    for (kind, limits) in [
        (ReadIdle, ConnLimits { read_idle: ms(100), ..NONE }),
        (WriteIdle, ConnLimits { write_idle: ms(100), ..NONE }),
        (AllIdle, ConnLimits { all_idle: ms(100), ..NONE }),
        (RequestIdle, ConnLimits { request_idle: ms(100), ..NONE }),
        (Heartbeat, ConnLimits { heartbeat: ms(100), ..NONE }),
    ] {
        let mut lab = lab();
        let conn = lab.timers().connection(limits).unwrap();
        let events = run(&mut lab, &conn, 350);
        assert_eq!(events, [(100, kind, true), (200, kind, false), (300, kind, false)]);
        check_law(&lab.counts());
    }
}

#[test]
fn activity_at_half_the_limit_delays_event_by_that_half() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for round in 1..=20 {
        assert_eq!(run(&mut lab, &conn, 50), [], "round {round}");
        conn.touch_read_at(lab.clock.now());
    }
    assert_eq!(run(&mut lab, &conn, 100), [(1_100, ReadIdle, true)]);
}

#[test]
fn touch_counts_as_up_to_ten_milliseconds_and_a_tick_later() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for at in 1..300 {
        assert_eq!(run(&mut lab, &conn, 1), [], "at {at}");
        conn.touch_read();
    }
    let events = run(&mut lab, &conn, 112);
    let [(at, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
    assert!((399..=410).contains(&at), "{at}");
}

#[test]
fn activity_after_event_makes_next_event_the_first() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(100), write_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let both = [(100, ReadIdle, true), (100, WriteIdle, true)];
    assert_eq!(run(&mut lab, &conn, 150), both);
    conn.touch_read_at(lab.clock.now());
    let events = run(&mut lab, &conn, 120);
    assert_eq!(events, [(200, WriteIdle, false), (250, ReadIdle, true)]);
    conn.touch();
    let events = run(&mut lab, &conn, 200);
    assert_eq!(events[0].1, ReadIdle);
    assert!(events[..2].iter().all(|(at, _, first)| *first && (370..=381).contains(at)));
}

#[test]
fn read_and_write_count_separately_and_both_count_for_all_idle() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(100), write_idle: ms(100), all_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    for _ in 0..3 {
        let _ = run(&mut lab, &conn, 40);
        conn.touch_write_at(lab.clock.now());
    }
    let _ = run(&mut lab, &conn, 10);
    assert_eq!(
        conn.deadline(ReadIdle).unwrap(),
        lab.clock.now() + ms(70),
        "after the event at 100"
    );
    let events = run(&mut lab, &conn, 90);
    assert_eq!(events, [(200, ReadIdle, false), (220, WriteIdle, true), (220, AllIdle, true)]);
}

#[test]
fn stall_is_followed_by_one_event() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(1_050));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), None);
    assert_eq!(run(&mut lab, &conn, 100), [(1_150, ReadIdle, false)]);
}

#[test]
fn events_that_are_not_taken_become_one() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for _ in 0..1_000 {
        lab.advance(ms(1));
    }
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), None);
}

#[test]
fn idle_event_is_never_early_on_a_shard_that_is_held_up() {
    seeds::each(300, |seed| {
        let mut rng = Rng::with_seed(seed);
        let mut lab = lab();
        let limits = ConnLimits { read_idle: ms(rng.u64(1..60)), ..NONE };
        let conn = lab.timers().connection(limits).unwrap();
        let mut touched = lab.clock.now();
        let mut held_up = Duration::ZERO;
        for _ in 0..200 {
            match rng.u32(..5) {
                // Time passes, and the shard does not get to run.
                0 => {
                    let by = Duration::from_micros(rng.u64(..40_000));
                    lab.clock.advance(by);
                    held_up += by;
                }
                1 => lab.clock.advance(Duration::from_micros(rng.u64(..2_000))),
                2 if rng.bool() => {
                    conn.touch_read_at(lab.clock.now());
                    touched = lab.clock.now();
                }
                2 => {
                    conn.touch_read();
                    touched = lab.clock.now();
                }
                _ => {
                    lab.settle();
                    let idle = lab.clock.now() - touched;
                    if let Some((kind, first)) = event(&conn) {
                        assert_eq!(kind, ReadIdle);
                        assert!(idle >= limits.read_idle, "{idle:?}");
                        if first {
                            let most = limits.read_idle + held_up + ms(70);
                            assert!(idle <= most, "{idle:?}");
                            held_up = Duration::ZERO;
                        }
                    }
                }
            }
        }
        check_law(&lab.counts());
    });
}

#[test]
fn entry_expires_only_when_the_connection_may_be_idle() {
    const CONNECTIONS: usize = 1_000;
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(1_000), ..NONE };
    let open = |_| lab.timers().connection(limits).unwrap();
    let conns: Vec<_> = (0..CONNECTIONS).map(open).collect();
    for _ in 0..5_000 {
        lab.clock.advance(ms(1));
        conns.iter().step_by(2).for_each(ConnTimers::touch_read);
        lab.settle();
    }
    let active = conns.iter().step_by(2).filter(|conn| poll(conn).is_ready()).count();
    let idle = conns.iter().skip(1).step_by(2).filter(|conn| poll(conn).is_ready()).count();
    assert_eq!((active, idle), (0, CONNECTIONS / 2));
    let counts = lab.counts();
    assert_eq!(counts.fired, 5 * CONNECTIONS as u64 / 2, "the active ones never fire");
    assert_eq!(lab.timers().len(), CONNECTIONS);
    assert!(matches!(lab.turn(), Turn::Next(_)));
    check_law(&counts);
}

#[test]
fn quiet_connection_leaves_its_shard_asleep_until_the_deadline() {
    let mut lab = lab();
    let _conn = lab.timers().connection(READ_IDLE).unwrap();
    // The wheel may take a turn for each level.
    assert!(matches!(lab.turn(), Turn::Next(_)));
    lab.advance(ms(99));
    assert_eq!(lab.turn(), next(100));
}

#[test]
fn idle_event_comes_in_time_on_a_shard_that_is_held_up_all_the_time() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(60_000), ..NONE };
    let quiet = lab.timers().connection(limits).unwrap();
    let others: Vec<_> = (0..200).map(|_| lab.timers().connection(NONE).unwrap()).collect();
    quiet.touch_read();
    let touched = lab.clock.now();
    let mut events = Vec::new();
    run_held_up(&mut lab, 130_000, |lab| {
        others.iter().for_each(ConnTimers::touch_read);
        events.extend(event(&quiet).map(|event| (lab.clock.now() - touched, event)));
    });
    let [(first, (ReadIdle, true)), (second, (ReadIdle, false))] = events[..] else {
        panic!("{events:?}")
    };
    assert!((ms(60_000)..ms(60_030)).contains(&first), "{first:?}");
    assert!((ms(60_000)..ms(60_030)).contains(&second.checked_sub(first).unwrap()), "{second:?}");
}

#[test]
fn event_after_a_withdrawn_event_is_the_first() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 100), [(100, ReadIdle, true)]);
    // This event is withdrawn, as a read comes before the event is taken.
    lab.advance(ms(100));
    conn.touch_read_at(lab.clock.now());
    lab.advance(ms(100));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
}

#[test]
fn known_time_that_equals_a_stamp_keeps_its_meaning() {
    let mut lab = lab();
    let others = lab.timers().connection(NONE).unwrap();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    // The stamp of this shard is a time in 10 ms.
    others.touch_read();
    lab.clock.advance(ms(10));
    conn.touch_read_at(lab.clock.now());
    let opened = lab.timers().connection(READ_IDLE).unwrap();
    // The shard is held up.
    lab.clock.advance(ms(490));
    lab.settle();
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&opened), Some((ReadIdle, true)));
}

#[test]
fn known_time_before_an_event_makes_the_next_event_earlier() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let _ = run(&mut lab, &conn, 50);
    let read = lab.clock.now();
    assert_eq!(run(&mut lab, &conn, 60), [(100, ReadIdle, true)]);
    conn.touch_read_at(read);
    assert_eq!(run(&mut lab, &conn, 100), [(150, ReadIdle, true)]);
}

#[test]
fn known_time_before_the_stamp_changes_nothing() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let before = lab.clock.now();
    lab.advance(ms(80));
    conn.touch_read_at(lab.clock.now());
    conn.touch_write();
    conn.touch_read_at(before);
    conn.touch_write_at(before);
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 1), [(180, ReadIdle, true)]);
}

#[test]
fn read_during_a_stall_counts_for_all_idle_beside_a_write_with_a_known_time() {
    let mut lab = lab();
    // The turn after a stall resolves the stamps of some connections only.
    let _others: Vec<_> = (0..200).map(|_| lab.timers().connection(NONE).unwrap()).collect();
    let conn = lab.timers().connection(NONE.all_idle(ms(100))).unwrap();
    let start = lab.clock.now();
    conn.touch_read();
    lab.clock.advance(ms(50));
    // The stamp of this read is a time in the past, as the thread is held up.
    conn.touch_read();
    conn.touch_write_at(start + ms(20));
    lab.settle();
    assert_eq!(conn.deadline(AllIdle), Some(start + ms(150)));
}
