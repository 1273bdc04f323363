//! Lanes that are full, idle, left or forgotten, and how their clients share a shard.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use corewheel::{
    CancelOutcome, Client, Fired, ResetOutcome, ScheduleError, ShardId, ShutdownPolicy, Timers,
    Turn, TurnBudget,
};

use crate::support::{FAR, Host, Lab, PATIENCE, Running, SHARD, builder, check_law, look, ms};

#[test]
fn a_client_dropped_with_requests_under_way_leaves_its_timers_running() {
    let mut lab = Lab::new(builder(1));
    let bank = lab.counts().granted;
    let client = lab.client();
    let timers: Vec<_> = (0..10).map(|n| client.schedule_on(SHARD, ms(5), n).unwrap()).collect();
    client.cancel_detached(timers[3]);
    drop(client);
    lab.settle();
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.lanes), (9, 0));
    assert_eq!(counts.granted, bank, "what the client was granted is back");
    lab.advance(ms(5));
    let fired: Vec<_> = lab.fired().into_iter().map(|(task, _)| task).collect();
    assert_eq!(fired, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn what_does_not_fit_into_a_lane_is_done_in_order_also_when_its_client_is_gone() {
    for forget in [false, true] {
        let mut lab = Lab::new(builder(1).lane_capacity(1));
        let client = lab.client();
        let moved = client.schedule_on(SHARD, ms(5), "moved").unwrap();
        lab.settle();
        let cancelled = client.schedule_on(SHARD, ms(5), "cancelled").unwrap();
        lab.settle();
        // The first one fits.
        for delay in [50, 10, 30, 20] {
            client.reset_detached(moved, ms(delay));
        }
        client.cancel_detached(cancelled);
        if forget {
            std::mem::forget(client);
        } else {
            drop(client);
        }
        lab.settle();
        assert_eq!((lab.counts().pending, lab.counts().cancelled), (1, 1));
        for _ in 0..50 {
            lab.advance(ms(1));
        }
        assert_eq!(lab.fired(), [("moved", 20)], "the last reset counts");
        assert_eq!(lab.counts().lanes, u64::from(forget));
        check_law(&lab.counts());
    }
}

#[test]
fn a_schedule_waits_behind_what_did_not_fit_before_it() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let client = lab.client();
    let timer = client.schedule_on(SHARD, ms(5), 1).unwrap();
    client.cancel_detached(timer);
    assert!(matches!(client.schedule_on(SHARD, ms(5), 2), Err(ScheduleError::Full(2))));
    assert!(lab.counts().refused >= 1);
    lab.settle();
    client.schedule_on(SHARD, ms(5), 2).unwrap();
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(2, 5)]);
}

#[test]
fn what_a_client_was_granted_comes_back_after_a_minute_when_it_is_forgotten() {
    let mut lab = Lab::new(builder(1));
    let bank = lab.counts().granted;
    let client = lab.client();
    client.schedule_on(SHARD, FAR, ()).unwrap();
    lab.settle();
    assert!(lab.counts().granted > bank);
    std::mem::forget(client);
    for _ in 0..3 {
        lab.advance(Duration::from_secs(59));
    }
    let counts = lab.counts();
    assert_eq!((counts.granted, counts.lanes), (bank, 0));
    assert_eq!(counts.pending, 1, "its timer goes on");
}

#[test]
fn a_client_that_was_idle_for_long_opens_another_lane() {
    // With one that has room for what the client says first, and one that has not.
    for capacity in [1, 64] {
        let mut lab = Lab::new(builder(1).lane_capacity(capacity));
        let mut client = lab.client();
        let first = client.schedule_on(SHARD, FAR, 1).unwrap();
        lab.settle();
        let second = client.schedule_on(SHARD, FAR, 2).unwrap();
        lab.settle();
        let idle = |lab: &mut Lab<_>| {
            for _ in 0..3 {
                lab.advance(Duration::from_secs(59));
            }
            assert_eq!(lab.counts().lanes, 0);
        };
        idle(&mut lab);
        let mut answer = client.cancel(first).into_future();
        let mut moved = client.reset(second, FAR).into_future();
        lab.settle();
        assert_eq!(look(&mut answer).unwrap().unwrap().task().unwrap().into_value(), Some(1));
        assert_eq!(look(&mut moved), Some(Ok(ResetOutcome::Moved)));
        idle(&mut lab);
        client.schedule_on(SHARD, ms(5), 3).unwrap();
        lab.settle();
        idle(&mut lab);
        let mut batch = client.batch(SHARD);
        batch.cancel_detached(second);
        batch.schedule(ms(5), 4).unwrap_or_else(|_| {
            assert_eq!(capacity, 1, "there is room for a cancel and a timer");
            second
        });
        // A batch that was gathered before the lane was closed is not accepted and says so.
        let unsent = batch.send();
        lab.advance(ms(5));
        let refused = unsent.map_or_else(|back| back.len(), |()| 0);
        let fired = lab.fired().len();
        assert!(refused <= 1 && (1..=2).contains(&fired), "{refused} refused, {fired} fired");
        assert_eq!(lab.counts().pending, 0, "the cancel of the batch is done in any case");
        check_law(&lab.counts());
    }
}

