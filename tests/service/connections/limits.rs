//! Limits, and the deadlines that are armed beside them.

use super::*;

/// Whether a turn leaves nothing to be done for a thousand years.
fn is_quiet(turn: Turn) -> bool {
    match turn {
        Turn::Idle => true,
        Turn::Next(at) => at > Instant::now() + Duration::from_hours(500 * 365 * 24),
        _ => false,
    }
}

#[test]
fn zero_limit_is_off_and_quiet_shard_takes_no_turn() {
    let mut lab = Lab::<u8>::at_windows(builder(1));
    let conn = lab.timers().connection(NONE).unwrap();
    assert!(is_quiet(lab.turn()));
    for kind in KINDS {
        assert_eq!(conn.deadline(kind), None, "{kind}");
    }
    lab.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(poll(&conn), Poll::Pending);
    // Activity makes the shard read the clock for a while.
    conn.touch_read();
    assert!(!is_quiet(lab.turn()));
    lab.advance(ms(11));
    assert!(is_quiet(lab.turn()));
}

#[test]
fn huge_limit_means_never() {
    let mut lab = lab();
    let conn = Timers::open(&lab, each_limit(Duration::MAX));
    conn.touch();
    let write = conn.begin_write();
    let _transfers = [conn.begin_measured_read(), conn.begin_measured_write()];
    conn.arm(Request, Duration::MAX).unwrap();
    lab.advance(Duration::from_hours(24 * 365 * 500));
    assert_eq!(poll(&conn), Poll::Pending);
    assert!(write.finish());
}

#[test]
fn arm_of_unfit_kind_is_refused_by_name() {
    let lab = lab();
    let conn = lab.timers().connection(NONE).unwrap();
    for kind in
        [ReadIdle, WriteIdle, AllIdle, RequestIdle, Heartbeat, WriteTimeout, ReadRate, WriteRate]
    {
        let said = conn.arm(kind, ms(1)).unwrap_err().to_string();
        assert!(said.contains(&kind.to_string()) && said.contains("set_limits"), "{said}");
    }
    let error = conn.disarm(Custom(8)).unwrap_err();
    assert_eq!(error.field(), "kind");
    let said = error.to_string();
    assert!(said.contains("custom deadline 8") && said.contains("0 to 7"), "{said}");
}
