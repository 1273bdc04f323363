//! Times that count from the beginning of a connection, as nothing has happened yet: they are the
//! same whatever the age of the service, on a shard and on any thread.

use super::shared::connect;
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
fn first_event(
    lab: &mut Lab<u8>,
    mut event: impl FnMut() -> Option<(DeadlineKind, bool)>,
) -> (u64, DeadlineKind) {
    for after in 0..10 * LIMIT {
        if let Some((kind, first)) = event() {
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
        // At first the service is as old as its epoch.
        let mut lab = Lab::<u8>::at_epoch(builder(1));
        for round in 0..20 {
            let here = lab.timers().connection(limits).unwrap();
            assert_eq!(here.deadline(kind), Some(lab.clock.now() + ms(LIMIT)), "round {round}");
            let came = first_event(&mut lab, || event(&here));
            assert_eq!(came, (LIMIT, kind), "on a shard, round {round}");
            drop(here);
            let shared = connect(&lab, limits);
            assert_eq!(shared.deadline(kind), Some(lab.clock.now() + ms(LIMIT)), "round {round}");
            let came = first_event(&mut lab, || shared::event(&shared));
            assert_eq!(came, (LIMIT, kind), "on any thread, round {round}");
            // A part of a limit, some limits, and hours.
            lab.advance(ms([1, 30, 99, 100, 101, 250, 9_999_999][round % 7]));
        }
    }
}

#[test]
fn first_request_has_the_whole_idle_time_and_so_has_the_time_after_it() {
    let mut lab = lab();
    let limits = NONE.request_idle(ms(LIMIT));
    let (here, shared) = (lab.timers().connection(limits).unwrap(), connect(&lab, limits));
    lab.advance(ms(LIMIT - 1));
    assert_eq!((event(&here), shared::event(&shared)), (None, None));
    let requests = (here.begin_request(), shared.begin_request());
    lab.advance(ms(10 * LIMIT));
    assert_eq!((event(&here), shared::event(&shared)), (None, None));
    drop(requests);
    for _ in 1..LIMIT {
        lab.advance(ms(1));
        assert_eq!((event(&here), shared::event(&shared)), (None, None));
    }
    // A stamp on a shard is up to 11 ticks late.
    let (after, kind) = first_event(&mut lab, || event(&here));
    assert!(kind == RequestIdle && (1..=12).contains(&after), "{kind} after {after}");
    assert_eq!(shared::event(&shared), Some((RequestIdle, true)));
}

#[test]
fn adopted_connection_counts_from_its_own_beginning() {
    for (kind, limits) in IDLE {
        // The other shard has had no connection, or has one.
        for has_other in [false, true] {
            let mut lab = lab_with(builder(2));
            let _other = has_other.then(|| lab.shards[1].timers().connection(NONE).unwrap());
            let conn = lab.timers().connection(limits).unwrap();
            let due = Some(lab.clock.now() + ms(LIMIT));
            lab.advance(ms(60));
            let packed = conn.pack().unwrap();
            lab.advance(ms(10));
            let conn = lab.shards[1].timers().adopt(packed).unwrap();
            assert_eq!(conn.deadline(kind), due, "{kind}, {has_other}");
            assert_eq!(first_event(&mut lab, || event(&conn)), (30, kind), "{has_other}");
        }
    }
}

#[test]
fn request_on_a_shard_without_connections_before_is_in_progress_from_its_adoption() {
    let mut lab = lab_with(builder(2));
    let conn = lab.timers().connection(NONE.all_idle(ms(LIMIT))).unwrap();
    lab.advance(ms(60));
    let packed = conn.pack().unwrap();
    lab.advance(ms(10));
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    let _request = conn.begin_request();
    assert_eq!(conn.deadline(AllIdle), Some(lab.clock.now() + ms(LIMIT)));
}

#[test]
fn first_heartbeat_with_a_phase_comes_within_its_time_at_each_age_of_the_service() {
    let limits = NONE.heartbeat(ms(LIMIT)).heartbeat_phase(true);
    let mut lab = Lab::<u8>::at_epoch(builder(1));
    for round in 0..20 {
        let (here, shared) = (lab.timers().connection(limits).unwrap(), connect(&lab, limits));
        for due in [here.deadline(Heartbeat), shared.deadline(Heartbeat)] {
            let after = due.unwrap().checked_duration_since(lab.clock.now());
            assert!(after.is_some_and(|after| after <= ms(LIMIT)), "{after:?} in round {round}");
        }
        let opened = lab.clock.now();
        let (first, _) = first_event(&mut lab, || event(&here));
        // What follows counts from the first heartbeat, as nothing was written.
        assert_eq!(here.deadline(Heartbeat), Some(opened + ms(first + LIMIT)));
        lab.advance(ms(LIMIT - first));
        assert_eq!(shared::event(&shared), Some((Heartbeat, true)), "round {round}");
        lab.advance(ms([1, 30, 99, 9_999_999][round % 4]));
    }
}

#[test]
fn activity_at_the_epoch_of_the_clock_counts() {
    let mut lab = Lab::<u8>::at_epoch(builder(1));
    let shared = connect(&lab, NONE);
    shared.touch_read();
    drop(shared.begin_request());
    shared.set_limits(NONE.read_idle(ms(LIMIT)).request_idle(ms(LIMIT)));
    assert_eq!(shared::event(&shared), None);
    lab.advance(ms(LIMIT));
    assert_eq!(shared::event(&shared), Some((ReadIdle, true)));
}

/// Lets the shard find the idlest connections and tell them to end. Returns which were told.
fn told(lab: &mut Lab<u8>, conns: &[(ConnTimers, ConnTimers<Handle>)]) -> Vec<(bool, bool)> {
    lab.settle();
    let is_told = |event| event == Some((MaxAge, true));
    let told = |(here, shared): &(ConnTimers, ConnTimers<Handle>)| {
        (is_told(event(here)), is_told(shared::event(shared)))
    };
    conns.iter().map(told).collect()
}

#[test]
fn idlest_connections_without_activity_are_those_that_began_first() {
    let mut lab = lab();
    let mut conns = Vec::new();
    for _ in 0..4 {
        conns.push((lab.timers().connection(NONE).unwrap(), connect(&lab, NONE)));
        lab.advance(ms(50));
    }
    // The first two have had a request since.
    drop((conns[0].0.begin_request(), conns[0].1.begin_request()));
    lab.advance(ms(50));
    assert_eq!(told(&mut lab, &conns), [(false, false); 4]);
    lab.service.close_idlest(4);
    let expected = [(false, false), (true, true), (true, true), (false, false)];
    assert_eq!(told(&mut lab, &conns), expected);
}
