//! Tests of lanes under the model checker: closing, overflow, grants, and threads that go.

use corewheel_shard::Tick;
use loom::sync::Arc;
use loom::thread;

use super::super::lane::{Exhausted, LaneReceiver, LaneSender, Request, Room, Window, lane};
use super::super::wake_up::Doorbell;
use super::{Owner, check, check_within, tick};
use crate::values::refused::RefusedKind;

/// A request of these models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Uses up a key.
    Schedule(u32),
    /// Does not.
    Cancel(u32),
    /// Does not, and may wait until [`SOON`].
    Forget(u32),
}
use Message::{Cancel, Forget, Schedule};

/// Until when requests may wait that need not be received at once.
pub(super) const SOON: Tick = tick(3);

impl Request for Message {
    type Key = u32;

    fn number_of(key: u32) -> usize {
        key as usize
    }

    fn about(&self) -> Option<u32> {
        None
    }

    fn uses_key(&self) -> bool {
        matches!(self, Schedule(_))
    }

    fn needed_by(&self) -> Option<Tick> {
        (!matches!(self, Forget(_))).then_some(tick(5))
    }
}

/// A window that is as large as it may be.
pub(super) fn window(size: usize) -> Window {
    Window::share_of(size, 1, size)
}

/// Room for `max` requests, all of them in the ring.
pub(super) fn fixed(max: usize) -> Room {
    Room { ring: max, max }
}

/// Room for `max` requests, of which only `ring` fit into the first ring.
pub(super) fn growing(ring: usize, max: usize) -> Room {
    Room { ring, max }
}

/// The owner's end of a lane, and the requests that it has accepted, with the keys that they use.
struct Receiver {
    lane: LaneReceiver<Message>,
    accepted: Vec<(Message, Option<u32>)>,
}

impl Receiver {
    fn new(lane: LaneReceiver<Message>) -> Self {
        Self { lane, accepted: Vec::new() }
    }

    fn receive(&mut self, max: usize) -> usize {
        let accepted = &mut self.accepted;
        self.lane.receive(max, |place, arrival| {
            accepted.extend(place.take().map(|request| (request, arrival.key)));
        })
    }

    /// Closes the lane in the steps of a shard. Returns the accepted requests, and the keys that no
    /// accepted request has used.
    fn close(mut self) -> (Vec<(Message, Option<u32>)>, Vec<u32>) {
        let accepted = &mut self.accepted;
        self.lane.close(|place, arrival| {
            accepted.extend(place.take().map(|request| (request, arrival.key)));
        });
        (self.accepted, self.lane.hand_back().into())
    }
}

/// Sends a request. Returns it if it comes back.
fn send(lane: &mut LaneSender<Message>, request: Message, doorbell: &Doorbell) -> Option<Message> {
    let Schedule(value) = request else {
        return lane.send_always(request, doorbell, || SOON).err();
    };
    match lane.reserve(doorbell) {
        Ok(slot) => slot.send(|key| Schedule(*key)).map_or_else(Some, |key| {
            assert_eq!(key, value, "keys are used in the order in which they are granted");
            None
        }),
        Err(refusal) => {
            assert_eq!(refusal, RefusedKind::Closed, "there is a key and room for the request");
            Some(request)
        }
    }
}

/// A thread sends these requests while the owner takes turns and closes the lane.
fn check_closing(room: Room, requests: &'static [Message], turns: usize) {
    check(move || {
        let (mut sender, receiver) = lane(room, window(2), [1, 2]);
        let mut receiver = Receiver::new(receiver);
        let client = thread::spawn(move || {
            let doorbell = Doorbell::new();
            let mut back = Vec::new();
            for request in requests {
                back.extend(send(&mut sender, *request, &doorbell));
            }
            // The sender lives on: the model checker does not see that the drop of the last
            // reference to the lane comes after all others.
            (back, sender)
        });
        for _ in 0..turns {
            receiver.receive(1);
        }
        let (accepted, keys) = receiver.close();
        let (back, _sender) = client.join().unwrap();
        let all: Vec<_> = accepted.iter().map(|(request, _)| *request).chain(back).collect();
        assert_eq!(all, requests, "each request is accepted or comes back, in order");
        let used = accepted.iter().filter_map(|(_, key)| *key);
        assert_eq!(used.chain(keys).collect::<Vec<_>>(), [1, 2], "no key is lost");
        for (request, key) in accepted {
            assert!(key.is_none_or(|key| request == Schedule(key)), "{request:?} has key {key:?}");
        }
    });
}

#[test]
fn schedule_to_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(fixed(2), &[Schedule(1)], 0);
}

#[test]
fn two_schedules_to_a_closing_lane_are_accepted_or_come_back() {
    check_closing(fixed(2), &[Schedule(1), Schedule(2)], 1);
}

