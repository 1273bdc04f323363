//! Times that count from the beginning of a connection, as nothing has happened yet: they are the
//! same whatever the age of the service, on a shard and on any thread.

use super::*;

const LIMIT: u64 = 100;

const IDLE: [(DeadlineKind, ConnLimits); 5] = [
    (ReadIdle, NONE.read_idle(ms(LIMIT))),
    (WriteIdle, NONE.write_idle(ms(LIMIT))),
    (AllIdle, NONE.all_idle(ms(LIMIT))),
    (RequestIdle, NONE.request_idle(ms(LIMIT))),
    (Heartbeat, NONE.heartbeat(ms(LIMIT))),
];

/// The first event of a connection, with the number of milliseconds from now.
fn first_event<S: Opened>(lab: &mut Lab<u8>, conn: &ConnTimers<S>) -> (u64, DeadlineKind) {
    for after in 0..10 * LIMIT {
        if let Some((kind, first)) = event(conn) {
            assert!(first, "{kind}");
            return (after, kind);
        }
        lab.advance(ms(1));
    }
    panic!("no event comes");
}

#[test]
fn connection_has_its_whole_idle_time_at_each_age_of_the_service() {
    for (kind, limits) in IDLE {
        on_both!(|S| {
            // At first the service is as old as its epoch.
            let mut lab = Lab::<u8>::at_epoch(builder(1));
            for round in 0..20 {
                let conn = S::open(&lab, limits);
                assert_eq!(conn.deadline(kind), Some(lab.clock.now() + ms(LIMIT)), "round {round}");
                assert_eq!(first_event(&mut lab, &conn), (LIMIT, kind), "round {round}");
                // A part of a limit, some limits, and hours.
                lab.advance(ms([1, 30, 99, 100, 101, 250, 9_999_999][round % 7]));
            }
        });
    }
}

#[test]
fn request_on_a_shard_without_connections_before_is_in_progress_from_its_adoption() {
    let mut lab = Lab::<u8>::new(builder(2));
    let conn = Timers::open(&lab, NONE.all_idle(ms(LIMIT)));
    lab.advance(ms(60));
    let packed = conn.pack().unwrap();
    lab.advance(ms(10));
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    let _request = conn.begin_request();
    assert_eq!(conn.deadline(AllIdle), Some(lab.clock.now() + ms(LIMIT)));
}

#[test]
fn first_heartbeat_with_a_phase_comes_within_its_time_at_each_age_of_the_service() {
    on_both!(|S| {
        let mut lab = Lab::<u8>::at_epoch(builder(1));
        for round in 0..20 {
            let conn = S::open(&lab, NONE.heartbeat(ms(LIMIT)).heartbeat_phase(true));
            let opened = lab.clock.now();
            let after = conn.deadline(Heartbeat).unwrap().checked_duration_since(opened);
            assert!(after.is_some_and(|after| after <= ms(LIMIT)), "{after:?} in round {round}");
            let (first, _) = first_event(&mut lab, &conn);
            // What follows counts from the first heartbeat, as nothing was written.
            assert_eq!(conn.deadline(Heartbeat), Some(opened + ms(first + LIMIT)));
            lab.advance(ms([1, 30, 99, 9_999_999][round % 4]));
        }
    });
}

#[test]
fn activity_at_the_epoch_of_the_clock_counts() {
    let mut lab = Lab::<u8>::at_epoch(builder(1));
    let shared = Handle::open(&lab, NONE);
    shared.touch_read();
    drop(shared.begin_request());
    shared.set_limits(NONE.read_idle(ms(LIMIT)).request_idle(ms(LIMIT)));
    assert_eq!(event(&shared), None);
    lab.advance(ms(LIMIT));
    assert_eq!(event(&shared), Some((ReadIdle, true)));
}
