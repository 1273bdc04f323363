//! Keys that a shard grants to many clients, and takes back for others.

use super::*;

/// Schedules a far timer by each client, in rounds with a turn after each. A client that is
/// refused as busy tries again in the next round. Returns the number of rounds.
#[track_caller]
fn schedule_by_each(lab: &mut Lab<u32>, clients: &[Thread<u32>]) -> usize {
    let mut waiting: Vec<_> = clients.iter().collect();
    for round in 0..100 {
        waiting.retain(|client| match client.on(SHARD).schedule(FAR, 0) {
            Ok(_) => false,
            Err(Refused::Busy(_)) => true,
            Err(refused) => panic!("round {round}: {refused}, {:?}", lab.counts()),
        });
        lab.settle();
        if waiting.is_empty() {
            return round + 1;
        }
    }
    panic!("{} clients are busy for ever: {:?}", waiting.len(), lab.counts());
}

#[test]
fn two_thousand_clients_schedule_one_timer_each() {
    for capacity in [1 << 20, 10_000] {
        let mut lab = Lab::new(builder(1).capacity(capacity));
        let clients: Vec<_> = (0..2_000).map(|_| lab.client()).collect();
        let rounds = schedule_by_each(&mut lab, &clients);
        let counts = lab.counts();
        assert_eq!((counts.pending, counts.lanes), (2_000, 2_000), "after {rounds} rounds");
        assert!(rounds <= 3, "a client finds a key after one turn, not after {rounds}");
        let free = counts.capacity - counts.pending - counts.granted;
        assert!(free > counts.capacity / 8, "there is room for other clients: {counts:?}");
    }
}

#[test]
fn fresh_client_beside_320_idle_clients_is_served_at_its_second_try() {
    for capacity in [1 << 20, 1 << 12, 400] {
        let mut lab = Lab::new(builder(1).capacity(capacity));
        let idle: Vec<_> = (0..320).map(|_| lab.client()).collect();
        for client in &idle {
            // Some of the clients have not a single key yet.
            if let Ok(timer) = client.on(SHARD).schedule(FAR, 0) {
                client.cancel_detached(timer);
            }
        }
        lab.settle();
        lab.advance(ms(1));
        assert_eq!(lab.counts().pending, 0);
        let fresh = lab.client();
        if let Err(refused) = fresh.on(SHARD).schedule(FAR, 1) {
            assert_eq!(refused.kind(), RefusedKind::Busy, "{:?}", lab.counts());
            lab.settle();
            fresh.on(SHARD).schedule(FAR, 1).expect("the shard is empty");
        }
        drop(idle);
        assert_eq!(lab.settled().pending, 1);
    }
}

#[test]
fn keys_of_an_idle_client_come_back_for_a_client_that_needs_them() {
    let mut lab = Lab::new(builder(1).capacity(64));
    let (idle, other) = (lab.client(), lab.client());
    let timer = idle.on(SHARD).schedule(FAR, 1).unwrap();
    lab.settle();
    while lab.counts().pending + lab.counts().granted < 64 {
        lab.timers().schedule(FAR, 0).unwrap();
        lab.settle();
    }
    lab.advance(ms(1));
    let mut accepted = 0;
    // Each turn makes the slots of idle keys free that the client needs.
    for _ in 0..64 {
        accepted += u64::from(other.on(SHARD).schedule(FAR, 2).is_ok());
        lab.settle();
    }
    assert!(accepted > 0);
    assert_eq!((lab.counts().pending, lab.counts().granted), (64, 0), "no slot is left");
    assert_eq!(other.on(SHARD).schedule(FAR, 2), Err(Refused::Full(2)));
    // The idle client has another lane, and its timer is as it was.
    idle.cancel_detached(timer);
    assert_eq!(lab.settled().cancelled, 1);
    // Its slot is a key of the idle client, until that is idle again.
    for _ in 0..3 {
        let _accepted_once = other.on(SHARD).schedule(FAR, 3);
        lab.settle();
    }
    assert_eq!((lab.counts().pending, lab.counts().granted), (64, 0));
}

