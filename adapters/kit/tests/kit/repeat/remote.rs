//! Callbacks that run again and again, begun and stopped by other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use corewheel::interval::MissedTickBehavior;
use corewheel::{Fired, Refused, RefusedKind, ShutdownPolicy, Timers};
use corewheel_kit::HandleExt;
use corewheel_kit::repeat::{RemotePeriodic, StopOutcome};

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
        let outcome = periodic.stop(client);
        assert_ne!(outcome, StopOutcome::AlreadyOver);
        let ran = runs.load(Ordering::SeqCst);
        std::thread::sleep(ms(20));
        let more = runs.load(Ordering::SeqCst) - ran;
        assert!(more <= u64::from(outcome == StopOutcome::LastRun), "{host:?} {outcome:?}");
        assert!(periodic.is_over());
        assert_eq!(periodic.stop(client), StopOutcome::AlreadyOver);
        // The shard sleeps on, and drops it when it next comes by.
        client.on(SHARD).schedule(Duration::ZERO, 1).unwrap();
        wait_until("it is dropped", || dropped.load(Ordering::SeqCst) == 1);
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
    assert_eq!(periodic.stop(client), StopOutcome::Stopped);
    lab.settle();
    assert_eq!(lab.timers().len(), 0);
    // One by a plan, stopped before its first run, and one that comes to its end.
    let next = move |at: Instant| (at < start + ms(80)).then(|| at + ms(10));
    let call = move |run: &mut Run<'_>| other.send(note(run)).unwrap();
    let early = client.on(SHARD).repeat_by_plan(start + ms(60), next, call.clone()).unwrap();
    assert_eq!(early.stop(client), StopOutcome::Stopped);
    assert_eq!(early.stop(client), StopOutcome::AlreadyOver);
    let planned = client.on(SHARD).repeat_by_plan(start + ms(70), next, call).unwrap();
    for at in 51..120 {
        jump(&mut lab, start, at);
    }
    assert!(runs.try_iter().eq([(70, 0, 0), (80, 1, 0)]));
    assert!(planned.is_over());
    assert!(runs.try_recv().is_err());
    assert_eq!((lab.timers().len(), lab.counts().panicked), (0, 0));
    check_law(&lab.counts());
}

#[test]
fn remote_stop_at_any_time_is_exact() {
    for round in 0..200_u64 {
        let running =
            Running::start(Host::LoopAttached, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let client = running.service.handle();
        let (began, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (begins, ends) = (Arc::clone(&began), Arc::clone(&ended));
        let call = move |_: &mut Run<'_>| {
            begins.fetch_add(1, Ordering::SeqCst);
            std::thread::yield_now();
            ends.fetch_add(1, Ordering::SeqCst);
        };
        // Always behind, so that it runs in every turn.
        let repeat = rate(Duration::from_nanos(1)).first(Duration::ZERO);
        let periodic = client.on(SHARD).repeat(repeat, call).unwrap();
        let enough = round % 20;
        wait_until("it runs", || began.load(Ordering::SeqCst) >= enough);
        match periodic.stop(client) {
            StopOutcome::Stopped => {
                let ran = ended.load(Ordering::SeqCst);
                assert_eq!(began.load(Ordering::SeqCst), ran, "it is not running");
                std::thread::yield_now();
                assert_eq!(began.load(Ordering::SeqCst), ran, "it does not run again");
            }
            StopOutcome::LastRun => {}
            StopOutcome::AlreadyOver => panic!("nobody else stops it"),
        }
        assert_ne!(periodic.stop(client), StopOutcome::Stopped);
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert!(report.shards[0].counts.pending == 0 && periodic.is_over());
    }
}

#[test]
fn shutdown_ends_remote_callbacks() {
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let client = lab.service.handle();
        let (guard, dropped) = Guard::new();
        let call = move |_: &mut Run<'_>| drop(guard.clone());
        let known = client.on(SHARD).repeat(rate(ms(10)).first(ms(1)), call.clone()).unwrap();
        let sent = client.on(SHARD).repeat(rate(ms(10)), call).unwrap();
        lab.advance(ms(1));
        drop(lab.end(policy));
        assert!(known.is_over() && sent.is_over(), "{policy:?}");
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
        assert_eq!(stopped.stop(timers.handle()), StopOutcome::Stopped);
        assert_eq!((timers.len(), count.load(Ordering::SeqCst)), (0, 1));
    };
    lab.timers().schedule_fn(ms(1), stop).unwrap();
    lab.advance(ms(1));
    assert_eq!((dropped.load(Ordering::SeqCst), lab.counts().panicked), (1, 0));
    assert!(periodic.is_over());
    check_law(&lab.counts());
}

#[test]
fn concurrent_stops_stop_a_callback_once() {
    for round in 0..100 {
        let running =
            Running::start(Host::Own(corewheel_glommio::Runtime::Thread), builder(1), |_| {
                |_: Fired<u8>, _: &Timers<u8>| {}
            });
        let client = running.service.handle();
        // Half of them are stopped while they wait for long, the others while they run on and on.
        let repeat = if round % 2 == 0 { rate(FAR) } else { rate(ms(1)).first(Duration::ZERO) };
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let call = move |_: &mut Run<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let periodic = client.on(SHARD).repeat(repeat, call).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (periodic, client) = (periodic.clone(), running.service.handle());
                std::thread::spawn(move || periodic.stop(client))
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|stops| stops.join().unwrap()).collect();
        let stopped = outcomes.iter().filter(|found| **found == StopOutcome::Stopped).count();
        let last = outcomes.contains(&StopOutcome::LastRun);
        assert!(stopped <= 1 && (stopped == 1) != last, "{outcomes:?}");
        wait_until("it is over", || periodic.is_over());
        let ran = runs.load(Ordering::SeqCst);
        let report = running.end(ShutdownPolicy::Fire);
        assert_eq!((runs.load(Ordering::SeqCst), report.shards[0].counts.pending), (ran, 0));
    }
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
            assert_eq!(known.stop(run.timers().handle()), StopOutcome::LastRun);
            assert_eq!(known.stop(run.timers().handle()), StopOutcome::LastRun);
            assert!(!known.is_over(), "it is still running");
        }
    };
    let periodic = client.on(SHARD).repeat(rate(ms(5)), call).unwrap();
    own.lock().unwrap().replace(periodic.clone());
    for _ in 0..30 {
        lab.advance(ms(1));
    }
    assert_eq!((dropped.load(Ordering::SeqCst), lab.timers().len()), (1, 0));
    assert_eq!(periodic.stop(client), StopOutcome::AlreadyOver);
    // With a plan that throws, a callback that throws, and a capture that throws.
    let next = |_: Instant| -> Option<Instant> { panic!("no plan") };
    let call = move |_: &mut Run<'_>| {
        let _held = &guard;
        panic!("each time");
    };
    let at = client.now() + ms(5);
    let planned = client.on(SHARD).repeat_by_plan(at, next, call).unwrap();
    for _ in 0..9 {
        lab.advance(ms(1));
    }
    assert!(planned.is_over());
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
