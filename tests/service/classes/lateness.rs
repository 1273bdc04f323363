//! How late the timers of each class were delivered.

use super::*;

/// The number of measured deliveries, the sum and the greatest lateness in milliseconds.
#[track_caller]
fn check(class: ClassStats, (count, sum, max): (u64, u64, u64)) {
    const MS: u64 = 1_000_000;
    let found = (class.measured, class.lateness_ns, class.lateness_max_ns);
    assert_eq!(found, (count, sum * MS, max * MS));
}

#[test]
fn lateness_is_measured_for_each_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let idle = timers.of_class(IDLE).unwrap();
    idle.schedule(ms(5), 1).unwrap();
    idle.schedule_fn(ms(9), |_| {}).unwrap();
    timers.of_class(REQUEST).unwrap().schedule(ms(12), 2).unwrap();
    let lease = timers.of_class(LEASE).unwrap();
    let cancelled = lease.schedule(ms(1), 3).unwrap();
    assert!(timers.cancel(cancelled).won());
    timers.schedule(ms(1), 4).unwrap();
    lab.advance(ms(12));
    check(counts(&lab, IDLE), (2, 7 + 3, 7));
    check(counts(&lab, REQUEST), (1, 0, 0));
    check(counts(&lab, LEASE), (0, 0, 0));
    idle.schedule(ms(1), 5).unwrap();
    lab.advance(ms(2));
    check(counts(&lab, IDLE), (3, 7 + 3 + 1, 7));

    idle.schedule(FAR, 6).unwrap();
    let report = lab.end(ShutdownPolicy::Fire);
    check(of(&report.shards[0].classes, IDLE), (4, 7 + 3 + 1, 7));
}

#[test]
fn lateness_of_scaled_timeouts_is_measured_for_their_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let idle = lab.timers().of_class(IDLE).unwrap();
    let timeouts = ScaledTimeouts::new(&idle, ms(5), ms(5), |_: u32, _: &_| {}).unwrap();
    timeouts.start(1).unwrap();
    timeouts.start(2).unwrap();
    lab.advance(ms(9));
    check(counts(&lab, IDLE), (2, 4 + 4, 4));
}

#[test]
fn lateness_of_a_class_is_added_up_over_shards() {
    let mut lab = Lab::<u32>::new(classed(2));
    let client = lab.client();
    for (shard, delay) in [(SHARD, 5), (OTHER, 2)] {
        let idle = client.on(shard).of_class(IDLE).unwrap();
        // The first schedule of a client may have to wait for keys.
        while idle.schedule(lab.clock.now() + ms(delay), 1).is_err() {
            lab.settle();
        }
    }
    lab.settle();
    lab.advance(ms(9));
    let classes = lab.service.stats().classes();
    check(of(&classes, IDLE), (2, 4 + 7, 7));
}
