//! Classes of timers: what is counted for each, on every way that a timer can begin and end.

mod containers;
mod histories;
mod lateness;

use std::collections::HashMap;

use super::*;
use corewheel_test_support::Eager;

const ALL: [TimerClass; 3] = [IDLE, REQUEST, LEASE];

fn classed(shards: usize) -> TimerServiceBuilder {
    builder(shards).classes(ALL)
}

/// A shard with the classes.
fn lab() -> (Lab<u32>, Timers<u32>) {
    let lab = Lab::new(classed(1));
    let timers = lab.timers().clone();
    (lab, timers)
}

/// What one reading of a shard says of a class.
#[track_caller]
fn of(classes: &[ClassStats], class: TimerClass) -> ClassStats {
    *classes.iter().find(|known| known.class == class.name()).expect("the class is known")
}

fn counts<T: Send + 'static>(lab: &Lab<T>, class: TimerClass) -> ClassStats {
    of(&lab.service.stats().shards[0].classes, class)
}

/// The law of each class, in one reading.
#[track_caller]
fn check_classes(classes: &[ClassStats]) {
    for counts in classes {
        let ClassStats { class, oldest, .. } = counts;
        let ended = counts.fired + counts.cancelled + counts.returned + counts.dropped;
        let live = counts.scheduled.checked_sub(ended);
        assert_eq!(Some(counts.pending), live, "{class}: {counts:?}");
        assert!(counts.late <= counts.fired, "{class}: {counts:?}");
        assert_eq!(oldest.is_some(), counts.pending > 0, "{class}: {counts:?}");
    }
}

/// What depends on when turns come, and is tested apart.
const LATENESS: [&str; 3] = ["measured", "lateness_ns", "lateness_max_ns"];

#[track_caller]
fn check(counts: ClassStats, expected: &[(&str, u64)]) {
    let is_count = |(name, _): &(&str, u64)| !LATENESS.contains(name);
    for (name, value) in counts.iter().filter(is_count) {
        let expected = expected.iter().find(|(known, _)| *known == name).map_or(0, |(_, n)| *n);
        assert_eq!(value, expected, "{name} of {counts:?}");
    }
}

#[test]
fn schedule_task_counts_for_class_of_its_view() {
    let (mut lab, timers) = lab();
    let lease = timers.of_class(LEASE).unwrap();
    let (_, mut here) = lease.schedule_task(ms(1), |_| 1).unwrap();
    let (never, _reply) = lease.schedule_task(timers.now() + FAR, |_| 2).unwrap();
    let client = lab.service.handle();
    let lease = client.on(SHARD).of_class(LEASE).unwrap();
    let there = lease.schedule_task(ms(1), |_| 3).unwrap();
    let later = lease.schedule_task(client.now() + FAR, |_| 4).unwrap();
    lab.advance(ms(2));
    assert_eq!(look(&mut here), Some(Ok(1)));
    assert!(timers.cancel(never).won());
    drop((there, later));
    lab.settle();
    let expected = [("scheduled", 4), ("pending", 1), ("fired", 2), ("cancelled", 1)];
    check(counts(&lab, LEASE), &expected);
}

#[test]
fn callbacks_and_futures_count_for_class_of_their_view() {
    let (mut lab, timers) = lab();
    let lease = timers.of_class(LEASE).unwrap();
    lease.schedule_fn(ms(1), |_| {}).unwrap();
    lease.schedule_fn(timers.now() + FAR, |_| {}).unwrap();
    let never = pending::<()>;
    let mut dropped = Box::pin(lease.sleep(timers.now() + FAR));
    let mut sleeps = Box::pin(lease.sleep(ms(2)));
    let mut within = Box::pin(lease.timeout(ms(3), never()));
    let mut within_at = Box::pin(lease.timeout(timers.now() + FAR, never()));
    assert!(look(&mut sleeps).is_none() && look(&mut dropped).is_none());
    assert!(look(&mut within).is_none() && look(&mut within_at).is_none());
    // Those of futures are counted at once, and the others by the next turn.
    check(counts(&lab, LEASE), &[("scheduled", 4), ("pending", 4)]);
    lab.settle();
    check(counts(&lab, LEASE), &[("scheduled", 6), ("pending", 6)]);
    drop(dropped);
    lab.advance(ms(5));
    assert!(look(&mut sleeps).is_some() && look(&mut within).is_some());
    drop(within_at);
    lab.settle();
    let expected = [("scheduled", 6), ("fired", 3), ("cancelled", 2), ("pending", 1)];
    check(counts(&lab, LEASE), &expected);
}