#[test]
fn schedule_and_cancel_to_a_closing_lane_are_accepted_or_come_back() {
    check_closing(fixed(2), &[Schedule(1), Cancel(8)], 1);
}

#[test]
fn overflow_of_a_closing_lane_is_accepted_or_comes_back() {
    check_closing(fixed(1), &[Cancel(7), Cancel(8)], 0);
}

#[test]
fn overflow_of_a_receiving_and_closing_lane_is_accepted_or_comes_back() {
    check_closing(fixed(1), &[Cancel(7), Cancel(8), Cancel(9)], 1);
}

#[test]
fn schedules_beside_the_ring_of_a_closing_lane_are_accepted_or_come_back() {
    check_closing(growing(1, 4), &[Schedule(1), Schedule(2), Cancel(8)], 0);
}

#[test]
fn larger_ring_of_a_receiving_and_closing_lane_loses_no_request() {
    check_closing(growing(1, 4), &[Schedule(1), Cancel(8), Schedule(2)], 1);
}

/// A thread sends `count` requests while the owner receives up to `max` at a time, and sleeps.
fn check_overflow(room: Room, count: u32, max: usize) {
    check(move || {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, receiver) = lane(room, window(1), []);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                for value in 1..=count {
                    assert_eq!(send(&mut sender, Cancel(value), &doorbell), None);
                }
                sender
            })
        };
        let (mut receiver, mut owner) = (Receiver::new(receiver), Owner::new(&doorbell));
        loop {
            receiver.receive(max);
            if receiver.accepted.len() == count as usize {
                break;
            }
            owner.sleep(Tick::NEVER, || receiver.lane.has_news());
        }
        let accepted = receiver.accepted.into_iter().map(|(request, _)| request);
        assert!(accepted.eq((1..=count).map(Cancel)), "requests come in their order");
        client.join().unwrap();
    });
}

#[test]
fn overflow_keeps_the_order_of_requests_and_wakes_the_owner() {
    check_overflow(fixed(1), 3, 2);
}

#[test]
fn overflow_waits_for_a_ring_that_one_turn_does_not_empty() {
    check_overflow(fixed(2), 3, 1);
}

#[test]
fn larger_ring_keeps_the_order_of_requests_and_wakes_the_owner() {
    check_overflow(growing(1, 4), 3, 2);
}

/// A thread schedules twice beside the ring while the owner receives up to `max` at a time, and
/// sleeps: each request has the key that the thread took for it.
#[test]
fn schedules_beside_the_ring_have_the_keys_of_their_order() {
    for max in [1, 3] {
        check_within(2, move || {
            let doorbell = Arc::new(Doorbell::new());
            let (mut sender, receiver) = lane(growing(1, 4), window(3), [1, 2, 3]);
            let client = {
                let doorbell = Arc::clone(&doorbell);
                thread::spawn(move || {
                    for value in 1..=3 {
                        assert_eq!(send(&mut sender, Schedule(value), &doorbell), None);
                    }
                    sender
                })
            };
            let (mut receiver, mut owner) = (Receiver::new(receiver), Owner::new(&doorbell));
            loop {
                receiver.receive(max);
                if receiver.accepted.len() == 3 {
                    break;
                }
                owner.sleep(Tick::NEVER, || receiver.lane.has_news());
            }
            let expected = [1, 2, 3].map(|value| (Schedule(value), Some(value)));
            assert_eq!(receiver.accepted, expected);
            client.join().unwrap();
        });
    }
}

/// The thread has one key, and waits for the second. The owner grants it in the turn that receives
/// the first request.
#[test]
fn client_that_waits_for_a_key_is_granted_it() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, receiver) = lane(fixed(2), window(1), [1]);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                assert_eq!(send(&mut sender, Schedule(1), &doorbell), None);
                loop {
                    match sender.reserve(&doorbell) {
                        Ok(slot) => {
                            assert_eq!(slot.send(|key| Schedule(*key)), Ok(2));
                            break sender;
                        }
                        Err(refusal) => assert_eq!(refusal, RefusedKind::Busy),
                    }
                    thread::yield_now();
                }
            })
        };
        let (mut receiver, mut owner) = (Receiver::new(receiver), Owner::new(&doorbell));
        loop {
            receiver.receive(2);
            if receiver.lane.wants_keys() > 0 {
                receiver.lane.grant(2);
            }
            if receiver.accepted.len() == 2 {
                break;
            }
            owner.sleep(Tick::NEVER, || receiver.lane.has_news());
        }
        let expected = [(Schedule(1), Some(1)), (Schedule(2), Some(2))];
        assert_eq!(receiver.accepted, expected, "each request has the key that it was granted");
        client.join().unwrap();
    });
}

