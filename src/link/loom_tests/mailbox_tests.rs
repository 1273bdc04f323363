//! Tests of the mailbox of a shard under the model checker.

use corewheel_shard::Tick;
use loom::sync::Arc;
use loom::thread;

use super::super::lane::{Request, Room};
use super::super::mailbox::Mailbox;
use super::super::wake_up::Doorbell;
use super::{Owner, check};

/// The request type of these models: a number that uses no key.
impl Request for u32 {
    type Key = u32;

    fn number_of(key: u32) -> usize {
        key as usize
    }

    fn about(&self) -> Option<u32> {
        None
    }

    fn uses_key(&self) -> bool {
        false
    }

    fn needed_by(&self) -> Option<Tick> {
        Some(Tick::NEVER)
    }
}

/// Takes mail and sleeps as the owner of a mailbox until the message `stop` has come. Returns all
/// messages.
fn own(mailbox: &Mailbox<u32, u32>, doorbell: &Arc<Doorbell>, stop: u32) -> Vec<u32> {
    let mut owner = Owner::new(doorbell);
    let mut seen = Vec::new();
    assert!(mailbox.open());
    loop {
        if mailbox.take_flag() {
            seen.extend(mailbox.take(0, || None).control);
        }
        if seen.contains(&stop) {
            return seen;
        }
        owner.sleep(Tick::NEVER, || mailbox.has_mail());
    }
}

#[test]
fn control_message_wakes_the_owner_of_the_mailbox() {
    check(|| {
        let (mailbox, doorbell) = (Arc::new(Mailbox::new()), Arc::new(Doorbell::new()));
        let sender = {
            let (mailbox, doorbell) = (Arc::clone(&mailbox), Arc::clone(&doorbell));
            thread::spawn(move || [1, 2].map(|control| mailbox.send(control, &doorbell)))
        };
        assert_eq!(own(&mailbox, &doorbell, 2), [1, 2], "messages are taken in their order");
        assert_eq!(sender.join().unwrap(), [Ok(()), Ok(())]);
    });
}

#[test]
fn control_message_to_a_closing_mailbox_is_taken_or_comes_back() {
    check(|| {
        let (mailbox, doorbell) = (Arc::new(Mailbox::<u32, u32>::new()), Arc::new(Doorbell::new()));
        let sender = {
            let (mailbox, doorbell) = (Arc::clone(&mailbox), Arc::clone(&doorbell));
            thread::spawn(move || mailbox.send(7, &doorbell))
        };
        assert!(mailbox.open());
        let mut taken = Vec::new();
        if mailbox.take_flag() {
            taken.extend(mailbox.take(0, || None).control);
        }
        taken.extend(mailbox.close(|| {}).control);
        let came_back = sender.join().unwrap().err();
        assert_eq!(
            taken.len() + came_back.iter().len(),
            1,
            "the message is taken or comes back, once"
        );
        assert!(mailbox.send(8, &doorbell).is_err());
    });
}

#[test]
fn lane_to_a_closing_mailbox_is_taken_or_refused() {
    check(|| {
        let (mailbox, doorbell) = (Arc::new(Mailbox::<u32, u32>::new()), Arc::new(Doorbell::new()));
        let client = {
            let (mailbox, doorbell) = (Arc::clone(&mailbox), Arc::clone(&doorbell));
            thread::spawn(move || mailbox.connect(Room::new(1), 1, 1, 1, &doorbell).is_some())
        };
        assert!(mailbox.open());
        let mut lanes = 0;
        if mailbox.take_flag() {
            lanes += mailbox.take(0, || None).lanes.len();
        }
        lanes += mailbox.close(|| {}).lanes.len();
        assert_eq!(usize::from(client.join().unwrap()), lanes);
    });
}
