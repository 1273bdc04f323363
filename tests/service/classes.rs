//! Classes of timers: what is counted for each, on every way that a timer can begin and end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};

use corewheel::{
    CancelOutcome, ClassCounts, ClassStats, ConnLimits, Fired, KeyedTimers, Operation, PeriodicRun,
    Purgatory, Repeat, ScheduleError, ShutdownPolicy, StartError, StopOutcome, TimerClass,
    TimerHandle, TimerService, TimerServiceBuilder, Timers, UnknownClass,
};
use fastrand::Rng;

use crate::support::{
    FAR, Host, Lab, OTHER, PATIENCE, Running, SHARD, block_on, builder, check_law, ms, wait_until,
};

const IDLE: TimerClass = TimerClass::new("idle");
const REQUEST: TimerClass = TimerClass::new("request");
const LEASE: TimerClass = TimerClass::new("lease");
const ALL: [TimerClass; 3] = [IDLE, REQUEST, LEASE];

fn classed(shards: usize) -> TimerServiceBuilder {
    builder(shards).classes(ALL)
}

/// What one reading of a shard says of a class.
#[track_caller]
fn of(classes: &[ClassStats], class: TimerClass) -> ClassStats {
    *classes.iter().find(|known| known.class == class.name()).expect("the class is known")
}

fn counts<T: Send + 'static>(lab: &Lab<T>, class: TimerClass) -> ClassCounts {
    of(&lab.service.stats().shards[0].classes, class).counts
}

/// The law of each class, in one reading.
#[track_caller]
fn check_classes(classes: &[ClassStats]) {
    for ClassStats { class, counts, oldest, .. } in classes {
        let ended = counts.fired + counts.cancelled + counts.returned;
        let live = counts.scheduled.checked_sub(ended);
        assert_eq!(Some(counts.live), live, "{class}: {counts:?}");
        assert!(counts.late <= counts.fired, "{class}: {counts:?}");
        assert_eq!(oldest.is_some(), counts.live > 0, "{class}: {counts:?}");
    }
}

#[track_caller]
fn check(counts: ClassCounts, expected: &[(&str, u64)]) {
    for (name, value) in counts.iter() {
        let expected = expected.iter().find(|(known, _)| *known == name).map_or(0, |(_, n)| *n);
        assert_eq!(value, expected, "{name} of {counts:?}");
    }
}

#[test]
fn a_class_tells_its_timers_from_all_others() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let idle = timers.class(IDLE).unwrap();
    idle.schedule(ms(5), 1).unwrap();
    idle.schedule_at(timers.now() + ms(6), 2).unwrap();
    let cancelled = idle.schedule(FAR, 3).unwrap();
    timers.class(REQUEST).unwrap().schedule(FAR, 4).unwrap();
    timers.schedule(ms(5), 5).unwrap();
    assert!(timers.cancel(cancelled).won());
    assert!(!timers.cancel(cancelled).won(), "it ends once");
    lab.advance(ms(10));
    assert_eq!(lab.fired().len(), 3);
    check(counts(&lab, IDLE), &[("scheduled", 3), ("fired", 2), ("cancelled", 1)]);
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("live", 1)]);
    check(counts(&lab, LEASE), &[]);
    let report = lab.end(ShutdownPolicy::Return);
    check(of(&report.classes, REQUEST).counts, &[("scheduled", 1), ("returned", 1)]);
    check_classes(&report.classes);
}

#[test]
fn tasks_with_a_result_have_classes_too() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let lease = timers.class(LEASE).unwrap();
    let mut here = lease.schedule_task(ms(1), |_| 1).unwrap();
    let mut never = lease.schedule_task_at(timers.now() + FAR, |_| 2).unwrap();
    let client = lab.client();
    let lease = client.class(LEASE).unwrap();
    let there = lease.schedule_task_on(SHARD, ms(1), |_| 3).unwrap();
    let later = lease.schedule_task_at_on(SHARD, client.now() + FAR, |_| 4).unwrap();
    lab.advance(ms(2));
    assert_eq!(here.try_take(), Some(Ok(1)));
    assert!(never.cancel().won());
    drop((there, later.detach()));
    lab.settle();
    let expected = [("scheduled", 4), ("live", 1), ("fired", 2), ("cancelled", 1)];
    check(counts(&lab, LEASE), &expected);
}

