//! What ends a callback that runs again and again: stops, panics, shutdowns and refusals.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use corewheel::{Refused, ShutdownPolicy, Timers};
use corewheel_kit::repeat::{Periodic, Repeat};

use super::{Run, counted, delay, lab, rate};
use corewheel_test_support::{
    FAR, Guard, Host, Lab, PATIENCE, POLICIES, Running, SHARD, block_on, builder, check_law, look,
    ms, poll, shared, waker_of,
};

#[test]
fn callback_that_stops_itself_is_dropped() {
    for repeat in [rate(ms(5)), delay(ms(5))] {
        let mut lab = lab();
        let (guard, dropped) = Guard::new();
        let (own, known) = shared::<RefCell<Option<Periodic>>>();
        let call = move |run: &mut Run<'_>| {
            let _held = &guard;
            if run.number == 2 {
                assert_eq!(run.timers.len(), 1, "the next is armed already");
                run.stop();
                assert!(!known.borrow().as_ref().unwrap().stop(), "it is stopped already");
            }
        };
        let (runs, call) = counted(call);
        let periodic = repeat.begin(lab.timers(), call).unwrap();
        own.replace(Some(periodic.clone()));
        for ticks in 1..=40 {
            lab.advance(ms(1));
            assert_eq!(periodic.is_over(), ticks >= 15);
        }
        assert_eq!((runs.get(), dropped.load(Ordering::SeqCst)), (3, 1));
        assert!(!periodic.stop());
        assert_eq!((lab.counts().panicked, lab.counts().pending), (0, 0));
        check_law(&lab.counts());
    }
}

#[test]
fn stop_of_a_waiting_callback_drops_it_at_once() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let call = move |_: &mut Run<'_>| drop(guard.clone());
    let (runs, call) = counted(call);
    let periodic = rate(ms(5)).begin(lab.timers(), call).unwrap();
    let other = periodic.clone();
    lab.advance(ms(12));
    let ran = dropped.load(Ordering::SeqCst);
    assert!(periodic.stop());
    assert_eq!((dropped.load(Ordering::SeqCst), lab.timers().len()), (ran + 1, 0));
    assert_eq!((other.stop(), other.is_over()), (false, true));
    lab.advance(FAR);
    assert_eq!(runs.get(), 2);
    check_law(&lab.counts());
}

#[test]
fn stop_by_a_callback_of_the_same_tick_wins() {
    // Before it and after it in the same turn, each stops the other: the first one wins.
    let mut lab = lab();
    let both: Rc<RefCell<Vec<Periodic>>> = Rc::default();
    let outcomes = Rc::<RefCell<Vec<_>>>::default();
    for other in [1, 0] {
        let (known, noted) = (Rc::clone(&both), Rc::clone(&outcomes));
        let call = move |_: &mut Run<'_>| {
            let outcome = known.borrow()[other].stop();
            noted.borrow_mut().push((other, outcome));
        };
        both.borrow_mut().push(rate(ms(5)).begin(lab.timers(), call).unwrap());
    }
    lab.timers().schedule(ms(5), 1).unwrap();
    lab.advance(ms(20));
    lab.advance_ticks(20);
    let outcomes = outcomes.take();
    assert_eq!(outcomes[0], (1, true));
    // The other never runs.
    assert!(outcomes[1..].iter().all(|outcome| *outcome == (1, false)));
    assert_eq!(lab.fired().len(), 1);
    both.borrow_mut().clear();
}

#[test]
fn callback_that_schedules_cancels_and_repeats_goes_on() {
    let mut lab = lab();
    let call = |run: &mut Run<'_>| {
        let timers = run.timers.clone();
        let doomed = timers.schedule(ms(1), 1).unwrap();
        assert!(timers.cancel(doomed).won());
        timers.schedule(Duration::ZERO, 2).unwrap();
        if run.number == 0 {
            let child = |run: &mut Run<'_>| run.stop();
            rate(ms(1)).begin(&timers, child).unwrap();
        }
        drop(timers.sleep(ms(3)));
    };
    let (runs, call) = counted(call);
    rate(ms(10)).begin(lab.timers(), call).unwrap();
    lab.advance_ticks(35);
    assert_eq!((runs.get(), lab.counts().panicked), (3, 0));
    assert_eq!(lab.fired().into_iter().map(|(_, at)| at).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(lab.timers().len(), 1);
}

