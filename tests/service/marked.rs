//! Timers that are cancelled before their shard has received them: they are marked in their lane.

use super::*;

#[test]
fn timers_cancelled_in_their_lane_are_dropped_by_the_next_turn_and_do_not_fire() {
    let mut lab = Lab::<Guard>::new(builder(1));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    let held = guard.clone();
    let call = move |_: &_| panic!("{held:?} is cancelled");
    let call = client.on(SHARD).schedule_fn(ms(5), call).unwrap();
    let value = client.on(SHARD).schedule(FAR, guard).unwrap();
    // The second cancel of the value is a message, for a timer that is gone.
    for timer in [call, value, value] {
        client.cancel_detached(timer);
    }
    assert_eq!(count(&dropped), 0);
    lab.settle();
    assert_eq!(count(&dropped), 2);
    lab.advance(ms(5));
    let counts = lab.counts();
    assert_eq!((counts.requests, counts.cancelled, counts.stale), (3, 2, 1));
    assert_eq!((counts.fired, counts.panicked), (0, 0));
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
