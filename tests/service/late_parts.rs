//! Where the lateness of a delivery arose, and what the statistics tell about the shard's turns.

use corewheel::stats::LateDelivery;

use super::*;

fn shard<T: Send + 'static>(lab: &Lab<T>) -> ShardStats {
    lab.service.stats().shards.swap_remove(0)
}

/// Checks the parts of a delivery, in milliseconds: arrival, poll delay, handlers, backlog.
#[track_caller]
fn check(delivery: &LateDelivery, expected: [u64; 4]) {
    let parts = &delivery.parts_ns;
    let found = ["arrival", "poll_delay", "handlers", "backlog"].map(|name| parts[name]);
    assert_eq!(found, expected.map(|ms| ms * 1_000_000), "{delivery:?}");
    assert_eq!(delivery.lateness_ns, parts.values().sum::<u64>(), "{delivery:?}");
}

/// Checks the parts of each delivery that was late, the latest first.
#[track_caller]
fn check_all(stats: &ShardStats, expected: &[[u64; 4]]) {
    assert_eq!(stats.late_deliveries.len(), expected.len(), "{stats:?}");
    for (delivery, parts) in stats.late_deliveries.iter().zip(expected) {
        check(delivery, *parts);
    }
}

fn lab(budget: TurnBudget) -> Lab<u64> {
    Lab::new(builder(1).budget(budget).class(REQUEST))
}

/// Schedules callbacks by their delays and how long they take, in milliseconds, and settles.
fn schedule(lab: &mut Lab<u64>, timers: impl IntoIterator<Item = (u64, u64)>) {
    for (delay, takes) in timers {
        let clock = lab.clock.clone();
        lab.timers().schedule_fn(ms(delay), move |_| clock.advance(ms(takes))).unwrap();
    }
    lab.settle();
}

#[test]
fn turn_that_begins_late_is_a_poll_delay() {
    let mut lab = Lab::new(builder(1).class(REQUEST));
    lab.timers().of_class(REQUEST).unwrap().schedule(ms(5), 1).unwrap();
    schedule(&mut lab, [(40, 0)]);
    lab.advance(ms(45));
    let stats = shard(&lab);
    // The second one is late by less than the bound of 10 ms.
    check_all(&stats, &[[0, 40, 0, 0]]);
    let delivery = &stats.late_deliveries[0];
    assert_eq!((delivery.class, delivery.at_ns), (Some("request"), lab.nanos()));
    assert_eq!((stats.counts.late, delivery.after_budget), (1, false));
    for (part, times) in &stats.late_parts {
        let expected = if *part == "poll_delay" { 40_000_000 } else { 0 };
        assert_eq!((times.count, times.sum_ns), (1, expected), "{part}");
    }
}

#[test]
fn lateness_within_turns_is_of_handlers_or_of_turns_without_budget() {
    /// The budget, the timers, what passes before each turn, the parts of each delivery that was
    /// late, the latest first, and whether it is marked as one after a turn without budget.
    type Case<'a> = (u32, &'a [(u64, u64)], &'a [u64], &'a [[u64; 4]], &'a [bool]);
    const CASES: [Case<'_>; 4] = [
        (100, &[(5, 30), (5, 0)], &[6], &[[0, 1, 30, 0]], &[false]),
        // It is due while the turn delivers.
        (100, &[(5, 40), (10, 0)], &[5, 0], &[[0, 0, 35, 0]], &[false]),
        // The first turn takes 20 ms, and the next one begins 3 ms later. Of the two turns before
        // the third, only the last delay is known apart.
        (1, &[(5, 20), (5, 20), (5, 0)], &[5, 3, 0], &[[0, 0, 0, 43], [0, 3, 0, 20]], &[true; 2]),
        // The third was due when the turn began that had no budget for it.
        (1, &[(5, 20), (10, 20), (12, 0)], &[5, 0, 0], &[[0, 0, 0, 33], [0, 0, 15, 0]], &[true]),
    ];
    for (expired_max, timers, passes, expected, marks) in CASES {
        let mut lab = lab(TurnBudget { expired_max, ..TurnBudget::default() });
        schedule(&mut lab, timers.iter().copied());
        for pass in passes {
            lab.clock.advance(ms(*pass));
            let _ = lab.turn();
        }
        let stats = shard(&lab);
        check_all(&stats, expected);
        let marked = stats.late_deliveries.iter().map(|one| one.after_budget);
        assert!(marked.zip(marks).all(|(found, mark)| found == *mark), "{timers:?}");
        let took = timers.iter().map(|(_, takes)| takes * 1_000_000).sum::<u64>();
        assert_eq!((stats.turn_time.count, stats.counts.busy_ns), (stats.counts.turns, took));
    }
}