#[test]
fn stop_in_a_waker_finds_nothing_borrowed() {
    let mut lab = lab();
    let mut sleep = lab.timers().sleep(ms(5));
    let (doomed, stops) = shared::<RefCell<Option<Periodic>>>();
    let waker = waker_of(move || assert!(stops.take().unwrap().stop()));
    assert!(poll(&mut sleep, &waker).is_pending());
    let (runs, call) = counted(|_| {});
    let victim = rate(ms(5)).begin(lab.timers(), call).unwrap();
    doomed.replace(Some(victim.clone()));
    lab.advance(ms(5));
    assert_eq!((runs.get(), victim.is_over(), lab.counts().panicked), (0, true, 0));
    assert_eq!(look(&mut sleep), Some(Ok(())));
}

#[test]
fn panic_is_counted_and_later_runs_come() {
    for repeat in [rate(ms(5)), delay(ms(5))] {
        let mut lab = lab();
        let call = |run: &mut Run<'_>| assert_ne!(run.number % 3, 1, "every third panics");
        let (runs, call) = counted(call);
        let periodic = repeat.begin(lab.timers(), call).unwrap();
        lab.timers().schedule(ms(10), 7).unwrap();
        lab.advance_ticks(30);
        assert_eq!((runs.get(), periodic.is_over()), (6, false));
        assert_eq!(lab.counts().panicked, 2);
        assert_eq!(lab.fired().len(), 1, "the other timer fires");
        check_law(&lab.counts());
    }
}

#[test]
fn plan_that_panics_ends_after_the_run_that_was_due() {
    let mut lab = lab();
    let now = lab.clock.now();
    let next = |_: Instant| -> Option<Instant> { panic!("no plan") };
    let (runs, call) = counted(|_| {});
    let periodic = Repeat::by_plan(lab.timers(), now + ms(1), next, call).unwrap();
    lab.advance(ms(9));
    assert_eq!((runs.get(), periodic.is_over()), (1, true));
    assert_eq!((lab.counts().panicked, lab.counts().pending), (1, 0));
}

#[test]
fn full_shard_keeps_room_for_the_next_run() {
    for kind in 0..3 {
        let mut lab = Lab::<u8>::new(builder(1).capacity(4));
        let fill = |timers: &Timers<u8>| while timers.schedule(FAR, 0).is_ok() {};
        let (runs, call) = counted(move |run: &mut Run<'_>| fill(run.timers));
        let start = lab.clock.now();
        let (timers, again) = (lab.timers().clone(), lab.timers().clone());
        let next = move |at: Instant| {
            fill(&again);
            Some(at + ms(5))
        };
        let periodic = match kind {
            0 => rate(ms(5)).begin(&timers, call),
            1 => delay(ms(5)).begin(&timers, call),
            _ => Repeat::by_plan(&timers, start + ms(5), next, call),
        };
        let periodic = periodic.unwrap();
        lab.advance_ticks(50);
        assert_eq!((runs.get(), timers.len()), (10, 4));
        assert!(matches!(rate(ms(1)).begin(&timers, |_| {}), Err(Refused::Full(_))));
        assert!(periodic.stop());
    }
}

#[test]
fn refused_callback_comes_back_undropped() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(1));
    let timers = lab.timers().clone();
    timers.schedule(FAR, 0).unwrap();
    for closed in [false, true] {
        let (guard, dropped) = Guard::new();
        let call = move |_: &mut Run<'_>| drop(guard.clone());
        match (closed, rate(ms(1)).begin(&timers, call)) {
            (false, Err(Refused::Full(call))) | (true, Err(Refused::Closed(call))) => {
                assert_eq!(dropped.load(Ordering::SeqCst), 0);
                drop(call);
                assert_eq!(dropped.load(Ordering::SeqCst), 1);
            }
            (_, other) => panic!("{other:?}"),
        }
        if !closed {
            let _ = lab.end(ShutdownPolicy::Drop);
        }
    }
}

