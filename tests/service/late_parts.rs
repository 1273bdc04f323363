//! Where the lateness of a delivery arose, and what the statistics tell about the shard's turns.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use corewheel::class::TimerClass;
use corewheel::settings::TurnBudget;
use corewheel::stats::{LateDelivery, ServiceStats, ShardStats};
use corewheel::{Fired, Timers};
use corewheel_kit::scaled::ScaledTimeouts;

use corewheel_test_support::{FAR, Lab, SHARD, builder, ms};

const REQUEST: TimerClass = TimerClass::new("request");

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

/// A lab whose handler takes as long as the payload says, in milliseconds.
fn slow_lab(budget: TurnBudget) -> Lab<u64> {
    let clock = Rc::new(Cell::new(None::<corewheel::clock::ManualClock>));
    let shared = Rc::clone(&clock);
    let lab = Lab::with_handler(builder(1).budget(budget).class(REQUEST), move |_| {
        let clock = Rc::clone(&shared);
        move |fired: Fired<u64>, _: &Timers<u64>| {
            let moved = clock.take().expect("the clock is set");
            moved.advance(ms(fired.payload));
            clock.set(Some(moved));
        }
    });
    clock.set(Some(lab.clock.clone()));
    lab
}

#[test]
fn turn_that_begins_late_is_a_poll_delay() {
    let mut lab = Lab::new(builder(1).class(REQUEST));
    lab.timers().of_class(REQUEST).unwrap().schedule(ms(5), 1).unwrap();
    lab.timers().schedule(ms(40), 2).unwrap();
    lab.settle();
    lab.advance(ms(45));
    let stats = shard(&lab);
    // The second one is late by less than the bound of 10 ms.
    assert_eq!((stats.counts.late, stats.late_deliveries.len()), (1, 1));
    let delivery = &stats.late_deliveries[0];
    check(delivery, [0, 40, 0, 0]);
    assert_eq!((delivery.class, delivery.at_ns), (Some("request"), lab.nanos()));
    assert!(!delivery.after_budget);
    for (part, times) in &stats.late_parts {
        let expected = if *part == "poll_delay" { 40_000_000 } else { 0 };
        assert_eq!((times.count, times.sum_ns), (1, expected), "{part}");
    }
}

#[test]
fn deliveries_before_it_in_the_turn_are_the_part_of_handlers() {
    let mut lab = slow_lab(TurnBudget::default());
    lab.timers().schedule(ms(5), 30).unwrap();
    lab.timers().schedule(ms(5), 0).unwrap();
    lab.settle();
    lab.advance(ms(6));
    let stats = shard(&lab);
    assert_eq!(stats.late_deliveries.len(), 1);
    check(&stats.late_deliveries[0], [0, 1, 30, 0]);
    assert_eq!((stats.turn_time.count, stats.counts.busy_ns), (stats.counts.turns, 30_000_000));
}

#[test]
fn turns_without_budget_are_the_backlog_and_are_marked() {
    let mut lab = slow_lab(TurnBudget { expired_max: 1, ..TurnBudget::default() });
    for took in [20, 20, 0] {
        lab.timers().schedule(ms(5), took).unwrap();
    }
    lab.settle();
    lab.clock.advance(ms(5));
    let _ = lab.turn();
    lab.clock.advance(ms(3));
    let _ = lab.turn();
    let _ = lab.turn();
    let stats = shard(&lab);
    let [third, second] = &stats.late_deliveries[..] else { panic!("{stats:?}") };
    // The first turn took 20 ms, and the next one began 3 ms later.
    check(second, [0, 3, 0, 20]);
    // Of the two turns before the third, only the last delay is known apart.
    check(third, [0, 0, 0, 43]);
    assert!(second.after_budget && third.after_budget);
}

#[test]
fn timer_that_is_due_while_a_turn_delivers_waits_for_its_handlers() {
    let mut lab = slow_lab(TurnBudget::default());
    lab.timers().schedule(ms(5), 40).unwrap();
    lab.timers().schedule(ms(10), 0).unwrap();
    lab.settle();
    lab.advance(ms(5));
    lab.settle();
    let stats = shard(&lab);
    check(&stats.late_deliveries[0], [0, 0, 35, 0]);
    assert!(!stats.late_deliveries[0].after_budget);
}

