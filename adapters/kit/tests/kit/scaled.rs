//! Scaled timeouts: they follow the shard's scale all at once, and never end before their minimum.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel::class::TimerClass;
use corewheel::clock::ManualClock;
use corewheel::settings::{Scale, TurnBudget};
use corewheel::stats::ClassStats;
use corewheel::{Fired, RefusedKind, ShutdownPolicy, TimerService, TimerServiceBuilder, Timers};
use corewheel_kit::scaled::{ScaledTimeout, ScaledTimeouts};
use fastrand::Rng;

use corewheel_test_support::{
    Alarm, Lab, OTHER, SHARD, builder, check_law, ms, nanos_of, next, seeds, ticks_of,
};

/// The class of all timeouts in these tests.
pub(crate) const CLASS: TimerClass = TimerClass::new("scaled");
/// The values whose timeouts have ended, each with the tick at which it did.
pub(crate) type Ends<V> = Rc<RefCell<Vec<(V, u64)>>>;

pub(crate) fn scale(factor: f64) -> Scale {
    Scale::new(factor).unwrap()
}

/// Timeouts that note what ends.
pub(crate) fn timeouts<V: 'static>(
    lab: &Lab<()>,
    min: u64,
    max: u64,
) -> (ScaledTimeouts<V>, Ends<V>) {
    let ends = Ends::default();
    let (noted, timers) = (Rc::clone(&ends), of_class(lab));
    let note = move |value, _: &_| noted.borrow_mut().push((value, ticks_of(&timers)));
    (ScaledTimeouts::new(&of_class(lab), ms(min), ms(max), note).unwrap(), ends)
}

/// Timeouts in a lab of their own.
pub(crate) fn open<V: 'static>(min: u64, max: u64) -> (Lab<()>, ScaledTimeouts<V>, Ends<V>) {
    let lab = lab();
    let (timeouts, ends) = timeouts(&lab, min, max);
    (lab, timeouts, ends)
}

pub(crate) fn of_class(lab: &Lab<()>) -> Timers<()> {
    lab.timers().of_class(CLASS).unwrap()
}

pub(crate) fn lab() -> Lab<()> {
    Lab::new(builder(1).class(CLASS))
}

pub(crate) fn of_capacity(capacity: u32) -> TimerServiceBuilder {
    TimerService::builder().shards(1).capacity(capacity).class(CLASS)
}

/// How many timeouts are pending and how many were delivered, by the published counts.
pub(crate) fn known(service: &TimerService<()>) -> (u64, u64) {
    let class = service.stats().shards[0].classes[0];
    (class.pending, class.fired)
}

/// The published counts of the class, which must add up.
#[track_caller]
pub(crate) fn class_counts(lab: &Lab<()>) -> ClassStats {
    let stats = lab.service.stats();
    let shard = &stats.shards[0];
    let counts = shard.classes[0];
    let ClassStats { pending, scheduled, fired, cancelled, .. } = counts;
    assert_eq!(scheduled, pending + fired + cancelled, "{counts:?}");
    counts
}

/// Asserts that no timeout is left, that nothing more happens, and that the counts add up.
#[track_caller]
pub(crate) fn check_empty<V>(lab: &mut Lab<()>, timeouts: &ScaledTimeouts<V>) {
    assert!(timeouts.is_empty());
    assert_eq!(lab.timers().len(), 0, "no timer is left");
    lab.settle();
    assert_eq!(lab.turn(), Turn::Idle);
    let counts = lab.counts();
    check_law(&counts);
    assert_eq!(class_counts(lab).pending, 0);
}

#[test]
fn change_of_scale_touches_no_timer() {
    let mut lab = Lab::<()>::new(of_capacity(1 << 15));
    let ranges: Vec<_> = (0..3).map(|n| timeouts(&lab, 1_000, 10_000 + n)).collect();
    for number in 0..20_000 {
        for (timeouts, _) in &ranges {
            timeouts.start(number).unwrap();
        }
    }
    lab.settle();
    assert_eq!((lab.turn(), known(&lab.service)), (next(10_000), (60_000, 0)));
    lab.timers().set_scale(scale(0.5));
    assert_eq!(lab.turn(), next(5_500));
    lab.timers().set_scale(Scale::ONE);
    assert_eq!(lab.turn(), next(10_000));
    assert_eq!(lab.service.stats().shards[0].scale, Scale::ONE);
    let counts = lab.counts();
    let touched = counts.scheduled_local + counts.reset_lazy + counts.reset_relinked;
    assert_eq!((touched, counts.fired), (0, 0), "a range has no timer");
    drop(ranges);
    assert_eq!(known(&lab.service).0, 60_000, "of the last turn");
    lab.settle();
    assert_eq!(known(&lab.service).0, 0);
}

