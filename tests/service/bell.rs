//! Who is woken, and for what.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use corewheel::{Client, LoopSleep, Turn};

use crate::support::{Alarm, FAR, Lab, SHARD, builder, look, ms, next};

/// A shard that sleeps until a timer of its own at `ms(1_000)`, or for ever, and a client that is
/// connected.
fn asleep(has_timer: bool) -> (Lab<u32>, Client<u32>, Arc<Alarm>, Waker) {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.cancel_detached(client.schedule_on(SHARD, FAR, 0).unwrap());
    lab.settle();
    if has_timer {
        lab.timers().schedule(ms(1_000), 0).unwrap();
    }
    let (alarm, waker) = Alarm::new();
    let _ = fall_asleep(&mut lab, &waker);
    (lab, client, alarm, waker)
}

fn fall_asleep(lab: &mut Lab<u32>, waker: &Waker) -> LoopSleep {
    loop {
        let turn = lab.turn();
        match lab.shards[0].prepare_to_sleep(turn, waker) {
            LoopSleep::No => {}
            sleep => return sleep,
        }
    }
}

fn bells(lab: &Lab<u32>) -> (u64, u64) {
    (lab.counts().bells_rung, lab.counts().bells_saved)
}

#[test]
fn a_later_timer_does_not_wake_the_shard() {
    let (lab, client, alarm, _) = asleep(true);
    let (rung, saved) = bells(&lab);
    // The wheel may ask to be looked at before the timer is due, never after.
    client.schedule_on(SHARD, ms(1_000), 1).unwrap();
    client.schedule_on(SHARD, FAR, 2).unwrap();
    assert_eq!(alarm.count(), 0);
    assert_eq!(bells(&lab), (rung, saved + 2));
}

#[test]
fn an_earlier_timer_wakes_the_shard_once() {
    for has_timer in [false, true] {
        let (mut lab, client, alarm, waker) = asleep(has_timer);
        let (rung, saved) = bells(&lab);
        for n in 0..5 {
            client.schedule_on(SHARD, ms(5), n).unwrap();
        }
        assert_eq!(alarm.count(), 1);
        assert_eq!(bells(&lab), (rung + 1, saved + 4));
        assert!(matches!(fall_asleep(&mut lab, &waker), LoopSleep::Until(_)));
        client.schedule_on(SHARD, ms(4), 9).unwrap();
        assert_eq!(alarm.count(), 2, "and again in its next sleep");
    }
}

#[test]
fn a_cancel_that_nobody_waits_for_does_not_wake_the_shard() {
    let (mut lab, client, alarm, waker) = asleep(true);
    let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
    client.cancel_detached(timer);
    assert_eq!(alarm.count(), 0);
    let _ = waker;
    lab.advance(ms(1_000));
    assert_eq!(lab.fired(), [(0, 1_000)]);
    assert_eq!(lab.counts().pending, 0);
}

#[test]
fn a_cancel_or_a_reset_that_is_waited_for_wakes_the_shard() {
    let (mut lab, client, alarm, waker) = asleep(true);
    let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
    let mut reset = client.reset(timer, FAR).into_future();
    assert_eq!(alarm.count(), 1);
    let _ = fall_asleep(&mut lab, &waker);
    assert!(look(&mut reset).unwrap().is_ok());
    let mut cancel = client.cancel(timer).into_future();
    assert_eq!(alarm.count(), 2);
    let _ = fall_asleep(&mut lab, &waker);
    assert!(look(&mut cancel).unwrap().unwrap().won());
}

#[test]
fn a_reset_that_nobody_waits_for_wakes_the_shard_only_for_an_earlier_deadline() {
    let (lab, client, alarm, _) = asleep(true);
    let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
    client.reset_detached(timer, FAR * 2);
    assert_eq!(alarm.count(), 0);
    client.reset_detached(timer, ms(3));
    assert_eq!(alarm.count(), 1);
    drop(lab);
}

#[test]
fn a_client_whose_keys_run_low_wakes_the_shard() {
    // 32 keys of 1,024 are the most that a client is granted.
    let mut lab = Lab::new(builder(1).capacity(1_024));
    let client = lab.client();
    let _ = client.schedule_on(SHARD, FAR, 0);
    lab.settle();
    let (alarm, waker) = Alarm::new();
    let _ = fall_asleep(&mut lab, &waker);
    let mut sent = 0;
    while alarm.count() == 0 {
        client.schedule_on(SHARD, FAR, 1).expect("it wakes the shard before it has none left");
        sent += 1;
    }
    assert!((8..=16).contains(&sent), "after half of them: {sent}");
    let _ = fall_asleep(&mut lab, &waker);
    // And so again, for ever.
    for n in 0..200 {
        client.schedule_on(SHARD, FAR, n).unwrap();
        if alarm.count() > 1 {
            let _ = fall_asleep(&mut lab, &waker);
        }
    }
}