#[test]
fn callbacks_and_futures_have_classes_too() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let lease = timers.class(LEASE).unwrap();
    lease.schedule_fn(ms(1), |_| {}).unwrap();
    lease.schedule_fn_at(timers.now() + FAR, |_| {}).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut slept = pin!(lease.sleep(ms(2)));
        let mut dropped = Box::pin(lease.sleep_until(timers.now() + FAR));
        let mut within = pin!(lease.timeout(ms(3), std::future::pending::<()>()));
        let never = std::future::pending::<()>();
        let mut within_at = pin!(lease.timeout_at(timers.now() + FAR, never));
        assert!(slept.as_mut().poll(&mut context).is_pending());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(within.as_mut().poll(&mut context).is_pending());
        assert!(within_at.as_mut().poll(&mut context).is_pending());
        check(counts(&lab, LEASE), &[]);
        lab.settle();
        check(counts(&lab, LEASE), &[("scheduled", 6), ("live", 6)]);
        drop(dropped);
        lab.advance(ms(5));
        assert!(slept.as_mut().poll(&mut context).is_ready());
        assert!(within.as_mut().poll(&mut context).is_ready());
    }
    lab.settle();
    let expected = [("scheduled", 6), ("fired", 3), ("cancelled", 2), ("live", 1)];
    check(counts(&lab, LEASE), &expected);
}

#[test]
fn ticks_and_shared_deadlines_have_classes_too() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let lease = timers.class(LEASE).unwrap();
    lease.schedule_to(timers.deadline_in(ms(5)), 1).unwrap();
    let mut interval = lease.interval(ms(10)).unwrap();
    let mut delayed = lease.fixed_delay(ms(10)).unwrap();
    let mut plan = lease.plan(timers.now() + ms(10), |_| None);
    let mut context = Context::from_waker(Waker::noop());
    // The first tick is now, and takes no timer.
    assert!(interval.poll_tick(&mut context).is_ready());
    for _ in 0..2 {
        assert!(interval.poll_tick(&mut context).is_pending());
        assert!(delayed.poll_tick(&mut context).is_pending());
        assert!(plan.poll_next(&mut context).is_pending());
        lab.settle();
    }
    check(counts(&lab, LEASE), &[("scheduled", 4), ("live", 4)]);
    lab.advance(ms(10));
    assert!(interval.poll_tick(&mut context).is_ready());
    assert!(interval.poll_tick(&mut context).is_pending());
    assert!(delayed.poll_tick(&mut context).is_ready());
    assert!(plan.poll_next(&mut context).is_ready());
    lab.settle();
    check(counts(&lab, LEASE), &[("scheduled", 5), ("fired", 4), ("live", 1)]);
    drop(interval);
    lab.settle();
    check(counts(&lab, LEASE), &[("scheduled", 5), ("fired", 4), ("cancelled", 1)]);
    assert!(lease.interval(ms(0)).is_err() && lease.fixed_delay(ms(0)).is_err());
}

#[test]
fn a_timer_from_elsewhere_brings_its_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let mut client = lab.client();
    let request = client.class(REQUEST).unwrap();
    request.schedule_on(SHARD, ms(1), 1).unwrap();
    request.schedule_at_on(SHARD, client.now() + ms(1), 2).unwrap();
    request.schedule_fn_on(SHARD, ms(1), |_| {}).unwrap();
    let cancelled = request.schedule_fn_at_on(SHARD, client.now() + FAR, |_| {}).unwrap();
    let sleep = request.sleep_on(SHARD, FAR);
    client.schedule_on(SHARD, FAR, 3).unwrap();
    lab.settle();
    check(counts(&lab, REQUEST), &[("scheduled", 5), ("live", 5)]);
    client.cancel_detached(cancelled);
    drop(sleep);
    let mut batch = client.batch(SHARD);
    batch.schedule(FAR, 4).unwrap();
    batch.class(LEASE).unwrap().schedule(FAR, 5).unwrap();
    batch.schedule_at(lab.clock.now() + ms(1), 6).unwrap();
    batch.send().unwrap();
    lab.advance(ms(5));
    check(counts(&lab, REQUEST), &[("scheduled", 5), ("fired", 3), ("cancelled", 2)]);
    check(counts(&lab, LEASE), &[("scheduled", 2), ("fired", 1), ("live", 1)]);
    check(counts(&lab, IDLE), &[]);
}

