//! The warnings: each occurs in its scenario, and no other does.

use corewheel::Runtime;
use corewheel::settings::WarningLimits;
use corewheel::stats::{Warning, WarningKind};
use corewheel_stats::watchdog::watch;

use super::*;

/// Checks that a lab has this warning alone, and returns it.
#[track_caller]
fn only<T: Send + 'static>(lab: &Lab<T>, kind: WarningKind, count: u64) -> Warning {
    let warnings = lab.service.stats().warnings;
    let found: Vec<_> = warnings.iter().map(|warning| (warning.kind, warning.count)).collect();
    assert_eq!(found, [(kind, count)], "{warnings:?}");
    assert!(warnings[0].is_active && warnings[0].shard == SHARD, "{warnings:?}");
    warnings.into_iter().next().unwrap()
}

fn limited(limits: WarningLimits) -> TimerServiceBuilder {
    builder(1).class(REQUEST).warning_limits(limits)
}

/// Schedules so many timers, which the shard then knows.
fn schedule(lab: &mut Lab<u64>, count: usize, delay: Duration) {
    for _ in 0..count {
        lab.timers().schedule(delay, 1).unwrap();
    }
    lab.settle();
}

#[test]
fn busy_shard_that_keeps_up_has_no_warning() {
    let mut lab = Lab::new(limited(WarningLimits::default()));
    let client = lab.client();
    for round in 0..200 {
        let timers = lab.timers().of_class(REQUEST).unwrap();
        let cancelled = timers.schedule(ms(40), round).unwrap();
        for _ in 0..20 {
            timers.schedule(ms(3), round).unwrap();
            client.on(SHARD).schedule(ms(3), round).unwrap();
        }
        lab.advance(ms(1));
        assert!(lab.timers().cancel(cancelled).won());
        assert_eq!(lab.service.stats().warnings, []);
    }
}

/// The clock's time at which the lab's shard asks for its next turn. It may lie before the deadline
/// of its first timer, which a turn then takes to a list of a finer level.
fn turn_due(lab: &mut Lab<u64>) -> u64 {
    match lab.fall_asleep(Waker::noop()) {
        Turn::Next(until) => (until - lab.epoch).as_nanos() as u64,
        turn => panic!("{turn:?} beside a timer"),
    }
}

#[test]
fn turn_that_begins_long_after_it_was_due_warns_of_the_executor() {
    let mut lab = Lab::new(limited(WarningLimits::default()));
    schedule(&mut lab, 3, ms(5));
    let due = turn_due(&mut lab);
    lab.advance(Duration::from_nanos(due - lab.nanos()) + ms(50));
    assert_eq!(lab.service.stats().warnings, [], "the limit is not passed");
    lab.advance(ms(5));
    assert_eq!(lab.counts().late, 3);
    schedule(&mut lab, 1, ms(5));
    let due = turn_due(&mut lab);
    assert!(due <= lab.nanos() + 5_000_000, "a turn is due with the timer at the latest");
    lab.advance(Duration::from_nanos(due - lab.nanos()) + ms(214));
    let warning = only(&lab, WarningKind::ExecutorStalled, 1);
    let text = "shard 0: the executor was stalled for 214ms; so far stalls: 1, late timers: 4";
    assert_eq!(warning.text, text);
    lab.advance(Duration::from_secs(10));
    let warnings = lab.service.stats().warnings;
    assert!(!warnings[0].is_active && warnings[0].count == 1, "{warnings:?}");
}

#[test]
fn sleep_without_timers_is_no_stall() {
    let mut lab = Lab::<u64>::new(limited(WarningLimits::default()));
    let client = lab.client();
    let _ = lab.fall_asleep(Waker::noop());
    lab.clock.advance(FAR);
    client.on(SHARD).schedule(ms(5), 1).unwrap();
    lab.settle();
    lab.advance(ms(5));
    assert_eq!((lab.fired().len(), lab.service.stats().warnings), (1, vec![]));
}

#[test]
fn slow_handler_is_warned_of_with_its_class() {
    let mut lab = Lab::<u64>::new(limited(WarningLimits::default()));
    let clock = lab.clock.clone();
    let slow = move |_: &Timers<u64>| clock.advance(ms(12));
    lab.timers().of_class(REQUEST).unwrap().schedule_fn(ms(5), slow).unwrap();
    lab.timers().schedule(ms(5), 1).unwrap();
    lab.settle();
    lab.advance(ms(5));
    let warning = only(&lab, WarningKind::HandlerSlow, 1);
    let text = "shard 0: 1 deliveries took longer than 1ms, the latest 12ms; class request";
    assert_eq!(warning.text, text);
}

#[test]
fn turns_in_a_row_without_budget_are_warned_of() {
    let budget = TurnBudget { expired_max: 2, ..TurnBudget::default() };
    let mut lab = Lab::new(limited(WarningLimits::default()).budget(budget));
    // A turn that has enough lies between two rows.
    for _ in 0..2 {
        schedule(&mut lab, 19, ms(5));
        lab.advance(ms(5));
        assert_eq!(lab.service.stats().warnings, [], "nine turns used their budget up");
    }
    schedule(&mut lab, 21, ms(5));
    lab.advance(ms(5));
    only(&lab, WarningKind::BudgetExhausted, 1);
}