#[test]
fn time_that_a_turn_takes_is_not_a_stall_of_the_turn_after_it() {
    let mut lab = slow_lab(TurnBudget::default());
    lab.timers().schedule(ms(5), 200).unwrap();
    lab.timers().schedule(ms(10), 0).unwrap();
    lab.settle();
    lab.clock.advance(ms(5));
    let _ = lab.turn();
    lab.clock.advance(ms(60));
    lab.settle();
    let stats = shard(&lab);
    check(&stats.late_deliveries[0], [0, 60, 195, 0]);
    assert_eq!((stats.counts.stalls, stats.counts.stall_last_ns), (1, 60_000_000));
}

#[test]
fn request_that_is_sent_after_its_deadline_is_a_late_arrival() {
    let mut lab = Lab::new(builder(1));
    let client = lab.service.handle();
    let deadline = lab.clock.now() + ms(5);
    let _ = lab.fall_asleep(Waker::noop());
    lab.clock.advance(ms(30));
    client.on(SHARD).schedule(deadline, 1).unwrap();
    lab.clock.advance(ms(4));
    lab.settle();
    check(&shard(&lab).late_deliveries[0], [25, 4, 0, 0]);
}

#[test]
fn request_that_waits_for_a_stalled_shard_is_a_poll_delay() {
    let mut lab = Lab::new(builder(1));
    let client = lab.service.handle();
    lab.timers().schedule(FAR, 0).unwrap();
    let _ = lab.fall_asleep(Waker::noop());
    lab.clock.advance(ms(10));
    client.on(SHARD).schedule(ms(5), 1).unwrap();
    lab.clock.advance(ms(90));
    lab.settle();
    let stats = shard(&lab);
    check(&stats.late_deliveries[0], [0, 85, 0, 0]);
    assert_eq!((stats.counts.stalls, stats.counts.stall_last_ns), (1, 85_000_000));
}

#[test]
fn request_that_waits_behind_others_in_its_lane_is_a_late_arrival() {
    let mut lab = Lab::new(builder(1).budget(TurnBudget { requests_max: 2, ..<_>::default() }));
    let client = lab.service.handle();
    for payload in 0..4 {
        client.on(SHARD).schedule(ms(5), payload).unwrap();
    }
    let _ = lab.turn();
    lab.clock.advance(ms(30));
    let _ = lab.turn();
    let stats = shard(&lab);
    assert_eq!(stats.late_deliveries.len(), 4);
    // The latest first: the last two came with the second turn.
    check(&stats.late_deliveries[0], [25, 0, 0, 0]);
    check(&stats.late_deliveries[3], [0, 25, 0, 0]);
}

#[test]
fn timer_due_while_a_turn_without_budget_delivers_waits_for_its_handlers() {
    let mut lab = slow_lab(TurnBudget { expired_max: 1, ..TurnBudget::default() });
    lab.timers().schedule(ms(5), 20).unwrap();
    lab.timers().schedule(ms(10), 20).unwrap();
    lab.timers().schedule(ms(12), 0).unwrap();
    lab.settle();
    lab.clock.advance(ms(5));
    for _ in 0..3 {
        let _ = lab.turn();
    }
    let stats = shard(&lab);
    let [third, second] = &stats.late_deliveries[..] else { panic!("{stats:?}") };
    check(second, [0, 0, 15, 0]);
    // It was due when the turn began that had no budget for it.
    check(third, [0, 0, 0, 33]);
    assert!(third.after_budget);
}

#[test]
fn request_sent_in_time_to_a_shard_in_a_long_handler_waits_for_the_handler() {
    let mut lab = slow_lab(TurnBudget { requests_max: 2, ..TurnBudget::default() });
    let client = lab.service.handle();
    let deadline = lab.clock.now() + ms(100);
    lab.timers().schedule(ms(5), 1_000).unwrap();
    lab.settle();
    lab.clock.advance(ms(5));
    for _ in 0..4 {
        client.on(SHARD).schedule(deadline, 0).unwrap();
    }
    // The turn receives two of the requests, and its handler takes a second.
    let _ = lab.turn();
    lab.clock.advance(ms(3));
    for _ in 0..4 {
        client.on(SHARD).schedule(deadline, 0).unwrap();
    }
    let _ = lab.turn();
    lab.clock.advance(ms(20));
    lab.settle();
    let stats = shard(&lab);
    let parts: Vec<_> = stats.late_deliveries.iter().map(|one| &one.parts_ns).collect();
    assert_eq!(parts.len(), 8, "{parts:?}");
    // Those that the first turn received were there in time.
    for delivery in &stats.late_deliveries[6..] {
        check(delivery, [0, 3, 905, 0]);
    }
    // The turn left these in their lane, and its handler took the time.
    for delivery in &stats.late_deliveries[4..6] {
        check(delivery, [3, 0, 905, 0]);
    }
    // The others were sent late, and waited behind others in their lane.
    for delivery in &stats.late_deliveries[..4] {
        check(delivery, [928, 0, 0, 0]);
    }
}