#[test]
fn timeouts_due_at_once_are_spread_over_turns_in_order_beside_other_timers() {
    const MANY: u32 = 100_000;
    let mut lab = Lab::<()>::new(of_capacity(MANY));
    let (timeouts, ends) = timeouts(&lab, 10, 60_000);
    (0..MANY).for_each(|number| assert!(timeouts.start(number).is_ok()));
    lab.advance(ms(10));
    lab.timers().set_scale(Scale::ZERO);
    (0..3).for_each(|_| assert!(lab.timers().schedule(Duration::ZERO, ()).is_ok()));
    let (mut turns, mut all, mut turn) = (0, Vec::new(), Turn::More);
    while turn == Turn::More {
        turns += 1;
        turn = lab.turn();
        let ended = ends.take();
        assert!(ended.len() <= 384, "{} in one turn", ended.len());
        all.extend(ended.into_iter().map(|(number, _)| number));
        assert_eq!(lab.fired().len(), if turns == 1 { 3 } else { 0 }, "the timers do not wait");
    }
    assert!(all.into_iter().eq(0..MANY));
    assert!(turns >= MANY / 384, "{turns}");
    let shard = &lab.service.stats().shards[0];
    assert_eq!(shard.counts.turns_exhausted, u64::from(turns) - 1);
    assert_eq!(shard.classes[0].fired, u64::from(MANY));
    assert_eq!(shard.lateness.count, shard.counts.fired + u64::from(MANY));
    check_empty(&mut lab, &timeouts);
}

#[test]
fn scale_set_back_meanwhile_leaves_the_rest_pending() {
    let (mut lab, timeouts, ends) = open(10, 60);
    (0..2_000).for_each(|number| assert!(timeouts.start(number).is_ok()));
    lab.advance(ms(20));
    lab.timers().set_scale(Scale::ZERO);
    assert_eq!(lab.turn(), Turn::More);
    let gone = ends.take().len();
    assert!((1..=512).contains(&gone), "{gone}");
    lab.timers().set_scale(Scale::ONE);
    lab.advance(ms(39));
    assert_eq!(ends.take(), []);
    lab.advance(ms(1));
    let rest: Vec<_> = ends.take().into_iter().map(|(number, at)| (number, at == 60)).collect();
    assert!(rest.into_iter().eq((gone..2_000).map(|number| (number, true))));
    check_empty(&mut lab, &timeouts);
}

#[test]
fn turn_bounded_in_time_alternates_timers_and_timeouts() {
    let budget = TurnBudget { time_max: Some(Duration::ZERO), ..TurnBudget::default() };
    let mut lab = Lab::<()>::new(builder(1).class(CLASS).budget(budget));
    let (timeouts, ends) = timeouts(&lab, 1, 2);
    for number in 0..5 {
        timeouts.start(number).unwrap();
        lab.timers().schedule(ms(2), ()).unwrap();
    }
    lab.clock.advance(ms(2));
    let mut order = String::new();
    while lab.turn() == Turn::More {
        let (timers, scaled) = (lab.fired().len(), ends.take().len());
        assert!(timers + scaled <= 1, "one in each turn");
        order += &("t".repeat(timers) + &"s".repeat(scaled));
    }
    order += &"t".repeat(lab.fired().len());
    assert_eq!(order.trim_end_matches('t').matches("tt").count(), 0, "{order}");
    assert_eq!(order.matches("ss").count(), 0, "{order}");
    assert_eq!(order.matches('s').count() + ends.take().len(), 5, "{order}");
    check_empty(&mut lab, &timeouts);
}

