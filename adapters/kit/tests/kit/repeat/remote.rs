//! Callbacks that run again and again, begun and stopped by other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use corewheel::interval::MissedTickBehavior;
use corewheel::{Fired, Refused, RefusedKind, ShutdownPolicy, Timers};
use corewheel_kit::HandleExt;
use corewheel_kit::repeat::RemotePeriodic;

use super::{Run, jump, lab, rate};
use crate::support::{FAR, Guard, Host, Lab, Running, SHARD, builder, check_law, ms, wait_until};

#[test]
fn remote_callback_runs_until_it_is_stopped() {
    for host in Host::all() {
        let handler = |_| |_: Fired<u8>, _: &Timers<u8>| {};
        let running = Running::start(host, builder(1), handler);
        let client = running.service.handle();
        let runs = Arc::new(AtomicU64::new(0));
        let (guard, dropped) = Guard::new();
        let counted = Arc::clone(&runs);
        let call = move |_: &mut Run<'_>| {
            let _held = &guard;
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let periodic = client.on(SHARD).repeat(rate(ms(1)), call).unwrap();
        wait_until("it runs", || runs.load(Ordering::SeqCst) >= 5);
        periodic.stop();
        periodic.stop();
        wait_until("it is dropped", || dropped.load(Ordering::SeqCst) == 1);
        let ran = runs.load(Ordering::SeqCst);
        std::thread::sleep(ms(20));
        assert_eq!(runs.load(Ordering::SeqCst), ran, "{host:?}");
        let _ = running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn remote_callback_keeps_its_grid_and_leaves_no_timer() {
    let mut lab = lab();
    let client = lab.service.handle();
    let start = lab.clock.now();
    let (sender, runs) = mpsc::channel();
    let note =
        move |run: &mut Run<'_>| ((run.due() - start).as_millis(), run.number(), run.missed());
    // The way to the shard is part of the first period.
    let other = sender.clone();
    let repeat = rate(ms(10)).missed_tick_behavior(MissedTickBehavior::Skip);
    let periodic = client.on(SHARD).repeat(repeat, move |run| sender.send(note(run)).unwrap());
    let periodic = periodic.unwrap();
    for at in [4, 10, 45, 50] {
        jump(&mut lab, start, at);
    }
    assert!(runs.try_iter().eq([(10, 0, 0), (20, 1, 2), (50, 2, 0)]));
    assert_eq!(lab.timers().len(), 1);
    periodic.stop();
    lab.settle();
    assert_eq!(lab.timers().len(), 0);
    // One by a plan, stopped before its first run, and one that comes to its end.
    let next = move |at: Instant| (at < start + ms(80)).then(|| at + ms(10));
    let call = move |run: &mut Run<'_>| other.send(note(run)).unwrap();
    let early = client.on(SHARD).repeat_by_plan(start + ms(60), next, call.clone()).unwrap();
    early.stop();
    early.stop();
    client.on(SHARD).repeat_by_plan(start + ms(70), next, call).unwrap();
    for at in 51..120 {
        jump(&mut lab, start, at);
    }
    assert!(runs.try_iter().eq([(70, 0, 0), (80, 1, 0)]));
    assert_eq!(runs.try_recv(), Err(mpsc::TryRecvError::Disconnected), "all are dropped");
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn shutdown_ends_remote_callbacks() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let client = lab.service.handle();
        let (guard, dropped) = Guard::new();
        let call = move |_: &mut Run<'_>| drop(guard.clone());
        client.on(SHARD).repeat(rate(ms(10)).first(ms(1)), call.clone()).unwrap();
        client.on(SHARD).repeat(rate(ms(10)), call).unwrap();
        lab.advance(ms(1));
        drop(lab.end(policy));
        let fires = usize::from(policy == ShutdownPolicy::Fire);
        assert_eq!(dropped.load(Ordering::SeqCst), 3 + 2 * fires, "{policy:?}");
        let refused = client.on(SHARD).repeat(rate(ms(10)), |_| {});
        assert!(matches!(refused.map_err(Refused::from), Err(Refused::Closed(_))));
    }
}

#[test]
fn stop_on_the_thread_of_the_shard_drops_the_callback_at_once() {
    let mut lab = lab();
    let client = lab.service.handle();
    let (guard, dropped) = Guard::new();
    let call = move |_: &mut Run<'_>| {
        let _held = &guard;
    };
    let periodic = client.on(SHARD).repeat(rate(ms(5)).first(Duration::ZERO), call).unwrap();
    lab.settle();
    let (stopped, count) = (periodic.clone(), Arc::clone(&dropped));
    let stop = move |timers: &Timers<u8>| {
        stopped.stop();
        assert_eq!((timers.len(), count.load(Ordering::SeqCst)), (0, 1));
    };
    lab.timers().schedule_fn(ms(1), stop).unwrap();
    lab.advance(ms(1));
    assert_eq!((dropped.load(Ordering::SeqCst), lab.counts().panicked), (1, 0));
    check_law(&lab.counts());
}

