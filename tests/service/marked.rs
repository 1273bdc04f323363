//! Timers that are cancelled before their shard has received them: they are marked in their lane.

use super::*;

#[test]
fn value_cancelled_in_its_lane_is_dropped_by_the_next_turn() {
    let mut lab = Lab::<Guard>::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let timer = client.on(SHARD).schedule(FAR, guard).unwrap();
    client.cancel_detached(timer);
    client.cancel_detached(timer);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    lab.settle();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let counts = lab.counts();
    // The second cancel is a message, for a timer that is gone.
    assert_eq!((counts.requests, counts.cancelled, counts.stale), (2, 1, 1));
}

#[test]
fn callback_cancelled_in_its_lane_does_not_run() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let call = move |_: &_| panic!("{guard:?} is cancelled");
    let timer = client.on(SHARD).schedule_fn(ms(5), call).unwrap();
    client.cancel_detached(timer);
    lab.settle();
    lab.advance(ms(5));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!((lab.counts().requests, lab.counts().cancelled), (1, 1));
}

#[test]
fn timers_that_are_cancelled_in_the_lane_send_no_cancels() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.on(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    let schedule = |n| client.on(SHARD).schedule(FAR, n).unwrap();
    let timers: Vec<_> = (1..=40).map(schedule).collect();
    for timer in timers {
        client.cancel_detached(timer);
    }
    let counts = lab.settled();
    assert_eq!((counts.requests, counts.pending, counts.cancelled), (41, 1, 40));
}

/// A caller that asks gets the truth and the payload, whatever is cancelled without asking.
#[test]
fn cancel_that_asks_before_a_detached_one_gets_the_payload() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    let timer = client.on(SHARD).schedule(FAR, 7).unwrap();
    let reset = client.reset(timer, FAR * 2);
    let asked = client.cancel(timer);
    client.cancel_detached(timer);
    lab.settle();
    assert_eq!(block_on(reset), Ok(ResetOutcome::Reset));
    let payload = block_on(asked).unwrap().payload().expect("the cancel has won");
    assert_eq!(payload.into_value(), Some(7));
}

/// Another client asks for the outcome before the timer has come, and the first one cancels the
/// timer where it lies.
#[test]
fn cancel_that_overtook_a_marked_timer_gets_its_payload() {
    let mut lab = Lab::new(builder(1));
    let (early, client) = (lab.client(), lab.client());
    early.on(SHARD).schedule(FAR, 0).unwrap();
    client.on(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    let timer = client.on(SHARD).schedule(FAR, 7).unwrap();
    let asked = early.cancel(timer);
    client.cancel_detached(timer);
    lab.settle();
    let payload = block_on(asked).unwrap().payload().expect("the cancel has won");
    assert_eq!(payload.into_value(), Some(7));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled, counts.scheduled_remote), (2, 1, 3));
}
