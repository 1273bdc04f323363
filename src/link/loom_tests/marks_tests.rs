//! Tests of requests that are cancelled in their lane, under the model checker.

use loom::sync::Arc;
use loom::thread;

use super::super::lane::{LaneReceiver, LaneSender, Mark, Room, lane};
use super::super::wake_up::Doorbell;
use super::lane_tests::{Message, fixed, growing, window};
use super::{Owner, check, check_within};
use Message::{Cancel, Schedule};
use corewheel_shard::Tick;

/// What an owner has received: the numbers of the schedules, and whether each was cancelled.
type Received = Vec<(u32, bool)>;

fn receive(lane: &mut LaneReceiver<Message>, received: &mut Received) {
    lane.receive(usize::MAX, |request, arrival, _| {
        if let Schedule(number) = request {
            assert_eq!(arrival.key, Some(number), "each request has the key that it was granted");
            received.push((number, arrival.is_cancelled));
        }
        None
    });
}

/// Sends a schedule that can be cancelled; `None` if the lane is closed.
fn send_marked(lane: &mut LaneSender<Message>, doorbell: &Doorbell) -> Option<Mark> {
    let key = lane.take_key(doorbell, 0).ok()?;
    lane.send_marked(Schedule(key), Tick::new(5), doorbell).ok()
}

/// A client sends `count` schedules, and cancels each where it lies, while the owner receives: the
/// mark and the owner agree on each of them.
fn check_agreement(room: Room, count: u32) {
    check(move || {
        let (mut sender, mut receiver) = lane(room, window(4), 1..=count);
        let client = thread::spawn(move || {
            let doorbell = Doorbell::new();
            let mut marks = Vec::new();
            for _ in 0..count {
                let mark = loop {
                    match send_marked(&mut sender, &doorbell) {
                        Some(mark) => break mark,
                        None => thread::yield_now(),
                    }
                };
                marks.push(mark.cancel());
            }
            (marks, sender)
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
fn schedule_and_its_mark_agree_on_who_has_it() {
    check_agreement(fixed(2), 1);
}

#[test]
fn schedules_of_one_slot_and_their_marks_agree_on_who_has_them() {
    check_agreement(fixed(1), 2);
}

#[test]
fn schedules_beside_the_ring_and_their_marks_agree_on_who_has_them() {
    check_agreement(growing(1, 4), 3);
}

/// Another thread cancels than the one that has sent, after the slot may have been used again.
#[test]
fn mark_of_another_thread_cancels_its_own_request_or_none() {
    check_within(2, || {
        let (mut sender, mut receiver) = lane(fixed(1), window(2), [1, 2]);
        let doorbell = Arc::new(Doorbell::new());
        let first = send_marked(&mut sender, &doorbell).unwrap();
        let other = thread::spawn(move || first.cancel());
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                while send_marked(&mut sender, &doorbell).is_none() {
                    thread::yield_now();
                }
                sender
            })
        };
        let (mut owner, mut arrived) = (Owner::new(&doorbell), Vec::new());
        loop {
            receive(&mut receiver, &mut arrived);
            if arrived.len() == 2 {
                break;
            }
            owner.sleep(Tick::NEVER, || receiver.has_news());
        }
        let is_cancelled = other.join().unwrap();
        client.join().unwrap();
        assert_eq!(arrived, [(1, is_cancelled), (2, false)]);
    });
}

/// A client sends and cancels while the owner closes the lane: what the owner receives at the end
/// is decided as well, and what comes back was not cancelled.
#[test]
fn mark_of_a_closing_lane_agrees_with_what_the_owner_receives_last() {
    for room in [fixed(2), growing(1, 4)] {
        check(move || {
            let (mut sender, mut receiver) = lane(room, window(2), [1, 2]);
            let client = thread::spawn(move || {
                let doorbell = Doorbell::new();
                let marks = [(); 2].map(|()| send_marked(&mut sender, &doorbell));
                let cancelled = marks.map(|mark| mark.map(Mark::cancel));
                // A cancel that asks for an outcome is a message of its own.
                let sent = sender.send_always(Cancel(8), &doorbell);
                (cancelled, sent.is_ok(), sender)
            });
            let mut arrived = Vec::new();
            receive(&mut receiver, &mut arrived);
            receiver.close();
            receiver.receive_rest(|request, arrival, _| {
                if let Schedule(number) = request {
                    arrived.push((number, arrival.is_cancelled));
                }
                None
            });
            receiver.hand_back();
            let (cancelled, _, _sender) = client.join().unwrap();
            let accepted = (1..).zip(cancelled).filter_map(|(number, is)| Some((number, is?)));
            assert_eq!(arrived, accepted.collect::<Vec<_>>());
        });
    }
}