#[test]
fn a_cancel_that_overtakes_counts_for_the_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let (sender, other) = (lab.client(), lab.client());
    // The lane of the one that cancels is looked at first.
    other.schedule_on(SHARD, FAR, 0).unwrap();
    lab.settle();
    let timer = sender.class(IDLE).unwrap().schedule_on(SHARD, FAR, 1).unwrap();
    let answer = other.cancel(timer);
    lab.settle();
    assert!(matches!(block_on(answer).unwrap(), CancelOutcome::Cancelled { .. }));
    assert_eq!(lab.counts().overtaken, 1);
    check(counts(&lab, IDLE), &[("scheduled", 1), ("cancelled", 1)]);
}

#[test]
fn the_oldest_is_told_whatever_ended_before_it() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let idle = timers.class(IDLE).unwrap();
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
fn what_is_late_is_counted_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1).lateness_bound(ms(4)));
    let timers = lab.timers().clone();
    timers.class(IDLE).unwrap().schedule(ms(1), 1).unwrap();
    timers.class(REQUEST).unwrap().schedule(ms(8), 2).unwrap();
    lab.advance(ms(10));
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1), ("late", 1)]);
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("fired", 1)]);
    assert_eq!(lab.counts().late, 1);
}

#[test]
fn what_is_refused_is_counted_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1).capacity(4));
    let timers = lab.timers().clone();
    let idle = timers.class(IDLE).unwrap();
    let accepted = (0..10).filter(|n| idle.schedule(FAR, *n).is_ok()).count() as u64;
    assert!(matches!(idle.schedule_fn(FAR, |_| {}), Err(ScheduleError::Full(_))));
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(idle.sleep(FAR)).poll(&mut context).is_ready(), "there is no timer for it");
    let mut client = lab.client();
    let refused = client.class(REQUEST).unwrap().schedule_on(SHARD, FAR, 1);
    assert!(matches!(refused, Err(ScheduleError::Full(1))));
    let mut batch = client.batch(SHARD);
    assert!(batch.class(LEASE).unwrap().schedule(FAR, 1).is_err());
    drop(batch);
    lab.settle();
    let expected = [("scheduled", accepted), ("live", accepted), ("refused", 12 - accepted)];
    check(counts(&lab, IDLE), &expected);
    check(counts(&lab, REQUEST), &[("refused", 1)]);
    check(counts(&lab, LEASE), &[("refused", 1)]);
    assert_eq!(lab.counts().refused, 14 - accepted);
    // After the end nothing is refused for want of room.
    let idle = timers.class(IDLE).unwrap();
    let report = lab.end(ShutdownPolicy::Drop);
    assert!(matches!(idle.schedule(FAR, 1), Err(ScheduleError::Closed(1))));
    assert_eq!(of(&report.classes, IDLE).counts.refused, 12 - accepted);
}