#[test]
fn timeout_made_due_by_a_change_is_late_from_that_change() {
    let (mut lab, timeouts, ends) = open(5, 60_000);
    (0..1_000).for_each(|number| assert!(timeouts.start(number).is_ok()));
    lab.advance(ms(30_000));
    // They lasted for 60 s until now, so none of them is late by 25 s.
    lab.timers().set_scale(Scale::ZERO);
    assert_eq!(lab.turn(), Turn::More);
    let in_time = ends.take().len() as u64;
    lab.advance(ms(200));
    let stats = lab.service.stats();
    let shard = &stats.shards[0];
    assert_eq!(ends.take().len() as u64, 1_000 - in_time);
    let bound = Duration::from_nanos(stats.lateness_bound_ns);
    assert!(bound < ms(200), "so that the rest is late");
    assert_eq!(shard.counts.late, 1_000 - in_time, "and the others are not");
    let longest = Duration::from_nanos(shard.lateness.max_ns);
    assert!(longest >= ms(200) && longest < ms(250), "{longest:?}");
    // A timeout that starts afterwards is late from its own end on.
    timeouts.start(1).unwrap();
    lab.advance(ms(5));
    assert_eq!(lab.counts().late, 1_000 - in_time);
    assert_eq!(class_counts(&lab).late, 1_000 - in_time);
    // A change that lets it last longer makes no timeout due, so it is late from its end on.
    timeouts.start(2).unwrap();
    lab.clock.advance(ms(60_300));
    lab.timers().set_scale(Scale::ONE);
    lab.settle();
    assert_eq!(class_counts(&lab).late, 1_001 - in_time);
    assert!(lab.service.stats().shards[0].lateness.max_ns >= 300_000_000);
    check_empty(&mut lab, &timeouts);
}

#[test]
fn scale_set_while_the_shard_sleeps_wakes_it_in_time() {
    let mut lab = Lab::at_windows(builder(1).class(CLASS));
    let (timeouts, ends) = timeouts(&lab, 10, 60);
    timeouts.start("a").unwrap();
    let (alarm, waker) = Alarm::new();
    assert_eq!(lab.fall_asleep(&waker), next(60));
    lab.timers().set_scale(scale(0.5));
    assert_eq!(alarm.count(), 1, "from a task of its own core");
    assert_eq!(lab.fall_asleep(&waker), next(35));
    let client = lab.client();
    client.on(SHARD).set_scale(scale(0.5)).unwrap();
    assert_eq!(alarm.count(), 1, "it is that already");
    client.on(SHARD).set_scale(scale(0.1)).unwrap();
    assert_eq!(alarm.count(), 2, "from elsewhere");
    assert_eq!((lab.turn(), lab.timers().scale()), (next(15), scale(0.1)));
    lab.advance(ms(15));
    assert_eq!(ends.take(), [("a", 15)]);
    check_empty(&mut lab, &timeouts);
}

#[test]
fn timeouts_count_for_the_class_of_their_view_and_others_for_none() {
    const OTHER_CLASS: TimerClass = TimerClass::new("other");
    let mut lab = Lab::<()>::new(builder(1).classes([CLASS, OTHER_CLASS]).overrun(ms(2)));
    let clock = lab.clock.clone();
    let slow = move |(), _: &_| clock.advance(ms(3));
    let timeouts = ScaledTimeouts::new(&of_class(&lab), ms(1), ms(5), slow).unwrap();
    let unclassed = ScaledTimeouts::new(lab.timers(), ms(1), ms(5), |(), _| {}).unwrap();
    for _ in 0..3 {
        timeouts.start(()).unwrap();
        unclassed.start(()).unwrap();
    }
    let cancelled = timeouts.start(()).unwrap();
    assert!(timeouts.reset(cancelled), "a reset does not count");
    timeouts.cancel(cancelled);
    lab.advance(ms(5));
    timeouts.start(()).unwrap();
    timeouts.start(()).unwrap();
    drop(timeouts);
    lab.settle();
    let stats = lab.service.stats();
    let [class, other] = [0, 1].map(|index| stats.shards[0].classes[index]);
    // The second and the third wait for those before them.
    let late = [("measured", 3), ("lateness_ns", 9_000_000), ("lateness_max_ns", 6_000_000)];
    let expected = [("scheduled", 6), ("fired", 3), ("cancelled", 3), ("overrun", 3)];
    let expected = [&expected[..], &late].concat();
    for (name, value) in class.iter() {
        let expected = expected.iter().find(|(known, _)| *known == name).map_or(0, |(_, n)| *n);
        assert_eq!(value, expected, "{name} of {class:?}");
    }
    assert_eq!(class.oldest, None);
    assert!(other.iter().all(|(_, count)| count == 0), "{other:?}");
    let (shard, counts) = (&stats.shards[0], stats.shards[0].counts);
    assert_eq!((shard.lateness.count - counts.fired, counts.overrun), (6, 3));
}