#[test]
fn a_client_that_is_refused_wakes_the_shard() {
    let mut lab = Lab::new(builder(1).capacity(2));
    let keep = lab.timers().schedule(FAR, 0).unwrap();
    lab.timers().schedule(FAR, 0).unwrap();
    let client = lab.client();
    let (alarm, waker) = Alarm::new();
    let _ = fall_asleep(&mut lab, &waker);
    assert!(client.schedule_on(SHARD, FAR, 1).is_err());
    assert!(alarm.count() >= 1);
    assert!(lab.timers().cancel(keep).won());
    let _ = fall_asleep(&mut lab, &waker);
    client.schedule_on(SHARD, FAR, 1).unwrap();
}

#[test]
fn a_batch_wakes_the_shard_once_for_its_earliest_timer() {
    let (lab, mut client, alarm, _) = asleep(true);
    let (rung, saved) = bells(&lab);
    let mut batch = client.batch(SHARD);
    for n in 0..20 {
        batch.schedule(FAR, n).unwrap();
    }
    batch.send().unwrap();
    assert_eq!((alarm.count(), bells(&lab)), (0, (rung, saved + 1)));
    let mut batch = client.batch(SHARD);
    for n in 0..20 {
        batch.schedule(if n == 13 { ms(1) } else { FAR }, n).unwrap();
    }
    drop(batch);
    assert_eq!((alarm.count(), bells(&lab)), (1, (rung + 1, saved + 1)));
}

#[test]
fn a_shard_does_not_fall_asleep_over_what_has_come_in() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.schedule_on(SHARD, FAR, 1).unwrap();
    let (alarm, waker) = Alarm::new();
    let turn = lab.turn();
    client.cancel_detached(client.schedule_on(SHARD, FAR, 2).unwrap());
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), LoopSleep::No);
    let turn = lab.turn();
    // Somebody at the door.
    let newcomer = lab.client();
    newcomer.schedule_on(SHARD, FAR, 3).unwrap();
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), LoopSleep::No);
    assert_eq!(lab.shards[0].prepare_to_sleep(Turn::More, &waker), LoopSleep::No);
    assert_eq!(alarm.count(), 0);
}

#[test]
fn what_waits_beside_a_full_lane_keeps_the_shard_awake() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let client = lab.client();
    let timer = client.schedule_on(SHARD, FAR, 1).unwrap();
    lab.settle();
    let (alarm, waker) = Alarm::new();
    let _ = fall_asleep(&mut lab, &waker);
    client.cancel_detached(timer);
    assert_eq!(alarm.count(), 0, "it fits");
    client.cancel_detached(timer);
    assert_eq!(alarm.count(), 1, "it does not, and there is work to do before anything does");
    let _ = fall_asleep(&mut lab, &waker);
    assert_eq!((lab.counts().cancelled, lab.counts().stale), (1, 1));
}

#[test]
fn a_timer_of_the_shards_own_wakes_it_if_it_is_earlier() {
    let (lab, _, alarm, _) = asleep(true);
    let timer = lab.timers().schedule(FAR, 1).unwrap();
    assert_eq!(alarm.count(), 0);
    let _ = lab.timers().reset(timer, ms(5));
    assert_eq!(alarm.count(), 1);
    lab.timers().schedule(ms(1), 1).unwrap();
    assert_eq!(alarm.count(), 1, "it is awake");
}

#[test]
fn a_loop_is_told_how_long_to_wait() {
    let mut lab = Lab::<u32>::new(builder(1));
    let (_, waker) = Alarm::new();
    assert_eq!(fall_asleep(&mut lab, &waker), LoopSleep::UntilWoken);
    lab.timers().schedule(ms(7), 1).unwrap();
    let epoch = lab.clock.now();
    assert_eq!(fall_asleep(&mut lab, &waker), LoopSleep::Until(epoch + ms(7)));
    assert_eq!(lab.turn(), next(7));
    lab.timers().schedule(Duration::MAX, 1).unwrap();
    lab.advance(ms(7));
    assert_eq!(lab.counts().fired, 1);
}