#[test]
fn time_that_a_turn_takes_is_not_a_stall_of_the_turn_after_it() {
    let mut lab = lab(TurnBudget::default());
    schedule(&mut lab, [(5, 200), (10, 0)]);
    lab.clock.advance(ms(5));
    let _ = lab.turn();
    lab.advance(ms(60));
    let stats = shard(&lab);
    check(&stats.late_deliveries[0], [0, 60, 195, 0]);
    assert_eq!((stats.counts.stalls, stats.counts.stall_last_ns), (1, 60_000_000));
}

#[test]
fn timer_scheduled_after_its_deadline_is_a_late_arrival() {
    let here = |lab: &Lab<_>, deadline| lab.timers().schedule(deadline, 1).unwrap();
    let there = |lab: &Lab<_>, deadline| lab.handle().on(SHARD).schedule(deadline, 1).unwrap();
    for schedule in [here, there] {
        let mut lab = Lab::new(builder(1));
        let deadline = lab.clock.now() + ms(5);
        let _ = lab.fall_asleep(Waker::noop());
        lab.clock.advance(ms(30));
        schedule(&lab, deadline);
        lab.advance(ms(4));
        check(&shard(&lab).late_deliveries[0], [25, 4, 0, 0]);
        // In the loop, between two turns that the driver does not sleep between.
        here(&lab, deadline);
        lab.settle();
        check(&shard(&lab).late_deliveries[0], [29, 0, 0, 0]);
    }
}

#[test]
fn request_that_waits_for_a_stalled_shard_is_a_poll_delay() {
    let mut lab = Lab::new(builder(1));
    lab.timers().schedule(FAR, 0).unwrap();
    let _ = lab.fall_asleep(Waker::noop());
    lab.clock.advance(ms(10));
    lab.handle().on(SHARD).schedule(ms(5), 1).unwrap();
    lab.advance(ms(90));
    let stats = shard(&lab);
    check(&stats.late_deliveries[0], [0, 85, 0, 0]);
    assert_eq!((stats.counts.stalls, stats.counts.stall_last_ns), (1, 85_000_000));
}

#[test]
fn request_that_waits_behind_others_in_its_lane_is_a_late_arrival() {
    let mut lab = Lab::new(builder(1).budget(TurnBudget { requests_max: 2, ..<_>::default() }));
    let client = lab.handle();
    for payload in 0..4 {
        client.on(SHARD).schedule(ms(5), payload).unwrap();
    }
    let _ = lab.turn();
    lab.clock.advance(ms(30));
    let _ = lab.turn();
    // The last two came with the second turn.
    check_all(&shard(&lab), &[[25, 0, 0, 0], [25, 0, 0, 0], [0, 25, 0, 0], [0, 25, 0, 0]]);
}

#[test]
fn request_sent_in_time_to_a_shard_in_a_long_handler_waits_for_the_handler() {
    let mut lab = lab(TurnBudget { requests_max: 2, ..TurnBudget::default() });
    let client = lab.handle();
    let deadline = lab.clock.now() + ms(100);
    let send_four = || [0; 4].map(|payload| client.on(SHARD).schedule(deadline, payload).unwrap());
    schedule(&mut lab, [(5, 1_000)]);
    lab.clock.advance(ms(5));
    send_four();
    // The turn receives two of the requests, and its handler takes a second.
    let _ = lab.turn();
    lab.clock.advance(ms(3));
    send_four();
    let _ = lab.turn();
    lab.advance(ms(20));
    let mut expected = Vec::new();
    // The last four were sent late, and waited behind others in their lane.
    expected.extend([[928, 0, 0, 0]; 4]);
    // The turn left these in their lane, and its handler took the time.
    expected.extend([[3, 0, 905, 0]; 2]);
    // Those that the first turn received were there in time.
    expected.extend([[0, 3, 905, 0]; 2]);
    check_all(&shard(&lab), &expected);
}

#[test]
fn scaled_timeouts_are_told_in_parts_too() {
    let mut lab = Lab::<u64>::new(builder(1).class(REQUEST));
    let timers = lab.timers().of_class(REQUEST).unwrap();
    let timeouts = ScaledTimeouts::new(&timers, ms(20), ms(20), |(): (), _: &_| {}).unwrap();
    let _timeout = timeouts.start(()).unwrap();
    lab.settle();
    lab.advance(ms(60));
    let stats = shard(&lab);
    let of_class = stats.late_deliveries.iter().find(|one| one.class == Some("request"));
    check(of_class.unwrap(), [0, 40, 0, 0]);
    assert_eq!(stats.counts.late, stats.late_deliveries.len() as u64);
}