#[test]
fn start_and_cancel_are_published_while_the_shard_sleeps() {
    let (mut lab, timeouts, _) = open(10, 60);
    let _ = lab.fall_asleep(Waker::noop());
    let a = timeouts.start("a").unwrap();
    timeouts.start("b").unwrap();
    let _ = lab.fall_asleep(Waker::noop());
    timeouts.cancel(a);
    let counts = class_counts(&lab);
    assert_eq!((counts.pending, counts.scheduled, counts.cancelled), (1, 2, 1));
}

#[test]
fn last_scale_set_applies_wherever_it_comes_from() {
    let mut lab = Lab::<()>::new(builder(2));
    let client = lab.client();
    client.on(SHARD).set_scale(scale(0.2)).unwrap();
    client.on(SHARD).set_scale(scale(0.3)).unwrap();
    assert_eq!(lab.timers().scale(), Scale::ONE, "it has not looked yet");
    let stats = lab.service.stats();
    assert_eq!(stats.shards[0].scale, scale(0.3), "but that is what it is to be");
    assert_eq!(serde_json::to_value(stats).unwrap()["shards"][0]["scale"], 0.3);
    lab.timers().set_scale(scale(0.4));
    lab.settle();
    assert_eq!(lab.timers().scale(), scale(0.4));
    client.on(SHARD).set_scale(scale(0.5)).unwrap();
    lab.settle();
    assert_eq!(lab.timers().scale(), scale(0.5));
    assert_eq!(lab.shards[1].timers().scale(), Scale::ONE, "each shard has its own");
    lab.service.set_scale(Scale::ZERO);
    lab.settle();
    let scales = lab.service.stats().shards.into_iter().map(|shard| shard.scale);
    assert!(scales.eq([Scale::ZERO; 2]));
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(client.on(SHARD).set_scale(Scale::ONE), Err(RefusedKind::Closed));
    lab.service.set_scale(Scale::ONE);
    lab.settle();
    assert_eq!(lab.service.stats().shards[usize::from(OTHER.number())].scale, Scale::ONE);
}

#[test]
fn shard_starts_with_the_scale_that_was_set_before() {
    let clock = ManualClock::new();
    let service: TimerService<()> = builder(1).clock(&clock).start_attached_with().unwrap();
    corewheel::sim::Thread::of(&service).on(SHARD).set_scale(scale(0.25)).unwrap();
    let deliver = |_: Fired<()>, _: &Timers<()>| {};
    let mut shard = service.attach(SHARD).unwrap().into_loop(deliver).unwrap();
    assert_eq!(shard.timers().scale(), scale(0.25));
    let timeouts = ScaledTimeouts::new(shard.timers(), ms(100), ms(500), |(), _| {}).unwrap();
    let _timeout = timeouts.start(()).unwrap();
    clock.advance(ms(199));
    let _ = shard.turn();
    assert_eq!(timeouts.len(), 1);
    clock.advance(ms(2));
    let _ = shard.turn();
    assert!(timeouts.is_empty());
    let _ = shard.shutdown(ShutdownPolicy::Drop);
}