#[test]
fn shutdown_runs_a_callback_by_policy_and_drops_it() {
    for policy in POLICIES {
        let mut lab = lab();
        let (guard, dropped) = Guard::new();
        let runs = Rc::new(Cell::new(0));
        let handles = [rate(ms(50)), delay(ms(50))].map(|repeat| {
            let (guard, counted) = (guard.clone(), Rc::clone(&runs));
            let call = move |_: &mut Run<'_>| {
                let _held = &guard;
                counted.set(counted.get() + 1);
            };
            repeat.begin(lab.timers(), call).unwrap()
        });
        drop(guard);
        let report = lab.end(policy);
        let fires = policy == ShutdownPolicy::Fire;
        assert_eq!(runs.get(), if fires { 2 } else { 0 }, "{policy:?}");
        assert_eq!(dropped.load(Ordering::SeqCst), 3, "{policy:?}");
        assert_eq!((report.shards[0].counts.pending, report.shards[0].counts.panicked), (0, 0));
        assert!(handles.iter().all(|handle| handle.is_over() && !handle.stop()));
    }
}

#[test]
fn callback_that_shuts_its_service_down_ends_by_policy() {
    for host in Host::all() {
        for policy in POLICIES {
            let running = Running::<u8>::idle(host, builder(1));
            let (guard, dropped) = Guard::new();
            let (sender, reports) = mpsc::channel();
            let service = Arc::downgrade(&running.service);
            let runs = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&runs);
            let call = move |_: &mut Run<'_>| {
                let _held = &guard;
                if counted.fetch_add(1, Ordering::SeqCst) == 2
                    && let Some(service) = service.upgrade()
                {
                    sender.send(service.begin_shutdown(policy).unwrap()).unwrap();
                }
            };
            let begin = move |timers: &Timers<u8>| drop(rate(ms(2)).begin(timers, call).unwrap());
            running.service.handle().on(SHARD).schedule_fn(Duration::ZERO, begin).unwrap();
            let report = block_on(reports.recv_timeout(PATIENCE).unwrap());
            let last = u64::from(policy == ShutdownPolicy::Fire);
            assert_eq!(runs.load(Ordering::SeqCst), 3 + last, "{host:?} {policy:?}");
            assert!(report.dead.is_empty());
            drop(report);
            assert_eq!(dropped.load(Ordering::SeqCst), 1, "{host:?} {policy:?}");
            running.stop();
        }
    }
}

#[test]
fn death_of_the_shard_ends_and_drops_callbacks() {
    let mut lab = lab();
    let (guard, dropped) = Guard::new();
    let (held, (own, known)) = (guard.clone(), shared::<RefCell<Option<Periodic>>>());
    // A circle: the shard holds the callback, and this the shard.
    let call = move |_: &mut Run<'_>| drop((held.clone(), known.borrow().clone()));
    let local = rate(ms(5)).begin(lab.timers(), call).unwrap();
    own.replace(Some(local.clone()));
    lab.advance(ms(5));
    drop(guard);
    let before = dropped.load(Ordering::SeqCst);
    drop(lab.shards.remove(0));
    assert!(local.is_over());
    assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
    assert!(!local.stop());
}

#[test]
fn drop_that_repeats_and_stops_finds_nothing_borrowed() {
    struct Begins(Timers<u8>, Rc<RefCell<Option<Periodic>>>, Rc<Cell<u32>>);
    impl Drop for Begins {
        fn drop(&mut self) {
            if let Some(own) = self.1.take() {
                assert!(!own.stop());
            }
            let begun = rate(ms(1)).begin(&self.0, |run| {
                run.stop();
            });
            let _ = self.0.schedule(ms(1), 1);
            self.2.set(self.2.get() + 1 + u32::from(begun.is_ok()));
        }
    }
    for way in 0..3 {
        let mut lab = lab();
        let timers = lab.timers().clone();
        let ((own, known), (drops, counted)) = (shared(), shared());
        let held = Begins(timers.clone(), known, counted);
        let call = move |run: &mut Run<'_>| {
            let _held = &held;
            if way == 0 {
                run.stop();
            }
        };
        let periodic = rate(ms(5)).begin(&timers, call).unwrap();
        own.replace(Some(periodic.clone()));
        lab.advance(ms(5));
        match way {
            1 => assert!(periodic.stop()),
            2 => drop(lab.end(ShutdownPolicy::Drop)),
            _ => {}
        }
        assert!(periodic.is_over());
        assert_eq!(drops.get(), if way == 2 { 1 } else { 2 }, "{way}");
        if way < 2 {
            lab.advance(ms(9));
            assert_eq!((timers.len(), lab.counts().panicked), (0, 0), "{way}");
        }
    }
}