#[test]
fn remote_callback_that_stops_itself_ends_and_plan_that_panics_ends() {
    let mut lab = lab();
    let client = lab.service.handle();
    let (guard, dropped) = Guard::new();
    let own: Arc<Mutex<Option<RemotePeriodic>>> = Arc::default();
    let (known, held) = (Arc::clone(&own), guard.clone());
    let call = move |run: &mut Run<'_>| {
        let _held = &held;
        let known = known.lock().unwrap();
        let known = known.as_ref().unwrap();
        if run.number() == 1 {
            known.stop();
            known.stop();
        }
    };
    let periodic = client.on(SHARD).repeat(rate(ms(5)), call).unwrap();
    own.lock().unwrap().replace(periodic.clone());
    for _ in 0..30 {
        lab.advance(ms(1));
    }
    assert_eq!((dropped.load(Ordering::SeqCst), lab.timers().len()), (1, 0));
    periodic.stop();
    // With a plan that throws, a callback that throws, and a capture that throws.
    let next = |_: Instant| -> Option<Instant> { panic!("no plan") };
    let call = move |_: &mut Run<'_>| {
        let _held = &guard;
        panic!("each time");
    };
    let at = client.now() + ms(5);
    client.on(SHARD).repeat_by_plan(at, next, call).unwrap();
    for _ in 0..9 {
        lab.advance(ms(1));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    assert_eq!((lab.counts().panicked, lab.timers().len()), (2, 0));
}

#[test]
fn refused_remote_callback_begins_where_it_is_run() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(1));
    let timers = lab.timers().clone();
    let filler = timers.schedule(FAR, 0).unwrap();
    let client = lab.service.handle();
    lab.settle();
    let (guard, dropped) = Guard::new();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let call = move |run: &mut Run<'_>| {
        let _held = &guard;
        counted.fetch_add(1, Ordering::SeqCst);
        if run.number() == 3 {
            run.stop();
        }
    };
    let refused = client.on(SHARD).repeat(rate(ms(5)), call).unwrap_err();
    // The lane is new, and it has no key before the shard has seen it.
    assert!(matches!(refused.kind(), RefusedKind::Full | RefusedKind::Busy));
    let begin = refused.into_value();
    assert_eq!((runs.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (0, 0));
    assert!(timers.cancel(filler).won());
    begin(&timers);
    assert_eq!((runs.load(Ordering::SeqCst), timers.len()), (1, 1));
    for _ in 0..40 {
        lab.advance(ms(1));
    }
    assert_eq!((runs.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst)), (4, 1));
    assert_eq!((timers.len(), lab.counts().panicked), (0, 0));
}

#[test]
fn stop_that_races_with_the_first_run_ends_the_callback() {
    for round in 0..200_u64 {
        let running =
            Running::start(Host::LoopAttached, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let client = running.service.handle();
        let (guard, dropped) = Guard::new();
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let call = move |_: &mut Run<'_>| {
            let _held = &guard;
            counted.fetch_add(1, Ordering::SeqCst);
        };
        // Always behind, so that it runs in every turn.
        let repeat = rate(Duration::from_nanos(1)).first(Duration::ZERO);
        let periodic = client.on(SHARD).repeat(repeat, call).unwrap();
        let enough = round % 4;
        wait_until("it runs", || runs.load(Ordering::SeqCst) >= enough);
        let other = periodic.clone();
        let stops = std::thread::spawn(move || other.stop());
        periodic.stop();
        stops.join().unwrap();
        wait_until("it is dropped", || dropped.load(Ordering::SeqCst) == 1);
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.pending, 0);
    }
}