#[test]
fn what_takes_too_long_is_counted_for_its_class() {
    for host in Host::all() {
        let running = Running::start(host, classed(1).overrun(ms(2)), |_| {
            |fired: Fired<u32>, _: &Timers<u32>| {
                if fired.task == 1 {
                    std::thread::sleep(ms(5));
                }
            }
        });
        let client = running.client();
        client.class(IDLE).unwrap().schedule_on(SHARD, ms(1), 1).unwrap();
        let slow = |_: &Timers<u32>| std::thread::sleep(ms(5));
        client.class(IDLE).unwrap().schedule_fn_on(SHARD, ms(1), slow).unwrap();
        client.schedule_fn_on(SHARD, ms(1), slow).unwrap();
        let stats = || running.service.stats().shards[0].clone();
        wait_until("they have fired", || stats().counts.fired == 3);
        let overrun = of(&stats().classes, IDLE).counts.overrun;
        assert_eq!(overrun, 2, "{host:?}");
        assert_eq!(of(&stats().classes, REQUEST).counts.overrun, 0, "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

/// What is logged, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_takes_too_long_is_logged_by_name_and_ever_more_rarely() {
    let mut lab = Lab::<u32>::new(classed(1).overrun(ms(2)));
    let clock = lab.clock.clone();
    let timers = lab.timers().clone();
    for n in 0..20 {
        let clock = clock.clone();
        let class = timers.class(LEASE).unwrap();
        class.schedule_fn(ms(10 * n), move |_| clock.advance(ms(5))).unwrap();
    }
    let other = clock.clone();
    timers.schedule_fn(ms(1), move |_| other.advance(ms(5))).unwrap();
    let log = Log::default();
    let written = log.clone();
    let writer = move || written.clone();
    let logger = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    tracing::subscriber::with_default(logger, || lab.advance(FAR));
    assert_eq!(counts(&lab, LEASE).overrun, 20);
    assert_eq!(lab.counts().overrun, 21);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("took too long")).collect();
    for (line, overrun) in lines.iter().zip([1, 2, 4, 8, 16]) {
        assert!(line.contains("class=\"lease\"") && line.contains("took=5"), "{line}");
        assert!(line.contains(&format!("overrun={overrun}")), "{line}");
    }
    assert_eq!(lines.len(), 5, "{log}");
}

#[test]
fn a_class_that_was_not_named_is_refused_by_name() {
    let lab = Lab::<u32>::new(builder(1).class(IDLE));
    let error = lab.timers().class(REQUEST).unwrap_err();
    assert_eq!(error.class, REQUEST);
    assert!(error.to_string().contains("\"request\""), "{error}");
    let mut client = lab.client();
    assert!(client.class(REQUEST).is_err());
    assert!(client.batch(SHARD).class(REQUEST).is_err());
    // The same name is the same class, wherever it is written.
    let spelled: &'static str = String::from("idle").leak();
    assert!(client.class(TimerClass::new(spelled)).is_ok());
}

#[test]
fn bad_names_are_refused_by_name() {
    let long: &'static str = "x".repeat(TimerClass::NAME_LEN_MAX + 1).leak();
    for bad in ["", long, "two\nlines", "quo\"te", "back\\slash"] {
        let started = builder(1).class(TimerClass::new(bad)).start_attached::<u32>();
        let Err(StartError::Config(error)) = started else { panic!("{bad:?} is accepted") };
        assert_eq!(error.field(), "class");
        assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
    }
    let twice = builder(1).class(IDLE).class(REQUEST).class(IDLE).start_attached::<u32>();
    let Err(error) = twice else { panic!("a name may be there once") };
    assert!(error.to_string().contains("\"idle\""), "{error}");
    let many = (0..=TimerClass::COUNT_MAX).map(|n| TimerClass::new(n.to_string().leak()));
    let many: Vec<_> = many.collect();
    assert!(builder(1).classes(many.clone()).start_attached::<u32>().is_err());
    let most = many[..TimerClass::COUNT_MAX].iter().copied();
    assert!(builder(1).classes(most).start_attached::<u32>().is_ok());
}

/// What a history knows of a class.
#[derive(Clone, Copy, Default)]
struct Expected {
    scheduled: u64,
    cancelled: u64,
    refused: u64,
}

/// A random history of timers on their own core and from elsewhere, in three classes and in none,
/// with every way to end, counted by hand as well.
#[allow(clippy::print_stdout, reason = "the seed of a history that fails")]
fn random_history(seed: u64, policy: ShutdownPolicy) {
    println!("{policy:?} with COREWHEEL_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let mut lab = Lab::<usize>::new(classed(2).capacity(96).lane_capacity(16));
    let clients = [lab.client(), lab.client()];
    // By the class's place, the last of all being none.
    let mut expected = [[Expected::default(); 4]; 2];
    let mut fired_of = [0; 4];
    let mut live: HashMap<TimerHandle, usize> = HashMap::new();
    for step in 0..2_000 {
        let home = rng.usize(..2);
        let shard = [SHARD, OTHER][home];
        let class = rng.usize(..4);
        let delay = if rng.bool() { ms(rng.u64(..40)) } else { FAR };
        let timers = lab.shards[home].timers().clone();
        let client = &clients[rng.usize(..2)];
        let made = match rng.u32(..10) {
            0..=3 => Some(match ALL.get(class) {
                Some(name) => timers.class(*name).unwrap().schedule(delay, class),
                None => timers.schedule(delay, class),
            }),
            4..=6 => Some(match ALL.get(class) {
                Some(name) => client.class(*name).unwrap().schedule_on(shard, delay, class),
                None => client.schedule_on(shard, delay, class),
            }),
            7 | 8 => {
                let mut keys: Vec<_> = live.keys().copied().collect();
                keys.sort_unstable();
                if let Some(handle) = rng.choice(&keys).copied() {
                    let local = &lab.shards[usize::from(handle.shard().number())];
                    let outcome = match rng.u32(..3) {
                        0 => Some(local.timers().cancel(handle).won()),
                        1 => {
                            let answer = client.cancel(handle);
                            lab.settle();
                            Some(block_on(answer).unwrap().won())
                        }
                        _ => {
                            let _ = local.timers().reset(handle, ms(rng.u64(..100)));
                            None
                        }
                    };
                    if let Some(won) = outcome {
                        let class = live.remove(&handle).expect("it was picked from there");
                        let place = usize::from(handle.shard().number());
                        expected[place][class].cancelled += u64::from(won);
                    }
                }
                None
            }
            _ => {
                lab.advance(ms(rng.u64(..20)));
                None
            }
        };
        match made {
            Some(Ok(handle)) => {
                live.insert(handle, class);
                expected[home][class].scheduled += 1;
            }
            Some(Err(_)) => expected[home][class].refused += 1,
            None => {}
        }
        if step % 7 == 0 {
            lab.settle();
            for (class, _) in lab.fired() {
                fired_of[class] += 1;
            }
            let stats = lab.service.stats();
            for (shard, expected) in stats.shards.iter().zip(&expected) {
                check_law(&shard.counts);
                check_classes(&shard.classes);
                let live: u64 = shard.classes.iter().map(|class| class.counts.live).sum();
                assert!(live <= shard.counts.pending, "seed {seed}, step {step}");
                for (class, expected) in shard.classes.iter().zip(expected) {
                    let counts = class.counts;
                    assert_eq!(counts.scheduled, expected.scheduled, "seed {seed}, step {step}");
                    assert_eq!(counts.cancelled, expected.cancelled, "seed {seed}, step {step}");
                    assert_eq!(counts.refused, expected.refused, "seed {seed}, step {step}");
                }
            }
            for (class, fired) in stats.classes().iter().zip(fired_of) {
                assert_eq!(class.counts.fired, fired, "seed {seed}, step {step}");
            }
        }
    }
    lab.settle();
    let before = lab.service.stats().classes();
    let reports = [lab.end(policy), lab.end(policy)];
    for (class, (name, before)) in ALL.iter().zip(before).enumerate() {
        let sum = |count: fn(&ClassCounts) -> u64| -> u64 {
            reports.iter().map(|report| count(&of(&report.classes, *name).counts)).sum()
        };
        let scheduled: u64 = expected.iter().map(|shard| shard[class].scheduled).sum();
        assert_eq!(sum(|counts| counts.live), 0, "seed {seed}");
        assert_eq!(sum(|counts| counts.scheduled), scheduled, "seed {seed}");
        let ended = sum(|counts| counts.fired + counts.cancelled + counts.returned);
        assert_eq!(ended, scheduled, "seed {seed}");
        let unfired = if policy == ShutdownPolicy::Fire { 0 } else { before.counts.live };
        assert_eq!(sum(|counts| counts.returned), unfired, "seed {seed}");
    }
}

#[test]
fn random_histories_add_up_for_each_class() {
    for round in 0..8 {
        let policy = [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
        let seed = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        random_history(seed.unwrap_or_else(|| fastrand::u64(..)), policy[round % 3]);
    }
}

#[test]
fn a_slot_that_is_used_again_is_of_its_new_timers_class() {
    let mut lab = Lab::<u32>::new(classed(1).capacity(33));
    let timers = lab.timers().clone();
    for n in 0..100 {
        let class = ALL[n as usize % 3];
        let timer = timers.class(class).unwrap().schedule(FAR, n).unwrap();
        assert!(timers.cancel(timer).won());
        let plain = timers.schedule(FAR, n).unwrap();
        assert!(timers.cancel(plain).won());
    }
    lab.settle();
    let cancelled: u64 = ALL.iter().map(|class| counts(&lab, *class).cancelled).sum();
    assert_eq!((cancelled, lab.counts().cancelled), (100, 200));
}

/// Its waker takes a turn at once, on the thread that it is woken from.
struct TurnAtOnce;

thread_local! {
    static LAB: RefCell<Option<Lab<u32>>> = const { RefCell::new(None) };
}

impl Wake for TurnAtOnce {
    fn wake(self: Arc<Self>) {
        LAB.with_borrow_mut(|lab| lab.as_mut().expect("it is there").settle());
    }
}

#[test]
fn a_timer_that_fires_while_it_is_scheduled_counts_for_its_class() {
    let mut lab = Lab::<u32>::new(classed(1).capacity(34));
    let timers = lab.timers().clone();
    let turn = lab.turn();
    let waker = Waker::from(Arc::new(TurnAtOnce));
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    LAB.set(Some(lab));
    timers.class(IDLE).unwrap().schedule(ms(0), 1).unwrap();
    let mut lab = LAB.take().unwrap();
    assert_eq!(lab.fired().len(), 1, "before it was known to be of a class");
    lab.settle();
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1)]);
    // Its slot is nobody's.
    let timer = timers.schedule(FAR, 2).unwrap();
    assert!(timers.cancel(timer).won());
    timers.class(REQUEST).unwrap().schedule(FAR, 3).unwrap();
    lab.settle();
    check(counts(&lab, IDLE), &[("scheduled", 1), ("fired", 1)]);
    check(counts(&lab, REQUEST), &[("scheduled", 1), ("live", 1)]);
}

