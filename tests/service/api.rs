//! What the methods of a core's timers, of clients and of batches answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use corewheel::{
    AttachError, CancelOutcome, Fired, ResetOutcome, Runtime, ScheduleError, ShardId,
    ShutdownPolicy, SleepError, SpawnError, TimerService, Timers, Turn,
};

use crate::support::{
    FAR, Host, Lab, OTHER, PATIENCE, Running, SHARD, block_on, builder, check_law, look, ms,
    runtimes, wait_until,
};

#[test]
fn a_handle_of_another_shard_is_told_to_be_elsewhere_and_left_alone() {
    let mut lab = Lab::<()>::new(builder(2));
    let elsewhere = lab.shards[1].timers().schedule(FAR, ()).unwrap();
    let timers = lab.timers().clone();
    assert_eq!(elsewhere.shard(), OTHER);
    assert!(matches!(timers.cancel(elsewhere), CancelOutcome::Elsewhere(OTHER)));
    assert_eq!(timers.reset(elsewhere, ms(1)), ResetOutcome::Elsewhere(OTHER));
    assert_eq!(timers.reset_at(elsewhere, timers.now()), ResetOutcome::Elsewhere(OTHER));
    lab.advance(ms(5));
    assert!(lab.fired().is_empty());
    let mut there = timers.client().cancel(elsewhere).into_future();
    lab.settle();
    assert!(look(&mut there).unwrap().unwrap().won());
}

#[test]
fn a_handle_that_names_nothing_is_stale_however_often_its_slot_was_used() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let handles: Vec<_> = (0..10)
        .map(|_| {
            let timer = lab.timers().schedule(FAR, ()).unwrap();
            assert!(lab.timers().cancel(timer).won());
            timer
        })
        .collect();
    assert!(handles.iter().all(|timer| timer.key().index() == handles[0].key().index()));
    for timer in handles {
        assert!(matches!(lab.timers().cancel(timer), CancelOutcome::Stale));
        let mut reset = client.reset(timer, ms(1)).into_future();
        lab.settle();
        assert_eq!(look(&mut reset), Some(Ok(ResetOutcome::Stale)), "{timer:?}");
    }
    let mut none = client.drain_shard(ShardId::new(999), &[]).into_future();
    assert!(look(&mut none).unwrap().is_err());
    assert!(client.schedule_on(ShardId::new(1), ms(1), ()).is_err());
    check_law(&lab.counts());
}

#[test]
fn a_moment_that_has_passed_fires_in_the_next_turn() {
    let mut lab = Lab::new(builder(1));
    let epoch = lab.clock.now();
    lab.advance(ms(100));
    let past = [epoch, epoch + ms(50), epoch + ms(100)];
    for (n, at) in past.into_iter().enumerate() {
        lab.timers().schedule_at(at, n).unwrap();
        lab.client().schedule_at_on(SHARD, at, n).unwrap();
    }
    let before_epoch = epoch.checked_sub(Duration::from_secs(9)).unwrap_or(epoch);
    lab.timers().schedule_at(before_epoch, 3).unwrap();
    let _ = lab.turn();
    let fired = lab.fired();
    assert_eq!(fired.len(), 7);
    assert!(fired.iter().all(|&(_, at)| at == 100));
}

#[test]
fn a_delay_that_does_not_fit_means_never() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    let here = lab.timers().schedule(Duration::MAX, 1).unwrap();
    let there = client.schedule_on(SHARD, Duration::MAX, 2).unwrap();
    let timer = lab.timers().schedule(ms(5), 3).unwrap();
    assert_eq!(lab.timers().reset(timer, Duration::MAX), ResetOutcome::Moved);
    let mut sleep = lab.timers().sleep(Duration::MAX);
    assert!(look(&mut sleep).is_none());
    assert!(sleep.deadline() > lab.clock.now());
    for _ in 0..20 {
        lab.advance(Duration::from_hours(24 * 365 * 20));
    }
    assert!(lab.fired().is_empty());
    assert_eq!(lab.counts().pending, 4);
    let CancelOutcome::Cancelled { remaining, .. } = lab.timers().cancel(here) else {
        panic!("it is pending")
    };
    assert!(remaining > Duration::from_hours(24 * 365 * 100));
    assert_eq!(lab.timers().reset(there, ms(1)), ResetOutcome::Moved);
    lab.advance(ms(2));
    assert_eq!(lab.fired().len(), 1);
}

