//! Many commands in one message, and groups of timers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use corewheel::{
    CancelOutcome, Fired, RemoteTask, ScheduleManyError, ShutdownPolicy, Task, TimerGroup, Timers,
    TurnBudget,
};

use crate::support::{
    FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, block_on, builder, check_law, look, ms,
};

/// The value of a cancelled timer.
fn value<T>(outcome: Result<CancelOutcome<RemoteTask<T>>, corewheel::Closed>) -> Option<T> {
    outcome.unwrap().task().and_then(RemoteTask::into_value)
}

#[test]
fn many_cancels_are_one_message_and_each_has_its_outcome_in_its_place() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let on = |shard, n: u32| client.schedule_on(shard, ms(u64::from(n)), n).unwrap();
    let (a, b, c, d) = (on(SHARD, 10), on(OTHER, 20), on(SHARD, 1), on(OTHER, 40));
    let stale = on(SHARD, 50);
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1, 2)]);
    client.cancel_detached(stale);
    lab.settle();
    let before = lab.service.stats();
    let mut answers = client.cancel_many(&[b, a, c, stale, d]).into_future();
    assert!(look(&mut answers).is_none(), "nobody has answered yet");
    lab.settle();
    let outcomes = look(&mut answers).expect("all have answered");
    let CancelOutcome::Cancelled { remaining, task: RemoteTask::Value(20) } =
        outcomes[0].as_ref().unwrap()
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!(*remaining, ms(18));
    assert!(matches!(outcomes[2], Ok(CancelOutcome::AlreadyFired)), "{outcomes:?}");
    assert!(matches!(outcomes[3], Ok(CancelOutcome::Stale)), "{outcomes:?}");
    let values: Vec<_> = outcomes.into_iter().map(value).collect();
    assert_eq!(values, [Some(20), Some(10), None, None, Some(40)]);
    // One message went to each: a bell was looked at once for it.
    for (shard, before) in lab.service.stats().shards.iter().zip(before.shards) {
        let looks = |counts: &corewheel::ShardCounts| counts.bells_rung + counts.bells_saved;
        assert_eq!(looks(&shard.counts), looks(&before.counts) + 1);
        check_law(&shard.counts);
    }
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
}

#[test]
fn no_timers_at_all_are_answered_at_once() {
    let lab = Lab::<u32>::new(builder(1));
    let client = lab.client();
    let answers = client.cancel_many(&[]);
    assert!(answers.is_empty());
    assert!(look(&mut answers.into_future()).expect("there is nobody to wait for").is_empty());
    client.cancel_many_detached(&[]);
    assert_eq!(client.schedule_many_on(SHARD, []).unwrap(), []);
    assert_eq!(lab.counts().requests, 0);
}