/// The owner sleeps until an earlier tick than that of the request, which does not wake it. The
/// thread finds no room for the next request, and wakes the owner.
#[test]
fn client_without_room_wakes_an_owner_that_its_request_has_not_woken() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, receiver) = lane(fixed(1), window(4), [1, 2, 3, 4]);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                assert_eq!(send(&mut sender, Schedule(1), &doorbell), None);
                loop {
                    match sender.reserve(&doorbell) {
                        Ok(slot) => {
                            assert_eq!(slot.send(|key| Schedule(*key)), Ok(2));
                            break sender;
                        }
                        Err(refusal) => assert_eq!(refusal, RefusedKind::Busy),
                    }
                    thread::yield_now();
                }
            })
        };
        let (mut receiver, mut owner) = (Receiver::new(receiver), Owner::new(&doorbell));
        while receiver.receive(1) == 0 {
            owner.sleep(tick(3), || receiver.lane.has_news());
        }
        client.join().unwrap();
        receiver.receive(1);
        assert_eq!(receiver.accepted, [(Schedule(1), Some(1)), (Schedule(2), Some(2))]);
    });
}

/// A thread without a key is told that the owner has none to grant, once the owner has said so.
#[test]
fn client_of_an_exhausted_owner_is_refused_or_granted_a_key() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, mut receiver) = lane::<Message>(fixed(2), window(1), []);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                let first = sender.reserve(&doorbell).map(|slot| slot.send(|key| Schedule(*key)));
                (first, sender)
            })
        };
        receiver.set_exhausted(Some(Exhausted { keys: 0, threads: 0 }));
        receiver.grant(7);
        receiver.set_exhausted(None);
        let (first, mut sender) = client.join().unwrap();
        assert!(
            matches!(first, Ok(Ok(7)) | Err(RefusedKind::Full | RefusedKind::Busy)),
            "{first:?}"
        );
        let second = sender.reserve(&doorbell).map(|slot| slot.send(|key| Schedule(*key)));
        assert_eq!(second, if first.is_ok() { Err(RefusedKind::Busy) } else { Ok(Ok(7)) });
    });
}

/// A thread sends and is dropped while the owner takes turns: when the owner sees that the thread
/// is gone and finds no request, it has received all of them.
fn check_drop(room: Room, requests: &'static [Message], preemptions_max: usize) {
    check_within(preemptions_max, move || {
        let doorbell = Arc::new(Doorbell::new());
        let (mut sender, receiver) = lane(room, window(2), [1, 2]);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                for request in requests {
                    assert_eq!(send(&mut sender, *request, &doorbell), None);
                }
            })
        };
        let mut receiver = Receiver::new(receiver);
        for turn in 0.. {
            receiver.receive(1);
            if receiver.lane.is_finished() {
                break;
            }
            if turn == 1 {
                // Nothing wakes the owner when a thread goes, so the model does not sleep.
                client.join().unwrap();
                while !receiver.lane.is_finished() {
                    receiver.receive(1);
                }
                break;
            }
        }
        let arrived = receiver.accepted.len();
        assert_eq!(arrived, requests.len(), "a request is lost");
        let (accepted, keys) = receiver.close();
        assert_eq!(accepted.len(), arrived);
        let used = accepted.iter().filter_map(|(_, key)| *key);
        assert_eq!(used.chain(keys).collect::<Vec<_>>(), [1, 2], "no key is lost");
    });
}

#[test]
fn client_dropped_after_a_schedule_leaves_its_request_and_its_key() {
    check_drop(fixed(2), &[Schedule(1)], 3);
}

#[test]
fn client_dropped_after_an_overflow_leaves_its_requests() {
    check_drop(fixed(1), &[Cancel(7), Cancel(8)], 3);
}

#[test]
fn client_dropped_after_its_ring_has_grown_leaves_its_requests() {
    check_drop(growing(1, 4), &[Schedule(1), Schedule(2)], 3);
}

/// The request is due 5 ticks after the beginning. An owner that falls asleep until 9 ticks after
/// that takes a turn for it or is woken, and one that falls asleep until 3 may let it wait.
#[test]
fn owner_that_falls_asleep_beside_a_request_wakes_for_its_deadline() {
    check(|| {
        let doorbell = Arc::new(Doorbell::new());
        // The window is so large that two requests do not fill half of it.
        let (mut sender, receiver) = lane(fixed(8), window(8), 1..=8);
        let client = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                for value in 1..=2 {
                    assert_eq!(send(&mut sender, Schedule(value), &doorbell), None);
                }
                sender
            })
        };
        let (mut receiver, mut owner) = (Receiver::new(receiver), Owner::new(&doorbell));
        owner.sleep_until_alarm(tick(3));
        assert!(!receiver.lane.has_news_before(tick(3), tick(3)), "they may wait");
        while receiver.accepted.len() < 2 {
            receiver.receive(8);
            if receiver.accepted.len() < 2 {
                owner.sleep(tick(9), || receiver.lane.has_news_before(tick(9), SOON));
            }
        }
        client.join().unwrap();
    });
}
