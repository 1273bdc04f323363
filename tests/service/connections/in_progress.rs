//! Reads, writes and requests in progress, and the deadlines that they hold back.

use super::*;

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
    assert!(corewheel_test_support::look(&mut task).is_none());
    assert_eq!(run(&mut lab, &conn, 250), []);
    assert!(corewheel_test_support::look(&mut task).is_some());
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