#[test]
fn on_real_clocks_too_a_delay_that_does_not_fit_means_never() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u8>, _: &_| sender.send(one.task).unwrap()
        });
        let client = running.client();
        let never = client.schedule_on(SHARD, Duration::MAX, 1).unwrap();
        client.schedule_on(SHARD, ms(5), 2).unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok(2), "{host:?}");
        assert!(client.cancel(never).wait().unwrap().won(), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn a_reset_to_an_earlier_moment_wakes_a_shard_that_sleeps() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u8>, _: &_| sender.send(one.task).unwrap()
        });
        let client = running.client();
        for (n, way) in [(1, "told"), (2, "untold"), (3, "at"), (4, "cancel")] {
            let timer = loop {
                match client.schedule_on(SHARD, FAR, n) {
                    Ok(timer) => break timer,
                    Err(_) => std::thread::yield_now(),
                }
            };
            std::thread::sleep(ms(20));
            match way {
                "told" => assert_eq!(client.reset(timer, ms(5)).wait(), Ok(ResetOutcome::Moved)),
                "untold" => client.reset_detached(timer, ms(5)),
                "at" => {
                    let at = client.now() + ms(5);
                    assert_eq!(client.reset_at(timer, at).wait(), Ok(ResetOutcome::Moved));
                }
                _ => {
                    assert!(client.cancel(timer).wait().unwrap().won());
                    continue;
                }
            }
            assert_eq!(fired.recv_timeout(PATIENCE), Ok(n), "{host:?}, {way}");
        }
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn on_its_own_core_a_reset_to_an_earlier_moment_wakes_the_driver() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &_| {});
        let spawned = running.service.spawn_on(SHARD, |timers| async move {
            let (sender, fired) = oneshot::async_channel();
            let timer = timers.schedule_fn(FAR, move |_| sender.send(()).unwrap()).unwrap();
            timers.sleep(ms(20)).await.unwrap();
            assert_eq!(timers.reset(timer, ms(5)), ResetOutcome::Moved);
            fired.await.is_ok()
        });
        assert_eq!(spawned.unwrap().wait(), Ok(true), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn a_full_shard_returns_the_task_after_its_reserve_is_used_up() {
    for capacity in [1, 2, 4, 40] {
        let mut lab = Lab::new(builder(1).capacity(capacity));
        assert_eq!(lab.counts().granted, 1, "a reserve for whoever comes from elsewhere");
        let timers: Vec<_> =
            (0..capacity).map(|n| lab.timers().schedule(FAR, n).unwrap()).collect();
        assert!(matches!(lab.timers().schedule(FAR, 99), Err(ScheduleError::Full(99))));
        assert!(matches!(lab.timers().schedule_fn(FAR, |_| {}), Err(ScheduleError::Full(_))));
        let client = lab.client();
        assert!(matches!(client.schedule_on(SHARD, FAR, 99), Err(ScheduleError::Full(99))));
        assert!(matches!(client.schedule_fn_on(SHARD, FAR, |_| {}), Err(ScheduleError::Full(_))));
        assert_eq!(block_on(client.sleep_on(SHARD, FAR)), Err(SleepError::Full));
        lab.settle();
        let counts = lab.counts();
        assert_eq!((counts.pending, counts.granted), (u64::from(capacity), 0));
        assert_eq!((counts.refused, counts.pending_max), (5, u64::from(capacity)));
        // Room is made, and given away again.
        assert!(lab.timers().cancel(timers[0]).won());
        lab.settle();
        client.schedule_on(SHARD, ms(1), 7).unwrap();
        lab.advance(ms(1));
        assert_eq!(lab.fired(), [(7, 1)]);
        check_law(&lab.counts());
    }
}

#[test]
fn a_batch_gathers_sends_and_refuses() {
    let mut lab = Lab::new(builder(2).capacity(64).lane_capacity(8));
    let mut client = lab.client();
    let elsewhere = client.schedule_on(OTHER, FAR, 0).unwrap();
    // 64 / 32 keys are granted in advance, and half of the reserve to the first who comes.
    let mut accepted = Vec::new();
    for round in 0..20 {
        let mut batch = client.batch(SHARD);
        for n in 0..4 {
            match batch.schedule(ms(10), round * 4 + n) {
                Ok(timer) => accepted.push((timer, round * 4 + n)),
                Err(ScheduleError::Full(task)) => assert_eq!(task, round * 4 + n),
                Err(ScheduleError::Closed(_)) => panic!("the shard is open"),
            }
        }
        assert!(batch.send().is_ok());
        assert_eq!(lab.fired(), [], "round {round}");
        lab.settle();
    }
    assert!((20..=64).contains(&accepted.len()), "{}", accepted.len());
    assert_eq!(lab.counts().pending as usize, accepted.len());
    let mut batch = client.batch(SHARD);
    // More than fit into the lane, and one for another shard.
    for (timer, _) in &accepted {
        batch.cancel_detached(*timer);
    }
    batch.cancel_detached(elsewhere);
    let stays = accepted[0].0;
    batch.reset_detached(stays, ms(1));
    batch.send().unwrap();
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled as usize), (0, accepted.len()));
    assert_eq!(counts.stale, 1, "the reset comes after the cancel");
    assert_eq!(lab.counts_of(OTHER).cancelled, 1);
}