#[test]
fn a_turn_does_of_many_what_its_budget_allows_and_keeps_their_order() {
    let budget = TurnBudget { requests_max: 8, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let client = lab.client();
    lab.settle();
    let timers = client.schedule_many_on(SHARD, (0..20).map(|n| (ms(5), n))).unwrap();
    let first = client.schedule_on(SHARD, ms(5), 20).unwrap();
    for pending in [8, 16, 21] {
        let _ = lab.turn();
        assert_eq!(lab.counts().pending, pending, "twenty, and the one behind them");
    }
    let mut answers = client.cancel_many(&timers).into_future();
    let mut last = client.cancel(first).into_future();
    for (pending, told) in [(13, false), (5, false)] {
        let _ = lab.turn();
        assert_eq!((lab.counts().pending, look(&mut answers).is_some()), (pending, told));
        assert!(look(&mut last).is_none(), "what was sent later is not done earlier");
    }
    lab.settle();
    let values: Vec<_> = look(&mut answers).unwrap().into_iter().map(value).collect();
    assert!(values.into_iter().eq((0..20).map(Some)));
    assert!(look(&mut last).unwrap().unwrap().won());
    assert_eq!(lab.counts().requests, 42, "each counts as one");
    check_law(&lab.counts());
}

#[test]
fn what_was_begun_is_finished_when_the_shard_ends() {
    let budget = TurnBudget { requests_max: 4, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let client = lab.client();
    lab.settle();
    let timers = client.schedule_many_on(SHARD, (0..10).map(|n| (FAR, n))).unwrap();
    let _ = lab.turn();
    let mut answers = client.cancel_many(&timers[..6]).into_future();
    let report = lab.end(ShutdownPolicy::Return);
    let values: Vec<_> = look(&mut answers).unwrap().into_iter().map(value).collect();
    assert!(values.into_iter().eq((0..6).map(Some)));
    let mut returned: Vec<_> =
        report.returned.into_iter().filter_map(|one| one.task.into_value()).collect();
    returned.sort_unstable();
    assert_eq!(returned, [6, 7, 8, 9]);
    check_law(&report.counts);
    let mut late = client.cancel_many(&timers).into_future();
    let outcomes = look(&mut late).expect("nobody is left to answer");
    assert!(outcomes.len() == 10 && outcomes.iter().all(Result::is_err));
    let refused = client.schedule_many_on(SHARD, [(ms(1), 1), (ms(2), 2)]).unwrap_err();
    assert!(matches!(&refused, ScheduleManyError::Closed(_)));
    assert_eq!(refused.into_timers(), [(ms(1), 1), (ms(2), 2)]);
}

#[test]
fn many_cancels_that_nobody_waits_for_drop_the_tasks_and_wake_nobody() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let tasks = (0..30).map(|n| (ms(n), guard.clone()));
    let timers = client.schedule_many_on(SHARD, tasks.collect::<Vec<_>>()).unwrap();
    drop(guard);
    lab.settle();
    let (alarm, waker) = crate::support::Alarm::new();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    dropped.store(0, Ordering::SeqCst);
    let pending = lab.counts().pending as usize;
    client.cancel_many_detached(&timers);
    assert_eq!(alarm.count(), 0, "nobody waits for it");
    lab.advance(FAR);
    assert_eq!(dropped.load(Ordering::SeqCst), pending);
    assert_eq!(lab.counts().cancelled, pending as u64);
}

#[test]
fn many_timers_are_scheduled_whole_or_not_at_all() {
    let mut lab = Lab::new(builder(1).capacity(1 << 10));
    let client = lab.client();
    let max = client.schedule_many_max();
    assert_eq!(max, 17, "half of a 32nd of the capacity");
    let Err(ScheduleManyError::TooMany { timers, max: told }) =
        client.schedule_many_on(SHARD, (0..40).map(|n| (ms(n), n)))
    else {
        panic!("they are too many")
    };
    assert_eq!((timers.len(), told), (40, max));
    assert!(timers.into_iter().eq((0..40).map(|n| (ms(n), n))));
    // A lane begins with what lies at the door.
    client.schedule_on(SHARD, ms(1), 1_000).unwrap();
    // However many keys are left, as many as that are to be had once the shard has come by.
    let mut next = 0;
    for single in 0..40 {
        for _ in 0..single % 7 {
            client.schedule_on(SHARD, ms(1), 1_000).unwrap();
        }
        lab.settle();
        let timers: Vec<_> = (next..).take(max).map(|n| (ms(1), n)).collect();
        let handles = client.schedule_many_on(SHARD, timers).unwrap();
        assert_eq!(handles.len(), max);
        next += max as u64;
        lab.advance(ms(5));
    }
    let fired = lab.fired().into_iter().filter(|(n, _)| *n < 1_000).map(|(n, _)| n);
    assert!(fired.eq(0..next), "each of them, in order");
    // Without a turn of the shard there are no more keys than were granted.
    let burst = || (0..max as u64).map(|n| (FAR, n)).collect::<Vec<_>>();
    let refused = loop {
        if let Err(refused) = client.schedule_many_on(SHARD, burst()) {
            break refused;
        }
    };
    assert!(matches!(&refused, ScheduleManyError::Full(_)));
    assert_eq!(refused.into_timers(), burst());
    lab.settle();
    assert_eq!(lab.counts().pending % max as u64, 0, "none was scheduled in part");
    client.schedule_many_on(SHARD, burst()).expect("there is room again");
}

#[test]
fn a_cancel_of_many_that_overtakes_says_so() {
    let mut lab = Lab::new(builder(1));
    let (mut sender, canceller) = (lab.client(), lab.client());
    let (guard, dropped) = Guard::new();
    let mut batch = sender.batch(SHARD);
    let timer = batch.schedule(ms(5), guard).unwrap();
    let mut answers = canceller.cancel_many(&[timer]).into_future();
    lab.settle();
    let outcomes = look(&mut answers).unwrap();
    assert!(matches!(outcomes[..], [Ok(CancelOutcome::Overtook)]));
    batch.send().unwrap();
    lab.advance(ms(10));
    assert_eq!((dropped.load(Ordering::SeqCst), lab.fired().len()), (1, 0));
}

#[test]
fn a_shard_ends_and_begins_many_of_its_own_at_once() {
    let mut lab = Lab::new(builder(2).capacity(1 << 7));
    let timers = lab.timers().clone();
    let handles = timers.schedule_many((0..3).map(|n| (ms(n + 1), n))).unwrap();
    let elsewhere = lab.shards[1].timers().schedule(FAR, 9).unwrap();
    let outcomes = timers.cancel_many(&[handles[2], elsewhere, handles[0], handles[2]]);
    assert!(matches!(&outcomes[0], CancelOutcome::Cancelled { task: Task::Value(2), .. }));
    assert!(matches!(outcomes[1], CancelOutcome::Elsewhere(OTHER)));
    assert!(matches!(&outcomes[2], CancelOutcome::Cancelled { task: Task::Value(0), .. }));
    assert!(matches!(outcomes[3], CancelOutcome::Stale));
    let many = || (0..128).map(|n| (FAR, n)).collect::<Vec<_>>();
    let refused = timers.schedule_many(many()).unwrap_err();
    assert!(matches!(&refused, ScheduleManyError::Full(_)));
    assert_eq!(refused.into_timers(), many());
    let at = timers.now() + ms(3);
    timers.schedule_many_at([(at, 7), (at, 8)]).unwrap();
    lab.advance(ms(3));
    assert_eq!(lab.fired(), [(1, 3), (7, 3), (8, 3)]);
    check_law(&lab.counts());
}

#[test]
fn a_group_is_closed_with_one_message_to_each_shard() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let mut group = TimerGroup::new();
    for n in 0..50_u64 {
        let shard = if n % 2 == 0 { SHARD } else { OTHER };
        assert!(group.insert(client.schedule_on(shard, FAR, n).unwrap()));
    }
    let third = group.iter().nth(3).unwrap();
    assert!(!group.insert(third) && group.contains(third));
    assert!(group.remove(third) && !group.remove(third) && !group.contains(third));
    lab.settle();
    let before = lab.counts().bells_rung + lab.counts().bells_saved;
    let order: Vec<_> = group.iter().collect();
    let mut answers = group.close(&client).into_future();
    assert!(group.is_empty());
    lab.settle();
    assert_eq!(lab.counts().bells_rung + lab.counts().bells_saved, before + 1);
    let values: Vec<_> = look(&mut answers).unwrap().into_iter().map(value).collect();
    assert_eq!(values.len(), 49);
    assert_eq!((order[3].shard(), values[3]), (OTHER, Some(49)), "the last took its place");
    assert_eq!(lab.counts().pending + lab.counts_of(OTHER).pending, 1, "the one taken out");
}