/// The twin is a list of timeouts, each with its start. With the code it shares what the
/// documentation promises: a span is rounded to a nanosecond, an end is rounded up to a tick, and a
/// timeout of no time ends at the next one. It counts parts of 1,024 as integers, where the code
/// has a factor.
#[test]
fn random_history_of_timeouts_equals_that_of_lists() {
    struct Twin {
        number: u32,
        key: ScaledTimeout,
        start: u64,
    }
    const RANGES: [(u64, u64); 3] = [(0, 40), (5, 5), (3, 90)];
    seeds::each(60, |seed| {
        let mut rng = Rng::with_seed(seed);
        let budget = TurnBudget { expired_max: rng.u32(1..8), ..TurnBudget::default() };
        let mut lab = Lab::<()>::new(builder(1).class(CLASS).budget(budget));
        let all = RANGES.map(|(min, max)| timeouts(&lab, min, max));
        let mut twins: [Vec<Twin>; 3] = Default::default();
        let (mut over, mut counted) = (Vec::new(), [0; 3]);
        // Of 1,024 parts.
        let mut parts = 1_024;
        for step in 0..600 {
            let which = rng.usize(..RANGES.len());
            let ((timeouts, _), twin) = (&all[which], &mut twins[which]);
            if rng.u32(..4) == 0 {
                // Timeouts that are due and not delivered can be reset and cancelled.
                lab.clock.advance(Duration::from_micros(rng.u64(1..20_000)));
            }
            let now = nanos_of(lab.timers());
            let picked = rng.usize(..twin.len().max(1));
            match rng.u32(..12) {
                0..5 => {
                    let key = timeouts.start(step).unwrap();
                    counted[0] += 1;
                    twin.push(Twin { number: step, key, start: now });
                }
                5 | 6 if !twin.is_empty() => {
                    let Twin { number, key, .. } = twin.remove(picked);
                    assert!(timeouts.reset(key), "seed {seed}, step {step}");
                    twin.push(Twin { number, key, start: now });
                }
                7 if !twin.is_empty() => {
                    let Twin { number, key, .. } = twin.remove(picked);
                    assert_eq!(timeouts.cancel(key), Some(number), "seed {seed}, step {step}");
                    over.push((which, key));
                    counted[2] += 1;
                }
                8 => {
                    parts = [0, 1_024, rng.u64(..1_024)][rng.usize(..3)];
                    let scale = scale(parts as f64 / 1_024.0);
                    if rng.bool() {
                        lab.timers().set_scale(scale);
                    } else {
                        lab.client().on(SHARD).set_scale(scale).unwrap();
                    }
                }
                _ => lab.advance(Duration::from_micros(rng.u64(1..20_000))),
            }
            lab.settle();
            let now = nanos_of(lab.timers());
            for (range, (min, max)) in RANGES.into_iter().enumerate() {
                let ((timeouts, ends), twin) = (&all[range], &mut twins[range]);
                let span = min * 1_000_000 + ((max - min) * 1_000_000 * parts + 512) / 1_024;
                let is_due =
                    |twin: &Twin| (twin.start + span.max(1)).div_ceil(1_000_000) * 1_000_000 <= now;
                let due: Vec<_> = twin.extract_if(.., |twin| is_due(twin)).collect();
                let ended: Vec<_> = ends.take().into_iter().map(|(number, _)| number).collect();
                over.extend(due.iter().map(|twin| (range, twin.key)));
                counted[1] += due.len() as u64;
                let expected: Vec<_> = due.into_iter().map(|twin| twin.number).collect();
                assert_eq!(ended, expected, "seed {seed}, step {step}, {min} to {max}");
                assert_eq!(timeouts.len(), twin.len());
            }
            // Places are used again, and names are not.
            if let Some((range, key)) = rng.choice(&over) {
                let (timeouts, _) = &all[*range];
                assert!(!timeouts.reset(*key) && timeouts.cancel(*key).is_none(), "seed {seed}");
            }
            // To read the statistics takes longer than all else.
            if step % 4 > 0 {
                continue;
            }
            let pending = twins.iter().map(|twin| twin.len() as u64).sum();
            let ClassStats { pending: left, scheduled, fired, cancelled, oldest, .. } =
                class_counts(&lab);
            assert_eq!((left, [scheduled, fired, cancelled]), (pending, counted), "seed {seed}");
            let first = twins.iter().flatten().map(|twin| twin.start).min();
            assert_eq!(oldest, first.map(|start| Duration::from_nanos(now - start)), "seed {seed}");
        }
        for ((timeouts, _), twin) in all.iter().zip(twins) {
            assert!(timeouts.drain().into_iter().eq(twin.into_iter().map(|twin| twin.number)));
        }
        lab.settle();
        let ClassStats { pending, cancelled, oldest, .. } = class_counts(&lab);
        assert_eq!((pending, cancelled, oldest), (0, counted[0] - counted[1], None));
        check_law(&lab.counts());
    });
}