#[test]
fn a_batch_moves_timers_here_and_elsewhere() {
    let mut lab = Lab::new(builder(2));
    let mut client = lab.client();
    let here = client.schedule_on(SHARD, FAR, 1).unwrap();
    let there = client.schedule_on(OTHER, FAR, 2).unwrap();
    let mut batch = client.batch(SHARD);
    batch.reset_detached(here, ms(3));
    batch.reset_detached(there, ms(2));
    batch.schedule_at(lab.clock.now() + ms(1), 3).unwrap();
    // Sent as it is dropped.
    drop(batch);
    for _ in 0..3 {
        lab.advance(ms(1));
    }
    assert_eq!(lab.fired(), [(3, 1), (2, 2), (1, 3)]);
}

#[test]
fn a_batch_of_hundreds_is_sent_as_it_grows() {
    let mut lab = Lab::new(builder(1));
    let mut client = lab.client();
    let mut batch = client.batch(SHARD);
    for n in 0..500 {
        batch.schedule(ms(1), n).unwrap();
    }
    batch.send().unwrap();
    lab.settle();
    assert_eq!(lab.counts().pending, 500);
    lab.advance(ms(1));
    assert!(lab.fired().into_iter().map(|(n, _)| n).eq(0..500), "in the order of the batch");
}