#[test]
fn a_group_that_is_closed_on_a_core_ends_its_own_timers_at_once() {
    let mut lab = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let mut group: TimerGroup =
        timers.schedule_many((0..5).map(|n| (ms(n), n))).unwrap().into_iter().collect();
    group.insert(timers.client().schedule_on(OTHER, ms(7), 7).unwrap());
    let ended = group.close_here(&timers);
    assert!(ended.len() == 5 && ended.iter().all(|(_, outcome)| outcome.won()));
    assert_eq!(timers.len(), 0, "at once");
    lab.advance(FAR);
    assert_eq!(lab.fired(), []);
    assert_eq!(lab.counts_of(OTHER).cancelled, 1);
}

#[test]
fn many_at_once_work_on_every_runtime() {
    for host in Host::all() {
        let (sender, fired) = std::sync::mpsc::channel();
        let running = Running::start(host, builder(2), move |_| {
            let sender = sender.clone();
            move |one: Fired<u64>, timers: &Timers<u64>| {
                assert!(timers.now() >= one.deadline, "timer {} is early", one.task);
                sender.send(one.task).unwrap();
            }
        });
        let client = running.client();
        let schedule = |shard, delay: Duration, tasks: std::ops::Range<u64>| {
            let mut timers: Vec<_> = tasks.map(|n| (delay, n)).collect();
            loop {
                match client.schedule_many_on(shard, timers) {
                    Ok(handles) => return handles,
                    Err(ScheduleManyError::Full(back)) => timers = back,
                    Err(error) => panic!("{host:?}: {error}"),
                }
                std::thread::yield_now();
            }
        };
        let mut group: TimerGroup = schedule(SHARD, FAR, 0..100).into_iter().collect();
        group.extend(schedule(OTHER, FAR, 100..200));
        schedule(SHARD, ms(1), 200..300);
        let closed = group.close(&client).wait().unwrap();
        assert!(closed.into_iter().map(value).eq((0..200).map(Some)), "{host:?}");
        let gone = schedule(OTHER, FAR, 300..310);
        let awaited = block_on(client.cancel_many(&gone));
        assert!(awaited.into_iter().map(value).eq((300..310).map(Some)), "{host:?}");
        let mut seen: Vec<_> = (0..100).map(|_| fired.recv_timeout(PATIENCE).unwrap()).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(200..300), "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        for shard in &report.shards {
            check_law(&shard.counts);
            assert_eq!((shard.unfired, shard.counts.panicked), (0, 0), "{host:?}");
        }
    }
}