#[test]
fn last_64_late_deliveries_are_kept_and_each_is_the_sum_of_its_parts() {
    let mut lab = lab(TurnBudget { expired_max: 7, ..TurnBudget::default() });
    schedule(&mut lab, (0..200).map(|number| (5 + number % 13, number % 3)));
    lab.advance(ms(40));
    let stats = shard(&lab);
    assert_eq!((stats.counts.late, stats.late_deliveries.len()), (200, 64));
    for one in &stats.late_deliveries {
        assert_eq!(one.lateness_ns, one.parts_ns.values().sum::<u64>());
    }
    assert!(stats.late_deliveries.is_sorted_by_key(|one| std::cmp::Reverse(one.at_ns)));
    let parts: u64 = stats.late_parts.values().map(|times| times.sum_ns).sum();
    assert_eq!(parts, stats.lateness.sum_ns, "all were late");
}

#[test]
fn reader_sees_a_shard_that_is_stuck_between_turns_and_in_a_handler() {
    let mut lab = lab(TurnBudget::default());
    let seen = Rc::new(Cell::new((0, None, None)));
    let (noted, clock) = (Rc::clone(&seen), lab.clock.clone());
    let source = lab.service.stats_source();
    let call = move |_: &_| {
        clock.advance(ms(50));
        let stats = source().shards.swap_remove(0);
        noted.set((stats.overdue_ns, stats.turn_ns, stats.delivering));
    };
    lab.timers().of_class(REQUEST).unwrap().schedule_fn(ms(5), call).unwrap();
    assert_eq!(shard(&lab).overdue_ns, 0, "no turn has seen it");
    lab.settle();
    lab.clock.advance(ms(25));
    let stats = shard(&lab);
    assert_eq!((stats.overdue_ns, stats.turn_ns), (20_000_000, None));
    assert_eq!(stats.stuck_for(), ms(20));
    lab.settle();
    assert_eq!(seen.get(), (70_000_000, Some(50_000_000), Some("request")));
    let stats = shard(&lab);
    assert_eq!((stats.overdue_ns, stats.turn_ns, stats.delivering), (0, None, None));
}

#[test]
fn command_that_wakes_a_sleeping_driver_is_overdue_at_once() {
    let mut lab = Lab::new(builder(1));
    lab.timers().schedule(FAR, 0).unwrap();
    let _ = lab.fall_asleep(Waker::noop());
    lab.timers().schedule(ms(5), 1).unwrap();
    lab.clock.advance(ms(25));
    assert_eq!(shard(&lab).overdue_ns, 25_000_000, "the driver has to set its alarm");
    lab.settle();
    assert_eq!(shard(&lab).overdue_ns, 0);
}

#[test]
fn cancels_are_counted_for_their_class() {
    let mut lab = Lab::new(builder(1).class(REQUEST));
    let client = lab.handle();
    let timers = lab.timers().of_class(REQUEST).unwrap();
    let [tight, half, early, _fires] = [(); 4].map(|()| timers.schedule(ms(100), 0).unwrap());
    for (timer, then) in [(early, 45), (half, 50), (tight, 0)] {
        assert!(timers.cancel(timer).won());
        lab.advance(ms(then));
    }
    // One that its thread cancels in the lane.
    let in_lane = client.on(SHARD).of_class(REQUEST).unwrap().schedule(ms(100), 0).unwrap();
    lab.clock.advance(ms(25));
    client.cancel_detached(in_lane);
    lab.settle();
    let class = shard(&lab).classes[0];
    assert_eq!((class.cancelled, class.fired), (4, 1));
    assert_eq!(class.cancel_ratio(), Some(0.8));
}

#[test]
fn statistics_tell_the_settings_the_version_and_the_memory() {
    let mut lab = Lab::new(builder(1).lane_capacity(77).overrun(ms(3)));
    lab.settle();
    let stats = lab.service.stats();
    assert_eq!((stats.schema, stats.version), (1, env!("CARGO_PKG_VERSION")));
    assert_eq!((stats.lane_capacity, stats.overrun_ns), (77, 3_000_000));
    assert_eq!(stats.budget, TurnBudget::default());
    assert!(stats.cores >= 1 && stats.warnings.is_empty());
    assert_eq!(stats.shards[0].thread_ran_ns, None, "the clock is manual");
    for _ in 0..1_000 {
        lab.timers().schedule(Duration::from_secs(9), 0).unwrap();
    }
    lab.settle();
    assert!(shard(&lab).memory_bytes >= stats.shards[0].memory_bytes + 24_000);
}