#[test]
fn ticks_and_shared_deadlines_count_for_class_of_their_view() {
    let (mut lab, timers) = lab();
    let lease = timers.of_class(LEASE).unwrap();
    lease.schedule(timers.deadline(ms(5)), 1).unwrap();
    let mut interval = lease.interval(ms(10)).unwrap();
    let mut delayed = timers.handle().of_class(LEASE).unwrap().fixed_delay(ms(10)).unwrap();
    let mut plan = Box::pin(lease.sleep(timers.now() + ms(10)));
    let mut context = Context::from_waker(Waker::noop());
    // The first tick is now, and takes no timer.
    assert!(interval.poll_tick(&mut context).is_ready());
    for _ in 0..2 {
        assert!(interval.poll_tick(&mut context).is_pending());
        assert!(delayed.poll_tick(&mut context).is_pending());
        assert!(look(&mut plan).is_none());
        lab.settle();
    }
    check(counts(&lab, LEASE), &[("scheduled", 4), ("pending", 4)]);
    lab.advance(ms(10));
    assert!(interval.poll_tick(&mut context).is_ready());
    assert!(interval.poll_tick(&mut context).is_pending());
    assert!(delayed.poll_tick(&mut context).is_ready());
    assert!(look(&mut plan).is_some());
    lab.settle();
    check(counts(&lab, LEASE), &[("scheduled", 5), ("fired", 4), ("pending", 1)]);
    drop(interval);
    lab.settle();
    check(counts(&lab, LEASE), &[("scheduled", 5), ("fired", 4), ("cancelled", 1)]);
    assert!(lease.interval(ms(0)).is_err());
}

#[test]
fn cancel_that_overtakes_its_timer_counts_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let (sender, other) = (lab.client(), lab.client());
    // The lane of the one that cancels is looked at first.
    other.on(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    let timer = sender.on(SHARD).of_class(IDLE).unwrap().schedule(FAR, 1).unwrap();
    let answer = other.cancel(timer);
    lab.settle();
    assert!(matches!(block_on(answer).unwrap(), CancelOutcome::Cancelled { .. }));
    assert_eq!(lab.counts().overtaken, 1);
    check(counts(&lab, IDLE), &[("scheduled", 1), ("cancelled", 1)]);
}

#[test]
fn oldest_age_is_right_in_whatever_order_timers_end() {
    let (mut lab, timers) = lab();
    let idle = timers.of_class(IDLE).unwrap();
    let oldest = |lab: &Lab<u32>| of(&lab.service.stats().classes(), IDLE).oldest;
    lab.settle();
    assert_eq!(oldest(&lab), None);
    let mut handles = Vec::new();
    for n in 0..5 {
        handles.push(idle.schedule(FAR, n).unwrap());
        lab.advance(ms(10));
    }
    assert_eq!(oldest(&lab), Some(ms(50)));
    // Moving one does not make it younger.
    let _ = timers.reset(handles[0], FAR);
    for (cancelled, expected) in [(2, 50), (0, 40), (1, 20), (4, 20)] {
        assert!(timers.cancel(handles[cancelled]).won());
        lab.settle();
        assert_eq!(oldest(&lab), Some(ms(expected)), "after {cancelled}");
    }
    assert!(timers.cancel(handles[3]).won());
    lab.settle();
    assert_eq!(oldest(&lab), None);
}

