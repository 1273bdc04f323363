//! Lanes that are full, idle, closed or leaked, and the share of each lane in a turn.

use super::*;

#[test]
fn dropped_client_leaves_its_timers_running() {
    let mut lab = Lab::new(builder(1));
    let key_pool = lab.counts().granted;
    let client = lab.client();
    let timers: Vec<_> = (0..10).map(|n| client.on(SHARD).schedule(ms(5), n).unwrap()).collect();
    client.cancel_detached(timers[3]);
    drop(client);
    let counts = lab.settled();
    assert_eq!((counts.pending, counts.lanes), (9, 0));
    assert_eq!(counts.granted, key_pool, "the keys of the client are back");
    lab.advance(ms(5));
    assert_eq!(lab.values(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn overflow_of_a_dropped_or_leaked_client_is_executed_in_order() {
    for forget in [false, true] {
        let mut lab = Lab::new(builder(1).lane_capacity(1));
        let client = lab.client();
        let reset = client.on(SHARD).schedule(ms(5), "reset").unwrap();
        lab.settle();
        let cancelled = client.on(SHARD).schedule(ms(5), "cancelled").unwrap();
        lab.settle();
        // Only the first request fits into the ring.
        for delay in [50, 10, 30, 20] {
            client.reset_detached(reset, ms(delay));
        }
        client.cancel_detached(cancelled);
        let end = if forget { std::mem::forget } else { drop::<Thread<_>> };
        end(client);
        assert_eq!((lab.settled().pending, lab.counts().cancelled), (1, 1));
        lab.advance_ticks(50);
        assert_eq!(lab.fired(), [("reset", 20)], "the last reset decides");
        assert_eq!(lab.counts().lanes, u64::from(forget));
    }
}

#[test]
fn burst_of_lane_capacity_from_a_fresh_client_is_accepted_whole_and_in_order() {
    for capacity in [1, 63, 64, 65, 200, 1_000, 1_024] {
        // The pool has twice as many keys as the lane has room, and a fresh client gets half.
        let mut lab = Lab::new(builder(1).capacity(1 << 17).lane_capacity(capacity));
        let client = lab.client();
        lab.settle();
        let burst = lab.counts().granted.div_ceil(2).min(capacity as u64);
        for n in 0..burst {
            client.on(SHARD).schedule(ms(5), n).unwrap();
        }
        assert_eq!(lab.settled().lane_depth, 0);
        // Now the client has keys for all that the lane has room for.
        for n in burst..burst + capacity as u64 {
            client.on(SHARD).schedule(ms(5), n).unwrap();
        }
        assert_eq!(client.on(SHARD).schedule(ms(5), 0), Err(Refused::Busy(0)), "it is full");
        lab.advance(ms(5));
        assert!(lab.values().into_iter().eq(0..burst + capacity as u64), "{capacity}");
    }
}

/// Leaves each client alone for longer than a shard keeps an idle lane.
fn idle<T: Send + 'static>(lab: &mut Lab<T>) {
    lab.advance_steps(3, Duration::from_secs(59));
}

/// Schedules, resets and cancels `count` timers in a row, and returns those to fire, in order.
fn send_mixed(client: &Thread<u64>, from: u64, count: u64) -> Vec<u64> {
    let there = client.on(SHARD);
    let mut left = Vec::new();
    for n in from..from + count {
        let timer = there.schedule(FAR, n).unwrap();
        client.reset_detached(timer, FAR * 2);
        client.reset_detached(timer, ms(5));
        if n % 3 == 0 {
            client.cancel_detached(timer);
            client.reset_detached(timer, ms(1));
        } else {
            left.push(n);
        }
    }
    left
}

#[test]
fn order_of_requests_is_kept_while_the_ring_grows() {
    let budget = TurnBudget { requests_max: 50, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let client = lab.client();
    let mut expected = Vec::new();
    // A turn between two bursts receives a part of the ring or of the overflow.
    for round in 0..12 {
        expected.extend(send_mixed(&client, round * 25, 25));
        let _more = lab.turn();
    }
    let depth = lab.counts().lane_depth;
    assert!(depth > 256, "{:?}", lab.counts());
    let counts = lab.settled();
    assert_eq!((counts.lane_depth, counts.lane_depth_max), (0, depth), "it was as deep just now");
    lab.advance(ms(5));
    assert_eq!(lab.values(), expected);
    lab.advance(Duration::from_secs(11));
    assert_eq!(lab.counts().lane_depth_max, 0, "the lane was not deep in the last ten seconds");
    assert_eq!((lab.counts().pending, lab.counts().overtaken), (0, 0));
    assert_eq!(lab.counts().stale, 100, "each reset comes after the cancel of its timer");
}

#[test]
fn requests_beside_a_ring_that_grows_survive_the_end_of_the_lane() {
    for (end, drops) in [(0, true), (70, true), (70, false), (300, false)] {
        let mut lab = Lab::new(builder(1));
        let client = lab.client();
        for n in 0..end {
            client.on(SHARD).schedule(FAR, n).unwrap();
        }
        if end > 70 {
            let _received = lab.turn();
        }
        let left = send_mixed(&client, end, 30);
        if drops {
            drop(client);
            assert_eq!(lab.settled().pending, end + left.len() as u64);
            assert_eq!(lab.counts().lanes, 0);
        } else {
            let report = lab.end(ShutdownPolicy::Return);
            assert_eq!(report.returned.len(), end as usize + left.len());
            assert_eq!(client.on(SHARD).schedule(FAR, 1), Err(Refused::Closed(1)));
        }
    }
}

#[test]
fn schedule_behind_an_overflow_is_refused_until_it_is_received() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let client = lab.client();
    let timer = client.on(SHARD).schedule(ms(5), 1).unwrap();
    client.cancel_detached(timer);
    assert!(matches!(client.on(SHARD).schedule(ms(5), 2), Err(Refused::Busy(2))));
    assert!(lab.counts().refused >= 1);
    lab.settle();
    client.on(SHARD).schedule(ms(5), 2).unwrap();
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(2, 5)]);
}

