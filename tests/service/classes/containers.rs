//! Classes of connections and periodic callbacks.

use super::*;

#[test]
fn connections_and_periodic_callbacks_count_for_class_of_their_view() {
    let mut lab = Lab::<u32>::new(classed(2));
    let [here, there] = [0, 1].map(|shard: usize| lab.shards[shard].timers().clone());
    let limits = ConnLimits::default().read_idle(ms(100));
    let conn = here.of_class(IDLE).unwrap().connection(limits).unwrap();
    lab.advance(ms(0));
    check(counts(&lab, IDLE), &[("scheduled", 1), ("pending", 1)]);
    for _ in 0..3 {
        lab.advance(ms(100));
    }
    // Each time it is told it has a timer again already.
    check(counts(&lab, IDLE), &[("scheduled", 4), ("fired", 3), ("pending", 1)]);
    let conn = there.adopt(conn.pack().expect("it is open")).unwrap();
    lab.advance(ms(0));
    let of_there = |lab: &Lab<u32>| of(&lab.service.stats().shards[1].classes, IDLE);
    check(counts(&lab, IDLE), &[("scheduled", 4), ("fired", 3), ("cancelled", 1)]);
    check(of_there(&lab), &[("scheduled", 1), ("pending", 1)]);
    assert!(conn.close());
    lab.advance(ms(0));
    check(of_there(&lab), &[("scheduled", 1), ("cancelled", 1)]);

    let request = here.of_class(REQUEST).unwrap();
    let every = Repeat::at_fixed_rate(ms(10)).unwrap();
    let runs = every.begin(&request, |_| {}).unwrap();
    (0..3).for_each(|_| lab.advance(ms(10)));
    check(counts(&lab, REQUEST), &[("scheduled", 4), ("fired", 3), ("pending", 1)]);
    assert!(runs.stop());
    lab.advance(ms(0));
    check(counts(&lab, REQUEST), &[("scheduled", 4), ("fired", 3), ("cancelled", 1)]);
    for shard in lab.service.stats().shards {
        check_classes(&shard.classes);
    }
}

#[test]
fn runs_of_a_callback_with_a_class_schedule_timers_of_no_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let requests = lab.timers().of_class(REQUEST).unwrap();
    let every = Repeat::at_fixed_rate(ms(10)).unwrap();
    let call = |run: &mut PeriodicRun<'_, u32>| {
        run.timers.schedule(FAR, 0).unwrap();
    };
    every.begin(&requests, call).unwrap();
    lab.advance(ms(10));
    check(counts(&lab, REQUEST), &[("scheduled", 2), ("fired", 1), ("pending", 1)]);
    assert_eq!(lab.timers().len(), 2);
}

#[test]
fn view_with_the_class_of_a_handle_has_no_class_of_another_service() {
    let mut lab = Lab::<u32>::new(classed(1));
    let other = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    for service in [&lab.service, &other.service] {
        let handle = service.handle().of_class(REQUEST).unwrap();
        timers.with_class_of(handle).schedule(FAR, 0).unwrap();
    }
    timers.of_class(REQUEST).unwrap().with_class_of(timers.handle()).schedule(FAR, 0).unwrap();
    lab.advance(ms(0));
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("pending", 1)]);
}