#[test]
fn commands_of_a_sleeping_shard_are_seen_for_their_class() {
    let mut lab = Lab::<u32>::new(classed(1));
    let timers = lab.timers().clone();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, Waker::noop());
    let timer = timers.class(IDLE).unwrap().schedule(FAR, 1).unwrap();
    let _ = lab.turn();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, Waker::noop());
    timers.class(IDLE).unwrap().schedule(FAR + FAR, 2).unwrap();
    check(counts(&lab, IDLE), &[("scheduled", 2), ("live", 2)]);
    assert!(timers.cancel(timer).won());
    check(counts(&lab, IDLE), &[("scheduled", 2), ("live", 1), ("cancelled", 1)]);
    check_classes(&lab.service.stats().classes());
}

#[test]
fn every_runtime_accounts_for_every_class() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, classed(2), move |_| {
            let sender = sender.clone();
            move |one: Fired<u64>, timers: &Timers<u64>| {
                assert!(one.deadline <= timers.now(), "a timer is early");
                if one.task < 20 {
                    // On its own core, of the class after.
                    let class = ALL[(one.task as usize + 1) % 3];
                    timers.class(class).unwrap().schedule(ms(1), one.task + 20).unwrap();
                }
                sender.send(one.task).unwrap();
            }
        });
        let client = running.client();
        for n in 0..20 {
            let shard = [SHARD, OTHER][n as usize % 2];
            let class = client.class(ALL[n as usize % 3]).unwrap();
            class.schedule_on(shard, ms(n % 5), n).unwrap();
        }
        let lost = client.class(LEASE).unwrap().schedule_on(OTHER, FAR, 100).unwrap();
        client.class(IDLE).unwrap().schedule_on(SHARD, FAR, 101).unwrap();
        for _ in 0..40 {
            fired.recv_timeout(PATIENCE).expect("all of them fire");
        }
        assert!(matches!(client.cancel(lost).wait().unwrap(), CancelOutcome::Cancelled { .. }));
        let service = Arc::clone(&running.service);
        let report = running.end(ShutdownPolicy::Drop);
        let classes = service.stats().classes();
        check_classes(&classes);
        for shard in &report.shards {
            check_classes(&shard.classes);
        }
        let sum = |count: fn(&ClassCounts) -> u64| -> u64 {
            classes.iter().map(|class| count(&class.counts)).sum()
        };
        assert_eq!(sum(|counts| counts.scheduled), 42, "{host:?}");
        assert_eq!(sum(|counts| counts.fired), 40, "{host:?}");
        assert_eq!(of(&classes, LEASE).counts.cancelled, 1, "{host:?}");
        assert_eq!(of(&classes, IDLE).counts.returned, 1, "{host:?}");
        assert_eq!(sum(|counts| counts.live), 0, "{host:?}");
    }
}