#[test]
fn late_timer_counts_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1).lateness_bound(ms(4)));
    let timers = lab.timers().clone();
    timers.of_class(IDLE).unwrap().schedule(ms(1), 1).unwrap();
    timers.of_class(REQUEST).unwrap().schedule(ms(8), 2).unwrap();
    lab.advance(ms(10));
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1), ("late", 1)]);
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("fired", 1)]);
    assert_eq!(lab.counts().late, 1);
}

#[test]
fn refusal_counts_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1).capacity(4));
    let timers = lab.timers().clone();
    let idle = timers.of_class(IDLE).unwrap();
    let accepted = (0..10).filter(|n| idle.schedule(FAR, *n).is_ok()).count() as u64;
    assert!(matches!(idle.schedule_fn(FAR, |_| {}), Err(Refused::Full(_))));
    assert!(look(&mut Box::pin(idle.sleep(FAR))).is_some(), "there is no timer for it");
    let client = lab.service.handle();
    let there = client.on(SHARD);
    let refused = there.of_class(REQUEST).unwrap().schedule(FAR, 1);
    assert!(matches!(refused, Err(Refused::Busy(1))));
    assert!(there.of_class(LEASE).unwrap().schedule(FAR, 1).is_err());
    lab.settle();
    let expected = [("scheduled", accepted), ("pending", accepted), ("refused", 12 - accepted)];
    check(counts(&lab, IDLE), &expected);
    check(counts(&lab, REQUEST), &[("refused", 1)]);
    check(counts(&lab, LEASE), &[("refused", 1)]);
    assert_eq!(lab.counts().refused, 14 - accepted);
    // After the end nothing is refused for want of room.
    let idle = timers.of_class(IDLE).unwrap();
    let report = lab.end(ShutdownPolicy::Drop);
    assert!(matches!(idle.schedule(FAR, 1), Err(Refused::Closed(1))));
    assert_eq!(of(&report.shards[0].classes, IDLE).refused, 12 - accepted);
}

#[test]
fn overrun_counts_for_its_class() {
    for host in Host::all() {
        let running = Running::start(host, classed(1).overrun(ms(2)), |_| {
            |fired: Fired<u32>, _: &Timers<u32>| {
                if fired.payload == 1 {
                    thread::sleep(ms(5));
                }
            }
        });
        let client = running.service.handle();
        client.on(SHARD).of_class(IDLE).unwrap().schedule(ms(1), 1).unwrap();
        let slow = |_: &Timers<u32>| thread::sleep(ms(5));
        client.on(SHARD).of_class(IDLE).unwrap().schedule_fn(ms(1), slow).unwrap();
        client.on(SHARD).schedule_fn(ms(1), slow).unwrap();
        let stats = || running.service.stats().shards[0].clone();
        wait_until("they have fired", || stats().counts.fired == 3);
        let overrun = of(&stats().classes, IDLE).overrun;
        assert_eq!(overrun, 2, "{host:?}");
        assert_eq!(of(&stats().classes, REQUEST).overrun, 0, "{host:?}");
    }
}

#[test]
fn overrun_is_logged_with_class_at_powers_of_two() {
    let mut lab = Lab::<u32>::new(classed(1).overrun(ms(2)));
    let clock = lab.clock.clone();
    let timers = lab.timers().clone();
    for n in 0..20 {
        let clock = clock.clone();
        let class = timers.of_class(LEASE).unwrap();
        class.schedule_fn(ms(10 * n), move |_| clock.advance(ms(5))).unwrap();
    }
    let other = clock.clone();
    timers.schedule_fn(ms(1), move |_| other.advance(ms(5))).unwrap();
    let log = logged(|| lab.advance(FAR));
    assert_eq!(counts(&lab, LEASE).overrun, 20);
    assert_eq!(lab.counts().overrun, 21);
    let lines: Vec<_> = log.lines().filter(|line| line.contains("took too long")).collect();
    for (line, overrun) in lines.iter().zip([1, 2, 4, 8, 16]) {
        assert!(line.contains("class=\"lease\"") && line.contains("took=5"), "{line}");
        assert!(line.contains(&format!("overrun={overrun}")), "{line}");
    }
    assert_eq!(lines.len(), 5, "{log}");
}