#[test]
fn a_shard_without_an_executor_spawns_nothing() {
    for host in [Host::Own(Runtime::Thread), Host::LoopAttached] {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let spawned = running.service.spawn_on(SHARD, |_| async {});
        assert!(matches!(spawned, Err(SpawnError::NoExecutor)), "{host:?}");
        let nowhere = running.service.spawn_on(OTHER, |_| async {});
        assert!(matches!(nowhere, Err(SpawnError::Closed)), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn a_service_that_runs_its_shards_itself_has_none_to_attach() {
    for runtime in runtimes() {
        let service = builder(1).runtime(runtime).start().unwrap();
        assert!(matches!(service.attach(SHARD), Err(AttachError::NotAttachable)));
        let name = format!("{runtime:?}").to_lowercase();
        assert_eq!(service.runtime(), name);
        service.shutdown(ShutdownPolicy::Drop).unwrap();
    }
    let chosen = builder(1).start().unwrap();
    assert!(["glommio", "tokio"].contains(&chosen.runtime()));
}

#[test]
fn a_shards_own_thread_does_not_block_for_an_answer() {
    for host in Host::all() {
        let (sender, told) = mpsc::channel();
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &_| {});
        let client = running.client();
        let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
        let call = move |timers: &Timers<u8>| {
            sender.send(timers.client().cancel(timer).wait().map(drop)).unwrap();
        };
        client.schedule_fn_on(SHARD, ms(1), call).unwrap();
        let answer = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(answer, Err(corewheel::WaitError::OnShard), "{host:?}");
        wait_until("the cancel is on its way all the same", || {
            running.service.stats().shards[0].counts.cancelled == 1
        });
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn the_statistics_are_a_value_that_can_be_written_as_json() {
    let mut lab = Lab::new(builder(2).name("told"));
    let client = lab.client();
    client.schedule_on(SHARD, ms(3), 1).unwrap();
    lab.timers().schedule(FAR, 2).unwrap();
    lab.advance(ms(1));
    lab.advance(ms(4));
    let source = lab.service.stats_source();
    let stats = lab.service.stats();
    assert_eq!(source.read(), stats);
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&stats).unwrap()).unwrap();
    assert_eq!((&json["name"], &json["runtime"]), (&"told".into(), &"attached".into()));
    assert_eq!(json["tick_ns"], 1_000_000);
    let shard = &json["shards"][0];
    assert_eq!((&shard["shard"], &shard["state"]), (&0.into(), &"running".into()));
    for (field, value) in [
        ("pending", 1),
        ("pending_max", 2),
        ("capacity", 1 << 16),
        ("scheduled_local", 1),
        ("scheduled_remote", 1),
        ("fired", 1),
        ("cancelled", 0),
        ("returned", 0),
        ("lanes", 1),
    ] {
        assert_eq!(shard[field], value, "{field}");
    }
    assert_eq!(shard["lateness"]["count"], 1);
    assert!(shard["lateness"]["p50_ns"].as_u64().unwrap() >= 2_000_000, "two ticks late");
    assert_eq!(shard["ring_delay"]["count"], 1);
    for (name, value) in stats.shards[0].counts.iter() {
        assert_eq!(shard[name], value, "{name} is written");
    }
    drop(lab);
    assert_eq!(source.read().shards[0].counts.pending, 0, "it outlives the service");
}

#[test]
fn what_is_read_while_it_is_stored_is_read_again() {
    const READINGS: usize = 50_000;
    let service = builder(1).start_attached::<()>().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {}).unwrap();
            while !done.load(Ordering::Relaxed) {
                // Each turn stores several counts that must go together.
                let cancelled = shard.timers().schedule(FAR, ()).unwrap();
                shard.timers().schedule(Duration::ZERO, ()).unwrap();
                assert!(shard.timers().cancel(cancelled).won());
                let _ = shard.turn();
            }
        });
        for _ in 0..READINGS {
            let counts = service.stats().shards[0].counts;
            let scheduled = counts.scheduled_local + counts.scheduled_remote;
            let ended = counts.fired + counts.cancelled + counts.returned;
            if scheduled.checked_sub(ended) != Some(counts.pending) {
                done.store(true, Ordering::Relaxed);
                panic!("{counts:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn futures_that_need_no_typed_tasks_need_no_handler() {
    for runtime in runtimes() {
        let service: TimerService = builder(1).runtime(runtime).start().unwrap();
        let (sender, fired) = mpsc::channel();
        let call = move |timers: &Timers| sender.send(timers.shard_id()).unwrap();
        let at = service.now() + ms(5);
        service.client().schedule_fn_at_on(SHARD, at, call).unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok(SHARD));
        assert!(service.now() >= at, "{runtime:?}");
        service.shutdown(ShutdownPolicy::Drop).unwrap();
    }
}

#[test]
fn a_closed_loop_stays_closed() {
    let mut lab = Lab::<u8>::new(builder(1));
    drop(lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap());
    for _ in 0..3 {
        assert_eq!(lab.turn(), Turn::Closed);
    }
}