/// Threads that schedule and cancel while the service is shut down under them, and one that reads
/// all the time.
#[test]
fn what_was_accepted_while_the_service_ends_is_accounted_for() {
    const THREADS: usize = 3;
    for (host, policy) in Host::all().zip([
        ShutdownPolicy::Return,
        ShutdownPolicy::Fire,
        ShutdownPolicy::Drop,
        ShutdownPolicy::Fire,
        ShutdownPolicy::Drop,
        ShutdownPolicy::Return,
    ]) {
        let builder = classed(2).capacity(2_048).lane_capacity(64);
        let running = Running::start(host, builder, |_| |_: Fired<usize>, _: &Timers<usize>| {});
        let done = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (mut client, done) = (running.client(), Arc::clone(&done));
            threads.push(std::thread::spawn(move || {
                let mut rng = Rng::with_seed(thread as u64);
                let (mut accepted, mut refused) = ([0; 3], [0; 3]);
                while !done.load(Ordering::Relaxed) {
                    let class = rng.usize(..3);
                    let task = rng.usize(..1_000);
                    let shard = [SHARD, OTHER][rng.usize(..2)];
                    let delay = if rng.bool() { ms(rng.u64(..3)) } else { FAR };
                    let made = match rng.u32(..4) {
                        0 => {
                            let call = |_: &Timers<usize>| {};
                            let made = client.class(ALL[class]).unwrap();
                            made.schedule_fn_on(shard, delay, call).map_err(|error| match error {
                                ScheduleError::Full(_) => ScheduleError::Full(task),
                                ScheduleError::Closed(_) => ScheduleError::Closed(task),
                            })
                        }
                        1 => {
                            let mut batch = client.batch(shard);
                            let staged = batch.class(ALL[class]).unwrap().schedule(delay, task);
                            match (staged, batch.send()) {
                                (made, Ok(())) => made,
                                // It comes back from a shard that was closed meanwhile.
                                (_, Err(back)) => {
                                    assert!(back.len() <= 1);
                                    Err(ScheduleError::Closed(task))
                                }
                            }
                        }
                        _ => client.class(ALL[class]).unwrap().schedule_on(shard, delay, task),
                    };
                    match made {
                        Ok(timer) => {
                            accepted[class] += 1;
                            match rng.u32(..4) {
                                0 | 1 => client.cancel_detached(timer),
                                2 => drop(client.cancel(timer).wait()),
                                _ => {}
                            }
                        }
                        Err(ScheduleError::Full(_)) => refused[class] += 1,
                        Err(ScheduleError::Closed(_)) => {}
                    }
                }
                (accepted, refused)
            }));
        }
        let (service, reads) = (Arc::clone(&running.service), Arc::clone(&done));
        let reader = std::thread::spawn(move || {
            while !reads.load(Ordering::Relaxed) {
                for shard in service.stats().shards {
                    check_law(&shard.counts);
                    check_classes(&shard.classes);
                }
            }
        });
        std::thread::sleep(ms(30));
        let service = Arc::clone(&running.service);
        let report = service.shutdown(policy).unwrap();
        std::thread::sleep(ms(2));
        done.store(true, Ordering::Relaxed);
        reader.join().expect("each reading adds up");
        let (mut accepted, mut refused) = ([0; 3], [0; 3]);
        for thread in threads {
            let (more, less) = thread.join().unwrap();
            for class in 0..3 {
                accepted[class] += more[class];
                refused[class] += less[class];
            }
        }
        running.stop();
        let classes = service.stats().classes();
        check_classes(&classes);
        for (class, stats) in classes.iter().enumerate() {
            let counts = stats.counts;
            assert_eq!(counts.live, 0, "{host:?}, {policy:?}");
            assert_eq!(counts.scheduled, accepted[class], "{host:?}, {policy:?}: {counts:?}");
            assert_eq!(counts.refused, refused[class], "{host:?}, {policy:?}: {counts:?}");
        }
        let returned: u64 = classes.iter().map(|class| class.counts.returned).sum();
        let unfired: u64 = report.shards.iter().map(|shard| shard.unfired).sum();
        assert_eq!(returned, unfired, "{host:?}, {policy:?}: all are of a class");
    }
}