#[test]
fn a_batch_whose_lane_is_closed_meanwhile_hands_its_timers_back() {
    let mut lab = Lab::new(builder(1));
    let mut client = lab.client();
    let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
    lab.settle();
    let mut batch = client.batch(SHARD);
    let staged = batch.schedule(ms(5), 2).unwrap();
    batch.cancel_detached(timer);
    for _ in 0..3 {
        lab.clock.advance(Duration::from_secs(59));
        let _ = lab.turn();
    }
    assert_eq!(lab.counts().lanes, 0, "the client was idle for too long");
    let refused = batch.send().unwrap_err();
    assert_eq!(refused.into_iter().map(|one| one.task).collect::<Vec<_>>(), [2]);
    let mut answer = client.cancel(staged).into_future();
    lab.advance(ms(10));
    assert!(matches!(look(&mut answer), Some(Ok(CancelOutcome::Stale))));
    assert!(lab.fired().is_empty());
    assert_eq!((lab.counts().pending, lab.counts().cancelled), (0, 1));
    check_law(&lab.counts());
}

#[test]
fn a_thread_that_waits_for_an_answer_gets_it_over_a_full_lane_of_one() {
    for host in Host::all() {
        let running =
            Running::start(host, builder(1).lane_capacity(1), |_| |_: Fired<usize>, _: &_| {});
        let client = running.client();
        let mut cancelled = 0;
        for n in 0..300 {
            // The lane has room for the timer, and not for the rest.
            let Ok(timer) = client.schedule_on(SHARD, FAR, n) else {
                thread::yield_now();
                continue;
            };
            client.reset_detached(timer, FAR);
            client.reset_detached(timer, FAR * 2);
            assert_eq!(client.cancel(timer).wait().unwrap().task().unwrap().into_value(), Some(n));
            cancelled += 1;
        }
        assert!(cancelled > 0, "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.cancelled, cancelled, "{host:?}");
        assert_eq!(report.shards[0].unfired, 0, "{host:?}");
    }
}

/// Hands a value on to the next shard, less one, and tries again later where there is no room.
fn hand_on(left: u32, timers: &Timers<u32>) {
    let next = ShardId::new((timers.shard_id().number() + 1) % 3);
    if let Err(error) = timers.client().schedule_on(next, Duration::ZERO, left) {
        timers.schedule(ms(1), error.into_task()).unwrap();
    }
}

#[test]
fn shards_that_fill_each_others_lanes_of_one_in_a_circle_make_progress() {
    const TOKENS: u32 = 30;
    const HOPS: u32 = 20;
    for host in Host::all() {
        let (sender, done) = mpsc::channel();
        let running = Running::start(host, builder(3).lane_capacity(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u32>, timers: &Timers<u32>| match one.task {
                0 => sender.send(()).unwrap(),
                left => hand_on(left - 1, timers),
            }
        });
        let client = running.client();
        for n in 0..TOKENS {
            let shard = ShardId::new((n % 3) as u16);
            while client.schedule_on(shard, Duration::ZERO, HOPS).is_err() {
                thread::yield_now();
            }
        }
        for _ in 0..TOKENS {
            done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{host:?} is stuck"));
        }
        let report = running.end(ShutdownPolicy::Return);
        report.shards.iter().for_each(|shard| check_law(&shard.counts));
        let fired: u64 = report.shards.iter().map(|shard| shard.counts.fired).sum();
        assert!(fired >= u64::from(TOKENS * (HOPS + 1)), "{host:?}");
    }
}

#[test]
fn a_client_that_floods_starves_neither_another_nor_the_shards_own_timers() {
    const FLOOD: usize = 500;
    let budget = TurnBudget { requests_max: 8, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let (flood, modest) = (lab.client(), lab.client());
    let send = |client: &Client<_>, n| client.schedule_on(SHARD, ms(50), n).unwrap();
    for n in 0..FLOOD {
        send(&flood, n);
    }
    let timer = send(&modest, FLOOD);
    lab.timers().schedule(ms(1), FLOOD + 1).unwrap();
    lab.clock.advance(ms(1));
    assert_eq!(lab.turn(), Turn::More);
    assert_eq!(lab.fired(), [(FLOOD + 1, 1)], "the shard's own timers fire");
    assert_eq!(lab.counts().requests, 5, "half of what a turn takes, and the other's one");
    let mut answer = modest.cancel(timer).into_future();
    assert_eq!(lab.turn(), Turn::More);
    assert!(matches!(look(&mut answer), Some(Ok(CancelOutcome::Cancelled { .. }))));
    assert!(lab.counts().lane_depth > 400, "the flood is still to be worked off");
    assert!(lab.counts().turns_exhausted >= 2);
    lab.settle();
    lab.advance(ms(50));
    assert_eq!(lab.fired().len(), FLOOD);
}

#[test]
fn an_overflow_is_worked_off_within_the_budget_and_in_order() {
    let budget = TurnBudget { requests_max: 4, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget).lane_capacity(2));
    let client = lab.client();
    let timer = client.schedule_on(SHARD, FAR, ()).unwrap();
    for delay in 1..=40 {
        client.reset_detached(timer, ms(delay));
    }
    let mut turns = 1;
    while lab.turn() == Turn::More {
        turns += 1;
        assert!(lab.counts().requests <= 4 * turns);
        // What is sent meanwhile comes after what waits.
        client.reset_detached(timer, ms(100));
        assert!(turns < 100, "it comes to an end");
    }
    lab.advance(ms(99));
    assert!(lab.fired().is_empty());
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [((), 100)]);
}