#[test]
fn keys_of_a_leaked_client_come_back_after_a_minute() {
    let mut lab = Lab::new(builder(1));
    let key_pool = lab.counts().granted;
    let client = lab.client();
    client.on(SHARD).schedule(FAR, ()).unwrap();
    assert!(lab.settled().granted > key_pool);
    std::mem::forget(client);
    idle(&mut lab);
    let counts = lab.counts();
    assert_eq!((counts.granted, counts.lanes), (key_pool, 0));
    assert_eq!(counts.pending, 1, "the timer of the client is still pending");
}

#[test]
fn client_that_sends_a_request_in_each_minute_keeps_its_lane() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    for number in 0..12 {
        client.on(SHARD).schedule(ms(5), number).unwrap();
        lab.settle();
        lab.advance(Duration::from_secs(25));
        assert_eq!(lab.counts().lanes, 1, "after {number} pauses");
    }
}

#[test]
fn client_that_was_idle_for_a_minute_opens_another_lane() {
    // One lane is too small for the client's first requests after the pause, one is large enough.
    for capacity in [1, 64] {
        let mut lab = Lab::new(builder(1).lane_capacity(capacity));
        let client = lab.client();
        let idle = |lab: &mut Lab<_>| {
            lab.settle();
            idle(lab);
            assert_eq!(lab.counts().lanes, 0);
        };
        let first = client.on(SHARD).schedule(FAR, 1).unwrap();
        lab.settle();
        let second = client.on(SHARD).schedule(FAR, 2).unwrap();
        idle(&mut lab);
        let reply = client.cancel(first);
        let reset = client.reset(second, FAR);
        assert_eq!(lab.reply(reply).unwrap().payload().unwrap().into_value(), Some(1));
        assert_eq!(lab.reply(reset), Ok(ResetOutcome::Reset));
        idle(&mut lab);
        client.on(SHARD).schedule(ms(5), 3).unwrap();
        idle(&mut lab);
        client.cancel_detached(second);
        let refused = client.on(SHARD).schedule(ms(5), 4).is_err();
        assert!(!refused || capacity == 1, "a larger lane has room for a cancel and a timer");
        lab.advance(ms(5));
        assert_eq!(lab.fired().len(), if refused { 1 } else { 2 });
        assert_eq!(lab.counts().pending, 0, "the cancel is executed in any case");
    }
}