#[test]
fn unknown_class_is_refused_by_name() {
    let lab = Lab::<u32>::new(builder(1).class(IDLE));
    let error = lab.timers().of_class(REQUEST).unwrap_err();
    assert_eq!(error.field(), "class");
    assert!(error.to_string().contains("\"request\""), "{error}");
    let client = lab.service.handle();
    assert!(client.on(SHARD).of_class(REQUEST).is_err());
    // The same name is the same class, wherever it is written.
    let spelled: &'static str = String::from("idle").leak();
    assert!(client.on(SHARD).of_class(TimerClass::new(spelled)).is_ok());
}

#[test]
fn bad_class_name_is_refused_by_name() {
    let long: &'static str = "x".repeat(TimerClass::NAME_LEN_MAX + 1).leak();
    for bad in ["", long, "two\nlines", "quo\"te", "back\\slash"] {
        let started = builder(1).class(TimerClass::new(bad)).start_attached_with::<u32>();
        let Err(StartError::Config(error)) = started else { panic!("{bad:?} is accepted") };
        assert_eq!(error.field(), "class");
        assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
    }
    let twice = builder(1).class(IDLE).class(REQUEST).class(IDLE).start_attached_with::<u32>();
    let Err(error) = twice else { panic!("a name may be there once") };
    assert!(error.to_string().contains("\"idle\""), "{error}");
    let many = (0..=TimerClass::COUNT_MAX).map(|n| TimerClass::new(n.to_string().leak()));
    let many: Vec<_> = many.collect();
    assert!(builder(1).classes(many.clone()).start_attached_with::<u32>().is_err());
    let most = many[..TimerClass::COUNT_MAX].iter().copied();
    assert!(builder(1).classes(most).start_attached_with::<u32>().is_ok());
}

#[test]
fn timer_fired_while_it_is_scheduled_counts_for_its_class() {
    let lab = Lab::<u32>::new(classed(1).capacity(34));
    let timers = lab.timers().clone();
    let eager = Eager::fall_asleep(lab);
    timers.of_class(IDLE).unwrap().schedule(ms(0), 1).unwrap();
    let mut lab = eager.into_lab();
    assert_eq!(lab.fired().len(), 1, "before it was known to be of a class");
    lab.settle();
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1)]);
    // The slot of the fired timer has no class now.
    let timer = timers.schedule(FAR, 2).unwrap();
    assert!(timers.cancel(timer).won());
    timers.of_class(REQUEST).unwrap().schedule(FAR, 3).unwrap();
    lab.settle();
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1)]);
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("pending", 1)]);
}

#[test]
fn commands_of_sleeping_shard_are_published_for_their_class() {
    let (mut lab, timers) = lab();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, Waker::noop());
    let timer = timers.of_class(IDLE).unwrap().schedule(FAR, 1).unwrap();
    let _ = lab.turn();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, Waker::noop());
    timers.of_class(IDLE).unwrap().schedule(FAR + FAR, 2).unwrap();
    check(counts(&lab, IDLE), &[("scheduled", 2), ("pending", 2)]);
    assert!(timers.cancel(timer).won());
    check(counts(&lab, IDLE), &[("scheduled", 2), ("pending", 1), ("cancelled", 1)]);
    check_classes(&lab.service.stats().classes());
}

#[test]
fn service_without_classes_has_no_class_counts() {
    let service = TimerService::builder().shards(1).start_attached_with::<u32>().unwrap();
    assert!(service.stats().classes().is_empty());
    assert!(service.handle().on(SHARD).of_class(IDLE).is_err());
    let report = service.shutdown(ShutdownPolicy::Drop).unwrap();
    assert!(report.shards[0].classes.is_empty());
}