#[test]
fn a_group_follows_timers_that_are_moved_and_is_closed_without_an_answer() {
    let mut lab = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let client = lab.client();
    let mut group: TimerGroup =
        timers.schedule_many((0..4).map(|n| (ms(5), n))).unwrap().into_iter().collect();
    let [a, b, c, d] = group.iter().collect::<Vec<_>>()[..] else { panic!("four are in it") };
    let moved = timers.move_to(a, OTHER).unwrap();
    assert!(group.replace(a, moved));
    assert!(!group.contains(a) && group.contains(moved));
    assert!(!group.replace(a, moved), "it is known by its new name already");
    assert_eq!(group.len(), 4);
    assert_eq!(format!("{:?}", TimerGroup::from_iter([moved])), format!("{{{moved:?}}}"));
    // By its old name it is found as well.
    let _ = timers.move_to(b, OTHER).unwrap();
    let mut closed_here: TimerGroup = [b, c].into_iter().collect();
    let ended = closed_here.close_here(&timers);
    assert!(matches!(&ended[..], [(timer, outcome)] if *timer == c && outcome.won()));
    assert!(group.remove(b) && group.remove(c));
    group.close_detached(&client);
    assert!(group.is_empty());
    for _ in 0..3 {
        lab.settle();
    }
    assert_eq!(lab.counts().pending + lab.counts_of(OTHER).pending, 0, "{d:?} too");
    group.insert(timers.schedule(ms(5), 4).unwrap());
    group.clear();
    assert!(group.is_empty());
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(4, 5)], "those that are taken out go on");
}

#[test]
fn many_for_moments_fire_when_they_are_due_also_those_of_the_past_and_of_never() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    lab.advance(ms(10));
    let now = client.now();
    let past = now.checked_sub(ms(5)).expect("the clock has shown it");
    let moments = [(now + ms(3), 1), (past, 2), (now, 3)];
    assert_eq!(client.schedule_many_at_on(OTHER, moments).unwrap().len(), 3);
    lab.advance(ms(1));
    let never = client.schedule_many_on(OTHER, [(Duration::MAX, 4), (Duration::ZERO, 5)]).unwrap();
    lab.settle();
    assert_eq!(lab.fired(), [(2, 11), (3, 11), (5, 11)]);
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1, 13)]);
    let mut moved = client.move_to(never[0], SHARD).into_future();
    lab.settle();
    lab.settle();
    assert!(look(&mut moved).unwrap().unwrap().is_ok(), "what is never due travels as well");
    lab.advance(FAR);
    assert_eq!((lab.fired().len(), lab.counts().pending), (0, 1));
    check_law(&lab.counts());
}