#[test]
fn a_service_without_classes_says_so() {
    let service = TimerService::builder().shards(1).start_attached::<u32>().unwrap();
    assert!(service.stats().classes().is_empty());
    assert!(service.client().class(IDLE).is_err());
    let report = service.shutdown(ShutdownPolicy::Drop).unwrap();
    assert!(report.shards[0].classes.is_empty());
}

#[test]
fn connections_and_periodic_callbacks_have_classes_too() {
    let mut lab = Lab::<u32>::new(classed(2));
    let [here, there] = [0, 1].map(|shard: usize| lab.shards[shard].timers().clone());
    let limits = ConnLimits { read_idle: ms(100), ..ConnLimits::default() };
    let conn = here.class(IDLE).unwrap().connection(limits).unwrap();
    lab.advance(ms(0));
    check(counts(&lab, IDLE), &[("scheduled", 1), ("live", 1)]);
    for _ in 0..3 {
        lab.advance(ms(100));
    }
    // Each time it is told it has a timer again already.
    check(counts(&lab, IDLE), &[("scheduled", 4), ("fired", 3), ("live", 1)]);
    let conn = there.adopt(conn.pack().expect("it is open")).unwrap();
    lab.advance(ms(0));
    let of_there = |lab: &Lab<u32>| of(&lab.service.stats().shards[1].classes, IDLE).counts;
    check(counts(&lab, IDLE), &[("scheduled", 4), ("fired", 3), ("cancelled", 1)]);
    check(of_there(&lab), &[("scheduled", 1), ("live", 1)]);
    assert!(conn.close());
    lab.advance(ms(0));
    check(of_there(&lab), &[("scheduled", 1), ("cancelled", 1)]);

    let request = here.class(REQUEST).unwrap();
    let every = Repeat::at_fixed_rate(ms(10)).unwrap();
    let runs = request.repeat(every.clone(), |_: &mut PeriodicRun<'_, u32>| {}).unwrap();
    (0..3).for_each(|_| lab.advance(ms(10)));
    check(counts(&lab, REQUEST), &[("scheduled", 4), ("fired", 3), ("live", 1)]);
    assert_eq!(runs.stop(), StopOutcome::Stopped);
    lab.advance(ms(0));
    check(counts(&lab, REQUEST), &[("scheduled", 4), ("fired", 3), ("cancelled", 1)]);

    let delays = [(ms(10), 1), (ms(20), 2)];
    let many = request.schedule_many(delays).unwrap();
    let moments = [(here.now() + ms(10), 3)];
    assert_eq!((many.len(), request.schedule_many_at(moments).unwrap().len()), (2, 1));
    lab.advance(ms(10));
    let expected = [("scheduled", 7), ("fired", 5), ("cancelled", 1), ("live", 1)];
    check(counts(&lab, REQUEST), &expected);
    let client = lab.service.client();
    let request = client.class(REQUEST).unwrap();
    while request.schedule_many_on(SHARD, delays).is_err() {
        // A client has no keys before the shard knows it.
        lab.advance(ms(0));
    }
    request.schedule_many_at_on(SHARD, [(client.now() + ms(10), 3)]).unwrap();
    lab.advance(ms(20));
    let of_request = counts(&lab, REQUEST);
    assert_eq!((of_request.fired, of_request.live), (9, 0), "{of_request:?}");

    let lease = client.class(LEASE).unwrap();
    let remote = lease.repeat_on(SHARD, every, |_: &mut PeriodicRun<'_, u32>| {});
    (0..3).for_each(|_| lab.advance(ms(10)));
    let of_lease = counts(&lab, LEASE);
    assert_eq!((of_lease.fired, of_lease.live), (3, 1), "{of_lease:?}");
    assert_eq!(remote.unwrap().stop(&client), StopOutcome::Stopped);
    lab.advance(ms(10));
    assert_eq!(counts(&lab, LEASE).live, 0);
    for shard in lab.service.stats().shards {
        check_classes(&shard.classes);
        check_law(&shard.counts);
    }
}

#[test]
fn timers_by_keys_and_of_operations_have_classes_too() {
    struct Request;
    impl Operation for Request {
        fn try_complete(&mut self) -> bool {
            false
        }
        fn completed(self) {}
        fn expired(self) {}
    }
    let mut lab = Lab::<u32>::new(classed(1).capacity(4));
    let timers = lab.timers().clone();
    let sessions: KeyedTimers<u32, (), (), u32> = KeyedTimers::new(&timers, |_, _| {});
    let _new = sessions.schedule(0, FAR, ()).unwrap();
    sessions.set_class(LEASE).unwrap();
    for key in 1..4 {
        let _new = sessions.schedule(key, ms(5), ()).unwrap();
    }
    assert!(sessions.schedule(4, ms(5), ()).is_err(), "the shard has no room");
    assert!(sessions.cancel(&1).is_some());
    lab.advance(ms(10));
    let expected = [("scheduled", 3), ("fired", 2), ("cancelled", 1), ("refused", 1)];
    check(counts(&lab, LEASE), &expected);

    let purgatory: Purgatory<u32, Request, u32> = Purgatory::new(&timers);
    purgatory.set_class(REQUEST).unwrap();
    let _watch = purgatory.try_complete_else_watch(Request, ms(5), [1]).unwrap();
    let _watch = purgatory.try_complete_else_watch(Request, FAR, [2]).unwrap();
    assert_eq!(purgatory.cancel_for_key(&2).len(), 1);
    lab.advance(ms(10));
    check(counts(&lab, REQUEST), &[("scheduled", 2), ("fired", 1), ("cancelled", 1)]);
    let unknown = TimerClass::new("unknown");
    assert_eq!(sessions.set_class(unknown), Err(UnknownClass { class: unknown }));
    assert_eq!(purgatory.set_class(unknown), Err(UnknownClass { class: unknown }));
    check_classes(&lab.service.stats().shards[0].classes);
}
