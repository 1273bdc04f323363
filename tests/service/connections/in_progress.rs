//! Reads and requests in progress, and the deadlines that they hold back.

use super::*;

#[test]
fn thousands_of_reads_in_progress_hold_back_read_idle() {
    on_both!(READ_IDLE, |lab, conn| {
        let mut reads: Vec<_> = (0..3_000).map(|_| conn.begin_read()).collect();
        assert_eq!(run(lab, conn, 500), []);
        // All but one have ended.
        reads.truncate(1);
        assert_eq!(run(lab, conn, 500), []);
        assert_eq!(conn.deadline(ReadIdle), Some(lab.clock.now() + ms(100)));
        drop(reads);
        let events = run(lab, conn, 111);
        let [(1_100.., ReadIdle, true)] = events[..] else { panic!("{events:?}") };
    });
}

#[test]
fn idle_shard_with_a_request_in_flight_takes_one_turn_for_each_limit() {
    let mut lab = lab();
    let epoch = lab.clock.now();
    let conn = Timers::open(&lab, READ_IDLE);
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
