//! Tests of requests that are cancelled in their lane, under the model checker.

use loom::sync::Arc;
use loom::thread;

use super::super::lane::{LaneReceiver, LaneSender, Room, lane};
use super::super::wake_up::Doorbell;
use super::lane_tests::{Message, SOON, fixed, growing, window};
use super::{Owner, check, tick};
use Message::{Cancel, Forget, Schedule};

/// What an owner has received: the numbers of the schedules, and whether each was cancelled.
type Received = Vec<(u32, bool)>;

fn receive(lane: &mut LaneReceiver<Message>, received: &mut Received) {
    lane.receive(usize::MAX, |place, arrival| {
        if let Some(Schedule(number)) = place.take() {
            assert_eq!(arrival.key, Some(number), "each request has the key that it was granted");
            received.push((number, arrival.is_cancelled));
        }
    });
}

/// Sends a schedule and returns its key; `None` if the lane is closed.
fn send(lane: &mut LaneSender<Message>, doorbell: &Doorbell) -> Option<u32> {
    lane.reserve(doorbell).ok()?.send(|key| Schedule(*key)).ok()
}

/// A thread sends `count` schedules, and cancels each where it lies, while the owner receives: the
/// thread and the owner agree on each of them.
fn check_agreement(room: Room, count: u32) {
    check(move || {
        let (mut sender, mut receiver) = lane(room, window(4), 1..=count);
        let client = thread::spawn(move || {
            let doorbell = Doorbell::new();
            let mut cancelled = Vec::new();
            for _ in 0..count {
                let key = loop {
                    match send(&mut sender, &doorbell) {
                        Some(key) => break key,
                        None => thread::yield_now(),
                    }
                };
                cancelled.push(sender.cancel(key, &doorbell, || SOON));
            }
            (cancelled, sender)
        });
        let mut arrived = Vec::new();
        receive(&mut receiver, &mut arrived);
        while arrived.len() < count as usize {
            thread::yield_now();
            receive(&mut receiver, &mut arrived);
        }
        let (cancelled, _sender) = client.join().unwrap();
        let expected: Vec<_> = (1..).zip(cancelled).collect();
        assert_eq!(arrived, expected, "exactly one of the two has each request");
    });
}

#[test]
fn schedule_and_its_cancel_agree_on_who_has_it() {
    check_agreement(fixed(2), 1);
}

#[test]
fn schedules_of_one_slot_and_their_cancels_agree_on_who_has_them() {
    check_agreement(fixed(1), 2);
}

#[test]
fn schedules_beside_the_ring_and_their_cancels_agree_on_who_has_them() {
    check_agreement(growing(1, 4), 3);
}

/// A thread sends and cancels while the owner closes the lane: what the owner receives at the end
/// is decided as well, and what comes back was not cancelled.
#[test]
fn cancel_in_a_closing_lane_agrees_with_what_the_owner_receives_last() {
    for room in [fixed(2), growing(1, 4)] {
        check(move || {
            let (mut sender, mut receiver) = lane(room, window(2), [1, 2]);
            let client = thread::spawn(move || {
                let doorbell = Doorbell::new();
                let keys = [(); 2].map(|()| send(&mut sender, &doorbell));
                let cancelled =
                    keys.map(|key| key.map(|key| sender.cancel(key, &doorbell, || SOON)));
                // A cancel that asks for an outcome is a message of its own.
                let sent = sender.send_always(Cancel(8), &doorbell, || SOON);
                (cancelled, sent.is_ok(), sender)
            });
            let mut arrived = Vec::new();
            receive(&mut receiver, &mut arrived);
            receiver.close(|place, arrival| {
                if let Some(Schedule(number)) = place.take() {
                    arrived.push((number, arrival.is_cancelled));
                }
            });
            receiver.hand_back();
            let (cancelled, _, _sender) = client.join().unwrap();
            let accepted = (1..).zip(cancelled).filter_map(|(number, is)| Some((number, is?)));
            assert_eq!(arrived, accepted.collect::<Vec<_>>());
        });
    }
}

/// The schedule itself may wait until the owner wakes.
#[test]
fn cancel_in_the_lane_is_seen_by_an_owner_that_sleeps_past_it() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, mut receiver) = lane(fixed(2), window(4), 1..=4);
        let mut owner = Owner::new(&doorbell);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                let key = send(&mut sender, &doorbell).expect("the lane is open");
                (sender.cancel(key, &doorbell, || SOON), sender)
            })
        };
        let mut arrived = Vec::new();
        loop {
            receive(&mut receiver, &mut arrived);
            if !arrived.is_empty() {
                break;
            }
            owner.sleep(tick(5), || receiver.has_news_before(tick(5), SOON));
        }
        let (is_cancelled, _sender) = client.join().unwrap();
        assert_eq!(arrived, [(1, is_cancelled)]);
    });
}

#[test]
fn request_that_may_wait_is_seen_by_an_owner_that_sleeps_for_longer() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, mut receiver) = lane(fixed(2), window(4), 1..=4);
        let mut owner = Owner::new(&doorbell);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                let sent = sender.send_always(Forget(7), &doorbell, || SOON);
                (sent, sender)
            })
        };
        let mut arrived = None;
        while arrived.is_none() {
            receiver.receive(usize::MAX, |place, _| arrived = place.take());
            if arrived.is_none() {
                owner.sleep(tick(5), || receiver.has_news_before(tick(5), SOON));
            }
        }
        let (sent, _sender) = client.join().unwrap();
        assert_eq!((sent, arrived), (Ok(()), Some(Forget(7))));
    });
}