#[test]
fn waiting_thread_gets_its_reply_over_a_full_lane_of_one_request() {
    for host in Host::all() {
        let running = Running::<usize>::idle(host, builder(1).lane_capacity(1));
        let client = running.client();
        let mut cancelled = 0;
        for n in 0..300 {
            // The lane has room for the timer only, not for the other requests.
            let Ok(timer) = client.on(SHARD).schedule(FAR, n) else {
                thread::yield_now();
                continue;
            };
            client.reset_detached(timer, FAR);
            client.reset_detached(timer, FAR * 2);
            let payload = client.cancel(timer).wait().unwrap().payload();
            assert_eq!(payload.unwrap().into_value(), Some(n));
            cancelled += 1;
        }
        assert!(cancelled > 0, "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.cancelled, cancelled, "{host:?}");
        assert_eq!(unfired(&report.shards[0].counts), 0, "{host:?}");
    }
}

/// Schedules a value on the next shard. If that refuses, a local timer tries again later.
fn pass_on(left: u32, timers: &Timers<u32>) {
    let next = ShardId::new((timers.shard_id().number() + 1) % 3);
    if let Err(error) = timers.handle().on(next).schedule(Duration::ZERO, left) {
        timers.schedule(ms(1), error.into_value()).unwrap();
    }
}

#[test]
fn shards_with_full_lanes_in_a_circle_make_progress() {
    const TOKENS: u32 = 30;
    const HOPS: u32 = 20;
    for host in Host::all() {
        let (sender, done) = mpsc::channel();
        let running = Running::start(host, builder(3).lane_capacity(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u32>, timers: &Timers<u32>| match one.payload {
                0 => sender.send(()).unwrap(),
                left => pass_on(left - 1, timers),
            }
        });
        let client = running.client();
        for n in 0..TOKENS {
            let shard = ShardId::new((n % 3) as u16);
            while client.on(shard).schedule(Duration::ZERO, HOPS).is_err() {
                thread::yield_now();
            }
        }
        for _ in 0..TOKENS {
            done.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{host:?} is stuck"));
        }
        let report = running.end(ShutdownPolicy::Return);
        let fired: u64 = report.shards.iter().map(|shard| shard.counts.fired).sum();
        assert!(fired >= u64::from(TOKENS * (HOPS + 1)), "{host:?}");
    }
}

#[test]
fn flooding_client_starves_neither_other_clients_nor_local_timers() {
    const FLOOD: usize = 500;
    let budget = TurnBudget { requests_max: 8, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    let (flood, modest) = (lab.client(), lab.client());
    let send = |client: &Thread<_>, n| client.on(SHARD).schedule(ms(50), n).unwrap();
    for n in 0..FLOOD {
        send(&flood, n);
    }
    let timer = send(&modest, FLOOD);
    lab.timers().schedule(ms(1), FLOOD + 1).unwrap();
    lab.clock.advance(ms(1));
    assert_eq!(lab.turn(), Turn::More);
    assert_eq!(lab.fired(), [(FLOOD + 1, 1)], "the local timer fires");
    assert_eq!(lab.counts().requests, 5, "half of the budget, and one of the other client");
    let mut reply = modest.cancel(timer).into_future();
    assert_eq!(lab.turn(), Turn::More);
    assert!(matches!(look(&mut reply), Some(Ok(CancelOutcome::Cancelled { .. }))));
    assert!(lab.counts().lane_depth > 400, "most requests of the flood still wait");
    assert!(lab.counts().turns_exhausted >= 2);
    lab.settle();
    lab.advance(ms(50));
    assert_eq!(lab.fired().len(), FLOOD);
}

#[test]
fn overflow_is_executed_within_the_budget_and_in_order() {
    let budget = TurnBudget { requests_max: 4, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget).lane_capacity(2));
    let client = lab.client();
    let timer = client.on(SHARD).schedule(FAR, ()).unwrap();
    for delay in 1..=40 {
        client.reset_detached(timer, ms(delay));
    }
    let mut turns = 1;
    while lab.turn() == Turn::More {
        turns += 1;
        assert!(lab.counts().requests <= 4 * turns);
        // A later request is executed after the waiting requests.
        client.reset_detached(timer, ms(100));
        assert!(turns < 100, "the shard always has more to do");
    }
    lab.advance_ticks(100);
    assert_eq!(lab.fired(), [((), 100)]);
}