#[test]
fn keys_of_an_idle_client_come_back_for_the_shards_own_timers() {
    let mut lab = Lab::new(builder(1).capacity(64));
    let idle = lab.client();
    idle.on(SHARD).schedule(ms(5), 1).unwrap();
    lab.settle();
    lab.advance(ms(1));
    for n in lab.counts().pending as u32..64 {
        lab.timers().schedule(FAR, n).expect("a key that is only granted comes back");
    }
    assert_eq!(lab.timers().schedule(FAR, 0), Err(Refused::Full(0)));
    let counts = lab.settled();
    assert_eq!((counts.pending, counts.granted), (64, 0));
    assert_eq!(counts.lanes, 0, "the idle client has lost its lane");
    let _busy = idle.on(SHARD).schedule(FAR, 1);
    assert_eq!(lab.settled().lanes, 1, "the client opens another lane");
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(1, 6)], "a timer outlives its lane");
}

#[test]
fn window_grows_with_use_up_to_the_largest_burst() {
    let mut lab = Lab::new(builder(1).capacity(1 << 15));
    // A thirty-second of the slots is 1,024 keys, which the clients share.
    let others: Vec<_> = (0..99).map(|_| lab.client()).collect();
    schedule_by_each(&mut lab, &others);
    let client = lab.client();
    let burst = |lab: &mut Lab<u32>| {
        let mut timers: Vec<TimerId> = Vec::new();
        while let Ok(timer) = client.on(SHARD).schedule(FAR, 0) {
            timers.push(timer);
        }
        lab.settle();
        client.cancel_many(&timers).detach();
        lab.settle();
        timers.len()
    };
    let bursts: Vec<_> = (0..10).map(|_| burst(&mut lab)).collect();
    assert!(bursts[0] <= 10, "{bursts:?}");
    // The owner fills a window up when half of it is used.
    assert!(bursts[..6].is_sorted() && bursts[8..].iter().all(|burst| *burst > 512), "{bursts:?}");
}

#[test]
fn refusal_beside_busy_clients_names_their_keys() {
    let mut lab = Lab::new(builder(1).capacity(32));
    let (busy, other) = (lab.client(), lab.client());
    let timer = busy.on(SHARD).schedule(FAR, 1).unwrap();
    lab.settle();
    let held = lab.counts().granted - 1;
    while lab.timers().schedule(FAR, 0).is_ok() {
        // The client uses its lane, so the shard leaves the lane open.
        busy.reset_detached(timer, FAR);
        lab.settle();
    }
    assert_eq!(lab.counts().granted, held);
    let mut kinds = Vec::new();
    for _ in 0..3 {
        busy.reset_detached(timer, FAR);
        kinds.push(other.on(SHARD).schedule(FAR, 2).unwrap_err().kind());
        lab.settle();
    }
    let RefusedKind::Reserved { keys, threads } = kinds[2] else { panic!("{kinds:?}") };
    assert_eq!((u64::from(keys), threads), (held, 1));
    let text = kinds[2].to_string();
    let expected = "no slot left for another timer: 1 are reserved as keys of 1 other threads";
    assert!(text.contains(expected), "{text}");
    let refused = other.on(SHARD).schedule(FAR, 7).unwrap_err();
    assert_eq!((refused.kind(), format!("{refused}")), (kinds[2], text));
    assert_eq!(refused.into_value(), 7);
}

#[test]
fn short_lived_clients_leave_no_key_and_no_lane() {
    const CLIENTS: u64 = 25_000;
    let mut lab = Lab::<u32>::new(builder(1).capacity(1 << 15));
    let before = lab.counts();
    let schedule = |client: Thread<u32>| match client.on(SHARD).schedule(ms(1), 0) {
        Ok(_) => 1,
        Err(Refused::Busy(_)) => 0,
        Err(refused) => panic!("{refused}"),
    };
    let threads = 100;
    let mut accepted = 0;
    for _ in 0..threads {
        let client = lab.client();
        accepted += thread::spawn(move || schedule(client)).join().unwrap();
        lab.settle();
    }
    for _ in threads..CLIENTS {
        accepted += schedule(lab.client());
        if accepted % 8 == 0 {
            let _ = lab.turn();
        }
    }
    let counts = lab.settled();
    assert_eq!((counts.granted, counts.lanes), (before.granted, 0));
    assert_eq!((counts.pending, accepted), (CLIENTS, CLIENTS), "each client finds a key");
    lab.advance(Duration::from_secs(1));
    assert_eq!(lab.fired().len() as u64, CLIENTS);
}