#[test]
fn timer_scheduled_on_the_core_after_its_deadline_is_a_late_arrival() {
    let mut lab = Lab::new(builder(1));
    let deadline = lab.clock.now() + ms(5);
    let _ = lab.fall_asleep(Waker::noop());
    lab.clock.advance(ms(30));
    lab.timers().schedule(deadline, 1).unwrap();
    lab.clock.advance(ms(2));
    lab.settle();
    check(&shard(&lab).late_deliveries[0], [25, 2, 0, 0]);
    // In the loop, between two turns that the driver does not sleep between.
    lab.timers().schedule(deadline, 2).unwrap();
    lab.settle();
    check(&shard(&lab).late_deliveries[0], [27, 0, 0, 0]);
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
    let of_class: Vec<_> =
        stats.late_deliveries.iter().filter(|one| one.class == Some("request")).collect();
    check(of_class[0], [0, 40, 0, 0]);
    assert_eq!(stats.counts.late, stats.late_deliveries.len() as u64);
}

#[test]
fn last_64_late_deliveries_are_kept_and_each_is_the_sum_of_its_parts() {
    let mut lab = slow_lab(TurnBudget { expired_max: 7, ..TurnBudget::default() });
    for payload in 0..200 {
        lab.timers().schedule(ms(5 + payload % 13), payload % 3).unwrap();
    }
    lab.settle();
    lab.advance(ms(40));
    let stats = shard(&lab);
    assert_eq!((stats.counts.late, stats.late_deliveries.len()), (200, 64));
    assert!(
        stats
            .late_deliveries
            .iter()
            .all(|one| one.lateness_ns == one.parts_ns.values().sum::<u64>())
    );
    assert!(stats.late_deliveries.is_sorted_by_key(|one| std::cmp::Reverse(one.at_ns)));
    let parts: u64 = stats.late_parts.values().map(|times| times.sum_ns).sum();
    assert_eq!(parts, stats.lateness.sum_ns, "all were late");
}

#[test]
fn reader_sees_a_shard_that_is_stuck_between_turns_and_in_a_handler() {
    let seen = Rc::new(Cell::new((0, None, None)));
    let noted = Rc::clone(&seen);
    let source = Rc::new(Cell::new(None::<(Box<dyn Fn() -> ServiceStats>, _)>));
    let shared = Rc::clone(&source);
    let mut lab = Lab::with_handler(builder(1).class(REQUEST), move |_| {
        let (noted, shared) = (Rc::clone(&noted), Rc::clone(&shared));
        move |_: Fired<()>, _: &Timers<()>| {
            let (source, clock): (_, corewheel::clock::ManualClock) = shared.take().unwrap();
            clock.advance(ms(50));
            let stats = source().shards.swap_remove(0);
            noted.set((stats.overdue_ns, stats.turn_ns, stats.delivering));
        }
    });
    source.set(Some((Box::new(lab.service.stats_source()), lab.clock.clone())));
    lab.timers().of_class(REQUEST).unwrap().schedule(ms(5), ()).unwrap();
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
    let client = lab.service.handle();
    let timers = lab.timers().of_class(REQUEST).unwrap();
    let tight = timers.schedule(ms(100), 0).unwrap();
    let half = timers.schedule(ms(100), 0).unwrap();
    let early = timers.schedule(ms(100), 0).unwrap();
    let _ = timers.schedule(ms(100), 0).unwrap();
    assert!(timers.cancel(early).won());
    lab.advance(ms(45));
    assert!(timers.cancel(half).won());
    lab.advance(ms(50));
    assert!(timers.cancel(tight).won());
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
