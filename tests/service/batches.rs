//! Batches of commands, alone and beside the other commands of their client.

use std::time::Duration;

use corewheel::{Refused, ShutdownPolicy};

use crate::support::{FAR, Lab, OTHER, SHARD, builder, check_law, ms};

#[test]
fn command_beside_an_open_batch_is_sent_after_the_staged_requests() {
    let mut lab = Lab::<u32>::new(builder(1));
    let client = lab.client();
    let mut batch = client.shard(SHARD).batch();
    let first = batch.schedule(ms(5), 1).unwrap();
    client.reset_detached(first, ms(2));
    batch.schedule(ms(5), 2).unwrap();
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1, 2)], "the reset found its timer");
    assert!(batch.send().is_ok());
    lab.advance(ms(5));
    assert_eq!(lab.fired().len(), 1);
    check_law(&lab.counts());
}

#[test]
fn two_batches_of_one_client_keep_their_timers_apart() {
    let mut lab = Lab::<u32>::new(builder(2));
    let client = lab.client();
    let (mut here, mut there) = (client.shard(SHARD).batch(), client.shard(OTHER).batch());
    let mut handles = Vec::new();
    for n in 0..100 {
        handles.push((n, here.schedule(ms(5), n).unwrap()));
        handles.push((n + 1_000, there.schedule(ms(5), n + 1_000).unwrap()));
    }
    // Each handle names the timer that it was given for.
    for (n, handle) in handles.iter().filter(|(n, _)| n % 3 == 0) {
        assert_eq!(handle.shard(), if *n < 1_000 { SHARD } else { OTHER });
        here.cancel_detached(*handle);
    }
    assert!(here.send().is_ok() && there.send().is_ok());
    lab.advance(ms(10));
    let mut fired: Vec<_> = lab.fired().into_iter().map(|(n, _)| n).collect();
    fired.sort_unstable();
    let mut left: Vec<_> = handles.iter().map(|(n, _)| *n).filter(|n| n % 3 != 0).collect();
    left.sort_unstable();
    assert_eq!(fired, left);
}

#[test]
fn refused_values_of_two_batches_come_back_from_their_own_batch() {
    let mut lab = Lab::<u32>::new(builder(2));
    let client = lab.client();
    for shard in [SHARD, OTHER] {
        client.shard(shard).schedule(FAR, 0).unwrap();
    }
    lab.settle();
    let (mut here, mut there) = (client.shard(SHARD).batch(), client.shard(OTHER).batch());
    for n in 0..5 {
        here.schedule(ms(5), n).unwrap();
    }
    for shard in lab.shards.drain(..) {
        drop(shard.shutdown(ShutdownPolicy::Drop));
    }
    // The requests of the first batch are sent to a closed lane before the second batch begins.
    assert_eq!(there.schedule(ms(5), 100), Err(Refused::Closed(100)), "the shard has ended");
    assert_eq!(there.send(), Ok(()), "the values of the other batch are not returned here");
    assert_eq!(here.send(), Err(Refused::Closed(vec![0, 1, 2, 3, 4])));
}

#[test]
fn batch_of_cancels_larger_than_the_lane_is_applied_in_order() {
    let mut lab = Lab::new(builder(2).capacity(64).lane_capacity(8));
    let client = lab.client();
    let elsewhere = client.shard(OTHER).schedule(FAR, 0).unwrap();
    // 64 / 32 keys are granted in advance, and the first client gets half of the key pool.
    let mut accepted = Vec::new();
    for round in 0..20 {
        let mut batch = client.shard(SHARD).batch();
        for n in 0..4 {
            match batch.schedule(ms(10), round * 4 + n) {
                Ok(timer) => accepted.push((timer, round * 4 + n)),
                Err(Refused::Full(value)) => assert_eq!(value, round * 4 + n),
                Err(Refused::Busy(_)) => {}
                Err(refused) => panic!("the shard is open: {refused}"),
            }
        }
        assert!(batch.send().is_ok());
        assert_eq!(lab.fired(), [], "round {round}");
        lab.settle();
    }
    assert!((20..=64).contains(&accepted.len()), "{}", accepted.len());
    assert_eq!(lab.counts().pending as usize, accepted.len());
    let mut batch = client.shard(SHARD).batch();
    // More cancels than fit into the lane, and a cancel for another shard.
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
fn batch_resets_timers_of_its_shard_and_of_another_shard() {
    let mut lab = Lab::new(builder(2));
    let client = lab.client();
    let here = client.shard(SHARD).schedule(FAR, 1).unwrap();
    let there = client.shard(OTHER).schedule(FAR, 2).unwrap();
    let mut batch = client.shard(SHARD).batch();
    batch.reset_detached(here, ms(3));
    batch.reset_detached(there, ms(2));
    batch.schedule(lab.clock.now() + ms(1), 3).unwrap();
    // The drop sends the batch.
    drop(batch);
    for _ in 0..3 {
        lab.advance(ms(1));
    }
    assert_eq!(lab.fired(), [(3, 1), (2, 2), (1, 3)]);
}

/// Takes turns of a lab until its shard has closed the lanes, which are idle.
fn idle(lab: &mut Lab<u32>) {
    for _ in 0..3 {
        lab.advance(Duration::from_secs(59));
    }
    assert_eq!(lab.counts().lanes, 0);
}

#[test]
fn batch_after_an_idle_minute_opens_a_lane_and_sends_its_timers() {
    for begins_with_a_cancel in [false, true] {
        let mut lab = Lab::<u32>::new(builder(1));
        let client = lab.client();
        let timer = client.shard(SHARD).schedule(FAR, 0).unwrap();
        lab.settle();
        client.shard(SHARD).schedule(ms(1), 0).unwrap();
        lab.settle();
        idle(&mut lab);
        lab.fired();
        let mut batch = client.shard(SHARD).batch();
        if begins_with_a_cancel {
            batch.cancel_detached(timer);
        }
        for n in 1..=3 {
            batch.schedule(ms(5), n).unwrap();
        }
        batch.send().expect("the shard is open");
        lab.advance(ms(5));
        assert!(lab.fired().into_iter().map(|(n, _)| n).eq(1..=3));
        assert_eq!(lab.counts().pending, u64::from(!begins_with_a_cancel));
        check_law(&lab.counts());
    }
}

#[test]
fn batch_whose_lane_is_closed_as_idle_returns_its_timers_as_busy() {
    let mut lab = Lab::<u32>::new(builder(1));
    let client = lab.client();
    client.shard(SHARD).schedule(ms(1), 0).unwrap();
    lab.settle();
    let mut batch = client.shard(SHARD).batch();
    batch.schedule(ms(5), 1).unwrap();
    idle(&mut lab);
    lab.fired();
    assert_eq!(batch.send(), Err(Refused::Busy(vec![1])));
    client.shard(SHARD).schedule(ms(5), 2).unwrap();
    lab.advance(ms(5));
    assert_eq!(lab.fired().len(), 1, "the client sends on another lane");
    check_law(&lab.counts());
}

#[test]
fn batch_of_500_timers_keeps_their_order() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    let mut batch = client.shard(SHARD).batch();
    for n in 0..500 {
        batch.schedule(ms(1), n).unwrap();
    }
    batch.send().unwrap();
    lab.settle();
    assert_eq!(lab.counts().pending, 500);
    lab.advance(ms(1));
    assert!(lab.fired().into_iter().map(|(n, _)| n).eq(0..500), "in the order of the batch");
}