#[test]
fn lane_that_stays_full_is_warned_of() {
    let budget = TurnBudget { requests_max: 1, ..TurnBudget::default() };
    let turn_with = |requests| {
        let mut lab = Lab::new(limited(WarningLimits::default()).budget(budget).lane_capacity(8));
        let client = lab.client();
        let timer = lab.timers().schedule(FAR, 1).unwrap();
        for _ in 0..requests {
            drop(client.reset(timer, FAR));
        }
        let _ = lab.turn();
        lab
    };
    let lab = turn_with(5);
    assert_eq!(lab.service.stats().warnings, [], "four of eight are not more than a half");
    let warning = only(&turn_with(6), WarningKind::LaneFlooded, 1);
    let text = "shard 0: 1 turns left a lane filled by more than 50 % of its 8 requests";
    assert_eq!(warning.text, text);
}

#[test]
fn shard_that_takes_no_turn_is_stuck_until_it_does() {
    let mut lab = Lab::new(limited(WarningLimits::default()));
    schedule(&mut lab, 1, ms(5));
    lab.clock.advance(ms(5 + 1_000));
    assert_eq!(lab.service.stats().warnings, [], "the limit is not passed");
    lab.clock.advance(ms(1));
    let warning = only(&lab, WarningKind::ShardStuck, 1);
    let text = "shard 0: a turn has been due for 1s, and its thread has not begun it";
    assert_eq!(warning.text, text);
    lab.settle();
    assert!(!lab.service.stats().warnings[0].is_active);
}

#[test]
fn shard_that_is_nearly_full_is_warned_of() {
    let mut lab = Lab::new(limited(WarningLimits::default()).capacity(100));
    schedule(&mut lab, 90, FAR);
    assert_eq!(lab.service.stats().warnings, [], "the limit is not passed");
    schedule(&mut lab, 1, FAR);
    let warning = only(&lab, WarningKind::ShardNearCapacity, 1);
    assert_eq!(warning.text, "shard 0: 91 timers are pending, 91 % of 100");
}

#[test]
fn class_whose_oldest_timer_is_too_old_is_warned_of() {
    let limits = WarningLimits { class_age: ms(100), ..WarningLimits::default() };
    let mut lab = Lab::new(limited(limits));
    lab.timers().of_class(REQUEST).unwrap().schedule(FAR, 1).unwrap();
    lab.settle();
    lab.advance(ms(100));
    assert_eq!(lab.service.stats().warnings, [], "the limit is not passed");
    lab.advance(ms(1));
    let warning = only(&lab, WarningKind::ClassLeaks, 1);
    assert_eq!(warning.class, Some("request"));
}

#[test]
fn shard_whose_loop_was_dropped_is_dead() {
    let mut lab = Lab::<u64>::new(limited(WarningLimits::default()));
    lab.timers().schedule(FAR, 1).unwrap();
    lab.shards.clear();
    let warning = only(&lab, WarningKind::ShardDead, 1);
    assert!(warning.text.contains("1 timers were dropped"), "{}", warning.text);
}

#[test]
fn watchdog_calls_its_hook_for_a_handler_that_does_not_return() {
    let (sender, seen) = mpsc::channel();
    let tell = move |stuck: &ShardStats, is_hung| {
        // The test may have ended.
        let _ = sender.send((stuck.clone(), is_hung));
    };
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(Some(released));
    let limits = WarningLimits { stuck: ms(100), hung: ms(400), ..WarningLimits::default() };
    let builder = limited(limits).runtime(Runtime::Thread).unpinned();
    let service = builder.start_with(move |_| {
        let released = released.lock().unwrap().take().expect("there is one shard");
        move |_: Fired<u64>, _: &Timers<u64>| {
            let _ = released.recv();
        }
    });
    let service = service.unwrap();
    let source = service.stats_source();
    thread::spawn(move || watch(source, tell));
    let timers = Thread::of(&service);
    timers.on(SHARD).of_class(REQUEST).unwrap().schedule(ms(1), 1).unwrap();
    let (first, first_is_hung) = seen.recv_timeout(PATIENCE).unwrap();
    let (second, second_is_hung) = seen.recv_timeout(PATIENCE).unwrap();
    assert_eq!((first_is_hung, second_is_hung), (false, true));
    let since = (first.stuck_for(), second.stuck_for());
    assert!(since.0 > ms(100) && since.1 > ms(400), "{since:?}");
    for stuck in [first, second] {
        assert_eq!((stuck.shard, stuck.delivering), (SHARD, Some("request")));
        assert!(stuck.turn_ns.is_some(), "{stuck:?}");
    }
    let warnings = service.stats().warnings;
    let stuck = warnings.iter().find(|one| one.kind == WarningKind::ShardStuck).unwrap();
    assert!(stuck.is_active && stuck.text.contains("now for class request"), "{stuck:?}");
    release.send(()).unwrap();
    wait_until("the shard runs again", || {
        let warnings = service.stats().warnings;
        !warnings.iter().any(|one| one.kind == WarningKind::ShardStuck && one.is_active)
    });
    assert_eq!(service.stats().shards[0].counts.fired, 1);
    drop(service);
    let end = std::iter::repeat_with(|| seen.recv_timeout(PATIENCE)).find_map(Result::err);
    assert_eq!(end, Some(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn watchdog_ends_with_its_shards_and_survives_a_hook_that_panics() {
    let (sender, seen) = mpsc::channel();
    let tell = move |_: &ShardStats, is_hung| {
        let _ = sender.send(is_hung);
        panic!("the hook panics");
    };
    let limits = WarningLimits { stuck: ms(10), hung: ms(50), ..WarningLimits::default() };
    let mut lab = Lab::new(limited(limits));
    let source = lab.service.stats_source();
    thread::spawn(move || watch(source, tell));
    schedule(&mut lab, 1, ms(1));
    lab.clock.advance(ms(20));
    assert_eq!(seen.recv_timeout(PATIENCE), Ok(false));
    lab.clock.advance(ms(50));
    assert_eq!(seen.recv_timeout(PATIENCE), Ok(true));
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(seen.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}
